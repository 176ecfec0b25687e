//! Revisions that the controller made and nobody needs any more.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::node::PoolNode;
use super::revision::{HASH, is_made_for, is_of_revision, parse_revision_name};
use super::template_revision::POOL_LABEL;
use super::types::{KubeletConfigPoolSpec, KubeletConfigPoolStatus};

/// Younger ones are left: whoever goes back to what was there today finds it, and nothing that is being made is taken away.
const MIN_AGE: SignedDuration = SignedDuration::from_hours(24);

/// What is needed in a namespace.
#[derive(Debug, Default)]
pub(crate) struct UsedRevisions {
    namespace: String,
    /// ConfigMaps.
    names: BTreeSet<String>,
    /// As pools name them; what expressions in them come to is needed too.
    revisions: BTreeSet<String>,
}

/// A ConfigMap that can go.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Surplus {
    created: Timestamp,
    pub(crate) name: String,
    pub(crate) uid: String,
}

impl UsedRevisions {
    pub(crate) fn new(namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), ..Self::default() }
    }

    pub(crate) fn keep(&mut self, name: impl Into<String>) {
        self.names.insert(name.into());
    }

    /// What a Node is assigned, runs, or falls back to.
    pub(crate) fn by_node(&mut self, node: &PoolNode) {
        let named = node.desired.iter().chain(&node.reported).filter(|it| it.namespace == self.namespace);
        self.names.extend(named.map(|reference| reference.name.clone()));
    }

    pub(crate) fn by_pool(&mut self, spec: &KubeletConfigPoolSpec, status: Option<&KubeletConfigPoolStatus>) {
        self.names.extend(spec.config_map.iter().map(|named| named.name.clone()));
        let Some(status) = status else { return };
        self.revisions.extend(status.revisions().cloned());
    }

    /// None: it is needed, or young, or nothing that the controller makes.
    pub(crate) fn surplus(&self, map: &Value, now: Timestamp) -> Option<Surplus> {
        let metadata = map.get("metadata")?;
        let text = |field: &str| metadata.get(field)?.as_str().map(str::to_owned);
        let (name, uid) = (text("name")?, text("uid")?);
        let pool = metadata.get("labels")?.get(POOL_LABEL)?.as_str()?;
        let revision = name.get(..name.len().min(pool.len() + HASH))?;
        let reference = parse_revision_name(&name, &self.namespace);
        let is_made = is_made_for(pool, revision) && is_of_revision(&reference, revision, &self.namespace);
        let is_named = |used: &String| {
            let used = used.split('/').next().unwrap_or_default();
            is_of_revision(&reference, used, &self.namespace)
        };
        let created: Timestamp = text("creationTimestamp")?.parse().ok()?;
        let is_old = now.duration_since(created) >= MIN_AGE;
        let is_needed = self.names.contains(&name) || self.revisions.iter().any(is_named);
        (is_made && is_old && !is_needed && text("deletionTimestamp").is_none()).then_some(Surplus {
            created,
            name,
            uid,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fleet::node::NodeRow;

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
        used.surplus(map, "2026-01-02T00:00:00Z".parse().unwrap()).is_some()
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
        for name in
            ["pool-a", "pool-a-", "pool-a-short", "pool-b-bcdfghkmtt", "pool-a-bcdfghkmtt-x", "pool-ä-bcdfghkmtt"]
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
            used.by_node(&PoolNode::from_row(NodeRow::from_node(&said, "ns")));
            assert_eq!(goes(&used, &map(FIRST, json!({}))), !stays, "{said}");
        }
    }
}
