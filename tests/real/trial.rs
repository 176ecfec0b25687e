//! The trial with a real kubelet: who is blamed for what, and what is put back.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::assignment::ConfigMap;
use crate::cluster::{pause, until};
use crate::pods;
use crate::supervisor::{Case, Supervisor};

const LOAD: &str = "failed to load config, see Kubelet log for details";
const VALIDATE: &str = "failed to validate config, see Kubelet log for details";
const ACKNOWLEDGE: &str = "kubelet-supervisor.io/acknowledge";

/// A ConfigMap with hazards accepted.
pub fn accepted(case: &Case, suffix: &str, lines: &str) -> ConfigMap {
    let metadata = json!({ "annotations": { ACKNOWLEDGE: "all" } });
    case.map(&case.id(suffix), &json!({ "metadata": metadata, "data": { "kubelet": case.payload(lines) } }))
}

/// Waits until the trial's clock runs: every signal it is judged by is good.
fn await_clock(supervisor: &Supervisor) {
    until("the trial's clock", || {
        let status = supervisor.status()?;
        let running = status["trial"]["state"] == "running" && !status["trial"]["since"].is_null();
        if running { Ok(()) } else { Err(format!("{status:#}")) }
    });
}

/// Shorter than an outage of these cases. A kubelet that reports before its first look at the runtime says NotReady, and
/// the next word comes 10 s later: that must fit in.
const ISOLATION: &str = "25s";
/// A trial in which fifty seconds of health leave time for what goes then.
const SETTLED: &str = "80s";

/// A version on trial, in contact for so long that what goes now is not its doing.
fn settled_on_trial<'a>(case: &Case<'a>) -> (Supervisor<'a>, Value) {
    let supervisor = case.supervisor_options(SETTLED, &["--isolation-timeout", ISOLATION]);
    case.await_node_ready();
    let map = case.assign_new(&case.id("map"), "maxPods: 42");
    await_clock(&supervisor);
    until("fifty seconds of health", || {
        let left = supervisor.status()?["trial"]["remainingSeconds"].as_u64().unwrap_or_default();
        if left <= 30 { Ok(()) } else { Err(left.to_string()) }
    });
    (supervisor, map.source())
}

/// For some seconds this configuration runs on trial, nobody is blamed and nothing restarted.
fn assert_on_trial(supervisor: &Supervisor, source: &Value, seconds: u64) {
    let before = supervisor.process();
    for _ in 0..seconds * 2 {
        pause(500);
        let status = supervisor.status().unwrap();
        assert_eq!((&status["active"], &status["trial"]["state"]), (source, &json!("running")), "{status:#}");
        assert_eq!(status["badVersions"], json!([]), "{status:#}");
        assert_eq!(supervisor.process(), before, "restarted");
    }
}

/// containerd is stopped in mid-trial: nobody is blamed, and the trial is passed when it is back.
pub fn runtime_away(case: &Case) {
    let (supervisor, source) = settled_on_trial(case);
    case.script("stop", Some("containerd"));
    supervisor.await_status(&[("/trial/suspended", json!("the container runtime does not answer"))]);
    assert_on_trial(&supervisor, &source, 40);
    let text = supervisor.verb(&["status"]).unwrap();
    assert!(text.contains("judgement is suspended: the container runtime does not answer"), "{text}");
    case.script("start", Some("containerd"));
    case.await_config(&source, &source, &source, "");
    assert_eq!(supervisor.restarts(), 1);
    // That it was suspended is no news for the cluster.
    for reason in ["KubeletConfigRolledBack", "KubeletConfigTrialSuspended"] {
        assert_eq!(case.events(reason).unwrap(), Vec::<String>::new(), "{reason}");
    }
}

/// The API server is stopped in mid-trial, and then the supervisor dies, and its kubelet with it, as when the machine reboots:
/// the outage is not held against the version that was in contact before, and it is proven once the API server is back.
pub fn outage_with_restart(case: &Case) {
    let (mut supervisor, source) = settled_on_trial(case);
    case.script("stop", Some("apiserver"));
    supervisor.signal("KILL");
    supervisor.ended();
    let supervisor = case.supervisor_options(SETTLED, &["--isolation-timeout", ISOLATION]);
    supervisor.await_status(&[("/kubelet/restarts", json!(0)), ("/kubelet/ready", json!(true))]);
    // Longer than a version may be cut off by its own fault.
    assert_on_trial(&supervisor, &source, 45);
    case.script("start", Some("apiserver"));
    case.await_config(&source, &source, &source, "");
    assert_eq!(supervisor.restarts(), 0);
    for reason in ["KubeletConfigRolledBack", "KubeletConfigNotBlamed"] {
        assert_eq!(case.events(reason).unwrap(), Vec::<String>::new(), "{reason}");
    }
}

/// containerd is stopped right after a change, which may have done it: that goes back, the control test clears it, and it is
/// proven when containerd is back.
pub fn runtime_away_with_the_change(case: &Case) {
    let supervisor = case.supervisor_options("20s", &["--isolation-timeout", ISOLATION]);
    case.await_node_ready();
    let map = case.assign_new(&case.id("map"), "maxPods: 42");
    await_clock(&supervisor);
    case.script("stop", Some("containerd"));
    case.await_event("KubeletConfigRolledBack", &["the container runtime has not answered"]);
    case.await_event("KubeletConfigNotBlamed", &["fails in the same way"]);
    assert_eq!(supervisor.status().unwrap()["badVersions"], json!([]));
    case.script("start", Some("containerd"));
    case.await_proven(&map);
    // This kubelet does not start without a runtime, so last known good may have been started more than once.
    let times = |reason| case.events(reason).unwrap().len();
    assert_eq!(
        (times("KubeletConfigChanged"), times("KubeletConfigRolledBack")),
        (2, 1),
        "there, back, and there again"
    );
}

/// A configuration with which the kubelet lives and the cluster hears nothing of it.
pub fn cut_off(case: &Case) {
    let supervisor = case.supervisor_options("4s", &["--isolation-timeout", "20s"]);
    case.await_node_ready();
    let lkg = case.assign_new(&case.id("lkg"), "maxPods: 41");
    let good = lkg.source();
    case.await_config(&good, &good, &good, "");
    // No API server understands that, and nothing but the traffic tells.
    let map = case.assign_new(&case.id("map"), "maxPods: 42\ncontentType: application/no-such-thing");
    case.await_config(&map.source(), &map.source(), &good, "");
    case.await_config(&map.source(), &good, &good, LOAD);
    case.await_event("KubeletConfigRolledBack", &[&map.event_text(), &lkg.event_text()]);
    supervisor.await_ready();
    case.await_configz("maxPods", &json!(41));
    // Last known good is in contact, which settles it: the version stays marked.
    supervisor.await_status(&[("/badVersions/0/source/resourceVersion", json!(map.version))]);
    assert_eq!(supervisor.restarts(), 3);
}

/// Whatever the configuration, the kubelet dies: the version is cleared, and tried again in better times.
pub fn not_to_blame(case: &Case) {
    let (supervisor, lkg) = case.proven();
    let dir = PathBuf::from(case.var("KUBELET_ROOT")).join("plugins_registry");
    let aside = dir.with_extension("aside");
    std::fs::rename(&dir, &aside).unwrap();
    std::fs::write(&dir, "no directory").unwrap();
    let map = case.assign_new(&case.id("map"), "maxPods: 42");
    case.await_event("KubeletConfigRolledBack", &[&map.event_text(), "plugins_registry"]);
    case.await_event("KubeletConfigNotBlamed", &[&map.event_text(), "plugins_registry"]);
    case.await_config(&map.source(), &lkg.source(), &lkg.source(), LOAD);
    supervisor.await_status(&[("/badVersions", json!([]))]);
    std::fs::remove_file(&dir).unwrap();
    std::fs::rename(&aside, &dir).unwrap();
    case.await_proven(&map);
}

/// The policy in the CPU manager's state file.
fn state_file(case: &Case) -> Result<Value, String> {
    let path = PathBuf::from(case.var("KUBELET_ROOT")).join("cpu_manager_state");
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let state: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    Ok(state["policyName"].clone())
}

fn await_policy(case: &Case, policy: &str) {
    until(&format!("a state file of policy {policy}"), || {
        let seen = state_file(case)?;
        if seen == policy { Ok(()) } else { Err(seen.to_string()) }
    });
}

/// none → static → failure → none → static → none, each time with state files the kubelet accepts.
pub fn cpu_manager(case: &Case) {
    let (supervisor, lkg) = case.proven();
    let good = lkg.source();
    await_policy(case, "none");
    let fixed = "cpuManagerPolicy: static\nkubeReserved: {cpu: 500m}";
    // Not without a word of somebody who drained the node.
    let refused = case.assign_new(&case.id("refused"), fixed);
    case.await_config(&refused.source(), &good, &good, VALIDATE);
    case.await_event("KubeletConfigRejected", &["cpuManagerPolicy", ACKNOWLEDGE]);
    // It starts with static and dies of something else.
    let deadly = "enforceNodeAllocatable: [pods, system-reserved]\nsystemReservedCgroup: /nope";
    let dies = accepted(case, "dies", &format!("{fixed}\n{deadly}"));
    case.assign(&dies);
    case.await_config(&dies.source(), &good, &good, LOAD);
    supervisor.await_ready();
    await_policy(case, "none");
    let works = accepted(case, "works", fixed);
    case.prove(&works);
    await_policy(case, "static");
    let restarts = supervisor.restarts();
    let back = accepted(case, "back", "maxPods: 43");
    case.prove(&back);
    await_policy(case, "none");
    assert_eq!(supervisor.restarts(), restarts + 1, "a kubelet refused its state files");
}

/// Fewer places than pods: refused, and the pods that would go are named.
pub fn max_pods(case: &Case) {
    let (supervisor, lkg) = case.proven();
    case.await_node_ready();
    let names: Vec<String> = (0..3).map(|number| case.id(&format!("pod-{number}"))).collect();
    for name in &names {
        pods::make(case, name, &json!({}));
        pause(1100); // the next is younger by the clock of the API server, which counts seconds
    }
    let before = supervisor.process();
    let few = case.assign_new(&case.id("few"), "maxPods: 2");
    case.await_config(&few.source(), &lkg.source(), &lkg.source(), VALIDATE);
    case.await_event("KubeletConfigRejected", &["maxPods", &names[2]]);
    assert_eq!(supervisor.process(), before, "refused at no cost");
    for name in &names {
        let running = case.ask("GET", &pods::path(name), None);
        assert_eq!(running["status"]["phase"], "Running");
    }
    // Two pods are enough, says somebody: the third goes, and nobody minds.
    let accepts = json!({ "metadata": { "annotations": { ACKNOWLEDGE: "pods" } } });
    let few = case.edit_map(&few, &accepts);
    case.await_proven(&few);
    for name in &names {
        pods::delete(case, name);
    }
}

/// A configuration that kills the kubelet, watched for as long as it took native to call it last known good, and two minutes more.
fn kill_for_long(case: &Case, trial: &str) {
    let (supervisor, lkg) = case.proven();
    assert!(supervisor.stop().success());
    let supervisor = case.supervisor_with(trial);
    let deadly = "enforceNodeAllocatable: [pods, system-reserved]\nsystemReservedCgroup: /nope";
    let map = accepted(case, "deadly", deadly);
    let begun = std::time::Instant::now();
    case.assign(&map);
    case.await_config(&map.source(), &lkg.source(), &lkg.source(), LOAD);
    supervisor.await_ready();
    let (healed, restarts) = (begun.elapsed(), supervisor.restarts());
    while begun.elapsed().as_secs() < 12 * 60 {
        case.await_config(&map.source(), &lkg.source(), &lkg.source(), LOAD);
        assert_eq!(supervisor.restarts(), restarts);
        pause(5000);
    }
    case.say(&format!(
        "healed after {:.1} s with {restarts} restarts; nothing changed in 12 minutes",
        healed.as_secs_f64()
    ));
}

pub fn long_killing(case: &Case) {
    kill_for_long(case, "4s");
}

pub fn long_killing_ten(case: &Case) {
    kill_for_long(case, "10m");
}
