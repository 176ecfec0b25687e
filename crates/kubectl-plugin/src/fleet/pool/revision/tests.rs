use super::*;
use serde_json::json;

fn rendered(spec: Value) -> RenderedRevision {
    match Revision::of_spec("pool-a", &serde_json::from_value(spec).unwrap(), "ns").unwrap() {
        Revision::Rendered(rendered) => rendered,
        other => panic!("{other:?}"),
    }
}

fn name(spec: Value) -> String {
    rendered(spec).reference.name
}

#[test]
fn a_name_tells_all_that_a_node_goes_by() {
    let base = || json!({"nodeSelector": {}, "kubeletConfiguration": {"maxPods": 60}});
    let with = |field: &str, value: Value| {
        let mut spec = base();
        spec[field] = value;
        name(spec)
    };
    let plain = name(base());
    assert!(plain.starts_with("pool-a-"), "{plain}");
    assert_eq!(plain, with("paused", json!(true)), "how it gets there is not what it is");
    assert_eq!(plain, with("rollout", json!({"canaries": 7})));
    let mut names = vec![
        plain,
        with("kubeletConfiguration", json!({"maxPods": 61})),
        with("merge", json!("overlay")),
        with("acknowledge", json!(["pods"])),
        with("flags", json!(["--v=4"])),
    ];
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 5);
}

#[test]
fn what_is_made_is_immutable_and_says_its_pool() {
    let RenderedRevision { object, reference } = rendered(
        json!({"nodeSelector": {}, "kubeletConfiguration": {}, "merge": "overlay", "flags": ["--v=4", "!--cgroup-driver"]}),
    );
    assert_eq!(object["immutable"], true);
    assert_eq!(object["metadata"]["labels"][POOL_LABEL], "pool-a");
    assert_eq!(object["data"]["kubelet.flags"], "--v=4\n!--cgroup-driver");
    let revision = Revision::Rendered(RenderedRevision { object: object.clone(), reference });
    assert_eq!(check_stored(&object, &revision), Ok(()));
    let mut edited = object.clone();
    edited["metadata"]["annotations"] = json!({});
    assert!(check_stored(&edited, &revision).unwrap_err().contains("another content"));
    let mut mutable = object;
    mutable["immutable"] = Value::Null;
    assert!(check_stored(&mutable, &revision).unwrap_err().contains("can be edited"));
}

#[test]
fn a_name_tells_whose_revision_it_is() {
    let reference = |name: &str| parse_revision_name(name, "ns");
    let is_of = |name: &str, revision: &str| is_of_revision(&reference(name), revision, "ns");
    assert!(is_of("a-bcdfghkmtt", "a-bcdfghkmtt") && is_of("a-bcdfghkmtt-2456789bcd", "a-bcdfghkmtt"));
    for other in ["a", "a-bcdfghkmt", "a-bcdfghkmtt-", "a-bcdfghkmtt-245", "a-bcdfghkmtt-2456789bcd/key"] {
        assert!(!is_of(other, "a-bcdfghkmtt"), "{other}");
    }
    assert!(!is_of_revision(&reference("a-bcdfghkmtt"), "a-bcdfghkmtt", "elsewhere"));
    assert!(is_made_for("a", "a-bcdfghkmtt") && !is_made_for("a", "a-b-bcdfghkmtt") && !is_made_for("a", "pushed"));
}

#[test]
fn one_source_is_named() {
    let fault = |spec: Value| Revision::of_spec("p", &serde_json::from_value(spec).unwrap(), "ns").unwrap_err().message;
    assert!(fault(json!({"nodeSelector": {}})).contains("exactly one"));
    assert!(
        fault(json!({"nodeSelector": {}, "kubeletConfiguration": {}, "configMap": {"name": "m"}}))
            .contains("exactly one")
    );
    assert!(fault(json!({"nodeSelector": {}, "configMap": {"name": "m"}, "flags": ["--v=1"]})).contains("KEY.flags"));
    assert!(fault(json!({"nodeSelector": {}, "configMap": {"name": "../m"}})).contains("spec.configMap.name"));
}
