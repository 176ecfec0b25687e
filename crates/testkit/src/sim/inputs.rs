//! Inputs that the oldest worlds did not have, each drawn from the seed by a generator of its own.

use std::time::Duration;

use kubelet_config::source::{ConfigAnnotations, Source};
use kubelet_supervisor::machine::Input;

use super::Rng;
use super::api::UNCLEAR;
use super::chaos::{Chaos, any_content};
use super::kubelet::Refusal;
use super::policy::Policy;
use super::workers::Doom;
use super::world::{Coming, Outside, ms};

/// What a world has of them.
#[derive(Debug)]
pub struct Inputs {
    /// It stands still before the peace.
    pub(super) stands_still: bool,
    /// What a change waits for comes by chance, where it does.
    pub(super) moments: Option<Rng>,
    /// Workers end by chance.
    workers: Option<Rng>,
    /// Kubelets hang on trial and in a control test as well.
    pub(super) hangs: Option<Rng>,
    /// Somebody annotates the Node.
    annotations: Option<Rng>,
    /// Somebody asks what would become of a ConfigMap.
    pub(super) requests: Option<Rng>,
    /// Root changes the node's policy.
    pub(super) policies: Option<Rng>,
    /// The machine sleeps.
    pub(super) sleeps: Option<Rng>,
    /// ConfigMaps ask for a confirmation, or for courtesy.
    asking: Option<Rng>,
}

/// A generator of its own, in one of so many worlds.
fn drawn(seed: u64, salt: u64, one_in: u64) -> Option<Rng> {
    let mut rng = Rng::new(seed ^ salt);
    rng.one_in(one_in).then_some(rng)
}

/// The generator, if it is its turn, once in so many.
fn turn(rng: &mut Option<Rng>, one_in: u64) -> Option<&mut Rng> {
    let rng = rng.as_mut()?;
    if rng.one_in(one_in) { Some(rng) } else { None }
}

impl Inputs {
    pub(super) fn new(seed: u64) -> Self {
        let of = |salt, one_in| drawn(seed, salt, one_in);
        Self {
            stands_still: of(0x5374_696C, 4).is_some(),
            moments: of(0x4D6F_6D65, 3),
            workers: of(0x576F_726B, 2),
            hangs: of(0x4861_6E67, 2),
            annotations: of(0x416E_6E6F, 4),
            requests: of(0x5265_7175, 4),
            policies: of(0x506F_6C69, 4),
            sleeps: of(0x536C_6565, 4),
            asking: of(0x4173_6B69, 4),
        }
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
    /// What else happens in this turn.
    pub(super) fn more_inputs(&mut self) {
        self.disturb_node();
        self.doom_worker();
        self.annotate();
        self.request();
        self.change_policy();
        self.sleep();
        self.ask_otherwise();
    }

    /// A worker ends, at once or soon.
    fn doom_worker(&mut self) {
        let Some(rng) = turn(&mut self.inputs.workers, 3) else { return };
        let absent = match rng.below(4) {
            0 | 1 => Duration::ZERO,
            2 => ms(rng.below(900)),
            _ => Duration::from_secs(rng.below(15)),
        };
        let most = rng.pick(&[1, 4, 60]);
        let doom = Doom { inputs: rng.below(most), asked: rng.one_in(3), absent };
        self.node.doom_worker(doom);
    }

    /// Streams last until others come; a pressure ends within the slack of laws about time.
    fn disturb_node(&mut self) {
        let Some(rng) = turn(&mut self.inputs.moments, 3) else { return };
        let streams = u32::from(rng.one_in(2));
        let pressure = rng.one_in(2).then(|| Duration::from_secs(3 + rng.below(12)));
        let stray = if rng.one_in(3) { Duration::ZERO } else { Duration::from_secs(3 + rng.below(6)) };
        self.node.outside.borrow_mut().disturb_node(streams, pressure, stray);
        self.note(&format!("{streams} streams, pressure for {pressure:?}, a stray pod for {stray:?}"));
        if pressure.is_some() {
            self.pass(Duration::from_secs(3));
        }
    }

    /// The Node asks for another try of what is assigned, or confirms it.
    fn annotate(&mut self) {
        let Some(rng) = turn(&mut self.inputs.annotations, 8) else { return };
        let mut outside = self.node.outside.borrow_mut();
        let name = |source: &Source| format!("{}/{}", source.uid, source.resource_version);
        let assigned = outside.status.assigned.as_ref().map(name);
        let (retry, confirm) = (assigned.clone().filter(|_| rng.one_in(2)), assigned.filter(|_| rng.one_in(2)));
        outside.tell(&format!("the Node is annotated: retry {retry:?}, confirm {confirm:?}"));
        outside.schedule(ms(rng.below(900)), Coming::Annotations(retry, confirm));
    }

    /// What the Node is asked to judge; some of it is never assigned.
    fn request(&mut self) {
        let Some(rng) = turn(&mut self.inputs.requests, 4) else { return };
        let mut outside = self.node.outside.borrow_mut();
        let (behaviour, salt) = any_content(rng);
        if rng.one_in(3) {
            outside.put_as("asked", &behaviour.text(salt), rng.one_in(3));
        }
        let request = outside.ask_to_judge(&["blue", "green", "red", "asked", "asked"], rng);
        outside.tell(&format!("the Node is asked to judge {request:?}, \"asked\" would be {behaviour:?}"));
    }

    /// The next versions of ConfigMaps have other annotations.
    fn ask_otherwise(&mut self) {
        let Some(rng) = turn(&mut self.inputs.asking, 4) else { return };
        let mut pick = |texts: &[&str]| Some(rng.pick(texts).to_owned()).filter(|text| !text.is_empty());
        let confirm_within = pick(&["", "", "1m40s", "1m40s", "5m", "0s", UNCLEAR]);
        let courtesy = pick(&["", "", "2s", "0s", "0s", "2s", "2s", UNCLEAR]);
        self.note(&format!("ConfigMaps ask for: confirmation {confirm_within:?}, courtesy {courtesy:?}"));
        let annotations = ConfigAnnotations { confirm_within, courtesy, ..ConfigAnnotations::default() };
        self.node.outside.borrow_mut().annotations = annotations;
    }

    /// Shorter sleeps cannot be told from a busy processor.
    fn sleep(&mut self) {
        let Some(rng) = turn(&mut self.inputs.sleeps, 12) else { return };
        let time = Duration::from_secs(rng.pick(&[600, 3 * 3600, 30 * 3600]));
        self.note(&format!("the machine sleeps for {time:?}"));
        self.node.outside.borrow_mut().sleep(time);
    }

    /// Root changes the node's policy.
    fn change_policy(&mut self) {
        let Some(rng) = turn(&mut self.inputs.policies, 6) else { return };
        let policy = rng.pick(&Policy::ALL);
        self.note(&format!("the node's policy: {policy:?}"));
        self.node.outside.borrow_mut().set_policy(policy);
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
