//! Why a kubelet ended, by its log: a corpus of ends, and programs of Go that end in earnest.
#![cfg(test)]

mod corpus;
mod go;

use std::io::Write as _;
use std::os::fd::AsFd as _;

use kubelet_supervisor::kubelet_log::fatal;
use kubelet_supervisor::os::stderr_relay::{StderrRelay, read};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The reason by the whole log.
fn reason(log: &str) -> Option<String> {
    fatal(&log.lines().map(str::to_owned).collect::<Vec<_>>())
}

/// The reason by the last lines that the supervisor keeps.
fn reason_by_the_tail(log: &[u8]) -> Option<String> {
    let (relay, mut writer) = StderrRelay::start(false, |_: &[u8]| {}).unwrap();
    writer.write_all(log).unwrap();
    drop(writer);
    let mut ended = [PollFd::new(relay.ended.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut ended, PollTimeout::from(60_000_u16)).unwrap(), 1, "the relay does not end");
    reason(&String::from_utf8_lossy(&read(&relay.output).unwrap()))
}
