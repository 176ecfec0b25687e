//! The kubelet that judged a change waits to be the next one: a process of the real kubelet that does nothing yet.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::assignment::ConfigMap;
use crate::cluster::{pause, until};
use crate::supervisor::{Case, Supervisor, signal};

/// Its Lease is renewed each second.
const FIELDS: &str = "nodeLeaseDurationSeconds: 4";

/// What a kubelet says before it waits, `acquiring` or `Acquiring`: held back until it is the kubelet.
const ITS_LAST_WORDS: &str = "cquiring file lock";

/// A configuration that runs, its kubelet, which takes no notice of anything any more, and what is assigned next.
fn stopped<'a>(case: &Case<'a>) -> (Supervisor<'a>, u32, ConfigMap) {
    let supervisor = case.supervisor_with("10m");
    case.await_node_ready();
    let map = case.assign_new(&case.id("a"), FIELDS);
    case.await_config(&map.source(), &map.source(), &Value::Null, "");
    case.await_configz("nodeLeaseDurationSeconds", &4.into());
    supervisor.await_ready();
    let old = supervisor.kubelet();
    signal(old, "STOP");
    let next = case.assign_new(&case.id("b"), &format!("{FIELDS}\nmaxPods: 43"));
    (supervisor, old, next)
}

/// The kubelet beside the one that is stopped, once the kernel says that it waits for a lock.
fn standby(case: &Case, old: u32) -> u32 {
    until("a standby that waits", || {
        let kubelets = case.kubelets();
        let [pid] = kubelets.iter().copied().filter(|pid| *pid != old).collect::<Vec<_>>()[..] else {
            return Err(format!("{kubelets:?}"));
        };
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        let waits = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.get(1) == Some(&"->") && words.get(5) == Some(&pid.to_string().as_str())
        };
        if locks.lines().any(waits) { Ok(pid) } else { Err(format!("{pid} does not wait: {locks}")) }
    })
}

/// Sockets of a process that lead somewhere: of TCP, or of the container runtime.
fn connections(pid: u32) -> Vec<String> {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let inode = |link: std::fs::DirEntry| {
        let target = std::fs::read_link(link.path()).ok()?.display().to_string();
        Some(target.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
    };
    let own: BTreeSet<String> = links.filter_map(inode).collect();
    let table = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    let tables = ["tcp", "tcp6", "udp", "udp6"].map(table).concat();
    let of_own = |line: &&str| line.split_whitespace().nth(9).is_some_and(|inode| own.contains(inode));
    tables.lines().filter(of_own).map(str::to_owned).collect()
}

fn renewed(case: &Case) -> Value {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{}", case.var("NODE_NAME"));
    case.ask("GET", &path, None)["spec"]["renewTime"].clone()
}

/// While the kubelet before is there the next one does nothing; then it goes on, the same process.
pub fn change(case: &Case) {
    let (supervisor, old, next) = stopped(case);
    let pid = standby(case, old);
    let (lease, log) = (renewed(case), supervisor.log());
    for _ in 0..12 {
        pause(250);
        assert_eq!(connections(pid), Vec::<String>::new());
    }
    assert_eq!(renewed(case), lease, "nobody renews the Lease: the one is stopped, the other waits");
    assert!(!supervisor.log().get(log.len()..).unwrap_or_default().contains(ITS_LAST_WORDS));
    assert_eq!(BTreeSet::from_iter(case.kubelets()), BTreeSet::from([old, pid]));

    signal(old, "CONT");
    until("the end of the old one", || if case.kubelets() == [pid] { Ok(()) } else { Err("it is there".into()) });
    supervisor.await_ready();
    case.await_config(&next.source(), &next.source(), &Value::Null, "");
    case.await_configz("maxPods", &43.into());
    case.await_node_ready();
    assert_eq!((supervisor.kubelet(), supervisor.restarts()), (pid, 2));
    supervisor.await_log(ITS_LAST_WORDS);
    until("the Lease to be renewed", || if renewed(case) == lease { Err(lease.to_string()) } else { Ok(()) });
    assert!(supervisor.stop().success());
}

/// A supervisor that is killed leaves no kubelet, and what it recorded runs next.
pub fn killed(case: &Case) {
    let (mut supervisor, old, next) = stopped(case);
    let pid = standby(case, old);
    supervisor.await_log("KubeletConfigChanged"); // it is recorded, and the old one is to end
    let lease = renewed(case);
    supervisor.signal("KILL");
    assert!(!supervisor.ended().success()); // and no kubelet is left
    pause(2500);
    assert_eq!(renewed(case), lease, "nobody acted");
    assert_eq!(connections_left(pid), None);

    let supervisor = case.supervisor_with("4s");
    case.await_proven(&next);
    assert_eq!(case.kubelets(), [supervisor.kubelet()]);
    assert_ne!(supervisor.kubelet(), pid);
}

/// A process that is gone has none.
fn connections_left(pid: u32) -> Option<Vec<String>> {
    std::fs::metadata(format!("/proc/{pid}")).ok().map(|_| connections(pid))
}
