//! The cluster of `tests/real/cluster.sh`, with the controllers that follow the readiness of Pods and Nodes, and its API.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::Result;

/// The ConfigMap that is assigned: it differs from what runs, and costs no pod.
pub const CHANGE: &str = "another-max-pods";

pub struct Cluster {
    pub dir: PathBuf,
    vars: BTreeMap<String, String>,
    /// The kubelet and its arguments.
    pub kubelet: Vec<String>,
}

impl Cluster {
    pub fn up(dir: &Path) -> Result<Self> {
        script("up", dir, &[])?;
        let mut cluster = Self { dir: dir.to_owned(), vars: BTreeMap::new(), kubelet: Vec::new() };
        let text = std::fs::read_to_string(dir.join("env"))?;
        let pairs = text.lines().filter_map(|line| line.strip_prefix("export ")?.split_once('='));
        cluster.vars = pairs.map(|(name, value)| (name.to_owned(), value.trim_matches('"').to_owned())).collect();
        cluster.kubelet = script("kubelet-args", dir, &[])?.lines().map(str::to_owned).collect();
        script("start", dir, &["controller-manager"])?;
        let payload = std::fs::read_to_string(cluster.var("KUBELET_CONFIG")?)? + "maxPods: 120\n";
        let map = json!({ "metadata": { "name": CHANGE }, "data": { "kubelet": payload } });
        cluster.api("POST", "/api/v1/namespaces/kube-system/configmaps", Some(&map))?;
        Ok(cluster)
    }

    /// A variable of the cluster's `env` file.
    pub fn var(&self, name: &str) -> Result<&str> {
        self.vars.get(name).map(String::as_str).ok_or_else(|| format!("cluster.sh names no {name}").into())
    }

    /// `curl` to this path, as the administrator.
    pub fn curl(&self, path: &str) -> Result<Command> {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--cacert", self.var("CA_CERT")?, "--cert", self.var("ADMIN_CERT")?]);
        curl.args(["--key", self.var("ADMIN_KEY")?]).arg(format!("{}{path}", self.var("API_URL")?));
        curl.stdin(Stdio::null()).stdout(Stdio::piped());
        Ok(curl)
    }

    pub fn api(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let mut curl = self.curl(path)?;
        curl.args(["-m", "20", "-X", method, "-H", &format!("Content-Type: {kind}"), "-w", "\n%{http_code}"]);
        if body.is_some() {
            curl.args(["--data-binary", "@-"]).stdin(Stdio::piped());
        }
        let mut child = curl.spawn()?;
        if let (Some(body), Some(mut input)) = (body, child.stdin.take()) {
            input.write_all(body.to_string().as_bytes())?;
        }
        let answer = String::from_utf8(child.wait_with_output()?.stdout)?;
        let (text, code) = answer.rsplit_once('\n').unwrap_or_default();
        if code.starts_with('2') {
            Ok(serde_json::from_str(text)?)
        } else {
            Err(format!("{method} {path}: {answer}").into())
        }
    }

    pub fn kubectl(&self, args: &[&str]) -> Result<Command> {
        let mut kubectl = Command::new(self.var("KUBECTL")?);
        kubectl.env("KUBECONFIG", self.var("KUBECONFIG")?).args(args);
        kubectl.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Ok(kubectl)
    }

    pub fn node_path(&self) -> Result<String> {
        Ok(format!("/api/v1/nodes/{}", self.var("NODE_NAME")?))
    }

    pub fn assign(&self, name: Option<&str>) -> Result<()> {
        let source = name.map(
            |name| json!({ "configMap": { "namespace": "kube-system", "name": name, "kubeletConfigKey": "kubelet" } }),
        );
        self.api("PATCH", &self.node_path()?, Some(&json!({ "spec": { "configSource": source } }))).map(drop)
    }

    /// What the node says it runs.
    pub fn active(&self) -> Result<Option<String>> {
        let node = self.api("GET", &self.node_path()?, None)?;
        Ok(node.pointer("/status/config/active/configMap/name").and_then(Value::as_str).map(str::to_owned))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Err(error) = script("down", &self.dir, &[]) {
            eprintln!("{error}");
        }
    }
}

/// A verb of `cluster.sh`; what it says.
fn script(verb: &str, dir: &Path, more: &[&str]) -> Result<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real/cluster.sh");
    let mut command = Command::new(script);
    command.arg(verb).arg(dir).args(more).env("EXTRA_BINARIES", "kube-controller-manager").stderr(Stdio::inherit());
    let output = command.output()?;
    if !output.status.success() {
        return Err(format!("cluster.sh {verb}: {}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}
