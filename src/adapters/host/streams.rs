//! Streams through a kubelet, counted by the kernel's tables of files and sockets: it takes no right in the cluster, and nothing of
//! the runtime's API.
//!
//! Exec, attach, port-forward: the kubelet dials the container runtime's streaming server and passes the bytes on
//! (pkg/kubelet/server/server.go, v1.20.2 and v1.36.2), over TCP on this machine. So each is a connection of the kubelet to an
//! address on which the runtime listens or, with dockershim (until v1.23), the kubelet itself. Whatever else the kubelet wants
//! of the runtime goes over the runtime's Unix socket, so that no other port of it, such as that of its metrics, is dialled.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::Path;

use crate::adapters::tcp_table::{ESTABLISHED, LISTEN, Socket, table};

/// Nothing is known of a process with more open files: each costs the kernel a microsecond or more, every second.
const MAX_FILES: usize = 1 << 16;

/// The streams between the kubelet and the runtime of these process ids; `proc`: /proc.
pub(super) fn count(proc: &Path, kubelet: u32, runtime: Option<u32>) -> Option<u32> {
    let runtime = runtime.and_then(|pid| sockets(proc, pid));
    let own = sockets(proc, kubelet)?;
    // IPv6 may be off.
    let table = [table(proc, kubelet, "tcp")?, table(proc, kubelet, "tcp6").unwrap_or_default()].concat();
    streams(&own, runtime.as_ref(), &table)
}

/// The inodes of the sockets that a process has open.
fn sockets(proc: &Path, pid: u32) -> Option<HashSet<u64>> {
    let dir = std::fs::read_dir(proc.join(format!("{pid}/fd"))).ok()?;
    let mut sockets = HashSet::new();
    for (number, entry) in dir.enumerate() {
        if number == MAX_FILES {
            return None;
        }
        // One that was closed meanwhile is none.
        let Some(target) = entry.ok().and_then(|entry| std::fs::read_link(entry.path()).ok()) else { continue };
        let target = target.to_string_lossy();
        sockets.extend(target.strip_prefix("socket:[").and_then(|it| it.strip_suffix(']')?.parse::<u64>().ok()));
    }
    Some(sockets)
}

/// Connections of the kubelet to the streaming server; `None` if it cannot be known where that is.
fn streams(kubelet: &HashSet<u64>, runtime: Option<&HashSet<u64>>, table: &[Socket]) -> Option<u32> {
    let listeners = |owner: &HashSet<u64>| -> Vec<SocketAddr> {
        let listening = table.iter().filter(|socket| socket.state == LISTEN && owner.contains(&socket.inode));
        listening.map(|socket| socket.local).collect()
    };
    let of_runtime = runtime.map(listeners).unwrap_or_default();
    let servers = [listeners(kubelet), of_runtime.clone()].concat();
    let is_served = |remote: &SocketAddr| {
        servers.iter().any(|it| it == remote || it.ip().is_unspecified() && it.port() == remote.port())
    };
    let connections: HashSet<_> =
        table.iter().filter(|socket| socket.state == ESTABLISHED).map(|socket| (socket.local, socket.remote)).collect();
    let is_stream = |socket: &&Socket| {
        socket.state == ESTABLISHED
            && kubelet.contains(&socket.inode)
            && is_served(&socket.remote)
            && connections.contains(&(socket.remote, socket.local)) // the other end is on this machine
    };
    let count = u32::try_from(table.iter().filter(is_stream).count()).unwrap_or(u32::MAX);
    (count > 0 || !of_runtime.is_empty()).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn link(local: &str, remote: &str, state: u8, inode: u64) -> Socket {
        Socket { local: local.parse().unwrap(), remote: remote.parse().unwrap(), state, uid: 0, inode }
    }

    #[test]
    fn streams_go_to_the_runtimes_port_on_this_machine() {
        let (kubelet, runtime): (HashSet<u64>, HashSet<u64>) = ([1, 2, 3, 4, 5].into(), [10, 11].into());
        let table = [
            link("127.0.0.1:4000", "0.0.0.0:0", LISTEN, 10),
            link("127.0.0.1:5001", "127.0.0.1:4000", ESTABLISHED, 1),
            link("127.0.0.1:4000", "127.0.0.1:5001", ESTABLISHED, 11),
            // To the API server, which has the same port on another machine, and one that has ended.
            link("10.0.0.1:5002", "10.0.0.9:4000", ESTABLISHED, 2),
            link("127.0.0.1:5003", "127.0.0.1:4000", 8, 3),
            // Somebody else's.
            link("127.0.0.1:5004", "127.0.0.1:4000", ESTABLISHED, 99),
            link("127.0.0.1:4000", "127.0.0.1:5004", ESTABLISHED, 11),
            // The supervisor asks the kubelet's healthz.
            link("127.0.0.1:10248", "0.0.0.0:0", LISTEN, 4),
            link("127.0.0.1:10248", "127.0.0.1:5005", ESTABLISHED, 5),
            link("127.0.0.1:5005", "127.0.0.1:10248", ESTABLISHED, 98),
        ];
        assert_eq!(streams(&kubelet, Some(&runtime), &table), Some(1));
        assert_eq!(streams(&HashSet::new(), Some(&runtime), &table), Some(0));
        assert_eq!(streams(&kubelet, None, &table), None, "nobody knows the runtime");
        assert_eq!(streams(&kubelet, Some(&HashSet::new()), &table), None, "it has no port");
        // A server on all addresses; and dockershim, in the kubelet.
        let both = [
            link("[::]:4000", "[::]:0", LISTEN, 10),
            link("127.0.0.1:5001", "127.0.0.1:4000", ESTABLISHED, 1),
            link("127.0.0.1:4000", "127.0.0.1:5001", ESTABLISHED, 11),
        ];
        assert_eq!(streams(&kubelet, Some(&runtime), &both), Some(1));
        assert_eq!(streams(&[1, 10, 11].into(), None, &both), Some(1));
    }

    /// The test is kubelet and runtime in one, as with dockershim.
    #[test]
    fn the_sockets_of_a_living_process() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        let accepted = server.accept().unwrap();
        // Other tests of this process may have some as well.
        let found = count(Path::new("/proc"), std::process::id(), None);
        drop((client, accepted));
        assert!(found >= Some(1), "{found:?}");
        assert_eq!(count(Path::new("/proc"), 0, Some(0)), None, "no such process");
    }
}
