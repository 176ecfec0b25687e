//! A deliberately broken core. Each mutant tampers between the machine, its inputs and its ports;
//! the laws must catch every one of them.
use std::time::Duration;

use kubelet_config::assignment::Assignment;
use kubelet_supervisor::machine::evidence::{Baseline, Environment, Signal};
use kubelet_supervisor::machine::model::{Moment, Verdict};
use kubelet_supervisor::machine::record::{RetryLater, TrialSnapshot};
use kubelet_supervisor::machine::{Input, Kubelet, Records, State, Stored};

use super::disk::Syncing;
use super::tamper::{Call, HONEST, Tamper};

/// A mutant: what is wrong with it, and how.
pub type Mutant = (&'static str, Tamper);

/// Add to the end; a world of each seed is run until one is caught.
pub static MUTANTS: &[Mutant] = &[
    ("last known good long before the trial ends", Tamper { after: hurry, ..HONEST }),
    (
        "last known good is recorded with the switch",
        Tamper {
            record: |records| {
                if records.local_state.attempt.is_some() {
                    records.last_known_good.clone_from(&records.assigned);
                }
            },
            ..HONEST
        },
    ),
    (
        "time is told by the wall clock",
        Tamper { moment: |now| Moment { boot: Duration::from_nanos(now.wall_nanos), ..now }, ..HONEST },
    ),
    (
        "a back-off depends on the wall clock",
        Tamper { after: |state| state.crashes += u32::from(state.now().wall_nanos % 2 == 1), ..HONEST },
    ),
    ("records are not written", Tamper { times: |call| u32::from(call != Call::Record), ..HONEST }),
    ("checkpoints are not written", Tamper { times: |call| u32::from(call != Call::Save), ..HONEST }),
    ("nothing is synced", Tamper { syncing: Syncing::Never, ..HONEST }),
    ("directories are not synced", Tamper { syncing: Syncing::FilesOnly, ..HONEST }),
    ("files are not synced", Tamper { syncing: Syncing::DirsOnly, ..HONEST }),
    ("files are synced after their rename", Tamper { syncing: Syncing::AfterRename, ..HONEST }),
    ("a needed checkpoint is collected", Tamper { keep: |keep| drop(keep.pop_first()), ..HONEST }),
    (
        "exits go unheard",
        Tamper { input: |_, input| Some(input).filter(|it| !matches!(it, Input::Exited(_))), ..HONEST },
    ),
    ("no restart after an exit", Tamper { after: wait_long, ..HONEST }),
    ("two kubelets at once", Tamper { times: |call| 1 + u32::from(call == Call::Start), ..HONEST }),
    ("no SIGKILL", Tamper { times: |call| u32::from(call != Call::Kill), ..HONEST }),
    ("no probes", Tamper { times: |call| u32::from(call != Call::Probe), ..HONEST }),
    ("healthz is believed in any case", Tamper { input: always_healthy, ..HONEST }),
    (
        "failures of healthz go unheard",
        Tamper { input: |_, input| Some(input).filter(|it| *it != Input::Probed(false)), ..HONEST },
    ),
    (
        "exits in a trial are not counted",
        Tamper { after: |state| state.trial.iter_mut().for_each(|trial| trial.exits = 0), ..HONEST },
    ),
    (
        "boots in a trial are not counted",
        Tamper {
            load: |stored| {
                if let Ok(local_state) = &mut stored.local_state {
                    local_state.attempt = None;
                }
            },
            ..HONEST
        },
    ),
    (
        "bad versions are neither kept nor written",
        Tamper { after: forget_bad_versions, record: |records| records.local_state.bad.clear(), ..HONEST },
    ),
    ("bad versions are forgotten", Tamper { after: forget_bad_versions, ..HONEST }),
    ("bad versions are not written", Tamper { record: |records| records.local_state.bad.clear(), ..HONEST }),
    (
        "bad versions do not outlive a boot",
        Tamper {
            load: |stored| {
                if let Ok(local_state) = &mut stored.local_state {
                    local_state.bad.clear();
                }
            },
            ..HONEST
        },
    ),
    ("the rollback goes to local", Tamper { after: back_to_local, ..HONEST }),
    ("the rollback goes to what failed", Tamper { after: back_to_bad, ..HONEST }),
    ("equal content is not seen to be equal", Tamper { after: |state| state.running.digest = None, ..HONEST }),
    (
        "a reset is ignored",
        Tamper { input: |_, input| Some(input).filter(|it| *it != Input::Node(Assignment::Local)), ..HONEST },
    ),
    (
        "a Node that is gone is a reset",
        Tamper {
            input: |_, input| {
                Some(if input == Input::Node(Assignment::Unknown) { Input::Node(Assignment::Local) } else { input })
            },
            ..HONEST
        },
    ),
    (
        "a ConfigMap that is gone is a reset",
        Tamper {
            input: |_, input| match input {
                Input::ConfigMapFailed { definite: true, .. } => Some(Input::Node(Assignment::Local)),
                input => Some(input),
            },
            ..HONEST
        },
    ),
    ("another map's payload is taken", Tamper { input: take_any_map, ..HONEST }),
    ("the watch is not renewed", Tamper { times: |call| u32::from(call != Call::Watch), ..HONEST }),
    (
        "verdicts go unheard",
        Tamper { input: |_, input| Some(input).filter(|it| !matches!(it, Input::Judged(..))), ..HONEST },
    ),
    (
        "every verdict is taken for a yes",
        Tamper {
            input: |_, input| match input {
                Input::Judged(ticket, _) => Some(Input::Judged(ticket, Verdict::Valid(Vec::new()))),
                input => Some(input),
            },
            ..HONEST
        },
    ),
    ("what the disk refused is forgotten", Tamper { after: |state| state.unsaved = None, ..HONEST }),
    (
        "what was postponed stays so",
        Tamper {
            after: |state| {
                let far = Moment { boot: state.now().boot + Duration::from_secs(86_400), wall_nanos: 0 };
                state.retry.iter_mut().for_each(|(_, at)| *at = far);
            },
            ..HONEST
        },
    ),
    ("the status is not published", Tamper { times: |call| u32::from(call != Call::Publish), ..HONEST }),
    ("errors are not said", Tamper { after: |state| (state.error, state.sync_error) = (None, None), ..HONEST }),
    ("it ends without its kubelet", Tamper { input: leave_it_behind, ..HONEST }),
    (
        "the surroundings are always well",
        Tamper {
            input: |_, input| match input {
                Input::EnvironmentObserved(seen) => Some(Input::EnvironmentObserved(Environment {
                    runtime: seen.runtime.map(|_| true),
                    ..Environment::default()
                })),
                input => Some(input),
            },
            ..HONEST
        },
    ),
    ("nobody observes the node", Tamper { times: |call| u32::from(call != Call::Query), ..HONEST }),
    ("the clock runs on while judgement is suspended", Tamper { after: run_on, ..HONEST }),
    (
        "the control test clears nothing",
        Tamper { after: clear_nothing, record: |records| records.local_state.control_test = None, ..HONEST },
    ),
    (
        "the control test clears everything",
        Tamper { after: |state| each(state, clear_versions), record: clear_versions, ..HONEST },
    ),
    ("a cleared version is never tried again", Tamper { after: |state| each(state, never), record: never, ..HONEST }),
    (
        "a node that is cut off is well",
        Tamper { after: |state| forgive(state, &[Signal::ApiServer, Signal::NodeReady, Signal::Lease]), ..HONEST },
    ),
    ("pings that stop are no sign", Tamper { after: |state| forgive(state, &[Signal::Watchdog]), ..HONEST }),
    (
        "nobody need confirm in time",
        Tamper { after: |state| each(state, wait_for_ever), record: wait_for_ever, ..HONEST },
    ),
    ("nobody need confirm", Tamper { after: |state| each(state, confirm), record: confirm, ..HONEST }),
    (
        "a pin is no hold",
        Tamper {
            after: |state| each(state, |records| records.local_state.pin = None),
            record: |records| records.local_state.pin = None,
            ..HONEST
        },
    ),
    (
        "a freeze is no hold",
        Tamper {
            after: |state| each(state, |records| records.local_state.frozen = false),
            record: |records| records.local_state.frozen = false,
            ..HONEST
        },
    ),
    (
        "holds do not outlive a boot",
        Tamper {
            load: |stored| {
                if let Ok(local_state) = &mut stored.local_state {
                    (local_state.pin, local_state.frozen) = (None, false);
                }
            },
            ..HONEST
        },
    ),
    ("a boot costs no try", Tamper { load: |stored| tries(stored, |tries| tries.saturating_sub(1)), ..HONEST }),
    ("boots have no limit", Tamper { load: |stored| tries(stored, |tries| tries.min(1)), ..HONEST }),
    (
        "what was bad before is judged as well",
        Tamper { after: |state| each(state, judge_all), record: judge_all, ..HONEST },
    ),
    ("the trial judges by nothing", Tamper { after: |state| each(state, judge_none), record: judge_none, ..HONEST }),
    (
        "the boot ignores what is assigned",
        Tamper { load: |stored| stored.assigned = stored.last_known_good.clone(), ..HONEST },
    ),
    (
        "a reload forgets the exits",
        Tamper { handover: |it| it.state_mut().trial.iter_mut().for_each(|trial| trial.exits = 0), ..HONEST },
    ),
    (
        "a reload proves the trial",
        Tamper {
            handover: |it| {
                it.state_mut().trial.iter_mut().for_each(|trial| trial.health_before_pause = Duration::from_secs(3600));
            },
            ..HONEST
        },
    ),
    ("a reload forgets the trial", Tamper { handover: |it| it.state_mut().trial = None, ..HONEST }),
    ("a reload forgets what is assigned", Tamper { handover: |it| it.state_mut().saved.assigned = None, ..HONEST }),
    (
        "a reload forgets the bad versions",
        Tamper { handover: |it| it.state_mut().saved.local_state.bad.clear(), ..HONEST },
    ),
    ("an end for a restart forgets the exits", Tamper { load: |stored| snapshot(stored, |it| it.exits = 0), ..HONEST }),
];

fn hurry(state: &mut State) {
    state.settings.trial_duration = Duration::from_secs(15);
}

fn wait_long(state: &mut State) {
    if let Kubelet::Waiting { until } = &mut state.kubelet {
        until.boot += Duration::from_secs(60);
    }
}

fn always_healthy(_: &mut State, input: Input) -> Option<Input> {
    Some(if input == Input::Probed(false) { Input::Probed(true) } else { input })
}

fn forget_bad_versions(state: &mut State) {
    state.saved.local_state.bad.clear();
    state.unsaved.iter_mut().for_each(|records| records.local_state.bad.clear());
}

fn back_to_local(state: &mut State) {
    let proven = &state.saved.last_known_good;
    if matches!(state.kubelet, Kubelet::Stopping { .. }) && state.target == *proven && state.saved.assigned != *proven {
        state.target = None;
    }
}

fn back_to_bad(state: &mut State) {
    let assigned = state.saved.assigned.clone();
    let is_bad = state.saved.local_state.bad.iter().any(|bad| Some(&bad.source) == assigned.as_ref());
    if matches!(state.kubelet, Kubelet::Stopping { .. }) && is_bad && state.target != assigned {
        forget_bad_versions(state);
        state.target = assigned;
    }
}

fn take_any_map(state: &mut State, input: Input) -> Option<Input> {
    let (Input::ConfigMap(payload), Assignment::Map(desired)) = (&input, &state.assignment) else { return Some(input) };
    let mut payload = (**payload).clone();
    payload.name.clone_from(&desired.name);
    Some(Input::ConfigMap(payload.into()))
}

fn leave_it_behind(state: &mut State, input: Input) -> Option<Input> {
    if input == Input::Shutdown {
        state.kubelet = Kubelet::Waiting { until: state.now() };
    }
    Some(input)
}

/// The records as the machine believes them to be.
fn each(state: &mut State, change: fn(&mut Records)) {
    change(&mut state.saved);
    state.unsaved.iter_mut().for_each(change);
}

fn run_on(state: &mut State) {
    if let (Some(_), Some(trial)) = (state.suspended, &mut state.trial) {
        trial.health_before_pause += Duration::from_secs(5);
    }
}

fn clear_nothing(state: &mut State) {
    each(state, |records| records.local_state.control_test = None);
}

fn clear_versions(records: &mut Records) {
    let local_state = &mut records.local_state;
    if let Some(control_test) = local_state.control_test.take() {
        local_state.bad.retain(|bad| bad.source != control_test.source);
        local_state.retry_later = Some(RetryLater { source: control_test.source, times: 0, why: String::new() });
    }
}

fn never(records: &mut Records) {
    records.local_state.retry_later.iter_mut().for_each(|retry_later| retry_later.times = 16);
}

fn forgive(state: &mut State, signals: &[Signal]) {
    let now = state.now();
    if let Kubelet::Running(run) = &mut state.kubelet {
        run.good.iter_mut().filter(|(signal, _)| signals.contains(signal)).for_each(|(_, at)| *at = now);
        run.bad.retain(|signal, _| !signals.contains(signal));
    }
}

fn wait_for_ever(records: &mut Records) {
    let confirm = records.local_state.attempt.as_mut().and_then(|attempt| attempt.confirm.as_mut());
    confirm.into_iter().for_each(|confirm| (confirm.until, confirm.left) = (1 << 40, 1 << 40));
}

fn confirm(records: &mut Records) {
    records.local_state.attempt.iter_mut().for_each(|attempt| attempt.confirm_within = None);
}

fn tries(stored: &mut Stored, change: fn(u32) -> u32) {
    let attempt = stored.local_state.as_mut().ok().and_then(|local_state| local_state.attempt.as_mut());
    attempt.into_iter().for_each(|attempt| attempt.tries = change(attempt.tries));
}

fn judge_all(records: &mut Records) {
    records.local_state.attempt.iter_mut().for_each(|attempt| attempt.baseline = Some(Signal::ALL.into()));
}

fn judge_none(records: &mut Records) {
    records.local_state.attempt.iter_mut().for_each(|attempt| attempt.baseline = Some(Baseline::new()));
}

fn snapshot(stored: &mut Stored, change: fn(&mut TrialSnapshot)) {
    let attempt = stored.local_state.as_mut().ok().and_then(|local_state| local_state.attempt.as_mut());
    attempt.and_then(|attempt| attempt.snapshot.as_mut()).into_iter().for_each(change);
}
