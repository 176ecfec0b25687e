//! The local files change while a kubelet runs: told, or followed.

use std::fs;
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
    let (code, text, _) = rig.status_text(&[]);
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

#[test]
fn followed_they_are_judged_tried_and_rolled_back() {
    let mut rig = with_drop_in();
    rig.options.push("--follow-local".to_owned());
    rig.local("maxPods: 42");
    rig.up();
    let proven = || {
        let status = rig.status();
        let seen = status["assigned"]["configMap"].clone();
        (seen["uid"] == "local-files" && status["lastKnownGood"] == status["assigned"])
            .then_some(seen["resourceVersion"].clone())
    };
    let first = eventually("it is proven as it runs", proven);
    let starts = rig.starts();
    let drop_in = rig.at("conf.d/10-a.conf");

    rig.local("kubeAPIQPS: -1");
    eventually("it is rejected", || (rig.status()["badVersions"][0]["reason"] == "rejected").then_some(()));
    fs::write(&drop_in, "{torn").unwrap();
    rig.local("maxPods: 42");
    eventually("a broken drop-in is named", || {
        rig.status()["errorDetail"].as_str().unwrap_or_default().contains("10-a.conf").then_some(())
    });
    assert_eq!(rig.starts(), starts, "none of that cost a restart");

    fs::write(&drop_in, configuration("podsPerCore: 2")).unwrap();
    let second = eventually("the drop-in is taken up", || proven().filter(|version| *version != first));
    assert_eq!(rig.starts(), starts + 1);
    rig.local("maxPods: 43\nstandIn: {exitAfterReady: 0s}");
    eventually("it was tried", || (rig.starts() > starts + 1).then_some(()));
    eventually("it is rolled back", || {
        let status = rig.status();
        (status["trial"]["state"] == "failed" && status["kubelet"]["ready"] == true).then_some(())
    });
    assert_eq!(
        (&rig.last_config()["maxPods"], &rig.status()["active"]["configMap"]["resourceVersion"]),
        (&json!(42), &second)
    );
    // What the API server assigns goes before them.
    let assigned = rig.put("a", &configuration("maxPods: 44"));
    rig.assign("a");
    rig.wait_active(&assigned);
}

/// Neither an API server nor a file: there is nothing to follow but drop-ins, which the kubelet reads by itself.
#[test]
fn followed_without_an_api_server() {
    let mut rig = Rig::new();
    rig.options.push("--follow-local".to_owned());
    rig.args.retain(|arg| !arg.starts_with("--kubeconfig"));
    rig.local("maxPods: 42");
    rig.up();
    eventually("it is proven", || (rig.status()["lastKnownGood"]["configMap"]["uid"] == "local-files").then_some(()));
    rig.local("maxPods: 43");
    max_pods_of_last_start(&rig, 43);
}
