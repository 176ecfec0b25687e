//! Every input there is, by number.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::Duration;

use kubelet_config::assignment::Assignment;
use kubelet_config::pods::PodInventory;
use kubelet_config::preflight::{PreflightRequest, PreflightResult, PreflightStatus};
use kubelet_supervisor::machine::command::{Command, Target};
use kubelet_supervisor::machine::evidence::{Activity, Environment, LeaseObservation, NodePressure, NodeReadiness};
use kubelet_supervisor::machine::history::HistoryEntry;
use kubelet_supervisor::machine::model::{Damage, Exit, KubeletId, Moment, RenderError, Verdict, Verification};
use kubelet_supervisor::machine::records::Stored;
use kubelet_supervisor::machine::{Effect, FetchError, Handover, Input, Settings, State, StoreRequest, Ticket};

use super::driver::{payload, reference, rendered, source};

/// How many there are.
pub const KINDS: usize = 42;

/// Its number. Whoever adds an input adds it here, to [`KINDS`] and to [`make`].
pub fn kind(input: &Input) -> usize {
    match input {
        Input::Boot => 0,
        Input::Resume(_) => 1,
        Input::RecordsRead(..) => 2,
        Input::NodeName(_) => 3,
        Input::Reload => 4,
        Input::ReloadProven(..) => 5,
        Input::ReloadFailed(_) => 6,
        Input::Node(_) => 7,
        Input::ConfigMap(_) => 8,
        Input::ConfigMapFailed { .. } => 9,
        Input::Saved(..) => 10,
        Input::Loaded(..) => 11,
        Input::PreflightDone(..) => 12,
        Input::Recorded(..) => 13,
        Input::StateFilesSwapped(..) => 14,
        Input::Started(_) => 15,
        Input::Ready => 16,
        Input::Exited(_) => 17,
        Input::Probed(..) => 18,
        Input::Watchdog => 19,
        Input::NodeObserved(_) => 20,
        Input::NodeAnnotations { .. } => 21,
        Input::LeaseObserved(..) => 22,
        Input::PodsObserved(..) => 23,
        Input::EnvironmentObserved(..) => 24,
        Input::LogTail(_) => 25,
        Input::KubeletVersion(_) => 26,
        Input::Operator(..) => 27,
        Input::Appended(..) => 28,
        Input::Reported(_) => 29,
        Input::Shutdown => 30,
        Input::StoreTouched => 31,
        Input::Verified(..) => 32,
        Input::LocalFilesTouched => 33,
        Input::Tick => 34,
        Input::PolicyChanged => 35,
        Input::AssignedByLabels(_) => 36,
        Input::ClockSet => 37,
        Input::ConfigMapFetched(..) => 38,
        Input::PreflightRequested { .. } => 39,
        Input::PreflightWithDone(..) => 40,
        Input::ActivityObserved(..) => 41,
    }
}

/// Those that are not among these.
pub fn missing(seen: u64) -> Vec<usize> {
    (0..KINDS).filter(|kind| seen & (1 << kind) == 0).collect()
}

/// An input of this kind; the tickets are those of no question, or of another.
pub fn make(kind: usize, seed: u8) -> Input {
    let ticket = u64::from(seed);
    let odd = !seed.is_multiple_of(2);
    let other = source(seed % 3, seed % 6);
    let result = if odd { Err("late".to_owned()) } else { Ok(()) };
    match kind {
        0 => Input::Boot,
        1 => Input::Resume(Box::new(handover())),
        2 => Input::RecordsRead(ticket, Box::new(Stored::empty()), KubeletId("k1".to_owned())),
        3 => Input::NodeName(format!("n{seed}")),
        4 => Input::Reload,
        5 => Input::ReloadProven(ticket, if odd { Err("older".to_owned()) } else { Ok("9.9.9".to_owned()) }),
        6 => Input::ReloadFailed("exec format error".to_owned()),
        7 => Input::Node(assignment(seed % 6)),
        8 => Input::ConfigMap(payload(seed % 3, seed % 6)),
        9 => Input::ConfigMapFailed { why: "gone".to_owned(), definite: odd },
        10 => Input::Saved(ticket, result),
        11 => {
            let loaded = if odd { Err(RenderError::Load("torn".to_owned())) } else { Ok(rendered(Some(&other))) };
            Input::Loaded(ticket, KubeletId(format!("k{}", seed % 2)), loaded)
        }
        12 => Input::PreflightDone(ticket, verdict(seed)),
        13 => Input::Recorded(ticket, result),
        14 => Input::StateFilesSwapped(ticket, result),
        15 => Input::Started(if odd { Err("fork".to_owned()) } else { Ok(9) }),
        16 => Input::Ready,
        17 => Input::Exited(if odd { Exit::Signal(9) } else { Exit::Code(i32::from(seed)) }),
        18 => Input::Probed(ticket, odd),
        19 => Input::Watchdog,
        20 => Input::NodeObserved(readiness(odd, ticket)),
        21 => annotations(seed % 4, seed % 3),
        22 => Input::LeaseObserved(ticket, lease(seed, Duration::from_secs(ticket))),
        23 => Input::PodsObserved(ticket, odd.then(PodInventory::default)),
        24 => Input::EnvironmentObserved(ticket, environment(seed)),
        25 => Input::LogTail(vec!["F0101 00:00:00.000000 1 x.go:1] it is over".to_owned()]),
        26 => Input::KubeletVersion(format!("v1.{seed}")),
        27 => Input::Operator(ticket, command(seed)),
        28 => Input::Appended(Box::new(HistoryEntry { number: ticket, ..HistoryEntry::default() }), result),
        29 => Input::Reported(ticket),
        30 => Input::Shutdown,
        31 => Input::StoreTouched,
        32 => {
            let damage = Damage { what: "a file".to_owned(), source: Some(other), content: None, mended: result };
            let damage = if seed > 6 { vec![damage] } else { Vec::new() };
            Input::Verified(ticket, Verification { damage, is_partial: odd })
        }
        33 => Input::LocalFilesTouched,
        35 => Input::PolicyChanged,
        36 => Input::AssignedByLabels(odd),
        37 => Input::ClockSet,
        38 => fetched(ticket, seed % 3, seed),
        39 => preflight(seed),
        40 => Input::PreflightWithDone(ticket, if odd { Err("absent".to_owned()) } else { Ok(verdict(seed)) }),
        41 => Input::ActivityObserved(ticket, activity(seed)),
        _ => Input::Tick,
    }
}

#[test]
fn each_kind_can_be_made() {
    for number in 0..KINDS {
        for seed in 0..12 {
            assert_eq!(kind(&make(number, seed)), number);
        }
    }
}

pub fn assignment(which: u8) -> Assignment {
    match which {
        0 => Assignment::Unknown,
        1 => Assignment::Local,
        2 => Assignment::AllNil,
        map => Assignment::Map(reference(map - 3)),
    }
}

pub fn verdict(which: u8) -> Verdict {
    match which {
        0 => Verdict::Validate("no".to_owned()),
        1 => Verdict::Load("no".to_owned()),
        2 => Verdict::Inconclusive("?".to_owned()),
        3 => Verdict::NotItsFault("a flag".to_owned()),
        _ => Verdict::Valid(Vec::new()),
    }
}

pub fn activity(which: u8) -> Activity {
    Activity {
        streams: (which > 2).then_some(u32::from(which % 3)),
        image_pulls: (which > 4).then_some(u32::from(which % 2)),
    }
}

/// With every third heartbeat the Node is under pressure.
pub fn readiness(ready: bool, heartbeat: u64) -> NodeReadiness {
    let pressure = if heartbeat.is_multiple_of(3) { [NodePressure::Disk].into() } else { BTreeSet::new() };
    NodeReadiness { ready, heartbeat: heartbeat.to_string(), pressure, ..NodeReadiness::default() }
}

pub fn annotations(retry: u8, confirm: u8) -> Input {
    let version = |which: u8| (which > 0).then(|| format!("u{}/{}", which - 1, which + 1));
    Input::NodeAnnotations { retry: version(retry), confirm: version(confirm) }
}

/// Mostly a version of this map that [`preflight`] asks for.
pub fn fetched(ticket: Ticket, map: u8, how: u8) -> Input {
    let failed = |definite| Err(FetchError { why: "no".to_owned(), definite });
    Input::ConfigMapFetched(
        ticket,
        match how {
            0 => failed(false),
            1 => failed(true),
            2..6 => Ok(payload(how % 3, how % 6)),
            _ => Ok(payload(map, map + 3 * (how % 2))),
        },
    )
}

pub fn preflight(which: u8) -> Input {
    let source = source(which % 3, which % 6);
    let request = PreflightRequest::of(&source).to_string();
    let answer = PreflightStatus::new(&request, PreflightResult::Valid, "").annotation();
    let request = match which {
        0 => None,
        1 => Some("garbage".to_owned()),
        6.. => Some(format!("{request}?kubeletVersion=v1.31.4")),
        _ => Some(request),
    };
    Input::PreflightRequested { request, answer: Some(answer).filter(|_| which.is_multiple_of(4)) }
}

pub fn lease(how: u8, now: Duration) -> LeaseObservation {
    match how {
        0 => LeaseObservation::Unreachable("refused".to_owned()),
        1 => LeaseObservation::Busy("503".to_owned()),
        2 => LeaseObservation::Absent,
        3 => LeaseObservation::HeldBack,
        _ => {
            let nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
            LeaseObservation::Renewed(kubelet_config::status::timestamp(nanos))
        }
    }
}

pub fn environment(how: u8) -> Environment {
    Environment { runtime: Some(how != 0), disk_full: how == 1, shutting_down: how == 2, ..Environment::default() }
}

pub fn command(which: u8) -> Command {
    let version = Target::Version { uid: format!("u{}", which % 3), resource_version: (which % 6).to_string() };
    match which % 12 {
        0 | 1 => Command::Retry,
        2 => Command::Rollback { to: Target::Lkg },
        3 => Command::Rollback { to: Target::Local },
        4 => Command::Rollback { to: version },
        5 => Command::Pin { to: None },
        6 => Command::Pin { to: Some(version) },
        7 => Command::Unpin,
        8 => Command::Freeze,
        9 => Command::Thaw,
        10 => Command::Confirm { extend_seconds: None },
        _ if which == 11 => Command::Confirm { extend_seconds: Some(60) },
        _ => Command::Reload,
    }
}

/// What a supervisor hands over that has started its kubelet a while ago.
fn handover() -> Handover {
    static MADE: OnceLock<Handover> = OnceLock::new();
    let make = || {
        let mut state = State::new(Settings::default());
        let mut inputs = std::collections::VecDeque::from([Input::Boot]);
        let now = Moment { boot: Duration::from_secs(1), wall_nanos: 0 };
        while let Some(input) = inputs.pop_front() {
            for effect in state.step(input, now) {
                inputs.extend(match effect {
                    Effect::Store(StoreRequest::ReadRecords(ticket)) => {
                        Some(Input::RecordsRead(ticket, Box::new(Stored::empty()), KubeletId("k0".to_owned())))
                    }
                    Effect::Store(StoreRequest::Load(ticket, _)) => {
                        Some(Input::Loaded(ticket, KubeletId("k0".to_owned()), Ok(rendered(None))))
                    }
                    Effect::Store(StoreRequest::Record(ticket, _)) => Some(Input::Recorded(ticket, Ok(()))),
                    Effect::Store(StoreRequest::SwapStateFiles(ticket, _)) => {
                        Some(Input::StateFilesSwapped(ticket, Ok(())))
                    }
                    Effect::Start(_) => Some(Input::Started(Ok(7))),
                    Effect::ReadLogTail => Some(Input::LogTail(Vec::new())),
                    Effect::Preflight(ticket, ..) => Some(Input::PreflightDone(ticket, Verdict::Valid(Vec::new()))),
                    _ => None,
                });
            }
        }
        state.hand_over().expect("a kubelet runs, and nothing is under way")
    };
    MADE.get_or_init(make).clone()
}

/// So that a change of the type is noticed here.
#[test]
fn a_handover_is_read_back() {
    let document = handover();
    assert_eq!(Handover::decode(document.encode()), Ok(document));
}
