//! A real kubelet that hangs while nobody judges it.

use serde_json::json;

use crate::cluster::until;
use crate::supervisor::{Case, Supervisor, signal};
use crate::versions;

const HUNG_AFTER: [&str; 2] = ["--hung-after", "5s"];

/// A supervisor with a configuration that is last known good.
fn proven<'a>(case: &Case<'a>) -> (Supervisor<'a>, serde_json::Value) {
    let supervisor = case.supervisor_options("4s", &HUNG_AFTER);
    let map = case.assign_new(&case.id("lkg"), "maxPods: 41");
    let source = map.source();
    case.await_config(&source, &source, &source, "");
    case.await_node_ready();
    supervisor.assert_steady(3); // it must have been seen alive
    (supervisor, source)
}

fn restarts_of_hung(supervisor: &Supervisor) -> f64 {
    supervisor.metric("kubelet_supervisor_kubelet_restarts_total", "cause=\"hung\"")
}

/// SIGSTOP to the kubelet: it is killed and started again with what it ran. The next time it is let go as soon as it was sent
/// SIGQUIT: its stacks are in the log.
pub fn hung(case: &Case) {
    let (supervisor, source) = proven(case);
    let (first, before) = supervisor.process();
    signal(first, "STOP");
    supervisor.await_status(&[("/kubelet/restarts", json!(before + 1)), ("/kubelet/ready", json!(true))]);
    assert_ne!(supervisor.kubelet(), first);
    assert!((restarts_of_hung(&supervisor) - 1.0).abs() < 0.001);
    case.await_event(
        "KubeletHung",
        &[&format!("{} for", versions::sign_of_life()), "the container runtime answers", &case.id("lkg")],
    );
    case.await_config(&source, &source, &source, "");
    case.await_configz("maxPods", &json!(41));
    assert_eq!(supervisor.log().matches("SIGQUIT: quit").count(), 0, "a process that is stopped acts on nothing");

    supervisor.assert_steady(3); // it must have been seen alive
    let (second, _) = supervisor.process();
    signal(second, "STOP");
    until("the signal", || {
        let pending = std::fs::read_to_string(format!("/proc/{second}/status")).map_err(|error| error.to_string())?;
        let pending = pending.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap_or_default().trim();
        let pending = u64::from_str_radix(pending, 16).map_err(|error| error.to_string())?;
        if pending & (1 << (3 - 1)) == 0 { Err(format!("{pending:x}")) } else { Ok(()) }
    });
    signal(second, "CONT");
    supervisor.await_status(&[("/kubelet/restarts", json!(before + 2)), ("/kubelet/ready", json!(true))]);
    let log = supervisor.log();
    let dump = log.split("SIGQUIT: quit").nth(1).expect("a dump");
    // `goroutine 1 [select]:`, and of later Go `goroutine 1 gp=0x… m=nil [select]:`.
    let first = dump.lines().any(|line| line.starts_with("goroutine 1 ") && line.ends_with("]:"));
    assert!(first && dump.contains("kubelet.(*Kubelet).syncLoop"), "all goroutines");
    assert!(!log.contains("ended by itself"), "it was asked to");
    supervisor.await_status(&[
        ("/assigned", source.clone()),
        ("/active", source.clone()),
        ("/lastKnownGood", source),
        ("/error", json!("")),
        ("/badVersions", json!([])),
    ]);
    assert_eq!(case.events("KubeletConfigRolledBack").unwrap(), Vec::<String>::new());
}
