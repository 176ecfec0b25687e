//! What a Node says, as a rollout understands it.

use std::time::Duration;

use super::drain::{Cordon, Drain};
use super::member::{Member, is_same};
use super::{Target, WaitFor};
use crate::fleet::assign::WrittenAssignment;
use crate::fleet::node::{NodeRow, Stage};
use kubelet_config::reported::ReportedCondition;
use kubelet_config::source::Source;

/// What a node is assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assigned {
    /// What is rolled out.
    Target,
    /// What it was assigned when the rollout began.
    Previous,
    /// What somebody else assigned since. It is left alone.
    Other,
    /// There is no such Node.
    Gone,
}

/// How far it is with that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It did not say, or is on its way.
    Updating,
    /// It runs, and its kubelet is healthy.
    Active,
    /// It is last known good.
    Proven,
    /// It refused it or went back, in its words.
    Bad(String),
}

/// For how long a node is so, as this client observed it; zero if it is not. A client that takes over starts at zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeTimers {
    /// Not Ready.
    pub(crate) unready: Duration,
    /// On its way.
    pub(crate) updating: Duration,
    /// Not able to take a change: not Ready, or held on the node.
    pub(crate) away: Duration,
    /// Cordoned, and not yet empty; once it is, empty and not yet sent.
    pub(crate) draining: Duration,
}

/// A node as it was last observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedNode {
    pub(crate) assigned: Assigned,
    /// It was assigned the target before the rollout began.
    pub(crate) same: bool,
    /// Somebody took the target from it again; it has, for us, something else.
    pub(crate) taken_back: bool,
    pub(crate) progress: Progress,
    pub(crate) ready: bool,
    /// An operator on the node lets no change in.
    pub(crate) held: bool,
    /// Whether Pods may come, and who says that they may not.
    pub(crate) cordon: Cordon,
    /// How far its drain is.
    pub(crate) drain: Drain,
    pub(crate) timers: NodeTimers,
}

impl ObservedNode {
    /// A Node that is not there.
    pub(crate) fn gone() -> Self {
        Self {
            assigned: Assigned::Gone,
            same: false,
            taken_back: false,
            progress: Progress::Updating,
            ready: false,
            held: false,
            cordon: Cordon::No,
            drain: Drain::Idle,
            timers: NodeTimers::default(),
        }
    }

    /// What the Node says, but for its cordon, which is a matter of one rollout. `prior`: its condition when it was assigned the target: old news.
    pub(crate) fn from_row(row: &NodeRow, member: &Member, target: &Target, prior: Option<&ReportedCondition>) -> Self {
        let is_target = |source: Option<&Source>| source.is_some_and(|source| source.reference == target.reference);
        let assigned = if row.desired.as_ref() == Some(&target.reference) {
            Assigned::Target
        } else if WrittenAssignment::from_row(row) == member.before {
            Assigned::Previous
        } else {
            Assigned::Other
        };
        let progress = match assigned {
            Assigned::Target => progress(row, target, prior),
            _ if is_target(row.active.as_ref()) || is_target(row.assigned.as_ref()) => Progress::Updating,
            _ => Progress::Active,
        };
        Self {
            assigned,
            same: is_same(&member.before, target),
            taken_back: false,
            progress,
            ready: row.ready,
            held: row.stage() == Stage::Held,
            cordon: Cordon::No,
            drain: Drain::Idle,
            timers: NodeTimers::default(),
        }
    }

    /// Done, as far as the rollout waits for it.
    pub(crate) fn is_settled(&self, wait_for: WaitFor) -> bool {
        self.assigned == Assigned::Target
            && match self.progress {
                Progress::Proven => true,
                Progress::Active => wait_for == WaitFor::Active && self.ready,
                _ => false,
            }
    }

    /// It cannot take a change now, and did not get one.
    pub(crate) fn is_away(&self) -> bool {
        match self.assigned {
            Assigned::Previous => !self.ready || self.held,
            Assigned::Target => self.same && self.progress == Progress::Updating && (!self.ready || self.held),
            Assigned::Other | Assigned::Gone => false,
        }
    }
}

fn progress(row: &NodeRow, target: &Target, prior: Option<&ReportedCondition>) -> Progress {
    let message = || {
        let said = row.condition.as_ref().map(|condition| condition.message.clone()).filter(|it| !it.is_empty());
        said.or_else(|| row.invalid.clone()).unwrap_or_else(|| row.error.clone())
    };
    // That its ConfigMap cannot be had a node says before it knows a version of it. Of which one it speaks is known only
    // if it was assigned that already, or if this client saw what it said before; otherwise the timeout tells.
    let reason = row.condition.as_ref().map_or("", |condition| condition.reason.as_str());
    if reason == "SyncFailed" {
        let assigned = row.assigned.as_ref().is_some_and(|assigned| assigned.reference == target.reference);
        let is_new = row.condition.as_ref() != prior && (prior.is_some() || assigned);
        return if is_new { Progress::Bad(message()) } else { Progress::Updating };
    }
    let same = |source: &Source| {
        source.reference == target.reference
            && source.uid == target.uid
            && (target.immutable || source.resource_version == target.resource_version)
    };
    if !row.assigned.as_ref().is_some_and(same) {
        return Progress::Updating;
    }
    match row.stage() {
        // The node had troubles of its own, and says itself that the version is not to blame.
        Stage::Failed if reason == "NotToBlame" => Progress::Updating,
        Stage::Failed => Progress::Bad(message()),
        Stage::Proven => Progress::Proven,
        // Held on the node, with this very version: nothing is outstanding.
        Stage::Held if row.active == row.assigned && row.last_known_good == row.assigned => Progress::Proven,
        // Before, the Node's Ready may be of the kubelet that was stopped.
        Stage::OnTrial | Stage::AwaitsConfirmation if row.is_well() => Progress::Active,
        _ => Progress::Updating,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use kubelet_config::assignment::LABELS;
    use kubelet_config::source::ConfigMapRef;
    use kubelet_config::status::{CONDITION, STATUS_ANNOTATION};

    fn target() -> Target {
        Target {
            reference: ConfigMapRef { namespace: "n".into(), name: "m".into(), kubelet_config_key: "kubelet".into() },
            uid: "u".into(),
            resource_version: "7".into(),
            immutable: false,
        }
    }

    fn map(name: &str, version: &str) -> Value {
        json!({"configMap": {"namespace": "n", "name": name, "kubeletConfigKey": "kubelet", "uid": "u", "resourceVersion": version}})
    }

    fn row(desired: Option<&str>, status: &Value, reason: &str) -> NodeRow {
        let labels = desired.map_or(json!({}), |name| json!({format!("{LABELS}name"): name}));
        let node = json!({
            "metadata": {"name": "n1", "labels": labels, "annotations": {STATUS_ANNOTATION: status.to_string()}},
            "status": {"conditions": [{"type": CONDITION, "status": "False", "reason": reason, "message": "words"},
                {"type": "Ready", "status": "True"}]},
        });
        NodeRow::from_node(&node, "n")
    }

    fn see(row: &NodeRow) -> (Assigned, Progress) {
        let node = ObservedNode::from_row(
            row,
            &Member { name: "n1".into(), before: WrittenAssignment::default() },
            &target(),
            None,
        );
        (node.assigned, node.progress)
    }

    #[test]
    fn only_what_a_node_says_of_the_target_counts() {
        let bad = json!({"assigned": map("m", "7"), "error": "failed"});
        assert_eq!(see(&row(Some("m"), &bad, "Rejected")), (Assigned::Target, Progress::Bad("words".into())));
        let old = json!({"assigned": map("old", "7"), "error": "failed"});
        assert_eq!(see(&row(Some("m"), &old, "Rejected")), (Assigned::Target, Progress::Updating));
        let edited = json!({"assigned": map("m", "6"), "active": map("m", "6"), "lastKnownGood": map("m", "6")});
        assert_eq!(
            see(&row(Some("m"), &edited, "LastKnownGood")),
            (Assigned::Target, Progress::Updating),
            "another version"
        );
        let proven = json!({"assigned": map("m", "7"), "active": map("m", "7"), "lastKnownGood": map("m", "7")});
        assert_eq!(see(&row(Some("m"), &proven, "LastKnownGood")), (Assigned::Target, Progress::Proven));
        assert_eq!(see(&row(Some("x"), &proven, "LastKnownGood")).0, Assigned::Other);
        assert_eq!(
            see(&row(None, &proven, "LastKnownGood")),
            (Assigned::Previous, Progress::Updating),
            "on its way back"
        );
        assert_eq!(see(&row(None, &json!({}), "Local")), (Assigned::Previous, Progress::Active));
    }

    #[test]
    fn a_config_map_that_cannot_be_had_is_bad_if_the_condition_is_new() {
        let failed = |assigned: &str| {
            row(Some("m"), &json!({"assigned": map(assigned, "7"), "error": "failed to sync"}), "SyncFailed")
        };
        let member = Member { name: "n1".into(), before: WrittenAssignment::default() };
        let see = |row: &NodeRow, prior: Option<&ReportedCondition>| {
            ObservedNode::from_row(row, &member, &target(), prior).progress
        };
        let (old, new) = (failed("old"), failed("m"));
        let other = ReportedCondition { message: "of another one".into(), ..old.condition.clone().unwrap() };
        assert_eq!(see(&old, Some(&other)), Progress::Bad("words".into()));
        assert_eq!(see(&old, old.condition.as_ref()), Progress::Updating, "it said so before");
        assert_eq!(see(&old, None), Progress::Updating, "a client that took over does not know");
        assert_eq!(see(&new, None), Progress::Bad("words".into()), "it speaks of the target");
    }

    #[test]
    fn a_node_in_trouble_of_its_own_says_nothing_of_the_version() {
        let status = json!({"assigned": map("m", "7"), "active": map("old", "1"), "error": "failed"});
        assert_eq!(see(&row(Some("m"), &status, "NotToBlame")), (Assigned::Target, Progress::Updating));
        assert_eq!(see(&row(Some("m"), &status, "RolledBack")), (Assigned::Target, Progress::Bad("words".into())));
    }
}
