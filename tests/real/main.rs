//! The real suite: etcd, kube-apiserver, containerd and an unmodified kubelet with the supervisor between. Both are 1.20.2, or
//! what `KUBELET_BINARY` and `APISERVER_BINARY` name.
//!
//!     cargo test --test real [SUBSTRING]...
//!
//! There are clusters of two kinds, one for each carrier of an assignment: their API servers keep `spec.configSource`, or
//! drop it as modern ones do. A kubelet mostly waits, so a long queue of cases has two clusters of its kind and all run
//! side by side; each takes one case after the other, and is taken down in the end whatever happens. A filter is a part
//! of what is printed, such as `'assign [labels]'`; a cluster that no case needs is not started. On a machine that cannot
//! have them (not root, not Debian 12) the suite is skipped, and says so; where `CI` is set that is a failure.
#![cfg(test)]

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

mod assignment;
mod bad_configurations;
mod carriers;
mod changes;
mod cluster;
mod credentials;
mod effective_view;
mod files_and_verbs;
mod flags;
mod hung;
mod local_files;
mod plugin_drain;
mod plugin_fleet;
mod plugin_pools;
mod plugin_snapshots;
mod plugin_tutorial;
mod pods;
mod preflight;
mod privileges;
mod process;
mod readme;
mod readmission;
mod snapshots;
mod standby;
mod store;
mod supervisor;
mod trial;
mod versions;

use assignment::Carrier;
use cluster::Cluster;
use supervisor::Case;
use testkit::interrupt::is_interrupted;

/// A case and the clusters it runs on.
struct Test(&'static str, On, fn(&Case));

#[derive(Clone, Copy)]
enum On {
    Both,
    /// The carrier takes part in what it shows.
    Only(Carrier),
    /// One cluster is enough: this one, where the API server has it.
    One(Carrier),
}

impl On {
    /// `kept`: the API server can be told to keep `spec.configSource`.
    fn includes(self, carrier: Carrier, kept: bool) -> bool {
        match self {
            Self::Both => kept || carrier == Carrier::Labels,
            Self::Only(only) => only == carrier && (kept || carrier == Carrier::Labels),
            Self::One(one) => carrier == if kept { one } else { Carrier::Labels },
        }
    }
}

const BOTH: On = On::Both;
const NATIVE: On = On::Only(Carrier::Native);
const LABELS: On = On::Only(Carrier::Labels);
const ONE_NATIVE: On = On::One(Carrier::Native);

const CASES: &[Test] = &[
    Test("first_start", BOTH, process::first_start), // first: there is no Node yet
    // The longest, so that no cluster has one to itself in the end.
    Test("outage_with_restart", ONE_NATIVE, trial::outage_with_restart),
    Test("runtime_away", ONE_NATIVE, trial::runtime_away),
    Test("fleet", BOTH, plugin_fleet::fleet),
    Test("assign", BOTH, changes::assign),
    Test("label_edit", BOTH, changes::label_edit),
    // An assignment by labels alone comes with a right to read what is not assigned.
    Test("preflight", LABELS, preflight::on_request),
    Test("rejected", BOTH, bad_configurations::rejected),
    Test("killing", BOTH, bad_configurations::killing),
    Test("api_server_away", BOTH, process::api_server_away),
    Test("standby", LABELS, standby::change),
    Test("standby_killed", ONE_NATIVE, standby::killed),
    Test("node_deleted", BOTH, process::node_deleted),
    // A kubelet on its own follows nothing but a source that the API server keeps.
    Test("native_and_back", NATIVE, store::native_and_back),
    Test("tutorial", BOTH, files_and_verbs::tutorial),
    Test("plugin_snapshots", BOTH, plugin_snapshots::every_command),
    Test("plugin_tutorial", BOTH, plugin_tutorial::as_written),
    Test("readme", LABELS, readme::as_written),
    Test("server_drops", LABELS, carriers::server_drops),
    Test("node_cannot_label", LABELS, carriers::node_cannot_label),
    Test("controller_rights", LABELS, privileges::controller),
    Test("node_rights", LABELS, privileges::node),
    Test("without_rights", LABELS, carriers::without_rights),
    Test("narrow_rights", LABELS, carriers::narrow_rights),
    Test("peace", LABELS, carriers::peace),
    // A cluster of each kind: a source that is kept beside labels, and one that is kept no more.
    Test("both_carriers", NATIVE, carriers::both_carriers),
    Test("still_in_use", NATIVE, carriers::still_in_use),
    // By itself a node may read no such ConfigMap, whatever the API server keeps.
    Test("default_source", NATIVE, carriers::default_source),
    // These are about processes, files, credentials and pods; no carrier takes part in what they show, so one cluster
    // each is enough, wherever the queue is shorter.
    Test("missing_ca", LABELS, bad_configurations::missing_ca),
    Test("kill", ONE_NATIVE, process::kill),
    Test("overlay", LABELS, changes::overlay),
    Test("flags", ONE_NATIVE, flags::flags),
    Test("relative_path", ONE_NATIVE, changes::relative_path),
    Test("cut_off", ONE_NATIVE, trial::cut_off),
    Test("not_to_blame", LABELS, trial::not_to_blame),
    Test("while_on_trial", LABELS, changes::while_on_trial),
    Test("bad_disk", ONE_NATIVE, store::bad_disk),
    Test("credentials_late", ONE_NATIVE, credentials::late),
    Test("credentials_expired", ONE_NATIVE, credentials::expired),
    Test("check", ONE_NATIVE, files_and_verbs::check),
    Test("effective_view", LABELS, effective_view::every_field),
    Test("effective_defaults", LABELS, effective_view::defaults),
    Test("local_files", LABELS, local_files::told),
    Test("follow_local", LABELS, local_files::followed),
    Test("standalone", LABELS, local_files::standalone),
    Test("runtime_away_with_the_change", ONE_NATIVE, trial::runtime_away_with_the_change),
    Test("cpu_manager", ONE_NATIVE, trial::cpu_manager),
    Test("credentials_rotated", LABELS, credentials::rotated),
    Test("edit_while_api_away", LABELS, changes::edit_while_api_away),
    Test("label_edits_with_confirm", LABELS, changes::label_edits_with_confirm),
    Test("torn_local_file", ONE_NATIVE, store::torn_local_file),
    Test("full_disk_at_boot", ONE_NATIVE, store::full_disk_at_boot),
    Test("hung", ONE_NATIVE, hung::hung),
    Test("max_pods", LABELS, trial::max_pods),
    Test("losses", LABELS, readmission::foreseen),
    Test("containers_keep_running", LABELS, pods::containers_keep_running),
    Test("workers_end", LABELS, pods::workers_end),
    Test("exec_and_changes", LABELS, pods::exec_and_changes),
    // Its build has begun with the suite.
    Test("pool", LABELS, plugin_pools::pool),
    Test("drain", BOTH, plugin_drain::drain),
    Test(plugin_pools::DEPLOYED, LABELS, plugin_pools::deployed),
    Test("terminate", LABELS, process::terminate),
];

/// Take a quarter of an hour each, and run only when they are asked for by their whole names.
const LONG: &[Test] = &[
    Test("long_killing", ONE_NATIVE, trial::long_killing),
    Test("long_killing_ten", ONE_NATIVE, trial::long_killing_ten),
];

/// What `cargo nextest` sees of this: one test, for the cases share a cluster.
const SUITE: &str = "suite";

/// What is printed of a case.
fn title(test: &Test, carrier: Carrier) -> String {
    format!("{} [{}]", test.0, carrier.name())
}

/// The cases of a carrier that these filters choose, and all there are.
fn queue(carrier: Carrier, filters: &[String]) -> (Vec<&'static Test>, usize) {
    let kept = versions::keeps_config_source();
    let of = |tests: &'static [Test]| {
        tests.iter().filter(move |test| test.1.includes(carrier, kept) && versions::includes(test.0))
    };
    let wanted = |test: &&Test| filters.is_empty() || filters.iter().any(|part| title(test, carrier).contains(part));
    let asked = |test: &&Test| filters.iter().any(|part| part == test.0);
    let chosen = of(CASES).filter(wanted).chain(of(LONG).filter(asked)).collect();
    (chosen, of(CASES).chain(of(LONG)).count())
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let mut filters = Vec::new();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--list" => {
                if !std::env::args().any(|arg| arg == "--ignored") {
                    println!("{SUITE}: test");
                }
                return ExitCode::SUCCESS;
            }
            "--format" | "--test-threads" | "--color" | "--skip" => drop(args.next()),
            arg if arg.starts_with("--") || arg == SUITE => {}
            _ => filters.push(arg),
        }
    }
    let queues = [Carrier::Native, Carrier::Labels].map(|carrier| (carrier, queue(carrier, &filters))).into_iter();
    let (queues, all): (Vec<_>, Vec<_>) = queues.map(|(carrier, (chosen, all))| ((carrier, chosen), all)).unzip();
    let chosen: usize = queues.iter().map(|(_, queue)| queue.len()).sum();
    let others = all.iter().sum::<usize>() - chosen;
    if chosen == 0 {
        println!("\nrunning 0 tests");
        println!("\ntest result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; {others} filtered out");
        return ExitCode::SUCCESS;
    }
    if let Some(why) = cluster::missing() {
        assert!(std::env::var_os("CI").is_none(), "the real suite cannot run, and this is CI: {why}");
        println!("SKIPPED: real suite: {why}");
        return ExitCode::SUCCESS;
    }
    testkit::interrupt::register().unwrap();
    let begin = Instant::now();
    for name in versions::named() {
        assert!(CASES.iter().any(|test| test.0 == name), "{name} is no case");
    }
    versions::tell();
    println!("\nrunning {chosen} tests");
    if queues.iter().flat_map(|(_, queue)| queue).any(|test| test.0 == plugin_pools::DEPLOYED) {
        // Now, for it keeps all cores busy.
        println!("    {}", plugin_pools::IMAGE.archive.display());
    }
    let failed = run(queues);
    println!(
        "\ntest result: {}. {} passed; {} failed; 0 ignored; 0 measured; {others} filtered out; finished in {:.2}s\n",
        if failed.is_empty() { "ok" } else { "FAILED" },
        chosen.saturating_sub(failed.len()),
        failed.len(),
        begin.elapsed().as_secs_f64()
    );
    ExitCode::from(u8::from(!failed.is_empty()))
}

/// Cases that are worth another cluster, which takes a quarter of a minute.
const CASES_PER_CLUSTER: usize = 12;
/// Of a kind; with more, two cores are too busy for a kubelet to start in its time.
const CLUSTERS: usize = 2;

/// Runs each queue on clusters of its own, all at the same time; what failed.
fn run(queues: Vec<(Carrier, Vec<&'static Test>)>) -> Vec<String> {
    // A short name: there are sockets below it.
    let dir = tempfile::Builder::new().prefix("ksr").tempdir().unwrap().keep();
    // One cluster comes up at a time: a port is free until somebody listens on it.
    let turn = Mutex::new(());
    let queues: Vec<(Carrier, usize, Mutex<VecDeque<&Test>>)> = queues
        .into_iter()
        .filter(|(_, queue)| !queue.is_empty())
        .map(|(carrier, queue)| {
            (carrier, queue.len().div_ceil(CASES_PER_CLUSTER).min(CLUSTERS), Mutex::new(queue.into()))
        })
        .collect();
    let failed: Vec<String> = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (carrier, clusters, queue) in &queues {
            for number in 1..=*clusters {
                let name = format!("{}{number}", carrier.name());
                let (dir, turn) = (dir.join(&name), &turn);
                let thread = std::thread::Builder::new().name(name);
                threads.push(thread.spawn_scoped(scope, move || run_queue(*carrier, queue, &dir, turn)).unwrap());
            }
        }
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    if failed.is_empty() {
        let _ = std::fs::remove_dir_all(&dir);
    } else {
        println!("\nfailures: {failed:?}; logs: {}/*/logs", dir.display());
    }
    failed
}

fn lock<T>(queue: &Mutex<T>) -> MutexGuard<'_, T> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// On one cluster, until the queue is empty.
fn run_queue(carrier: Carrier, queue: &Mutex<VecDeque<&'static Test>>, dir: &Path, turn: &Mutex<()>) -> Vec<String> {
    let up = || {
        let _mine = turn.lock();
        let cluster = Cluster::up(dir, carrier);
        carriers::grant(&cluster);
        cluster
    };
    let next = || lock(queue).pop_front();
    let Ok(mut cluster) = catch_unwind(up) else {
        // If there is no other cluster of this kind, nothing of it was shown.
        let left = std::iter::from_fn(next).map(|test| title(test, carrier));
        return [format!("bringing up [{}]", carrier.name())].into_iter().chain(left).collect();
    };
    let mut failed = Vec::new();
    while let Some(test) = next() {
        let (begin, title) = (Instant::now(), title(test, carrier));
        let passed = !is_interrupted()
            && catch_unwind(AssertUnwindSafe(|| {
                cluster.tidy();
                test.2(&Case { cluster: &cluster, name: test.0 });
            }))
            .is_ok();
        println!("test {title} ... {} ({:.1} s)", if passed { "ok" } else { "FAILED" }, begin.elapsed().as_secs_f64());
        if !passed {
            failed.push(title);
        }
    }
    if catch_unwind(AssertUnwindSafe(|| cluster.down())).is_err() {
        failed.push(format!("taking down [{}]", carrier.name()));
    }
    failed
}
