//! What a change of a pool costs: requests, bytes of answers, and the controller's memory, by the number of nodes.
//!
//! ```text
//! cargo bench --profile dev --bench pools              # an hour, most of it with 10,000
//! cargo bench --profile dev --bench pools -- 200       # of this size alone
//! cargo bench --profile dev --bench pools -- preflight # what `preflight` costs: 5,000 nodes
//! cargo bench --profile dev --bench pools -- idle      # what a controller and supervisors cost that have nothing to do
//! ```
//! Nodes are simulated, in simulated time, with 15 KB of images and the like each, as Nodes in use have. 5% at a time.
//! Renewals are of the Lease, every two seconds.

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
use testkit::pools::{TARGET, World, name};

const FILLING: usize = 15_000;

struct Cost {
    nodes: usize,
    requests: u64,
    renewals: u64,
    bytes: u64,
    peak_kib: u64,
}

fn main() {
    let asked = |what: &str| std::env::args().any(|arg| arg == what);
    match (asked("preflight"), asked("idle")) {
        (true, _) => return preflight(5000),
        (_, true) => return idle(5000),
        _ => {}
    }
    let only: Vec<usize> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    println!("nodes  requests  renewals   per node        MB  KB a node  peak MiB");
    let each = |count: u64, cost: &Cost| count as f64 / cost.nodes as f64;
    let sizes = [200, 1000, 5000, 10_000].into_iter().filter(|nodes| only.is_empty() || only.contains(nodes));
    let mut smaller: Option<Cost> = None;
    for nodes in sizes {
        let cost = measure(nodes);
        let Cost { requests, renewals, bytes, peak_kib, .. } = cost;
        let own = each(requests - renewals, &cost);
        let (mb, kb, peak) = (bytes as f64 / 1e6, each(bytes, &cost) / 1e3, peak_kib as f64 / 1024.0);
        println!("{nodes:>5} {requests:>9} {renewals:>9} {own:>10.2} {mb:>9.1} {kb:>10.1} {peak:>9.1}");
        if let Some(small) = smaller {
            let requests = each(small.requests - small.renewals, &small);
            assert!(own <= requests * 1.05, "requests grow faster than nodes: {requests} {own}");
            let bytes = each(small.bytes, &small) / 1e3;
            assert!(kb <= bytes * 1.05, "bytes grow faster than nodes: {bytes} {kb}");
        }
        smaller = Some(cost);
    }
}

/// A change of a pool of so many nodes.
fn measure(nodes: usize) -> Cost {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let _inside = runtime.enter();
    let world = World::new(nodes);
    fill(&world, nodes);
    let spec = json!({
        "nodeSelector": {"matchLabels": {"all": "yes"}}, "kubeletConfiguration": {"maxPods": 60},
        "rollout": {"canaries": 3, "maxUnavailable": "5%", "minTrialSeconds": 60},
    });
    world.server.put_pool("workers", &spec);
    let peak_kib = peak(&world);
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
    Cost { nodes, requests, renewals: begun.elapsed().as_secs() / 2, bytes, peak_kib }
}

/// A preflight on request of so many nodes, none of which is changed.
fn preflight(nodes: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let _inside = runtime.enter();
    let world = World::new(nodes);
    let begun = tokio::time::Instant::now();
    let code = runtime.block_on(world.command(&["preflight", TARGET, "-l", "all=yes"])).unwrap();
    assert_eq!(format!("{code:?}"), format!("{:?}", std::process::ExitCode::SUCCESS));
    let (took, (requests, bytes)) = (begun.elapsed(), world.traffic());
    let (a_node, mb) = (requests as f64 / nodes as f64, bytes as f64 / 1e6);
    println!(
        "{nodes} nodes: {requests} requests ({a_node:.2} a node), {mb:.1} MB of answers, {:.0} s",
        took.as_secs_f64()
    );
}

/// What an API server hears of so many supervisors, and of a controller whose pool is complete, in an hour without a change.
fn idle(nodes: usize) {
    const HOUR: Duration = Duration::from_secs(3600);
    /// At the least: a Lease each 10 s, and its Node's status each 5 minutes (pkg/kubelet/nodelease and
    /// `nodeStatusReportFrequency`, v1.20.2 and v1.36.2). Its watches and the Nodes that it gets come on top.
    const KUBELET: f64 = 372.0;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let _inside = runtime.enter();
    let world = World::new(nodes);
    let spec = json!({"nodeSelector": {"matchLabels": {"all": "none"}}, "kubeletConfiguration": {"maxPods": 60}});
    world.server.put_pool("workers", &spec);
    let script = async {
        tokio::time::sleep(HOUR / 6).await;
        let before = (world.supervisors_traffic(), world.traffic().0);
        tokio::time::sleep(HOUR).await;
        (world.supervisors_traffic() - before.0, world.traffic().0 - before.1)
    };
    let (supervisors, controller) = runtime.block_on(async {
        tokio::select! {
            counted = script => counted,
            result = world.controller() => panic!("the controller ended: {result:?}"),
        }
    });
    let each = supervisors as f64 / nodes as f64;
    println!(
        "{nodes} idle supervisors: {each:.1} requests an hour each; the controller: {controller} an hour, for all"
    );
    let share = 100.0 * (each + controller as f64 / nodes as f64) / KUBELET;
    println!("together: {share:.1} % of the {KUBELET} that each kubelet makes at the least");
}

/// Nodes as large as they are in use.
fn fill(world: &World, nodes: usize) {
    for number in 0..nodes {
        let images = json!([{"names": ["x".repeat(FILLING)], "sizeBytes": 1}]);
        world.server.patch_node(&name(number), json!({"status": {"images": images}}));
    }
}

/// The built controller's largest resident set, once it has read all nodes and begins to send.
fn peak(world: &World) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    world.server.write_kubeconfig(&kubeconfig);
    let mut client = Command::new(testkit::built::program("kubectl-kubelet_config"))
        .args(["--kubeconfig", kubeconfig.to_str().unwrap()])
        .arg("controller")
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
