//! Tests of the status over a whole trial.

use super::*;
use crate::machine::RunningConfig;
use crate::machine::model::{Moment, RunId};
use crate::machine::process::Process;
use crate::machine::record_writer::RecordWriter;
use crate::machine::records::{Attempt, ConfirmationWait, Records, Version};
use crate::machine::{Answer, Effect, Input, Run, Settings};
use kubelet_config::rendering::HealthzTarget;
use kubelet_config::source::{ConfigMapRef, Source};
use kubelet_config::status::{PublishedStatus, TRIAL_ENDS};

fn source() -> Source {
    Source {
        reference: ConfigMapRef { namespace: "n".into(), name: "m".into(), kubelet_config_key: "k".into() },
        resource_version: "7".into(),
        uid: "u".into(),
    }
}

fn at(seconds: u64) -> Moment {
    let wall = 1_767_225_600 + seconds; // 2026-01-01
    Moment { boot: Duration::from_secs(seconds), wall_nanos: wall * 1_000_000_000 + 7 }
}

fn version() -> Version {
    Version::named(source())
}

/// The version runs, and is in this phase.
fn running_in(phase: Phase) -> State {
    let mut state = State::new(Settings { api_server: false, ..Settings::default() });
    state.writer = RecordWriter::new(Records { assigned: Some(version()), phase, ..Records::default() }, None);
    let id = RunId { pid: 1, ..RunId::default() };
    let run = Run { id, ready_at: Some(Moment::default()), ..Run::default() };
    let healthz = Some(HealthzTarget { host: "127.0.0.1".into(), port: 10248 });
    let running = RunningConfig { version: Some(version()), healthz, ..RunningConfig::default() };
    state.process = Process::running_one(run, running);
    state
}

fn on_trial() -> State {
    running_in(Phase::Trial(Attempt::new(version())))
}

/// Every status that would be written, as the executor does it: when it is another than the last.
fn written(state: &mut State, seconds: std::ops::Range<u64>, healthz: impl Fn(u64) -> bool) -> Vec<NodeConfigStatus> {
    let mut written: Vec<NodeConfigStatus> = Vec::new();
    for second in seconds {
        for effect in state.step(Input::Tick, at(second)) {
            if let Effect::Probe(ticket, _) = effect {
                state.step(Input::Answer(ticket, Answer::Probed(healthz(second))), at(second));
            }
        }
        let status = node_status(state);
        if written.last() != Some(&status) {
            written.push(status);
        }
    }
    written
}

#[test]
fn a_whole_trial_is_promised_once() {
    let mut state = on_trial();
    let written = written(&mut state, 1..590, |_| true);
    assert_eq!(written.len(), 1, "{written:#?}");
    assert_eq!(written[0].trial_ends.as_deref(), Some("2026-01-01T00:10:01Z"));
    assert!(written[0].condition.message.starts_with("On trial until 2026-01-01T00:10:01Z: /api/v1/"));
    assert!(written[0].annotation().contains(r#""trialEnds":"2026-01-01T00:10:01Z""#));
    assert!(written[0].patch(&PublishedStatus::default(), "x")["status"]["config"].get(TRIAL_ENDS).is_none());
}

#[test]
fn a_broken_promise_is_withdrawn_and_given_anew() {
    let mut state = on_trial();
    let written = written(&mut state, 1..30, |second| !(10..20).contains(&second));
    let ends: Vec<Option<&str>> = written.iter().map(|status| status.trial_ends.as_deref()).collect();
    assert_eq!(ends, [Some("2026-01-01T00:10:01Z"), None, Some("2026-01-01T00:10:20Z")]);
    assert!(written[1].condition.message.starts_with("On trial: /api/v1/"), "{:?}", written[1].condition);
}

#[test]
fn the_time_to_confirm_is_said_once_too() {
    let wait = ConfirmationWait::within(1800, at(650), String::new());
    let attempt = Attempt { confirm_within: Some(1800), ..Attempt::new(version()) };
    let mut state = running_in(Phase::AwaitingConfirmation(attempt, wait));
    let written = written(&mut state, 651..720, |_| true);
    assert_eq!(written.len(), 1, "{written:#?}");
    assert_eq!(
        (written[0].trial_ends.as_ref(), written[0].confirm_by.as_deref()),
        (None, Some("2026-01-01T00:40:50Z"))
    );
    let words = "Healthy, and rolled back at 2026-01-01T00:40:50Z unless somebody confirms /api/v1/";
    assert!(written[0].condition.message.starts_with(words), "{:?}", written[0].condition);
}
