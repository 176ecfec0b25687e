//! The kernel's table of TCP sockets.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// Nothing is known of longer tables (of some 100,000 sockets): each entry costs the kernel a microsecond or more.
const MAX_TABLE: u64 = 16 << 20;

/// Bytes of a row (`TMPSZ`, net/ipv4/tcp_ipv4.c, Linux 6.1).
const ROW: usize = 150;

/// Socket states in /proc/net/tcp (include/net/tcp_states.h, Linux 6.1).
pub(super) const ESTABLISHED: u8 = 0x01;
pub(super) const LISTEN: u8 = 0x0A;

/// A socket in the kernel's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Socket {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) state: u8,
    /// Whose it is, as this process sees users.
    pub(super) uid: u32,
    pub(super) inode: u64,
}

/// The table of the network that this process is in.
pub(super) fn table(proc: &Path, pid: u32, name: &str) -> Option<Vec<Socket>> {
    let mut text = String::new();
    let file = File::open(proc.join(format!("{pid}/net/{name}"))).ok()?;
    let read = file.take(MAX_TABLE).read_to_string(&mut text).ok()?;
    ((read as u64) < MAX_TABLE).then(|| text.lines().filter_map(socket).collect())
}

/// The user whose server takes connections to this address of this machine; none: there is no server.
///
/// # Errors
/// The table cannot be read.
pub(super) fn listening_user(proc: &Path, address: SocketAddr) -> io::Result<Option<u32>> {
    let address = SocketAddr::new(address.ip().to_canonical(), address.port());
    let mut sockets = Vec::new();
    for name in if address.is_ipv4() { ["tcp", "tcp6"] } else { ["tcp6", "tcp"] } {
        match listening(proc, name, address) {
            Err(error) if name == "tcp6" && error.kind() == io::ErrorKind::NotFound => {} // IPv6 is off
            found => sockets.extend(found?),
        }
        if sockets.iter().any(|socket| socket.local == address) {
            break;
        }
    }
    Ok(server_of(&sockets, address).map(|socket| socket.uid))
}

/// Listening sockets alone, up to the one on this very address. They come first (`tcp_get_idx`, net/ipv4/tcp_ipv4.c, Linux 6.1);
/// behind them the kernel looks for connections in some 100,000 buckets, for 2 ms. It goes no further than it is read, so a row is
/// read at a time.
fn listening(proc: &Path, name: &str, address: SocketAddr) -> io::Result<Vec<Socket>> {
    let file = File::open(proc.join(format!("self/net/{name}")))?.take(MAX_TABLE);
    let mut sockets = Vec::new();
    for line in BufReader::with_capacity(ROW, file).lines().skip(1) {
        match socket(&line?) {
            Some(socket) if socket.state == LISTEN => sockets.push(socket),
            Some(_) => break,
            None => return Err(io::ErrorKind::InvalidData.into()),
        }
        if sockets.last().is_some_and(|socket| socket.local == address) {
            break;
        }
    }
    Ok(sockets)
}

/// The kernel's choice: who listens on that very address, or else on all of its family, or else on all of both.
fn server_of(listening: &[Socket], address: SocketAddr) -> Option<&Socket> {
    let rank = |socket: &&Socket| match socket.local.ip() {
        ip if ip == address.ip() => 0,
        ip if ip.is_ipv4() == address.is_ipv4() => 1,
        _ => 2,
    };
    let takes = |socket: &&Socket| {
        let ip = socket.local.ip();
        let is_for_it = ip == address.ip() || ip.is_unspecified() && (ip.is_ipv6() || address.is_ipv4());
        socket.local.port() == address.port() && is_for_it
    };
    listening.iter().filter(takes).min_by_key(rank)
}

/// A line of it (`get_tcp4_sock`, net/ipv4/tcp_ipv4.c, Linux 6.1): number, local and remote address, state, ..., user, ..., inode.
fn socket(line: &str) -> Option<Socket> {
    let fields: Vec<&str> = line.split_whitespace().take(10).collect();
    let [_, local, remote, state, .., uid, _, inode] = fields[..] else { return None };
    let (local, remote) = (address(local)?, address(remote)?);
    let (uid, inode) = (uid.parse().ok()?, inode.parse().ok()?);
    Some(Socket { local, remote, state: u8::from_str_radix(state, 16).ok()?, uid, inode })
}

/// `0100007F:1F90`: words of the address in the byte order of the machine, and the port. What IPv6 has of an IPv4 address is
/// that address.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| Some(u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?].concat();
            IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(words).ok()?)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table() {
        let line = "   1: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0000000000000000 20";
        let found = socket(line).unwrap();
        if cfg!(target_endian = "little") {
            assert_eq!(
                (found.local, found.remote),
                ("127.0.0.1:8080".parse().unwrap(), "127.0.0.1:50000".parse().unwrap())
            );
        }
        assert_eq!((found.state, found.uid, found.inode), (ESTABLISHED, 1000, 4711));
        for odd in ["", "  sl  local_address rem_address   st", "1: x:1 y:2 01 0 0 0 0 0 1", "1: 0:0"] {
            assert_eq!(socket(odd), None, "{odd}");
        }
        if cfg!(target_endian = "little") {
            let mapped = address("0000000000000000FFFF00000100007F:0050");
            assert_eq!(mapped, Some("127.0.0.1:80".parse().unwrap()));
            assert_eq!(address("00000000000000000000000001000000:0050"), Some("[::1]:80".parse().unwrap()));
        }
    }

    #[test]
    fn the_server_of_an_address() {
        let listener = |local: &str, uid| Socket {
            local: local.parse().unwrap(),
            remote: "0.0.0.0:0".parse().unwrap(),
            state: LISTEN,
            uid,
            inode: 1,
        };
        let of = |listening: &[Socket], address: &str| server_of(listening, address.parse().unwrap()).map(|it| it.uid);
        let all = [
            listener("[::]:10248", 1),
            listener("0.0.0.0:10248", 2),
            listener("127.0.0.1:10248", 3),
            listener("127.0.0.1:10250", 4),
        ];
        let [both, v4, exact, other] = &all;
        assert_eq!(of(&all, "127.0.0.1:10248"), Some(3), "others may listen beside it, on all addresses of IPv6 alone");
        assert_eq!(of(&[both.clone(), v4.clone(), other.clone()], "127.0.0.1:10248"), Some(2));
        assert_eq!(of(&[both.clone(), other.clone()], "127.0.0.1:10248"), Some(1));
        assert_eq!(of(&all, "[::1]:10248"), Some(1));
        assert_eq!(of(&[v4.clone(), exact.clone(), other.clone()], "[::1]:10248"), None);
        assert_eq!(of(std::slice::from_ref(other), "127.0.0.1:10248"), None);
    }
}
