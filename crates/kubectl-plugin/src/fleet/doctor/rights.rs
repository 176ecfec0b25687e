//! Which rights each command needs, of the user's and of the nodes'.

use serde_json::{Value, json};

use super::{Finding, quoted};
use crate::fleet::leader_election::NAMESPACE;
use kubelet_config::digest::sha256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The whole cluster.
    Cluster,
    /// The namespace of the ConfigMaps.
    ConfigMaps,
    /// `default`, where the events of nodes are.
    Default,
    /// `kubelet-config`, where the Lease of who carries out pools is.
    Lease,
}

/// A right of the user's, and the commands that need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// As RBAC names it.
    pub verb: &'static str,
    /// The API group; empty: core.
    pub group: &'static str,
    /// `nodes` or `nodes/proxy`.
    pub resource: &'static str,
    pub(crate) scope: Scope,
    /// For what.
    pub commands: &'static str,
}

const fn right(verb: &'static str, resource: &'static str, scope: Scope, commands: &'static str) -> Right {
    Right { verb, group: "", resource, scope, commands }
}

const fn pools(verb: &'static str, resource: &'static str, commands: &'static str) -> Right {
    Right { group: POOLS, ..right(verb, resource, Scope::Cluster, commands) }
}

/// The group that the CRD of pools brings.
pub(crate) const POOLS: &str = "kubelet-supervisor.io";

/// All that the commands ask for, but for `controller`, whose rights are in `packaging/manifests/pools`.
pub const RIGHTS: &[Right] = &[
    right("list", "nodes", Scope::Cluster, "status, doctor, rollout, and every -l"),
    right("get", "nodes", Scope::Cluster, "every command about a node"),
    right("watch", "nodes", Scope::Cluster, "status -w, assign --wait, preflight"),
    right("patch", "nodes", Scope::Cluster, "assign, reset, retry, confirm, rollback, preflight"),
    right("get", "nodes/proxy", Scope::Cluster, "capture, diff NODE, explain"),
    right("list", "pods", Scope::Cluster, "diff NODE, doctor"),
    right("list", "events", Scope::Default, "history"),
    right("get", "configmaps", Scope::ConfigMaps, "push, diff, explain, assign, rollback, preflight, rollout"),
    right("create", "configmaps", Scope::ConfigMaps, "push, preflight"),
    pools("get", "kubeletconfigpools", "render, diff pool/NAME"),
    pools("list", "kubeletconfigpools", "rollout"),
    pools("watch", "kubeletconfigpools", "rollout"),
    pools("create", "kubeletconfigpools", "rollout CONFIGMAP"),
    pools("update", "kubeletconfigpools", "rollout CONFIGMAP, rollout undo"),
    pools("patch", "kubeletconfigpools", "rollout pause, rollout resume"),
    pools("patch", "kubeletconfigpools/status", "rollout retry"),
    Right { group: "coordination.k8s.io", ..right("get", "leases", Scope::Lease, "rollout") },
];

/// What lets nodes read ConfigMaps.
const NODES_ROLE: &str = "kubelet-config-nodes";

/// Group of all nodes' credentials.
pub(crate) const NODES: &str = "system:nodes";

impl Right {
    /// `spec.resourceAttributes` of a SelfSubjectAccessReview. `namespace`: the ConfigMaps'.
    pub(crate) fn attributes(&self, namespace: &str) -> Value {
        let (resource, subresource) = self.resource.split_once('/').unwrap_or((self.resource, ""));
        json!({"verb": self.verb, "group": self.group, "version": "*", "resource": resource, "subresource": subresource,
            "namespace": self.namespace(namespace).unwrap_or_default()})
    }

    /// As `kubectl create role --resource` takes it.
    fn qualified(&self) -> String {
        let group = if self.group.is_empty() { String::new() } else { format!(".{}", self.group) };
        match self.resource.split_once('/') {
            Some((resource, subresource)) => format!("{resource}{group}/{subresource}"),
            None => format!("{}{group}", self.resource),
        }
    }

    fn namespace<'a>(&self, namespace: &'a str) -> Option<&'a str> {
        match self.scope {
            Scope::Cluster => None,
            Scope::ConfigMaps => Some(namespace),
            Scope::Default => Some("default"),
            Scope::Lease => Some(NAMESPACE),
        }
    }
}

/// The rights that the user lacks, those of one object together. `user`: who that is, if the server tells.
pub(crate) fn missing(lacking: &[Right], namespace: &str, user: Option<&str>) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    for (index, right) in lacking.iter().enumerate() {
        let same = |other: &&Right| other.resource == right.resource && other.scope == right.scope;
        if lacking.iter().take(index).any(|other| same(&other)) {
            continue;
        }
        let together: Vec<&Right> = lacking.iter().filter(same).collect();
        let verbs: Vec<&str> = together.iter().map(|right| right.verb).collect();
        let commands: Vec<&str> = together.iter().map(|right| right.commands).collect();
        let place =
            right.namespace(namespace).map(|namespace| format!(" in namespace {namespace}")).unwrap_or_default();
        let words = format!("{} {}{place}", verbs.join(", "), right.resource);
        let problem = format!("you may not {words}; needed by {}", commands.join("; "));
        found.push(Finding::of_cluster("rights", problem, grant(right, &verbs, namespace, user)));
    }
    found
}

fn grant(right: &Right, verbs: &[&str], namespace: &str, user: Option<&str>) -> Vec<String> {
    // Each user's and each set of verbs has a name of its own: a second `create` would change nothing.
    let seed = format!("{}/{}/{}", user.unwrap_or_default(), verbs.join(","), right.resource);
    let hash = sha256(seed.as_bytes());
    let name = format!("kubelet-config-{}-{}", right.resource.replace('/', "-"), hash.get(..6).unwrap_or_default());
    let user = user.map_or_else(|| "USER".to_owned(), quoted);
    let rule = format!("--verb={} --resource={}", verbs.join(","), right.qualified());
    role(right.namespace(namespace), &name, &rule, &format!("--user={user}"))
}

/// The commands that make a role, of the whole cluster if no namespace is named, and give it to somebody.
fn role(namespace: Option<&str>, name: &str, rule: &str, whom: &str) -> Vec<String> {
    let kind = if namespace.is_some() { "role" } else { "clusterrole" };
    let kubectl = namespace.map_or_else(|| "kubectl".to_owned(), |it| format!("kubectl -n {}", quoted(it)));
    vec![
        format!("{kubectl} create {kind} {name} {rule}"),
        format!("{kubectl} create {kind}binding {name} --{kind}={name} {whom}"),
    ]
}

/// `spec` of a SubjectAccessReview: may this node do that to this ConfigMap, or to all of a namespace?
pub(crate) fn node_reads(node: &str, verb: &str, namespace: &str, name: Option<&str>) -> Value {
    let attributes = json!({"verb": verb, "group": "", "version": "v1", "resource": "configmaps",
        "namespace": namespace, "name": name.unwrap_or_default()});
    json!({"user": format!("system:node:{node}"), "groups": [NODES, "system:authenticated"],
        "resourceAttributes": attributes})
}

/// What nodes may not do with ConfigMaps. `name`: of one that is assigned; without, of all in the namespace.
pub(crate) fn nodes_cannot(verbs: &[&str], namespace: &str, name: Option<&str>) -> Option<Finding> {
    if verbs.is_empty() {
        return None;
    }
    let of = name
        .map_or_else(|| format!("ConfigMaps of namespace {namespace}"), |name| format!("ConfigMap {namespace}/{name}"));
    let effect = if verbs.contains(&"get") {
        "an assignment by label cannot be fetched"
    } else {
        "they learn of a change within two minutes instead of at once"
    };
    let problem = format!("nodes (group {NODES}) may not {} {of}: {effect}", verbs.join(", "));
    let only = name.map(|name| format!(" --resource-name={}", quoted(name))).unwrap_or_default();
    let made = name.map_or_else(|| NODES_ROLE.to_owned(), |name| format!("{NODES_ROLE}-{name}"));
    let rule = format!("--verb=get,list,watch --resource=configmaps{only}");
    let mend = role(Some(namespace), &quoted(&made), &rule, &format!("--group={NODES}"));
    Some(Finding::of_cluster("nodes-may-not-read", problem, mend))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_of_one_object_are_granted_together() {
        let lacking: Vec<Right> = RIGHTS
            .iter()
            .copied()
            .filter(|right| right.resource == "configmaps" || right.resource == "nodes/proxy")
            .collect();
        let found = missing(&lacking, "ns", Some("jane doe"));
        assert_eq!(found.len(), 2);
        assert!(found[1].mend[0].ends_with("--verb=get,create --resource=configmaps"), "{found:?}");
        assert!(found[1].mend[1].ends_with("--user='jane doe'"), "{found:?}");
        let pools: Vec<Right> = RIGHTS.iter().copied().filter(|right| right.resource.ends_with("/status")).collect();
        let found = missing(&pools, "ns", None);
        assert!(found[0].mend[0].ends_with("--resource=kubeletconfigpools.kubelet-supervisor.io/status"), "{found:?}");
        assert!(missing(&[], "ns", None).is_empty());
    }

    #[test]
    fn attributes_as_the_api_has_them() {
        let proxy = RIGHTS.iter().find(|right| right.resource == "nodes/proxy").unwrap().attributes("ns");
        assert_eq!((&proxy["resource"], &proxy["subresource"]), (&json!("nodes"), &json!("proxy")));
        let maps = RIGHTS.iter().find(|right| right.resource == "configmaps").unwrap().attributes("ns");
        assert_eq!(maps["namespace"], "ns");
    }

    #[test]
    fn what_nodes_may_not_read() {
        assert_eq!(nodes_cannot(&[], "ns", None), None);
        let all = nodes_cannot(&["get", "list", "watch"], "ns", None).unwrap();
        assert!(all.problem.contains("cannot be fetched") && !all.mend[0].contains("resource-name"));
        let one = nodes_cannot(&["watch"], "ns", Some("m")).unwrap();
        assert!(one.problem.contains("ConfigMap ns/m: they learn") && one.mend[0].ends_with("--resource-name=m"));
    }
}
