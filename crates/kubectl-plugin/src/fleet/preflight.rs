//! What many nodes say of one configuration, told by answer and not by node.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use kubelet_config::bounds::first_of;
use kubelet_config::preflight::{PreflightResult, PreflightStatus};
use kubelet_config::reported;

/// So many names stand on a line.
const NAMED: usize = 3;

/// What came of asking a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// It answered.
    Answered(PreflightResult),
    /// Nobody is there to answer.
    NoSupervisor,
    /// It has not answered in time.
    Silent,
    /// It could not be asked.
    NotAsked,
    /// There is no such node, or not any more.
    Gone,
}

impl Outcome {
    /// As JSON has it.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Answered(result) => result.as_str(),
            Self::NoSupervisor => "NoSupervisor",
            Self::Silent => "Silent",
            Self::NotAsked => "NotAsked",
            Self::Gone => "Gone",
        }
    }

    fn phrase(&self) -> &'static str {
        match self {
            Self::Answered(PreflightResult::Valid) => "valid",
            Self::Answered(PreflightResult::Invalid) => "invalid",
            Self::Answered(PreflightResult::Hazard) => "refused for a hazard",
            Self::Answered(PreflightResult::PodsLost) => "would lose pods",
            Self::Answered(PreflightResult::PolicyRefused) => "refused by the node's policy",
            Self::Answered(PreflightResult::Inconclusive) => "cannot tell",
            Self::NoSupervisor => "without a supervisor",
            Self::Silent => "silent",
            Self::NotAsked => "could not be asked",
            Self::Gone => "gone",
        }
    }
}

/// Nodes that said the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) nodes: Vec<String>,
    /// Pods that would be lost, of all of them; each node names some.
    pub(crate) pods: Vec<String>,
    /// How many they are, as far as that is known.
    pub(crate) pods_lost: usize,
}

/// The outcome, the kubelet's version, and the words.
pub(crate) type Said = (Outcome, String, String);

/// What all nodes said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answers(BTreeMap<Said, Group>);

impl Answers {
    /// A node's answer. What valid ones remark, and which pods would go, makes no group of its own.
    pub(crate) fn answered(&mut self, node: &str, status: &PreflightStatus) {
        let message = match status.result {
            PreflightResult::Valid | PreflightResult::PodsLost => "",
            _ => &status.message,
        };
        // What a digest is in the path of, differs from node to node.
        let message =
            if status.digest.is_empty() { message.to_owned() } else { message.replace(&status.digest, "…") };
        let said = (Outcome::Answered(status.result), status.kubelet_version.clone(), message);
        let group = self.0.entry(said).or_default();
        group.nodes.push(node.to_owned());
        group.pods.extend(status.pods.iter().cloned());
        group.pods_lost += status.pods_lost.max(status.pods.len());
    }

    /// A node that has none.
    pub(crate) fn unanswered(&mut self, node: &str, outcome: Outcome, why: &str) {
        let said = (outcome, String::new(), reported::text(why));
        self.0.entry(said).or_default().nodes.push(node.to_owned());
    }

    /// Sorted: equal answers give equal texts.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (&Said, Group)> {
        self.0.iter().map(|(said, group)| {
            let mut group = group.clone();
            group.nodes.sort();
            group.pods.sort();
            (said, group)
        })
    }

    pub(crate) fn all_valid(&self) -> bool {
        self.0.keys().all(|(outcome, ..)| *outcome == Outcome::Answered(PreflightResult::Valid))
    }

    /// One line: `4962 valid; 31 invalid (kubelet v1.27.3): …; 7 would lose pods: n1, n2, n3 and 4 more`.
    pub(crate) fn summary(&self) -> String {
        use Outcome::{Answered, Gone, NoSupervisor, Silent};
        let part = |((outcome, version, message), group): (&Said, Group)| {
            let count = format!("{} {}", group.nodes.len(), outcome.phrase());
            match outcome {
                Answered(PreflightResult::PodsLost) | Silent | NoSupervisor | Gone => {
                    format!("{count}: {}", names(&group.nodes))
                }
                _ if version.is_empty() => format!("{count}: {message}"),
                _ => format!("{count} (kubelet {version}): {message}"),
            }
        };
        let of_valid = |said: &Said| said.0 == Answered(PreflightResult::Valid);
        // Of valid ones nobody asks for the version.
        let valid: usize = self.groups().filter(|(said, _)| of_valid(said)).map(|(_, group)| group.nodes.len()).sum();
        let first = (valid > 0).then(|| format!("{valid} valid"));
        let rest = self.groups().filter(|(said, _)| !of_valid(said)).map(part);
        first.into_iter().chain(rest).collect::<Vec<_>>().join("; ")
    }

    /// For programs.
    pub(crate) fn document(&self, request: &str) -> Value {
        let groups = self.groups().map(|((outcome, version, message), group)| {
            json!({
                "result": outcome.label(), "kubeletVersion": version, "message": message,
                "count": group.nodes.len(), "nodes": group.nodes, "pods": group.pods,
                "podsLost": group.pods_lost,
            })
        });
        json!({"request": request, "summary": self.summary(), "valid": self.all_valid(), "groups": groups.collect::<Vec<_>>()})
    }
}

/// Some of them.
pub(crate) fn names(nodes: &[String]) -> String {
    first_of(nodes, NAMED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_from_node_to_node_makes_no_group() {
        let mut answers = Answers::default();
        for node in 0..4 {
            let (name, digest) = (format!("node-{node}"), format!("d{node}"));
            let invalid = PreflightStatus::new("n/m", PreflightResult::Invalid, &format!("configs/{digest}: gate X"));
            answers.answered(&name, &PreflightStatus { digest, ..invalid });
            let pods = vec![format!("d/p{node}")];
            let lost = PreflightStatus::new("n/m", PreflightResult::PodsLost, &pods[0]);
            answers.answered(&name, &PreflightStatus { pods, ..lost });
        }
        let nodes = "node-0, node-1, node-2 and 1 more";
        assert_eq!(answers.summary(), format!("4 invalid: configs/…: gate X; 4 would lose pods: {nodes}"));
        assert_eq!(answers.document("n/m")["groups"][1]["pods"], json!(["d/p0", "d/p1", "d/p2", "d/p3"]));
    }
}
