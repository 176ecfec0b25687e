//! What a rollout and a pool cost: requests, bytes of answers, and the client's memory, by the number of nodes.
//!
//! ```text
//! cargo bench --profile dev --bench rollout        # some minutes
//! cargo bench --profile dev --bench rollout -- 200 # of this size alone
//! ```
//! Nodes are simulated, in simulated time, with 15 KB of images and the like each, as Nodes in use have. 5% at a time.
//! Beats are the writes of a lock, or a Lease. A last line is of a rollout to some nodes of a bigger cluster.

// A benchmark may panic, and its numbers are small.
#![allow(
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    dead_code
)]

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;
use testkit::rollout::{TARGET, World, name};

const FILLING: usize = 15_000;
const ARGS: [&str; 8] = [TARGET, "-l", "rolled=yes", "--canary", "3", "--max-unavailable", "5%", "--quiet"];

/// How it gets there.
#[derive(Clone, Copy)]
enum Engine {
    Rollout,
    Pool,
}

struct Cost {
    /// Of the rollout.
    nodes: usize,
    requests: u64,
    beats: u64,
    bytes: u64,
    peak_kib: u64,
}

fn main() {
    let only: Vec<usize> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    println!("engine   nodes      of  requests  beats   per node        MB  KB a node  peak MiB");
    let shown = |engine: Engine, nodes, of| {
        let (name, cost) = match engine {
            Engine::Rollout => ("rollout", measure(nodes, of)),
            Engine::Pool => ("pool", measure_pool(nodes)),
        };
        let Cost { requests, beats, bytes, peak_kib, .. } = cost;
        let each = (requests - beats) as f64 / nodes as f64;
        let (mb, kb) = (bytes as f64 / 1e6, bytes as f64 / 1e3 / nodes as f64);
        let peak = peak_kib as f64 / 1024.0;
        println!("{name:<7} {nodes:>6} {of:>7} {requests:>9} {beats:>6} {each:>10.2} {mb:>9.1} {kb:>10.1} {peak:>9.1}");
        cost
    };
    let each = |count: u64, cost: &Cost| count as f64 / cost.nodes as f64;
    let grows = |small: &Cost, big: &Cost| {
        let requests = (each(small.requests - small.beats, small), each(big.requests - big.beats, big));
        let bytes = (each(small.bytes, small), each(big.bytes, big));
        assert!(requests.1 <= requests.0 * 1.05, "requests grow faster than nodes: {requests:?}");
        assert!(bytes.1 <= bytes.0 * 1.05, "bytes grow faster than nodes: {bytes:?}");
    };
    for (engine, sizes) in [(Engine::Rollout, &[200, 1000, 5000][..]), (Engine::Pool, &[200, 1000, 5000, 10_000])] {
        let chosen = sizes.iter().filter(|nodes| only.is_empty() || only.contains(nodes));
        let costs: Vec<Cost> = chosen.map(|nodes| shown(engine, *nodes, *nodes)).collect();
        costs.windows(2).for_each(|pair| grows(&pair[0], &pair[1]));
        // What is not the rollout's own costs nothing.
        if matches!(engine, Engine::Rollout) && only.is_empty() {
            grows(&costs[0], &shown(engine, 200, 5000));
        }
    }
}

/// A change of a pool of so many nodes.
fn measure_pool(nodes: usize) -> Cost {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let _inside = runtime.enter();
    let world = World::new(nodes);
    fill(&world, nodes, nodes);
    let spec = json!({
        "nodeSelector": {"matchLabels": {"rolled": "yes"}}, "kubeletConfiguration": {"maxPods": 60},
        "rollout": {"canaries": 3, "maxUnavailable": "5%"},
    });
    world.server.put_pool("workers", &spec);
    let peak_kib = peak(&world, &["controller"]);
    let begun = tokio::time::Instant::now();
    let is_complete = |pool: &serde_json::Value| {
        let conditions = pool["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    };
    runtime.block_on(async {
        tokio::select! {
            _ = world.until_pool("workers", is_complete) => {}
            result = world.controller() => panic!("the controller ended: {result:?}"),
        }
    });
    let (requests, bytes) = world.traffic();
    Cost { nodes, requests, beats: begun.elapsed().as_secs() / 2, bytes, peak_kib }
}

/// A rollout to so many nodes of a cluster of so many.
fn measure(nodes: usize, of: usize) -> Cost {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let _inside = runtime.enter();
    let world = World::new(of);
    fill(&world, nodes, of);
    let peak_kib = peak(&world, &["rollout", TARGET, "-l", "rolled=yes", "--name", "other"]);
    world.server.delete_config_map(testkit::rollout::NAMESPACE, "rollout-other");
    let begun = tokio::time::Instant::now();
    runtime.block_on(world.good(&ARGS));
    assert_eq!(world.count(TARGET), nodes);
    let (requests, bytes) = world.traffic();
    Cost { nodes, requests, beats: begun.elapsed().as_secs() / 8, bytes, peak_kib }
}

/// Nodes as large as they are in use, of which so many are changed.
fn fill(world: &World, nodes: usize, of: usize) {
    for number in 0..of {
        let images = json!([{"names": ["x".repeat(FILLING)], "sizeBytes": 1}]);
        let rolled = if number < nodes { json!("yes") } else { json!(null) };
        let patch = json!({"metadata": {"labels": {"rolled": rolled}}, "status": {"images": images}});
        world.server.patch_node(&name(number), patch);
    }
}

/// The built client's largest resident set, once it has read all nodes and begins to send.
fn peak(world: &World, args: &[&str]) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    world.server.write_kubeconfig(&kubeconfig);
    let mut client = Command::new(testkit::built::program("kubectl-kubelet_config"))
        .args(["--kubeconfig", kubeconfig.to_str().unwrap()])
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let sent = |request: &testkit::api_server::Request| {
        let is_node = request.path.starts_with("/api/v1/nodes/");
        is_node && request.method == "PATCH" && request.status == 200 && !request.query.contains("dryRun")
    };
    world.server.wait_request(Duration::from_secs(120), sent).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", client.id())).unwrap();
    client.kill().unwrap();
    client.wait().unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
