//! The rights that `packaging/manifests/pools` grants, and `pools-drain` beside them, are those that the controller uses; its Deployment is as safe as Pods can be.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use testkit::api_server::{Fault, FaultKind, Key, Request, Resource, State, Verb};
use testkit::pools::{NAMESPACE, World, name};

use super::collect::old_revision;
use super::{POOL, condition, prepared, spec, with_controller};

fn documents(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(testkit::built::file(&format!("packaging/manifests/{file}"))).unwrap();
    text.split("\n---\n").map(|text| serde_yaml::from_str(text).unwrap()).collect()
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// Verb, resource, and the namespace if it is a Role's.
fn granted(overlay: bool) -> BTreeSet<String> {
    let mut documents = documents("pools/rbac.yaml");
    if overlay {
        documents.extend(self::documents("pools-drain/rbac.yaml"));
    }
    let of = |kind: &'static str| documents.iter().filter(move |document| document["kind"] == kind);
    let mut granted = BTreeSet::new();
    for role in of("ClusterRole").chain(of("Role")) {
        let namespace = role["metadata"]["namespace"].as_str().unwrap_or_default();
        for rule in role["rules"].as_array().unwrap() {
            for resource in strings(&rule["resources"]) {
                granted.extend(strings(&rule["verbs"]).iter().map(|verb| format!("{verb} {resource} {namespace}")));
            }
        }
    }
    assert_eq!(of("ClusterRoleBinding").chain(of("RoleBinding")).count(), 4 + usize::from(overlay));
    granted
}

fn used(request: &Request) -> String {
    let parts: Vec<&str> = request.path.trim_matches('/').split('/').collect();
    let (namespace, rest) = match parts.iter().position(|part| *part == "namespaces") {
        Some(at) => (parts[at + 1], &parts[at + 2..]),
        None if parts == ["api", "v1"] => return String::new(), // what resources there are, which all may see
        None => ("", if parts[0] == "api" { &parts[2..] } else { &parts[3..] }),
    };
    let verb = match (request.method.as_str(), rest.len()) {
        ("GET", _) if request.is_watch() => "watch",
        ("GET", 1) => "list",
        ("GET", _) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        _ => "delete",
    };
    let resource = rest.get(2).map_or_else(|| rest[0].to_owned(), |of| format!("{}/{of}", rest[0]));
    format!("{verb} {resource} {namespace}")
}

#[tokio::test(start_paused = true)]
async fn the_rights_are_those_that_it_uses() {
    for drains in [false, true] {
        are_used(drains).await;
    }
    // Of Leases, it may change its own alone.
    let role = documents("pools/rbac.yaml").into_iter().find(|it| it["kind"] == "Role").unwrap();
    let named = role["rules"].as_array().unwrap().iter().filter(|rule| rule["verbs"] != json!(["create"]));
    let leases = named.filter(|rule| rule["resources"] == json!(["leases"])).map(|rule| rule["resourceNames"].clone());
    assert_eq!(leases.collect::<Vec<_>>(), [json!(["kubelet-config-controller"])]);
}

async fn are_used(drains: bool) {
    let world = World::new(6);
    let owner = json!({"metadata": {"ownerReferences": [{"kind": "ReplicaSet", "controller": true}]}});
    world.server.put_pod(&name(1), "apps", "web", owner);
    let rollout = if drains { json!({"rollout": {"drain": "Careful"}}) } else { json!({}) };
    let script = async {
        let control_plane = json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}});
        world.server.patch_node(&name(0), control_plane);
        world.server.create_config_map(&old_revision("gone-bcdfghkmtt"));
        prepared(&world, 60).await;
        world.server.put_pool(POOL, &spec(60, &json!({})));
        world.until_pool(POOL, |pool| condition(pool, "Ready").1 == "Canaries").await;
        // The second time, the event that there is says so.
        prepared(&world, 60).await;
        // Somebody takes hold of a Node between a look and a write, which has to look again.
        world.server.faults().push(Fault::once(Verb::Patch, "/api/v1/nodes/", FaultKind::Status(409)));
        world.server.put_pool(POOL, &spec(60, &rollout));
        if drains {
            // What its kubelet would do.
            let ends = |s: &State| {
                let pods = |key: &Key, pod: &Value| {
                    key.resource == Resource::Pod && pod["metadata"]["deletionTimestamp"].is_string()
                };
                s.list(pods).next().is_some()
            };
            while !world.server.read(ends) {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            world.server.delete_pod("apps", "web");
        }
        world.until_pool(POOL, |pool| condition(pool, "Ready") == ("True", "Complete")).await;
    };
    with_controller(&world, script).await;
    let requests = world.server.requests();
    let mut used: BTreeSet<String> = requests.iter().map(used).collect();
    used.remove("");
    // In whatever namespace a Pod is.
    if used.remove("create pods/eviction apps") {
        used.insert("create pods/eviction ".to_owned());
    }
    assert_eq!(used, granted(drains));
}

/// Pod Security Standards, `restricted`, v1.36: what a Pod must say; host namespaces, host paths and ports it may not name.
#[test]
fn the_deployment_is_restricted_and_names_what_there_is() {
    let [deployment] = &documents("pools/deployment.yaml")[..] else { panic!("one document") };
    let (spec, template) = (&deployment["spec"], &deployment["spec"]["template"]);
    assert_eq!((&spec["replicas"], &spec["selector"]["matchLabels"]), (&json!(2), &template["metadata"]["labels"]));
    assert!(spec["minReadySeconds"].as_u64() > Some(15), "longer than a Lease");
    assert_eq!(deployment["metadata"]["namespace"], NAMESPACE);
    let pod = &template["spec"];
    let account = documents("pools/rbac.yaml").into_iter().find(|it| it["kind"] == "ServiceAccount").unwrap();
    assert_eq!(pod["serviceAccountName"], account["metadata"]["name"]);
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        assert!(pod[field].is_null(), "{field}");
    }
    let context = &pod["securityContext"];
    assert_eq!(
        (&context["runAsNonRoot"], &context["seccompProfile"]),
        (&json!(true), &json!({"type": "RuntimeDefault"}))
    );
    let [container] = pod["containers"].as_array().unwrap().as_slice() else { panic!("one container") };
    let expected =
        json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}});
    assert_eq!(container["securityContext"], expected);
    assert!(container["resources"]["limits"]["memory"].is_string());
    // Probes and scrapers find what it serves.
    let [port] = container["ports"].as_array().unwrap().as_slice() else { panic!("one port") };
    let address = format!("--metrics-bind-address=0.0.0.0:{}", port["containerPort"]);
    assert_eq!(container["args"], json!(["controller", address]));
    for (probe, path) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
        assert_eq!(container[probe]["httpGet"], json!({"path": path, "port": port["name"]}));
    }
    // What is mounted is the credentials of the Pod, where clients look for them.
    assert_eq!(pod["automountServiceAccountToken"], false);
    let [volume] = pod["volumes"].as_array().unwrap().as_slice() else { panic!("one volume") };
    let mount = &container["volumeMounts"][0];
    assert_eq!(
        (&mount["name"], &mount["mountPath"]),
        (&volume["name"], &json!("/var/run/secrets/kubernetes.io/serviceaccount"))
    );
    let text = volume["projected"].to_string();
    assert!(["\"token\"", "ca.crt", "\"namespace\""].iter().all(|part| text.contains(part)), "{text}");
    assert_eq!(pod["nodeSelector"], json!({"node-role.kubernetes.io/control-plane": ""}));
    // Whose image kustomization.yaml names.
    let kustomization = &documents("pools/kustomization.yaml")[0];
    assert_eq!(kustomization["images"][0]["name"], container["image"]);
    assert_eq!(kustomization["resources"], json!(["crd.yaml", "rbac.yaml", "view.yaml", "deployment.yaml"]));
}

/// A pool configures kubelets: nobody gets to write one by a role that has others in it.
#[test]
fn who_may_view_the_cluster_may_read_pools_and_write_none() {
    let [view] = &documents("pools/view.yaml")[..] else { panic!("one document") };
    assert_eq!(view["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"], "true");
    let [rule] = view["rules"].as_array().unwrap().as_slice() else { panic!("one rule") };
    assert_eq!(rule["verbs"], json!(["get", "list", "watch"]));
    let shipped = ["rbac", "view", "deployment"].map(|file| documents(&format!("pools/{file}.yaml")));
    let writes = |text: &str| text.contains("aggregate-to-edit") || text.contains("aggregate-to-admin");
    assert!(!shipped.iter().flatten().any(|document| writes(&document.to_string())));
}
