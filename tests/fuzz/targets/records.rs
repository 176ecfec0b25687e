//! What the store reads at a start: what is understood is written and read again as it was, and the machine begins with it.

use std::fs;

use kubelet_config::source::{ConfigMapRef, Source};
use kubelet_supervisor::adapters::fsx::RealDisk;
use kubelet_supervisor::adapters::store::{CheckpointMetadata, FsStore, meta};
use kubelet_supervisor::machine::records::RecordFile;
use kubelet_supervisor::machine::{Records, Stored};

/// `state.json`, native's two records, checksums of a checkpoint, the history.
pub(crate) fn check(data: &[u8]) {
    let Some([state, assigned, proven, seal, history]) = super::texts(data) else { return };
    if let Ok(read) = serde_json::from_str::<CheckpointMetadata>(seal) {
        let text = serde_json::to_string(&read).unwrap_or_default();
        assert_eq!(serde_json::from_str::<CheckpointMetadata>(&text).ok(), Some(read), "{text}");
    }
    let root = super::directory().join("store");
    let source = Source {
        reference: ConfigMapRef { namespace: "n".into(), name: "m".into(), kubelet_config_key: "kubelet".into() },
        uid: "u".into(),
        resource_version: "1".into(),
    };
    for (name, text) in [
        ("supervisor/state.json", state),
        ("store/meta/assigned", assigned),
        ("store/meta/last-known-good", proven),
        ("supervisor/seals/u/1.json", seal),
        ("supervisor/history.jsonl", history),
        ("store/checkpoints/u/1/kubelet", "{}"),
    ] {
        let path = root.join(name);
        let written = fs::create_dir_all(path.parent().unwrap_or(&root)).and_then(|()| fs::write(&path, text));
        written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    let mut store = FsStore::new(RealDisk::default(), &root);
    let _ = (store.verify(&source), store.open(&source));
    for entry in store.history().0 {
        let text = serde_json::to_string(&entry).unwrap_or_default();
        assert_eq!(serde_json::from_str(&text).ok(), Some(entry), "{text}");
    }
    let stored = store.load();
    native(&stored);
    let (records, _) = stored.clone().into_records();
    encoding(&records);
    crate::machine::boot(&stored);
}

/// What is written for native is read as the same source.
fn native(stored: &Stored) {
    for source in [&stored.assigned, &stored.last_known_good].into_iter().flatten() {
        let root = super::directory().join("written");
        let path = root.join("store/meta/assigned");
        let text = meta::encode(source.as_ref());
        let written = fs::create_dir_all(root.join("store/meta")).and_then(|()| fs::write(&path, &text));
        written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(FsStore::new(RealDisk::default(), &root).load().assigned.as_ref(), Ok(source), "{text:?}");
    }
}

fn encoding(records: &Records) {
    let text = records.encode();
    match Records::decode(&text) {
        RecordFile::Read(again) => assert_eq!((&*again, again.encode()), (records, text)),
        other => panic!("{other:?} of what was written: {text}"),
    }
}
