//! Which nodes called a version bad, and when that is over: when that very node has proven it, or when somebody says that
//! the node was at fault.

use super::observed::{Assigned, ObservedNode, Progress};
use super::{BadVersion, ClearedVersion, Record, Target};

/// Reports of a bad version in one record, and as many cleared ones; of these the oldest are dropped. A record is written
/// every few seconds.
const REMEMBERED: usize = 32;

/// What a node that called a version bad says now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodeVerdict {
    /// It is assigned, and last known good there.
    Proven,
    /// It is assigned, and the node says the same as then.
    Bad(String),
    /// It is assigned, and the node is not done with it.
    Updating,
    /// Something else is assigned.
    OtherAssigned,
    /// There is no such Node.
    Gone,
}

impl NodeVerdict {
    pub(crate) fn from_observed(node: &ObservedNode) -> Self {
        match (node.assigned, &node.progress) {
            (Assigned::Gone, _) => Self::Gone,
            (Assigned::Previous | Assigned::Other, _) => Self::OtherAssigned,
            (Assigned::Target, Progress::Proven) => Self::Proven,
            (Assigned::Target, Progress::Bad(why)) => Self::Bad(why.clone()),
            (Assigned::Target, _) => Self::Updating,
        }
    }
}

impl Target {
    /// Both are the same content.
    pub(crate) fn is_same_content(&self, other: &Self) -> bool {
        self.uid == other.uid && (self.immutable || self.resource_version == other.resource_version)
    }
}

impl Record {
    /// Adds the report of a node that is not excluded; true if it was added.
    pub(crate) fn add_bad(&mut self, bad: BadVersion) -> bool {
        let added = self.is_new_bad(&bad.node);
        if added {
            self.bad.push(bad);
        }
        added
    }

    /// No report of this node is known, the node is not excluded, and there is room.
    pub(crate) fn is_new_bad(&self, node: &str) -> bool {
        self.bad.len() < REMEMBERED && !self.bad.iter().any(|known| known.node == node) && !self.excludes(node)
    }

    /// The reports on that version by nodes of this rollout, not of others.
    pub(crate) fn own_bad_versions(&self, name: &str, target: &Target) -> Vec<BadVersion> {
        let own = self.bad.iter().filter(|bad| bad.from.is_none() && self.target.is_same_content(target));
        own.map(|bad| BadVersion { from: Some(name.to_owned()), ..bad.clone() }).collect()
    }

    /// Clears the report of this node, which is remembered; false if there is none.
    pub(crate) fn clear_bad(&mut self, node: &str, how: &str) -> bool {
        let Some(index) = self.bad.iter().position(|bad| bad.node == node) else { return false };
        let BadVersion { node, why, .. } = self.bad.remove(index);
        self.remember_cleared(ClearedVersion { node, why, how: how.to_owned() });
        true
    }

    /// Clears the report of this node, and takes no other one from it.
    pub(crate) fn exclude(&mut self, cleared: &ClearedVersion) {
        let known = self.cleared.iter().any(|it| it.node == cleared.node && it.how == cleared.how);
        if !self.clear_bad(&cleared.node, &cleared.how) && !known {
            self.remember_cleared(cleared.clone());
        }
        if !self.excludes(&cleared.node) {
            self.excluded_nodes.push(cleared.node.clone());
        }
    }

    /// No report is taken from this node.
    pub(crate) fn excludes(&self, node: &str) -> bool {
        self.excluded_nodes.iter().any(|name| name == node)
    }

    fn remember_cleared(&mut self, cleared: ClearedVersion) {
        if self.cleared.len() >= REMEMBERED {
            self.cleared.remove(0);
        }
        self.cleared.push(cleared);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{options, record};
    use super::*;

    fn bad(node: &str, from: Option<&str>) -> BadVersion {
        BadVersion { node: node.into(), why: "no".into(), from: from.map(str::to_owned) }
    }

    #[test]
    fn a_bad_version_is_added_once_and_not_passed_on() {
        let (mut ours, mut theirs) = (record(3, options(1, 1)), record(3, options(1, 1)));
        theirs.bad = vec![bad("a", None), bad("b", Some("third"))];
        let reports = theirs.own_bad_versions("theirs", &ours.target);
        assert_eq!(reports, [bad("a", Some("theirs"))]);
        assert!(ours.add_bad(reports[0].clone()) && !ours.add_bad(reports[0].clone()));
        assert!(ours.own_bad_versions("ours", &theirs.target).is_empty());
        theirs.target.uid = "another".into();
        assert!(theirs.own_bad_versions("theirs", &ours.target).is_empty(), "of something else");
    }

    #[test]
    fn what_is_cleared_is_remembered_and_an_excluded_node_is_not_added() {
        let mut record = record(3, options(1, 1));
        record.add_bad(bad("a", None));
        record.add_bad(bad("b", None));
        assert!(record.clear_bad("a", "proven") && !record.clear_bad("a", "proven"));
        let cleared = ClearedVersion { node: "b".into(), why: "no".into(), how: "--despite".into() };
        record.exclude(&cleared);
        record.exclude(&cleared);
        assert_eq!(
            (record.bad.len(), record.cleared.len(), record.excluded_nodes.as_slice()),
            (0, 2, ["b".to_owned()].as_slice())
        );
        assert!(!record.add_bad(bad("b", None)) && record.add_bad(bad("a", None)));
        for number in 0..100 {
            record.add_bad(bad(&number.to_string(), None));
            record.clear_bad(&number.to_string(), "proven");
        }
        assert_eq!(record.cleared.len(), REMEMBERED);
    }
}
