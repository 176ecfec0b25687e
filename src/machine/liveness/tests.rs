//! Who feeds systemd's watchdog.

use super::*;
use crate::machine::RunningConfig;
use crate::machine::evidence::{Baseline, Suspension};
use crate::machine::model::Moment;
use crate::machine::process::Process;
use crate::machine::record_writer::RecordWriter;
use crate::machine::records::{Attempt, Phase, Records, Version};
use crate::machine::{Input, Run, Settings};
use kubelet_config::source::{ConfigMapRef, Source};

const INTERVAL: u64 = 20;

fn running() -> State {
    let watchdog = Some(Duration::from_secs(INTERVAL));
    let mut state = State::new(Settings { watchdog, ..Settings::default() });
    run_with(&mut state, RunningConfig::default());
    state
}

fn run_with(state: &mut State, running: RunningConfig) {
    let run = Run { ready_at: Some(Moment::default()), ..Run::default() };
    state.process = Process::running_one(run, running);
}

/// Seconds at which systemd hears of us, from one to the other.
fn pings_seen(state: &mut State, seconds: std::ops::Range<u64>, pings: bool) -> Vec<u64> {
    let mut heard = Vec::new();
    for second in seconds {
        let now = Moment { boot: Duration::from_secs(second), wall_nanos: 0 };
        let input = if pings && second % 10 == 5 { Input::Watchdog } else { Input::Tick };
        let effects = state.step(input, now);
        heard.extend(effects.iter().filter(|effect| **effect == Effect::PingWatchdog).map(|_| second));
    }
    heard
}

#[test]
fn a_kubelet_that_never_pings_is_covered() {
    let mut state = running();
    assert_eq!(pings_seen(&mut state, 1..40, false), [1, 11, 21, 31]);
    assert_eq!(state.deadline(), Some(Duration::from_secs(41)), "the loop wakes up for it");
}

#[test]
fn one_that_pings_is_left_to_it_and_missed_when_it_hangs() {
    let mut state = running();
    assert_eq!(pings_seen(&mut state, 1..40, true), [1], "before the kubelet's first one");
    assert_eq!(pings_seen(&mut state, 40..400, false), [0; 0], "systemd restarts it after 20 s");
    assert_eq!(state.deadline(), None);
}

#[test]
fn a_stop_is_covered_at_once() {
    let mut state = running();
    pings_seen(&mut state, 1..30, true);
    let effects = state.step(Input::Shutdown, Moment { boot: Duration::from_secs(34), wall_nanos: 0 });
    assert!(effects.contains(&Effect::PingWatchdog), "{effects:?}");
    assert_eq!(pings_seen(&mut state, 35..60, false), [44, 54]);
}

#[test]
fn a_trial_judges_for_itself() {
    let mut state = running();
    let reference = ConfigMapRef { namespace: "n".into(), name: "m".into(), kubelet_config_key: "k".into() };
    let version = Version::named(Source { reference, uid: "u".to_owned(), resource_version: "1".to_owned() });
    let baseline = Some(Baseline::from([Signal::Watchdog]));
    let phase = Phase::Trial(Attempt { baseline, ..Attempt::new(version.clone()) });
    let assigned = Some(version.clone());
    state.writer = RecordWriter::new(Records { assigned, phase, ..Records::default() }, None);
    run_with(&mut state, RunningConfig { version: Some(version), ..RunningConfig::default() });
    pings_seen(&mut state, 1..10, true);
    assert!(state.pings_itself());
    state.health.set_suspended(Some(Suspension::DiskFull), state.clock.now);
    assert!(!state.pings_itself(), "nobody is judged now: systemd minds a kubelet that hangs");
    state.health.set_suspended(None, state.clock.now);
    pings_seen(&mut state, 10..30, true);
    let heard = pings_seen(&mut state, 30..60, false);
    assert_eq!(heard.len(), 3, "{heard:?}");
}

#[test]
fn without_a_watchdog_nothing_is_said() {
    let mut state = running();
    state.settings.watchdog = None;
    assert_eq!(pings_seen(&mut state, 1..60, true), [0; 0]);
    assert_eq!(state.settings.watchdog_interval(), limits::WATCHDOG_INTERVAL);
    state.settings.watchdog = Some(Duration::from_secs(120));
    assert_eq!(state.judgement().patience(Signal::Watchdog), Duration::from_secs(240));
}
