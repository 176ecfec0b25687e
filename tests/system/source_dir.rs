//! `--source-dir`: a directory in the place of the cluster, on a standalone node and beside an API server.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use testkit::rig::{LOAD, NODE, Rig, VALIDATE, configuration, eventually, killer};

/// A node that knows no API server.
fn standalone(trial: &str) -> Rig {
    let mut rig = Rig::with(testkit::kubelet::Style::V1_20, trial);
    rig.args.retain(|arg| !arg.starts_with("--kubeconfig"));
    with_source(&mut rig);
    rig
}

fn with_source(rig: &mut Rig) {
    fs::create_dir(rig.at("source")).unwrap();
    rig.option("--source-dir", rig.at("source").to_str().unwrap());
}

fn max_pods(number: u32) -> String {
    configuration(&format!("maxPods: {number}"))
}

/// Written beside, and renamed into its place.
fn place(rig: &Rig, name: &str, text: &str) {
    put_into(&rig.at("source"), name, text);
}

fn put_into(dir: &Path, name: &str, text: &str) {
    let beside = dir.join(".new");
    fs::write(&beside, text).unwrap();
    fs::rename(beside, dir.join(name)).unwrap();
}

fn version(status: &Value, field: &str) -> String {
    status[field]["configMap"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
}

/// Waits until a kubelet runs with this, and says so.
fn wait_running(rig: &Rig, number: u32) -> Value {
    eventually(&format!("maxPods {number}"), || {
        (rig.starts() > 0 && rig.last_config()["maxPods"] == number).then_some(())
    });
    rig.wait_status("ready with it", |status| status["kubelet"]["ready"] == true)
}

fn wait_proven(rig: &Rig) -> Value {
    rig.wait_status("proven", |status| {
        !version(status, "assigned").is_empty() && status["assigned"] == status["lastKnownGood"]
    })
}

fn reasons(rig: &Rig) -> Vec<String> {
    rig.history().iter().map(|entry| entry["reason"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_standalone_node_applies_proves_and_resets() {
    let mut rig = standalone("1s");
    rig.up();
    assert_eq!(rig.last_config()["maxPods"], 110, "an empty directory is the local configuration");
    place(&rig, "kubelet", &max_pods(42));
    wait_running(&rig, 42);
    let status = wait_proven(&rig);
    assert_eq!(status["active"]["configMap"]["uid"], "source-dir");
    let (code, text, _) = rig.status_text(&[]);
    assert!(code == 0 && text.contains("Assigned:        the source directory, key kubelet (uid source-dir"), "{text}");
    let changed = rig.history().into_iter().find(|entry| entry["reason"] == "KubeletConfigChanged").unwrap();
    let message = changed["message"].as_str().unwrap();
    assert!(message.starts_with("Kubelet restarting to use the source directory, UID: source-dir, "), "{message}");
    let metrics = rig.get("/metrics").1;
    assert!(metrics.contains("kubelet_node_config_active{node_config_source=\"the source directory\","), "{metrics}");

    fs::remove_file(rig.at("source/kubelet")).unwrap();
    wait_running(&rig, 110);
    let status = rig.wait_status("local", |status| status["assigned"].is_null() && status["lastKnownGood"].is_null());
    assert_eq!(status["error"], "");
    assert_eq!(rig.starts(), 3);
}

#[test]
fn what_was_proven_outlives_a_restart_and_nothing_waits_to_be_sent() {
    let mut rig = standalone("1s");
    place(&rig, "kubelet", &max_pods(42));
    rig.up();
    wait_running(&rig, 42);
    let proven = version(&wait_proven(&rig), "assigned");
    rig.stop();
    rig.start();
    rig.wait_starts(3);
    let status = wait_running(&rig, 42);
    assert_eq!(version(&status, "active"), proven, "the same content is the same version");
    assert_eq!(status["trial"]["state"], "passed");
    // The history is all that ever has the events of this node.
    let last = rig.history().last().unwrap()["number"].as_u64().unwrap();
    let reported = || fs::read_to_string(rig.at("dynamic/supervisor/reported")).unwrap_or_default();
    eventually("nothing waits to be sent", || (reported().trim() == last.to_string()).then_some(()));
}

#[test]
fn a_bad_payload_is_rejected_and_a_killer_rolled_back() {
    let mut rig = standalone("1s");
    place(&rig, "kubelet", &max_pods(42));
    rig.up();
    wait_running(&rig, 42);
    wait_proven(&rig);
    let starts = rig.starts();
    place(&rig, "kubelet", &max_pods(42).replace("42", "-1"));
    let status = rig.wait_status("rejected", |status| status["error"] == VALIDATE);
    assert!(status["errorDetail"].as_str().unwrap().contains("-1 must not be a negative number"), "{status}");
    place(&rig, "kubelet", "not: a configuration");
    rig.wait_status("not loaded", |status| status["error"] == LOAD);
    assert_eq!(rig.starts(), starts, "a rejection costs no restart");

    // The hazard is named with the file that accepts it.
    place(&rig, "kubelet", &killer());
    let status = rig.wait_status("refused", |status| {
        status["errorDetail"].as_str().is_some_and(|why| why.contains("systemReservedCgroup"))
    });
    let why = status["errorDetail"].as_str().unwrap();
    assert!(why.contains("the source directory's file .acknowledge:") && !why.contains("ConfigMap"), "{why}");
    assert_eq!(rig.starts(), starts);
    place(&rig, ".acknowledge", "systemReservedCgroup\n");
    rig.wait_status("rolled back", |status| status["trial"]["state"] == "failed");
    let status = wait_running(&rig, 42);
    assert_eq!(status["error"].as_str().unwrap(), LOAD, "{status:#}");
    // Once or twice, as its end was heard before its READY or after.
    assert!((starts + 2..=starts + 3).contains(&rig.starts()), "{status:#}");
    assert!(reasons(&rig).contains(&"KubeletConfigRolledBack".to_owned()));

    // The way out: other content.
    fs::remove_file(rig.at("source/.acknowledge")).unwrap();
    place(&rig, "kubelet", &max_pods(43));
    wait_running(&rig, 43);
    rig.wait_status("no error", |status| status["error"] == "");
}

#[test]
fn a_file_half_written_is_never_taken() {
    let mut rig = standalone("10m");
    place(&rig, "kubelet", &max_pods(42));
    rig.up();
    wait_running(&rig, 42);
    // In place, with all the time in the world; meanwhile other files come and go.
    let mut file = File::create(rig.at("source/kubelet")).unwrap();
    file.write_all(max_pods(1).as_bytes()).unwrap();
    file.flush().unwrap();
    for turn in 0..4 {
        place(&rig, "ca.crt", &format!("turn {turn}"));
        std::thread::sleep(Duration::from_millis(400)); // longer than the directory needs to settle
        assert_eq!(version(&rig.status(), "assigned"), version(&rig.status(), "active"));
        assert_eq!(rig.last_config()["maxPods"], 42);
    }
    file.write_all(b"maxOpenFiles: 7\n").unwrap();
    drop(file);
    wait_running(&rig, 1);
    assert_eq!(
        (rig.last_config()["maxOpenFiles"].clone(), rig.starts()),
        (7.into(), 3),
        "one start before, one for 42, one now"
    );
}

/// The supervisor has begun to watch: what is opened from now on is known to be open.
fn wait_watching(rig: &Rig) {
    eventually("an inotify watch", || {
        let descriptors = fs::read_dir(format!("/proc/{}/fdinfo", rig.pid())).ok()?;
        let mut texts = descriptors.filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok());
        texts.any(|text| text.contains("inotify wd:")).then_some(())
    });
}

#[test]
fn a_file_that_is_written_slowly_for_the_first_time() {
    let mut rig = standalone("10m");
    rig.up();
    wait_watching(&rig);
    let mut file = File::create(rig.at("source/kubelet")).unwrap();
    place(&rig, "other", "a key beside it");
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(version(&rig.status(), "assigned"), "", "an empty file is no decision while it is open");
    file.write_all(max_pods(5).as_bytes()).unwrap();
    drop(file);
    wait_running(&rig, 5);
    assert_eq!(rig.starts(), 2);
}

/// As the kubelet's AtomicWriter does it for volumes, and people with `ln -sfn`.
#[test]
fn links_that_are_swapped() {
    let mut rig = standalone("10m");
    let source = rig.at("source");
    let release = |name: &str, pods: u32| {
        let dir = source.join(name);
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("kubelet"), max_pods(pods)).unwrap();
        fs::write(dir.join("ca.crt"), name).unwrap();
    };
    let swap = |target: &str, link: &Path| {
        let beside = link.with_file_name("..data_tmp");
        symlink(target, &beside).unwrap();
        fs::rename(beside, link).unwrap();
    };
    rig.up();
    release("..one", 1);
    swap("..one", &source.join("..data"));
    for key in ["kubelet", "ca.crt"] {
        symlink(format!("..data/{key}"), source.join(key)).unwrap();
    }
    wait_running(&rig, 1);
    release("..two", 2);
    swap("..two", &source.join("..data"));
    wait_running(&rig, 2);
    fs::remove_dir_all(source.join("..one")).unwrap();
    let checkpoint = |name: &str| {
        let version = version(&rig.status(), "active");
        fs::read_to_string(rig.at("dynamic/store/checkpoints/source-dir").join(version).join(name)).unwrap()
    };
    assert_eq!(checkpoint("ca.crt"), "..two", "all keys change together");
    assert_eq!(rig.starts(), 3);
}

/// `current -> releases/7`: the directory itself is a link.
#[test]
fn a_directory_that_is_a_link_or_is_replaced() {
    let mut rig = standalone("10m");
    let at = |name: &str| rig.at(name);
    let release = |number: u32| {
        let dir = at("releases").join(number.to_string());
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("kubelet"), max_pods(number)).unwrap();
    };
    let (current, beside) = (at("current"), at("current.new"));
    let point = |number: u32| {
        symlink(format!("releases/{number}"), &beside).unwrap();
        fs::rename(&beside, &current).unwrap();
    };
    release(7);
    release(8);
    point(7);
    rig.option("--source-dir", at("current").to_str().unwrap());
    rig.up();
    wait_running(&rig, 7);
    point(8);
    wait_running(&rig, 8);
    // An edit behind the link.
    put_into(&rig.at("releases/8"), "kubelet", &max_pods(9));
    wait_running(&rig, 9);
    // A rename of what it leads to, and back again with other content.
    fs::rename(rig.at("releases/8"), rig.at("releases/old")).unwrap();
    rig.wait_log("what runs is kept until it is there");
    let starts = rig.starts();
    fs::create_dir(rig.at("releases/tmp")).unwrap();
    fs::write(rig.at("releases/tmp/kubelet"), max_pods(10)).unwrap();
    assert_eq!(rig.starts(), starts);
    fs::rename(rig.at("releases/tmp"), rig.at("releases/8")).unwrap();
    wait_running(&rig, 10);
}

#[test]
fn a_directory_that_appears_late_and_goes_again() {
    let mut rig = standalone("1s");
    rig.option("--source-dir", rig.at("mnt/usb/kubelet.d").to_str().unwrap());
    rig.up();
    rig.wait_log("what runs is kept until it is there");
    fs::create_dir_all(rig.at("mnt/usb")).unwrap();
    fs::create_dir(rig.at("prepared")).unwrap();
    fs::write(rig.at("prepared/kubelet"), max_pods(42)).unwrap();
    fs::rename(rig.at("prepared"), rig.at("mnt/usb/kubelet.d")).unwrap();
    wait_running(&rig, 42);
    wait_proven(&rig);
    fs::remove_dir_all(rig.at("mnt")).unwrap();
    eventually("it is said again", || {
        (rig.log().matches("what runs is kept until it is there").count() == 2).then_some(())
    });
    // Gone is not emptied.
    rig.stop();
    rig.start();
    rig.wait_starts(3);
    wait_running(&rig, 42);
    fs::create_dir_all(rig.at("mnt/usb/kubelet.d")).unwrap();
    wait_running(&rig, 110);
}

#[test]
fn the_dot_files_are_a_config_maps_annotations() {
    let mut rig = standalone("1s");
    rig.local("maxPods: 110\neventRecordQPS: 7");
    place(&rig, ".merge", "overlay\n");
    place(&rig, ".confirm-within", "10m\n");
    place(&rig, "kubelet", "maxPods: 42\n");
    rig.up();
    wait_running(&rig, 42);
    assert_eq!(rig.last_config()["eventRecordQPS"], 7, "laid over the local file");
    rig.wait_status("waits for confirmation", |status| status["trial"]["confirmWithinSeconds"].as_u64().is_some());
    rig.done(&["confirm"]);
    wait_proven(&rig);
    place(&rig, ".merge", "sideways");
    let status = rig.wait_status("refused", |status| status["error"] == LOAD);
    assert!(status["errorDetail"].as_str().unwrap().contains("file .merge: unknown merge mode"), "{status}");
    assert_eq!(rig.starts(), 2);
}

#[test]
fn what_cannot_be_taken_is_said_and_what_runs_is_kept() {
    let mut rig = standalone("1s");
    place(&rig, "kubelet", &max_pods(42));
    rig.up();
    wait_running(&rig, 42);
    wait_proven(&rig);
    let detail = |what: &str| {
        rig.wait_status(what, |status| status["errorDetail"].as_str().is_some_and(|why| why.contains(what)));
    };
    place(&rig, "bulk", &"x".repeat(1 << 20));
    detail("1048576 are allowed");
    fs::remove_file(rig.at("source/bulk")).unwrap();
    rig.wait_status("well again", |status| status["errorDetail"] == "");
    fs::write(rig.at("source/kubelet"), b"maxPods: \xff").unwrap();
    detail("it is not UTF-8");
    fs::remove_file(rig.at("source/kubelet")).unwrap();
    place(&rig, "other", "x");
    detail("the source directory has no file \"kubelet\" (keys: other)");
    symlink("/nowhere/at/all", rig.at("source/kubelet")).unwrap();
    detail("kubelet: the link leads nowhere");
    assert_eq!(rig.starts(), 2);

    // Names that are none of ours: hidden, too long, a directory, not a key.
    fs::remove_file(rig.at("source/kubelet")).unwrap();
    fs::remove_file(rig.at("source/other")).unwrap();
    fs::create_dir(rig.at("source/subdirectory")).unwrap();
    for name in ["..kubelet", ".kubelet.swp", "a b", "kubelet~", "kubelet.tmp", "k\u{e4}se"] {
        fs::write(rig.at("source").join(name), "nonsense").unwrap();
    }
    rig.wait_log("is no key, and there is no other file; what runs is kept");
    place(&rig, "kubelet", &max_pods(43));
    wait_running(&rig, 43);
    let stored = rig.at("dynamic/store/checkpoints/source-dir").join(version(&rig.status(), "active"));
    let names: Vec<PathBuf> = fs::read_dir(stored).unwrap().map(|entry| entry.unwrap().file_name().into()).collect();
    assert_eq!(names, [PathBuf::from("kubelet")]);
}

#[test]
fn beside_an_api_server_the_directory_alone_assigns() {
    let mut rig = Rig::new();
    with_source(&mut rig);
    place(&rig, "kubelet", &max_pods(42));
    rig.put("a", &max_pods(7));
    rig.assign("a");
    rig.up();
    wait_running(&rig, 42);
    let proven = wait_proven(&rig);
    let active = (String::from("source-dir"), version(&proven, "active"));
    rig.wait_config("the Node shows it", |config| testkit::rig::is(config, "lastKnownGood", &active));
    rig.wait_event("KubeletConfigProven", &active);
    rig.wait_log("which is ignored: --source-dir is in force");
    let asked = rig.server.requests().iter().any(|request| request.path.contains("configmaps"));
    assert!(!asked, "no ConfigMap is read");
    rig.server.unassign(NODE);
    rig.server.assign(NODE, testkit::rig::NAMESPACE, "b", "kubelet");
    place(&rig, "kubelet", &max_pods(43));
    wait_running(&rig, 43);
    assert_eq!(rig.starts(), 3);
}

#[test]
fn options_that_make_no_sense() {
    let mut rig = standalone("1s");
    rig.option("--source-key", "../kubelet");
    let (code, _, stderr) = testkit::rig::exit_and_output(&rig.command().output().unwrap());
    assert_eq!(code, 64, "{stderr}");
    assert!(stderr.contains("--source-key: \"../kubelet\" cannot be a file of --source-dir"), "{stderr}");
}
