//! Pods with probes, behind Services.

use serde_json::{Value, json};

use crate::Result;
use crate::cluster::Cluster;
use crate::observer::Observer;

/// Streams lead to this one.
pub const FIRST: &str = "pod-0";
/// Where it answers with `TICKS`.
pub const TICKING_PORT: u16 = 9090;
/// A stream that lasts longer than native needs to take notice of a change, and ends within the default courtesy.
pub const TICKS: &str = "echo begun; for i in $(seq 25); do sleep 1; echo $i; done; echo whole";

const PROBES: [&str; 3] = ["readinessProbe", "livenessProbe", "startupProbe"];
/// So many begin at once: containers that all start together take longer than their probes allow.
const BATCH: usize = 10;

/// Brings the node from so many pods to more; their kubelet runs.
pub fn grow(cluster: &Cluster, observer: &mut Observer, from: usize, to: usize) -> Result<()> {
    if from == 0 && to > 0 {
        for probe in PROBES {
            let spec = json!({ "selector": { "probe": probe }, "ports": [{ "port": 80, "targetPort": 8080 }] });
            let service = json!({ "metadata": { "name": probe.to_lowercase() }, "spec": spec });
            cluster.api("POST", "/api/v1/namespaces/default/services", Some(&service))?;
        }
    }
    let numbers: Vec<usize> = (from..to).collect();
    for batch in numbers.chunks(BATCH) {
        for &number in batch {
            cluster.api("POST", "/api/v1/namespaces/default/pods", Some(&pod(cluster, number)?))?;
        }
        let count = from + batch.last().map_or(0, |last| last + 1 - from);
        observer.until(&format!("{count} pods to be ready"), |tally| Ok(tally.are_ready(count)))?;
    }
    Ok(())
}

/// A third each with a readiness, liveness or start-up probe of either kind, with the intervals that are the default.
/// Only their time is longer than the default second, so that it is not the load of this machine that fails them.
fn pod(cluster: &Cluster, number: usize) -> Result<Value> {
    let probe = PROBES.get(number % PROBES.len()).copied().unwrap_or_default();
    let handler = if (number / PROBES.len()).is_multiple_of(2) {
        json!({ "httpGet": { "path": "/ok", "port": 8080 }, "timeoutSeconds": 5 })
    } else {
        json!({ "exec": { "command": ["cat", "/www/ok"] }, "timeoutSeconds": 5 })
    };
    let script = format!(
        "echo begun; mkdir /www; echo ok >/www/ok; nc -ll -p {TICKING_PORT} -e sh -c \"$TICKS\" & exec httpd -f -p 8080 -h /www"
    );
    let container = json!({
        "name": "main", "image": cluster.var("IMAGE")?, "imagePullPolicy": "Never",
        "command": ["sh", "-c", script], "env": [{ "name": "TICKS", "value": TICKS }], probe: handler,
    });
    Ok(json!({
        "metadata": { "name": format!("pod-{number}"), "labels": { "probe": probe } },
        "spec": {
            "nodeName": cluster.var("NODE_NAME")?, "terminationGracePeriodSeconds": 1, "dnsPolicy": "Default",
            "tolerations": [{ "operator": "Exists" }], "containers": [container],
        },
    }))
}
