//! What others than root can read of a node's configuration.

use std::path::{Path, PathBuf};

use serde_json::json;
use testkit::rig::{LOAD, NAMESPACE, NODE, Rig, VALIDATE, configuration};

use crate::strangers::{Stranger, as_root};

/// Values of fields that hold credentials.
const SECRETS: &str = "staticPodURL: http://user:opensesame@127.0.0.1:1/pods?X-Signature=openbarley\n\
    staticPodURLHeader: {Authorization: [Bearer hunter2hunter2], X-Key: [swordfish]}\n";
const VALUES: [&str; 5] = ["opensesame", "openbarley", "hunter2", "swordfish", "taffeta"];

#[test]
fn nothing_of_a_configuration_is_told_on_tcp() {
    let rig = Rig::new().running();
    rig.prove("a", &configuration(&format!("clusterDomain: taffeta\n{SECRETS}")));
    assert!(rig.status().to_string().contains("lastKnownGood"), "root is told all of it");
    let mut told = String::new();
    for path in ["/status", "/status/", "/", "/command", "/debug/pprof/", "/configz", "/metrics", "/healthz", "/readyz"]
    {
        let (head, body) = rig.get(path);
        assert_eq!(head.contains(" 200 "), ["/metrics", "/healthz", "/readyz"].contains(&path), "{path}: {head}");
        told += &body;
    }
    assert!(!told.contains("lastKnownGood") && !told.contains("kubelet.json"), "{told}");
    for value in VALUES {
        assert!(!told.contains(value), "{value}: {told}");
    }
}

/// A refused version is remembered, and told of everywhere, without them.
#[test]
fn what_is_refused_is_told_without_its_secrets() {
    let rig = Rig::new().running();
    let put = |text: &str, flags: &str| {
        let data = [("kubelet", text), ("kubelet.flags", flags)];
        rig.server.put_annotated_config_map(NAMESPACE, "a", &data, None)
    };
    let whole = configuration(SECRETS);
    let mut version = put(&whole, "--v=2");
    rig.assign("a");
    rig.wait_active(&version);
    for (text, flags, error) in [
        // A header that was folded, one with a name that is not taken out by value, one that is quoted.
        (whole.as_str(), "--manifest-url-header\nX-Key: swordfish", LOAD),
        (whole.as_str(), "X-Key:hunter2", LOAD),
        (whole.as_str(), "!--manifest-url-header=X-Key:hunter2", LOAD),
        (whole.as_str(), "--manifest-url-header=\"X-Key:hunter2\"", LOAD),
        (whole.as_str(), "--manifest-url=https://127.0.0.1/opensesame\n--manifest-url=x", LOAD),
        (&configuration("staticPodURLHeader: {X-Key: [swordfish}"), "--v=2", LOAD),
        (&configuration("staticPodURL: [opensesame]"), "--v=2", LOAD),
        (&configuration(&format!("maxPods: -1\n{SECRETS}")), "--v=2", VALIDATE),
    ] {
        version = put(text, flags);
        rig.wait_error(&version, error);
        let told = [
            rig.status().to_string(),
            rig.verb(&["status"]).1,
            rig.done(&["history", "-o", "json"]),
            rig.server.node(NODE).to_string(),
            json!(rig.server.events()).to_string(),
            rig.get("/metrics").1 + &rig.get("/readyz").1,
            rig.log().lines().filter(|line| line.starts_with("kubelet-supervisor")).collect(),
            std::fs::read_to_string(rig.at("dynamic/supervisor/state.json")).unwrap(),
        ];
        assert!(told[0].contains(&version.1), "{}", told[0]);
        for (told, value) in told.iter().flat_map(|told| VALUES.map(|value| (told, value))) {
            assert!(!told.contains(value), "{flags:?} {text}: {value}: {told}");
        }
    }
}

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => files(&entry.path(), found),
            _ => found.push(entry.path()),
        }
    }
}

#[test]
fn no_file_of_the_store_is_for_others() {
    let Some(mut rig) = as_root(Rig::new) else { return };
    rig.up();
    rig.prove("a", &configuration(SECRETS));
    // Not refused on the way already.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(rig.dir.path(), open).unwrap();
    let mut found = Vec::new();
    files(&rig.at("dynamic"), &mut found);
    assert!(found.len() > 5, "{found:?}");
    let control = rig.at("dynamic/supervisor/control.sock");
    assert!(found.contains(&control), "{found:?}");
    for file in found {
        let file = file.to_str().unwrap();
        assert_eq!(Stranger::tries(&["read", file]), "PermissionDenied", "{file}");
        assert_eq!(Stranger::tries(&["write", file, "x"]), "PermissionDenied", "{file}");
    }
    let control = control.to_str().unwrap();
    assert_eq!(Stranger::tries(&["send", control, "x"]), "PermissionDenied");
    for pid in [rig.pid(), rig.last_pid()] {
        assert_eq!(Stranger::tries(&["signal", &pid.to_string()]), "EPERM: Operation not permitted");
        for file in ["environ", "mem", "maps", "fd/1", "fd/2", "cwd/x", "root/etc/shadow"] {
            assert_eq!(Stranger::tries(&["read", &format!("/proc/{pid}/{file}")]), "PermissionDenied", "{file}");
        }
    }
}
