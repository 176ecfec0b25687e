//! A reload: the installed binary goes on in the running supervisor's place, with the same pid and the same kubelet.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use testkit::built::copy_program;
use testkit::rig::{Rig, SOON, configuration, eventually, is, is_gone};

/// What must not change.
#[derive(Debug, PartialEq)]
struct Same {
    supervisor: u64,
    kubelet: u64,
    starts: usize,
}

fn same(rig: &Rig) -> Same {
    let status = rig.status();
    Same { supervisor: rig.pid(), kubelet: status["kubelet"]["pid"].as_u64().unwrap_or_default(), starts: rig.starts() }
}

fn reloads(rig: &Rig) -> u64 {
    // Nobody answers for the moment of a reload.
    let status = rig.wait_status("an answer", |status| status["supervisor"]["reloads"].is_u64());
    status["supervisor"]["reloads"].as_u64().unwrap()
}

/// Puts a copy of the supervisor into the test's directory, to be run from there.
fn install(rig: &mut Rig) {
    let path = rig.at("bin");
    std::fs::create_dir_all(&path).unwrap();
    let path = path.join("kubelet-supervisor");
    copy_program(Path::new(env!("CARGO_BIN_EXE_kubelet-supervisor")), &path);
    rig.installed = Some(path);
}

/// As a package does: another file takes the name.
fn replace(rig: &Rig, write: impl FnOnce(&Path)) {
    let installed = rig.installed.as_ref().unwrap();
    let (written, new) = (installed.with_extension("written"), installed.with_extension("new"));
    write(&written);
    copy_program(&written, &new);
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(&new, installed).unwrap();
}

fn open_files(pid: u64) -> Vec<String> {
    let mut open: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|entry| Some(std::fs::read_link(entry.ok()?.path()).ok()?.display().to_string()))
        .map(|target| target.split(':').next().unwrap_or_default().to_owned())
        .collect();
    open.sort();
    open
}

fn environment(pid: u64) -> String {
    String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/environ")).unwrap()).replace('\0', "\n")
}

/// Children of the supervisor that nobody has waited for.
fn zombies(pid: u64) -> usize {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().filter(|child| is_gone(child.parse().unwrap())).count()
}

#[test]
fn the_same_pid_and_the_same_kubelet() {
    let mut rig = Rig::long_trial();
    rig.up();
    rig.wait_status("ready", |status| status["kubelet"]["ready"] == true && status["kubelet"]["version"].is_string());
    let before = same(&rig);
    let said = rig.done(&["reload"]);
    assert_eq!(said, format!("reloaded: {0} -> {0}", env!("CARGO_PKG_VERSION")));
    let status = rig.status();
    assert_eq!((same(&rig), reloads(&rig)), (before, 1));
    assert_eq!(status["kubelet"]["ready"], true, "{status}");
    assert_eq!(status["kubelet"]["version"], "v1.20.2", "{status}");
    assert!(!environment(rig.pid()).is_empty());
    // It is a supervisor as before: it takes up a change, and restarts a kubelet that dies.
    let version = rig.apply("a", &configuration("maxPods: 42"));
    assert!(!environment(rig.last_pid()).contains("KUBELET_SUPERVISOR_HANDOVER"));
    rig.done(&["reload"]);
    assert_eq!(reloads(&rig), 2);
    let (pid, starts) = (rig.last_pid(), rig.starts());
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGKILL).unwrap();
    rig.wait_starts(starts + 1);
    rig.wait_status("the change", |status| is(status, "active", &version) && status["kubelet"]["ready"] == true);
    assert!(rig.log().contains("ended by itself after"), "{}", rig.log());
    assert_eq!(zombies(rig.pid()), 0);
    rig.stop();
}

#[test]
fn sighup_is_a_reload_and_is_not_passed_on() {
    let mut rig = Rig::long_trial();
    rig.up();
    let before = same(&rig);
    rig.signal(Signal::SIGHUP);
    rig.wait_status("a reload", |status| status["supervisor"]["reloads"] == 1);
    assert_eq!(same(&rig), before);
    assert!(!rig.kubelet.entries().iter().any(|entry| entry["event"] == "signal"), "the kubelet heard of it");
    rig.stop();
}

#[test]
fn a_trial_goes_on_and_is_proven() {
    let mut rig = Rig::long_trial();
    rig.option("--trial-duration", "4s");
    rig.up();
    let version = rig.apply("a", &configuration("maxPods: 42"));
    let since = rig.wait_status("health", |status| status["trial"]["since"].is_string())["trial"]["since"].clone();
    let before = same(&rig);
    rig.done(&["reload"]);
    // Once the API server has answered this supervisor too.
    rig.wait_status("the same health", |status| {
        status["trial"]["state"] == "running" && status["trial"]["since"] == since
    });
    rig.wait_status("proven", |status| is(status, "lastKnownGood", &version));
    assert_eq!(same(&rig), before);
    let state = std::fs::read_to_string(rig.at("dynamic/supervisor/state.json")).unwrap();
    assert!(!state.contains("\"tries\": 2"), "{state}");
    let reasons: Vec<Value> = rig.history().iter().map(|entry| entry["reason"].clone()).collect();
    assert_eq!(reasons, ["KubeletConfigChanged", "KubeletConfigProven"]);
    rig.stop();
}

#[test]
fn no_line_of_a_flood_is_lost_or_torn() {
    let mut rig = Rig::long_trial();
    rig.local("standIn: {flood: 60000}");
    rig.start();
    let mut reloaded = 0;
    while rig.readies() == 0 {
        if rig.status_text(&[]).0 == 0 && rig.verb(&["reload"]).0 == 0 {
            reloaded += 1;
        }
    }
    println!("{reloaded} reloads during the flood");
    rig.wait_status("ready", |status| status["kubelet"]["ready"] == true);
    rig.stop();
    let log = rig.log();
    let flood = log.lines().filter_map(|line| line.split_once("] flood line ")?.1.parse::<usize>().ok());
    assert!(flood.eq(0..60_000), "of {} lines", log.lines().count());
    let is_whole = |line: &&str| line.starts_with("kubelet-supervisor: ") || line.contains(".go:");
    assert_eq!(log.lines().find(|line| !is_whole(line)), None, "no line is torn");
    assert!(reloaded > 0, "the flood was over too soon");
}

/// A kubelet is killed at some moments of a reload. Few for one supervisor: it restarts its kubelet later each time.
fn killed_at(moments: std::ops::Range<u64>) {
    let mut rig = Rig::long_trial();
    rig.up();
    for round in moments {
        let (pid, readies) = (rig.last_pid(), rig.readies());
        let pid = Pid::from_raw(i32::try_from(pid).unwrap());
        rig.signal(Signal::SIGHUP);
        std::thread::sleep(std::time::Duration::from_millis(round * 7)); // any moment of the reload will do
        kill(pid, Signal::SIGKILL).unwrap();
        rig.wait_ready(readies + 1);
        eventually("nobody is left unburied", || (zombies(rig.pid()) == 0).then_some(()));
    }
    assert!(reloads(&rig) > 0);
    rig.stop();
}

#[test]
fn a_kubelet_that_dies_at_once_is_noticed() {
    killed_at(0..3);
}

#[test]
fn a_kubelet_that_dies_meanwhile_is_noticed() {
    killed_at(3..6);
}

#[test]
fn a_kubelet_that_dies_at_the_end_is_noticed() {
    killed_at(6..8);
}

#[test]
fn a_binary_that_cannot_go_on_is_refused() {
    let mut rig = Rig::long_trial();
    install(&mut rig);
    rig.up();
    let before = same(&rig);
    let refused = |rig: &Rig, why: &str| {
        let (code, _, stderr) = rig.verb(&["reload"]);
        assert!(code == 1 && stderr.contains("not reloaded: ") && stderr.contains(why), "{code} {stderr}");
        assert!(rig.log().contains("no reload, this supervisor stays in charge"), "{}", rig.log());
    };
    replace(&rig, |path| std::fs::write(path, "#!/bin/sh\necho broken >&2\nexit 3\n").unwrap());
    refused(&rig, "it cannot take over (exit code 3): broken");
    replace(&rig, |path| std::fs::write(path, "no program at all").unwrap());
    refused(&rig, "it cannot take over (exit code 127)"); // a shell was tried on it
    replace(&rig, |path| std::fs::write(path, "#!/bin/sh\necho fine\n").unwrap());
    refused(&rig, "it is not a kubelet-supervisor");
    std::fs::remove_file(rig.installed.as_ref().unwrap()).unwrap();
    refused(&rig, "No such file or directory");
    assert_eq!((same(&rig), reloads(&rig)), (before, 0));
    // And one that can, after all that.
    replace(&rig, |path| assert!(std::fs::copy(env!("CARGO_BIN_EXE_kubelet-supervisor"), path).unwrap() > 0));
    let before = same(&rig);
    rig.done(&["reload"]);
    assert_eq!((same(&rig), reloads(&rig)), (before, 1));
    rig.stop();
}

#[test]
fn many_reloads_leave_nothing_behind() {
    let mut rig = Rig::long_trial();
    rig.up();
    rig.wait_status("version", |status| status["kubelet"]["version"].is_string());
    let before = same(&rig);
    rig.done(&["reload"]);
    let pid = rig.pid();
    let resident = || -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap().to_owned();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    let settled = || eventually("the watches", || Some(open_files(pid)).filter(|open| open.len() > 10));
    let (files, memory) = (settled(), resident());
    for _ in 0..20 {
        rig.done(&["reload"]);
    }
    let kept = |open: &[String], kind: &str| open.iter().filter(|target| target.starts_with(kind)).count();
    eventually("as many files as before", || {
        let open = open_files(pid);
        // Connections to the API server come and go.
        let same = ["pipe", "/memfd", "anon_inode", "/"].iter().all(|kind| kept(&open, kind) <= kept(&files, kind));
        (same && open.len() <= files.len() + 2).then_some(())
    });
    assert!(resident() < memory + 4096, "{memory} kB became {} kB", resident());
    assert_eq!((same(&rig), reloads(&rig)), (before, 21));
    rig.stop();
}

#[test]
fn the_kubelet_still_dies_with_the_supervisor() {
    let mut rig = Rig::long_trial();
    rig.local("standIn: {ignoreSigterm: true}");
    rig.up();
    rig.done(&["reload"]);
    rig.kill();
}

#[test]
fn a_reload_waits_for_a_kubelet_that_runs() {
    let mut rig = Rig::long_trial();
    rig.local("standIn: {stopDelay: 1s}");
    rig.up();
    let version = rig.put("a", &configuration("maxPods: 42"));
    rig.assign("a");
    rig.kubelet.wait(SOON, |all| all.iter().any(|e| e["event"] == "signal").then_some(())).unwrap();
    rig.signal(Signal::SIGHUP);
    rig.wait_status("both", |status| is(status, "active", &version) && status["supervisor"]["reloads"] == 1);
    rig.stop();
}

#[test]
fn sigterm_right_after_a_reload_is_a_clean_stop() {
    let mut rig = Rig::long_trial();
    for pause in [0, 1, 3, 10, 30] {
        rig.up();
        let pid = rig.last_pid();
        rig.signal(Signal::SIGHUP);
        std::thread::sleep(std::time::Duration::from_millis(pause));
        rig.stop();
        assert!(is_gone(pid));
    }
}

#[test]
fn systemd_hears_of_it_in_order() {
    let mut rig = Rig::long_trial();
    let path = rig.at("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    rig.env = vec![("NOTIFY_SOCKET".to_owned(), path.display().to_string())];
    rig.up();
    rig.wait_status("ready", |status| status["kubelet"]["ready"] == true);
    rig.done(&["reload"]);
    rig.signal(Signal::SIGTERM);
    rig.wait_exit();
    let mut words = Vec::new();
    let mut buffer = [0; 4096];
    while words.last().is_none_or(|last| last != "STOPPING=1") {
        let length = socket.recv(&mut buffer).unwrap();
        let message = String::from_utf8_lossy(&buffer[..length]).into_owned();
        if message.contains("RELOADING=1") {
            let stamp = message.lines().find_map(|line| line.strip_prefix("MONOTONIC_USEC=")).unwrap();
            assert!(stamp.parse::<u64>().unwrap() > 0);
        }
        words.extend(message.lines().filter(|line| line.ends_with("=1")).map(str::to_owned));
    }
    assert_eq!(words, ["READY=1", "RELOADING=1", "READY=1", "STOPPING=1"]);
}
