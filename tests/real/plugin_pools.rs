//! The controller of pools on the real cluster: a pool of one real Node, carried out in the name of the ServiceAccount that
//! packaging ships, and by Pods of the Deployment that it ships.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use serde_json::{Value, json};
use testkit::built::{Image, image, program};

use crate::cluster::{run, until};
use crate::pods::{Container, container};
use crate::supervisor::{Case, signal};

pub const POOLS: &str = "/apis/kubelet-supervisor.io/v1alpha1/kubeletconfigpools";
pub const CRD: &str = "crd/kubeletconfigpools.kubelet-supervisor.io";
const NAME: &str = "kubelet-config-controller";
pub const ACCOUNT: &str = "system:serviceaccount:kubelet-config:kubelet-config-controller";
const PODS: &str = "/api/v1/namespaces/kubelet-config/pods";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kubelet-config/leases/kubelet-config-controller";
pub const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/manifests");

/// The name of a case that needs the image.
pub const DEPLOYED: &str = "pool_deployed";

/// The controller's image.
pub static IMAGE: LazyLock<Image> = LazyLock::new(|| {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("real-image");
    std::fs::create_dir_all(&directory).unwrap();
    image(&directory)
});

/// A controller, which ends with this.
pub struct Controller(Child);

impl Controller {
    pub fn start(case: &Case) -> Self {
        let log =
            std::fs::File::create(case.cluster.dir.join("logs").join(format!("{}-controller.log", case.name))).unwrap();
        let mut command = Command::new(program("kubectl-kubelet_config"));
        command.args(["controller", "--as", ACCOUNT]).env("KUBECONFIG", case.var("KUBECONFIG"));
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn write_pool(case: &Case, more: &Value) {
    let local: Value = serde_yaml::from_str(&case.payload("")).unwrap();
    let mut spec = json!({"nodeSelector": {"matchLabels": {"pool": "real"}}, "kubeletConfiguration": local,
        "rollout": {"minTrialSeconds": 1}});
    for (field, value) in more.as_object().unwrap() {
        let part = if field == "acknowledge" { &mut spec } else { &mut spec["kubeletConfiguration"] };
        part[field] = value.clone();
    }
    let path = format!("{POOLS}/real");
    if let Ok(mut pool) = case.api("GET", &path, None) {
        pool["spec"] = spec;
        case.ask("PUT", &path, Some(&pool));
    } else {
        let pool = json!({"apiVersion": "kubelet-supervisor.io/v1alpha1", "kind": "KubeletConfigPool",
            "metadata": {"name": "real"}, "spec": spec});
        case.ask("POST", POOLS, Some(&pool));
    }
}

fn await_condition(case: &Case, kind: &str, reason: &str) -> Value {
    until(&format!("the pool to be {kind} for {reason}"), || {
        let pool = case.api("GET", &format!("{POOLS}/real"), None)?;
        let conditions = pool["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let is = |it: &Value| it["type"] == kind && it["status"] == "True" && it["reason"] == reason;
        let observed = pool["status"]["observedGeneration"] == pool["metadata"]["generation"];
        if observed && conditions.iter().any(is) { Ok(pool) } else { Err(pool["status"].to_string()) }
    })
}

/// The CRD and the controller's rights.
pub fn install(case: &Case) {
    // Its rules are CEL. kubectl before 1.23 does not know them, nor does the schema of an API server of then, by which a later
    // kubectl validates; that server drops them.
    case.kubectl(&["create", "--validate=false", "-f", &format!("{MANIFESTS}/pools/crd.yaml")]);
    case.kubectl(&["apply", "-f", &format!("{MANIFESTS}/pools/rbac.yaml")]);
    case.await_established(CRD);
    // A controller of a case before, which was killed, holds it no more.
    case.kubectl(&["-n", "kubelet-config", "delete", "lease", NAME, "--ignore-not-found"]);
}

/// What [`install`] made, and with the CRD all pools.
pub fn uninstall(case: &Case) {
    case.kubectl(&["delete", CRD]);
    case.kubectl(&["delete", "-f", &format!("{MANIFESTS}/pools/rbac.yaml")]);
}

/// Applied, proven, seen by kubectl; a bad revision goes back; without its CRD nothing is disturbed.
pub fn pool(case: &Case) {
    install(case);
    let supervisor = case.supervisor();
    let node = case.var("NODE_NAME").to_owned();
    case.kubectl(&["label", "node", &node, "pool=real"]);
    let controller = Controller::start(case);

    // Whatever machine this is.
    write_pool(case, &json!({"maxPods": "${50 + min(node.cpu, 1)}", "podPidsLimit": "${node.pods * 20}"}));
    case.kubectl(&["wait", "--for=condition=Ready", "kcpool/real", "--timeout=120s"]);
    case.await_configz("maxPods", &json!(51));
    case.await_configz("podPidsLimit", &json!(1020));
    let good = await_condition(case, "Ready", "Complete")["status"]["currentRevision"].as_str().unwrap().to_owned();
    let told = "-n default get events -o name --field-selector involvedObject.name=real,reason=Complete";
    let told: Vec<&str> = told.split(' ').collect();
    until("the event that says so", || {
        let events = case.try_kubectl(&told)?;
        if events.is_empty() { Err("none".to_owned()) } else { Ok(()) }
    });
    let restarts = supervisor.restarts();
    let table = case.kubectl(&["get", "kcpool"]);
    assert!(table.lines().nth(1).is_some_and(|row| row.contains("real") && row.contains("Complete")), "{table}");
    let explained = case.kubectl(&["explain", "kcpool.spec.rollout.maxUnavailable"]);
    assert!(explained.contains("percentage"), "{explained}");

    let rendered = Command::new(program("kubectl-kubelet_config"))
        .args(["render", "pool/real", &node, "-o", "json"])
        .env("KUBECONFIG", case.var("KUBECONFIG"))
        .output()
        .unwrap();
    let rendered: Value = serde_json::from_slice(&rendered.stdout).unwrap();
    assert_eq!((&rendered["maxPods"], &rendered["podPidsLimit"]), (&json!(51), &json!(1020)));

    // What the API server does not take.
    for (field, value) in [("maxUnavailable", json!("0%")), ("canaries", json!(-1)), ("onFailure", json!("Panic"))] {
        let patch = json!({"spec": {"rollout": {field: value}}}).to_string();
        let said = case.try_kubectl(&["patch", "kcpool", "real", "--type=merge", "-p", &patch]);
        assert!(said.as_ref().is_err_and(|said| said.contains(&format!("spec.rollout.{field}"))), "{patch}: {said:?}");
    }

    // The kubelet would refuse it: the Node is not even given it, and the pool says why.
    let assigned = || case.api("GET", &case.node_path(), None).unwrap()["metadata"]["labels"].clone();
    let before = assigned();
    write_pool(case, &json!({"maxPods": -1}));
    let pool = await_condition(case, "Stalled", "PreflightRefused");
    let words = pool["status"]["conditions"].to_string();
    assert!(words.contains(&format!("{node}: Invalid: ")) && words.contains("maxPods"), "{words}");
    assert_eq!(assigned(), before);
    assert_eq!(supervisor.restarts(), restarts);

    // The kubelet takes it and dies of it: the node goes back, and the pool too.
    let deadly = json!({"enforceNodeAllocatable": ["pods", "system-reserved"], "systemReservedCgroup": "/nope",
        "acknowledge": ["systemReservedCgroup"]});
    write_pool(case, &deadly);
    let pool = await_condition(case, "Stalled", "FailuresExceeded");
    assert_eq!(pool["status"]["badRevisions"][0]["nodes"][0]["name"], *node, "{pool:#}");
    until("the Node to be assigned the good revision again", || {
        let labels = case.api("GET", &case.node_path(), None)?["metadata"]["labels"].clone();
        let name = &labels["kubelet-config.node-restriction.kubernetes.io/name"];
        if name.as_str().is_some_and(|name| name.starts_with(&format!("{good}-"))) {
            Ok(())
        } else {
            Err(name.to_string())
        }
    });
    supervisor.await_ready();

    // Nothing is disturbed when pools go.
    case.kubectl(&["delete", CRD]);
    drop(controller);
    supervisor.assert_steady(3);
    case.await_configz("maxPods", &json!(51));
    case.kubectl(&["label", "node", &node, "pool-"]);
    case.kubectl(&["delete", "-f", &format!("{MANIFESTS}/pools/rbac.yaml")]);
}

/// Makes the Pods of the shipped Deployment: what its controller and the scheduler would do, of which this cluster has neither.
fn make_pods(case: &Case) -> [String; 2] {
    let text = case.kubectl(&["kustomize", &format!("{MANIFESTS}/pools")]);
    let mut documents = text.split("\n---\n").map(|text| serde_yaml::from_str::<Value>(text).unwrap());
    let deployment = documents.find(|document| document["kind"] == "Deployment").unwrap();
    let deployments = "/apis/apps/v1/namespaces/kubelet-config/deployments";
    case.ask("POST", &format!("{deployments}?dryRun=All"), Some(&deployment));
    // The controller-manager's, of each namespace.
    let authority = std::fs::read_to_string(case.var("CA_CERT")).unwrap();
    let map = json!({"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": authority}});
    case.ask("POST", "/api/v1/namespaces/kubelet-config/configmaps", Some(&map));
    let names = [0, 1].map(|number| format!("{NAME}-{number}"));
    for (name, port) in names.iter().zip(["10358", "10359"]) {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}});
        pod["metadata"]["labels"] = deployment["spec"]["template"]["metadata"]["labels"].clone();
        // Of the two that are on one Node's network here, each needs a port of its own, and none the kubelet's.
        let spec = deployment["spec"]["template"]["spec"].to_string().replace("10248", port);
        pod["spec"] = serde_json::from_str(&spec).unwrap();
        pod["spec"]["nodeName"] = case.var("NODE_NAME").into();
        // This API server listens on loopback alone.
        pod["spec"]["hostNetwork"] = true.into();
        let container = &mut pod["spec"]["containers"][0];
        container["image"] = IMAGE.name.into();
        container["imagePullPolicy"] = "Never".into();
        let port = case.var("API_URL").rsplit(':').next().unwrap();
        container["env"] = json!([{"name": "KUBERNETES_SERVICE_HOST", "value": "127.0.0.1"},
            {"name": "KUBERNETES_SERVICE_PORT", "value": port}]);
        case.ask("POST", PODS, Some(&pod));
    }
    names
}

fn running(case: &Case, name: &str) -> Result<Container, String> {
    container(case, &case.api("GET", &format!("{PODS}/{name}"), None)?)
}

/// Who holds the Lease, once somebody else than this does.
pub fn holder(case: &Case, other: &str) -> String {
    until(&format!("another holder of the Lease than {other:?}"), || {
        let lease = case.api("GET", LEASE, None)?;
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
        if holder.is_empty() || holder == other { Err(lease["spec"].to_string()) } else { Ok(holder.to_owned()) }
    })
}

/// The image and the Deployment's Pods on the real kubelet, with a token of their own: they carry a pool out on the Node that
/// they run on, one goes on where the other is killed, and what they say they release.
pub fn deployed(case: &Case) {
    case.kubectl(&["apply", "-k", &format!("{MANIFESTS}/base")]);
    install(case);
    case.script("import", IMAGE.archive.to_str());
    let supervisor = case.supervisor();
    let node = case.var("NODE_NAME");
    case.await_node_ready();
    case.kubectl(&["label", "node", node, "pool=real", "node-role.kubernetes.io/control-plane="]);
    // Of a controller that another case killed, and which would be taken for one of these until it is over.
    let _ = case.api("DELETE", LEASE, None);
    let names = make_pods(case);
    let started = names.each_ref().map(|name| until(&format!("{name} to run"), || running(case, name)));
    let first = holder(case, "");

    case.say("a pool");
    write_pool(case, &json!({"maxPods": 51}));
    await_condition(case, "Ready", "Complete");
    case.await_configz("maxPods", &json!(51));

    case.say("the one that acts is killed");
    let own = format!("{first} holds the Lease {NAME}"); // the other one adds that it waits
    let logs = names.each_ref().map(|name| case.kubectl(&["-n", "kubelet-config", "logs", name]));
    let leader = logs.iter().position(|log| log.lines().any(|line| line == own));
    let leader = leader.unwrap_or_else(|| panic!("one of them says {own:?}: {logs:#?}"));
    let uid = run(Command::new("stat").args(["-c", "%u", &format!("/proc/{}", started[leader].pid)])).unwrap();
    assert_eq!(uid.trim(), "65534");
    signal(started[leader].pid, "KILL");
    write_pool(case, &json!({"maxPods": 52}));
    await_condition(case, "Ready", "Complete");
    case.await_configz("maxPods", &json!(52));
    assert_ne!(holder(case, ""), first);
    let restarted = until("it to be started again", || {
        running(case, &names[leader]).and_then(|it| if it.restarts == 1 { Ok(it) } else { Err(format!("{it:?}")) })
    });
    assert_eq!(running(case, &names[1 - leader]).as_ref(), Ok(&started[1 - leader]), "the other one went on");

    case.say("the CRD goes");
    case.kubectl(&["delete", CRD]);
    supervisor.assert_steady(3);
    case.await_configz("maxPods", &json!(52));
    assert_eq!(running(case, &names[leader]), Ok(restarted), "nor does it end those that follow pools");

    case.kubectl(&["-n", "kubelet-config", "delete", "pod", &names[0], &names[1]]);
    let lease = case.ask("GET", LEASE, None);
    assert_eq!(lease["spec"]["holderIdentity"], "", "released: {lease}");
    case.kubectl(&["label", "node", node, "pool-", "node-role.kubernetes.io/control-plane-"]);
    case.kubectl(&["-n", "kubelet-config", "delete", "configmap", "kube-root-ca.crt"]);
    case.kubectl(&["delete", "-f", &format!("{MANIFESTS}/pools/rbac.yaml")]);
}
