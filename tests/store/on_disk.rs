//! What earlier versions wrote is read by this one. The files are in `tests/fixtures/on-disk`, a directory for each
//! format; a name that a rename changed fails here.

mod expected;
mod golden;
mod handover;

use std::collections::BTreeMap;
use std::fs;

use kubelet_config::flags::{ConfigDir, FlagOverrides};
use kubelet_config::source::{ConfigAnnotations, ConfigMapRef, Payload, Source};
use kubelet_supervisor::adapters::fsx::RealDisk;
use kubelet_supervisor::adapters::store::{CheckpointMetadata, ConfigContent, FsStore, meta};
use kubelet_supervisor::machine::evidence::{Failure, Signal};
use kubelet_supervisor::machine::history::HistoryEntry;
use kubelet_supervisor::machine::model::StateFiles;
use kubelet_supervisor::machine::records::{Attempt, BadReason, Phase, Pin, RecordFile, Records, Stored};
use serde_json::json;

use expected::{
    SIGNALS, annotations, attempt, confirmation_wait, digest, full, full_attempt, full_records, named, source,
    source_dir,
};
use golden::{assert_within, copy, entries, fixture, read, state_file, text, value};

/// What is on record where native's records are these.
fn records(state: RecordFile, assigned: u32, last_known_good: u32) -> Records {
    let of = |n| Ok(Some(source(n)));
    let stored = Stored { state, assigned: of(assigned), last_known_good: of(last_known_good), meta_changed: false };
    let (records, refused) = stored.into_records();
    assert_eq!(refused, None);
    records
}

#[test]
fn state_json_of_format_1() {
    let state = || state_file("format-1/tree/supervisor/state.json");
    assert!(matches!(state(), RecordFile::Version1(_)));
    assert_eq!(records(state(), 2, 1), full());
    // What it holds beside the attempt counts if that is what is assigned.
    let baseline = Some([Signal::Healthz, Signal::Lease].into());
    let tested = Attempt { baseline, ..Attempt::new(named(3)) };
    assert_eq!(records(state(), 3, 1).phase, Phase::ControlTest(tested, Failure::Exits));
    let later = Attempt { clearances: 3, ..Attempt::new(named(5)) };
    assert_eq!(records(state(), 5, 1).phase, Phase::RetryLater(later, "last known good failed alike".to_owned()));
    assert_eq!(records(state(), 1, 1).phase, Phase::Settled);
    assert_eq!(records(state(), 9, 1).phase, Phase::Trial(Attempt::new(named(9))), "assigned by somebody else");
    assert_eq!(records(state(), 4, 1).phase, Phase::Settled, "it is bad");
    let unconfirmed =
        text("format-1/tree/supervisor/state.json").replace("\"confirmed\": true", "\"confirmed\": false");
    assert_eq!(
        records(Records::decode(&unconfirmed), 2, 1).phase,
        Phase::AwaitingConfirmation(Attempt { confirmed: false, ..attempt() }, confirmation_wait())
    );
    let empty = Records { assigned: Some(named(1)), last_known_good: Some(named(1)), ..Records::default() };
    assert_eq!(records(state_file("format-1/state/empty.json"), 1, 1), empty);
    let of_signal = |signal| (Failure::Signal(signal), Some(SIGNALS.into()));
    for (name, (failure, baseline)) in [
        ("exit-before-ready", (Failure::ExitBeforeReady, Some(SIGNALS.into()))),
        ("exits", (Failure::Exits, None)),
        ("start-timeout", (Failure::StartTimeout, Some(SIGNALS.into()))),
        ("healthz", of_signal(Signal::Healthz)),
        ("watchdog", of_signal(Signal::Watchdog)),
        ("node-ready", of_signal(Signal::NodeReady)),
        ("lease", of_signal(Signal::Lease)),
        ("api-server", of_signal(Signal::ApiServer)),
    ] {
        let records = records(state_file(&format!("format-1/state/{name}.json")), 3, 1);
        let tested = Attempt { baseline, ..Attempt::new(named(3)) };
        assert_eq!(records.phase, Phase::ControlTest(tested, failure), "{name}");
        assert_eq!(records.pin, Some(Pin { version: None }), "{name}");
    }
}

#[test]
fn the_store_of_format_1() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("tree");
    copy(&fixture("format-1/tree"), &root);
    let mut store = FsStore::new(RealDisk, &root);
    let stored = store.load();
    assert_eq!((&stored.assigned, &stored.last_known_good), (&Ok(Some(source(2))), &Ok(Some(source(1)))));
    assert_eq!((stored.meta_changed, stored.into_records()), (false, (full(), None)));
    let data = [("kubelet", "maxPods: 42\n"), ("ca.crt", "a certificate\n")];
    let data: BTreeMap<String, String> = data.map(|(key, text)| (key.to_owned(), text.to_owned())).into();
    for (n, annotations) in [(1, ConfigAnnotations::default()), (2, annotations())] {
        let Source { reference, resource_version, uid } = source(n);
        let seal = format!("supervisor/seals/{uid}/{resource_version}.json");
        let decode = |text: &str| serde_json::from_str::<CheckpointMetadata>(text);
        let golden = text(&format!("format-1/tree/{seal}"));
        let sealed = read(&golden, decode, |seal| serde_json::to_string(seal).unwrap());
        let sum = "b2ad488f136a6ca51405f59f87615f9ea7017dcce4bafe7cbdfaec933ebc60b2";
        assert_eq!((sealed.sha256.len(), sealed.sha256["kubelet"].as_str()), (2, sum));
        assert_eq!(sealed.annotations, annotations);
        assert_eq!(store.annotations(&source(n)), annotations);
        let opened = store.open(&source(n)).unwrap();
        assert_eq!((&opened.files, &opened.annotations), (&data, &annotations));
        // Equal content is not written again.
        let ConfigMapRef { namespace, name, .. } = reference;
        let (data, binary_keys) = (data.clone(), [].into());
        let payload = Payload { namespace, name, uid, resource_version, data, binary_keys, annotations };
        store.save(&source(n), &payload).unwrap();
        assert_eq!(fs::read_to_string(root.join(&seal)).unwrap(), golden);
    }

    // The first record is in today's form, and native's stay as they are.
    store.record(&full()).unwrap();
    let mut next = FsStore::new(RealDisk, &root);
    assert_eq!(next.load().state, RecordFile::Read(Box::new(full())));
    for (name, n) in [("assigned", 2), ("last-known-good", 1)] {
        let golden = text(&format!("format-1/tree/store/meta/{name}"));
        assert_eq!(meta::encode(Some(&source(n))), golden);
        assert_eq!(fs::read_to_string(root.join("store/meta").join(name)).unwrap(), golden);
    }
    assert!(root.join("supervisor/rendered").exists());
    next.collect(&[source(1), source(2)].into(), &[].into()).unwrap();
    assert!(!root.join("supervisor/rendered").exists());
    assert!([1, 2].iter().all(|n| next.open(&source(*n)).is_ok()));
}

#[test]
fn state_json_of_0_2_0() {
    for (name, phase) in [
        ("settled", Phase::Settled),
        ("trial", Phase::Trial(full_attempt())),
        ("awaiting-confirmation", Phase::AwaitingConfirmation(full_attempt(), confirmation_wait())),
        ("control-test", Phase::ControlTest(full_attempt(), Failure::Signal(Signal::ApiServer))),
        ("retry-later", Phase::RetryLater(full_attempt(), "last known good failed alike".to_owned())),
    ] {
        let (expected, golden) = (full_records(phase), format!("format-2/state/{name}.json"));
        assert_eq!(state_file(&golden), RecordFile::Read(Box::new(expected.clone())), "{name}");
        assert_within(&value(&text(&golden)), &value(&expected.encode()), name);
    }
}

#[test]
fn the_store_of_0_2_0() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("tree");
    copy(&fixture("format-2/tree"), &root);
    let mut store = FsStore::new(RealDisk, &root);
    let stored = store.load();
    assert_eq!((&stored.assigned, &stored.last_known_good), (&Ok(Some(source(2))), &Ok(Some(source(1)))));
    let expected = full_records(Phase::Trial(full_attempt()));
    assert_eq!((stored.meta_changed, stored.state), (false, RecordFile::Read(Box::new(expected))));

    let digest = digest("a");
    let config = format!("supervisor/configs/{}", digest.0);
    let opened = store.open_config(&digest).unwrap();
    assert_eq!((opened.given.config_dir, opened.drop_ins), (ConfigDir::Unit, None), "drop-ins were no part of it");
    assert_eq!(opened.given.config, root.join(&config).join("kubelet.json").display().to_string());
    assert_eq!((&opened.value["maxPods"], opened.shadowed), (&42.into(), vec!["maxPods (--max-pods)".to_owned()]));
    // Equal content is not written again, and what is written has the same names.
    let (bytes, metadata) =
        (|at: &std::path::Path, name: &str| fs::read_to_string(at.join(&config).join(name)).unwrap(), "config.json");
    let files = [("ca.crt".to_owned(), "a certificate\n".to_owned())].into();
    let shadowed = ["maxPods (--max-pods)".to_owned()];
    let (json, golden) = (bytes(&root, "kubelet.json"), bytes(&root, metadata));
    for target in [&root, &dir.path().join("fresh")] {
        let overrides = &FlagOverrides::default();
        let content = ConfigContent { text: &json, overrides, drop_ins: &[], files: &files, shadowed: &shadowed };
        let given = FsStore::new(RealDisk, target).write_config(&digest, &content).unwrap();
        assert_eq!(given.config_dir, ConfigDir::Removed);
        // By its digest it is content without drop-ins, so it is started without any from now on.
        let mut expected = value(&golden);
        expected["has_drop_ins"] = true.into();
        assert_eq!((bytes(target, "kubelet.json"), value(&bytes(target, metadata))), (json.clone(), expected));
    }
}

#[test]
fn history() {
    let first = HistoryEntry {
        number: 1,
        nanos: 1_800_000_000_000_000_001,
        reason: "KubeletConfigChanged".to_owned(),
        warning: false,
        message: "a change".to_owned(),
        source: Some(source(2)),
        kubelet_version: "v1.20.2".to_owned(),
        log_tail: Vec::new(),
        local: false,
    };
    let entry = |number: u64, reason: &str, message: &str, source: Option<Source>| {
        let (reason, message, nanos) = (reason.to_owned(), message.to_owned(), 1_800_000_000_000_000_000 + number);
        HistoryEntry { number, nanos, reason, message, source, warning: number < 4, ..first.clone() }
    };
    let log_tail = vec!["E0115 1".to_owned(), "F0115 2".to_owned()];
    let expected = [
        first.clone(),
        HistoryEntry { log_tail, ..entry(2, "KubeletConfigRolledBack", "a way back", Some(source(3))) },
        HistoryEntry {
            local: true,
            ..entry(3, "KubeletConfigTrialSuspended", "for this node alone", Some(source_dir()))
        },
        HistoryEntry { kubelet_version: String::new(), ..entry(4, "KubeletConfigChanged", "local", None) },
    ];
    assert_eq!(entries("format-1/tree/supervisor/history.1.jsonl"), expected[..1]);
    assert_eq!(entries("format-1/tree/supervisor/history.jsonl"), expected[1..]);
    let dir = tempfile::tempdir().unwrap();
    copy(&fixture("format-1/tree"), dir.path());
    let mut store = FsStore::new(RealDisk, dir.path());
    assert_eq!(store.history().0, expected);
    assert_eq!(store.unreported(), expected[3..], "two are reported, one is local");
    assert_eq!(store.append(&first).unwrap(), 5);
}

#[test]
fn state_files_of_policies() {
    for interrupted in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (root, kubelet) = (dir.path().join("tree"), dir.path().join("kubelet"));
        copy(&fixture("format-1/tree"), &root);
        let home = root.join("supervisor/state-files");
        if interrupted {
            fs::copy(fixture("format-1/owner-dirty.json"), home.join("owner.json")).unwrap();
        }
        fs::create_dir(&kubelet).unwrap();
        fs::write(kubelet.join("cpu_manager_state"), "of memory=Static").unwrap();
        let files = StateFiles { policy: "cpu=none".to_owned(), restore: true };
        FsStore::new(RealDisk, &root).swap_state_files(&files, &kubelet.display().to_string()).unwrap();
        for (name, text) in [("cpu_manager_state", "cpu none\n"), ("memory_manager_state", "memory none\n")] {
            assert_eq!(fs::read_to_string(kubelet.join(name)).unwrap(), text);
        }
        let stashed = ["cpu=static,full-pcpus-only=true+memory=Static", "memory=Static"];
        let owner = value(&fs::read_to_string(home.join("owner.json")).unwrap());
        assert_within(&json!({"owner": "cpu=none", "dirty": false, "stashed": stashed}), &owner, "owner.json");
        assert_eq!(home.join("memory=Static/cpu_manager_state").exists(), !interrupted, "it is stashed once");
    }
}

#[test]
fn a_real_one_of_format_1() {
    let dir = tempfile::tempdir().unwrap();
    copy(&fixture("format-1/real/tree"), dir.path());
    let mut store = FsStore::new(RealDisk, dir.path());
    assert!(matches!(state_file("format-1/real/tree/supervisor/state.json"), RecordFile::Version1(_)));
    let (records, refused) = store.load().into_records();
    assert_eq!(refused, None);
    let name = |source: &Source| format!("{} {}", source.reference.name, source.resource_version);
    let (assigned, good) = (records.assigned.clone().unwrap(), records.last_known_good.clone().unwrap());
    assert_eq!((name(&assigned.source), name(&good.source)), ("c 34".to_owned(), "d 25".to_owned()));
    assert_eq!(store.open(&assigned.source).unwrap().annotations.confirm_within, Some("10m".to_owned()));
    let attempt = records.phase.attempt().unwrap();
    assert_eq!((&attempt.version, attempt.tries, attempt.confirm_within), (&assigned, 1, Some(600)));
    assert_eq!(attempt.baseline, Some([Signal::Healthz, Signal::ApiServer, Signal::Pods].into()));
    let bad: Vec<_> = records.bad.iter().map(|bad| (name(&bad.source), bad.reason, bad.log_tail.len())).collect();
    let exits = BadReason::Failed(Failure::Exits);
    assert_eq!(bad, [("b 11".to_owned(), exits, 4), ("i 21".to_owned(), BadReason::Rejected, 4)]);
    assert_eq!((records.frozen, records.accepted.len(), records.proven.len()), (true, 4, 1));
    assert_eq!(records.retried.as_deref(), Some("2027-01-15T06:00:00Z"));
    assert_eq!(entries("format-1/real/tree/supervisor/history.jsonl"), store.history().0);
    assert_eq!(store.history().0.len(), 10);
}
