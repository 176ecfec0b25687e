//! Every input there is, by number.

use std::collections::BTreeSet;
use std::time::Duration;

use kubelet_config::assignment::Assignment;
use kubelet_config::pods::PodInventory;
use kubelet_config::policy::Admission;
use kubelet_config::preflight::{PreflightRequest, PreflightResult, PreflightStatus};
use kubelet_supervisor::machine::command::{Command, Target};
use kubelet_supervisor::machine::evidence::{Environment, LeaseObservation, NodePressure, NodeReadiness};
use kubelet_supervisor::machine::history::HistoryEntry;
use kubelet_supervisor::machine::model::{
    Beginning, Damage, Exit, KubeletId, RenderError, RunId, StartedKubelet, StateFilesFound, Verdict, Verification,
};
use kubelet_supervisor::machine::records::Stored;
use kubelet_supervisor::machine::{Answer, FetchError, Input, Ticket};

use super::values::{payload, reference, rendered, source};

/// How many there are.
pub const KINDS: usize = 40;

/// Its number. Whoever adds an input adds it here, to [`KINDS`] and to [`make`].
pub fn kind(input: &Input) -> usize {
    match input {
        Input::Boot(_) => 0,
        Input::Answer(_, Answer::RecordsRead(..)) => 1,
        Input::NodeName(_) => 2,
        Input::Node(_) => 3,
        Input::ConfigMap(_) => 4,
        Input::ConfigMapFailed { .. } => 5,
        Input::Answer(_, Answer::Saved(..)) => 6,
        Input::Answer(_, Answer::Loaded(..)) => 7,
        Input::Answer(_, Answer::PreflightDone(..)) => 8,
        Input::Answer(_, Answer::Recorded(..)) => 9,
        Input::Answer(_, Answer::StateFilesSwapped(..)) => 10,
        Input::Started(_) => 11,
        Input::Ready => 12,
        Input::Exited(_) => 13,
        Input::Answer(_, Answer::Probed(..)) => 14,
        Input::Watchdog => 15,
        Input::NodeObserved(_) => 16,
        Input::NodeAnnotations { .. } => 17,
        Input::Answer(_, Answer::LeaseObserved(..)) => 18,
        Input::Answer(_, Answer::PodsObserved(..)) => 19,
        Input::Answer(_, Answer::EnvironmentObserved(..)) => 20,
        Input::LogTail(_) => 21,
        Input::KubeletVersion(_) => 22,
        Input::Operator(..) => 23,
        Input::Appended(..) => 24,
        Input::Reported(_) => 25,
        Input::Shutdown => 26,
        Input::StoreTouched => 27,
        Input::Answer(_, Answer::Verified(..)) => 28,
        Input::LocalFilesTouched => 29,
        Input::Tick => 30,
        Input::PolicyChanged => 31,
        Input::AssignedByLabels(_) => 32,
        Input::ClockSet => 33,
        Input::Answer(_, Answer::ConfigMapFetched(..)) => 34,
        Input::PreflightRequested { .. } => 35,
        Input::Answer(_, Answer::StreamsObserved(..)) => 36,
        Input::Retire => 37,
        Input::Answer(_, Answer::OtherBytesSaved) => 38,
        Input::Answer(_, Answer::NamespaceJudged(_)) => 39,
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
        0 => Input::Boot(beginning(seed)),
        1 => Input::Answer(ticket, Answer::RecordsRead(Box::new(Stored::empty()), KubeletId("k1".to_owned()))),
        2 => Input::NodeName(format!("n{seed}")),
        3 => Input::Node(assignment(seed % 6)),
        4 => Input::ConfigMap(payload(seed % 3, seed % 6)),
        5 => Input::ConfigMapFailed { why: "gone".to_owned(), definite: odd },
        6 => Input::Answer(ticket, Answer::Saved(result)),
        7 => {
            let loaded = if odd { Err(RenderError::Load("torn".to_owned())) } else { Ok(rendered(Some(&other))) };
            Input::Answer(ticket, Answer::Loaded(KubeletId(format!("k{}", seed % 2)), loaded))
        }
        8 => Input::Answer(ticket, Answer::PreflightDone(verdict(seed))),
        9 => Input::Answer(ticket, Answer::Recorded(result)),
        10 => Input::Answer(ticket, Answer::StateFilesSwapped(result.map(|()| StateFilesFound::OfAnother))),
        11 => Input::Started(started(seed)),
        12 => Input::Ready,
        13 => Input::Exited(if odd { Exit::Signal(9) } else { Exit::Code(i32::from(seed)) }),
        14 => Input::Answer(ticket, Answer::Probed(odd)),
        15 => Input::Watchdog,
        16 => Input::NodeObserved(readiness(odd, ticket)),
        17 => annotations(seed % 4, seed % 3),
        18 => Input::Answer(ticket, Answer::LeaseObserved(lease(seed, Duration::from_secs(ticket)))),
        19 => Input::Answer(ticket, Answer::PodsObserved(odd.then(PodInventory::default))),
        20 => Input::Answer(ticket, Answer::EnvironmentObserved(environment(seed))),
        21 => Input::LogTail(vec!["F0101 00:00:00.000000 1 x.go:1] it is over".to_owned()]),
        22 => Input::KubeletVersion(format!("v1.{seed}")),
        23 => Input::Operator(ticket, command(seed)),
        24 => Input::Appended(Box::new(HistoryEntry { number: ticket, ..HistoryEntry::default() }), result),
        25 => Input::Reported(ticket),
        26 => Input::Shutdown,
        27 => Input::StoreTouched,
        28 => {
            let damage = Damage { what: "a file".to_owned(), source: Some(other), content: None, mended: result };
            let damage = if seed > 6 { vec![damage] } else { Vec::new() };
            Input::Answer(ticket, Answer::Verified(Verification { damage, is_partial: odd }))
        }
        29 => Input::LocalFilesTouched,
        31 => Input::PolicyChanged,
        32 => Input::AssignedByLabels(odd),
        33 => Input::ClockSet,
        34 => fetched(ticket, seed % 3, seed),
        35 => preflight(seed),
        36 => Input::Answer(ticket, Answer::StreamsObserved(streams(seed))),
        37 => Input::Retire,
        38 => Input::Answer(ticket, Answer::OtherBytesSaved),
        39 => Input::Answer(ticket, Answer::NamespaceJudged(result.map(|()| Admission::default()))),
        _ => Input::Tick,
    }
}

fn beginning(seed: u8) -> Beginning {
    let run = RunId { pid: 7, started: Duration::from_secs(u64::from(seed)) };
    let why = seed.is_multiple_of(5).then(|| "signal 9".to_owned());
    match seed % 3 {
        0 => Beginning::Supervisor,
        kind => Beginning::Worker { running: (kind == 1).then_some(run), why, generation: 2 },
    }
}

fn started(seed: u8) -> Result<StartedKubelet, String> {
    let id = RunId { pid: 9, started: Duration::from_secs(u64::from(seed)) };
    match seed % 3 {
        0 => Err("fork".to_owned()),
        kind => Ok(StartedKubelet { id, adopted: kind == 1, ready: seed.is_multiple_of(2).then_some(id.started) }),
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

pub fn streams(which: u8) -> Option<u32> {
    (which > 2).then_some(u32::from(which % 3))
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
    Input::Answer(
        ticket,
        Answer::ConfigMapFetched(match how {
            0 => failed(false),
            1 => failed(true),
            2..6 => Ok(payload(how % 3, how % 6)),
            _ => Ok(payload(map, map + 3 * (how % 2))),
        }),
    )
}

pub fn preflight(which: u8) -> Input {
    let source = source(which % 3, which % 6);
    let request = PreflightRequest::of(&source).to_string();
    let answer = PreflightStatus::new(&request, PreflightResult::Valid, "").annotation();
    let request = match which {
        0 => None,
        1 => Some("garbage".to_owned()),
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
        _ => Command::Confirm { extend_seconds: Some(60) },
    }
}
