//! Directed worlds: what a defect needs in order to show is there, and happens often. The rest happens as in other worlds, and the
//! laws are the same.

use std::time::Duration;

use kubelet_config::assignment::Assignment;
use kubelet_supervisor::machine::command::{Command, Target};

use super::Rng;
use super::chaos::{Chaos, NAMES, rot};
use super::disk::{Fault, Plan};
use super::policy::Policy;
use super::silence::OneSide;
use super::workers::Doom;
use super::world::Behaviour;

/// What a world is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    // By its seed, and nothing that happens.
    Confirmations,
    Courtesy,
    Follows,
    LocalIsBad,
    Pings,
    StandsStill,
    Turns,
    // What happens to what is assigned.
    Put(Behaviour),
    /// The content that runs, under another name.
    Same,
    Label,
    Reset,
    Edit,
    Tear,
    // To the node. What is away is back at the next turn of this kind.
    Api,
    Runtime,
    OneSided,
    Unasked,
    Unjudged,
    Streams,
    Pressure,
    Stray,
    Policy,
    Sleep,
    // To the disk.
    Stall,
    Slow,
    Full,
    Eio,
    Rot,
    // To processes.
    Kill,
    Hang,
    Upgrade,
    Unstartable,
    Worker,
    Restart,
    Boot,
    // What operators say, and what the Node asks for.
    Pin,
    PinProven,
    Unpin,
    Freeze,
    Thaw,
    Retry,
    Confirm,
    Request,
    // Everything works again.
    Mend,
    /// A trial's time and more passes; or ten minutes.
    Wait,
    Long,
}

/// What an operator says, if it is that.
fn command(need: Need) -> Option<Command> {
    Some(match need {
        Need::Pin => Command::Pin { to: None },
        Need::PinProven => Command::Pin { to: Some(Target::Lkg) },
        Need::Unpin => Command::Unpin,
        Need::Freeze => Command::Freeze,
        Need::Thaw => Command::Thaw,
        Need::Retry => Command::Retry,
        Need::Confirm => Command::Confirm { extend_seconds: None },
        _ => return None,
    })
}

impl Chaos {
    /// True if a world of this seed can have it.
    pub fn has(&self, need: Need) -> bool {
        let (settings, inputs) = (&self.node.executor.state.settings, &self.inputs);
        match need {
            Need::Confirmations => settings.confirm_within.is_some(),
            Need::Follows => settings.follow_local,
            Need::LocalIsBad => !self.node.outside.borrow().own().behaviour.works(),
            Need::Pings => settings.watchdog.is_some(),
            Need::StandsStill => inputs.stands_still,
            Need::Turns => !settings.spread.is_zero(),
            Need::Courtesy | Need::Streams | Need::Pressure | Need::Stray => inputs.moments.is_some(),
            Need::Hang => self.hangs && inputs.hangs.is_some(),
            Need::Request => inputs.requests.is_some(),
            Need::Policy => inputs.policies.is_some(),
            Need::Sleep => inputs.sleeps.is_some(),
            _ => true,
        }
    }

    /// Has this happen often.
    pub fn direct(&mut self, seed: u64, needs: &'static [Need]) {
        self.needs = (!needs.is_empty()).then(|| (Rng::new(seed ^ 0x4E65_6564), needs));
    }

    /// Most of these worlds begin with a proven version.
    pub(super) fn begin_directed(&mut self) {
        if self.needs.as_mut().is_some_and(|(rng, _)| !rng.one_in(4)) {
            self.node.outside.borrow_mut().assign("blue");
            self.pass(self.trial + Duration::from_secs(90));
        }
    }

    /// What is needed happens in two turns of three.
    pub(super) fn act_directed(&mut self) -> Option<String> {
        let (mut rng, needs) = self.needs.take()?;
        let need = Some(rng.pick(needs)).filter(|_| !rng.one_in(3));
        let is_done = need.is_some_and(|need| self.fulfil(need, &mut rng));
        self.needs = Some((rng, needs));
        need.filter(|_| is_done).map(|need| format!("as is needed: {need:?}"))
    }

    /// False if it is nothing that happens.
    fn fulfil(&mut self, need: Need, rng: &mut Rng) -> bool {
        let node = &mut self.node;
        let mut outside = node.outside.borrow_mut();
        let (now, name, is_first) = (outside.now, rng.pick(&NAMES), rng.one_in(2));
        let disk = outside.disk.clone();
        let fault = |fault, rng: &mut Rng| {
            disk.plan(Plan { fault, at: disk.operations() + rng.below(12), once: rng.one_in(2) });
        };
        match need {
            Need::Put(behaviour) => {
                outside.put_as(name, &behaviour.text(rng.below(3)), rng.one_in(3));
                outside.assign(name);
            }
            Need::Same => {
                let Some(content) = outside.process.as_ref().map(|process| process.content) else { return true };
                outside.put_as(name, &content.behaviour.text(content.salt), content.base > 0);
                outside.assign(name);
            }
            Need::Label => NAMES.iter().for_each(|name| outside.touch(name)),
            Need::Reset => outside.set_desired(Assignment::Local),
            Need::Edit => outside.edit_local(false),
            Need::Tear => outside.edit_local(true),
            Need::Api => {
                let up = !outside.api_up;
                outside.set_api(up);
            }
            Need::Runtime => {
                let up = outside.surroundings.runtime_down;
                outside.set_runtime(up, is_first);
            }
            Need::OneSided => outside.silence.one_side = Some(rng.pick(&[OneSide::Queries, OneSide::Watches])),
            Need::Unasked => outside.silence.queries = !outside.silence.queries,
            Need::Unjudged => outside.silence.judge = !outside.silence.judge,
            Need::Streams => outside.disturb_node(1, None, Duration::ZERO),
            Need::Pressure => outside.disturb_node(0, Some(Duration::from_secs(3 + rng.below(40))), Duration::ZERO),
            Need::Stray => outside.disturb_node(0, None, Duration::from_secs(3 + rng.below(40))),
            Need::Policy => outside.set_policy(rng.pick(&Policy::ALL)),
            Need::Sleep => outside.sleep(Duration::from_secs(rng.pick(&[600, 3 * 3600]))),
            Need::Stall => outside.silence.stall(now, now + Duration::from_secs(rng.pick(&[3, 20, 90, 300]))),
            Need::Slow => outside.silence.slow = Duration::from_millis(rng.pick(&[0, 700, 3000, 6000])),
            Need::Full => fault(Fault::Full, rng),
            Need::Eio => fault(Fault::Io, rng),
            Need::Kill => outside.kill_kubelet(),
            Need::Hang => _ = outside.hang(is_first, true),
            Need::Upgrade => outside.kubelet_id = format!("kubelet {}", rng.below(3)),
            Need::Unstartable => outside.spawn_failures = 1 + u32::from(is_first),
            _ => {
                drop(outside);
                return self.fulfil_for_the_node(need, rng);
            }
        }
        true
    }

    /// The same, of what needs the whole node.
    fn fulfil_for_the_node(&mut self, need: Need, rng: &mut Rng) -> bool {
        let seconds = |rng: &mut Rng, most| Duration::from_secs(rng.below(most));
        match need {
            Need::Rot => rot(&self.node, rng),
            Need::Worker => {
                let most = rng.pick(&[1, 4, 60]);
                let absent = if rng.one_in(2) { Duration::ZERO } else { seconds(rng, 15) };
                self.node.doom_worker(Doom { inputs: rng.below(most), asked: rng.one_in(3), absent });
            }
            Need::Restart => {
                if !self.node.stop_supervisor() {
                    self.node.power_cycle();
                }
                self.node.boot();
            }
            Need::Boot => {
                self.node.power_cycle();
                self.node.boot();
            }
            Need::Request => {
                drop(self.node.outside.borrow_mut().ask_to_judge(&NAMES, rng));
            }
            Need::Mend => self.mend(),
            Need::Wait => self.pass(self.trial + seconds(rng, 60)),
            Need::Long => self.pass(Duration::from_secs(600) + seconds(rng, 60)),
            other => {
                let Some(command) = command(other) else { return false };
                self.node.operate(&command);
            }
        }
        true
    }
}
