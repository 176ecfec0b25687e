//! `kubectl kubelet-config controller` on the real cluster: a pool of one real Node, in the name of the ServiceAccount that
//! packaging ships.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use testkit::built::program;

use crate::cluster::until;
use crate::supervisor::Case;

const POOLS: &str = "/apis/kubelet-supervisor.io/v1alpha1/kubeletconfigpools";
const ACCOUNT: &str = "system:serviceaccount:kubelet-config:kubelet-config-controller";

/// A controller, which ends with this.
struct Controller(Child);

impl Controller {
    fn start(case: &Case) -> Self {
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
    let mut spec = json!({"nodeSelector": {"matchLabels": {"pool": "real"}}, "kubeletConfiguration": local});
    for (field, value) in more.as_object().unwrap() {
        spec["kubeletConfiguration"][field] = value.clone();
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

/// Applied, proven, seen by kubectl; a bad revision goes back; without its CRD nothing is disturbed.
pub fn pool(case: &Case) {
    let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/manifests/pools");
    let manifests = manifests.to_str().unwrap();
    // Its rules are CEL, which kubectl does not know before 1.23, and API servers of then drop.
    case.kubectl(&["create", "--validate=false", "-f", &format!("{manifests}/crd.yaml")]);
    case.kubectl(&["apply", "-f", &format!("{manifests}/rbac.yaml")]);
    case.kubectl(&[
        "wait",
        "--for=condition=Established",
        "crd/kubeletconfigpools.kubelet-supervisor.io",
        "--timeout=60s",
    ]);
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
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            case.kubectl(&["patch", "kcpool", "real", "--type=merge", "-p", &patch])
        }));
        assert!(refused.is_err(), "{patch}");
    }

    // The kubelet refuses it before a restart; the pool goes back, and says why.
    write_pool(case, &json!({"maxPods": -1}));
    let pool = await_condition(case, "Stalled", "FailuresExceeded");
    let words = pool["status"]["badRevisions"][0]["nodes"][0]["message"].as_str().unwrap().to_owned();
    assert!(words.contains("maxPods"), "{words}");
    until("the Node to be assigned the good revision again", || {
        let labels = case.api("GET", &case.node_path(), None)?["metadata"]["labels"].clone();
        let name = &labels["kubelet-config.node-restriction.kubernetes.io/name"];
        if name.as_str().is_some_and(|name| name.starts_with(&format!("{good}-"))) {
            Ok(())
        } else {
            Err(name.to_string())
        }
    });
    assert_eq!(supervisor.restarts(), restarts, "neither there nor back");

    // Nothing is disturbed when pools go.
    case.kubectl(&["delete", "crd", "kubeletconfigpools.kubelet-supervisor.io"]);
    drop(controller);
    supervisor.assert_steady(3);
    case.await_configz("maxPods", &json!(51));
    case.kubectl(&["label", "node", &node, "pool-"]);
    case.kubectl(&["delete", "-f", &format!("{manifests}/rbac.yaml")]);
}
