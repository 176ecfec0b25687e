use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::pods::NodeSummary;

/// A pod that was created in this second.
fn pod(second: usize, spec: &Value) -> PodSummary {
    PodSummary::from_object(&json!({
        "metadata": {"namespace": "d", "name": format!("p{second}"), "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z")},
        "spec": spec, "status": {"phase": "Running"},
    }))
}

fn asks(requests: &Value) -> Value {
    json!({"containers": [{"resources": {"requests": requests}}]})
}

fn node(labels: &Value, capacity: &Value, allocatable: &Value) -> NodeSummary {
    NodeSummary::from_object(&json!({
        "metadata": {"name": "n1", "labels": labels}, "status": {"capacity": capacity, "allocatable": allocatable},
    }))
}

/// No pod is evicted for, nothing kept back: what is left is the capacity.
fn open() -> Value {
    json!({"evictionHard": {"memory.available": "0%"}})
}

fn told(config: &Value, pods: Vec<PodSummary>, node: NodeSummary) -> Vec<String> {
    told_by(&kubelet(config), pods, node)
}

fn told_by(kubelet: &Kubelet<'_>, pods: Vec<PodSummary>, node: NodeSummary) -> Vec<String> {
    refusals(kubelet, &PodInventory { pods, node }).iter().map(ToString::to_string).collect()
}

static NOTHING_MEASURED: Supplies = Supplies::new();

fn kubelet(config: &Value) -> Kubelet<'_> {
    Kubelet { config, minor: Some(36), supplies: &NOTHING_MEASURED, ignores_eviction: false }
}

/// What the labels of now say of one pod.
fn placed(spec: &Value, labels: &Value) -> String {
    told(&open(), vec![pod(1, spec)], node(labels, &json!({}), &json!({}))).pop().unwrap_or_default()
}

const REFUSED: &str = "d/p1 (NodeAffinity)";
const UNKNOWN: &str = "d/p1 (perhaps NodeAffinity)";

#[test]
fn a_node_selector_by_the_labels_of_now() {
    for (selector, outcome) in [
        (json!({"disk": "ssd"}), ""),
        (json!({"disk": "ssd", "zone": "a"}), REFUSED),
        (json!({"disk": "hdd"}), REFUSED),
        (json!({}), ""),
        (json!({"kubernetes.io/arch": "arm64"}), UNKNOWN), // the kubelet puts it right when it registers
        (json!({"kubernetes.io/arch": "arm64", "disk": "hdd"}), REFUSED),
        (json!(["odd"]), UNKNOWN),
        (json!({"disk": 7}), UNKNOWN),
    ] {
        assert_eq!(placed(&json!({"nodeSelector": selector}), &json!({"disk": "ssd"})), outcome, "{selector}");
    }
}

#[test]
fn taints_since_1_24() {
    const TAINTED: &str = "d/p1 (TaintToleration)";
    const PERHAPS: &str = "d/p1 (perhaps TaintToleration)";
    let taint = |effect: &str| json!([{"key": "gone", "value": "x", "effect": effect}]);
    let of = |tolerations: &Value, taints: Value, minor: Option<u64>| {
        let config = open();
        let kubelet = Kubelet { minor, ..kubelet(&config) };
        let node = NodeSummary { taints, ..node(&json!({}), &json!({}), &json!({})) };
        told_by(&kubelet, vec![pod(1, &json!({"tolerations": tolerations}))], node).pop().unwrap_or_default()
    };
    let for_some_seconds =
        json!([{"key": "gone", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]);
    let beside_another = json!([{"key": "gone", "operator": "Gt", "value": "1"}, {"operator": "Exists"}]);
    for (tolerations, effect, minor, outcome) in [
        (json!(null), "NoExecute", Some(24), TAINTED),
        (json!(null), "NoExecute", Some(23), ""),
        (json!(null), "NoExecute", None, PERHAPS),
        (json!(null), "NoSchedule", Some(36), ""),
        (json!([{"operator": "Exists"}]), "NoExecute", Some(36), ""),
        (json!([{"operator": "Exists"}]), "NoExecute", None, ""),
        (for_some_seconds, "NoExecute", Some(36), ""),
        (json!([{"key": "gone", "value": "x"}]), "NoExecute", Some(36), ""),
        (json!([{"key": "gone", "value": "y"}]), "NoExecute", Some(36), TAINTED),
        (json!([{"key": "gone", "value": "x", "effect": "NoSchedule"}]), "NoExecute", Some(36), TAINTED),
        (json!([{"key": "other", "operator": "Exists"}]), "NoExecute", Some(36), TAINTED),
        (json!([{"key": "gone", "operator": "Gt", "value": "1"}]), "NoExecute", Some(36), PERHAPS),
        (beside_another, "NoExecute", Some(36), ""),
    ] {
        assert_eq!(of(&tolerations, taint(effect), minor), outcome, "{tolerations} {effect} {minor:?}");
    }
    let mirror = PodSummary { is_static: true, ..pod(1, &json!({})) };
    let tainted = NodeSummary { taints: taint("NoExecute"), ..NodeSummary::default() };
    assert_eq!(told(&open(), vec![mirror], tainted), [""; 0], "static pods are excepted");
}

#[test]
fn what_leaves_anyway_is_no_sure_loss_and_takes_its_room() {
    let object = json!({"metadata": {
        "namespace": "d", "name": "p1", "creationTimestamp": "2026-01-01T00:00:01Z", "deletionTimestamp": "2026-01-02T00:00:00Z",
    }, "spec": {"nodeSelector": {"disk": "hdd"}}, "status": {"phase": "Running"}});
    let leaves = PodSummary::from_object(&object);
    assert!(leaves.is_terminating && !pod(1, &json!({})).is_terminating);
    let labels = json!({"disk": "ssd"});
    assert_eq!(told(&open(), vec![leaves.clone()], node(&labels, &json!({}), &json!({}))), [UNKNOWN]);
    let stays = PodSummary { node_selector: Value::Null, ..leaves };
    let config = json!({"maxPods": 1});
    let all = told(&config, vec![stays, pod(2, &json!({}))], node(&labels, &json!({}), &json!({})));
    assert_eq!(all, ["d/p2 (OutOfpods)"]);
}

#[test]
fn required_affinity_by_operator() {
    let labels = json!({"disk": "ssd", "cores": "8", "word": "x"});
    let expression =
        |key: &str, operator: &str, values: &Value| json!({"key": key, "operator": operator, "values": values});
    for (key, operator, values, outcome) in [
        ("disk", "In", json!(["hdd", "ssd"]), ""),
        ("disk", "In", json!(["hdd"]), REFUSED),
        ("none", "In", json!(["hdd"]), REFUSED),
        ("disk", "NotIn", json!(["hdd"]), ""),
        ("disk", "NotIn", json!(["ssd"]), REFUSED),
        ("none", "NotIn", json!(["ssd"]), ""),
        ("disk", "Exists", json!(null), ""),
        ("none", "Exists", json!(null), REFUSED),
        ("none", "DoesNotExist", json!(null), ""),
        ("disk", "DoesNotExist", json!(null), REFUSED),
        ("cores", "Gt", json!(["7"]), ""),
        ("cores", "Gt", json!(["8"]), REFUSED),
        ("cores", "Lt", json!(["9"]), ""),
        ("cores", "Lt", json!(["8"]), REFUSED),
        ("word", "Gt", json!(["7"]), REFUSED),
        ("none", "Lt", json!(["7"]), REFUSED),
        ("cores", "Gt", json!(["1", "2"]), UNKNOWN),
        ("cores", "Near", json!(["8"]), UNKNOWN),
    ] {
        let affinity = json!({"nodeSelectorTerms": [{"matchExpressions": [expression(key, operator, &values)]}]});
        assert_eq!(placed(&required(&affinity), &labels), outcome, "{key} {operator} {values}");
    }
}

fn required(affinity: &Value) -> Value {
    json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": affinity}}})
}

#[test]
fn terms_are_alternatives_and_what_they_list_is_not() {
    let is = |key: &str| json!({"key": key, "operator": "Exists"});
    let name = |operator: &str, name: &str| json!({"key": "metadata.name", "operator": operator, "values": [name]});
    let terms = |terms: &Value| placed(&required(&json!({"nodeSelectorTerms": terms})), &json!({"a": "", "b": ""}));
    assert_eq!(terms(&json!([{"matchExpressions": [is("c")]}, {"matchExpressions": [is("a"), is("b")]}])), "");
    assert_eq!(terms(&json!([{"matchExpressions": [is("a"), is("c")]}])), REFUSED);
    assert_eq!(terms(&json!([{"matchFields": [name("In", "n1")]}])), "");
    assert_eq!(terms(&json!([{"matchFields": [name("In", "n2")]}])), REFUSED);
    assert_eq!(terms(&json!([{"matchFields": [name("NotIn", "n1")]}])), REFUSED);
    assert_eq!(terms(&json!([{"matchFields": [name("In", "n1")], "matchExpressions": [is("c")]}])), REFUSED);
    assert_eq!(terms(&json!([])), REFUSED, "no term matches no node");
    assert_eq!(terms(&json!([{}])), REFUSED, "nor does an empty one");
    assert_eq!(terms(&json!("odd")), UNKNOWN);
    let preferred =
        json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}});
    assert_eq!(placed(&preferred, &json!({})), "");
    let unseen = NodeSummary::default();
    assert_eq!(told(&open(), vec![pod(1, &json!({"nodeSelector": {"a": "b"}}))], unseen), [UNKNOWN]);
}

#[test]
fn every_resource_is_counted() {
    let capacity =
        json!({"cpu": "4", "memory": "4Gi", "ephemeral-storage": "10Gi", "hugepages-2Mi": "1Gi", "x.y/gpu": "1"});
    let one = |requests: &Value| {
        let (first, second) = (pod(1, &asks(requests)), pod(2, &asks(requests)));
        told(&open(), vec![second, first], node(&json!({}), &capacity, &json!({"x.y/gpu": "1"})))
    };
    assert_eq!(one(&json!({"cpu": "2"})), [""; 0]);
    assert_eq!(one(&json!({"cpu": "2001m"})), ["d/p2 (OutOfcpu)"]);
    assert_eq!(one(&json!({"memory": "1536Mi"})), [""; 0]);
    assert_eq!(one(&json!({"memory": "1537Mi"})), ["d/p2 (OutOfmemory)"], "huge pages are not there for others");
    let storage = |minor| {
        let (first, second) =
            (pod(1, &asks(&json!({"ephemeral-storage": "6Gi"}))), pod(2, &asks(&json!({"ephemeral-storage": "6Gi"}))));
        let inventory = PodInventory { pods: vec![first, second], node: node(&json!({}), &capacity, &json!({})) };
        let config = open();
        let kubelet = Kubelet { config: &config, minor, supplies: &Supplies::new(), ignores_eviction: false };
        refusals(&kubelet, &inventory).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for minor in [None, Some(20), Some(30)] {
        assert_eq!(storage(minor), ["d/p2 (perhaps OutOfephemeral-storage)"], "{minor:?}");
    }
    assert_eq!(storage(Some(31)), ["d/p2 (OutOfephemeral-storage)"]);
    assert_eq!(one(&json!({"hugepages-2Mi": "768Mi"})), ["d/p2 (OutOfhugepages-2Mi)"]);
    assert_eq!(
        one(&json!({"hugepages-1Gi": "1Gi"})),
        ["d/p1 (perhaps OutOfhugepages-1Gi)", "d/p2 (perhaps OutOfhugepages-1Gi)"]
    );
    assert_eq!(one(&json!({"x.y/gpu": "1"})), ["d/p2 (perhaps OutOfx.y/gpu)"], "they may have been handed out");
    assert_eq!(one(&json!({"x.y/none": "1"})), [""; 0], "what no node has is not counted");
    assert_eq!(one(&json!({"cpu": "3", "memory": "3Gi"})), ["d/p2 (OutOfcpu)"], "the kubelet names the first");
}

#[test]
fn room_by_what_is_to_be_and_by_what_is() {
    let two = || vec![pod(1, &asks(&json!({"cpu": "1"}))), pod(2, &asks(&json!({"cpu": "1"})))];
    let of = |reserved: &str, now: &str| {
        let config = json!({"kubeReserved": {"cpu": reserved}});
        told(&config, two(), node(&json!({}), &json!({"cpu": "4"}), &json!({"cpu": now, "pods": "9"})))
    };
    assert_eq!(of("2", "2"), [""; 0]);
    assert_eq!(of("3", "2"), ["d/p2 (OutOfcpu)"], "if not at this restart then at the next");
    assert_eq!(of("3", "1"), ["d/p2 (OutOfcpu)"]);
    assert_eq!(of("2", "1"), ["d/p2 (perhaps OutOfcpu)"], "the Node may still say the old value");
    let pinned = json!({"reservedSystemCPUs": "0-2", "kubeReserved": {"cpu": "100m"}});
    let node = || node(&json!({}), &json!({"cpu": "4"}), &json!({}));
    assert_eq!(told(&pinned, two(), node()), ["d/p2 (OutOfcpu)"], "a list of CPUs counts for its size");
    assert_eq!(told(&json!({"maxPods": 1}), two(), node()), ["d/p2 (OutOfpods)"]);
}

#[test]
fn what_is_not_asked_for_and_was_promised_too_often() {
    let pods = || {
        let memory = asks(&json!({"memory": "1Mi"}));
        vec![pod(1, &asks(&json!({"cpu": "2"}))), pod(2, &memory), pod(3, &json!({}))]
    };
    let of = |minor| {
        let config = json!({"kubeReserved": {"cpu": "1"}});
        let kubelet = Kubelet { minor: Some(minor), ..kubelet(&config) };
        let capacity = json!({"cpu": "2", "memory": "4Gi", "pods": "9"});
        told_by(&kubelet, pods(), node(&json!({}), &capacity, &capacity))
    };
    for minor in [20, 27] {
        assert_eq!(of(minor), ["d/p1 (OutOfcpu)", "d/p2 (perhaps OutOfcpu)"], "1.{minor}");
    }
    for minor in [28, 36] {
        assert_eq!(of(minor), ["d/p1 (OutOfcpu)"], "1.{minor}");
    }
}

#[test]
fn static_pods_come_first_and_critical_ones_cost_others_their_place() {
    let mut mirror = pod(9, &asks(&json!({"cpu": "1"})));
    mirror.is_static = true;
    let room = || node(&json!({}), &json!({"cpu": "2"}), &json!({}));
    let [one, two] = [1, 2].map(|second| pod(second, &asks(&json!({"cpu": "1"}))));
    assert_eq!(told(&open(), vec![one.clone(), two.clone(), mirror], room()), ["d/p2 (OutOfcpu)"]);

    let mut critical = asks(&json!({"cpu": "1"}));
    critical["priority"] = json!(2_000_001_000);
    let late = pod(3, &critical);
    let pods = vec![one.clone(), two.clone(), late, pod(4, &asks(&json!({"cpu": "1"})))];
    let expected = ["d/p3 (OutOfcpu, critical: others are evicted for it)", "d/p4 (perhaps OutOfcpu)"];
    assert_eq!(told(&open(), pods, room()), expected);

    critical["nodeSelector"] = json!({"gone": "label"});
    let pods = vec![one, two, pod(3, &critical)];
    assert_eq!(
        told(&open(), pods, room()),
        ["d/p3 (NodeAffinity)"],
        "nobody is evicted for a pod that is refused anyway"
    );
}

#[test]
fn a_refused_pod_leaves_its_room_to_others() {
    let mut elsewhere = asks(&json!({"cpu": "2"}));
    elsewhere["nodeSelector"] = json!({"gone": "label"});
    let pods = vec![pod(1, &elsewhere), pod(2, &asks(&json!({"cpu": "2"}))), pod(3, &asks(&json!({"cpu": "1"})))];
    let node = node(&json!({}), &json!({"cpu": "2"}), &json!({}));
    assert_eq!(told(&open(), pods, node), ["d/p1 (NodeAffinity)", "d/p3 (OutOfcpu)"]);
}

proptest! {
    /// What is admitted fits together, and nothing that is refused would have.
    #[test]
    fn the_admitted_fit_and_the_refused_do_not(cpus in prop::collection::vec(0..2000_u64, 0..20), room in 0..8000_u64) {
        let pods = cpus.iter().enumerate().map(|(second, cpu)| pod(second, &asks(&json!({"cpu": format!("{cpu}m")})))).collect();
        let node = node(&json!({}), &json!({"cpu": format!("{room}m")}), &json!({}));
        let away: Vec<String> = refusals(&kubelet(&open()), &PodInventory { pods, node }).into_iter().map(|refusal| refusal.pod).collect();
        let mut left = room;
        for (second, cpu) in cpus.iter().enumerate() {
            prop_assert_eq!(away.contains(&format!("d/p{second}")), *cpu > left);
            left -= if *cpu > left { 0 } else { *cpu };
        }
    }

    #[test]
    fn whatever_an_api_server_sends(texts in prop::collection::vec("[0-9a-zA-Z./\\-]{0,6}", 6)) {
        let [key, operator, value, resource, amount, capacity] = texts.as_slice() else { unreachable!() };
        let mut spec = asks(&json!({ resource.as_str(): amount, "cpu": amount }));
        spec["affinity"] = required(&json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": operator, "values": [value]}]}]}))["affinity"].clone();
        let node = node(&json!({ key.as_str(): value }), &json!({ resource.as_str(): capacity, "cpu": capacity }), &json!({"cpu": capacity}));
        let _ = told(&open(), vec![pod(1, &spec), pod(2, &spec)], node);
    }
}
