//! `--config-dir`: the node's drop-ins are part of the content that a kubelet is given.

use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use testkit::kubelet::Style;
use testkit::rig::{Rig, configuration, eventually};

/// A node of 1.36 with this drop-in.
fn node(text: &str) -> (Rig, PathBuf) {
    let mut rig = Rig::with(Style::V1_36, "1s");
    let dir = rig.at("kubelet.conf.d");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("10-pods.conf"), text).unwrap();
    fs::write(dir.join("README"), "not read").unwrap();
    rig.args.push(format!("--config-dir={}", dir.display()));
    (rig, dir)
}

/// What the latest kubelet goes by, drop-ins merged.
fn merged(rig: &Rig) -> Value {
    let entries = rig.kubelet.entries();
    entries.iter().rfind(|entry| entry["event"] == "merged").expect("no drop-in was merged")["config"].clone()
}

fn config_dirs(start: &Value) -> Vec<String> {
    let args = start["args"].as_array().unwrap().iter().filter_map(Value::as_str);
    args.filter_map(|arg| arg.strip_prefix("--config-dir=")).map(str::to_owned).collect()
}

#[test]
fn the_kubelet_is_given_copies_of_them() {
    let (mut rig, dir) = node(&configuration("podsPerCore: 7"));
    rig.up();
    assert_eq!(
        config_dirs(rig.kubelet.starts().last().unwrap()),
        [dir.display().to_string()],
        "its own, without a payload"
    );
    rig.prove("a", &configuration("maxPods: 42\npodsPerCore: 9"));
    assert_eq!(rig.last_config()["podsPerCore"], 9, "what is given to --config is the payload");
    assert_eq!((&merged(&rig)["podsPerCore"], &merged(&rig)["maxPods"]), (&json!(7), &json!(42)));
    let start = rig.kubelet.starts().last().unwrap().clone();
    let config = PathBuf::from(start["config"].as_str().unwrap());
    let copies = config.parent().unwrap().join("drop-ins");
    assert_eq!(config_dirs(&start), [copies.display().to_string()]);
    assert_eq!(fs::read_dir(&copies).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(copies.join("0000-10-pods.conf")).unwrap(), configuration("podsPerCore: 7"));
    let judged = rig
        .kubelet
        .preflights()
        .iter()
        .any(|run| run["config"] == start["config"] && config_dirs(run) == config_dirs(&start));
    assert!(judged, "the preflight judged what runs");
}

/// As the kubelet finds them: a name may be the suffix alone, and a link in the place of the directory is not entered.
#[test]
fn they_are_found_as_the_kubelet_finds_them() {
    let (mut rig, dir) = node(&configuration("podsPerCore: 7"));
    fs::write(dir.join(".conf"), configuration("podsPerCore: 8\nregistryPullQPS: 8")).unwrap();
    rig.up();
    rig.prove("a", &configuration("maxPods: 42"));
    assert_eq!((&merged(&rig)["podsPerCore"], &merged(&rig)["registryPullQPS"]), (&json!(7), &json!(8)));

    let (mut rig, dir) = node(&configuration("podsPerCore: 7"));
    let link = rig.at("link");
    std::os::unix::fs::symlink(&dir, &link).unwrap();
    rig.args.retain(|arg| !arg.starts_with("--config-dir"));
    rig.args.push(format!("--config-dir={}", link.display()));
    rig.up();
    rig.prove("a", &configuration("maxPods: 42"));
    assert!(config_dirs(rig.kubelet.starts().last().unwrap()).is_empty());
}

/// Without us each of them keeps the kubelet down.
#[test]
fn a_broken_drop_in_keeps_no_proven_kubelet_down() {
    for broken in ["{torn", "podsPerCore: 3", "kind: Pod\napiVersion: v1\n", ""] {
        let (mut rig, dir) = node(&configuration("podsPerCore: 7"));
        rig.up();
        let proven = rig.prove("a", &configuration("maxPods: 42"));
        rig.stop();
        fs::write(dir.join("10-pods.conf"), broken).unwrap();
        let before = rig.readies();
        rig.start();
        rig.wait_ready(before + 1);
        rig.wait_active(&proven);
        assert_eq!((&merged(&rig)["podsPerCore"], &merged(&rig)["maxPods"]), (&json!(7), &json!(42)), "{broken:?}");
        // The next change is not at fault either.
        let starts = rig.kubelet.starts().len();
        rig.put("a", &configuration("maxPods: 43"));
        let told = eventually("the drop-in is named", || {
            let status = rig.status();
            let detail = status["errorDetail"].as_str().unwrap_or_default().to_owned();
            detail.contains("10-pods.conf").then_some(detail)
        });
        assert!(rig.status()["badVersions"].as_array().unwrap().is_empty(), "{told}");
        assert_eq!(rig.kubelet.starts().len(), starts, "nothing was restarted");
    }
}

/// Whoever looks is told which one it is, before the kubelet has to say so.
#[test]
fn one_that_no_kubelet_starts_with_is_named_everywhere() {
    for (broken, why) in [
        ("podsPerCore: 3\n", "kind is missing: it must be KubeletConfiguration"),
        ("", "it is empty"),
        (&configuration("maxPods: 1\nmaxPods: 2"), "a field stands twice"),
    ] {
        let (mut rig, dir) = node(&configuration("podsPerCore: 7"));
        let file = rig.at("payload.yaml").display().to_string();
        fs::write(&file, configuration("maxPods: 42")).unwrap();
        let named = |output: &str| {
            let line =
                output.lines().find(|line| line.contains("10-pods.conf: ")).unwrap_or_else(|| panic!("{output}"));
            assert!(line.contains(why), "{line}");
        };
        rig.up();
        rig.prove("a", &configuration("maxPods: 42"));
        fs::write(dir.join("10-pods.conf"), broken).unwrap();
        let store = format!("--dynamic-config-dir={}", rig.at("dynamic").display());
        for words in [&["check", &file][..], &["render", &file], &["render", &file, "--effective"], &["render"]] {
            let output = testkit::rig::supervisor().args(words).arg(&store).output().unwrap();
            assert!(!output.status.success(), "{words:?}, {broken:?}");
            named(&String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
        }
        eventually("the running one tells", || {
            let told = rig.status()["localFiles"].as_str().unwrap_or_default().to_owned();
            told.contains("10-pods.conf").then(|| named(&told))
        });
        // Nothing is assigned: the kubelet is started, and cannot.
        let (mut rig, _) = node(broken);
        rig.start();
        eventually("a start is told before", || {
            let (_, told, _) = rig.verb(&["status"]);
            told.contains("Local files: ").then(|| named(&told))
        });
        rig.stop();
    }
}

/// The kubelet was upgraded, and the drop-ins of the unit with it: those that were proven are refused, and not for the unit's
/// sake. It goes one rung down, and what is assigned next is judged by the unit's.
#[test]
fn proven_drop_ins_that_an_upgraded_kubelet_refuses_are_left() {
    let (mut rig, dir) = node(&configuration("podsPerCore: 7\nfeatureGates: {MemoryQoS: true}"));
    rig.up();
    let proven = rig.prove("a", &configuration("maxPods: 42"));
    rig.stop();
    fs::write(dir.join("10-pods.conf"), configuration("podsPerCore: 8")).unwrap();
    rig.kubelet.replace();
    rig.kubelet.set("STAND_IN_LOST_GATE=MemoryQoS");
    rig.server.stop();
    let starts = rig.starts();
    rig.up();
    assert_eq!((rig.starts(), &merged(&rig)["podsPerCore"]), (starts + 1, &json!(8)), "not one start in vain");
    rig.server.restart();
    let next = rig.prove("a", &configuration("maxPods: 43"));
    assert_eq!((&merged(&rig)["podsPerCore"], &merged(&rig)["maxPods"]), (&json!(8), &json!(43)));
    let bad = rig.status()["badVersions"].clone();
    let versions: Vec<&Value> = bad.as_array().unwrap().iter().map(|bad| &bad["source"]["resourceVersion"]).collect();
    assert_eq!((versions, next != proven), (vec![&json!(proven.1)], true), "{bad}");
}
