//! What a trial judges by, through the real adapters: contact with the API server, the container runtime, the
//! kubelet's own words.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::hung::runtime;
use testkit::kubelet::Style;
use testkit::rig::{LOAD, NODE, Rig, SOON, VALIDATE, configuration, eventually_within, is, killer};

fn rollbacks(rig: &Rig, reason: &str) -> Option<f64> {
    rig.metric(&format!("kubelet_supervisor_rollbacks_total{{reason=\"{reason}\"}}"))
}

#[test]
fn a_configuration_that_cuts_the_kubelet_off_is_rolled_back() {
    let mut rig = Rig::new();
    rig.kubelet.set("STAND_IN_REPORTS=1");
    rig.option("--isolation-timeout", "3s");
    rig.up();
    let is_ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
    let ready = |node: &Value| node["status"]["conditions"].as_array().is_some_and(|all| all.iter().any(is_ready));
    rig.server.wait_node(NODE, SOON, ready).unwrap_or_else(|error| panic!("{error}"));
    let good = rig.prove("a", &configuration("maxPods: 42"));
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

/// Nobody but last known good can tell whether the change took the runtime with it.
#[test]
fn a_runtime_that_goes_away_with_a_change_is_asked_of_last_known_good() {
    let mut rig = Rig::with(Style::V1_20, "20s");
    rig.kubelet.set("STAND_IN_REPORTS=1");
    rig.option("--isolation-timeout", "3s");
    let answers = runtime(&mut rig);
    rig.up();
    let version = rig.apply("a", &configuration("maxPods: 42"));
    rig.wait_status("it is judged by the runtime", |status| status["trial"]["signals"]["runtime"] == "good");
    answers.store(false, Ordering::SeqCst);
    rig.wait_told("KubeletConfigRolledBack", &version, "the container runtime has not answered");
    rig.wait_condition("False", "NotToBlame");
    rig.wait_status("last known good fails alike", |status| status["badVersions"] == json!([]));
    answers.store(true, Ordering::SeqCst);
    let proven = || Some(rig.status()).filter(|status| is(status, "lastKnownGood", &version));
    eventually_within(6 * SOON, "it is tried again, and proven", proven);
    assert_eq!(rig.status()["badVersions"], json!([]));
    assert_eq!(rollbacks(&rig, "runtime"), Some(1.0));
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
        rig.verb(&["status"]).1,
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
        let rig = Rig::with(style, "1s").running();
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
        for place in [message, rig.verb(&["status"]).1, detail, told, memory] {
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
