//! The store, where others than root can change it.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use testkit::rig::{Rig, configuration, eventually, exit_and_output, supervisor};

use crate::strangers::{NOBODY, Stranger, as_root};

const OPEN: &str = "can be changed by others than root";

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn max_pods(rig: &Rig) -> serde_json::Value {
    rig.last_config()["maxPods"].clone()
}

/// A supervised kubelet on its own configuration, an error for the administrator, and nothing written; mended, it works.
#[test]
fn a_store_that_others_can_write_to_is_not_used() {
    for (open, bits) in [("above/dynamic", 0o777), ("above/dynamic", 0o775), ("above", 0o777)] {
        let mut rig = Rig::new();
        let dir = rig.at("above/dynamic");
        fs::create_dir_all(&dir).unwrap();
        mode(&rig.at(open), bits);
        rig.option("--dynamic-config-dir", dir.to_str().unwrap());
        rig.up();
        rig.wait_log(OPEN);
        rig.offer("a", &configuration("maxPods: 42"));
        eventually("the error", || (rig.metric("kubelet_node_config_error") == Some(1.0)).then_some(()));
        assert_eq!((rig.starts(), max_pods(&rig)), (1, 110.into()));
        let written: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(written.is_empty(), "nothing is written where others can change it: {written:?}");
        mode(&rig.at(open), 0o755);
        rig.wait_config("then it works", |config| config["active"].is_object() && config["error"].is_null());
        eventually("operators' commands are taken", || dir.join("supervisor/control.sock").exists().then_some(()));
        let verb = |verb| {
            let output = supervisor().arg(verb).arg("--dynamic-config-dir").arg(&dir).output().unwrap();
            exit_and_output(&output)
        };
        let (code, _, stderr) = verb("freeze");
        assert!(code == 0 && stderr.is_empty(), "the supervisor is there, and obeys: {stderr}");
        let (_, status, _) = verb("status");
        assert!(status.contains("frozen"), "{status}");
        rig.stop();
    }
}

/// What a stranger put there, or could have, is not started; root's word makes it trusted again.
#[test]
fn a_store_of_another_users_is_not_started_from() {
    let Some(mut rig) = as_root(Rig::new) else { return };
    rig.up();
    rig.prove("a", &configuration("maxPods: 42"));
    rig.stop();
    rig.server.stop();
    for dir in ["dynamic", "dynamic/supervisor", "dynamic/supervisor/configs"] {
        let before = rig.starts();
        chown(rig.at(dir), Some(NOBODY), None).unwrap();
        rig.up();
        assert_eq!((rig.starts(), max_pods(&rig)), (before + 1, 110.into()), "{dir}");
        let (code, _, stderr) = rig.verb(&["freeze"]);
        assert!(code == 1 && stderr.contains(OPEN) || dir.ends_with("configs"), "{dir}: {stderr}");
        chown(rig.at(dir), Some(0), None).unwrap();
        rig.stop();
    }
    rig.up();
    assert_eq!(max_pods(&rig), 42);
}

/// Who could put a socket there could answer for the supervisor.
#[test]
fn verbs_do_not_talk_to_what_others_could_have_put_there() {
    let Some(mut rig) = as_root(Rig::new) else { return };
    rig.up();
    mode(&rig.at("dynamic"), 0o777);
    mode(rig.dir.path(), 0o755);
    fs::rename(rig.at("dynamic/supervisor"), rig.at("dynamic/aside")).unwrap();
    fs::create_dir(rig.at("dynamic/supervisor")).unwrap();
    chown(rig.at("dynamic/supervisor"), Some(NOBODY), None).unwrap();
    for verb in [&["status"][..], &["freeze"], &["history"], &["retry"]] {
        let (code, stdout, stderr) = rig.verb(verb);
        assert!(code != 0 && stdout.is_empty() && stderr.contains(OPEN), "{verb:?}: {stdout}{stderr}");
    }
    assert_eq!(rig.starts(), 1, "the kubelet runs on");
}

/// In a sticky directory such as /tmp others cannot take away what is root's; they may have made it first.
#[test]
fn a_sticky_directory_on_the_way_is_no_harm_and_what_a_stranger_made_in_it_is() {
    let Some(mut rig) = as_root(Rig::new) else { return };
    fs::create_dir(rig.at("tmp")).unwrap();
    mode(&rig.at("tmp"), 0o1777);
    mode(rig.dir.path(), 0o755);
    let dir = rig.at("tmp/dynamic");
    rig.option("--dynamic-config-dir", dir.to_str().unwrap());
    // As long as it is not there, others could make it first.
    fs::create_dir(&dir).unwrap();
    rig.up();
    let good = rig.prove("a", &configuration("maxPods: 42"));
    rig.stop();
    fs::rename(&dir, rig.at("aside")).unwrap();
    let link = rig.at("tmp/dynamic");
    assert_eq!(Stranger::tries(&["write", link.to_str().unwrap(), "mine"]), "written");
    rig.up();
    rig.wait_log("it belongs to uid 65534");
    assert_eq!(max_pods(&rig), 110);
    fs::remove_file(&link).unwrap();
    fs::rename(rig.at("aside"), &dir).unwrap();
    rig.wait_active(&good);
}
