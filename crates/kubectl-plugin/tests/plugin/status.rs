//! `status`: the table within 80 columns, all of it as JSON, and what a watch costs.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::Bench;
use testkit::rig::eventually;

const SOON: Duration = Duration::from_secs(20);
const LABELS: &str = "kubelet-config.node-restriction.kubernetes.io/";
const STATUS: &str = "kubelet-supervisor.io/config-status";

/// A ConfigMap's version in a status.
pub fn version(name: &str, version: &str) -> Value {
    json!({"configMap": {"namespace": "kubelet-config", "name": name, "kubeletConfigKey": "kubelet",
        "uid": "5eed0000-0000-4000-8000-000000000009", "resourceVersion": version}})
}

/// So many seconds from now, RFC 3339.
pub fn from_now(seconds: i64) -> String {
    let time = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second() + seconds).unwrap();
    time.to_string()
}

/// A Ready Node an hour old, labelled with this ConfigMap, whose supervisor says this; no reason: it has no condition.
pub fn node(labelled: Option<&str>, said: Option<&Value>, reason: &str, message: &str) -> Value {
    let mut node = json!({
        "metadata": {"labels": {"pool": "a"}, "creationTimestamp": from_now(-3600)},
        "spec": {},
        "status": {
            "nodeInfo": {"kubeletVersion": "v1.36.2"},
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": from_now(-5)}],
        },
    });
    if let Some(name) = labelled {
        node["metadata"]["labels"][format!("{LABELS}name")] = json!(name);
        node["metadata"]["labels"][format!("{LABELS}namespace")] = json!("kubelet-config");
    }
    if let Some(said) = said {
        node["metadata"]["annotations"] = json!({STATUS: said.to_string()});
    }
    if !reason.is_empty() {
        node["status"]["conditions"].as_array_mut().unwrap().push(json!({
            "type": "KubeletConfigOk", "status": "Unknown", "reason": reason, "message": message,
            "lastHeartbeatTime": from_now(-65), "lastTransitionTime": from_now(-3000),
        }));
    }
    node
}

fn fleet(bench: &Bench) {
    bench.server.delete_node(super::NODE);
    let put = |name: &str, node: Value| bench.server.put_node(name, node);
    let (old, new) = (version("pool-a-1", "10"), version("pool-a-2", "20"));
    let proven = json!({"assigned": new, "active": new, "lastKnownGood": new});
    put("n1-proven", node(Some("pool-a-2"), Some(&proven), "LastKnownGood", "Proven: x"));
    let trial = json!({"assigned": new, "active": new, "lastKnownGood": old, "trialEnds": from_now(442)});
    put("n2-trial", node(Some("pool-a-2"), Some(&trial), "OnTrial", "On trial until"));
    let failed = json!({"assigned": new, "active": old, "lastKnownGood": old, "error": "failed to validate config, see Kubelet log for details"});
    let words = "invalid configuration:\nevictionHard \u{1b}[31mmust be set, and so on for a longer time than there is room for";
    put("n3-refused", node(Some("pool-a-2"), Some(&failed), "Rejected", words));
    put("n4-local", node(None, Some(&json!({})), "", ""));
    put("n5-bare", node(Some("pool-a-2"), None, "", ""));
    let mut joining = node(None, None, "", "");
    joining["metadata"]["creationTimestamp"] = json!(from_now(-30));
    put("n6-joining", joining);
    let mut silent = node(
        Some("pool-a-2"),
        Some(&json!({"assigned": old, "active": old, "lastKnownGood": old})),
        "LastKnownGood",
        "",
    );
    silent["metadata"]["managedFields"] = json!([{"manager": "kubectl-label", "time": from_now(-1830),
        "fieldsV1": {"f:metadata": {"f:labels": {format!("f:{LABELS}name"): {}}}}}]);
    put("n7-silent", silent);
    let mut down = node(Some("pool-a-2"), Some(&proven), "LastKnownGood", "Proven: x");
    down["status"]["conditions"][0]["status"] = json!("Unknown");
    put("n8-down", down);
}

#[test]
fn one_row_a_node() {
    let bench = Bench::new();
    fleet(&bench);
    let out = bench.run(&["status"]).ok();
    let rows: Vec<&str> = out.lines().collect();
    // What is left of the trial moves on while this runs.
    let expected = [
        "NODE         ASSIGNED   STATE            AGE   MESSAGE",
        "n1-proven    pool-a-2   proven           65s   -",
        "n2-trial     pool-a-2   on trial 7m2?s   65s   -",
        "n3-refused   pool-a-2   failed           65s   invalid configuration: evictionHard \\u{1b}[31mmust be set,",
        "n4-local     -          local            -     -",
        "n5-bare      pool-a-2   no supervisor    -     kubelet-supervisor enable, on the node",
        "n6-joining   -          no word yet      -     the Node is 30s old",
        "n7-silent    pool-a-2   silent           65s   its supervisor says nothing of it, 30m after it was assigned",
        "n8-down      pool-a-2   proven           65s   the Node is NotReady",
    ];
    assert_eq!(rows.len(), expected.len(), "{out}");
    let same = |c: char, e: char| c == e || (c.is_ascii_digit() && (e.is_ascii_digit() || e == '?'));
    for (row, expected) in rows.iter().zip(expected) {
        let near = row.chars().zip(expected.chars()).all(|(c, e)| same(c, e));
        assert!(near && row.len() >= expected.len(), "{row}\n{expected}\n{out}");
    }
    assert!(!out.contains('\u{1b}'), "nothing of it is obeyed by a terminal");

    let wide = bench.run(&["status", "n3-refused", "-o", "wide"]).ok();
    for part in [
        "v1.36.2",
        "labels",
        "kubelet-config/pool-a-2[kubelet]",
        "kubelet-config/pool-a-1@10",
        "so on for a longer time",
    ] {
        assert!(wide.contains(part), "{part}: {wide}");
    }
    let rows = bench.run(&["status", "-l", "pool=a", "-o", "json"]).json();
    assert_eq!(rows.as_array().unwrap().len(), 8);
    assert_eq!(
        (&rows[6]["manager"], &rows[4]["manager"], &rows[5]["manager"]),
        (&json!("silent"), &json!("none"), &json!("not-yet"))
    );
    assert!(rows[1]["trial"]["secondsLeft"].as_u64().unwrap() > 400);
    assert!(!rows[2]["message"].as_str().unwrap().contains(char::is_control), "programs get it no other way");
    assert!(bench.run(&["status", "-o", "yaml", "n1-proven"]).ok().contains("state: proven"));
}

#[test]
fn a_node_that_is_not_there_hides_no_other() {
    let bench = Bench::new();
    let ran = bench.run(&["status", "node/n1", "nobody"]);
    assert_eq!(ran.code, 1);
    assert!(ran.out.contains("n1") && ran.err.contains("error: get node nobody"), "{ran:#?}");
}

struct Watching {
    child: Child,
    /// None once nobody reads any more.
    lines: Option<BufReader<ChildStdout>>,
}

impl Watching {
    fn begin(bench: &Bench, args: &[&str]) -> Self {
        let mut child = bench.command(args).stdout(Stdio::piped()).spawn().unwrap();
        let lines = Some(BufReader::new(child.stdout.take().unwrap()));
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.as_mut().unwrap().read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lists of Nodes, and versions that watches began from.
fn asked(bench: &Bench) -> (usize, Vec<String>) {
    let nodes: Vec<_> = bench.server.requests().into_iter().filter(|request| request.path == "/api/v1/nodes").collect();
    let from = |query: &str| {
        query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion=")).unwrap_or_default().to_owned()
    };
    let watches = nodes.iter().filter(|request| request.is_watch()).map(|request| from(&request.query));
    (nodes.iter().filter(|request| !request.is_watch()).count(), watches.collect())
}

fn await_watches(bench: &Bench, count: usize) {
    let begun = |state: &testkit::api_server::State| {
        let watches = state.requests().iter().filter(|request| request.is_watch() && request.status != 0).count();
        (watches >= count && state.watches() == 1).then_some(())
    };
    bench.server.wait_until(SOON, begun).unwrap();
}

#[test]
fn a_watch_is_one_list_and_goes_on_from_where_it_was() {
    let mut bench = Bench::new();
    let (old, new) = (version("pool-a-1", "10"), version("pool-a-2", "20"));
    let said = |active: &Value| json!({"assigned": new, "active": active, "lastKnownGood": old});
    bench.server.put_node("n1", node(Some("pool-a-2"), Some(&said(&new)), "OnTrial", "On trial"));
    let mut failed = said(&old);
    failed["error"] = json!("failed to load config, see Kubelet log for details");
    let mut watching = Watching::begin(&bench, &["status", "-w"]);
    assert!(watching.line().starts_with("NODE"));
    assert!(watching.line().contains("on trial"));
    await_watches(&bench, 1);

    // Heartbeats, and labels of others, are no news.
    bench.server.set_condition("n1", "Ready", "True");
    bench.server.patch_node("n1", json!({"metadata": {"labels": {"other": "x"}}}));
    bench.server.put_node("n1", node(Some("pool-a-2"), Some(&failed), "RolledBack", "healthz failed"));
    let row = watching.line();
    assert!(row.starts_with("n1 ") && row.contains("healthz failed"), "{row}");

    // Ended by the API server: it goes on from the bookmark, without a list.
    bench.server.create_node("elsewhere");
    let row = watching.line();
    assert!(row.starts_with("elsewhere"), "{row}");
    bench.server.put_node("n3", node(None, Some(&json!({})), "", ""));
    assert!(watching.line().starts_with("n3"));
    bench.server.put_config_map("kubelet-config", "m", &[("kubelet", "x")]);
    let newest = bench.server.read(testkit::api_server::State::version).to_string();
    bench.server.bookmark();
    bench.server.end_watches();
    await_watches(&bench, 2);
    let (lists, from) = asked(&bench);
    assert_eq!((lists, &from[1]), (1, &newest), "{from:?}");

    // A gap that cannot be bridged: one more list, and again only what is new.
    bench.server.stop();
    bench.server.delete_node("elsewhere");
    bench.server.patch_node("n3", json!({"status": {"nodeInfo": {"kubeletVersion": "v1.37.0"}}}));
    bench.server.compact();
    bench.server.gone_as_http(true);
    bench.server.restart();
    let rows = [watching.line(), watching.line()];
    assert!(rows[0].contains("deleted") && rows[0].starts_with("elsewhere"), "{rows:?}");
    assert!(rows[1].starts_with("n3"), "{rows:?}");
    assert_eq!(asked(&bench).0, 2);
}

#[test]
fn a_watch_ends_when_nobody_reads_it() {
    let bench = Bench::new();
    let mut watching = Watching::begin(&bench, &["status", "-w", "-o", "json"]);
    assert_eq!(watching.line(), "{");
    await_watches(&bench, 1);
    watching.lines = None;
    // A child that another test has forked, and that has not come to its exec, reads for a moment: then a line goes to nobody.
    let mut is_ready = false;
    let ended = eventually("an end", || {
        is_ready = !is_ready;
        let status = if is_ready { "True" } else { "False" };
        bench.server.patch_node("n1", json!({"status": {"conditions": [{"type": "Ready", "status": status}]}}));
        watching.child.try_wait().unwrap()
    });
    assert!(ended.success());
}
