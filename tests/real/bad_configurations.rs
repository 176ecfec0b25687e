//! Configurations that must not run.

use serde_json::json;

use crate::assignment::ConfigMap;
use crate::cluster::pause;
use crate::supervisor::Case;
use crate::versions;

pub const LOAD: &str = "failed to load config, see Kubelet log for details";
pub const VALIDATE: &str = "failed to validate config, see Kubelet log for details";

/// What the kubelet refuses in its own words while a last known good configuration runs: no restart, a clear error, nothing lost.
pub fn rejected(case: &Case) {
    let (supervisor, lkg) = case.proven();
    let (before, good) = (supervisor.process(), lkg.source());
    let mut payloads = vec![
        ("wrong-type", "maxPods: many", LOAD, "failed to load Kubelet config file"),
        ("negative", "kubeAPIQPS: -1", VALIDATE, "-1"),
        ("two-negatives", "kubeAPIQPS: -1\nmaxPods: -2", VALIDATE, "-2"),
        ("json-logging", "logging: {format: json}\nkubeAPIQPS: -1", VALIDATE, "-1"),
        ("log-format", "logging: {format: poetry}", VALIDATE, "poetry"),
    ];
    if versions::kubelet() == versions::DEFAULT {
        // OpenShift's later kubelets go on with a warning.
        payloads.push((
            "feature-gate",
            "featureGates: {NoSuchGate: true}",
            VALIDATE,
            "unrecognized feature gate: NoSuchGate",
        ));
    }
    let mut made: Vec<ConfigMap> = Vec::new();
    for (name, lines, error, words) in payloads {
        let map = case.good(&case.id(name), lines);
        case.say(name);
        case.assign(&map);
        case.await_config(&map.source(), &good, &good, error);
        case.await_event("KubeletConfigRejected", &[&map.event_text(), words]);
        supervisor.await_log(&format!("{error}: ")); // it is what sends people there
        supervisor.await_status(&[("/error", json!(error)), ("/active", good.clone())]);
        assert_eq!(supervisor.process(), before, "{name} restarted the kubelet");
        made.push(map);
    }
    supervisor.await_metric("kubelet_node_config_error", "", 1.0);
    assert!(supervisor.metric("kubelet_supervisor_preflight_total", "result=\"validate\"") >= 4.0);

    // One that is known already is refused again, after a good one and in a new version.
    case.assign(&lkg);
    case.await_config(&good, &good, &good, "");
    supervisor.await_metric("kubelet_node_config_error", "", 0.0);
    let bad = &made[0];
    case.assign(bad);
    case.await_config(&bad.source(), &good, &good, LOAD);
    let edited = case.edit_map(bad, &json!({ "metadata": { "labels": { "edited": "yes" } } }));
    case.await_config(&edited.source(), &good, &good, LOAD);
    assert_eq!(supervisor.process(), before);
    assert_eq!(case.kubelets(), [before.0]);
}

/// A client CA that is not there: refused at no cost, or rolled back where the kubelet reads it later than the preflight goes.
pub fn missing_ca(case: &Case) {
    const MISSING: &str = "/nonexistent/ca.crt";
    let (supervisor, lkg) = case.proven();
    let (before, good) = (supervisor.process(), lkg.source());
    let text = case.payload("").replace(case.var("CA_CERT"), MISSING);
    let map = case.map(&case.id("map"), &json!({ "data": { "kubelet": text } }));
    case.assign(&map);
    if versions::reads_client_ca_first() {
        case.await_config(&map.source(), &good, &good, VALIDATE);
        case.await_event("KubeletConfigRejected", &[&map.event_text(), MISSING]);
        assert_eq!(supervisor.process(), before, "refused at no cost");
        return;
    }
    case.await_config(&map.source(), &good, &good, LOAD);
    case.await_event("KubeletConfigRolledBack", &[&map.event_text(), MISSING]);
    supervisor.await_status(&[("/active", good), ("/kubelet/ready", json!(true))]);
    case.await_configz("maxPods", &json!(41));
}

/// A configuration that is valid, and kills the kubelet.
pub fn killing(case: &Case) {
    let (supervisor, lkg) = case.proven();
    let (good, starts) = (lkg.source(), supervisor.restarts());
    let deadly = "enforceNodeAllocatable: [pods, system-reserved]\nsystemReservedCgroup: /nope";
    let map = case.good(&case.id("map"), deadly);
    // Such a field is refused on a live node, at no cost, unless somebody says that it is taken care of.
    case.assign(&map);
    case.await_config(&map.source(), &good, &good, VALIDATE);
    case.await_event("KubeletConfigRejected", &["systemReservedCgroup", "kubelet-supervisor.io/acknowledge"]);
    assert_eq!(supervisor.restarts(), starts);
    let accepted =
        json!({ "metadata": { "annotations": { "kubelet-supervisor.io/acknowledge": "systemReservedCgroup" } } });
    let map = case.edit_map(&map, &accepted);
    case.await_config(&map.source(), &good, &good, LOAD);
    supervisor.await_ready();
    let after = supervisor.process();
    // At the most two starts with it, and one with what was good.
    assert!((2..=3).contains(&(after.1 - starts)), "{} starts", after.1 - starts);
    case.await_event("KubeletConfigRolledBack", &[&map.event_text(), &lkg.event_text()]);
    supervisor.await_status(&[("/active", good.clone()), ("/error", json!(LOAD)), ("/trial/state", json!("failed"))]);
    supervisor.await_metric("kubelet_supervisor_rollbacks_total", "", 1.0);
    supervisor.await_metric("kubelet_supervisor_kubelet_restarts_total", "cause=\"rollback\"", 1.0);
    case.await_configz("maxPods", &json!(41));

    // It is not tried again: not by itself, not for a label, not by a supervisor that starts.
    supervisor.assert_steady(3);
    let edited = case.edit_map(&map, &json!({ "metadata": { "labels": { "edited": "yes" } } }));
    case.await_config(&edited.source(), &good, &good, LOAD);
    pause(1000);
    assert_eq!(supervisor.process(), after);
    assert!(supervisor.stop().success());
    let supervisor = case.supervisor();
    case.await_config(&edited.source(), &good, &good, LOAD);
    supervisor.await_status(&[("/kubelet/restarts", json!(0)), ("/active", good.clone())]);

    // Repaired in place.
    let fixed = case.edit_map(&map, &json!({ "data": { "kubelet": case.payload("maxPods: 46") } }));
    case.await_proven(&fixed);
    case.await_configz("maxPods", &json!(46));
    supervisor.await_status(&[("/kubelet/restarts", json!(1))]);
}
