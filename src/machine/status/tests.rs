//! Tests of the status over a whole trial.

use super::*;
use crate::machine::model::Moment;
use crate::machine::record::{Attempt, ConfirmationWait};
use crate::machine::{Input, Run, Settings, Trial};
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

fn on_trial() -> State {
    let mut state = State::new(Settings::default());
    state.active = Some(source());
    state.saved.assigned = Some(source());
    state.running.healthz = Some(HealthzTarget { host: "127.0.0.1".into(), port: 10248 });
    state.trial = Some(Trial::default());
    state.kubelet = Kubelet::Running(Run { pid: 1, ready: true, ..Run::default() });
    state
}

/// Every status that would be written, as the executor does it: when it is another than the last.
fn written(state: &mut State, steps: impl Iterator<Item = (Input, u64)>) -> Vec<NodeConfigStatus> {
    let mut written: Vec<NodeConfigStatus> = Vec::new();
    for (input, second) in steps {
        state.step(input, at(second));
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
    let probes = (1..590).map(|second| (if second % 5 == 1 { Input::Probed(true) } else { Input::Tick }, second));
    let written = written(&mut state, probes);
    assert_eq!(written.len(), 1, "{written:#?}");
    assert_eq!(written[0].trial_ends.as_deref(), Some("2026-01-01T00:10:01Z"));
    assert!(written[0].condition.message.starts_with("On trial until 2026-01-01T00:10:01Z: /api/v1/"));
    assert!(written[0].annotation().contains(r#""trialEnds":"2026-01-01T00:10:01Z""#));
    assert!(written[0].patch(&PublishedStatus::default(), "x")["status"]["config"].get(TRIAL_ENDS).is_none());
}

#[test]
fn a_broken_promise_is_withdrawn_and_given_anew() {
    let mut state = on_trial();
    let answers = [(true, 1), (true, 6), (false, 11), (false, 16), (true, 21), (true, 26)];
    let written = written(&mut state, answers.into_iter().map(|(good, second)| (Input::Probed(good), second)));
    let ends: Vec<Option<&str>> = written.iter().map(|status| status.trial_ends.as_deref()).collect();
    assert_eq!(ends, [Some("2026-01-01T00:10:01Z"), None, Some("2026-01-01T00:10:21Z")]);
    assert!(written[1].condition.message.starts_with("On trial: /api/v1/"), "{:?}", written[1].condition);
}

#[test]
fn the_time_to_confirm_is_said_once_too() {
    let mut state = on_trial();
    let confirm = ConfirmationWait::within(1800, at(650), String::new());
    let attempt = Attempt { confirm_within: Some(1800), confirm: Some(confirm), ..Attempt::new(source()) };
    state.saved.local_state.attempt = Some(attempt);
    let probes = (651..720).map(|second| (Input::Probed(true), second));
    let written = written(&mut state, probes);
    assert_eq!(written.len(), 1, "{written:#?}");
    assert_eq!(
        (written[0].trial_ends.as_ref(), written[0].confirm_by.as_deref()),
        (None, Some("2026-01-01T00:40:50Z"))
    );
    let words = "Healthy, and rolled back at 2026-01-01T00:40:50Z unless somebody confirms /api/v1/";
    assert!(written[0].condition.message.starts_with(words), "{:?}", written[0].condition);
}
