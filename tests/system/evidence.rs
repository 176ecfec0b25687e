//! What a trial judges by, through the real adapters: contact with the API server, the container runtime, the
//! kubelet's own words.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

use testkit::kubelet::Style;
use testkit::rig::{LOAD, NODE, Rig, SOON, VALIDATE, configuration, eventually_within, is, killer};

/// A kubelet that reports to the API server, with a proven configuration; a node that is cut off for 3 s is put back.
fn in_contact() -> (Rig, (String, String)) {
    let mut rig = Rig::new();
    rig.kubelet.set("STAND_IN_REPORTS=1");
    rig.option("--isolation-timeout", "3s");
    rig.up();
    let is_ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
    let ready = |node: &Value| node["status"]["conditions"].as_array().is_some_and(|all| all.iter().any(is_ready));
    rig.server.wait_node(NODE, SOON, ready).unwrap_or_else(|error| panic!("{error}"));
    let good = rig.prove("a", &configuration("maxPods: 42"));
    (rig, good)
}

fn rollbacks(rig: &Rig, reason: &str) -> Option<f64> {
    rig.metric(&format!("kubelet_supervisor_rollbacks_total{{reason=\"{reason}\"}}"))
}

#[test]
fn a_configuration_that_cuts_the_kubelet_off_is_rolled_back() {
    let (rig, good) = in_contact();
    let bad = rig.put("a", &configuration("maxPods: 43\nstandIn: {contact: none}"));
    rig.wait_status("it is missed, and it alone", |status| {
        let signals = &status["trial"]["signals"];
        signals["node-ready"] == "bad" && signals["healthz"] == "good" && signals["api-server"] == "good"
    });
    let message = rig.wait_event("KubeletConfigRolledBack", &bad);
    assert!(message.contains("the Node has not been Ready for 3 s since the change"), "{message}");
    assert!(message.contains("no new heartbeat") && !message.contains("posting ready status"), "{message}");
    rig.wait_error(&bad, LOAD);
    assert!(is(&rig.wait_active(&good), "lastKnownGood", &good));
    assert_eq!(rollbacks(&rig, "node-ready"), Some(1.0));
    let status = rig.status();
    assert!(status["errorDetail"].as_str().unwrap().contains("has not been Ready"), "{status}");
    assert_eq!(status["badVersions"][0]["reason"], "node-ready");
}

#[test]
fn a_node_that_is_not_ready_is_rolled_back_with_its_message() {
    let (rig, good) = in_contact();
    let bad = rig.put("a", &configuration("maxPods: 43\nstandIn: {contact: notReady}"));
    let message = rig.wait_event("KubeletConfigRolledBack", &bad);
    assert!(message.contains("KubeletNotReady: PLEG is not healthy"), "{message}");
    rig.wait_active(&good);
    // The Lease was renewed all the while.
    assert_eq!((rollbacks(&rig, "node-ready"), rollbacks(&rig, "lease")), (Some(1.0), Some(0.0)));
}

#[test]
fn a_change_after_which_the_api_server_is_out_of_reach_is_rolled_back_without_it() {
    let (mut rig, good) = in_contact();
    let before = rig.starts();
    let bad = rig.put("a", &configuration("maxPods: 43\nstandIn: {startDelay: 500ms}"));
    rig.wait_starts(before + 1);
    rig.server.stop();
    rig.wait_log("KubeletConfigRolledBack");
    rig.server.restart();
    let message = rig.wait_event("KubeletConfigRolledBack", &bad);
    assert!(message.contains("the API server could not be reached from this node for 3 s"), "{message}");
    rig.wait_active(&good);
    assert_eq!(rollbacks(&rig, "api-server"), Some(1.0));
    assert_eq!(rig.status()["badVersions"][0]["source"]["resourceVersion"], bad.1);
}

#[test]
fn what_was_not_there_before_is_not_asked_for() {
    let mut rig = Rig::long_trial();
    rig.option("--isolation-timeout", "1s");
    rig.up();
    let version = rig.apply("a", &configuration("maxPods: 42"));
    let seen = rig.wait_status("healthy", |status| status["trial"]["since"].is_string());
    let expected = json!({"healthz": "good", "api-server": "good", "pods": "good"});
    assert_eq!(seen["trial"]["signals"], expected, "neither Lease nor Ready");
    let text = rig.status_text(&[]).1;
    assert!(text.contains("api-server good, healthz good, pods good"), "{text}");
    // Longer than a node may be cut off.
    rig.wait_status("it earns", |status| status["trial"]["remainingSeconds"].as_u64() < Some(598));
    assert!(is(&rig.status(), "active", &version));
}

/// A container runtime, as far as we ask it: it answers HTTP/2's opening.
struct Runtime {
    path: PathBuf,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Runtime {
    fn start(path: PathBuf) -> Runtime {
        let listener = UnixListener::bind(&path).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&over);
        #[allow(clippy::disallowed_methods, reason = "a test's process has no kubelet")]
        let thread = std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                if flag.load(Ordering::SeqCst) {
                    return;
                }
                let mut opening = [0; 33];
                if stream.read_exact(&mut opening).is_ok() && opening.starts_with(b"PRI * HTTP/2.0") {
                    let _ = stream.write_all(b"\0\0\0\x04\0\0\0\0\0");
                }
            }
        });
        Runtime { path, over, thread: Some(thread) }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let _ = UnixStream::connect(&self.path);
        let _ = self.thread.take().map(JoinHandle::join);
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A kubelet in contact, its runtime, and a configuration on trial, which is judged by the runtime too.
fn with_runtime(trial: &str) -> (Rig, Runtime, (String, String)) {
    let mut rig = Rig::with(Style::V1_20, trial);
    rig.kubelet.set("STAND_IN_REPORTS=1");
    rig.option("--isolation-timeout", "3s");
    let socket = rig.at("runtime.sock");
    rig.args.push("--container-runtime=remote".to_owned());
    rig.args.push(format!("--container-runtime-endpoint=unix://{}", socket.display()));
    let runtime = Runtime::start(socket);
    rig.up();
    let version = rig.apply("a", &configuration("maxPods: 42"));
    rig.wait_status("it is judged by the runtime", |status| status["trial"]["signals"]["runtime"] == "good");
    (rig, runtime, version)
}

/// Nobody but last known good can tell whether the change took the runtime with it.
#[test]
fn a_runtime_that_goes_away_with_a_change_is_asked_of_last_known_good() {
    let (rig, runtime, version) = with_runtime("20s");
    let socket = runtime.path.clone();
    drop(runtime);
    let message = rig.wait_event("KubeletConfigRolledBack", &version);
    assert!(message.contains("the container runtime has not answered"), "{message}");
    rig.wait_condition("False", "NotToBlame");
    rig.wait_status("last known good fails alike", |status| status["badVersions"] == json!([]));
    let _runtime = Runtime::start(socket);
    let proven = || Some(rig.status()).filter(|status| is(status, "lastKnownGood", &version));
    eventually_within(6 * SOON, "it is tried again, and proven", proven);
    assert_eq!(rig.status()["badVersions"], json!([]));
    assert_eq!(rollbacks(&rig, "runtime"), Some(1.0));
}

/// It waits for as long as a loss may be the change's own doing.
#[test]
fn a_runtime_that_goes_away_later_suspends_the_trial() {
    let (rig, runtime, version) = with_runtime("10m");
    let settled = |status: &Value| status["trial"]["remainingSeconds"].as_u64().is_some_and(|left| left < 550);
    eventually_within(4 * SOON, "45 s in contact", || settled(&rig.status()).then_some(()));
    let socket = runtime.path.clone();
    drop(runtime);
    for exits in 1..=3 {
        let ready = rig.readies();
        let pid = i32::try_from(rig.last_pid()).unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
        rig.wait_ready(ready + 1);
        rig.wait_status("suspended", |status| {
            status["trial"]["suspended"] == "the container runtime does not answer"
                && status["trial"]["state"] == "running"
        });
        assert!(is(&rig.status(), "active", &version), "after {exits} exits");
    }
    let text = rig.status_text(&[]).1;
    assert!(text.contains("judgement is suspended: the container runtime does not answer"), "{text}");
    let told = |entry: &&Value| entry["reason"] == "KubeletConfigTrialSuspended";
    assert!(rig.history().iter().any(|entry| told(&entry)), "in the history");
    let _runtime = Runtime::start(socket);
    rig.wait_status("judged again", |status| status["trial"]["suspended"].is_null());
    assert!(is(&rig.status(), "active", &version));
    assert!(!rig.reasons().contains(&"KubeletConfigRolledBack".to_owned()));
    assert!(!rig.reasons().contains(&"KubeletConfigTrialSuspended".to_owned()), "no news for the cluster");
    assert_eq!(rig.status()["badVersions"], json!([]));
}

/// Everything that we say anywhere, the kubelet's own output excepted.
fn all_that_is_said(rig: &Rig) -> String {
    let log = rig.log();
    let ours: Vec<&str> = log.lines().filter(|line| line.starts_with("kubelet-supervisor")).collect();
    assert!(!ours.is_empty());
    let file = |name: &str| std::fs::read_to_string(rig.at("dynamic/supervisor").join(name)).unwrap();
    let said = [
        ours.join("\n"),
        json!(rig.server.events()).to_string(),
        rig.server.node(NODE).to_string(),
        rig.status_text(&[]).1,
        rig.status().to_string(),
        rig.done(&["history", "-v"]),
        rig.done(&["history", "-o", "json"]),
        rig.get("/metrics").1,
        file("state.json"),
        file("history.jsonl"),
    ];
    said.join("\n")
}

const SECRETS: &str = "staticPodURL: http://user:opensesame@127.0.0.1:1/pods\n\
    staticPodURLHeader: {Authorization: [Bearer hunter2hunter2], X-Key: [swordfish]}\nnoSuchField: 1\n";

#[test]
fn why_it_died_is_reported_everywhere_and_no_secret_anywhere() {
    for style in [Style::V1_20, Style::V1_36] {
        let mut rig = Rig::with(style, "1s");
        rig.up();
        let good = rig.prove("a", &configuration("maxPods: 42"));
        let bad = rig.put("a", &format!("{}{SECRETS}", killer()));
        let message = rig.wait_event("KubeletConfigRolledBack", &bad);
        rig.wait_error(&bad, LOAD);
        rig.wait_active(&good);

        let fatal = "cgroup does not exist";
        let status = rig.status();
        let history = rig.done(&["history", "-v"]);
        let in_short = rig.done(&["history"]);
        let told = in_short.lines().find(|line| line.contains("RolledBack")).unwrap().to_owned();
        let detail = status["errorDetail"].as_str().unwrap().to_owned();
        let memory = status["badVersions"][0]["detail"].as_str().unwrap().to_owned();
        for place in [message, rig.status_text(&[]).1, detail, told, memory] {
            assert!(place.contains("Failed to start ContainerManager") && place.contains(fatal), "{style:?}: {place}");
        }
        assert!(history.lines().any(|line| line.starts_with("    ") && line.contains(fatal)), "{history}");
        let words = rig.status()["badVersions"][0]["words"].clone();
        let told = |line: &Value| line.as_str().unwrap().contains(fatal);
        assert!(words.as_array().unwrap().iter().any(told), "not only where it was: {words}");

        // Refused before it runs, too.
        let refused = rig.put("a", &configuration(&format!("maxPods: -1\n{SECRETS}")));
        rig.wait_event("KubeletConfigRejected", &refused);
        rig.wait_error(&refused, VALIDATE);
        let said = all_that_is_said(&rig);
        for secret in ["hunter2", "swordfish", "opensesame"] {
            let line = said.lines().find(|line| line.contains(secret));
            assert_eq!(line, None, "{style:?}: {secret}");
        }
        if style == Style::V1_20 {
            assert!(rig.log().contains("hunter2"), "the kubelet itself does say it, else this shows nothing");
        }
    }
}

/// Whatever is started dies, until it no longer does.
#[test]
fn a_broken_node_is_not_held_against_the_configuration() {
    let mut rig = Rig::new();
    rig.up();
    let good = rig.prove("a", &configuration("maxPods: 42"));
    rig.kubelet.set("STAND_IN_BROKEN=1");
    let version = rig.put("a", &configuration("maxPods: 43"));
    let rolled_back = rig.wait_event("KubeletConfigRolledBack", &version);
    assert!(rolled_back.contains("before it was ready"), "{rolled_back}");
    let message = rig.wait_event("KubeletConfigNotBlamed", &version);
    assert!(message.contains("the node is broken, whatever the configuration"), "{message}");
    rig.wait_status("pardoned", |status| {
        is(status, "active", &good) && status["errorDetail"].as_str().unwrap().starts_with("not to blame")
    });
    // Mended. Last known good is healthy for half a minute, and then it is the version's turn.
    rig.kubelet.set_style(Style::V1_20);
    eventually_within(Duration::from_secs(120), "proven", || {
        let status = rig.status();
        (is(&status, "lastKnownGood", &version) && status["error"] == "").then_some(())
    });
}
