//! The kubelet's NOTIFY_SOCKET: where its READY=1 and WATCHDOG=1 arrive.
//!
//! An abstract socket: no file to create on a full disk, none to clean up. Anyone in the network
//! namespace could write to it, so the kernel's credentials of each datagram are checked.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram as StdDatagram};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt::PassCred};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::sync::mpsc::UnboundedSender;

use super::process::ChildPid;
use crate::machine::Input;

/// A bound socket.
#[derive(Debug)]
pub struct NotifySocket {
    socket: UnixDatagram,
    /// The value for the child's NOTIFY_SOCKET.
    pub name: String,
}

impl NotifySocket {
    /// Binds a socket of our own.
    ///
    /// # Errors
    /// As the system gives them.
    pub fn bind() -> io::Result<Self> {
        let (name, socket) = Self::bind_free()?;
        setsockopt(&socket, PassCred, &true)?;
        Self::adopt(socket.into(), format!("@{name}"))
    }

    /// Goes on with another supervisor's, with what waits in it.
    ///
    /// # Errors
    /// As the system gives them.
    pub(crate) fn adopt(socket: OwnedFd, name: String) -> io::Result<Self> {
        let socket = StdDatagram::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self { socket: UnixDatagram::from_std(socket)?, name })
    }

    /// The same socket once more, to hand it over.
    ///
    /// # Errors
    /// As the system gives them.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.socket.as_fd().try_clone_to_owned()
    }

    /// Any process in the network namespace may take a name, by chance or on purpose: that must not
    /// keep a kubelet down.
    fn bind_free() -> io::Result<(String, StdDatagram)> {
        let own = format!("kubelet-supervisor/{}", std::process::id());
        let others = (1..16).map(|n| format!("{own}.{n}"));
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        for name in std::iter::once(own.clone()).chain(others) {
            match SocketAddr::from_abstract_name(&name).and_then(|address| StdDatagram::bind_addr(&address)) {
                Ok(socket) => return Ok((name, socket)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Forwards each READY=1 and WATCHDOG=1 of the kubelet, for ever.
    pub async fn listen(self, child: ChildPid, inputs: UnboundedSender<Input>) {
        loop {
            match self.socket.async_io(Interest::READABLE, || self.receive()).await {
                Ok((text, sender)) => {
                    let parsed: Vec<Input> = text.lines().filter_map(parse).collect();
                    if parsed.is_empty() || !is_kubelet(sender, &child) {
                        continue;
                    }
                    for input in parsed {
                        if inputs.send(input).is_err() {
                            return;
                        }
                    }
                }
                // An odd datagram of a stranger must not end this: it costs a line in the journal.
                Err(error) => {
                    tracing::warn!("the notify socket: {error}");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn receive(&self) -> io::Result<(String, Option<i32>)> {
        let mut buffer = [0_u8; 4096];
        let mut control = nix::cmsg_space!(nix::sys::socket::UnixCredentials);
        let mut parts = [io::IoSliceMut::new(&mut buffer)];
        let message = recvmsg::<()>(self.socket.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::MSG_DONTWAIT)?;
        // More control data than there is room for, such as descriptors, is not a kubelet's: no sender.
        let sender = message.cmsgs().ok().and_then(|mut parts| {
            parts.find_map(|part| match part {
                ControlMessageOwned::ScmCredentials(credentials) => Some(credentials.pid()),
                _ => None,
            })
        });
        let bytes = message.bytes;
        Ok((String::from_utf8_lossy(buffer.get(..bytes).unwrap_or_default()).into_owned(), sender))
    }
}

/// After a failure, lest a socket that is broken for good keeps the only thread busy.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

fn parse(line: &str) -> Option<Input> {
    match line {
        "READY=1" => Some(Input::Ready),
        "WATCHDOG=1" => Some(Input::Watchdog),
        _ => None,
    }
}

/// The child itself, or a process of its group (a wrapper script may start the kubelet).
fn is_kubelet(sender: Option<i32>, child: &ChildPid) -> bool {
    let (Some(sender), Some(child)) = (sender, child.get()) else { return false };
    let group = nix::unistd::getpgid(Some(nix::unistd::Pid::from_raw(sender)));
    sender == child || group.is_ok_and(|group| group.as_raw() == child)
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::{ControlMessage, UnixAddr, sendmsg};

    use super::*;

    #[tokio::test]
    async fn a_name_that_is_taken_stops_nobody() {
        let names: Vec<NotifySocket> = (0..3).map(|_| NotifySocket::bind().unwrap()).collect();
        assert!(names[0].name != names[1].name && names[1].name != names[2].name);
    }

    #[tokio::test]
    async fn only_the_kubelet_is_heard() {
        let socket = NotifySocket::bind().unwrap();
        let address = SocketAddr::from_abstract_name(socket.name.trim_start_matches('@')).unwrap();
        let sender = StdDatagram::unbound().unwrap();
        let send = |text: &str| sender.send_to_addr(text.as_bytes(), &address).unwrap();
        let (inputs, mut queue) = tokio::sync::mpsc::unbounded_channel();
        let child = ChildPid::default();
        tokio::spawn(socket.listen(child.clone(), inputs));
        send("READY=1\nSTATUS=not yet a kubelet");
        tokio::task::yield_now().await;
        // We are the kubelet from here on; what was sent before may be read only now.
        assert!(queue.try_recv().is_err(), "a stranger was heard");
        child.set(i32::try_from(std::process::id()).unwrap());
        send("STATUS=x\nWATCHDOG=1");
        let mut heard = queue.recv().await;
        if heard == Some(Input::Ready) {
            heard = queue.recv().await;
        }
        assert_eq!(heard, Some(Input::Watchdog));
        // Control data beyond what there is room for ends nothing.
        let target = UnixAddr::new_abstract(address.as_abstract_name().unwrap()).unwrap();
        let descriptors = [sender.as_raw_fd(); 8];
        let parts = [io::IoSlice::new(b"READY=1")];
        let rights = [ControlMessage::ScmRights(&descriptors)];
        sendmsg(sender.as_raw_fd(), &parts, &rights, MsgFlags::empty(), Some(&target)).unwrap();
        send("READY=1\nWATCHDOG=1");
        assert_eq!((queue.recv().await, queue.recv().await), (Some(Input::Ready), Some(Input::Watchdog)));
    }
}
