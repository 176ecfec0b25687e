//! A source's flags: on the kubelet's command line, judged, tried, proven and rolled back as its fields are.

use std::fs;

use serde_json::{Value, json};
use testkit::rig::{LOAD, NAMESPACE, Rig, STANDBY_LOCK, VALIDATE, configuration, eventually, is, killer};

/// Creates or updates ConfigMap `name`; its version.
fn put(rig: &Rig, name: &str, text: &str, flags: &str) -> (String, String) {
    rig.server.put_config_map(NAMESPACE, name, &[("kubelet", text), ("kubelet.flags", flags)])
}

/// The arguments of the latest start, without the unit's own that all have.
fn last_args(rig: &Rig) -> Vec<String> {
    let starts = rig.kubelet.starts();
    let args = starts.last().expect("a kubelet was started")["args"].as_array().unwrap().clone();
    let args = args.iter().map(|arg| arg.as_str().unwrap().to_owned());
    args.filter(|arg| (!rig.args.contains(arg) || arg.starts_with("--v=")) && arg != STANDBY_LOCK).collect()
}

fn proven(rig: &Rig, version: &(String, String)) {
    rig.wait_config(&format!("{version:?} is proven"), |config| is(config, "lastKnownGood", version));
}

/// A node whose unit says `--v=1`, and what it has proven.
fn rig_with_flags(text: &str, flags: &str) -> (Rig, (String, String)) {
    let mut rig = Rig::new();
    rig.args.push("--v=1".to_owned());
    rig.up();
    let version = put(&rig, "a", text, flags);
    rig.assign("a");
    rig.wait_active(&version);
    proven(&rig, &version);
    (rig, version)
}

#[test]
fn they_follow_the_units_own_and_take_them_out() {
    let text = configuration("maxPods: 42");
    let (rig, _) = rig_with_flags(&text, "# a comment\n--max-pods=50\n--node-labels=a=$(id);`x` 'y'\n");
    let config = rig.kubelet.starts().last().unwrap()["config"].as_str().unwrap().to_owned();
    let own = format!("--config={config}");
    assert_eq!(last_args(&rig), ["--v=1", "--max-pods=50", "--node-labels=a=$(id);`x` 'y'", &own]);
    assert_eq!(rig.status()["shadowedByFlags"], json!(["maxPods (--max-pods)"]));

    // A comment is none of the kubelet's business; what is taken out is.
    let starts = rig.starts();
    let same = put(&rig, "a", &text, "--max_pods=50\n\n--node-labels=a=$(id);`x` 'y'");
    rig.wait_active(&same);
    proven(&rig, &same);
    assert_eq!(rig.starts(), starts);
    let bare = put(&rig, "a", &text, "!--v");
    rig.wait_active(&bare);
    proven(&rig, &bare);
    assert_eq!((rig.starts(), last_args(&rig).len()), (starts + 1, 1), "{:?}", last_args(&rig));
    rig.server.unassign(testkit::rig::NODE);
    rig.wait_config("nothing is assigned", |config| config["active"].is_null());
    rig.wait_starts(starts + 2);
    assert_eq!(last_args(&rig), ["--v=1"], "as the unit has it");
}

#[test]
fn they_are_rolled_back_and_outlive_the_checkpoint() {
    let (mut rig, good) = rig_with_flags(&configuration("maxPods: 42"), "--max-pods=50\n!--v");
    let args = last_args(&rig);
    // The same fields under other flags are another content: the trial is theirs.
    let text = killer();
    let annotation = ("kubelet-supervisor.io/acknowledge", "reboot");
    let data = [("kubelet", text.as_str()), ("kubelet.flags", "--max-pods=51")];
    let bad = rig.server.put_annotated_config_map(NAMESPACE, "a", &data, Some(annotation));
    rig.wait_event("KubeletConfigRolledBack", &bad);
    rig.wait_config("the way back is done", |config| is(config, "active", &good));
    eventually("its flags are back", || (last_args(&rig) == args).then_some(()));

    // What was proven is started from its own bytes.
    rig.kill();
    let checkpoints = rig.at("dynamic/store/checkpoints");
    fs::remove_dir_all(&checkpoints).unwrap();
    rig.server.stop();
    rig.up();
    assert_eq!(last_args(&rig), args);
}

/// Flags, and words of the refusal.
const BAD: &[(&str, &str)] = &[
    ("--no-such-flag=1", "unknown flag: --no-such-flag"),
    ("max-pods=5", "kubelet.flags: line 1: it is no flag: write --name=value"),
    ("!--config", "!--config cannot be set by a source: the supervisor itself goes by it"),
];

#[test]
fn bad_ones_are_refused_without_a_restart() {
    let text = configuration("maxPods: 42");
    let (rig, _) = rig_with_flags(&text, "");
    let refused = |version: &(String, String), error: &str, words: &str| {
        let message = rig.wait_event("KubeletConfigRejected", version);
        assert!(message.contains(words), "{words:?} in {message}");
        rig.wait_error(version, error);
    };
    let starts = rig.starts();
    for (flags, words) in BAD {
        refused(&put(&rig, "a", &text, flags), LOAD, words);
    }
    let long = format!("--node-labels={}", "x".repeat(1_000_000));
    refused(&put(&rig, "a", &text, &long), LOAD, "bytes of flags are more than the limit of 32768");
    refused(&put(&rig, "a", &text, "--kube-api-qps=-1"), VALIDATE, "must not be a negative number");
    // The hazard of a flag is that of its field.
    let hazard = put(&rig, "a", &text, "--cgroup-driver=systemd");
    refused(&hazard, VALIDATE, "cgroupDriver: \"cgroupfs\" → \"systemd\"");
    let binary = json!({"data": {"kubelet.flags": null}, "binaryData": {"kubelet.flags": "AA=="}});
    let binary = rig.server.patch_config_map(NAMESPACE, "a", binary);
    refused(&binary, LOAD, "kubelet.flags: flags are text: they belong into data");
    assert_eq!(rig.starts(), starts);
    // Nothing of all that is in the way of good ones.
    let good = json!({"data": {"kubelet.flags": "--max-pods=7"}, "binaryData": null});
    let good = rig.server.patch_config_map(NAMESPACE, "a", good);
    rig.wait_active(&good);
    rig.wait_starts(starts + 1);
}

#[test]
fn from_a_file() {
    let rig = Rig::new();
    let (payload, flags) = (rig.at("payload").display().to_string(), rig.at("flags").display().to_string());
    fs::write(&payload, configuration("maxPods: 42")).unwrap();
    let ask = |verb: &str, text: &str| {
        fs::write(&flags, text).unwrap();
        let kubelet = rig.program.display().to_string();
        let words = [verb, &payload, "--flags", &flags, "--", &kubelet];
        let words: Vec<&str> = words.into_iter().chain(rig.args.iter().map(String::as_str)).collect();
        rig.verb(&words)
    };
    assert_eq!(ask("check", "--max-pods=5").0, 0);
    let (code, out, _) = ask("check", "--no-such-flag=5");
    assert!(code == 1 && out.contains("rejected: the flags: ") && out.contains("unknown flag"), "{out}");
    let (code, out, note) = ask("render", "--max-pods=5\n!--healthz-port");
    assert!(code == 0 && note.contains("note: flags: !--healthz-port --max-pods=5\n"), "{note}");
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["maxPods"], 42);
}

/// A kubelet that was upgraded does not know a flag of the unit any more: what is judged is the command line as it will be.
#[test]
fn a_flag_that_the_kubelet_no_longer_knows_is_taken_out() {
    let mut rig = Rig::new();
    rig.args.push("--no-such-flag=1".to_owned());
    let (payload, flags) = (rig.at("payload").display().to_string(), rig.at("flags").display().to_string());
    let check = |fields: &str, text: &str| {
        fs::write(&payload, configuration(fields)).unwrap();
        fs::write(&flags, text).unwrap();
        let kubelet = rig.program.display().to_string();
        let words = ["check", &payload, "--flags", &flags, "--", &kubelet];
        let words: Vec<&str> = words.into_iter().chain(rig.args.iter().map(String::as_str)).collect();
        rig.verb(&words)
    };
    let (code, out, told) = check("maxPods: 42", "");
    assert!(code != 0 && format!("{out}{told}").contains("unknown flag: --no-such-flag"), "{code} {out} {told}");
    let (code, out, told) = check("maxPods: 42", "!--no-such-flag");
    assert_eq!(code, 0, "{out} {told}");
    let (code, out, _) = check("kubeAPIQPS: -1", "!--no-such-flag");
    assert!(code == 1 && out.contains("must not be a negative number"), "{code} {out}");
}

#[test]
fn a_default_source_has_them_too() {
    let mut rig = Rig::new();
    rig.args.push("--v=1".to_owned());
    rig.option("--default-source", &format!("{NAMESPACE}/kubelet-config/pool"));
    let text = configuration("maxPods: 42");
    // Those of another key are no business of this one.
    let put = |rig: &Rig, flags: &str| {
        let data = [("pool", text.as_str()), ("pool.flags", flags), ("kubelet.flags", "--v=9")];
        rig.server.put_config_map(NAMESPACE, "kubelet-config", &data)
    };
    let first = put(&rig, "--v=4\n");
    rig.up();
    rig.wait_active(&first);
    proven(&rig, &first);
    assert_eq!(last_args(&rig)[..2], ["--v=1", "--v=4"], "{:?}", last_args(&rig));
    let starts = rig.starts();
    let second = put(&rig, "!--v\n");
    rig.wait_active(&second);
    proven(&rig, &second);
    assert_eq!((rig.starts(), last_args(&rig).len()), (starts + 1, 1), "{:?}", last_args(&rig));
    let refused = put(&rig, "--node-ip=10.0.0.1\n");
    assert!(rig.wait_event("KubeletConfigRejected", &refused).contains("--node-ip"));
    assert_eq!(rig.starts(), starts + 1);
}
