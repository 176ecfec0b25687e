//! Workers that end, are replaced, or are no workers: the kubelet goes on, and somebody supervises it.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testkit::built::{copy_program, program, write_script};
use testkit::kubelet::Style;
use testkit::rig::{HELLO, Rig, configuration, eventually, eventually_within, is, is_gone, workers};

/// A worker that was not there before, and is alone.
fn another(rig: &Rig, before: u64) -> u64 {
    eventually_within(Duration::from_secs(60), "another worker", || match workers(rig.pid())[..] {
        [pid] if pid != before => Some(pid),
        _ => None,
    })
}

fn send(pid: u64, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
}

/// A supervisor whose binary can be replaced.
fn installed() -> Rig {
    let mut rig = Rig::with(Style::V1_20, "3s");
    let path = rig.at("supervisor");
    copy_program(&program("kubelet-supervisor"), &path);
    rig.installed = Some(path);
    rig.up();
    rig
}

/// What is installed is this script from now on.
fn install_script(rig: &Rig, body: &str) {
    write_script(rig.installed.as_deref().unwrap(), body);
}

/// A worker answers, and says which one it is.
fn speaks(rig: &Rig) -> u64 {
    rig.wait_status("a worker that answers", |status| status["worker"].is_u64())["worker"].as_u64().unwrap()
}

/// Whoever asks is answered soon.
fn assert_answers(rig: &Rig) {
    let begun = Instant::now();
    let (code, _, stderr) = rig.verb(&["status"]);
    assert!(code == 0 && begun.elapsed() < Duration::from_secs(2), "{:?}: {code} {stderr}", begun.elapsed());
}

fn why_replaced(rig: &Rig) -> Vec<String> {
    let mut history = rig.history();
    history.retain(|entry| entry["reason"] == "WorkerReplaced");
    history.iter().map(|entry| entry["message"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_worker_that_is_killed_is_replaced_and_that_is_told() {
    let mut rig = Rig::new().running();
    let version = rig.prove("a", &configuration("maxPods: 42"));
    let (kubelet, starts, worker) = (rig.last_pid(), rig.starts(), workers(rig.pid())[0]);
    assert_eq!(speaks(&rig), 1);
    send(worker, Signal::SIGKILL);
    rig.wait_status("another worker", |status| status["worker"] == 2);
    let why = eventually("it is told", || why_replaced(&rig).pop());
    assert!(why.contains(&format!("(pid {worker}): signal 9: worker 2 begins")), "{why}");
    assert_eq!((rig.last_pid(), rig.starts()), (kubelet, starts));
    // It goes on with all there is to do.
    rig.prove("b", &configuration("maxPods: 43"));
    assert_eq!(rig.starts(), starts + 1);
    rig.wait_config("and the version before is not forgotten", |config| !is(config, "lastKnownGood", &version));
    rig.stop();
}

#[test]
fn a_reload_in_the_middle_of_a_trial_costs_the_trial_nothing() {
    let mut rig = installed();
    let version = rig.apply("a", &configuration("maxPods: 42"));
    let (kubelet, starts, worker) = (rig.last_pid(), rig.starts(), workers(rig.pid())[0]);
    rig.signal(Signal::SIGHUP);
    let next = another(&rig, worker);
    eventually("the one before has ended", || is_gone(worker).then_some(()));
    assert_answers(&rig);
    rig.wait_config("it is proven", |config| is(config, "lastKnownGood", &version));
    assert_eq!((rig.last_pid(), rig.starts(), workers(rig.pid())), (kubelet, starts, vec![next]));
    assert_eq!(why_replaced(&rig), ["The supervisor's worker was replaced on request: worker 2 begins"]);
    rig.stop();
}

/// What it says to the monitor, and how that takes it.
const SUCCESSORS: [(&str, &str); 7] = [
    ("exit 1", "exit code 1"),
    ("exec 3>&-; sleep 600", "says no hello"),
    ("sleep 600", "says no hello"),
    ("echo garbage >&3; sleep 600", "a message that is none"),
    ("while :; do printf '\"beat\"' >&3; done 2>&-", "it says other things before hello"),
    ("dd if=/dev/zero bs=70000 count=1 >&3 2>&-; sleep 600", "a message of 70000 bytes"),
    ("printf '{\"hello\":{\"protocol\":77,\"version\":\"9.9.9\"}}' >&3; sleep 600", "9.9.9 speaks protocol 77"),
];

#[test]
fn a_successor_that_cannot_run_changes_nothing() {
    std::thread::scope(|scope| {
        for successor in SUCCESSORS {
            scope.spawn(move || fails_to_succeed(successor));
        }
    });
}

fn fails_to_succeed((script, how): (&str, &str)) {
    let mut rig = installed();
    let (kubelet, worker) = (rig.last_pid(), workers(rig.pid())[0]);
    assert_eq!(speaks(&rig), 1);
    install_script(&rig, script);
    rig.signal(Signal::SIGHUP);
    rig.wait_log("worker 2 (pid ");
    assert_answers(&rig);
    eventually(how, || {
        rig.log().lines().any(|line| line.contains("worker 2 (pid ") && line.contains(how)).then_some(())
    });
    eventually("the worker before is alone", || (workers(rig.pid()) == [worker]).then_some(()));
    assert_eq!(speaks(&rig), 1);
    // The next one can.
    copy_program(&program("kubelet-supervisor"), &rig.at("new"));
    std::fs::rename(rig.at("new"), rig.at("supervisor")).unwrap();
    rig.signal(Signal::SIGHUP);
    another(&rig, worker);
    rig.wait_status("it begins", |status| status["worker"] == 3);
    assert_eq!((rig.last_pid(), rig.starts(), is_gone(kubelet)), (kubelet, 1, false), "{script}");
    rig.stop();
}

/// One was killed, two are of no use.
#[test]
fn three_early_ends_bring_the_monitors_own_binary() {
    let flood = "more than 1000 messages in a second";
    let floods = format!("{HELLO}; while :; do printf '\"beat\"' >&3 || :; done 2>&-");
    for (script, how) in [("exit 1".to_owned(), "exit code 1"), (floods, flood)] {
        let mut rig = installed();
        let (kubelet, before) = (rig.last_pid(), workers(rig.pid())[0]);
        install_script(&rig, &script);
        send(before, Signal::SIGKILL);
        let file = |path: &str| std::fs::metadata(Path::new(path)).ok().map(|file| (file.dev(), file.ino()));
        let own = file(&format!("/proc/{}/exe", rig.pid()));
        let worker = eventually("a worker of the own binary", || {
            workers(rig.pid()).into_iter().find(|pid| *pid != before && file(&format!("/proc/{pid}/exe")) == own)
        });
        rig.wait_status("it begins", |status| status["worker"] == 4);
        let log = rig.log();
        let ends = log.lines().filter(|line| line.contains(how) && line.ends_with("; the kubelet goes on"));
        assert_eq!(ends.count(), 2, "{log}");
        assert_ne!(file(&rig.at("supervisor").display().to_string()), own);
        rig.prove("a", &configuration("maxPods: 42"));
        assert_eq!((workers(rig.pid()), rig.starts(), is_gone(kubelet)), (vec![worker], 2, true), "{script}");
        rig.stop();
    }
}

#[test]
fn a_worker_that_stands_still_is_replaced_after_half_a_minute() {
    let mut rig = Rig::new().running();
    rig.prove("a", &configuration("maxPods: 42"));
    let (kubelet, starts, worker) = (rig.last_pid(), rig.starts(), workers(rig.pid())[0]);
    send(worker, Signal::SIGSTOP);
    another(&rig, worker);
    assert_eq!(speaks(&rig), 2);
    assert!(rig.log().contains("it says nothing any more"), "{}", rig.log());
    assert_eq!((rig.last_pid(), rig.starts(), is_gone(kubelet)), (kubelet, starts, false));
    rig.stop();
}
