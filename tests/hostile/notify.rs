//! The socket for READY=1 and WATCHDOG=1.

use testkit::rig::{Rig, configuration, eventually};

use crate::strangers::{Stranger, as_root, begin_with, environment, with_run};

/// Where the kubelet sends READY=1.
fn socket(rig: &Rig) -> String {
    environment(rig.last_pid(), "NOTIFY_SOCKET").unwrap()
}

#[test]
fn names_that_a_stranger_took_keep_nobody_from_supervising() {
    let Some(mut rig) = as_root(Rig::new) else { return };
    // The supervisor's pid is known before it begins, as a patient stranger could guess it.
    let (pid, go) = (rig.at("pid"), rig.at("go"));
    begin_with(
        &mut rig,
        &format!("mkfifo {1}\necho $$ >{0}.new\nmv {0}.new {0}\nread -r line <{1}", pid.display(), go.display()),
    );
    rig.start();
    let pid = eventually("the pid", || std::fs::read_to_string(&pid).ok()?.trim().parse::<u64>().ok());
    let first = format!("kubelet-supervisor/{pid}");
    let names: Vec<String> = std::iter::once(first.clone()).chain((1..16).map(|n| format!("{first}.{n}"))).collect();
    let mut args = vec!["take-names"];
    args.extend(names.iter().map(String::as_str));
    let mut stranger = Stranger::new(&args);
    assert_eq!(stranger.done(), "16");
    std::fs::write(&go, "go\n").unwrap();
    rig.wait_ready(1);
    rig.prove("a", &configuration("maxPods: 42"));
    rig.stop();
}

#[test]
fn only_root_can_write_to_the_socket() {
    let Some(mut rig) = as_root(Rig::new) else { return };
    rig.up();
    let socket = socket(&rig);
    assert!(socket.starts_with("/run/kubelet-supervisor/notify."), "{socket}");
    assert_eq!(Stranger::tries(&["send", &socket, "READY=1"]), "PermissionDenied");
    let mut flood = Stranger::new(&["flood", &socket, "200"]);
    assert!(flood.done().starts_with("0 "));
    rig.restart();
    assert!(!std::path::Path::new(&socket).exists(), "what a supervisor left is removed by the next");
}

/// Where the socket must be abstract, everybody can write to it: neither believed, nor at our cost.
#[test]
fn a_flood_is_read_at_leisure_and_the_kubelet_is_heard_through_it() {
    let Some(mut rig) = as_root(Rig::new) else { return };
    with_run(&mut rig, "mount -o remount,ro /run");
    rig.up();
    rig.wait_log("it is abstract");
    let socket = socket(&rig);
    assert!(socket.starts_with('@') && socket.len() == 6, "the kernel chose it: {socket}");
    let queue: u64 = std::fs::read_to_string("/proc/sys/net/unix/max_dgram_qlen").unwrap().trim().parse().unwrap();
    let mut flood = Stranger::new(&["flood", &socket, "4000"]);
    rig.apply("a", &configuration("maxPods: 42"));
    let result = flood.done();
    let (sent, time) = result.split_once(' ').unwrap();
    let (sent, time): (u64, u64) = (sent.parse().unwrap(), time.parse().unwrap());
    // 64 every 100 ms, and what waits in the queue. A busy machine reads fewer.
    assert!(sent > 0 && sent <= (time / 100 + 2) * 64 + queue + 1, "{sent} datagrams were read in {time} ms");
    drop(flood);
    rig.prove("b", &configuration("maxPods: 43"));
    rig.stop();
}

/// A stranger's word is not the kubelet's.
#[test]
fn a_strangers_word_counts_for_nothing() {
    let Some(mut rig) = as_root(Rig::new) else { return };
    with_run(&mut rig, "mount -o remount,ro /run");
    rig.local("standIn: {neverReady: true}");
    rig.start();
    rig.wait_starts(1);
    let flood = Stranger::tries(&["flood", &socket(&rig), "500"]);
    assert!(!flood.starts_with("0 "), "{flood}");
    assert_eq!(rig.status()["kubelet"]["ready"], false);
    assert!(rig.get("/readyz").0.contains("503"));
}
