use serde_json::json;

use super::*;

const FIRST: &str = "pool-a-bcdfghkmtt";
const SECOND: &str = "pool-a-2456789bcd";

fn map(name: &str, more: impl Into<Value>) -> Value {
    let mut metadata = json!({"name": name, "namespace": "ns", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {POOL_LABEL: "pool-a"}});
    for (field, value) in more.into().as_object().unwrap() {
        metadata[field] = value.clone();
    }
    json!({"metadata": metadata, "immutable": true})
}

fn goes(used: &UsedRevisions, map: &Value) -> bool {
    used.unused(map, "2026-01-02T00:00:00Z".parse().unwrap()).is_some()
}

fn status(status: Value) -> KubeletConfigPoolStatus {
    serde_json::from_value(status).unwrap()
}

fn spec(more: impl Into<Value>) -> KubeletConfigPoolSpec {
    let mut spec = json!({"nodeSelector": {}});
    for (field, value) in more.into().as_object().unwrap() {
        spec[field] = value.clone();
    }
    serde_json::from_value(spec).unwrap()
}

#[test]
fn what_nobody_names_goes_after_a_day() {
    let used = UsedRevisions::new("ns");
    assert!(goes(&used, &map(FIRST, json!({}))));
    assert!(goes(&used, &map(&format!("{FIRST}-2456789bcd"), json!({}))), "what expressions came to");
    assert!(!goes(&used, &map(FIRST, json!({"creationTimestamp": "2026-01-01T00:00:01Z"}))));
    assert!(!goes(&used, &map(FIRST, json!({"creationTimestamp": null}))), "of no known age");
    assert!(!goes(&used, &map(FIRST, json!({"deletionTimestamp": "2026-01-02T00:00:00Z"}))), "it goes already");
}

#[test]
fn what_the_controller_did_not_make_stays() {
    let used = UsedRevisions::new("ns");
    for name in ["pool-a", "pool-a-", "pool-a-short", "pool-b-bcdfghkmtt", "pool-a-bcdfghkmtt-x", "pool-ä-bcdfghkmtt"]
    {
        assert!(!goes(&used, &map(name, json!({}))), "{name}");
    }
    for labels in [json!({}), json!({POOL_LABEL: "pool"}), Value::Null] {
        assert!(!goes(&used, &map(FIRST, json!({"labels": labels}))), "{labels}");
    }
}

#[test]
fn what_any_pool_names_stays() {
    for named in [
        json!({"currentRevision": FIRST}),
        json!({"updateRevision": FIRST}),
        json!({"history": ["x", FIRST]}),
        json!({"badRevisions": [{"revision": FIRST, "nodes": []}]}),
    ] {
        let mut used = UsedRevisions::new("ns");
        used.by_pool(&spec(json!({})), Some(&status(named.clone())));
        assert!(!goes(&used, &map(FIRST, json!({}))), "{named}");
        assert!(!goes(&used, &map(&format!("{FIRST}-2456789bcd"), json!({}))), "{named}");
        assert!(goes(&used, &map(SECOND, json!({}))), "{named}");
    }
    let mut used = UsedRevisions::new("ns");
    used.by_pool(&spec(json!({"configMap": {"name": FIRST}})), None);
    assert!(!goes(&used, &map(FIRST, json!({}))));
    used.keep(SECOND);
    assert!(!goes(&used, &map(SECOND, json!({}))));
}

#[test]
fn what_a_node_has_stays() {
    let map_ref = |namespace: &str| json!({"configMap": {"namespace": namespace, "name": FIRST, "kubeletConfigKey": "kubelet", "uid": "u", "resourceVersion": "1"}});
    for (said, stays) in [
        (json!({"spec": {"configSource": map_ref("ns")}}), true),
        (json!({"status": {"config": {"active": map_ref("ns")}}}), true),
        (json!({"status": {"config": {"lastKnownGood": map_ref("ns")}}}), true),
        (json!({"status": {"config": {"active": map_ref("elsewhere")}}}), false),
        (json!({}), false),
    ] {
        let mut used = UsedRevisions::new("ns");
        used.by_node(&PoolNode::from_node(&said, "ns"));
        assert_eq!(goes(&used, &map(FIRST, json!({}))), !stays, "{said}");
    }
}
