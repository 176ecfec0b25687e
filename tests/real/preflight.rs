//! Preflight on request: the real kubelet's word, while it goes on.

use kubelet_config::preflight::{PreflightRequest, PreflightResult, PreflightStatus, REQUEST_ANNOTATION};
use serde_json::{Value, json};

use crate::assignment::ConfigMap;
use crate::cluster::until;
use crate::supervisor::Case;
use crate::versions;

/// Asks for this version, and awaits the answer.
pub fn asked(case: &Case, map: &ConfigMap) -> PreflightStatus {
    let source = serde_json::from_value(map.source()["configMap"].clone()).unwrap();
    let request = PreflightRequest::of(&source).to_string();
    annotate(case, &json!(request));
    until(&format!("an answer to {request}"), || {
        let node = case.api("GET", &case.node_path(), None)?;
        let status = PreflightStatus::from_node(&node).filter(|status| status.answers(&request));
        status.ok_or_else(|| node["metadata"]["annotations"].to_string())
    })
}

fn annotate(case: &Case, request: &Value) {
    case.ask(
        "PATCH",
        &case.node_path(),
        Some(&json!({ "metadata": { "annotations": { REQUEST_ANNOTATION: request } } })),
    );
}

pub fn on_request(case: &Case) {
    let (supervisor, lkg) = case.proven();
    let (before, good) = (supervisor.process(), lkg.source());
    let valid = asked(case, &case.good(&case.id("valid"), "maxPods: 42"));
    assert_eq!(valid.result, PreflightResult::Valid, "{valid:?}");
    assert_eq!(valid.kubelet_version, versions::kubelet());
    let invalid = asked(case, &case.good(&case.id("invalid"), "kubeAPIQPS: -1"));
    assert_eq!(invalid.result, PreflightResult::Invalid, "{invalid:?}");
    assert!(invalid.message.contains("-1"), "{}", invalid.message);
    let deadly = "enforceNodeAllocatable: [pods, system-reserved]\nsystemReservedCgroup: /nope";
    let hazard = asked(case, &case.good(&case.id("hazard"), deadly));
    assert_eq!((hazard.result, hazard.hazards), (PreflightResult::Hazard, vec!["reboot".to_owned()]));
    annotate(case, &Value::Null);
    until("the answer goes with the request", || {
        let node = case.api("GET", &case.node_path(), None)?;
        PreflightStatus::from_node(&node).map_or(Ok(()), |status| Err(format!("{status:?}")))
    });
    case.await_config(&good, &good, &good, "");
    assert_eq!(supervisor.process(), before, "a preflight restarted the kubelet");
}
