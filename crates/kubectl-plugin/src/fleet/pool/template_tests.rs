//! Expressions: what they may be, what comes of them, and what Nodes get.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::expressions::{Expression, Inputs, Uses};
use super::node::PoolNode;
use super::renderings::StoredRevision;
use super::revision::Revision;
use super::template::Template;
use super::template_revision::TemplateRevision;
use super::types::{KubeletConfigPoolSpec, MergeMode};

const GIB: u64 = 1 << 30;

fn inputs() -> Inputs {
    let labels = [("pool", "a"), ("kubernetes.io/os", "linux"), ("node.kubernetes.io/instance-type", "m5.large")];
    Inputs {
        cpu: Some(8),
        memory: Some(32 * GIB),
        pods: Some(60),
        kubelet: Some("v1.29.3".to_owned()),
        labels: labels.map(|(label, value)| (label.to_owned(), value.to_owned())).into(),
    }
}

fn value(source: &str) -> Result<Value, String> {
    Expression::parse(source, &mut Uses::default())?.evaluate(&inputs())
}

fn template(configuration: Value, merge: MergeMode) -> Result<Value, String> {
    Template::parse(configuration, merge)?.evaluate(&inputs())
}

#[test]
fn what_an_expression_comes_to() {
    for (source, expected) in [
        ("node.cpu * 10", json!(80)),
        ("node.memory / 1048576 / 20", json!(1638)),
        ("gke.cpuReserved(node.cpu)", json!("90m")),
        ("gke.memoryReserved(node.memory)", json!("3645Mi")),
        ("eks.memoryReserved(node.pods)", json!("915Mi")),
        ("aks.memoryReserved(node.memory, 110)", json!("2250Mi")),
        ("openshift.memoryReserved(node.memory)", json!("2Gi")),
        ("node.labels['pool'] == 'a' ? 'yes' : 'no'", json!("yes")),
        ("{'m5.large': 29, 'm5.xlarge': 58}[node.labels['node.kubernetes.io/instance-type']]", json!(29)),
        ("has(node.labels.pool) && !has(node.labels.other)", json!(true)),
        ("'pool' in node.labels && node.os in ['linux']", json!(true)),
        ("node.kubeletVersion.startsWith('v1.29') && node.kubeletMinor >= 29", json!(true)),
        ("max(10, min(node.cpu, 64))", json!(10)),
        ("int('12') + size('abc')", json!(15)),
        ("string(node.cpu) + 'm'", json!("8m")),
        ("0.5 * 1.5", json!(0.75)),
        ("-7 / 2", json!(-3)),
    ] {
        assert_eq!(value(source), Ok(expected), "{source}");
    }
}

#[test]
fn what_is_refused_before_it_is_evaluated() {
    let deep = format!("1{}", "+1".repeat(40));
    let long = format!("'{}'", "x".repeat(1100));
    for (source, why) in [
        ("", "syntax error"),
        ("node.", "syntax error"),
        ("x(1,", "syntax error"),
        ("cpu", "cpu is no variable: there are node.labels, node.cpu"),
        (".node.cpu", "only node and node.labels"),
        ("node", "node is no variable"),
        ("node.cpus", "node.cpus is no variable"),
        ("node.labels", "node.labels['NAME']"),
        ("size(node.labels)", "node.labels['NAME']"),
        ("node.labels[node.os]", "named by a literal"),
        ("node.cpu.x", "only node and node.labels have fields"),
        ("[1, 2].map(x, x * 2)", "not known here"),
        ("[1].all(x, x > 0)", "not known here"),
        ("gke.everything(1)", "gke.everything is no function: there are int, max"),
        ("matches('a', 'a')", "matches is no function"),
        ("timestamp('2026-01-01T00:00:00Z')", "timestamp is no function"),
        ("type(1)", "type is no function"),
        ("optional.none()", "optional.none is no function"),
        ("Pod{name: 'x'}", "messages"),
        ("1u", "unsigned"),
        ("b'x'", "bytes"),
        (deep.as_str(), "nested more than 32 deep"),
        (long.as_str(), "1102 bytes, at most 1024"),
    ] {
        let error = Expression::parse(source, &mut Uses::default()).unwrap_err();
        assert!(error.contains(why), "{source}: {error}");
    }
}

#[test]
fn what_comes_to_nothing_says_why() {
    for (source, why) in [
        ("node.labels['zone']", "there is no \"zone\""),
        ("node.arch", "there is no \"arch\""),
        ("1 / 0", "division by zero"),
        ("1.0 / 0.0", "the result is inf"),
        ("0.0 / 0.0", "the result is NaN"),
        ("9223372036854775807 + 1", "too large"),
        ("node.cpu * 0.06", "do not go together"),
        ("'a' + 1", "do not go together"),
        ("[1]", "no string, number or truth value"),
        ("{'a': 1}", "no string, number or truth value"),
        ("null", "no string, number or truth value"),
        ("gke.cpuReserved('8')", "nexpected type"),
    ] {
        let error = value(source).unwrap_err();
        assert!(error.contains(why), "{source}: {error}");
    }
}

#[test]
fn whole_values_keep_their_type_and_texts_are_put_together() {
    let configuration = json!({
        "maxPods": "${node.cpu * 10}", "kubeReserved": {"cpu": "${node.cpu * 10}m", "memory": "${gke.memoryReserved(node.memory)}"},
        "failSwapOn": "${node.os != 'linux'}", "memoryThrottlingFactor": "${node.cpu > 4 ? 0.8 : 0.9}",
        "clusterDomain": "$${x} ${'}'}${\"{\"} $ ${node.labels['pool']}", "clusterDNS": ["10.0.0.${node.cpu}"], "port": 10250,
        "registerWithTaints": [{"key": "k", "value": "${node.labels.pool}", "effect": "NoSchedule"}],
    });
    let expected = json!({
        "maxPods": 80, "kubeReserved": {"cpu": "80m", "memory": "3645Mi"}, "failSwapOn": false, "memoryThrottlingFactor": 0.8,
        "clusterDomain": "${x} }{ $ a", "clusterDNS": ["10.0.0.8"], "port": 10250,
        "registerWithTaints": [{"key": "k", "value": "a", "effect": "NoSchedule"}],
    });
    assert_eq!(template(configuration, MergeMode::Replace), Ok(expected));
}

#[test]
fn results_are_of_the_fields_type() {
    for (configuration, why) in [
        (json!({"maxPods": "${'110'}"}), "maxPods: ${'110'}: the result is \"110\", and the field holds an integer"),
        (json!({"maxPods": "${node.cpu}0"}), "the field holds an integer"),
        (json!({"maxPods": "${110.0}"}), "the field holds an integer"),
        (json!({"podsPerCore": "${1.5}"}), "the field holds an integer"),
        (json!({"someField": "${1.5}"}), "the field holds something else"),
        (
            json!({"kubeReserved": {"cpu": "${node.cpu}"}}),
            "kubeReserved.cpu: ${node.cpu}: the result is 8, and the field holds a string",
        ),
        (json!({"syncFrequency": "${60}"}), "a string"),
        (json!({"failSwapOn": "${'false'}"}), "a truth value"),
        (json!({"featureGates": {"X": "${1}"}}), "a truth value"),
        (json!({"authentication": {"webhook": {"cacheTTL": "${120}"}}}), "a string"),
        (json!({"clusterDomain": "a${true}"}), "true in a text"),
    ] {
        let error = template(configuration.clone(), MergeMode::Replace).unwrap_err();
        assert!(error.contains(why), "{configuration}: {error}");
    }
}

#[test]
fn what_is_no_template_is_refused() {
    let many: BTreeMap<String, String> = (0..65).map(|number| (format!("f{number}"), "${1}".to_owned())).collect();
    for (configuration, why) in [
        (
            json!({"a": {"b": ["x", "${node.cpu"]}}),
            "spec.kubeletConfiguration.a.b[1]: ${node.cpu: ${ has no closing brace",
        ),
        (json!({"a": "${'}"}), "no closing brace"),
        (json!({"a": "${'\\'}"}), "no closing brace"),
        (json!({"${node.os}": 1}), "names of fields"),
        (json!({"a": "${${node.cpu}}"}), "syntax error"),
        (json!({"maxPods": "${node.pods + 1}"}), "node.pods is not known here"),
        (json!(many), "65 expressions, at most 64"),
    ] {
        let error = Template::parse(configuration.clone(), MergeMode::Replace).unwrap_err();
        assert!(error.contains(why), "{configuration}: {error}");
    }
}

/// Reservations go by the pods that there will be, not by those that the kubelet reports before the change.
#[test]
fn pods_are_those_of_the_result() {
    let pods = |more: Value, merge: MergeMode| {
        let mut configuration = json!({"a": "${string(node.pods)}"});
        configuration.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        template(configuration, merge).unwrap()["a"].clone()
    };
    for (more, replaced, overlaid) in [
        (json!({}), "110", "60"),
        (json!({"maxPods": 29}), "29", "29"),
        (json!({"maxPods": "${node.cpu * 30}"}), "240", "240"),
        (json!({"podsPerCore": "${2 + 1}"}), "24", "24"),
        (json!({"maxPods": 20, "podsPerCore": 3}), "20", "20"),
    ] {
        assert_eq!(pods(more.clone(), MergeMode::Replace), replaced, "{more}");
        assert_eq!(pods(more.clone(), MergeMode::Overlay), overlaid, "{more}");
    }
}

fn node(name: &str, cpu: &str, memory: &str, labels: &Value) -> PoolNode {
    let node = json!({
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": {"cpu": cpu, "memory": memory, "pods": "110"}, "nodeInfo": {"kubeletVersion": "v1.29.3"}},
    });
    PoolNode::from_node(&node, "ns")
}

fn revision(configuration: &Value) -> TemplateRevision {
    let spec = json!({
        "nodeSelector": {}, "kubeletConfiguration": configuration, "merge": "overlay", "flags": ["--v=4"], "acknowledge": ["pods"],
    });
    let spec: KubeletConfigPoolSpec = serde_json::from_value(spec).unwrap();
    match Revision::of_spec("pool-a", &spec, "ns").unwrap() {
        Revision::Template(template) => *template,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nodes_with_equal_results_share_a_config_map() {
    let revision = revision(&json!({"maxPods": "${node.cpu > 4 ? 110 : 60}"}));
    let name = revision.reference.name.clone();
    assert!(revision.object["data"].get("kubelet").is_none(), "no Node could take it for a configuration");
    let nodes = [("n1", "2"), ("n2", "3"), ("n3", "8"), ("n4", "96000m")];
    let nodes = nodes.map(|(name, cpu)| node(name, cpu, "8Gi", &json!({"some": name})));
    let rendered = nodes.each_ref().map(|node| revision.render(node).unwrap().unwrap());
    assert_eq!([&rendered[0], &rendered[2]], [&rendered[1], &rendered[3]]);
    assert_ne!(rendered[0].reference, rendered[2].reference);
    let object = &rendered[2].object;
    assert!(rendered[2].reference.name.starts_with(&format!("{name}-")) && rendered[2].reference.name.len() <= 63);
    let configuration: Value = serde_json::from_str(object["data"]["kubelet"].as_str().unwrap()).unwrap();
    assert_eq!((&configuration["maxPods"], &configuration["kind"]), (&json!(110), &json!("KubeletConfiguration")));
    assert_eq!((&object["data"]["kubelet.flags"], &object["immutable"]), (&json!("--v=4"), &json!(true)));
    assert_eq!(object["metadata"]["annotations"], revision.object["metadata"]["annotations"]);
    assert_eq!(object["metadata"]["labels"]["kubelet-supervisor.io/pool"], "pool-a");
    // Before its kubelet has said anything a Node gets nothing, and is nobody's fault.
    let mut silent = nodes[0].clone();
    silent.kubelet.clear();
    assert!(revision.render(&silent).is_none());
}

/// The template is read from the cluster for Nodes that join while another one is on its way.
#[test]
fn what_is_stored_is_the_same_template() {
    let revision = revision(&json!({"maxPods": "${node.cpu * 10}"}));
    let stored = |object: &Value| TemplateRevision::from_stored(object, "pool-a", &revision.reference);
    let read = stored(&revision.object).unwrap().unwrap();
    let node = node("n1", "8", "8Gi", &json!({}));
    assert_eq!(read.render(&node), revision.render(&node));
    let mut edited = revision.object.clone();
    edited["data"]["kubelet.flags"] = json!("--v=9");
    assert!(stored(&edited).unwrap_err().contains("another content"));
    let plain = json!({"data": {"kubelet": "{}", "kubelet.template": "x"}});
    assert!(stored(&plain).unwrap().is_none());
}

#[test]
fn one_node_that_cannot_be_evaluated_is_named_and_too_many_results_are_refused() {
    let revision = StoredRevision::Template(Box::new(revision(&json!({"clusterDomain": "${node.labels['zone']}"}))));
    let nodes: Vec<PoolNode> =
        (0..60).map(|number| node(&format!("n{number}"), "2", "8Gi", &json!({"zone": format!("z{number}")}))).collect();
    let (target, fault) = revision.target(nodes.iter().take(50));
    assert_eq!((target.renderings().len(), fault), (50, Ok(())));
    let fault = revision.target(nodes.iter()).1.unwrap_err();
    assert_eq!(fault.reason, "TooManyRevisions");
    let odd = node("odd", "2", "8Gi", &json!({}));
    let (target, fault) = revision.target(nodes.iter().take(2).chain([&odd]));
    let fault = fault.unwrap_err();
    assert_eq!(fault.reason, "ExpressionFailed");
    let expected = "Node odd: spec.kubeletConfiguration.clusterDomain: ${node.labels['zone']}: there is no \"zone\"";
    assert!(fault.message.starts_with(expected), "{}", fault.message);
    assert!(target.of(&odd).is_none() && target.of(&nodes[0]).is_some());
}

/// Each evaluated once, whatever else differs between Nodes; and memory by steps.
#[test]
fn what_differs_by_a_boot_makes_no_other_result() {
    let revision = revision(&json!({"kubeReserved": {"memory": "${gke.memoryReserved(node.memory)}"}}));
    let of =
        |memory: &str| revision.render(&node("n", "2", memory, &json!({}))).unwrap().unwrap().reference.name.clone();
    assert_eq!(of("8009416Ki"), of("8003000Ki"));
    assert_ne!(of("8009416Ki"), of("16009416Ki"));
}

/// What a compiler or an interpreter could choke on, of the greatest length that is read.
#[test]
fn nesting_of_any_kind_ends_at_once() {
    let most = |unit: &str, end: &str| format!("{}{end}", unit.repeat((1024 - end.len()) / unit.len()));
    let pieces = [
        ("1", &["(", "[", "{1:", "- ", "true?1:", "true?", "1+", "node.labels[", "has(", "min(", "0x"][..]),
        ("true", &["!", "true||"]),
        ("'a'", &["'a'+"]),
        ("[1]", &["[1]+", "1 in "]),
        ("]]", &["[["]),
        ("9", &["9", "1e"]),
        ("", &["'", "\\", "r'", "'''", "{", "//", "\u{feff}"]),
    ];
    let suffixes = [".f()", ".a", "[0]", ".startsWith('a')"].map(|unit| format!("node{}", most(unit, "    ")));
    let sources: Vec<String> = pieces
        .into_iter()
        .flat_map(|(end, units)| units.iter().map(move |unit| most(unit, end)))
        .chain(suffixes)
        .collect();
    // A quarter of what a test has, an eighth of what the controller has.
    let all = std::thread::Builder::new().stack_size(1 << 19).spawn(move || {
        for source in &sources {
            let _ = value(source);
        }
        sources.len()
    });
    assert_eq!(all.unwrap().join().unwrap(), 30);
}

fn piece() -> impl Strategy<Value = String> {
    const WORDS: &str = "node . cpu memory labels pods [ ] ( ) { } ' \" 'a' 1 0 - + * / % ? : && || ! == < has gke cpuReserved min \
        max , int string size 9223372036854775807 1.5 1e308 true null \\ r' $ ${ } é \0";
    let words: Vec<&str> = WORDS.split(' ').chain([" in ", "\n"]).collect();
    prop_oneof![9 => prop::sample::select(words).prop_map(str::to_owned), 1 => any::<char>().prop_map(String::from)]
}

proptest! {
    /// No text, however odd, panics, hangs, or comes to what no kubelet's field holds.
    #[test]
    fn any_text_is_refused_or_comes_to_a_scalar(pieces in prop::collection::vec(piece(), 0..60)) {
        let text = pieces.concat();
        if let Ok(expression) = Expression::parse(&text, &mut Uses::default())
            && let Ok(value) = expression.evaluate(&inputs())
        {
            prop_assert!(value.is_string() || value.is_number() || value.is_boolean(), "{text}: {value}");
        }
        let configuration = json!({"a": text, "maxPods": format!("${{{text}}}")});
        if let Ok(template) = Template::parse(configuration, MergeMode::Overlay) {
            for inputs in [inputs(), Inputs::default()] {
                if let Ok(document) = template.evaluate(&inputs) {
                    prop_assert!(document["maxPods"].is_i64(), "{document}");
                }
            }
        }
    }
}
