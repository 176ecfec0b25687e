//! Checkpoints, and configurations by their content.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kubelet_config::digest::Digest;
use kubelet_config::flags::FlagOverrides;
use kubelet_config::own_files::DropIn;
use kubelet_config::rendering::Configuration;
use kubelet_config::source::Source;
use kubelet_supervisor::adapters::store::{FsStore, GivenFiles};
use kubelet_supervisor::machine::model::RenderError;
use testkit::sim::disk::{Fault, Plan, SimDisk};
use testkit::sim::world::ROOT;

use crate::disk::{at_every_operation, payload, source, store};

fn digest(n: u32) -> Digest {
    Digest(format!("{n:064}"))
}

fn text(n: u32) -> String {
    format!("{{\n  \"maxPods\": {n}\n}}")
}

fn files() -> BTreeMap<String, String> {
    [("ca.crt", "a certificate\n"), ("tls.key", "a key\n")].map(|(key, text)| (key.to_owned(), text.to_owned())).into()
}

fn file(n: u32, name: &str) -> PathBuf {
    Path::new(ROOT).join("supervisor/configs").join(digest(n).0).join(name)
}

fn drop_ins(n: u32) -> Vec<DropIn> {
    let drop_in = |name: &str| DropIn::new(format!("/etc/conf.d/{name}.conf"), format!("{name}: {n}\n"));
    ["10-b", "20-a"].map(drop_in).into()
}

fn overrides(n: u32) -> FlagOverrides {
    FlagOverrides::parse(&format!("!--cgroup-driver\n--node-labels=n={n}")).unwrap()
}

fn content(digest: Digest, files: BTreeMap<String, String>) -> Configuration {
    Configuration { digest, files, ..Configuration::default() }
}

fn write(disk: &SimDisk, n: u32) -> Result<GivenFiles, String> {
    write_to(&mut store(disk), n)
}

fn write_to(store: &mut FsStore<SimDisk>, n: u32) -> Result<GivenFiles, String> {
    let content = Configuration {
        overrides: overrides(n),
        drop_ins: drop_ins(n),
        shadowed: vec!["maxPods (--max-pods)".to_owned()],
        ..content(digest(n), files())
    };
    store.write_config(&content, &text(n)).map_err(|error| error.to_string())
}

/// It can be opened, and is whole.
fn is_there(disk: &SimDisk, n: u32, context: &str) -> bool {
    let Ok(found) = store(disk).open_config(&digest(n)) else { return false };
    assert_eq!(found.given.config, file(n, "kubelet.json").display().to_string(), "{context}");
    assert_eq!((&found.value["maxPods"], found.shadowed.len()), (&n.into(), 1), "{context}");
    assert_eq!(disk.peek(&file(n, "kubelet.json")), Some(text(n)), "{context}");
    assert_eq!(found.overrides, overrides(n), "{context}");
    let texts = |drop_ins: Vec<DropIn>| drop_ins.into_iter().map(|drop_in| drop_in.text).collect::<Vec<_>>();
    assert_eq!(texts(found.drop_ins), texts(drop_ins(n)), "{context}");
    for (key, text) in files() {
        assert_eq!(disk.peek(&file(n, &format!("files/{key}"))), Some(text), "{context}");
    }
    true
}

#[test]
fn a_configuration_appears_whole() {
    let prepared = || {
        let disk = SimDisk::default();
        write(&disk, 1).unwrap();
        disk
    };
    let written = |disk: &SimDisk| usize::from(write(disk, 2).is_ok());
    at_every_operation(prepared, written, |disk, acknowledged, context| {
        assert!(is_there(disk, 1, context), "{context}: another one was lost");
        assert!(is_there(disk, 2, context) || acknowledged == 0, "{context}: it was lost");
        write(disk, 2).unwrap();
        assert!(is_there(disk, 2, context), "{context}");
    });
}

#[test]
fn a_damaged_one_is_mended() {
    for damaged in ["kubelet.json", "config.json", "flags", "files/ca.crt"] {
        let prepared = || {
            let disk = SimDisk::default();
            write(&disk, 1).unwrap();
            write(&disk, 2).unwrap();
            assert!(disk.rot(&file(2, damaged)));
            let error = store(&disk).open_config(&digest(2)).unwrap_err();
            assert!(matches!(&error, RenderError::Checkpoint(why) if why.contains(damaged)), "{error:?}");
            disk
        };
        let written = |disk: &SimDisk| usize::from(write(disk, 2).is_ok());
        at_every_operation(prepared, written, |disk, acknowledged, context| {
            assert!(is_there(disk, 1, context), "{damaged}, {context}: another one was lost");
            assert!(is_there(disk, 2, context) || acknowledged == 0, "{damaged}, {context}: it was not mended");
            write(disk, 2).unwrap();
            assert!(is_there(disk, 2, context), "{damaged}, {context}");
        });
    }
}

#[test]
fn equal_content_is_not_written_again() {
    let disk = SimDisk::default();
    let path = write(&disk, 1).unwrap();
    disk.plan(Plan { fault: Fault::ReadOnly, at: 0, once: false });
    assert_eq!(write(&disk, 1), Ok(path), "a read-only disk keeps out nothing that is there");
    // What a flag overrides belongs to the command line, not to the content.
    let mut store = store(&disk);
    let other = content(digest(1), files());
    assert!(store.write_config(&other, "other bytes").is_ok());
    disk.heal();
    assert!(store.write_config(&other, "other bytes").is_ok());
    assert!(store.open_config(&digest(1)).unwrap().shadowed.is_empty());
    assert_eq!(disk.peek(&file(1, "kubelet.json")), Some(text(1)));
    let changes = disk.changes();
    assert!(store.write_config(&other, "other bytes").is_ok());
    assert_eq!(disk.changes(), changes);
}

#[test]
fn nothing_leads_out_of_the_store() {
    let disk = SimDisk::default();
    let mut store = store(&disk);
    for name in ["..", "../x", "a/b", ""] {
        let named = Digest(name.to_owned());
        let key = [(name.to_owned(), String::new())].into();
        assert!(store.write_config(&content(named.clone(), BTreeMap::new()), "{}").is_err(), "{name:?}");
        assert!(matches!(store.open_config(&named), Err(RenderError::Checkpoint(_))), "{name:?}");
        assert!(store.write_config(&content(digest(1), key), "{}").is_err(), "{name:?}");
    }
    assert_eq!(disk.changes(), SimDisk::default().changes());
    write(&disk, 1).unwrap();
    disk.poke(&file(1, "config.json"), b"{\"sha256\":{\"../../state.json\":\"\"}}");
    assert!(matches!(store.open_config(&digest(1)), Err(RenderError::Checkpoint(why)) if why.contains("not ours")));
}

#[test]
fn a_disk_that_fails_is_told_from_damage() {
    let disk = SimDisk::default();
    write(&disk, 1).unwrap();
    disk.plan(Plan { fault: Fault::Io, at: disk.operations(), once: true });
    assert!(is_there(&disk, 1, "a passing error"));
    disk.plan(Plan { fault: Fault::Io, at: disk.operations(), once: false });
    assert!(matches!(store(&disk).open_config(&digest(1)), Err(RenderError::Internal(_))));
    assert!(matches!(store(&SimDisk::default()).open_config(&digest(1)), Err(RenderError::Checkpoint(_))));
}

fn save(disk: &SimDisk, source: &Source) -> bool {
    store(disk).save(source, &payload(source, &text(7))).is_ok()
}

#[test]
fn a_checkpoint_appears_whole() {
    let of_another_map = Source { uid: "another".to_owned(), ..source(1) };
    for new in [source(2), of_another_map] {
        let prepared = || {
            let disk = SimDisk::default();
            assert!(save(&disk, &source(1)));
            disk
        };
        let all = |disk: &SimDisk, source: &Source| {
            let (opened, payload) = (store(disk).open(source), payload(source, &text(7)));
            opened.is_ok_and(|opened| opened.files == payload.data && opened.annotations == payload.annotations)
        };
        let written = |disk: &SimDisk| usize::from(save(disk, &new));
        at_every_operation(prepared, written, |disk, acknowledged, context| {
            assert!(all(disk, &source(1)), "{context}: another one was lost");
            assert!(all(disk, &new) || acknowledged == 0, "{context}: it was lost");
            // Before that it is not there, or what is there is whole: its checksums follow it.
            let opened = store(disk).open(&new);
            assert!(opened.is_err() || opened.is_ok_and(|it| it.files == payload(&new, &text(7)).data), "{context}");
            assert!(save(disk, &new), "{context}");
            assert!(all(disk, &new), "{context}");
        });
    }
}

#[test]
fn what_nobody_needs_is_removed() {
    let disk = SimDisk::default();
    let mut store = store(&disk);
    let other = Source { uid: "another".to_owned(), ..source(1) };
    for source in [source(1), source(2), other.clone()] {
        store.save(&source, &payload(&source, &text(7))).unwrap();
    }
    for n in [1, 2] {
        write_to(&mut store, n).unwrap();
    }
    let leftover = Path::new(ROOT).join("supervisor/configs/tmp_x");
    kubelet_supervisor::adapters::fsx::Disk::make_dir(&disk, &leftover, 0o700).unwrap();
    disk.poke(&leftover.join("kubelet"), b"of before");
    store.collect(&[source(2)].into(), &[digest(1)].into()).unwrap();
    assert_eq!([source(1), source(2), other.clone()].map(|source| store.open(&source).is_ok()), [false, true, false]);
    assert_eq!([1, 2].map(|n| store.open_config(&digest(n)).is_ok()), [true, false]);
    assert_eq!(disk.peek(&leftover.join("kubelet")), None);
    // It all can come back in the same life.
    store.save(&other, &payload(&other, &text(7))).unwrap();
    write_to(&mut store, 2).unwrap();
    disk.crash(&mut testkit::sim::Rng::new(1));
    assert!(store.open(&other).is_ok() && store.open_config(&digest(2)).is_ok());
}

/// Written anew in the place of damage, and the last sync fails: it is there, and may be gone after a power cut.
#[test]
fn what_may_not_be_durable_is_not_loaded_for_a_start() {
    let disk = SimDisk::default();
    write(&disk, 1).unwrap();
    assert!(disk.rot(&file(1, "kubelet.json")));
    let mut store = store(&disk);
    let before = disk.operations();
    write_to(&mut store, 1).unwrap();
    let last = disk.operations() - 1;
    assert!(disk.rot(&file(1, "kubelet.json")));
    // The same once more, its last operation failing.
    disk.plan(Plan { fault: Fault::Io, at: disk.operations() + (last - before), once: false });
    let mut store = FsStore::new(disk.clone(), Path::new(ROOT));
    assert!(write_to(&mut store, 1).is_err());
    let loaded = store.load_config(&digest(1));
    assert!(loaded.is_err(), "{loaded:?}");
    disk.heal();
    assert!(store.load_config(&digest(1)).is_ok());
    disk.crash(&mut testkit::sim::Rng::new(1));
    assert!(is_there(&disk, 1, "after a power cut"));
}
