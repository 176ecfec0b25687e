//! `doctor`: what is missing on a cluster or a node, and the commands that mend it.

pub(crate) mod pools;
pub mod rights;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::node::{Carrier, ConfigManager, NodeRow, Stage};
use kubelet_config::assignment::{Assignment, LABELS, from_labels};
use kubelet_config::flags::KEY_SUFFIX as FLAGS_SUFFIX;
use kubelet_config::policy::KEY_SUFFIX as SIGNATURE_SUFFIX;
use kubelet_config::reported::{ReportedSupervisor, plain};
use kubelet_config::schema;
use kubelet_config::source::ConfigMapRef;

/// Something that is missing or wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) check: &'static str,
    /// The nodes it is about; none: the cluster.
    pub(crate) nodes: Vec<String>,
    pub(crate) problem: String,
    /// What mends it, for the first of the nodes: commands, in this order.
    pub(crate) mend: Vec<String>,
}

impl Finding {
    /// About the cluster.
    pub(crate) fn of_cluster(check: &'static str, problem: impl Into<String>, mend: Vec<String>) -> Self {
        Self { check, nodes: Vec::new(), problem: plain(&problem.into()), mend }
    }

    fn of_node(check: &'static str, node: &str, problem: impl Into<String>, mend: Vec<String>) -> Self {
        Self { nodes: vec![node.to_owned()], ..Self::of_cluster(check, problem, mend) }
    }

    pub(crate) fn document(&self) -> Value {
        json!({"check": self.check, "nodes": self.nodes, "problem": self.problem, "mend": self.mend})
    }
}

/// A word for a shell.
pub(crate) fn quoted(word: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_.:/=@,".contains(c);
    if !word.is_empty() && word.chars().all(safe) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// What a Node says that `doctor` wants to know, and no more: there may be thousands.
#[derive(Clone, Debug)]
pub(crate) struct ExaminedNode {
    row: NodeRow,
    /// What the labels ask for, whoever wins.
    labels: Assignment,
    /// A namespace or key without a name.
    lonely: bool,
    /// The supervisor's version; none where it has not told.
    version: Option<String>,
    /// Fields that flags win over.
    shadowed: Vec<String>,
    /// Whether it has a policy.
    policy: Option<String>,
    /// Why no kubelet starts with its own files.
    own_files: Option<String>,
}

impl ExaminedNode {
    pub(crate) fn new(node: &Value, namespace: &str) -> Self {
        let mut row = NodeRow::from_node(node, namespace);
        let label = |name: &str| row.labels.get(&format!("{LABELS}{name}")).is_some_and(|value| !value.is_empty());
        let lonely = !label("name") && (label("namespace") || label("key"));
        let labels = from_labels(&row.labels, namespace);
        row.labels = BTreeMap::new();
        let ReportedSupervisor { version, shadowed, policy, own_files } = ReportedSupervisor::from_node(node);
        Self { row, labels, lonely, version, shadowed, policy, own_files }
    }

    pub(crate) fn name(&self) -> &str {
        &self.row.name
    }

    /// What is assigned, and where that is written.
    pub(crate) fn assigned(&self) -> Option<(Carrier, &ConfigMapRef)> {
        Some((self.row.carrier?, self.row.desired.as_ref()?))
    }

    /// What is wrong with this Node, as far as it says so itself.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        self.assignment(&mut found);
        self.manager(&mut found);
        if self.row.manager == Some(ConfigManager::Supervisor) {
            self.state(&mut found);
        }
        if self.policy.as_deref() == Some("unreadable") {
            let problem = "its policy cannot be read, so nothing new is taken up there";
            let mend = vec!["on the node: kubelet-supervisor policy check".to_owned()];
            found.push(Finding::of_node("policy-unreadable", &self.row.name, problem, mend));
        }
        if let Some(why) = &self.own_files {
            let problem = format!("its own files cannot be used, so no kubelet starts with them: {why}");
            let mend = vec![
                "on the node: mend the file; kubelet-supervisor render --effective says whether it can be read"
                    .to_owned(),
            ];
            found.push(Finding::of_node("own-files", &self.row.name, problem, mend));
        }
        if !self.shadowed.is_empty() {
            let problem = format!("flags of the kubelet's command line win over {}", self.shadowed.join(", "));
            let mend = vec!["on the node: take them out of KUBELET_EXTRA_ARGS or kubeadm-flags.env".to_owned()];
            found.push(Finding::of_node("shadowed-fields", &self.row.name, problem, mend));
        }
        found
    }

    /// Whether its supervisor is older than this version.
    pub(crate) fn is_older(&self, newest: &str) -> Option<Finding> {
        if self.row.manager != Some(ConfigManager::Supervisor) {
            return None;
        }
        let own = self.version.as_deref().unwrap_or("too old to tell its version");
        let older = self.version.as_deref().is_none_or(|own| release(own) < release(newest));
        let mend = vec!["on the node, once the new package is there: systemctl restart kubelet".to_owned()];
        let problem = format!("its supervisor is {own}; the newest among these nodes is {newest}");
        older.then(|| Finding::of_node("old-supervisor", &self.row.name, problem, mend))
    }

    fn assignment(&self, found: &mut Vec<Finding>) {
        let node = &self.row.name;
        let unlabel =
            || vec![format!("kubectl label node {} {LABELS}name- {LABELS}namespace- {LABELS}key-", quoted(node))];
        if let (Some(Carrier::Native), Assignment::Map(labels)) = (self.row.carrier, &self.labels)
            && self.row.desired.as_ref() != Some(labels)
        {
            let source = self.row.desired.as_ref().map_or_else(|| "nothing".to_owned(), ConfigMapRef::to_string);
            let problem =
                format!("two assignments: spec.configSource says {source}, which wins, and labels say {labels}");
            found.push(Finding::of_node("contradicting-assignments", node, problem, unlabel()));
        }
        if self.lonely {
            let problem =
                format!("the labels {LABELS}namespace or {LABELS}key say where, and no label {LABELS}name says what");
            found.push(Finding::of_node("incomplete-assignment", node, problem, unlabel()));
        }
        if let Some(why) = &self.row.invalid {
            let problem = format!("the assignment cannot be: {why}");
            found.push(Finding::of_node("invalid-assignment", node, problem, unlabel()));
        }
    }

    fn manager(&self, found: &mut Vec<Finding>) {
        let node = &self.row.name;
        let problem = match self.row.manager {
            Some(ConfigManager::Nobody) | None => {
                let assigned =
                    self.row.desired.as_ref().map(|desired| format!(", and nobody follows its assignment {desired}"));
                Some(format!(
                    "no supervisor, or none that ever reached the API server: neither its annotation nor its condition is there{}",
                    assigned.unwrap_or_default()
                ))
            }
            Some(ConfigManager::Native) if schema::minor(&self.row.kubelet).map_or(true, |minor| minor >= 24) => {
                Some(format!(
                    "no supervisor: status.config is left from former days, and kubelet {} cannot follow an assignment itself",
                    self.row.kubelet
                ))
            }
            _ => None,
        };
        if let Some(problem) = problem {
            let enable = "on the node: kubelet-supervisor enable && systemctl restart kubelet";
            found.push(Finding::of_node("no-supervisor", node, problem, vec![enable.to_owned()]));
        }
        if self.row.manager == Some(ConfigManager::Supervisor) && self.row.desired.is_some() && !self.row.ready {
            let command = format!("kubectl describe node {}", quoted(node));
            let problem = "the node is not Ready; what it says of its configuration may be old";
            found.push(Finding::of_node("not-ready", node, problem, vec![command]));
        }
    }

    fn state(&self, found: &mut Vec<Finding>) {
        let node = &self.row.name;
        let condition = self.row.condition.clone().unwrap_or_default();
        let name = quoted(node);
        match self.row.stage() {
            Stage::Held => {
                let undo = if condition.reason == "Frozen" { "thaw" } else { "unpin" };
                let problem = format!("it does not follow its assignment: {}", condition.message);
                let mend = vec![format!("on the node: kubelet-supervisor {undo}")];
                found.push(Finding::of_node("held", node, problem, mend));
            }
            // What is wrong with the assignment itself is said already.
            Stage::Failed if self.row.invalid.is_none() => {
                let problem = format!("what is assigned does not run ({}): {}", condition.reason, condition.message);
                let history = format!("kubectl kubelet-config history {name}");
                let retry = format!("kubectl kubelet-config retry {name}");
                let mend = match condition.reason.as_str() {
                    // The ConfigMap and the rights to it are looked at one by one.
                    "SyncFailed" => vec![history],
                    // It is tried again if the cause was on the node; usually the configuration must change.
                    "Rejected" => vec![history, retry, self.push(), self.assign()],
                    _ => vec![history, retry],
                };
                found.push(Finding::of_node("failed", node, problem, mend));
            }
            Stage::AwaitsConfirmation => {
                let mend = vec![format!("kubectl kubelet-config confirm {name}")];
                found.push(Finding::of_node("unconfirmed", node, condition.message, mend));
            }
            _ => {}
        }
    }

    /// Another configuration beside the one that is assigned.
    fn push(&self) -> String {
        format!("{} push FILE --name BASE", self.command())
    }

    fn assign(&self) -> String {
        format!("{} assign CONFIGMAP {}", self.command(), quoted(self.name()))
    }

    /// The plugin, in the namespace of what is assigned.
    fn command(&self) -> String {
        let namespace = self.row.desired.as_ref().map_or("NAMESPACE", |desired| desired.namespace.as_str());
        format!("kubectl kubelet-config -n {}", quoted(namespace))
    }

    /// Why this assignment leads nowhere, given the keys of the ConfigMap; `None`: there is no such ConfigMap.
    pub(crate) fn config_map(&self, keys: Option<&BTreeSet<String>>) -> Option<Finding> {
        let (carrier, desired) = self.assigned()?;
        let (node, ConfigMapRef { namespace, name, kubelet_config_key: key }) = (quoted(self.name()), desired);
        let Some(keys) = keys else {
            let problem = format!("there is no ConfigMap {namespace}/{name}, which is assigned");
            let mend = vec![self.push(), format!("kubectl kubelet-config reset {node}")];
            return Some(Finding::of_node("no-config-map", self.name(), problem, mend));
        };
        if keys.contains(key) {
            return None;
        }
        let has: Vec<&str> = keys.iter().map(String::as_str).take(5).collect();
        let shown = if has.is_empty() { "nothing".to_owned() } else { has.join(", ") };
        let problem = format!("ConfigMap {namespace}/{name} has no key {key}, which is assigned; it has {shown}");
        // Whichever of several is a kubelet's, whoever mends it knows: an assignment of another is as bad.
        let is_beside = |key: &&String| key.ends_with(FLAGS_SUFFIX) || key.ends_with(SIGNATURE_SUFFIX);
        let candidates: Vec<&String> = keys.iter().filter(|key| !is_beside(key)).collect();
        let other = if let [only] = candidates[..] { only } else { "KEY" };
        let mend = match carrier {
            Carrier::Labels => format!("kubectl label --overwrite node {node} {LABELS}key={}", quoted(other)),
            Carrier::Native => {
                let patch = json!({"spec": {"configSource": {"configMap": {"kubeletConfigKey": other}}}});
                format!("kubectl patch node {node} --type=merge -p {}", quoted(&patch.to_string()))
            }
        };
        Some(Finding::of_node("no-key", self.name(), problem, vec![mend]))
    }
}

/// The nodes without a policy; a problem where others have one, and else worth knowing. Of a supervisor that does not tell,
/// nobody knows.
pub(crate) fn without_policy(examined_nodes: &[ExaminedNode]) -> Option<(Finding, bool)> {
    let is_absent = |policy: &str| policy == "absent";
    let of_nodes = examined_nodes.iter().filter(|examined| examined.policy.as_deref().is_some_and(is_absent));
    let nodes: Vec<String> = of_nodes.map(|examined| examined.row.name.clone()).collect();
    let told = |examined: &ExaminedNode| examined.policy.as_deref().is_some_and(|policy| !is_absent(policy));
    let others_have_one = examined_nodes.iter().any(told);
    let beside = if others_have_one { ", and others have one" } else { "" };
    let problem =
        format!("no policy{beside}: whoever may label the node, or write ConfigMaps that it may read, is root on it");
    let mend = vec!["on the node: kubelet-supervisor enable --policy baseline".to_owned()];
    (!nodes.is_empty()).then(|| (Finding { nodes, ..Finding::of_cluster("no-policy", problem, mend) }, others_have_one))
}

/// The newest of the nodes' supervisors; none if none told.
pub(crate) fn newest(examined_nodes: &[ExaminedNode]) -> Option<&str> {
    examined_nodes.iter().filter_map(|examined| examined.version.as_deref()).max_by_key(|version| release(version))
}

/// For comparison: 1.0.0-rc.1 is before 1.0.0.
fn release(version: &str) -> (Vec<u64>, bool, &str) {
    let (numbers, suffix) = version.split_once('-').unwrap_or((version, ""));
    (numbers.split('.').map(|number| number.parse().unwrap_or_default()).collect(), suffix.is_empty(), suffix)
}

/// The same problem of many nodes is one finding, with the commands for the first.
pub(crate) fn grouped(findings: Vec<Finding>) -> Vec<Finding> {
    let mut all: Vec<Finding> = Vec::new();
    let mut index_of: BTreeMap<(&'static str, String), usize> = BTreeMap::new();
    for finding in findings {
        match index_of.get(&(finding.check, finding.problem.clone())).and_then(|at| all.get_mut(*at)) {
            Some(same) if !finding.nodes.is_empty() => same.nodes.extend(finding.nodes),
            _ => {
                index_of.insert((finding.check, finding.problem.clone()), all.len());
                all.push(finding);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubelet_config::status::{ABOUT_ANNOTATION, CONDITION, STATUS_ANNOTATION};

    fn examined(spec: &Value, labels: &Value, reason: &str) -> ExaminedNode {
        let condition = json!({"type": CONDITION, "status": "False", "reason": reason, "message": "its\u{1b}[2Jwords"});
        let map = json!({"configMap": {"namespace": "n", "name": "m", "kubeletConfigKey": "k", "uid": "u", "resourceVersion": "1"}});
        let config = json!({"assigned": map, "active": map, "lastKnownGood": map});
        let node = json!({
            "metadata": {"name": "n1", "labels": labels, "annotations": {
                STATUS_ANNOTATION: config.to_string(), ABOUT_ANNOTATION: r#"{"version":"0.2.0","shadowedByFlags":[]}"#,
            }},
            "spec": spec,
            "status": {"conditions": [condition, {"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1.36.2"}},
        });
        ExaminedNode::new(&node, "kubelet-config")
    }

    fn source(name: &str) -> Value {
        json!({"configSource": {"configMap": {"namespace": "n", "name": name, "kubeletConfigKey": "k"}}})
    }

    fn label(name: &str, value: &str) -> (String, Value) {
        (format!("{LABELS}{name}"), value.into())
    }

    fn checks(examined: &ExaminedNode) -> Vec<&'static str> {
        examined.findings().iter().map(|finding| finding.check).collect()
    }

    #[test]
    fn assignments_that_cannot_be_right() {
        let labels = Value::from_iter([label("name", "other")]);
        let found = examined(&source("m"), &labels, "LastKnownGood").findings();
        assert_eq!(found[0].check, "contradicting-assignments");
        assert!(found[0].problem.contains("n/m[k]") && found[0].problem.contains("kubelet-config/other[kubelet]"));
        assert!(
            found[0].mend[0].starts_with("kubectl label node n1 kubelet-config.node-restriction"),
            "{:?}",
            found[0].mend
        );
        let lonely = Value::from_iter([label("key", "k")]);
        assert_eq!(checks(&examined(&source("m"), &lonely, "LastKnownGood")), ["incomplete-assignment"]);
        let odd = Value::from_iter([label("name", "No_Name")]);
        assert_eq!(checks(&examined(&json!({}), &odd, "LastKnownGood")), ["invalid-assignment"]);
    }

    #[test]
    fn nobody_there() {
        let bare = json!({"metadata": {"name": "n1", "labels": Value::from_iter([label("name", "m")])}});
        let found = ExaminedNode::new(&bare, "ns").findings();
        assert_eq!(found.len(), 1);
        assert!(found[0].problem.contains("nobody follows its assignment ns/m[kubelet]"), "{}", found[0].problem);
        let left =
            json!({"metadata": {"name": "n1"}, "status": {"config": {}, "nodeInfo": {"kubeletVersion": "v1.30.0"}}});
        assert_eq!(checks(&ExaminedNode::new(&left, "ns")), ["no-supervisor"]);
        let native =
            json!({"metadata": {"name": "n1"}, "status": {"config": {}, "nodeInfo": {"kubeletVersion": "v1.20.2"}}});
        assert!(checks(&ExaminedNode::new(&native, "ns")).is_empty(), "native does it");
    }

    #[test]
    fn what_a_node_says_of_itself_is_shown_without_control_characters() {
        for (reason, check) in [("Frozen", "held"), ("SyncFailed", "failed"), ("AwaitsConfirmation", "unconfirmed")] {
            let found = examined(&source("m"), &json!({}), reason).findings();
            assert_eq!(found[0].check, check);
            assert!(found[0].problem.contains(r"its\u{1b}[2Jwords"), "{}", found[0].problem);
        }
    }

    #[test]
    fn the_config_map_and_its_key() {
        let examined = examined(&source("m"), &json!({}), "LastKnownGood");
        let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(examined.config_map(Some(&keys(&["k", "x"]))), None);
        assert_eq!(examined.config_map(None).unwrap().check, "no-config-map");
        let found = examined.config_map(Some(&keys(&["kubelet"]))).unwrap();
        assert_eq!(found.problem, "ConfigMap n/m has no key k, which is assigned; it has kubelet");
        assert!(
            found.mend[0].ends_with(r#"-p '{"spec":{"configSource":{"configMap":{"kubeletConfigKey":"kubelet"}}}}'"#)
        );
    }

    #[test]
    fn versions() {
        assert!(release("1.10.0") > release("1.9.0") && release("1.0.0-rc.1") < release("1.0.0"));
        let untold = ExaminedNode { version: None, ..examined(&source("m"), &json!({}), "LastKnownGood") };
        assert!(newest(std::slice::from_ref(&untold)).is_none() && untold.is_older("0.2.0").is_some());
    }

    #[test]
    fn quoting_for_a_shell() {
        assert_eq!(quoted("system:node:n1"), "system:node:n1");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
