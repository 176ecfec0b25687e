//! The kubelet's word to the API server: its Lease, and the Node's condition Ready.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::flags::Flags;

/// A real one renews every 10 s and posts every 5 minutes, or at a change. Tests have no such time.
const PAUSE: Duration = Duration::from_millis(500);

/// Reports once before it returns, so that whoever hears READY finds a fresh Lease, and then for ever.
pub fn keep(flags: &Flags) {
    let Some(reporter) = Reporter::new(flags) else { return };
    reporter.report();
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(PAUSE);
            reporter.report();
        }
    });
}

struct Reporter {
    address: String,
    token: String,
    node: String,
}

impl Reporter {
    /// From a kubeconfig as the tests' API server writes it.
    fn new(flags: &Flags) -> Option<Reporter> {
        let text = std::fs::read_to_string(flags.get("kubeconfig")?).ok()?;
        let config: Value = serde_json::from_str(&text).ok()?;
        let server = config.pointer("/clusters/0/cluster/server")?.as_str()?;
        Some(Reporter {
            address: server.strip_prefix("http://")?.to_owned(),
            token: config.pointer("/users/0/user/token")?.as_str()?.to_owned(),
            node: flags.get("hostname-override")?.to_owned(),
        })
    }

    /// An API server that is away hears it the next time.
    fn report(&self) {
        let now = jiff::Timestamp::now();
        let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
        let lease = json!({"metadata": {"name": self.node, "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": self.node, "leaseDurationSeconds": 40, "renewTime": format!("{now:.6}")}});
        if self.send("PATCH", &format!("{leases}/{}", self.node), "merge-patch", &lease) == Some(404) {
            self.send("POST", leases, "", &lease);
        }
        let condition = json!({"type": "Ready", "status": "True", "reason": "KubeletReady",
            "message": "kubelet is posting ready status", "lastHeartbeatTime": format!("{now:.0}")});
        let path = format!("/api/v1/nodes/{}/status", self.node);
        self.send("PATCH", &path, "strategic-merge-patch", &json!({"status": {"conditions": [condition]}}));
    }

    /// The answer's status; `None` if there was none.
    fn send(&self, method: &str, path: &str, kind: &str, body: &Value) -> Option<u16> {
        let kind = if kind.is_empty() { "application/json".to_owned() } else { format!("application/{kind}+json") };
        let (body, Reporter { address, token, .. }) = (body.to_string(), self);
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nContent-Type: {kind}\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
        .ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok()?;
        String::from_utf8_lossy(&answer).split(' ').nth(1)?.parse().ok()
    }
}
