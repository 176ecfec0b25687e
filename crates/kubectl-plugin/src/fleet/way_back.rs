//! Where a node goes back to. What the node says of itself names nothing that administrators did not make for it, for it is
//! written with the rights of whoever runs the command: the name must be one that `push` gives, and tell the content.

use super::node::NodeRow;
use kubelet_config::source::{ConfigMapRef, Source};

/// Where a node goes back to, and what has to hold of that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WayBack {
    /// What is last known good there.
    pub(crate) version: Source,
    /// What its name begins with; the rest has to tell its content.
    pub(crate) base: String,
}

/// Where the node goes back to.
///
/// # Errors
/// Why nobody can tell, and what to do.
pub(crate) fn way_back(row: &NodeRow) -> Result<WayBack, String> {
    if [&row.assigned, &row.active].into_iter().flatten().any(Source::is_source_dir) {
        return Err("it follows its source directory (--source-dir), not an assignment".to_owned());
    }
    let Some(desired) = &row.desired else { return Err("nothing is assigned".to_owned()) };
    let good = row.last_known_good.as_ref();
    if good.is_some_and(|good| good.reference == *desired && row.assigned.as_ref() == Some(good)) {
        return Err("what is assigned is last known good already; --to names another ConfigMap".to_owned());
    }
    if let Some((good, base)) = good.and_then(|good| Some((good, same_push(&good.reference, desired)?))) {
        return Ok(WayBack { version: good.clone(), base: base.to_owned() });
    }
    let says = good
        .map_or("its own configuration (`kubectl kubelet-config reset`)".to_owned(), |good| good.reference.to_string());
    Err(format!(
        "it was not pushed under the same name before, and what it says itself is not assigned unseen: it calls {says} last known \
         good. If that is right, say it: --to CONFIGMAP -n NAMESPACE"
    ))
}

/// What both names begin with, if both were pushed under the same name into the same namespace.
fn same_push<'a>(one: &'a ConfigMapRef, other: &ConfigMapRef) -> Option<&'a str> {
    // The hash has ten characters (`configmap_name.rs`).
    fn base(map: &ConfigMapRef) -> Option<&str> {
        map.name.rsplit_once('-').filter(|(_, hash)| hash.len() == 10).map(|(base, _)| base)
    }
    let same = one.namespace == other.namespace && one.kubelet_config_key == other.kubelet_config_key;
    base(one).filter(|name| same && base(other) == Some(*name))
}

/// Why a ConfigMap as it is now is not the version to go back to, if it is not.
pub(crate) fn is_other_version(back: &Source, uid: &str, version: &str) -> Option<String> {
    (back.uid != uid || back.resource_version != version).then(|| {
        format!(
            "last known good is version {} of ConfigMap {}/{}, which has been edited since (now {version}): on the node, \
             `kubelet-supervisor rollback` goes back to what it keeps; or --to names a ConfigMap with the old content",
            back.resource_version, back.reference.namespace, back.reference.name
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(namespace: &str, name: &str) -> ConfigMapRef {
        ConfigMapRef { namespace: namespace.into(), name: name.into(), kubelet_config_key: "kubelet".into() }
    }

    fn version(reference: ConfigMapRef) -> Source {
        Source { reference, resource_version: "1".into(), uid: "u".into() }
    }

    /// Assigned ns/new-2222222222.
    fn row(good: Option<ConfigMapRef>) -> NodeRow {
        let source = json!({"configMap": map("ns", "new-2222222222")});
        let node = json!({"metadata": {"name": "n1"}, "spec": {"configSource": source}});
        NodeRow { last_known_good: good.map(version), ..NodeRow::from_node(&node, "ns") }
    }

    #[test]
    fn a_node_names_nothing_that_was_not_pushed() {
        let secret = map("kube-system", "secret-1");
        for lie in [secret, map("kube-system", "new-1111111111"), map("ns", "other-1"), map("ns", "new")] {
            let why = way_back(&row(Some(lie.clone()))).unwrap_err();
            assert!(why.contains("--to CONFIGMAP") && why.contains(&lie.to_string()), "{why}");
        }
        assert!(way_back(&row(None)).unwrap_err().contains("reset"));
        let pushed = way_back(&row(Some(map("ns", "new-1111111111")))).unwrap();
        assert_eq!((pushed.version, pushed.base.as_str()), (version(map("ns", "new-1111111111")), "new"));
    }

    #[test]
    fn an_edited_config_map_is_another_version() {
        let back = version(map("ns", "old"));
        assert_eq!(is_other_version(&back, "u", "1"), None);
        assert!(is_other_version(&back, "u", "2").unwrap().contains("kubelet-supervisor rollback"));
    }
}
