//! The real suite: etcd, kube-apiserver 1.20.2, containerd and an unmodified kubelet 1.20.2 with the supervisor between.
//!
//!     cargo test --test real [SUBSTRING]...
//!
//! The cases run one after the other on one cluster, which is taken down in the end whatever happens. On a machine that
//! cannot have one (not root, not Debian 12) the suite is skipped, and says so; where `CI` is set that is a failure.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

#[path = "real/bad.rs"]
mod bad;
#[path = "real/changes.rs"]
mod changes;
#[path = "real/cluster.rs"]
mod cluster;
#[path = "real/credentials.rs"]
mod credentials;
#[path = "real/directory.rs"]
mod directory;
#[path = "real/edges.rs"]
mod edges;
#[path = "real/process.rs"]
mod process;
#[path = "real/store.rs"]
mod store;
#[path = "real/supervisor.rs"]
mod supervisor;
#[path = "real/trial.rs"]
mod trial;

use cluster::{Cluster, INTERRUPTED};
use supervisor::Case;

type Test = (&'static str, fn(&Case));

const CASES: &[Test] = &[
    ("first_start", process::first_start), // first: there is no Node yet
    ("assign", changes::assign),
    ("label_edit", changes::label_edit),
    ("rejected", bad::rejected),
    ("killing", bad::killing),
    ("reset", changes::reset),
    ("api_server_away", process::api_server_away),
    ("kill", process::kill),
    ("map_deleted", changes::map_deleted),
    ("key_changed", changes::key_changed),
    ("overlay", changes::overlay),
    ("relative_path", changes::relative_path),
    ("burst", changes::burst),
    ("while_on_trial", changes::while_on_trial),
    ("node_deleted", process::node_deleted),
    ("native_and_back", store::native_and_back),
    ("corrupt_store", store::corrupt_store),
    ("second_supervisor", store::second_supervisor),
    ("bad_disk", store::bad_disk),
    ("credentials", edges::credentials),
    ("credentials_rotated", credentials::rotated),
    ("credentials_late", credentials::late),
    ("credentials_expired", credentials::expired),
    ("credentials_wrong_authority", credentials::wrong_authority),
    ("tutorial", edges::tutorial),
    ("check_and_render", edges::check_and_render),
    ("source_dir", directory::source_dir),
    ("standalone", directory::standalone),
    ("runtime_away", trial::runtime_away),
    ("api_server_lost", trial::api_server_lost),
    ("cut_off", trial::cut_off),
    ("not_to_blame", trial::not_to_blame),
    ("cpu_manager", trial::cpu_manager),
    ("power_loss", trial::power_loss),
    ("max_pods", trial::max_pods),
    ("terminate", process::terminate),
];

/// Take a quarter of an hour each, and run only when they are asked for by their whole names.
const LONG: &[Test] = &[("long_killing", trial::long_killing), ("long_killing_ten", trial::long_killing_ten)];

/// What `cargo nextest` sees of this: one test, for the cases share a cluster.
const SUITE: &str = "suite";

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
    let usual = CASES.iter().filter(|(name, _)| filters.is_empty() || filters.iter().any(|part| name.contains(part)));
    let long = LONG.iter().filter(|(name, _)| filters.iter().any(|part| part == name));
    let chosen: Vec<_> = usual.chain(long).collect();
    if chosen.is_empty() {
        println!(
            "\nrunning 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; {} filtered out",
            CASES.len()
        );
        return ExitCode::SUCCESS;
    }
    if let Some(why) = cluster::missing() {
        assert!(std::env::var_os("CI").is_none(), "the real suite cannot run, and this is CI: {why}");
        println!("SKIPPED: real suite: {why}");
        return ExitCode::SUCCESS;
    }
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&INTERRUPTED)).unwrap();
    }
    run(&chosen)
}

fn run(chosen: &[&Test]) -> ExitCode {
    let begin = Instant::now();
    // A short name: there are sockets below it.
    let dir = tempfile::Builder::new().prefix("ksr").tempdir().unwrap().keep();
    println!("\nrunning {} tests", chosen.len());
    let mut cluster = Cluster::up(&dir);
    let mut failed = Vec::new();
    for (name, case) in chosen {
        if INTERRUPTED.load(Ordering::Relaxed) {
            failed.push(*name);
            continue;
        }
        let begin = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| {
            cluster.tidy();
            case(&Case { cluster: &cluster, name });
        }));
        let word = if result.is_ok() { "ok" } else { "FAILED" };
        println!("test {name} ... {word} ({:.1} s)", begin.elapsed().as_secs_f64());
        if result.is_err() {
            failed.push(*name);
        }
    }
    let down = catch_unwind(AssertUnwindSafe(|| cluster.down())).is_ok();
    let word = if failed.is_empty() && down { "ok" } else { "FAILED" };
    if word == "ok" {
        let _ = std::fs::remove_dir_all(&dir);
    } else {
        println!("\nfailures: {failed:?}; logs: {}/logs", dir.display());
    }
    println!(
        "\ntest result: {word}. {} passed; {} failed; 0 ignored; 0 measured; {} filtered out; finished in {:.2}s\n",
        chosen.len() - failed.len(),
        failed.len(),
        (CASES.len() + LONG.len()).saturating_sub(chosen.len()),
        begin.elapsed().as_secs_f64()
    );
    ExitCode::from(u8::from(word != "ok"))
}
