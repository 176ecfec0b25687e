//! What is promised of what is said: the log has more on each error of the status, events have their type, and the metrics
//! are what Prometheus reads.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::json;

use crate::kill_kubelet;
use testkit::kubelet::Style;
use testkit::rig::{DOWNLOAD, LOAD, NODE, Rig, SOON, VALIDATE, configuration, eventually, id, killer};

const ALL_NIL: &str =
    "failed to sync: invalid NodeConfigSource, exactly one subfield must be non-nil, but all were nil";
const SYNC_INTERNAL: &str = "failed to sync: internal failure, see Kubelet log for details";
const INTERNAL: &str = "internal failure, see Kubelet log for details";

/// Kubernetes' own page (Reconfigure a Node's Kubelet in a Live Cluster, v1.11 to v1.23): "You can search for the identical text in
/// the Kubelet log for additional details and context about the error." What is in the log is written before the Node's status.
fn is_logged(rig: &Rig, error: &str, details: &str) {
    let begin = format!("kubelet-supervisor: {error}: ");
    let log = rig.log();
    let found = log.lines().any(|line| line.strip_prefix(&begin).is_some_and(|rest| rest.contains(details)));
    assert!(found, "{begin}…{details}…");
}

#[test]
fn errors_of_a_configuration_are_in_the_log_with_details() {
    let rig = Rig::new().running();
    for (name, text, error, details) in [
        ("cut", "kind: [".to_owned(), LOAD, "is never closed"),
        ("invalid", configuration("kubeAPIQPS: -1"), VALIDATE, "KubeAPIQPS"),
        ("killer", killer(), LOAD, "Failed to start ContainerManager"),
    ] {
        let version = rig.offer(name, &text);
        rig.wait_error(&version, error);
        is_logged(&rig, error, details);
    }
}

#[test]
fn errors_of_synchronisation_are_in_the_log_with_details() {
    let mut rig = Rig::new();
    // Where the store should be there is a file.
    std::fs::write(rig.at("dynamic"), "").unwrap();
    rig.up();
    rig.offer("a", &configuration("maxPods: 42"));
    rig.wait_config(SYNC_INTERNAL, |config| config["error"] == SYNC_INTERNAL);
    is_logged(&rig, SYNC_INTERNAL, &rig.at("dynamic").display().to_string());
    std::fs::remove_file(rig.at("dynamic")).unwrap();
    rig.wait_config("it is there", |config| config["active"].is_object() && config["error"].is_null());
    rig.assign("absent");
    rig.wait_config(DOWNLOAD, |config| config["error"] == DOWNLOAD);
    is_logged(&rig, DOWNLOAD, "kube-system/absent[kubelet] does not exist");
    rig.server.patch_node(NODE, json!({"spec": {"configSource": null}}));
    rig.server.patch_node(NODE, json!({"spec": {"configSource": {}}}));
    rig.wait_config(ALL_NIL, |config| config["error"] == ALL_NIL);
    is_logged(&rig, ALL_NIL, "configSource");
}

#[test]
fn an_internal_failure_is_in_the_log_with_details() {
    let mut rig = Rig::new().running();
    let version = rig.prove("a", &configuration("maxPods: 42"));
    rig.stop();
    // Neither what was proven nor what it was made of can be read.
    let configs = std::fs::read_dir(rig.at("dynamic/supervisor/configs")).unwrap();
    let mut spoiled: Vec<_> = configs.map(|dir| dir.unwrap().path().join("config.json")).collect();
    let metadata = spoiled[0].display().to_string();
    assert_eq!(spoiled.len(), 1);
    spoiled.push(rig.at("dynamic/store/checkpoints").join(&version.0).join(&version.1).join("kubelet"));
    for file in spoiled {
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
    }
    rig.server.stop();
    rig.up();
    rig.wait_status(INTERNAL, |status| status["error"] == INTERNAL);
    assert_eq!(rig.last_config()["maxPods"], 110);
    // The verb shows what is now; the log, as the Node, waits until nothing is under way.
    rig.wait_log(&format!("kubelet-supervisor: {INTERNAL}: "));
    is_logged(&rig, INTERNAL, &metadata);
}

/// Events whose type is asserted where they are caused: `system::drift`, `system::hung`, `system::local_files`, `real::pods`.
const ELSEWHERE: [&str; 5] =
    ["KubeletConfigDrift", "KubeletConfigLocalFiles", "KubeletConfigWaiting", "KubeletHung", "WorkerReplaced"];

/// Reason and type of each other event that the reference has for the API server.
fn documented() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/usage/reference.md")).unwrap();
    let table = text.lines().skip_while(|line| *line != "| reason | type | when |").skip(2);
    let mut events = Vec::new();
    for row in table.take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        if !cells[2].contains("in the history alone") {
            let reasons = cells[0].split('`').skip(1).step_by(2).filter(|reason| !ELSEWHERE.contains(reason));
            events.extend(reasons.map(|reason| (reason.to_owned(), cells[1].to_owned())));
        }
    }
    assert!(events.len() > 10, "{events:?}");
    events
}

/// One life in which everything happens. The API server shows `type` to whoever filters by it, and keeps warnings in view.
#[test]
fn each_event_has_its_type_at_the_api_server() {
    let mut rig = Rig::with(Style::V1_20, "4s"); // under load one that dies after READY has lived for three
    let policy = rig.at("policy.yaml");
    rig.option("--policy", &policy.display().to_string());
    rig.up();
    rig.prove("a", &configuration("maxPods: 42"));
    let other = rig.offer("b", &configuration("maxPods: 42"));
    rig.wait_event("KubeletConfigAdopted", &other);
    let invalid = rig.offer("c", &configuration("kubeAPIQPS: -1"));
    rig.wait_event("KubeletConfigRejected", &invalid);
    let awaits = rig.offer_with("d", &configuration("maxPods: 43"), ("confirm-within", "1h"));
    rig.wait_event("KubeletConfigAwaitsConfirmation", &awaits);
    rig.done(&["confirm"]);
    rig.wait_event("KubeletConfigProven", &awaits);
    for verb in ["freeze", "thaw", "pin", "unpin"] {
        rig.done(&[verb]);
    }
    let forbids = "apiVersion: kubelet-supervisor.io/v1alpha1\nkind: NodePolicy\npinnedFields: {maxPods: 110}\n";
    std::fs::write(&policy, forbids).unwrap();
    rig.wait_event("KubeletConfigForbidden", &awaits);
    std::fs::remove_file(&policy).unwrap();
    let mut bad = rig.offer("e", &killer());
    rig.wait_event("KubeletConfigRolledBack", &bad);
    rig.annotate_node("retry", &id(&bad));
    rig.wait_event("KubeletConfigRetried", &bad);
    let rolled_back = |reason: &&String| *reason == "KubeletConfigRolledBack";
    eventually("it failed again", || (rig.reasons().iter().filter(rolled_back).count() == 2).then_some(()));
    rig.wait_active(&awaits);
    rig.wait_last_ready();
    // The node itself is broken: last known good fails as well.
    rig.kubelet.set("STAND_IN_BROKEN=1");
    bad = rig.put("e", &configuration("maxPods: 44"));
    rig.wait_event("KubeletConfigNotBlamed", &bad);
    rig.kubelet.set_style(Style::V1_20);

    for (reason, kind) in documented() {
        let event = rig.server.wait_event(SOON, |event| event["reason"] == reason.as_str());
        event.unwrap_or_else(|error| panic!("{reason}: {error}"));
        for event in rig.server.events().iter().filter(|event| event["reason"] == reason.as_str()) {
            assert_eq!(event["type"], kind.as_str(), "{event:#}");
        }
    }
    let known = documented();
    let unknown = rig.reasons().into_iter().find(|reason| known.iter().all(|(it, _)| it != reason));
    assert_eq!(unknown, None, "not in docs/usage/reference.md");
}

/// Content type and body for a scraper that sends this.
fn scrape(rig: &Rig, accept: &str) -> (String, String) {
    let mut stream = TcpStream::connect(rig.metrics.address()).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n{accept}Connection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let kind = head.lines().find_map(|line| line.strip_prefix("content-type: ")).unwrap();
    (kind.to_owned(), body.to_owned())
}

#[test]
fn metrics_come_in_the_format_that_is_asked_for() {
    let rig = Rig::new().running();
    let (kind, body) = scrape(&rig, "");
    assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8");
    assert!(body.contains("# TYPE kubelet_supervisor_kubelet_restarts_total counter\n"), "{body}");
    let (kind, body) =
        scrape(&rig, "Accept: text/plain;q=0.5\r\nAccept: application/openmetrics-text;version=1.0.0\r\n");
    assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(
        body.contains("# TYPE kubelet_supervisor_kubelet_restarts counter\n") && body.ends_with("# EOF\n"),
        "{body}"
    );
}

const UNHEALTHY: &str = "kubelet_supervisor_kubelet_unhealthy_seconds_total";

#[test]
fn seconds_without_a_healthy_kubelet() {
    let mut rig = Rig::new();
    // Nothing happens between two scrapes but that time passes.
    rig.local("standIn: {neverReady: true}");
    rig.start();
    rig.wait_starts(1);
    let first =
        eventually("it is scraped", || TcpStream::connect(rig.metrics.address()).ok().map(|_| rig.metric(UNHEALTHY)));
    eventually("time adds up", || (rig.metric(UNHEALTHY) > first).then_some(()));
    rig.stop();

    rig.local("maxPods: 110");
    rig.up();
    rig.wait_status("it is ready", |status| status["kubelet"]["ready"] == true);
    let healthy = rig.metric(UNHEALTHY);
    assert!(healthy > Some(0.0), "until it was ready: {healthy:?}");
    rig.prove("a", &configuration("maxPods: 42"));
    let changed = rig.metric(UNHEALTHY);
    assert!(changed > healthy, "a change costs a restart: {changed:?}");
    assert_eq!(rig.metric(UNHEALTHY), changed, "it is healthy");
    kill_kubelet(&rig);
    rig.wait_starts(4);
    rig.wait_last_ready();
    rig.wait_status("it is ready again", |status| status["kubelet"]["ready"] == true);
    // The pause before the restart alone is a second.
    assert!(rig.metric(UNHEALTHY) >= changed.map(|before| before + 0.9), "{changed:?}");
}

#[test]
fn trials_refusals_adoptions_and_the_store_are_counted() {
    let rig = Rig::new().running();
    let count = |rig: &Rig, rest: &str| rig.metric(&format!("kubelet_supervisor_{rest}"));
    for zero in [
        "trial_duration_seconds_count{result=\"no-verdict\"}",
        "hazards_refused_total{class=\"pods\"}",
        "suspensions_total{reason=\"shutting-down\"}",
        "adoptions_total",
    ] {
        assert_eq!(count(&rig, zero), Some(0.0), "{zero}");
    }
    rig.prove("a", &configuration("maxPods: 42"));
    // Seconds, of which the trial takes one at least; no test takes an hour.
    let took = count(&rig, "trial_duration_seconds_sum{result=\"proven\"}").unwrap();
    assert!((1.0..3600.0).contains(&took), "{took}");
    assert_eq!(count(&rig, "trial_duration_seconds_count{result=\"proven\"}"), Some(1.0));
    for operation in ["read", "load", "write"] {
        let requests = count(&rig, &format!("store_request_duration_seconds_count{{operation=\"{operation}\"}}"));
        assert!(requests >= Some(1.0), "{operation}: {requests:?}");
        let took = count(&rig, &format!("store_request_duration_seconds_sum{{operation=\"{operation}\"}}")).unwrap();
        assert!(took > 0.0 && took < 3600.0, "{operation}: {took}");
    }
    let other = rig.offer("b", &configuration("maxPods: 42"));
    rig.wait_event("KubeletConfigAdopted", &other);
    assert_eq!(count(&rig, "adoptions_total"), Some(1.0));
    let refused = rig.offer("c", &configuration("cgroupDriver: systemd"));
    rig.wait_error(&refused, VALIDATE);
    assert_eq!(count(&rig, "hazards_refused_total{class=\"reboot\"}"), Some(1.0));
    let bad = rig.offer("d", &killer());
    rig.wait_error(&bad, LOAD);
    assert_eq!(count(&rig, "trial_duration_seconds_count{result=\"rolled-back\"}"), Some(1.0));
}
