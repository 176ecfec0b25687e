//! What a person sees: on terminals of several widths, with and without colours, and in a pipe.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kubelet_config::hazard::defaults::defaulted;
use kubelet_config::preflight::{ANSWER_ANNOTATION, PreflightResult, PreflightStatus, REQUEST_ANNOTATION};
use serde_json::{Value, json};

use crate::read::configz;
use crate::status::{from_now, node, version};
use crate::{Bench, Controller, HEAD};

const NODE: &str = "ip-10-0-113-110.eu-central-1.compute.internal";
const POOL: &str = "pool-memory-optimised-hf7m2k9d5t";
/// What the kubelet says there of a bad one.
const WORDS: &str = "invalid configuration: [evictionHard \"memory.available\": quantities must match the regular expression \
                 '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$', maxPods (--max-pods) -1 must not be a negative number, \
                 nodeLeaseDurationSeconds must be greater than 0, kubeReserved has an unknown resource]";
const PLUGIN: &str = env!("CARGO_BIN_EXE_kubectl-kubelet_config");

/// What a terminal of this size is sent, by script(1) of util-linux, which every Debian has.
fn on_terminal(bench: &Bench, size: &str, env: &[(&str, &str)], args: &[&str]) -> String {
    let quoted: Vec<String> = args.iter().map(|arg| format!("'{arg}'")).collect();
    let line = format!("stty {size}; exec '{PLUGIN}' {}", quoted.join(" "));
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).current_dir(bench.dir.path()).stdin(Stdio::null());
    command.env("KUBECONFIG", bench.path("kubeconfig")).env_remove("KUBERNETES_SERVICE_HOST");
    command.env("TERM", "xterm").env_remove("NO_COLOR").env_remove("COLUMNS").env("SHELL", "/bin/sh");
    let output = command.envs(env.iter().copied()).output().unwrap();
    String::from_utf8(output.stdout).unwrap().replace("\r\n", "\n")
}

/// A pool as there are many, at the worst moment. All ages are in the middle of a minute or more.
fn pool() -> Bench {
    let bench = Bench::new();
    bench.server.drop_dynamic_config(true);
    bench.server.delete_node(crate::NODE);
    let put = |name: &str, mut node: Value| {
        if let Some(heartbeat) = node.pointer_mut("/status/conditions/1/lastHeartbeatTime") {
            *heartbeat = json!(from_now(-12_330));
        }
        node["status"]["nodeInfo"]["kubeletVersion"] = json!("v1.20.2"); // its defaults are those of configz
        bench.server.put_node(name, node);
    };
    let text = format!("{HEAD}maxPods: 50\nkubeReserved: {{cpu: 500m}}\n");
    let annotation = Some(("kubelet-supervisor.io/merge", "replace"));
    let (uid, at) = bench.server.put_annotated_config_map("kubelet-config", POOL, &[("kubelet", &text)], annotation);
    bench.server.put_config_map("kubelet-config", "pool-memory-optimised-9c4w7d82px", &[("kubelet", &text)]);
    let (old, mut new) = (version("pool-memory-optimised-7bk2m6t9f4", "10"), version(POOL, &at));
    new["configMap"]["uid"] = json!(uid);
    let proven = json!({"assigned": new, "active": new, "lastKnownGood": new});
    put("ip-10-0-113-110.eu-central-1.compute.internal", node(Some(POOL), Some(&proven), "LastKnownGood", "Proven: x"));
    let trial = json!({"assigned": new, "active": new, "lastKnownGood": old, "trialEnds": from_now(1_710)});
    put("ip-10-0-113-111.eu-central-1.compute.internal", node(Some(POOL), Some(&trial), "OnTrial", "On trial until"));
    let error = "failed to validate config, see Kubelet log for details";
    let failed = json!({"assigned": new, "active": old, "lastKnownGood": old, "error": error});
    put("ip-10-0-114-7.eu-central-1.compute.internal", node(Some(POOL), Some(&failed), "Rejected", WORDS));
    put("ip-10-0-114-9.eu-central-1.compute.internal", node(Some(POOL), None, "", ""));
    bench.server.patch_config_map("kubelet-config", "pool-memory-optimised-9c4w7d82px", json!({"immutable": true}));
    // Of a known version what is left out is zero.
    bench.server.set_configz(NODE, defaulted(&configz(), Some(20)));
    bench.server.put_event(
        "a",
        event(NODE, "Normal", "KubeletConfigChanged", &format!("Kubelet restarting to use {}", place())),
    );
    bench.server.put_event("b", event(NODE, "Warning", "KubeletConfigRejected", "Rejected: maxPods -1 is negative"));
    bench
        .file("next.yaml", &format!("{HEAD}maxPods: 60\ncgroupDriver: cgroupfs\nclusterDNS: [10.0.0.10, 10.0.0.11]\n"));
    bench
}

/// A KubeletConfigPool that has stopped at a node.
fn put_stalled(bench: &Bench) {
    let message = format!("{POOL} is not tried again: ip-10-0-114-7.eu-central-1.compute.internal: {WORDS}");
    let condition = |kind: &str, status: &str| {
        json!({"type": kind, "status": status, "reason": "FailuresExceeded", "message": message,
            "observedGeneration": 1, "lastTransitionTime": from_now(-600)})
    };
    let status = json!({
        "observedGeneration": 1, "updateRevision": POOL, "nodes": 4, "updated": 4, "proven": 1, "updating": 2, "unavailable": 2,
        "failed": 1, "conditions": [condition("Ready", "False"), condition("Stalled", "True")],
        "badRevisions": [{"revision": POOL, "nodes": [{"name": "ip-10-0-114-7.eu-central-1.compute.internal", "message": WORDS}]}],
    });
    let spec = json!({"nodeSelector": {"matchLabels": {"pool": "a"}}, "configMap": {"name": POOL}});
    bench.server.put_pool("workers", &spec);
    bench.server.patch_pool("workers", &json!({ "status": status }));
}

fn place() -> String {
    format!(
        "/api/v1/namespaces/kubelet-config/configmaps/{POOL}, UID: 5eed0000-0000-4000-8000-000000000009, \
         ResourceVersion: 20, KubeletConfigKey: kubelet"
    )
}

fn event(node: &str, kind: &str, reason: &str, message: &str) -> Value {
    let time = from_now(-12_330);
    json!({"involvedObject": {"kind": "Node", "name": node}, "reason": reason, "type": kind, "count": 1,
        "message": message, "firstTimestamp": time, "lastTimestamp": time})
}

/// Every command with a table or a text.
fn commands() -> Vec<Vec<&'static str>> {
    let line = |line: &'static str| line.split(' ').map(|word| if word == "NODE" { NODE } else { word }).collect();
    let lines = [
        "status",
        "explain NODE",
        "diff cm/pool-memory-optimised-hf7m2k9d5t next.yaml",
        "diff NODE next.yaml",
        "history NODE",
        "doctor",
        "assign pool-memory-optimised-hf7m2k9d5t NODE --dry-run=server",
        "rollout status",
        "rollout status workers",
        "rollout pool-memory-optimised-9c4w7d82px -l pool=a --name workers --dry-run --max-unavailable 50%",
    ];
    lines.into_iter().map(line).collect()
}

/// Boxes of the pages that begin with `$ kubectl kubelet-config` show what a terminal of 80 columns shows.
#[test]
fn the_pages_show_what_is_to_be_seen() {
    let root = Path::new(testkit::built::ROOT);
    let seen = fs::read_to_string(root.join("tests/fixtures/plugin/terminal/80.txt")).unwrap();
    let mut shown = 0;
    for page in ["docs/usage/overview.md", "docs/usage/tutorial.md", "docs/usage/doctor.md", "docs/usage/reference.md"]
    {
        let text = fs::read_to_string(root.join(page)).unwrap();
        for text in text.split("```text\n").skip(1).filter_map(|rest| rest.split("```").next()) {
            if text.starts_with("$ kubectl kubelet-config") {
                assert!(seen.contains(text.trim_end()), "{page}: {text}");
                shown += 1;
            }
        }
    }
    assert!(shown >= 4, "{shown}");
}

/// `tests/fixtures/plugin/terminal/` is there to be looked at; `UPDATE_SNAPSHOTS=1` writes it anew.
#[test]
fn as_a_person_sees_it() {
    for columns in [80, 120] {
        // Anew: after half a minute the ages are others.
        let bench = pool();
        let mut seen = String::new();
        for args in commands() {
            if args[0] == "rollout" {
                put_stalled(&bench);
            }
            let text = on_terminal(&bench, &format!("rows 24 cols {columns}"), &[("NO_COLOR", "1")], &args);
            let _ = writeln!(seen, "$ kubectl kubelet-config {}\n{text}", args.join(" "));
        }
        let file = testkit::built::file(&format!("tests/fixtures/plugin/terminal/{columns}.txt"));
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
            fs::create_dir_all(Path::new(&file).parent().unwrap()).unwrap();
            fs::write(&file, &seen).unwrap();
        }
        let kept = fs::read_to_string(&file).unwrap_or_default();
        let other = seen.lines().zip(kept.lines().chain(std::iter::repeat(""))).find(|(seen, kept)| seen != kept);
        assert!(seen == kept, "{}, first {other:#?}; UPDATE_SNAPSHOTS=1 renews it:\n{seen}", file.display());
        // What is to be copied is whole, and so are errors.
        let whole = ["$ ", "    kubectl ", "    /api/", "node/ip-10-0-113-110.eu-central-1.compute.internal unchanged"];
        let is_table = |line: &&str| !whole.iter().any(|head| line.starts_with(head));
        let longest = seen.lines().filter(is_table).map(|line| line.chars().count()).max();
        assert!(longest <= Some(columns), "{longest:?} of {columns}: {seen}");
    }
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let bench = pool();
    let status = |env: &[(&str, &str)]| on_terminal(&bench, "rows 24 cols 80", env, &["status"]);
    let coloured = status(&[]);
    assert!(
        coloured.contains("\u{1b}[31mfailed\u{1b}[0m") && coloured.contains("\u{1b}[32mproven\u{1b}[0m"),
        "{coloured}"
    );
    let bare =
        coloured.replace("\u{1b}[31m", "").replace("\u{1b}[32m", "").replace("\u{1b}[33m", "").replace("\u{1b}[0m", "");
    assert_eq!(status(&[("NO_COLOR", "1")]), bare, "colours move no column");
    assert_eq!(status(&[("TERM", "dumb")]), bare);
    assert_eq!(status(&[("NO_COLOR", "")]), coloured, "empty is unset (no-color.org)");
    put_stalled(&bench);
    for args in commands() {
        let ran = bench.run(&args);
        assert!(!ran.out.contains('\u{1b}') && !ran.err.contains('\u{1b}'), "{ran:?}");
        assert!(!ran.out.contains('…'), "a pipe gets all of it: {ran:?}");
    }
}

#[test]
fn the_width_is_the_terminals() {
    let bench = pool();
    let widest = |size: &str, env: &[(&str, &str)]| {
        let text = on_terminal(&bench, size, &[&[("NO_COLOR", "1")], env].concat(), &["status"]);
        text.lines().map(|line| line.chars().count()).max().unwrap()
    };
    let at_80 = widest("rows 24 cols 80", &[]);
    assert!((70..=80).contains(&at_80), "{at_80}");
    assert!((100..=132).contains(&widest("rows 24 cols 132", &[])));
    assert_eq!(widest("rows 0 cols 0", &[]), at_80, "a serial line does not know");
    assert_eq!(widest("rows 24 cols 132", &[("COLUMNS", "80")]), at_80, "the user knows better");
    assert_eq!(widest("rows 24 cols 80", &[("COLUMNS", "none")]), at_80);
    let wide = on_terminal(&bench, "rows 24 cols 80", &[], &["status", "-o", "wide"]);
    assert!(wide.contains("unknown resource]") && !wide.contains('…'), "{wide}");
    let wide = on_terminal(&bench, "rows 24 cols 40", &[], &["explain", NODE, "-o", "wide"]);
    assert!(wide.contains(&format!("ConfigMap kubelet-config/{POOL}")) && !wide.contains('…'), "{wide}");
    let help = on_terminal(&bench, "rows 24 cols 80", &[], &["rollout", "--help"]);
    assert!(help.contains("Options of every command:"), "{help}");
    for line in help.replace("\u{1b}[1m", "").replace("\u{1b}[4m", "").replace("\u{1b}[0m", "").lines() {
        assert!(line.chars().count() <= 80 || line.starts_with("Usage: "), "{line}");
    }
}

/// Answers each preflight, and marks each node that is labelled with this as proven, until told to stop.
fn prove(bench: &Bench, nodes: &[String], version: &Value, stop: &AtomicBool) {
    let said = json!({"assigned": version, "active": version, "lastKnownGood": version}).to_string();
    while !stop.load(Ordering::Relaxed) {
        for name in nodes {
            let node = bench.server.node(name);
            let label = &node["metadata"]["labels"]["kubelet-config.node-restriction.kubernetes.io/name"];
            let annotations = &node["metadata"]["annotations"];
            let mut patch = json!({});
            if *label == version["configMap"]["name"]
                && annotations["kubelet-supervisor.io/config-status"] != said.as_str()
            {
                patch["kubelet-supervisor.io/config-status"] = json!(said);
            }
            if let (Some(request), true) =
                (annotations[REQUEST_ANNOTATION].as_str(), annotations[ANSWER_ANNOTATION].is_null())
            {
                patch[ANSWER_ANNOTATION] =
                    json!(PreflightStatus::new(request, PreflightResult::Valid, "").annotation());
            }
            if patch != json!({}) {
                bench.server.patch_node(name, json!({"metadata": {"annotations": patch}}));
            }
        }
        std::thread::sleep(Duration::from_millis(300)); // a kubelet takes its time, and the bar is to be seen
    }
}

/// Twelve nodes with an old version, and an immutable new one; args of the rollout that brings it to them.
fn twelve() -> (Bench, Vec<String>, Value, Vec<&'static str>) {
    let bench = Bench::new();
    bench.server.delete_node(crate::NODE);
    bench.server.drop_dynamic_config(true);
    bench.server.put_config_map("kubelet-config", "pool-a-2", &[("kubelet", "{}")]);
    let (uid, at) = bench.server.patch_config_map("kubelet-config", "pool-a-2", json!({"immutable": true}));
    let (old, mut new) = (version("pool-a-1", "10"), version("pool-a-2", &at));
    new["configMap"]["uid"] = json!(uid);
    let proven = json!({"assigned": old, "active": old, "lastKnownGood": old});
    let nodes: Vec<String> = (10..22).map(|number| format!("node-{number}")).collect();
    for name in &nodes {
        bench.server.put_node(name, node(Some("pool-a-1"), Some(&proven), "LastKnownGood", "Proven: x"));
    }
    let args = "rollout pool-a-2 -l pool=a --name workers --min-trial=1s --canaries 2 --max-unavailable=4";
    (bench, nodes, new, args.split(' ').collect())
}

#[test]
fn a_rollout_keeps_to_its_line() {
    let (bench, nodes, new, args) = twelve();
    let controller = Controller::start(&bench);
    let holds = |request: &testkit::api_server::Request| request.method == "POST" && request.path.contains("/leases");
    bench.server.wait_request(Duration::from_secs(60), holds).unwrap();
    let stop = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        scope.spawn(|| prove(&bench, &nodes, &new, &stop));
        let seen = on_terminal(&bench, "rows 24 cols 80", &[], &args);
        stop.store(true, Ordering::Relaxed);
        seen
    });
    let frames: Vec<&str> = seen.split("\r\u{1b}[2K").collect();
    assert!(frames.iter().any(|frame| frame.contains("Waves [") || frame.contains("Canaries [")), "{seen:?}");
    let lines = || frames.iter().flat_map(|frame| frame.lines());
    assert!(lines().all(|line| line.chars().count() < 80), "{seen:?}");
    assert!(seen.contains("carries it out; this terminal follows"), "{seen:?}");
    assert!(seen.contains("pool/workers complete: 12 of 12 nodes have pool-a-2"), "{seen:?}");
    controller.stop();
}

/// It says how to run a controller; where it is told to stop, the pool stays.
#[test]
fn a_rollout_that_nobody_carries_out_is_told_so() {
    for signal in ["INT", "TERM"] {
        let (bench, _, _, args) = twelve();
        let args = [&args[..], &["-q"]].concat();
        let child = bench.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let follows =
            |request: &testkit::api_server::Request| request.is_watch() && request.path.contains("kubeletconfigpools");
        bench.server.wait_request(Duration::from_secs(60), follows).unwrap();
        assert!(Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().unwrap().success());
        let ended = child.wait_with_output().unwrap();
        let err = String::from_utf8(ended.stderr).unwrap();
        assert_eq!((ended.status.code(), ended.stdout.len()), (Some(75), 0), "{err}");
        for words in [
            "nobody carries out pools",
            "`kubectl kubelet-config controller`",
            "packaging/manifests/pools",
            "pool workers stays as it is",
            "`kubectl kubelet-config rollout status workers --watch` follows it again",
        ] {
            assert!(err.replace("\n  ", " ").contains(words), "{words:?} is not in {err}");
        }
        assert_eq!(bench.server.pool("workers").unwrap()["spec"]["configMap"]["name"], "pool-a-2");
        let writes = |it: &testkit::api_server::Request| it.method != "GET" && !it.path.contains("kubeletconfigpools");
        assert!(!bench.server.requests().iter().any(writes), "the pool alone is written");
    }
}

#[test]
fn what_is_beside_the_point_is_on_standard_error() {
    let bench = pool();
    let quiet: [(&[&str], i32); 3] = [
        (&["status", "-l", "pool=none"], 0),
        (&["history", "ip-10-0-114-9.eu-central-1.compute.internal"], 0),
        (&["status", "nobody"], 1),
    ];
    for (args, code) in quiet {
        let ran = bench.run(args);
        assert!(ran.code == code && ran.out.is_empty() && !ran.err.is_empty(), "{args:?}: {ran:?}");
    }
    let ran = Bench::new().run(&["rollout", "status"]);
    assert!(ran.code == 0 && ran.out.is_empty() && ran.err == "No pools found\n", "{ran:?}");
    assert_eq!(bench.run(&["no-such-command"]).code, 2);
    let ran = bench.run(&["status", "-o", "name"]);
    assert!(ran.code == 2 && ran.out.is_empty(), "{ran:?}");
}
