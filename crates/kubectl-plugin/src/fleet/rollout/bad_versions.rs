//! Who called a version bad, and when that is over: when that very node has proven it, or when somebody says that the
//! node was to blame.

use super::sight::{Doing, Has, Sight};
use super::{Bad, ClearedVersion, Record, Target};

/// Marks and lifted marks of one record; of the latter the oldest go. A record is written every few seconds.
const KEPT: usize = 32;

/// What a node that called a version bad says now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// It is assigned, and last known good there.
    Proven,
    /// It is assigned, and the node says the same as then.
    Bad(String),
    /// It is assigned, and the node is on its way.
    Moving,
    /// Something else is assigned.
    Elsewhere,
    /// There is no such Node.
    Gone,
}

impl Word {
    /// As it is seen.
    #[must_use]
    pub fn of(sight: &Sight) -> Self {
        match (sight.has, &sight.doing) {
            (Has::Gone, _) => Self::Gone,
            (Has::Before | Has::Other, _) => Self::Elsewhere,
            (Has::Target, Doing::Proven) => Self::Proven,
            (Has::Target, Doing::Bad(why)) => Self::Bad(why.clone()),
            (Has::Target, _) => Self::Moving,
        }
    }
}

impl Target {
    /// Both are the same content.
    #[must_use]
    pub fn is_version(&self, other: &Self) -> bool {
        self.uid == other.uid && (self.immutable || self.resource_version == other.resource_version)
    }
}

impl Record {
    /// A node called it bad. One that is excused is not listened to; true if this is news.
    pub fn mark(&mut self, bad: Bad) -> bool {
        let news = self.is_news(&bad.node);
        if news {
            self.bad.push(bad);
        }
        news
    }

    /// That this node calls it bad is not known, counts, and has room.
    #[must_use]
    pub fn is_news(&self, node: &str) -> bool {
        self.bad.len() < KEPT && !self.bad.iter().any(|mark| mark.node == node) && !self.excuses(node)
    }

    /// What nodes of this rollout, not of others, say of that version.
    #[must_use]
    pub fn own_marks(&self, name: &str, target: &Target) -> Vec<Bad> {
        let own = self.bad.iter().filter(|bad| bad.from.is_none() && self.target.is_version(target));
        own.map(|bad| Bad { from: Some(name.to_owned()), ..bad.clone() }).collect()
    }

    /// Takes a node's mark away, and remembers how; false if there was none.
    pub fn lift(&mut self, node: &str, how: &str) -> bool {
        let Some(place) = self.bad.iter().position(|bad| bad.node == node) else { return false };
        let Bad { node, why, .. } = self.bad.remove(place);
        self.note(ClearedVersion { node, why, how: how.to_owned() });
        true
    }

    /// What this node says of the version counts for nothing any more.
    pub fn excuse(&mut self, lifted: &ClearedVersion) {
        let noted = self.lifted.iter().any(|it| it.node == lifted.node && it.how == lifted.how);
        if !self.lift(&lifted.node, &lifted.how) && !noted {
            self.note(lifted.clone());
        }
        if !self.excuses(&lifted.node) {
            self.despite.push(lifted.node.clone());
        }
    }

    /// It counts for nothing.
    #[must_use]
    pub fn excuses(&self, node: &str) -> bool {
        self.despite.iter().any(|name| name == node)
    }

    fn note(&mut self, lifted: ClearedVersion) {
        if self.lifted.len() >= KEPT {
            self.lifted.remove(0);
        }
        self.lifted.push(lifted);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{options, record};
    use super::*;

    fn bad(node: &str, from: Option<&str>) -> Bad {
        Bad { node: node.into(), why: "no".into(), from: from.map(str::to_owned) }
    }

    #[test]
    fn a_mark_is_heard_of_once_and_not_passed_on() {
        let (mut ours, mut theirs) = (record(3, options(1, 1)), record(3, options(1, 1)));
        theirs.bad = vec![bad("a", None), bad("b", Some("third"))];
        let marks = theirs.own_marks("theirs", &ours.target);
        assert_eq!(marks, [bad("a", Some("theirs"))]);
        assert!(ours.mark(marks[0].clone()) && !ours.mark(marks[0].clone()));
        assert!(ours.own_marks("ours", &theirs.target).is_empty());
        theirs.target.uid = "another".into();
        assert!(theirs.own_marks("theirs", &ours.target).is_empty(), "of something else");
    }

    #[test]
    fn what_is_lifted_is_remembered_and_who_is_excused_marks_nothing_any_more() {
        let mut record = record(3, options(1, 1));
        record.mark(bad("a", None));
        record.mark(bad("b", None));
        assert!(record.lift("a", "proven") && !record.lift("a", "proven"));
        let lifted = ClearedVersion { node: "b".into(), why: "no".into(), how: "--despite".into() };
        record.excuse(&lifted);
        record.excuse(&lifted);
        assert_eq!(
            (record.bad.len(), record.lifted.len(), record.despite.as_slice()),
            (0, 2, ["b".to_owned()].as_slice())
        );
        assert!(!record.mark(bad("b", None)) && record.mark(bad("a", None)));
        for number in 0..100 {
            record.mark(bad(&number.to_string(), None));
            record.lift(&number.to_string(), "proven");
        }
        assert_eq!(record.lifted.len(), KEPT);
    }
}
