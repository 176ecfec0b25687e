//! The kubelet that judged a change waits on its lock file, and is the next one.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use testkit::kubelet::Style;
use testkit::rig::{Rig, STANDBY_LOCK, VALIDATE, configuration, eventually, is_gone};

/// Starts and exits in the kubelets' journal that concern a configuration of the store, in order: what, and the process.
fn candidates(rig: &Rig) -> Vec<(&'static str, u64)> {
    let of_store = |entry: &Value| entry["config"].as_str().is_some_and(|path| path.contains("/supervisor/configs/"));
    let kind = |entry: &Value| match (&entry["standby"], &entry["preflight"]) {
        (Value::Bool(true), _) => "stands by",
        (_, Value::Bool(true)) => "judges",
        _ => "runs",
    };
    let entries = rig.kubelet.entries();
    let starts = entries.iter().filter(|entry| entry["event"] == "start" && of_store(entry));
    starts.map(|entry| (kind(entry), entry["pid"].as_u64().unwrap())).collect()
}

/// A standby waits for the end of the kubelet before, which is on its way: its process.
fn standby(rig: &Rig) -> u64 {
    let waits = || candidates(rig).into_iter().find(|(kind, _)| *kind == "stands by").map(|(_, pid)| pid);
    let pid = eventually("a standby", waits);
    let waiting = || std::fs::read_to_string("/proc/locks").unwrap().lines().any(|line| is_waiter(line, pid));
    eventually("it waits for its lock", || waiting().then_some(()));
    rig.wait_log("KubeletConfigChanged"); // it is accepted and recorded, and the one before told to end
    pid
}

fn is_waiter(line: &str, pid: u64) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    words.get(1) == Some(&"->") && words.get(5) == Some(&pid.to_string().as_str())
}

/// A rig whose kubelet takes no notice of SIGTERM: the next one has to wait.
fn stubborn() -> Rig {
    let mut rig = Rig::long_trial();
    rig.local("standIn: {ignoreSigterm: true}");
    rig.up();
    rig.offer("a", &configuration("maxPods: 42"));
    rig
}

#[test]
fn a_change_is_one_process_and_the_one_before_is_gone_by_then() {
    for style in [Style::V1_20, Style::V1_36] {
        let rig = Rig::with(style, "1s").running();
        let old = rig.last_pid();
        rig.prove("a", &configuration("maxPods: 42"));
        let pid = rig.last_pid();
        assert_eq!(candidates(&rig), [("stands by", pid), ("runs", pid)], "{style:?}");
        let entries = rig.kubelet.entries();
        let at = |event: &str, pid: u64| entries.iter().rposition(|it| it["event"] == event && it["pid"] == pid);
        assert!(at("exit", old) < at("start", pid), "one after the other: {entries:?}");
        assert!(at("exit", old).is_some());
        assert_eq!(rig.last_config()["maxPods"], 42);

        // The next one has a lock of its own.
        rig.prove("b", &configuration("maxPods: 43"));
        assert_eq!(candidates(&rig).last(), Some(&("runs", rig.last_pid())));
        assert_eq!(candidates(&rig).len(), 4);
        let passed_on = || (rig.log().matches("acquiring file lock").count() == 2).then_some(());
        eventually("what each of them wrote is in the journal, while the second runs", passed_on);
    }
}

#[test]
fn what_a_standby_refuses_is_judged_in_bounds_and_nothing_is_left_of_it() {
    let rig = Rig::new().running();
    let (old, bad) = (rig.last_pid(), rig.offer("bad", &configuration("maxPods: -1")));
    rig.wait_error(&bad, VALIDATE);
    rig.wait_told("KubeletConfigRejected", &bad, "MaxPods");
    let found = candidates(&rig);
    assert_eq!(found.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), ["stands by", "judges"]);
    assert!(found.iter().all(|(_, pid)| is_gone(*pid)) && rig.last_pid() == old && !is_gone(old));
    assert!(!rig.log().contains("goroutine"), "what it wrote is not the node's kubelet's: {}", rig.log());
}

#[test]
fn a_supervisor_that_is_killed_takes_its_standby_along_before_it_acts() {
    let mut rig = stubborn();
    let (pid, starts) = (standby(&rig), rig.starts());
    rig.kill();
    eventually("the standby goes with the supervisor", || is_gone(pid).then_some(()));
    assert_eq!(rig.starts(), starts, "it did nothing");
    rig.up();
    assert_eq!(rig.starts(), starts + 1);
    assert_ne!(rig.last_pid(), pid);
    assert_eq!(rig.last_config()["maxPods"], 42, "it was recorded");
}

#[test]
fn a_supervisor_that_leaves_ends_its_standby() {
    let mut rig = stubborn();
    let (pid, starts) = (standby(&rig), rig.starts());
    // systemd signals the whole control group.
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGTERM).unwrap();
    rig.stop();
    eventually("no standby is left", || is_gone(pid).then_some(()));
    assert_eq!(rig.starts(), starts);
}

#[test]
fn a_standby_that_dies_is_replaced_by_a_start() {
    let rig = stubborn();
    let (pid, starts) = (standby(&rig), rig.starts());
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGKILL).unwrap();
    rig.wait_starts(starts + 1);
    rig.wait_last_ready();
    assert_ne!(rig.last_pid(), pid);
    let kinds: Vec<_> = candidates(&rig).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, ["stands by", "runs"]);
}

#[test]
fn another_binary_in_its_place_is_started_instead() {
    let rig = stubborn();
    let pid = standby(&rig);
    rig.kubelet.replace();
    rig.wait_starts(2);
    rig.wait_last_ready();
    assert_ne!(rig.last_pid(), pid);
    eventually("the standby is ended", || is_gone(pid).then_some(()));
}

/// The kinds of a change's processes with this option, flag of the kubelet or setting of the stand-in.
fn plainly(mut rig: Rig) {
    rig.up();
    rig.apply("a", &configuration("maxPods: 42"));
    let kinds = || candidates(&rig).into_iter().map(|(kind, _)| kind).collect::<Vec<_>>();
    eventually("it runs", || kinds().contains(&"runs").then_some(()));
    assert_eq!(kinds(), ["judges", "runs"], "{}", rig.log());
}

#[test]
fn it_can_be_turned_off() {
    let mut rig = Rig::long_trial();
    rig.option("--standby", "false");
    plainly(rig);
}

#[test]
fn a_kubelet_with_a_lock_file_of_its_own_has_no_standby() {
    let mut rig = Rig::long_trial();
    rig.args.push(format!("--lock-file={}", rig.at("own.lock").display()));
    rig.up();
    rig.apply("a", &configuration("maxPods: 42"));
    assert!(rig.log().contains("has a --lock-file or --exit-on-lock-contention of its own"), "{}", rig.log());
    let args = rig.kubelet.starts().last().unwrap()["args"].to_string();
    assert!(!args.contains(STANDBY_LOCK), "{args}");
}

#[test]
fn a_kubelet_that_does_not_wait_for_its_lock_is_found_out_before_a_change() {
    let rig = Rig::long_trial();
    rig.kubelet.set("STAND_IN_IGNORES_LOCK=1");
    plainly(rig);
}
