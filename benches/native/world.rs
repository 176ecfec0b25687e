//! A node with its API server: the real ones of `tests/real/cluster.sh`, or the tests' stand-ins.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::api_server::ApiServer;
use testkit::interrupt::is_interrupted;
use testkit::port::Port;

use crate::Result;
use crate::cluster::{Cluster, output};
use crate::counted::CountedKubelet;
use crate::healthz::is_healthy;

pub const NODE: &str = "node1";
/// The namespace whose ConfigMaps nodes may read by `packaging/manifests/base`.
const NAMESPACE: &str = "kubelet-config";
const LABELS: &str = "kubelet-config.node-restriction.kubernetes.io";
const STATUS: &str = "kubelet-supervisor.io/config-status";

/// A modern kubelet's times: 0.05 s from exec to its lock file, 0.25 s from there to healthz, 0.07 s to leave on SIGTERM
/// (v1.36 on a quiet machine).
const MODERN: &str = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n\
    standIn: {loadDelay: 50ms, startDelay: 250ms, stopDelay: 70ms}\n";

/// A ConfigMap as it is assigned.
pub struct ConfigMap {
    pub name: String,
    pub version: String,
}

enum Backend {
    Real { _cluster: Cluster },
    StandIn { _server: ApiServer, _healthz: Port, _dir: tempfile::TempDir },
}

pub struct World {
    pub dir: PathBuf,
    _backend: Backend,
    api: u16,
    pub healthz: u16,
    /// Where the supervisor shows its metrics.
    pub metrics: u16,
    pub kubelet: CountedKubelet,
    pub args: Vec<String>,
    /// The kubelet's local configuration.
    config: String,
    /// Both the API server and the kubelet have native dynamic configuration; else labels assign.
    pub has_native: bool,
    versions: String,
    _metrics: Port,
}

impl World {
    pub fn stand_in() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let at = |name: &str| dir.path().join(name);
        let server = ApiServer::start();
        server.create_node(NODE);
        server.drop_dynamic_config(true);
        server.write_kubeconfig(at("kubeconfig"));
        let (healthz, metrics) = (Port::free(), Port::free());
        std::fs::write(at("config.yaml"), MODERN)?;
        std::fs::write(at("kubelet.env"), "STAND_IN_STYLE=1.36\nSTAND_IN_REPORTS=1\n")?;
        let args = vec![
            format!("--config={}", at("config.yaml").display()),
            format!("--kubeconfig={}", at("kubeconfig").display()),
            format!("--hostname-override={NODE}"),
            format!("--healthz-port={}", healthz.number()),
            format!("--cert-dir={}", at("pki").display()),
            format!("--root-dir={}", at("root").display()),
        ];
        Ok(Self {
            dir: dir.path().to_owned(),
            api: server.port(),
            healthz: healthz.number(),
            metrics: metrics.number(),
            kubelet: CountedKubelet::install(dir.path(), None)?,
            _backend: Backend::StandIn { _server: server, _healthz: healthz, _dir: dir },
            args,
            config: MODERN.to_owned(),
            has_native: false,
            versions: "Stand-in kubelet with a modern one's times, the tests' API server".to_owned(),
            _metrics: metrics,
        })
    }

    pub fn real() -> Result<Self> {
        let mut cluster = Cluster::up()?;
        let (program, args) = cluster.kubelet()?;
        let (api, metrics) = (cluster.start_proxy()?, Port::free());
        let config = std::fs::read_to_string(cluster.dir.join("kubelet/config.yaml"))?;
        let healthz = config.lines().find_map(|line| line.strip_prefix("healthzPort: ")).ok_or("no healthzPort")?;
        let version = output(Command::new(&program).arg("--version"))?.trim().replace("Kubernetes", "Kubelet");
        let mut world = Self {
            dir: cluster.dir.clone(),
            api,
            healthz: healthz.parse()?,
            metrics: metrics.number(),
            kubelet: CountedKubelet::install(&cluster.dir.join("counted"), Some(&program))?,
            _backend: Backend::Real { _cluster: cluster },
            args,
            config,
            has_native: false,
            versions: String::new(),
            _metrics: metrics,
        };
        let server = world.api("GET", "/version", None)?["gitVersion"].as_str().unwrap_or_default().to_owned();
        // The gate was on by default until 1.21; the kubelet has had neither gate nor flag since 1.24.
        world.has_native = minor(&version).is_some_and(|it| it < 24) && minor(&server).is_some_and(|it| it < 22);
        world.versions = format!("{version}, kube-apiserver {server}");
        Ok(world)
    }

    /// What runs here.
    pub fn told(&self) -> &str {
        &self.versions
    }

    pub fn api(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let body = body.map(ToString::to_string).unwrap_or_default();
        let (status, text) = http(self.api, method, path, kind, &body)?;
        if status >= 300 {
            return Err(format!("{method} {path}: {status} {text}").into());
        }
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    /// Makes a ConfigMap with the local configuration and more lines.
    pub fn config_map(&self, name: &str, lines: &str) -> Result<ConfigMap> {
        let map = json!({
            "metadata": {"name": name, "annotations": {"kubelet-supervisor.io/acknowledge": "all"}},
            "data": {"kubelet": format!("{}{lines}\n", self.config)},
        });
        let map = self.api("POST", &format!("/api/v1/namespaces/{NAMESPACE}/configmaps"), Some(&map))?;
        Ok(ConfigMap { name: name.to_owned(), version: version_of(&map) })
    }

    /// An edit that changes nothing that a kubelet goes by.
    pub fn label(&self, map: &ConfigMap) -> Result<ConfigMap> {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps/{}", map.name);
        let edited = self.api("PATCH", &path, Some(&json!({"metadata": {"labels": {"edited": "yes"}}})))?;
        Ok(ConfigMap { name: map.name.clone(), version: version_of(&edited) })
    }

    pub fn assign(&self, map: Option<&ConfigMap>) -> Result<()> {
        let name = map.map(|map| map.name.as_str());
        let patch = if self.has_native {
            let source = name.map(|name| json!({"namespace": NAMESPACE, "name": name, "kubeletConfigKey": "kubelet"}));
            json!({"spec": {"configSource": source.map(|source| json!({"configMap": source}))}})
        } else {
            let labels = [("name", name), ("namespace", name.map(|_| NAMESPACE))];
            let labels = labels.map(|(label, value)| (format!("{LABELS}/{label}"), json!(value)));
            json!({"metadata": {"labels": serde_json::Map::from_iter(labels)}})
        };
        self.patch_node("", &patch)
    }

    fn patch_node(&self, subresource: &str, patch: &Value) -> Result<()> {
        self.api("PATCH", &format!("/api/v1/nodes/{NODE}{subresource}"), Some(patch)).map(drop)
    }

    /// Nothing is assigned, and nothing is said of earlier configurations.
    pub fn forget(&self) -> Result<()> {
        if self.api("GET", &format!("/api/v1/nodes/{NODE}"), None).is_err() {
            return Ok(()); // there is no Node before the first kubelet
        }
        self.assign(None)?;
        self.patch_node("", &json!({"metadata": {"annotations": {STATUS: null}}}))?;
        self.patch_node("/status", &json!({"status": {"config": null}}))
    }

    /// `Node.status.config`; where the API server does not keep it, the annotation with the same content.
    pub fn status(&self) -> Value {
        let node = self.api("GET", &format!("/api/v1/nodes/{NODE}"), None).unwrap_or_default();
        if self.has_native {
            return node.pointer("/status/config").cloned().unwrap_or_default();
        }
        let text = node["metadata"]["annotations"][STATUS].as_str().unwrap_or_default();
        serde_json::from_str(text).unwrap_or_default()
    }

    /// Whether it is said to be active; `None`: the local configuration is.
    pub fn is_active(&self, map: Option<&ConfigMap>) -> bool {
        let status = self.status();
        let active = &status["active"]["configMap"];
        match map {
            None => active.is_null(),
            Some(map) => active["name"] == *map.name && active["resourceVersion"] == *map.version,
        }
    }

    /// When the kubelet last renewed its Lease.
    pub fn renewed(&self) -> Value {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE}");
        self.api("GET", &path, None).unwrap_or_default()["spec"]["renewTime"].clone()
    }

    pub fn is_healthy(&self) -> bool {
        is_healthy(self.healthz)
    }
}

fn version_of(map: &Value) -> String {
    map["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
}

/// Of `Kubernetes v1.20.2` or `v1.20.2`.
fn minor(version: &str) -> Option<u32> {
    version.split('.').nth(1)?.parse().ok()
}

pub fn http(port: u16, method: &str, path: &str, kind: &str, body: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or("no answer")?;
    Ok((head.split(' ').nth(1).ok_or("no status")?.parse()?, body.to_owned()))
}

pub fn wait_for(what: &str, limit: Duration, mut done: impl FnMut() -> bool) -> Result<()> {
    let begun = Instant::now();
    while !done() {
        if is_interrupted() {
            return Err(format!("interrupted while waiting for {what}").into());
        }
        if begun.elapsed() > limit {
            return Err(format!("gave up after {} s waiting for {what}", limit.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
