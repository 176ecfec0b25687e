//! What is on disk is read as what it is. The files are in `tests/fixtures/on-disk`; a name that a rename changed fails here.

mod expected;
mod golden;

use std::collections::BTreeMap;
use std::fs;

use kubelet_config::flags::ConfigDir;
use kubelet_config::rendering::Configuration;
use kubelet_config::source::{ConfigAnnotations, ConfigMapRef, Payload, Source};
use kubelet_supervisor::adapters::fsx::RealDisk;
use kubelet_supervisor::adapters::store::{CheckpointMetadata, FsStore, meta};
use kubelet_supervisor::machine::evidence::{Failure, Signal};
use kubelet_supervisor::machine::history::HistoryEntry;
use kubelet_supervisor::machine::model::StateFiles;
use kubelet_supervisor::machine::records::{Phase, RecordFile, Records};
use serde_json::json;

use expected::{annotations, attempt, confirmation_wait, digest, local_files, records, source};
use golden::{assert_within, copy, entries, fixture, read, state_file, text, value};

#[test]
fn state_json() {
    for (name, phase) in [
        ("settled", Phase::Settled),
        ("trial", Phase::Trial(attempt())),
        ("awaiting-confirmation", Phase::AwaitingConfirmation(attempt(), confirmation_wait())),
        ("control-test", Phase::ControlTest(attempt(), Failure::Signal(Signal::ApiServer))),
        ("retry-later", Phase::RetryLater(attempt(), "last known good failed alike".to_owned())),
    ] {
        let (expected, golden) = (records(phase), format!("state/{name}.json"));
        assert_eq!(state_file(&golden), RecordFile::Read(Box::new(expected.clone())), "{name}");
        assert_within(&value(&text(&golden)), &value(&expected.encode()), name);
    }
    for version in ["1", "3"] {
        let other = text("state/settled.json").replacen("\"version\": 2", &format!("\"version\": {version}"), 1);
        let RecordFile::Unreadable(why) = Records::decode(&other) else { panic!("version {version}") };
        assert_eq!(why, format!("it has version {version}, this supervisor reads 2: install the one that wrote it"));
    }
}

#[test]
fn the_store() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("tree");
    copy(&fixture("tree"), &root);
    let mut store = FsStore::new(RealDisk::default(), &root);
    let stored = store.load();
    assert_eq!((&stored.assigned, &stored.last_known_good), (&Ok(Some(source(2))), &Ok(Some(source(1)))));
    let expected = records(Phase::Trial(attempt()));
    assert_eq!((stored.meta_changed, stored.state), (false, RecordFile::Read(Box::new(expected.clone()))));
    let data = [("kubelet", "maxPods: 42\n"), ("ca.crt", "a certificate\n")];
    let data: BTreeMap<String, String> = data.map(|(key, text)| (key.to_owned(), text.to_owned())).into();
    for (n, annotations) in [(1, ConfigAnnotations::default()), (2, annotations())] {
        let Source { reference, resource_version, uid } = source(n);
        let seal = format!("supervisor/seals/{uid}/{resource_version}.json");
        let decode = |text: &str| serde_json::from_str::<CheckpointMetadata>(text);
        let golden = text(&format!("tree/{seal}"));
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
    store.record(&expected).unwrap();
    for (name, n) in [("assigned", 2), ("last-known-good", 1)] {
        let golden = text(&format!("tree/store/meta/{name}"));
        assert_eq!(meta::encode(Some(&source(n))), golden);
        assert_eq!(fs::read_to_string(root.join("store/meta").join(name)).unwrap(), golden);
    }

    let digest = digest("a");
    let config = format!("supervisor/configs/{}", digest.0);
    let opened = store.open_config(&digest).unwrap();
    assert_eq!((opened.given.config_dir, opened.drop_ins), (ConfigDir::Removed, Vec::new()));
    assert_eq!(opened.given.config, root.join(&config).join("kubelet.json").display().to_string());
    assert_eq!((&opened.value["maxPods"], opened.shadowed), (&42.into(), vec!["maxPods (--max-pods)".to_owned()]));
    // Equal content is not written again, and what is written has the same names.
    let (bytes, metadata) =
        (|at: &std::path::Path, name: &str| fs::read_to_string(at.join(&config).join(name)).unwrap(), "config.json");
    let files = BTreeMap::from([("ca.crt".to_owned(), "a certificate\n".to_owned())]);
    let shadowed = vec!["maxPods (--max-pods)".to_owned()];
    let (json, golden) = (bytes(&root, "kubelet.json"), bytes(&root, metadata));
    for target in [&root, &dir.path().join("fresh")] {
        let (digest, files, shadowed) = (digest.clone(), files.clone(), shadowed.clone());
        let content = Configuration { digest, files, shadowed, ..Configuration::default() };
        let given = FsStore::new(RealDisk::default(), target).write_config(&content, &json).unwrap();
        assert_eq!(given.config_dir, ConfigDir::Removed);
        assert_eq!((bytes(target, "kubelet.json"), value(&bytes(target, metadata))), (json.clone(), value(&golden)));
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
            ..entry(3, "KubeletConfigTrialSuspended", "for this node alone", Some(local_files()))
        },
        HistoryEntry { kubelet_version: String::new(), ..entry(4, "KubeletConfigChanged", "local", None) },
    ];
    assert_eq!(entries("tree/supervisor/history.1.jsonl"), expected[..1]);
    assert_eq!(entries("tree/supervisor/history.jsonl"), expected[1..]);
    let dir = tempfile::tempdir().unwrap();
    copy(&fixture("tree"), dir.path());
    let mut store = FsStore::new(RealDisk::default(), dir.path());
    assert_eq!(store.history().0, expected);
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
        let files = StateFiles { policy: "cpu=none".to_owned(), restore: true, ..StateFiles::default() };
        FsStore::new(RealDisk::default(), &root).swap_state_files(&files, &kubelet.display().to_string()).unwrap();
        for (name, text) in [("cpu_manager_state", "cpu none\n"), ("memory_manager_state", "memory none\n")] {
            assert_eq!(fs::read_to_string(kubelet.join(name)).unwrap(), text);
        }
        let stashed = ["cpu=static,full-pcpus-only=true+memory=Static", "memory=Static"];
        let owner = value(&fs::read_to_string(home.join("owner.json")).unwrap());
        assert_within(&json!({"owner": "cpu=none", "dirty": false, "stashed": stashed}), &owner, "owner.json");
        assert_eq!(home.join("memory=Static/cpu_manager_state").exists(), !interrupted, "it is stashed once");
    }
}
