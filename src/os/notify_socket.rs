//! The kubelet's NOTIFY_SOCKET: where its READY=1 and WATCHDOG=1 arrive.
//!
//! It lies in a directory below /run that only root can enter: nobody else can take its name, write to it or fill its
//! queue. Where there is no such directory to be had, as with a /run that is read-only, it is abstract, with a name that
//! the kernel chooses (autobind, unix(7)), which nobody can take beforehand. Anyone in the network namespace can write to
//! that one. So the kernel's credentials of each datagram are checked, and what is not the kubelet's is read at leisure.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::net::UnixDatagram as StdDatagram;
use std::path::Path;

use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, UnixCredentials, bind, getsockname,
    recvmsg, setsockopt, socket, sockopt::PassCred,
};

use super::ownership;

/// A bound socket.
#[derive(Debug)]
pub struct NotifySocket {
    socket: StdDatagram,
    /// The value for the child's NOTIFY_SOCKET.
    pub name: String,
}

impl NotifySocket {
    /// Binds a socket of our own.
    ///
    /// # Errors
    /// As the system gives them, for both kinds of socket.
    pub fn bind() -> io::Result<Self> {
        Self::bind_in(Path::new(DIR))
    }

    /// The same with another directory.
    fn bind_in(dir: &Path) -> io::Result<Self> {
        let (name, socket) = in_directory(dir).or_else(|why| {
            let bound = autobind().map_err(|error| {
                io::Error::other(format!("{}: {why}; nor is there an abstract one: {error}", dir.display()))
            })?;
            tracing::warn!("the notify socket cannot be in {} ({why}): it is abstract", dir.display());
            Ok::<_, io::Error>(bound)
        })?;
        setsockopt(&socket, PassCred, &true)?;
        let socket = StdDatagram::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self { socket, name })
    }

    /// What the kubelet of this process id said, of what has come; with none, or one that is reaped, as far as the kernel still
    /// says whose it was. Also how many datagrams were none of the kubelet's. Reads no more than `most`.
    ///
    /// # Errors
    /// An odd datagram of a stranger.
    pub fn hear(&self, kubelet: Option<i32>, is_reaped: bool, most: u32) -> io::Result<(Vec<Message>, u32)> {
        let (mut heard, mut others) = (Vec::new(), 0);
        for _ in 0..most {
            let (text, sender) = match self.receive() {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock || !heard.is_empty() => break,
                Err(error) => return Err(error),
            };
            let before = heard.len();
            if is_kubelet(sender, kubelet, is_reaped) {
                heard.extend(text.lines().filter_map(parse));
            }
            others += u32::from(heard.len() == before);
        }
        Ok((heard, others))
    }

    fn receive(&self) -> io::Result<(String, Option<UnixCredentials>)> {
        let mut buffer = [0_u8; 4096];
        let mut control = nix::cmsg_space!(UnixCredentials);
        let mut parts = [io::IoSliceMut::new(&mut buffer)];
        let message = recvmsg::<()>(self.socket.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::MSG_DONTWAIT)?;
        // More control data than there is room for, such as descriptors, is not a kubelet's: no sender.
        let sender = message.cmsgs().ok().and_then(|mut parts| {
            parts.find_map(|part| match part {
                ControlMessageOwned::ScmCredentials(credentials) => Some(credentials),
                _ => None,
            })
        });
        let bytes = message.bytes;
        Ok((String::from_utf8_lossy(buffer.get(..bytes).unwrap_or_default()).into_owned(), sender))
    }
}

/// Root's alone. As systemd's own notify socket it is below /run, which is no disk and cannot stall.
const DIR: &str = "/run/kubelet-supervisor";

impl AsFd for NotifySocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What a kubelet says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// READY=1
    Ready,
    /// WATCHDOG=1
    Ping,
}

/// So many datagrams of others are read without a pause.
pub const BURST: u32 = 64;

/// A socket with a path in `dir`, which is made if need be.
fn in_directory(dir: &Path) -> io::Result<(String, OwnedFd)> {
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    ownership::check(&dir.join("notify")).map_err(io::Error::other)?;
    let meta = std::fs::symlink_metadata(dir)?;
    if !meta.is_dir() || meta.mode() & 0o077 != 0 {
        return Err(io::Error::other(format!("its mode is {:04o}, and must be 0700", meta.mode() & 0o7777)));
    }
    remove_abandoned(dir)?;
    let own = std::process::id();
    // Another process id namespace may share the directory. A name is never used again: whoever found it abandoned a moment ago
    // removes it a moment later.
    for _ in 0..16 {
        let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        let name = dir.join(format!("notify.{own}.{now:x}"));
        match StdDatagram::bind(&name) {
            Ok(socket) => return Ok((name.display().to_string(), socket.into())),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// Removes what supervisors that are gone left: nobody has bound it any more.
fn remove_abandoned(dir: &Path) -> io::Result<()> {
    let probe = StdDatagram::unbound()?;
    for entry in std::fs::read_dir(dir)?.filter_map(Result::ok) {
        let is_ours = entry.file_name().to_string_lossy().starts_with("notify.");
        let refused =
            || probe.connect(entry.path()).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        if is_ours && refused() {
            let _ = std::fs::remove_file(entry.path()); // another supervisor may have been faster
        }
    }
    Ok(())
}

/// An abstract socket whose name the kernel chooses among those that are free: `@` and five hexadecimal digits, as
/// systemd's `sd_notify` and Go's `net.Dial("unixgram")` take it.
fn autobind() -> io::Result<(String, OwnedFd)> {
    let socket = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    bind(socket.as_raw_fd(), &UnixAddr::new_unnamed())?;
    let address: UnixAddr = getsockname(socket.as_raw_fd())?;
    let name = address.as_abstract().and_then(|name| std::str::from_utf8(name).ok());
    let name = name.ok_or_else(|| io::Error::other("the kernel gave no name"))?;
    Ok((format!("@{name}"), socket))
}

fn parse(line: &str) -> Option<Message> {
    match line {
        "READY=1" => Some(Message::Ready),
        "WATCHDOG=1" => Some(Message::Ping),
        _ => None,
    }
}

/// The child itself, or a process of its group (a wrapper script may start the kubelet), of our own user: the process id of a
/// stranger that has ended may be one of the kubelet's by now.
fn is_kubelet(sender: Option<UnixCredentials>, kubelet: Option<i32>, is_reaped: bool) -> bool {
    let (Some(sender), Some(pid)) = (sender, kubelet) else { return false };
    let is_member = match sender.pid() {
        // The kernel knows no id of one that was reaped since it sent this (`scm_recv`, include/net/scm.h, Linux 6.1).
        0 => is_reaped,
        sender => {
            let group = nix::unistd::getpgid(Some(nix::unistd::Pid::from_raw(sender)));
            sender == pid || group.is_ok_and(|group| group.as_raw() == pid)
        }
    };
    is_member && sender.uid() == nix::unistd::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::SocketAddr;

    use nix::sys::socket::{ControlMessage, sendmsg};

    use super::*;

    fn address(socket: &NotifySocket) -> SocketAddr {
        match socket.name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name).unwrap(),
            None => SocketAddr::from_pathname(&socket.name).unwrap(),
        }
    }

    /// Neither to be made nor to be written to.
    fn unusable() -> &'static Path {
        Path::new("/proc/kubelet-supervisor")
    }

    #[test]
    fn each_has_a_name_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own");
        for place in [own.as_path(), unusable()] {
            let sockets: Vec<NotifySocket> = (0..3).map(|_| NotifySocket::bind_in(place).unwrap()).collect();
            assert!(sockets[0].name != sockets[1].name && sockets[1].name != sockets[2].name);
            let abstract_ones = sockets.iter().filter(|socket| socket.name.starts_with('@')).count();
            assert_eq!(abstract_ones, if place == own { 0 } else { 3 }, "{:?}", sockets[0].name);
        }
    }

    #[test]
    fn what_is_abandoned_goes_and_what_is_used_stays() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own");
        let used = NotifySocket::bind_in(&own).unwrap();
        drop(NotifySocket::bind_in(&own).unwrap());
        std::fs::write(own.join("something else"), "").unwrap();
        let next = NotifySocket::bind_in(&own).unwrap();
        let mut names: Vec<_> =
            std::fs::read_dir(&own).unwrap().map(|entry| entry.unwrap().path().display().to_string()).collect();
        names.sort();
        let mut expected = vec![used.name.clone(), next.name.clone(), own.join("something else").display().to_string()];
        expected.sort();
        assert_eq!(names, expected);
    }

    /// Another supervisor may be about to remove the former one.
    #[test]
    fn no_name_is_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own");
        let names: std::collections::BTreeSet<String> =
            (0..10).map(|_| NotifySocket::bind_in(&own).unwrap().name).collect();
        assert_eq!(names.len(), 10);
    }

    #[test]
    fn a_directory_that_others_can_enter_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own");
        drop(NotifySocket::bind_in(&own).unwrap());
        for mode in [0o711, 0o777, 0o1777] {
            std::fs::set_permissions(&own, std::fs::Permissions::from_mode(mode)).unwrap();
            assert!(NotifySocket::bind_in(&own).unwrap().name.starts_with('@'), "{mode:o}");
        }
        std::fs::remove_dir_all(&own).unwrap();
        std::os::unix::fs::symlink("/", &own).unwrap();
        assert!(NotifySocket::bind_in(&own).unwrap().name.starts_with('@'), "a link");
    }

    #[test]
    fn only_the_kubelet_is_heard() {
        let dir = tempfile::tempdir().unwrap();
        for place in [dir.path().join("own").as_path(), unusable()] {
            let socket = NotifySocket::bind_in(place).unwrap();
            let address = address(&socket);
            let sender = StdDatagram::unbound().unwrap();
            let send = |text: &str| sender.send_to_addr(text.as_bytes(), &address).unwrap();
            let me = i32::try_from(std::process::id()).ok();
            send("READY=1\nSTATUS=not yet a kubelet");
            assert_eq!(socket.hear(None, false, BURST).unwrap(), (Vec::new(), 1), "a stranger was heard");
            send("STATUS=x\nWATCHDOG=1");
            assert_eq!(socket.hear(Some(1), false, BURST).unwrap().0, [], "it is another process");
            send("STATUS=x\nWATCHDOG=1");
            assert_eq!(socket.hear(me, false, BURST).unwrap().0, [Message::Ping]);
            // Control data beyond what there is room for ends nothing.
            let target = match address.as_abstract_name() {
                Some(name) => UnixAddr::new_abstract(name).unwrap(),
                None => UnixAddr::new(address.as_pathname().unwrap()).unwrap(),
            };
            let descriptors = [sender.as_raw_fd(); 8];
            let parts = [io::IoSlice::new(b"READY=1")];
            let rights = [ControlMessage::ScmRights(&descriptors)];
            sendmsg(sender.as_raw_fd(), &parts, &rights, MsgFlags::empty(), Some(&target)).unwrap();
            send("READY=1\nWATCHDOG=1");
            assert_eq!(socket.hear(me, false, BURST).unwrap(), (vec![Message::Ready, Message::Ping], 1));
        }
    }
}
