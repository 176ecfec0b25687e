//! A store whose files are damaged, missing or somebody else's.

use std::path::{Path, PathBuf};

use testkit::rig::{Rig, Version, configuration, eventually, exit_and_output, is};

#[derive(Clone, Copy, Debug)]
enum Damage {
    Garbage,
    Empty,
    Half,
    NotUtf8,
    Huge,
    Gone,
    /// What mode 000 is to others than root: it cannot be read.
    Directory,
}

/// What the file holds then; none if there is no file.
fn apply(damage: Damage, path: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    match damage {
        Damage::Garbage => std::fs::write(path, "{0xdeadbeef: [").unwrap(),
        Damage::Empty => std::fs::write(path, "").unwrap(),
        Damage::Half => std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap(),
        Damage::NotUtf8 => std::fs::write(path, b"\xff\xfe\0").unwrap(),
        Damage::Huge => std::fs::write(path, vec![b'x'; 3 << 20]).unwrap(),
        Damage::Gone => std::fs::remove_file(path).unwrap(),
        Damage::Directory => {
            std::fs::remove_file(path).unwrap();
            std::fs::create_dir(path).unwrap();
        }
    }
    std::fs::read(path).ok()
}

/// A store with one proven configuration and one on trial, and no supervisor.
fn stopped() -> (Rig, Version, Version) {
    let mut rig = Rig::new().running();
    let good = rig.prove("a", &configuration("maxPods: 41"));
    rig.stop();
    rig.option("--trial-duration", "10m");
    rig.up();
    let next = rig.apply("a", &configuration("maxPods: 42"));
    rig.stop();
    (rig, good, next)
}

/// With this file damaged: the kubelet runs at once, API server or not, and in the end everything is as it was.
fn survives(damages: &[Damage], file: impl Fn(&Rig, &Version) -> PathBuf) {
    let (mut rig, _, next) = stopped();
    let path = file(&rig, &next);
    for damage in damages {
        for api in [false, true] {
            let left = apply(*damage, &path);
            if !api {
                rig.server.stop();
            }
            rig.up();
            let pods = rig.last_config()["maxPods"].as_u64();
            assert!([Some(110), Some(41), Some(42)].contains(&pods), "{damage:?}: law 2");
            if !api {
                rig.server.restart();
            }
            rig.wait_status(&format!("{damage:?}, api {api}: mended"), |status| {
                is(status, "active", &next) && is(status, "assigned", &next) && status["error"] == ""
            });
            eventually("it runs what it should", || (rig.last_config()["maxPods"] == 42).then_some(()));
            rig.wait_last_ready();
            // What runs does not need every file of it.
            let again = format!("{damage:?}, api {api}: {} is written again", path.display());
            // The history is added to, when there is something to add, and never mended.
            let is_log = path.extension().is_some_and(|it| it == "jsonl");
            eventually(&again, || std::fs::read(&path).ok().filter(|now| is_log || Some(now) != left.as_ref()));
            rig.stop();
        }
    }
}

const FILE: [Damage; 6] = [Damage::Garbage, Damage::Empty, Damage::Half, Damage::NotUtf8, Damage::Huge, Damage::Gone];

#[test]
fn a_damaged_record_of_the_assignment() {
    survives(&FILE, |rig, _| rig.at("dynamic/store/meta/assigned"));
}

#[test]
fn damaged_checksums() {
    // One without a seal is native's: it is taken as it is, and stays so while nothing changes.
    let damages: Vec<Damage> = FILE.into_iter().filter(|damage| !matches!(damage, Damage::Gone)).collect();
    survives(&damages, |rig, next| rig.at("dynamic/supervisor/seals").join(&next.0).join(format!("{}.json", next.1)));
}

#[test]
fn a_damaged_checkpoint() {
    survives(&FILE, |rig, next| rig.at("dynamic/store/checkpoints").join(&next.0).join(&next.1).join("kubelet"));
    survives(&[Damage::Directory], |rig, next| {
        rig.at("dynamic/store/checkpoints").join(&next.0).join(&next.1).join("kubelet")
    });
}

#[test]
fn a_damaged_configuration() {
    for name in ["kubelet.json", "config.json"] {
        survives(&FILE, |rig, _| {
            let configs = std::fs::read_dir(rig.at("dynamic/supervisor/configs")).unwrap();
            let is_next = |dir: &PathBuf| {
                std::fs::read_to_string(dir.join("kubelet.json")).is_ok_and(|text| text.contains("\"maxPods\": 42"))
            };
            configs.map(|dir| dir.unwrap().path()).find(is_next).unwrap().join(name)
        });
    }
}

#[test]
fn a_damaged_history() {
    let damages = [Damage::Garbage, Damage::Half, Damage::NotUtf8, Damage::Huge];
    survives(&damages, |rig, _| rig.at("dynamic/supervisor/history.jsonl"));
}

#[test]
fn a_damaged_memory() {
    survives(&FILE, |rig, _| rig.at("dynamic/supervisor/state.json"));
}

#[test]
fn a_damaged_record_of_last_known_good() {
    survives(&[Damage::Garbage, Damage::Half, Damage::NotUtf8], |rig, _| rig.at("dynamic/store/meta/last-known-good"));
}

#[test]
fn records_that_cannot_be_read_nor_written_leave_the_node_with_a_kubelet() {
    // Without our own record it is not known which versions are bad: what was proven is the best there is.
    for (name, pods) in [("store/meta/assigned", 42), ("store/meta/last-known-good", 42), ("supervisor/state.json", 41)]
    {
        let (mut rig, ..) = stopped();
        apply(Damage::Directory, &rig.at("dynamic").join(name));
        rig.up();
        rig.wait_log(name);
        rig.wait_status(name, |status| status["kubelet"]["ready"] == true);
        assert_eq!(rig.last_config()["maxPods"], pods, "{name}");
        rig.stop();
    }
}

#[test]
fn a_directory_that_cannot_be_made_leaves_the_node_with_a_kubelet() {
    let mut rig = Rig::new();
    std::fs::write(rig.at("dynamic"), "a file").unwrap();
    rig.up();
    rig.wait_log("cannot lock the store, going on without");
    rig.offer("a", &configuration("maxPods: 42"));
    let config = rig.wait_config("the error", |config| {
        config["error"] == "failed to sync: internal failure, see Kubelet log for details"
    });
    assert!(config["active"].is_null());
    assert_eq!(rig.starts(), 1);
    assert!(rig.metric("kubelet_supervisor_store_errors_total") >= Some(1.0));
    // The administrator makes room.
    std::fs::remove_file(rig.at("dynamic")).unwrap();
    rig.wait_config("then it works", |config| config["active"].is_object() && config["error"].is_null());
}

#[test]
fn one_supervisor_at_a_time() {
    let mut rig = Rig::new().running();
    let mut second = rig.command();
    let (code, stdout, stderr) = exit_and_output(&second.output().unwrap());
    assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
    let message = format!("is in use by another kubelet-supervisor, pid {};", rig.pid());
    assert!(stderr.contains(&message), "{stderr}");
    assert_eq!(rig.starts(), 1);
    // What a killed one leaves behind is in nobody's way.
    rig.kill();
    rig.up();
    rig.wait_status("ready", |status| status["kubelet"]["ready"] == true);
}

#[test]
fn a_store_that_native_left_is_taken_over() {
    let (mut rig, _, next) = stopped();
    // Native knows nothing of our files.
    std::fs::remove_dir_all(rig.at("dynamic/supervisor")).unwrap();
    rig.server.stop();
    rig.up();
    assert_eq!(rig.last_config()["maxPods"], 42);
    rig.server.restart();
    rig.wait_active(&next);
    rig.wait_error(&next, "");
}
