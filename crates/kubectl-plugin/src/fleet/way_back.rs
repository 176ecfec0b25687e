//! Where a node goes back to, by what administrators wrote: the records of rollouts, and the names of what was pushed. What
//! the node says of itself chooses among these and names nothing else, for it is written with the rights of whoever runs the
//! command.

use super::assign::WrittenAssignment;
use super::node::NodeRow;
use kubelet_config::assignment::{self, Assignment, LABELS, reference_fault};
use kubelet_config::source::{ConfigMapRef, Source};

/// What the record of one rollout says of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordedStep {
    /// When it began, RFC 3339.
    pub(crate) started: String,
    /// What the node was assigned before it, and by it, as far as that is known; none is its own configuration.
    pub(crate) assigned: Vec<Option<ConfigMapRef>>,
}

/// Where a node goes back to, and what has to hold of that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WayBack {
    /// None is its own configuration.
    pub(crate) target: Option<ConfigMapRef>,
    /// The version of it that is last known good there, if it is that.
    pub(crate) version: Option<Source>,
    /// Nothing but its name says that somebody made it for nodes: that has to tell its content, after this beginning.
    pub(crate) pushed: Option<String>,
}

/// An assignment as it stands in a record; none is the node's own configuration. `namespace`: of labels that name none.
///
/// # Errors
/// Why it names nothing that can be.
pub(crate) fn recorded(before: &WrittenAssignment, namespace: &str) -> Result<Option<ConfigMapRef>, String> {
    if let Some(native) = &before.native {
        return reference_fault(native).map_or(Ok(Some(native.clone())), |(_, why)| Err(why));
    }
    let labels = before.labels.iter().map(|(name, value)| (format!("{LABELS}{name}"), value.clone())).collect();
    match assignment::from_labels(&labels, namespace) {
        Assignment::Map(reference) => Ok(Some(reference)),
        Assignment::Invalid(why) => Err(why),
        _ => Ok(None),
    }
}

/// Where the node goes back to.
///
/// # Errors
/// Why nobody can tell, and what to do.
pub(crate) fn way_back(row: &NodeRow, steps: &[RecordedStep]) -> Result<WayBack, String> {
    if [&row.assigned, &row.active].into_iter().flatten().any(Source::is_source_dir) {
        return Err("it follows its source directory (--source-dir), not an assignment".to_owned());
    }
    let Some(desired) = &row.desired else { return Err("nothing is assigned".to_owned()) };
    let good = row.last_known_good.as_ref();
    if good.is_some_and(|good| good.reference == *desired && row.assigned.as_ref() == Some(good)) {
        return Err("what is assigned is last known good already; --to names another ConfigMap".to_owned());
    }
    let mut steps: Vec<&RecordedStep> = steps.iter().collect();
    steps.sort_by(|one, other| one.started.cmp(&other.started));
    let history = steps.iter().flat_map(|step| step.assigned.iter().cloned());
    let history: Vec<Option<ConfigMapRef>> = history.filter(|entry| entry.as_ref() != Some(desired)).collect();
    let plain = |target: Option<ConfigMapRef>| WayBack { target, version: None, pushed: None };
    let named = good.map(|good| good.reference.clone());
    if history.contains(&named) {
        return Ok(WayBack { version: good.cloned(), ..plain(named) });
    }
    if let Some(latest) = history.into_iter().next_back() {
        return Ok(plain(latest));
    }
    let pushed = good.and_then(|good| Some((good, same_push(&good.reference, desired)?)));
    if let Some((good, base)) = pushed {
        return Ok(WayBack { target: named, version: Some(good.clone()), pushed: Some(base.to_owned()) });
    }
    let says = good
        .map_or("its own configuration (`kubectl kubelet-config reset`)".to_owned(), |good| good.reference.to_string());
    Err(format!(
        "no record of a rollout says what it had before, and what it says itself is not assigned unseen: it calls {says} last known \
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

    fn step(started: &str, before: Option<ConfigMapRef>, target: Option<ConfigMapRef>) -> RecordedStep {
        RecordedStep {
            started: started.into(),
            assigned: [Some(before), target.map(Some)].into_iter().flatten().collect(),
        }
    }

    fn target(row: &NodeRow, steps: &[RecordedStep]) -> Result<Option<String>, String> {
        way_back(row, steps).map(|way| way.target.map(|map| map.to_string()))
    }

    #[test]
    fn a_node_chooses_among_what_administrators_wrote_and_nothing_else() {
        let secret = map("kube-system", "secret-1");
        let to = |name: &str| Ok(Some(format!("ns/{name}[kubelet]")));
        let steps = [
            step("2", Some(map("ns", "b")), Some(map("ns", "new-2222222222"))),
            step("1", Some(map("ns", "a")), Some(map("ns", "b"))),
        ];
        assert_eq!(target(&row(Some(secret.clone())), &steps), to("b"), "what it had when the rollout began");
        assert_eq!(target(&row(None), &steps), to("b"));
        assert_eq!(target(&row(Some(map("ns", "a"))), &steps), to("a"), "of what it had, what is good there");
        let way = way_back(&row(Some(map("ns", "a"))), &steps).unwrap();
        assert_eq!(way.version, Some(version(map("ns", "a"))), "and in that version");
        assert_eq!(
            target(&row(None), &[step("1", None, Some(map("ns", "new-2222222222")))]),
            Ok(None),
            "its own configuration"
        );
        for lie in [secret, map("kube-system", "new-1111111111"), map("ns", "other-1"), map("ns", "new")] {
            let why = target(&row(Some(lie.clone())), &[]).unwrap_err();
            assert!(why.contains("--to CONFIGMAP") && why.contains(&lie.to_string()), "{why}");
        }
        assert!(target(&row(None), &[]).unwrap_err().contains("reset"));
        let pushed = way_back(&row(Some(map("ns", "new-1111111111"))), &[]).unwrap();
        assert_eq!((pushed.target, pushed.pushed.as_deref()), (Some(map("ns", "new-1111111111")), Some("new")));
    }

    #[test]
    fn what_a_record_has_is_read_and_what_cannot_be_is_not() {
        let native = |map: ConfigMapRef| WrittenAssignment { native: Some(map), labels: [].into() };
        assert_eq!(recorded(&native(map("ns", "m")), "x"), Ok(Some(map("ns", "m"))));
        assert!(recorded(&native(map("ns/..", "m")), "x").is_err());
        let labels =
            |name: &str| WrittenAssignment { native: None, labels: [("name".to_owned(), name.to_owned())].into() };
        assert_eq!(recorded(&labels("m"), "ns"), Ok(Some(map("ns", "m"))));
        assert!(recorded(&labels("../m"), "ns").is_err());
        assert_eq!(recorded(&WrittenAssignment::default(), "ns"), Ok(None));
        let back = version(map("ns", "old"));
        assert_eq!(is_other_version(&back, "u", "1"), None);
        assert!(is_other_version(&back, "u", "2").unwrap().contains("kubelet-supervisor rollback"));
    }
}
