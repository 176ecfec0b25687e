//! The local files change while a kubelet runs: told, or followed.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use testkit::kubelet::Style;
use testkit::rig::{Rig, configuration, eventually};

fn differ(rig: &Rig, words: &str) {
    eventually(words, || rig.status()["localFiles"].as_str().filter(|told| told.contains(words)).map(drop));
}

/// A node whose kubelet has the directory `conf.d`, with one drop-in.
fn with_drop_in() -> Rig {
    let mut rig = Rig::with(Style::V1_36, "1s");
    let dir = rig.at("conf.d");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("10-a.conf"), configuration("podsPerCore: 1")).unwrap();
    rig.args.push(format!("--config-dir={}", dir.display()));
    rig
}

fn max_pods_of_last_start(rig: &Rig, max_pods: u32) {
    eventually(&format!("maxPods {max_pods}"), || (rig.last_config()["maxPods"] == max_pods).then_some(()));
}

#[test]
fn what_they_say_is_told_and_nothing_is_restarted() {
    let mut rig = with_drop_in();
    rig.up();
    let (starts, dir) = (rig.starts(), rig.at("conf.d"));
    rig.local("maxPods: 42");
    differ(&rig, "the local files differ from what the kubelet runs: maxPods");
    let is_told = |event: &Value| event["reason"] == "KubeletConfigLocalFiles" && event["type"] == "Warning";
    rig.server.wait_event(Duration::from_secs(60), is_told).unwrap();
    assert_eq!(rig.metric("kubelet_supervisor_local_files_differ"), Some(1.0));
    let (code, text, _) = rig.verb(&["status"]);
    assert!(code == 0 && text.contains("Local files:"), "{text}");

    // A drop-in that comes, one below that changes, one that cannot be used.
    fs::create_dir(dir.join("more")).unwrap();
    fs::write(dir.join("more/20.conf"), configuration("registryPullQPS: 3")).unwrap();
    differ(&rig, "maxPods, registryPullQPS");
    fs::write(dir.join("more/20.conf"), configuration("registryBurst: 3")).unwrap();
    differ(&rig, "maxPods, registryBurst");
    std::os::unix::fs::symlink("nowhere", dir.join("30.conf")).unwrap();
    differ(&rig, "30.conf: No such file or directory");
    fs::remove_file(dir.join("30.conf")).unwrap();
    differ(&rig, "maxPods, registryBurst");
    // What the kubelet would not start with.
    for broken in ["{torn", "", "podsPerCore: 3"] {
        fs::write(dir.join("40.conf"), broken).unwrap();
        differ(&rig, "40.conf: ");
        fs::remove_file(dir.join("40.conf")).unwrap();
        differ(&rig, "maxPods, registryBurst");
    }
    nix::unistd::mkfifo(&dir.join("50.conf"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    differ(&rig, "50.conf: this is no regular file");
    fs::remove_file(dir.join("50.conf")).unwrap();
    // A directory on the way to what a link leads to.
    for (release, pods) in [("one", 5), ("two", 6)] {
        fs::create_dir(rig.at(release)).unwrap();
        fs::write(rig.at(release).join("60.conf"), configuration(&format!("podsPerCore: {pods}"))).unwrap();
    }
    let current = rig.at("current");
    std::os::unix::fs::symlink("one", &current).unwrap();
    std::os::unix::fs::symlink(current.join("60.conf"), dir.join("60.conf")).unwrap();
    differ(&rig, "maxPods, podsPerCore, registryBurst");
    std::os::unix::fs::symlink("two", rig.at("next")).unwrap();
    let loads = rig.metric("kubelet_supervisor_store_request_duration_seconds_count{operation=\"load\"}");
    fs::rename(rig.at("next"), &current).unwrap();
    eventually("they are read again", || {
        let now = rig.metric("kubelet_supervisor_store_request_duration_seconds_count{operation=\"load\"}");
        (now > loads).then_some(())
    });
    assert_eq!(rig.starts(), starts);

    // The next kubelet has read them.
    kill(Pid::from_raw(i32::try_from(rig.last_pid()).unwrap()), Signal::SIGKILL).unwrap();
    max_pods_of_last_start(&rig, 42);
    eventually("nothing differs", || rig.status()["localFiles"].is_null().then_some(()));
}

/// Its supervisor follows its files, a drop-in among them; with no API server it knows of none.
fn following(api: bool) -> Rig {
    let mut rig = with_drop_in();
    rig.options.push("--follow-local".to_owned());
    if !api {
        rig.args.retain(|arg| !arg.starts_with("--kubeconfig"));
        rig.option("--default-source", "kube-system/kubelet-config"); // nobody is there who could give it
    }
    rig.local("maxPods: 42");
    rig
}

/// One whose files are proven, and their version.
fn proven(api: bool) -> (Rig, Value) {
    let rig = following(api).running();
    let first = wait_proven(&rig, &Value::Null);
    assert_eq!(rig.starts(), 1, "what runs is what is proven");
    (rig, first)
}

/// Waits until the files run, are last known good, and are others than before; gives their version.
fn wait_proven(rig: &Rig, before: &Value) -> Value {
    let status = rig.wait_status("proven", |status| {
        let seen = &status["assigned"];
        let known = seen["configMap"]["uid"] == "local-files" && seen != before;
        known && [&status["active"], &status["lastKnownGood"]] == [seen, seen]
    });
    status["assigned"].clone()
}

fn is_back(status: &Value) -> bool {
    status["trial"]["state"] == "failed" && status["kubelet"]["ready"] == true
}

fn wait_detail(rig: &Rig, words: &str) -> String {
    let says = |status: &Value| status["errorDetail"].as_str().is_some_and(|why| why.contains(words));
    rig.wait_status(words, says)["errorDetail"].as_str().unwrap().to_owned()
}

#[test]
fn followed_they_are_judged_tried_and_rolled_back() {
    for api in [true, false] {
        let (mut rig, first) = proven(api);
        let drop_in = rig.at("conf.d/10-a.conf");
        rig.local("kubeAPIQPS: -1");
        rig.wait_status("rejected", |status| status["badVersions"][0]["reason"] == "rejected");
        fs::write(&drop_in, "{torn").unwrap();
        rig.local("maxPods: 42");
        wait_detail(&rig, "10-a.conf");
        assert_eq!((&rig.status()["active"], rig.starts()), (&first, 1), "none of that cost a restart");

        fs::write(&drop_in, configuration("podsPerCore: 2")).unwrap();
        let second = wait_proven(&rig, &first);
        rig.local("maxPods: 43");
        let third = wait_proven(&rig, &second);
        assert_eq!((rig.starts(), &rig.last_config()["maxPods"]), (3, &json!(43)));
        rig.local("maxPods: 44\nstandIn: {exitAfterReady: 0s}");
        let status = rig.wait_status("rolled back", is_back);
        assert_eq!((&status["active"], &status["lastKnownGood"]), (&third, &third));
        assert!(rig.history().iter().any(|entry| entry["reason"] == "KubeletConfigRolledBack"));

        // Nor does it run after a boot.
        let starts = rig.starts();
        rig.restart();
        let status = rig.wait_status("as before", |status| status["kubelet"]["ready"] == true);
        assert_eq!((&status["active"], rig.starts(), &rig.last_config()["maxPods"]), (&third, starts + 1, &json!(43)));
        if api {
            // What the API server assigns goes before them.
            let assigned = rig.offer("a", &configuration("maxPods: 44"));
            rig.wait_active(&assigned);
        }
    }
}

/// It is fatal, and comes before the first version is proven.
#[test]
fn the_very_first_edit_has_a_way_back() {
    let mut rig = following(false);
    rig.option("--trial-duration", "5s");
    rig.up();
    rig.wait_status("it is seen", |status| status["assigned"]["configMap"]["uid"] == "local-files");
    rig.local("maxPods: 44\nstandIn: {exitAfterReady: 0s}");
    rig.stop(); // the bytes as they were first seen are what is started
    rig.up();
    rig.wait_status("rolled back", is_back);
    assert_eq!(rig.last_config()["maxPods"], 42);
}

#[test]
fn a_hazard_is_acknowledged_for_the_files_as_they_are() {
    let (mut rig, first) = proven(false);
    let refused = |rig: &Rig, class: &str, words: &str| {
        let (code, _, why) = rig.verb(&["acknowledge", class]);
        assert!(code != 0 && why.contains(words), "{code}: {why}");
        code
    };
    refused(&rig, "reboot", "no hazard of the local files waits");
    rig.local("maxPods: 42\ncgroupDriver: systemd");
    let why = wait_detail(&rig, "run kubelet-supervisor acknowledge reboot on the node");
    assert!(!why.contains("ConfigMap"), "{why}");
    refused(&rig, "pods", "is not refused for hazards of class pods: reboot waits");
    assert_eq!(refused(&rig, "nonsense", "is no class of hazards: reboot, forbidden, drain"), 64);
    // No supervisor need run; the policy has its say once one does.
    rig.stop();
    assert!(rig.done(&["acknowledge", "reboot"]).ends_with("as far as the node's policy lets that be acknowledged"));
    rig.up();
    let second = wait_proven(&rig, &first);
    assert_eq!(rig.last_config()["cgroupDriver"], "systemd");
    // It was about that content alone.
    rig.local("maxPods: 43");
    wait_detail(&rig, "acknowledge reboot");
    let accepted = rig.done(&["acknowledge", "reboot"]);
    assert!(accepted.contains("hazards of class reboot are accepted for the local files"), "{accepted}");
    wait_proven(&rig, &second);
    refused(&rig, "reboot", "no hazard of the local files waits");
}

#[test]
fn the_policy_says_what_may_be_acknowledged() {
    let mut rig = following(true);
    let policy = "apiVersion: kubelet-supervisor.io/v1alpha1\nkind: NodePolicy\nacknowledgeable: [pods]\n";
    fs::write(rig.at("policy.yaml"), policy).unwrap();
    rig.option("--policy", rig.at("policy.yaml").to_str().unwrap());
    rig.local("maxPods: 110");
    rig.up();
    wait_proven(&rig, &Value::Null);
    rig.local("maxPods: 110\ncgroupDriver: systemd");
    wait_detail(&rig, "the node's policy lets only pods be acknowledged");
    let (code, _, why) = rig.verb(&["acknowledge", "reboot"]);
    assert!(code == 1 && why.contains("policy does not let reboot be acknowledged (acknowledgeable: pods)"), "{why}");
    assert_eq!(rig.starts(), 1);
}

/// What is there up to then is a configuration too, and another one.
#[test]
fn a_file_is_read_once_its_writer_is_done() {
    const WAITS: &str = "local.yaml is being written; it is taken up when that has ended";
    let (mut rig, first) = proven(false);
    let mut file = File::create(rig.at("local.yaml")).unwrap();
    file.write_all(configuration("maxPods: 43").as_bytes()).unwrap();
    // Another file changes meanwhile, and is whole.
    fs::write(rig.at("conf.d/20-b.conf"), configuration("registryBurst: 3")).unwrap();
    rig.wait_log(WAITS);
    rig.restart();
    eventually("the next supervisor waits, too", || (rig.log().matches(WAITS).count() >= 2).then_some(()));
    assert_eq!((&rig.status()["active"], rig.starts()), (&first, 2));
    file.write_all(b"\npodPidsLimit: 700\n").unwrap();
    drop(file);
    wait_proven(&rig, &first);
    assert_eq!((&rig.last_config()["podPidsLimit"], rig.starts()), (&json!(700), 3), "nothing else was tried");
    assert!(rig.status()["badVersions"].as_array().is_none_or(Vec::is_empty), "nor judged");
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn what_others_may_write_is_not_taken_up() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let (rig, first) = proven(false);
    let (dir, file) = (rig.at("conf.d"), rig.at("conf.d/10-a.conf"));
    let mut before = first;
    for (starts, (open, bits, safe)) in (1..).zip([(&dir, 0o777, 0o755), (&dir, 0o1777, 0o755), (&file, 0o664, 0o644)])
    {
        mode(open, bits);
        fs::write(&file, configuration(&format!("podsPerCore: {}", starts + 2))).unwrap();
        let why = wait_detail(&rig, "can be changed by others than root");
        assert!(why.contains(&format!("chmod go-w {}", open.display())), "{why}");
        assert_eq!((&rig.status()["active"], rig.starts()), (&before, starts));
        mode(open, safe);
        before = wait_proven(&rig, &before);
    }
}
