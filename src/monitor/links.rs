//! The sockets to the workers: messages in, the state out.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};

use serde::Serialize;

use super::state::{Event, Monitor};
use super::wire::{MESSAGE_MAX, Request, Status};

/// Read at once of one worker: the others have their turn, too.
const BURST: u32 = 64;
/// A worker that says more in a second than this is out of its mind. One says some ten.
const FLOOD: u32 = 1000;
/// Cleared so often.
const WINDOW: Duration = Duration::from_secs(1);

/// The socket to one worker.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) generation: u64,
    socket: OwnedFd,
    /// What it was told last.
    told: Option<Status>,
    /// What is waited for: also that it takes something, if it was full; nothing, once it is closed.
    pub(super) wants: PollFlags,
    /// Messages since.
    said: (u32, Duration),
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Link {
    /// With the end that the worker inherits.
    pub(super) fn new(generation: u64, now: Duration) -> io::Result<(Self, OwnedFd)> {
        let (socket, theirs) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        )?;
        let said = (0, now);
        Ok((Self { generation, socket, told: None, wants: PollFlags::POLLIN, said }, theirs))
    }

    /// Tells the worker the state, if it is another than it was told.
    pub(super) fn tell(&mut self, monitor: &Monitor) {
        let status = monitor.status(self.generation);
        if status.is_none() || status == self.told || self.wants.is_empty() {
            return;
        }
        if say(&self.socket, &status) == Err(Errno::EAGAIN) {
            self.wants.insert(PollFlags::POLLOUT);
        } else {
            (self.told, self.wants) = (status, PollFlags::POLLIN); // one that cannot be told is about to end
        }
    }

    /// What the worker said.
    pub(super) fn hear(&mut self, now: Duration) -> Vec<Event> {
        let mut events = Vec::new();
        for _ in 0..BURST {
            match receive(&self.socket) {
                Err(Errno::EAGAIN | Errno::EINTR) => break,
                Ok(Some(message)) if !self.wants.is_empty() => events.push(match self.parse(&message, now) {
                    Ok(request) => Event::Said(self.generation, request),
                    Err(why) => {
                        self.wants = PollFlags::empty();
                        Event::Broken(self.generation, why)
                    }
                }),
                _ => {
                    self.wants = PollFlags::empty();
                    break;
                }
            }
        }
        events
    }

    fn parse(&mut self, message: &Result<Vec<u8>, usize>, now: Duration) -> Result<Request, String> {
        let (said, since) = &mut self.said;
        if now.saturating_sub(*since) > WINDOW {
            (*said, *since) = (0, now);
        }
        *said += 1;
        if *said > FLOOD {
            return Err(format!("more than {FLOOD} messages in a second"));
        }
        let too_long = |length| format!("a message of {length} bytes, and {MESSAGE_MAX} are allowed");
        let message = message.as_ref().map_err(too_long)?;
        serde_json::from_slice(message).map_err(|error| format!("a message that is none: {error}"))
    }
}

/// Sends a message, if the other side takes it now.
///
/// # Errors
/// As the system gives them: EAGAIN if it takes nothing.
pub(crate) fn say(socket: &impl AsFd, message: &impl Serialize) -> Result<(), Errno> {
    let bytes = serde_json::to_vec(message).map_err(|_| Errno::EINVAL)?; // no message of ours has what JSON has not
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    send(socket.as_fd().as_raw_fd(), &bytes, flags).map(drop)
}

/// The next message, or its length if it is longer than any may be; `None` at the end. Nothing is kept for the longest one.
///
/// # Errors
/// EAGAIN if there is none.
pub(crate) fn receive(socket: &impl AsFd) -> Result<Option<Result<Vec<u8>, usize>>, Errno> {
    let (fd, now) = (socket.as_fd().as_raw_fd(), MsgFlags::MSG_DONTWAIT);
    let length = recv(fd, &mut [], now | MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC)?;
    let mut message = vec![0; length.min(MESSAGE_MAX)];
    recv(fd, &mut message, now)?;
    Ok((length > 0).then_some(if length > MESSAGE_MAX { Err(length) } else { Ok(message) }))
}
