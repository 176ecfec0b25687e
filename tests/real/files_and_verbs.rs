//! The tutorial, and a verb that needs no daemon.

use std::process::Command;

use serde_json::{Value, json};

use crate::assignment::Carrier;
use crate::cluster::run;
use crate::supervisor::{BINARY, Case};
use crate::versions;

const LOCAL: Value = Value::Null;

/// The tutorial of the Kubernetes documentation as written, but for the port, the editor's commands, and the
/// lines in which the carriers differ.
const TUTORIAL: &str = r#"
kubectl proxy --port=$PORT &
trap 'kill %1' EXIT
until curl -sf "http://localhost:$PORT/version" >/dev/null; do sleep 0.1; done
curl -sSL "http://localhost:$PORT/api/v1/nodes/${NODE_NAME}/proxy/configz" | jq '.kubeletconfig|.kind="KubeletConfiguration"|.apiVersion="kubelet.config.k8s.io/v1beta1"' > kubelet_configz_${NODE_NAME}
sed -i 's/"eventRecordQPS": [0-9]*/"eventRecordQPS": 7/' kubelet_configz_${NODE_NAME}
kubectl -n $NAMESPACE create configmap my-node-config --from-file=kubelet=kubelet_configz_${NODE_NAME} --append-hash -o yaml > created
CONFIG_MAP_NAME=$(sed -n 's/^  name: //p' created)
eval "$ASSIGN"
until kubectl get no ${NODE_NAME} -o json | jq "$STATUS" | tee config | jq -e .lastKnownGood >/dev/null; do sleep 0.3; done
jq -e '.active == .assigned and .active == .lastKnownGood and .error == null' config >/dev/null
echo "name=$CONFIG_MAP_NAME"
"#;

const TUTORIAL_RESET: &str = r#"
eval "$WITHDRAW"
until kubectl get no ${NODE_NAME} -o json | jq -e "$STATUS | . == null or . == {}" >/dev/null; do sleep 0.3; done
"#;

/// How to assign, to withdraw, and where to read (for jq).
fn commands(carrier: Carrier) -> [(&'static str, &'static str); 3] {
    match carrier {
        Carrier::Native => [
            (
                "ASSIGN",
                r#"kubectl patch node ${NODE_NAME} -p "{\"spec\":{\"configSource\":{\"configMap\":{\"name\":\"${CONFIG_MAP_NAME}\",\"namespace\":\"kube-system\",\"kubeletConfigKey\":\"kubelet\"}}}}""#,
            ),
            (
                "WITHDRAW",
                r#"KUBE_EDITOR="sed -i '/^  configSource:/,/^      namespace:/d'" kubectl edit node ${NODE_NAME}"#,
            ),
            ("STATUS", ".status.config"),
        ],
        Carrier::Labels => [
            (
                "ASSIGN",
                "kubectl label node ${NODE_NAME} kubelet-config.node-restriction.kubernetes.io/name=${CONFIG_MAP_NAME} \
                 kubelet-config.node-restriction.kubernetes.io/namespace=${NAMESPACE}",
            ),
            (
                "WITHDRAW",
                "kubectl label node ${NODE_NAME} kubelet-config.node-restriction.kubernetes.io/name- \
                 kubelet-config.node-restriction.kubernetes.io/namespace-",
            ),
            ("STATUS", r#".metadata.annotations["kubelet-supervisor.io/config-status"] // "null" | fromjson"#),
        ],
    }
}

pub fn tutorial(case: &Case) {
    let supervisor = case.supervisor();
    case.await_configz("eventRecordQPS", &versions::default_of("eventRecordQPS"));
    let work = case.cluster.dir.join("tutorial");
    std::fs::create_dir_all(&work).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    // `kubectl` is the cluster's.
    let _ = std::fs::remove_file(work.join("kubectl"));
    std::os::unix::fs::symlink(case.var("KUBECTL"), work.join("kubectl")).unwrap();
    let path = format!("{}:{}", work.display(), std::env::var("PATH").unwrap());
    let shell = |script: &str| {
        let mut command = Command::new("timeout");
        command.args(["100", "bash", "-euo", "pipefail", "-c", script]).current_dir(&work).envs(case.vars());
        command.env("NAMESPACE", case.carrier.namespace()).envs(commands(case.carrier));
        run(command.env("PORT", port.to_string()).env("PATH", &path)).unwrap()
    };
    let said = shell(TUTORIAL);
    let name = said.lines().find_map(|line| line.strip_prefix("name=")).unwrap();
    let map = case.get_map(name);
    case.await_proven(&map);
    case.await_configz("eventRecordQPS", &json!(7));
    // What the API server reports of the running configuration is all that configz said, and no more than one restart.
    supervisor.await_status(&[("/kubelet/restarts", json!(1)), ("/error", json!(""))]);

    shell(TUTORIAL_RESET);
    case.await_config(&LOCAL, &LOCAL, &LOCAL, "");
    case.await_configz("eventRecordQPS", &versions::default_of("eventRecordQPS"));
}

/// `check` with the real kubelet, and its exit codes.
pub fn check(case: &Case) {
    let dir = case.cluster.dir.join("check");
    std::fs::create_dir_all(&dir).unwrap();
    let ask = |lines: &str, more: &[&str]| {
        let file = dir.join("payload.yaml");
        std::fs::write(&file, case.payload(lines)).unwrap();
        let mut command = Command::new(BINARY);
        command.arg("check").arg(file).arg("--").args(case.kubelet_args()).args(more);
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        (output.status.code(), said)
    };
    let (code, said) = ask("maxPods: 9", &[]);
    assert_eq!(code, Some(0), "{said:?}");
    let (code, said) = ask("kubeAPIQPS: -1", &[]);
    assert_eq!(code, Some(1), "{said:?}");
    assert!(said[0].contains("rejected: ") && said[0].contains("-1"), "{said:?}");
    let (code, said) = ask("maxPods: 9", &["--no-such-flag"]);
    assert_eq!(code, Some(2), "a broken command line is not the file's fault: {said:?}");
}
