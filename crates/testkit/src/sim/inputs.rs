//! Inputs that old worlds did not have, each drawn from the seed by a generator of its own.

use kubelet_config::source::Source;
use kubelet_supervisor::machine::Input;

use super::Rng;
use super::chaos::Chaos;
use super::kubelet::Refusal;
use super::world::{Coming, Outside, ms};

/// What a world has of them.
#[derive(Debug)]
pub struct Inputs {
    /// It stands still before the peace.
    pub(super) stands_still: bool,
    /// Kubelets hang on trial and in a control test as well.
    hangs: Option<Rng>,
    /// Somebody annotates the Node.
    annotations: Option<Rng>,
}

/// A generator of its own, in one of so many worlds.
pub(super) fn drawn(seed: u64, salt: u64, one_in: u64) -> Option<Rng> {
    let mut rng = Rng::new(seed ^ salt);
    rng.one_in(one_in).then_some(rng)
}

impl Inputs {
    pub(super) fn new(seed: u64) -> Self {
        let of = |salt, one_in| drawn(seed, salt, one_in);
        Self { stands_still: of(0x5374_696C, 4).is_some(), hangs: of(0x4861_6E67, 2), annotations: of(0x416E_6E6F, 4) }
    }

    /// How the API server says that it answers nothing.
    pub(super) fn refusal(seed: u64) -> Refusal {
        Rng::new(seed ^ 0x3530_3330).pick(&[
            Refusal::Unreachable,
            Refusal::Unreachable,
            Refusal::Busy,
            Refusal::HeldBack,
        ])
    }

    pub(super) fn hangs_on_trial(&mut self) -> bool {
        self.hangs.as_mut().is_some_and(|rng| rng.one_in(2))
    }
}

impl Chaos {
    /// The Node asks for another try of what is assigned, or confirms it.
    pub(super) fn annotate(&mut self) {
        let Some(rng) = self.inputs.annotations.as_mut() else { return };
        if !rng.one_in(8) {
            return;
        }
        let mut outside = self.node.outside.borrow_mut();
        let name = |source: &Source| format!("{}/{}", source.uid, source.resource_version);
        let assigned = outside.status.assigned.as_ref().map(name);
        let (retry, confirm) = (assigned.clone().filter(|_| rng.one_in(2)), assigned.filter(|_| rng.one_in(2)));
        outside.tell(&format!("the Node is annotated: retry {retry:?}, confirm {confirm:?}"));
        outside.schedule(ms(rng.below(900)), Coming::Annotations(retry, confirm));
    }
}

impl Outside {
    /// What the Node's annotations say is heard, as a command is.
    pub(super) fn hear_annotations(&mut self, retry: Option<String>, confirm: Option<String>) -> Option<Input> {
        self.hears_api().then(|| {
            let (now, account) = (self.now, &mut self.account);
            account.commanded_at = Some(now);
            if retry.is_some() {
                (account.boots, account.deaths, account.testing) = (None, None, false);
                (account.overruled, account.retry_requested) = (true, true);
            }
            if confirm.is_some() {
                account.confirmed = account.awaits.map(|awaits| awaits.content).or(account.confirmed);
            }
            Input::NodeAnnotations { retry, confirm }
        })
    }
}
