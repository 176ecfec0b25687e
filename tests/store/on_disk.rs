//! What released versions wrote is read by this one, and written under the same names. The files are in
//! `tests/fixtures/on-disk`, a directory for each version; a name that a rename changed fails here.

mod expected;
mod golden;

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use kubelet_config::assignment::Assignment;
use kubelet_config::hazard::impact::Supply;
use kubelet_config::source::{ConfigAnnotations, ConfigMapRef, Payload, Source};
use kubelet_config::status::SyncError;
use kubelet_supervisor::adapters::fsx::RealDisk;
use kubelet_supervisor::adapters::store::FsStore;
use kubelet_supervisor::machine::evidence::{Environment, Failure, Signal, Suspension};
use kubelet_supervisor::machine::model::StateFiles;
use kubelet_supervisor::machine::record::{self, CheckpointMetadata, ControlTest, HistoryEntry, LocalState, Pin};
use kubelet_supervisor::machine::{ConfigMapState, Kubelet, Records, Reload, ReloadStage, Run, State, Trial, TrialEnd};
use kubelet_supervisor::ports::Store as _;
use serde_json::json;

use expected::{
    SIGNALS, annotations, at, digest, full, kubelet, readiness, reference, run, running_config, source, source_dir,
};
use golden::{assert_within, copy, document, entries, fixture, local_state, read, text, value};

#[test]
fn state_json() {
    assert_eq!(local_state("tree/supervisor/state.json"), full());
    assert_eq!(local_state("state/empty.json"), LocalState { version: 1, ..LocalState::default() });
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
        let local_state = local_state(&format!("state/{name}.json"));
        assert_eq!(local_state.control_test, Some(ControlTest { source: source(3), failure, baseline }), "{name}");
        assert_eq!(local_state.pin, Some(Pin { source: None }), "{name}");
    }
}

#[test]
fn the_store() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("tree");
    copy(&fixture("tree"), &root);
    let mut store = FsStore::new(RealDisk, &root);
    let stored = store.load();
    assert_eq!((stored.assigned, stored.last_known_good), (Ok(Some(source(2))), Ok(Some(source(1)))));
    assert_eq!(stored.local_state, Ok(full()));
    for (name, n) in [("assigned", 2), ("last-known-good", 1)] {
        assert_eq!(record::encode_meta(Some(&source(n))), text(&format!("tree/store/meta/{name}")));
    }
    let data = [("kubelet", "maxPods: 42\n"), ("ca.crt", "a certificate\n")];
    let data: BTreeMap<String, String> = data.map(|(key, text)| (key.to_owned(), text.to_owned())).into();
    for (n, annotations) in [(1, ConfigAnnotations::default()), (2, annotations())] {
        let Source { reference, resource_version, uid } = source(n);
        let seal = format!("supervisor/seals/{uid}/{resource_version}.json");
        let decode = |text: &str| serde_json::from_str::<CheckpointMetadata>(text);
        let sealed = read(&text(&format!("tree/{seal}")), decode, |seal| serde_json::to_string(seal).unwrap());
        let sum = "b2ad488f136a6ca51405f59f87615f9ea7017dcce4bafe7cbdfaec933ebc60b2";
        assert_eq!((sealed.sha256.len(), sealed.sha256["kubelet"].as_str()), (2, sum));
        assert_eq!(sealed.annotations, annotations);
        let opened = store.open(&source(n)).unwrap();
        assert_eq!((&opened.files, &opened.annotations), (&data, &annotations));
        // Equal content is not written again.
        let ConfigMapRef { namespace, name, .. } = reference;
        store
            .save(&source(n), &Payload { namespace, name, uid, resource_version, data: data.clone(), annotations })
            .unwrap();
        assert_eq!(fs::read_to_string(root.join(&seal)).unwrap(), text(&format!("tree/{seal}")));
    }
    let rendered = store.write_rendered(&source(2), "{\"maxPods\":42}").unwrap();
    let uid = source(2).uid;
    assert_eq!(rendered, root.join(format!("supervisor/rendered/{uid}/1002/kubelet")).display().to_string());
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
        kubelet: "v1.20.2".to_owned(),
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
        HistoryEntry { kubelet: String::new(), ..entry(4, "KubeletConfigChanged", "local", None) },
    ];
    assert_eq!(entries("tree/supervisor/history.1.jsonl"), expected[..1]);
    assert_eq!(entries("tree/supervisor/history.jsonl"), expected[1..]);
    let dir = tempfile::tempdir().unwrap();
    copy(&fixture("tree"), dir.path());
    let mut store = FsStore::new(RealDisk, dir.path());
    assert_eq!(store.history(), expected);
    assert_eq!(store.unreported(), expected[3..], "two are reported, one is local");
    assert_eq!(store.append(&first).unwrap(), 5);
}

#[test]
fn state_files_of_policies() {
    for interrupted in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (root, kubelet) = (dir.path().join("tree"), dir.path().join("kubelet"));
        copy(&fixture("tree"), &root);
        let home = root.join("supervisor/state-files");
        if interrupted {
            fs::copy(fixture("owner-dirty.json"), home.join("owner.json")).unwrap();
        }
        fs::create_dir(&kubelet).unwrap();
        fs::write(kubelet.join("cpu_manager_state"), "of memory=Static").unwrap();
        let files =
            StateFiles { root_dir: kubelet.display().to_string(), policy: "cpu=none".to_owned(), restore: true };
        FsStore::new(RealDisk, &root).swap_state_files(&files).unwrap();
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
fn handover_in_full() {
    let (document, mut handover) = document("handover/full.json");
    assert_eq!((document.pid, document.notify, document.lock), (4711, Some(9), Some(10)));
    assert_eq!(document.notify_name, "kubelet-supervisor-1-2");
    assert_eq!(document.relays, [(11, vec!["I0115 one".to_owned(), "E0115 two".to_owned()]), (12, Vec::new())]);
    assert_eq!((document.service.ready, document.service.version), (true, Some("v1.20.2".to_owned())));
    assert_eq!((handover.pid(), handover.records()), (Some(4711), None));
    // What is private is seen in what is written.
    let written = value(&handover.encode());
    let moment = |n: u64| json!({"boot": {"secs": n, "nanos": 500_000_000}, "wall_nanos": at(n).wall_nanos});
    let private = json!({
        "first_seen": [source(7), moment(31)], "beat_at": moment(35), "began": moment(36), "now": moment(37),
        "in_place": true, "ending": "None", "keep_all": true, "stranded": true, "lease": "2027-01-15T08:00:02.000000Z",
        "runtime": "unix:///run/before.sock", "runtime_answered": true, "pods_before": ["pod-uid-3"],
        "lost_pods": ["default/web-1"], "tested": kubelet(3), "ticket": 17,
    });
    assert_within(&json!({"version": 1, "state": private}), &written, "private");

    let s: &mut State = handover.state_mut();
    let saved = Records { assigned: Some(source(2)), last_known_good: Some(source(1)), local_state: full() };
    assert_eq!(s.saved, saved);
    assert_eq!(s.unsaved, Some(Records { assigned: Some(source(8)), ..Records::default() }));
    assert_eq!(
        (&s.assignment, &s.config_map),
        (&Assignment::Map(reference(2)), &ConfigMapState::Checkpointed(source(2)))
    );
    assert_eq!(format!("{:#?}", s.kubelet), format!("{:#?}", Kubelet::Running(run())));
    assert_eq!((s.node_name.as_str(), &s.kubelet_id, s.version.as_deref()), ("node-1", &kubelet(1), Some("v1.20.2")));
    assert_eq!((&s.target, &s.active, &s.running), (&Some(source(2)), &Some(source(2)), &running_config()));
    let trial = Trial { exits: 1, adopted: true, health_before_pause: Duration::from_millis(90_250), suspended: true };
    assert_eq!((&s.trial, s.trial_end, s.suspended), (&Some(trial), TrialEnd::Passed, Some(Suspension::Runtime)));
    assert_eq!((s.recovered, s.pin_tried, s.checkpoint_damaged, s.leaving), (true, true, true, false));
    let supplies = BTreeMap::from([("memory.available".to_owned(), Supply { available: 5, capacity: 10 })]);
    let environment = Environment { runtime: Some(true), disk_full: true, shutting_down: true, supplies };
    assert_eq!((&s.node, &s.environment), (&Some(readiness()), &Some((environment, at(32)))));
    assert_eq!(s.log_tail, ["I0115 one", "E0115 two"]);
    assert_eq!(s.error, Some(("an error".to_owned(), "its detail".to_owned())));
    assert_eq!(s.sync_error, Some((SyncError::Download, "not found".to_owned())));
    assert_eq!(s.accepted_digests, [(digest("a"), kubelet(1))]);
    assert_eq!(s.tried_without_verdict, Some((digest("b"), kubelet(2))));
    assert_eq!((s.starts, s.crashes, s.retry, s.applying_since), (4, 2, Some((3, at(33))), Some(at(34))));
    let error = Some("an earlier one was refused".to_owned());
    assert_eq!(s.reload, Reload { stage: ReloadStage::Proven, error, count: 6 });
}

#[test]
fn handover_variants() {
    let sync = |error, why: &str| Some((error, why.to_owned()));
    let failed = ConfigMapState::Failed { why: "forbidden".to_owned(), since: at(38) };
    let invalid = Assignment::Invalid("the label is wrong".to_owned());
    for (name, wanted, map, suspended, sync_error) in [
        ("bare", Assignment::Unknown, ConfigMapState::Pending, None, None),
        ("local", Assignment::Local, ConfigMapState::Pending, Some(Suspension::ApiServer), None),
        ("default", Assignment::Default(reference(9)), failed, None, None),
        (
            "invalid",
            invalid,
            ConfigMapState::Pending,
            Some(Suspension::ShuttingDown),
            sync(SyncError::Internal, "no room"),
        ),
        (
            "all-nil",
            Assignment::AllNil,
            ConfigMapState::Pending,
            Some(Suspension::DiskFull),
            sync(SyncError::AllNil, "all were nil"),
        ),
    ] {
        let (document, mut handover) = document(&format!("handover/{name}.json"));
        assert_eq!(
            (document.pid, document.notify, document.lock, document.service.ready),
            (4711, None, None, false),
            "{name}"
        );
        assert_eq!(handover.records(), Some(&Records::default()), "{name}");
        let (stage, trial_end) = match name {
            "local" => (ReloadStage::Requested, TrialEnd::Failed),
            _ => (ReloadStage::None, TrialEnd::None),
        };
        let s = handover.state_mut();
        assert_eq!(
            (&s.assignment, &s.config_map, s.suspended, &s.sync_error),
            (&wanted, &map, suspended, &sync_error),
            "{name}"
        );
        assert_eq!((s.reload.stage, s.trial_end), (stage, trial_end), "{name}");
        let kubelet = Kubelet::Running(Run { pid: 4711, ..Run::default() });
        assert_eq!((&s.kubelet, &s.trial, &s.environment), (&kubelet, &None, &None), "{name}");
    }
}

#[test]
fn a_real_one() {
    let dir = tempfile::tempdir().unwrap();
    copy(&fixture("real/tree"), dir.path());
    let mut store = FsStore::new(RealDisk, dir.path());
    let stored = store.load();
    let local_state = local_state("real/tree/supervisor/state.json");
    assert_eq!(stored.local_state.as_ref(), Ok(&local_state));
    let name = |source: &Source| format!("{} {}", source.reference.name, source.resource_version);
    let (assigned, good) = (stored.assigned.unwrap().unwrap(), stored.last_known_good.unwrap().unwrap());
    assert_eq!((name(&assigned), name(&good)), ("c 34".to_owned(), "d 25".to_owned()));
    assert_eq!(store.open(&assigned).unwrap().annotations.confirm_within, Some("10m".to_owned()));
    let attempt = local_state.attempt.as_ref().unwrap();
    assert_eq!((&attempt.source, attempt.tries, attempt.confirm_within), (&assigned, 1, Some(600)));
    assert_eq!(attempt.baseline, Some([Signal::Healthz, Signal::ApiServer, Signal::Pods].into()));
    let bad: Vec<_> =
        local_state.bad.iter().map(|bad| (name(&bad.source), bad.reason.as_str(), bad.log_tail.len())).collect();
    assert_eq!(bad, [("b 11".to_owned(), "exits", 4), ("i 21".to_owned(), "rejected", 4)]);
    assert_eq!((local_state.frozen, local_state.accepted_digests.len(), local_state.proven.len()), (true, 4, 1));
    assert_eq!(
        (local_state.control_test.as_ref(), local_state.retried.as_deref()),
        (None, Some("2027-01-15T06:00:00Z"))
    );
    assert_eq!(entries("real/tree/supervisor/history.jsonl"), store.history());
    assert_eq!(store.history().len(), 10);

    let (document, mut handover) = document("real/handover.json");
    assert_eq!((document.service.ready, document.relays.len(), document.notify.is_some()), (true, 1, true));
    let saved = Records { assigned: Some(assigned.clone()), last_known_good: Some(good), local_state };
    // The number of the format is the file's.
    let handed = handover.records().unwrap().clone();
    assert_eq!(Records { local_state: LocalState { version: 1, ..handed.local_state.clone() }, ..handed }, saved);
    let s = handover.state_mut();
    assert_eq!((s.starts, &s.active, s.trial.is_some(), s.reload.count), (7, &Some(assigned.clone()), true, 0));
    assert_eq!(
        (&s.assignment, &s.config_map),
        (&Assignment::Map(assigned.reference.clone()), &ConfigMapState::Checkpointed(assigned))
    );
}
