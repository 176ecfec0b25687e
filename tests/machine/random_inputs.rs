//! The state machine under random inputs: the invariants at the top of `src/machine/mod.rs`.
//!
//! `faithful`: answers are to questions that were asked, and the kubelet's inputs come of a kubelet that runs; all may come
//! late, fail, or never come. All laws hold.
//! `hostile`: any input at any time, answers to nothing included. What must hold then is that the machine neither
//! panics, nor spins, nor asks for two processes.

mod driver;
mod inputs;
mod values;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kubelet_config::digest::Digest;
use kubelet_supervisor::machine::Settings;
use kubelet_supervisor::machine::evidence::Failure;
use kubelet_supervisor::machine::model::{ConfigError, KubeletId};
use kubelet_supervisor::machine::records::{
    Attempt, BadReason, BadVersion, BadVersions, Phase, Pin, RecordFile, Records, Stored, Version,
};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use driver::{Driver, TIMEOUT, TRIAL};
use inputs::KINDS;
use values::{content, source};

/// What happens next.
#[derive(Clone, Debug)]
enum Op {
    Node(u8),
    Map(u8, u8),
    MapFailed(bool),
    /// The verdict of a preflight that was asked for, the latest or an earlier one.
    Judge(u8, u8),
    Ready,
    Exit,
    Watchdog,
    /// A probe that is out is answered, the latest or an earlier one.
    Probe(u8, bool),
    /// So is a query: well, or not.
    Observe(u8, u8),
    NodeReady(bool),
    Operator(u8),
    Annotate(u8, u8),
    /// Somebody asks to have something judged.
    Ask(u8),
    /// A ConfigMap that is asked for once is there, or not.
    Fetched(u8, u8),
    /// The next so many store operations or starts fail.
    Fail(u8),
    /// The store answers nothing, or all that waits.
    Stall(bool),
    /// SIGTERM is not minded, or is.
    Deaf(bool),
    /// Somebody writes in the store.
    TouchStore,
    Policy,
    SetClock,
    ByLabels(bool),
    /// Somebody writes the local files.
    TouchLocalFiles,
    NodeName,
    Reported,
    Version,
    /// Another kubelet binary.
    Binary(u8),
    /// Time passes; negative is a clock that runs back.
    Pass(i32),
    /// To the next deadline.
    Deadline,
    PowerCut,
    /// The worker is replaced, on request or by its death, and the kubelet goes on.
    Worker(bool),
    /// Answers nobody asked for, and whatever else there is; only in the hostile world.
    Stray(usize, u8),
}

fn op() -> impl Strategy<Value = Op> {
    let changes = prop_oneof![
        4 => (0..6_u8).prop_map(Op::Node),
        5 => (0..3_u8, 0..6_u8).prop_map(|(map, version)| Op::Map(map, version)),
        1 => any::<bool>().prop_map(Op::MapFailed),
        2 => (0..16_u8).prop_map(Op::Operator),
        1 => (0..4_u8, 0..4_u8).prop_map(|(retry, confirm)| Op::Annotate(retry, confirm)),
        1 => (0..3_u8).prop_map(Op::Binary),
        2 => (0..12_u8).prop_map(Op::Ask),
    ];
    let answers = prop_oneof![
        5 => (0..4_u8, 0..8_u8).prop_map(|(which, verdict)| Op::Judge(which, verdict)),
        6 => (0..4_u8, prop::bool::weighted(0.8)).prop_map(|(which, good)| Op::Probe(which, good)),
        8 => (0..4_u8, 0..8_u8).prop_map(|(which, how)| Op::Observe(which, how)),
        3 => (0..2_u8, 0..12_u8).prop_map(|(which, how)| Op::Fetched(which, how)),
        2 => prop::bool::weighted(0.8).prop_map(Op::NodeReady),
        6 => Just(Op::Ready),
        2 => Just(Op::Exit),
        2 => Just(Op::Watchdog),
    ];
    let faults = prop_oneof![
        3 => (1..4_u8).prop_map(Op::Fail),
        3 => prop::bool::weighted(0.4).prop_map(Op::Stall),
        1 => any::<bool>().prop_map(Op::Deaf),
        1 => Just(Op::PowerCut),
        1 => any::<bool>().prop_map(Op::Worker),
        2 => Just(Op::TouchStore),
        2 => Just(Op::TouchLocalFiles),
    ];
    let policy = prop_oneof![Just(Op::Policy), Just(Op::SetClock), any::<bool>().prop_map(Op::ByLabels)];
    let rest = prop_oneof![Just(Op::NodeName), Just(Op::Reported), Just(Op::Version), policy];
    prop_oneof![
        8 => changes,
        16 => answers,
        3 => faults,
        1 => rest,
        4 => (-2_000..70_000_i32).prop_map(Op::Pass),
        8 => Just(Op::Deadline),
        2 => (0..KINDS, 0..12_u8).prop_map(|(kind, seed)| Op::Stray(kind, seed)),
    ]
}

fn version() -> impl Strategy<Value = Version> {
    (0..3_u8, 0..6_u8, prop::bool::weighted(0.8)).prop_map(|(map, version, known)| {
        let source = source(map, version);
        let digest = known.then(|| content(&source));
        Version { source, digest }
    })
}

fn phase(version: Version) -> impl Strategy<Value = Phase> {
    let attempt = Attempt::new(version);
    prop_oneof![
        Just(Phase::Settled),
        Just(Phase::Trial(attempt.clone())),
        Just(Phase::ControlTest(attempt.clone(), Failure::Exits)),
        Just(Phase::RetryLater(attempt, "it was not to blame".to_owned())),
    ]
}

fn records() -> impl Strategy<Value = Records> {
    let versions = (prop::option::of(version()), prop::option::of(version()), prop::collection::vec(version(), 0..3));
    let holds = (prop::option::weighted(0.1, prop::option::of(version())), prop::bool::weighted(0.1));
    let bad = prop::collection::vec((version(), any::<bool>()), 0..2);
    (versions, holds, bad).prop_flat_map(|((assigned, last_known_good, proven), (pin, frozen), bad)| {
        let phases = match &assigned {
            Some(version) if assigned != last_known_good => phase(version.clone()).boxed(),
            _ => Just(Phase::Settled).boxed(),
        };
        phases.prop_map(move |phase| {
            let tried = phase.attempt().map(|attempt| &attempt.version);
            let good = proven.iter().chain(&last_known_good).chain(tried);
            let good: Vec<_> = good.map(|version| content(&version.source)).collect();
            let bad = bad.iter().map(|(version, refused)| bad_version(version, *refused));
            Records {
                assigned: assigned.clone(),
                last_known_good: last_known_good.clone(),
                phase,
                proven: proven.clone(),
                pin: pin.clone().map(|version| Pin { version }),
                frozen,
                bad: bad.filter(|bad| !good.contains(&content(&bad.source))).collect::<Vec<_>>().into(),
                ..Records::default()
            }
        })
    })
}

fn bad_version(version: &Version, refused: bool) -> BadVersion {
    BadVersion {
        source: version.source.clone(),
        digest: Some(content(&version.source)),
        stood_for: None,
        kubelet: KubeletId("k0".to_owned()),
        error: ConfigError::Load,
        detail: "it failed".to_owned(),
        reason: if refused { BadReason::Rejected } else { BadReason::Failed(Failure::Exits) },
        time: String::new(),
        kubelet_version: String::new(),
        log_tail: Vec::new(),
        by_policy: false,
    }
}

fn stored() -> impl Strategy<Value = Stored> {
    let meta = prop_oneof![
        2 => Just(Ok(None)),
        4 => (0..3_u8, 0..6_u8).prop_map(|(map, version)| Ok(Some(source(map, version)))),
        1 => Just(Err("torn".to_owned())),
    ];
    let state = prop_oneof![
        1 => Just(RecordFile::Absent),
        8 => records().prop_map(|records| RecordFile::Read(Box::new(records))),
        1 => Just(Records::decode("{\"version\": 1}")),
        1 => Just(RecordFile::Garbage("torn".to_owned())),
        1 => Just(RecordFile::Unreadable("input/output error".to_owned())),
    ];
    (state, meta.clone(), meta, prop::bool::weighted(0.2)).prop_map(
        |(mut state, assigned, last_known_good, meta_changed)| {
            if let RecordFile::Read(records) = &mut state
                && meta_changed
            {
                records.bad = BadVersions::default(); // somebody else knows better
            }
            Stored { state, assigned, last_known_good, meta_changed }
        },
    )
}

fn settings() -> impl Strategy<Value = Settings> {
    let minute = Duration::from_secs(60);
    let seldom = || prop::bool::weighted(0.2);
    (seldom(), seldom(), any::<bool>(), seldom(), any::<bool>(), prop::bool::weighted(0.9)).prop_map(
        move |(spread, confirm, watchdog, alone, hung, courteous)| Settings {
            api_server: !alone,
            trial_duration: TRIAL,
            start_timeout: TIMEOUT,
            spread: if spread { minute } else { Duration::ZERO },
            courtesy: if courteous { minute } else { Duration::ZERO },
            confirm_within: confirm.then_some(minute),
            watchdog: watchdog.then_some(Duration::from_secs(20)),
            hung_after: if hung { TIMEOUT } else { Duration::ZERO },
            ..Settings::default()
        },
    )
}

/// Configurations that are lost from the disk, although they are on record.
fn lost() -> impl Strategy<Value = Vec<Digest>> {
    prop::collection::vec((0..3_u8, 0..6_u8).prop_map(|(map, version)| content(&source(map, version))), 0..3)
}

fn world() -> impl Strategy<Value = (Settings, Stored, Vec<Digest>)> {
    (settings(), stored(), lost())
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() }
}

/// Runs many worlds; gives the kinds of inputs that came, a bit for each.
fn run(length: usize, hostile: bool, end: fn(&mut Driver)) -> u64 {
    let seen = AtomicU64::new(0);
    let worlds = (world(), prop::collection::vec(op(), 1..length));
    let result = TestRunner::new(config()).run(&worlds, |((settings, stored, lost), ops)| {
        let mut driver = Driver::new(settings, stored, &lost, hostile);
        for op in &ops {
            driver.apply(op);
        }
        end(&mut driver);
        seen.fetch_or(driver.seen, Ordering::Relaxed);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    seen.into_inner()
}

#[test]
fn faithful() {
    let seen = run(160, false, |driver| {
        driver.rest();
        driver.quit();
    });
    assert_eq!(inputs::missing(seen), Vec::<usize>::new(), "inputs that never came");
}

#[test]
fn hostile() {
    let seen = run(160, true, |_| {});
    assert_eq!(inputs::missing(seen), Vec::<usize>::new(), "inputs that never came");
}

#[test]
fn ends_whenever_it_is_asked_to() {
    run(40, false, |driver| {
        driver.apply(&Op::Stall(false));
        driver.quit();
    });
}

#[test]
fn ends_although_no_disk_ever_answers() {
    run(40, false, |driver| {
        driver.apply(&Op::Stall(true));
        driver.quit();
    });
}

/// Every question is given up in the end: nothing is answered any more, and a kubelet runs all the same.
#[test]
fn runs_a_kubelet_although_nobody_ever_answers() {
    run(40, false, Driver::fall_silent);
}
