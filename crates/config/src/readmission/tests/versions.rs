//! What differs by the kubelet's version, gates and managers.

use serde_json::{Value, json};

use super::{kubelet, node, pod, told_by};
use crate::pods::{NodeSummary, PodSummary};
use crate::readmission::Kubelet;

/// What becomes of one pod, in short.
fn of(pod: PodSummary, config: &Value, minor: Option<u64>, node: NodeSummary) -> String {
    let told = told_by(&Kubelet { minor, ..kubelet(config) }, vec![pod], node).pop();
    let told = told.unwrap_or_default();
    told.strip_prefix("d/p1 (").and_then(|told| told.strip_suffix(')')).unwrap_or_default().to_owned()
}

fn plain() -> NodeSummary {
    node(&json!({}), &json!({}), &json!({}))
}

#[test]
fn pods_for_another_operating_system() {
    let labelled = |os: &str| PodSummary { os_label: os.to_owned(), ..pod(1, &json!({})) };
    let [windows, linux] = ["windows", "linux"].map(|os| pod(1, &json!({"os": {"name": os}})));
    for (pod, minor, outcome) in [
        (labelled("windows"), Some(22), ""),
        (labelled("windows"), Some(23), "PodOSSelectorNodeLabelDoesNotMatch"),
        (labelled("windows"), None, "perhaps PodOSSelectorNodeLabelDoesNotMatch"),
        (labelled("linux"), Some(36), ""),
        (windows.clone(), Some(23), ""),
        (windows.clone(), Some(24), "PodOSNotSupported"),
        (windows, None, "perhaps PodOSNotSupported"),
        (linux, Some(36), ""),
    ] {
        assert_eq!(of(pod.clone(), &json!({}), minor, plain()), outcome, "{pod:?} {minor:?}");
    }
}

#[test]
fn what_is_switched_off() {
    const RESOURCES: &str = "PodLevelResourcesNotSupported";
    const FEATURE: &str = "PodFeatureUnsupported";
    const GROUPS: &str = "SupplementalGroupsPolicyNotSupported";
    let perhaps = |reason: &str| format!("perhaps {reason}");
    let whole = json!({"resources": {"limits": {"cpu": "1"}}});
    let rules = json!({"containers": [{"restartPolicyRules": [{"action": "RestartAllContainers"}]}]});
    let apart = json!({"hostNetwork": true, "hostUsers": false});
    let strict = json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}});
    let gates = |gates: Value| json!({"featureGates": gates});
    let off = |name: &str| gates(json!({ name: false }));
    for (spec, config, minor, outcome) in [
        (&whole, json!({}), Some(31), String::new()), // nobody looks
        (&whole, json!({}), Some(32), RESOURCES.to_owned()),
        (&whole, gates(json!({"AllAlpha": true})), Some(33), String::new()),
        (&whole, json!({}), Some(34), String::new()),
        (&whole, off("PodLevelResources"), Some(36), RESOURCES.to_owned()),
        (&whole, off("AllBeta"), Some(36), RESOURCES.to_owned()),
        (&whole, gates(json!({"AllBeta": false, "PodLevelResources": true})), Some(36), String::new()),
        (&whole, json!({}), None, perhaps(RESOURCES)),
        (&whole, json!({}), Some(99), perhaps(RESOURCES)),
        (&rules, json!({}), Some(34), String::new()),
        (&rules, json!({}), Some(35), String::new()), // neither gate is on
        (&rules, json!({}), Some(36), String::new()),
        (&rules, off("RestartAllContainersOnContainerExits"), Some(36), FEATURE.to_owned()),
        (&rules, off("RestartAllContainersOnContainerExits"), Some(99), perhaps(FEATURE)),
        (&rules, off("AllBeta"), Some(36), String::new()), // who would ask is off, too
        (&apart, json!({}), Some(35), String::new()),
        (&apart, json!({}), Some(36), FEATURE.to_owned()),
        (&apart, gates(json!({"UserNamespacesHostNetworkSupport": true})), Some(36), String::new()),
        (&apart, json!({}), None, perhaps(FEATURE)),
        (&strict, json!({}), Some(32), String::new()),
        (&strict, json!({}), Some(33), perhaps(GROUPS)), // the Node does not say that it can
        (&strict, off("SupplementalGroupsPolicy"), Some(34), perhaps(GROUPS)),
        (&json!({"hostNetwork": true, "resources": {}}), json!({}), Some(36), String::new()),
    ] {
        assert_eq!(of(pod(1, spec), &config, minor, plain()), outcome, "{spec} {config} {minor:?}");
    }
    let status = json!({"features": {"supplementalGroupsPolicy": true}});
    let able = || NodeSummary::from_object(&json!({"status": status}));
    assert_eq!(of(pod(1, &strict), &json!({}), Some(36), able()), "");
    assert_eq!(of(pod(1, &strict), &off("SupplementalGroupsPolicy"), Some(34), able()), "", "the Node still says so");
}

#[test]
fn devices_of_containers_that_do_not_run() {
    const WAITS: &str = "perhaps UnexpectedAdmissionError";
    let asks = |name: &str| json!({"name": name, "resources": {"requests": {"x.y/gpu": "1"}}});
    let running = json!({"name": "main", "state": {"running": {}}});
    let of_statuses = |init: bool, status: Value| {
        let mut spec = json!({"containers": [asks("main")]});
        if init {
            spec["initContainers"] = json!([asks("first")]);
        }
        let statuses = json!({"phase": "Running", "containerStatuses": [status],
            "initContainerStatuses": [{"name": "first", "state": {"terminated": {"exitCode": 0}}}]});
        let object = json!({"metadata": {"namespace": "d", "name": "p1"}, "spec": spec, "status": statuses});
        PodSummary::from_object(&object)
    };
    let with_init = of_statuses(true, running.clone());
    let crashing = of_statuses(false, json!({"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}));
    let well = of_statuses(false, running);
    let node = |resource: &str| node(&json!({}), &json!({"cpu": "4", resource: "2"}), &json!({resource: "2"}));
    for (pod, minor, outcome) in [
        (&with_init, Some(20), ""),
        (&with_init, Some(28), WAITS),
        (&with_init, Some(36), WAITS),
        (&crashing, Some(24), ""),
        (&crashing, Some(36), WAITS),
        (&well, Some(24), ""),
        (&well, Some(26), WAITS), // by the patch version
        (&well, Some(28), ""),
        (&well, None, WAITS),
    ] {
        assert_eq!(of(pod.clone(), &json!({}), minor, node("x.y/gpu")), outcome, "{pod:?} {minor:?}");
    }
    assert_eq!(of(with_init, &json!({}), Some(36), node("x.y/other")), "", "no Node has it");
}

#[test]
fn resource_managers_judge_again() {
    const CORES: &str = "perhaps SMTAlignmentError";
    const SPREAD: &str = "perhaps TopologyAffinityError";
    let asks = |cpu: &str, class: &str| {
        let spec = json!({"containers": [{"resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}]});
        PodSummary::from_object(
            &json!({"metadata": {"namespace": "d", "name": "p1"}, "spec": spec, "status": {"qosClass": class}}),
        )
    };
    let whole_cores = json!({"cpuManagerPolicy": "static", "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
        "kubeReserved": {"cpu": "500m"}});
    let numa = |policy: &str, cpu: &str| json!({"topologyManagerPolicy": policy, "cpuManagerPolicy": cpu});
    let memory = json!({"topologyManagerPolicy": "restricted", "memoryManagerPolicy": "Static"});
    for (cpu, class, config, minor, outcome) in [
        ("4", "Guaranteed", &whole_cores, Some(36), ""), // of 12 another 6 are free for sure
        ("6", "Guaranteed", &whole_cores, Some(36), CORES),
        ("3", "Guaranteed", &whole_cores, Some(36), CORES),
        ("6", "Guaranteed", &whole_cores, None, CORES),
        ("6", "Guaranteed", &whole_cores, Some(21), ""),
        ("6", "Burstable", &whole_cores, Some(36), ""),
        ("5500m", "Guaranteed", &whole_cores, Some(36), ""),
        ("6", "Guaranteed", &json!({"cpuManagerPolicy": "static"}), Some(36), ""),
        ("2", "Guaranteed", &numa("restricted", "static"), Some(20), SPREAD),
        ("2", "Guaranteed", &numa("single-numa-node", "static"), Some(36), SPREAD),
        ("2", "Guaranteed", &numa("best-effort", "static"), Some(36), ""),
        ("2", "Guaranteed", &numa("restricted", "none"), Some(36), ""),
        ("500m", "Guaranteed", &numa("restricted", "static"), Some(36), ""),
        ("500m", "Guaranteed", &memory, Some(36), SPREAD),
        ("500m", "Burstable", &memory, Some(36), ""),
    ] {
        let node = node(&json!({}), &json!({"cpu": "12", "memory": "4Gi"}), &json!({}));
        assert_eq!(of(asks(cpu, class), config, minor, node), outcome, "{cpu} {class} {config} {minor:?}");
    }
}

#[test]
fn what_is_not_asked_for_and_was_promised_too_often() {
    let asks = |requests: &Value| json!({"containers": [{"resources": {"requests": requests}}]});
    let pods = || {
        let memory = asks(&json!({"memory": "1Mi"}));
        vec![pod(1, &asks(&json!({"cpu": "2"}))), pod(2, &memory), pod(3, &json!({}))]
    };
    let told = |minor| {
        let config = json!({"kubeReserved": {"cpu": "1"}});
        let kubelet = Kubelet { minor, ..kubelet(&config) };
        let capacity = json!({"cpu": "2", "memory": "4Gi", "pods": "9"});
        told_by(&kubelet, pods(), node(&json!({}), &capacity, &capacity))
    };
    let old = ["d/p1 (OutOfcpu)", "d/p2 (perhaps OutOfcpu)"];
    assert_eq!((told(Some(20)), told(Some(27))), (old.map(str::to_owned).to_vec(), old.map(str::to_owned).to_vec()));
    assert_eq!((told(Some(28)), told(Some(36))), (vec![old[0].to_owned()], vec![old[0].to_owned()]));
}
