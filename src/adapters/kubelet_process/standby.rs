//! A standby: a kubelet that has loaded and validated its configuration and waits for its lock file, `--lock-file`.
//!
//! It reads nothing, opens no listener and touches nothing of the node before it has the lock (v1.20 and v1.36,
//! cmd/kubelet/app/server.go). It is the monitor's child, which has the lock. That a binary does wait is tested once, here.

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::process::Child;

use super::{MonitorLink, args_of, output};
use crate::adapters::fsx::FileId;
use crate::adapters::process::{Confinement, Group, exit_of, judge_command, reap, spawn};
use crate::machine::model::Rendered;
use crate::monitor::wire::{self, Phase, Request, Status};
use crate::os::standby_lock::{self, StandbyLock};
use crate::os::stderr_relay;
use kubelet_config::flags::KubeletArgs;

/// A standby gets so long to wait for its lock: it takes 0.05 s, and half a second where it makes its certificates.
const PARK_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of memory that must be available: what a waiting kubelet takes (65 MB, v1.20 and v1.36), as much again for what it
/// takes up while the one before leaves, and the 100 MiB at which the default eviction threshold ends pods.
const MEMORY: u64 = 256 << 20;

/// The standby, if there is one; shared by who has it judge and who starts it.
#[derive(Clone, Debug)]
pub struct StandbyKubelet {
    link: MonitorLink,
    program: PathBuf,
    args: KubeletArgs,
    slot: Arc<Mutex<Slot>>,
}

#[derive(Debug, Default)]
struct Slot {
    /// The question whose standby is kept.
    expected: Option<u64>,
    /// What it is for, and of which binary.
    standby: Option<(Vec<String>, Option<FileId>)>,
}

impl StandbyKubelet {
    /// There is none yet.
    #[must_use]
    pub fn new(link: MonitorLink, program: PathBuf, args: KubeletArgs) -> Self {
        Self { link, program, args, slot: Arc::default() }
    }

    /// A standby is to be kept for this question; an earlier one is ended.
    pub(crate) fn expect(&self, ticket: u64) {
        *self.slot.lock() = Slot { expected: Some(ticket), standby: None };
        self.link.send(&Request::Unpark);
    }

    /// Ends the standby, and the one that is on its way.
    pub(crate) fn discard(&self) {
        *self.slot.lock() = Slot::default();
        self.link.send(&Request::Unpark);
    }

    /// Starts a standby with this configuration. Gives what it printed once it waits.
    ///
    /// # Errors
    /// Why there is none: nothing of it is left then.
    pub(crate) async fn park(&self, ticket: u64, config: &Rendered) -> Result<String, String> {
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        if !is_enough(&meminfo) {
            return Err(format!("less than {} MiB of memory are available", MEMORY >> 20));
        }
        let (args, binary) = (args_of(&self.args, Some(config)), FileId::of(&self.program));
        let found = tokio::time::timeout(PARK_TIMEOUT, self.wait(args.clone())).await;
        let late = || Err(format!("it does not wait for its lock within {} s", PARK_TIMEOUT.as_secs()));
        let found = found.unwrap_or_else(|_| late()).and_then(|standby| {
            let text = output(standby.output).as_ref().map(stderr_relay::read);
            text.and_then(Result::ok).ok_or_else(|| "what it says cannot be read".to_owned())
        });
        match found {
            Ok(text) => {
                let mut slot = self.slot.lock();
                if slot.expected == Some(ticket) {
                    slot.standby = Some((args, binary));
                }
                Ok(String::from_utf8_lossy(&text).into_owned())
            }
            Err(why) => {
                self.link.send(&Request::Unpark);
                Err(why)
            }
        }
    }

    /// Has the monitor start one, and waits until it waits.
    async fn wait(&self, args: Vec<String>) -> Result<wire::Child, String> {
        let ticket = self.link.ticket();
        let gone = |error: io::Error| error.to_string();
        self.link.until(|status| status.standby.is_none()).await.map_err(gone)?; // the one before may be about to end
        self.link.send(&Request::Park { ticket, args });
        let is_mine = |standby: &wire::Child| standby.ticket == Some(ticket);
        let waits = |standby: &wire::Child| is_mine(standby) && standby.phase == Phase::Lives;
        let refused = |status: &Status| status.refused.as_ref().is_some_and(|(of, _)| *of == ticket);
        let mut begun = false;
        let status = self.link.until(|status| {
            begun |= status.standby.as_ref().is_some_and(is_mine);
            refused(status) || status.standby.as_ref().map_or(begun, waits)
        });
        let status = status.await.map_err(gone)?;
        let why = status.refused.filter(|(of, _)| *of == ticket).map_or_else(|| "it ended".to_owned(), |(_, why)| why);
        status.standby.filter(waits).ok_or(why)
    }

    /// A kubelet with these arguments is about to be started: the standby stays if it is for them, and of this very binary.
    pub(super) fn leave(&self, args: &[String]) {
        let standby = std::mem::take(&mut *self.slot.lock()).standby;
        let fits = |(of, binary): &(Vec<String>, Option<FileId>)| {
            of == args && binary.is_some() && *binary == FileId::of(&self.program)
        };
        if standby.as_ref().is_some_and(|standby| !fits(standby)) {
            tracing::info!("the standby kubelet is not the one to be started: it is ended");
            self.link.send(&Request::Unpark);
        }
    }
}

/// Finds out whether this binary waits for its lock; or what it does instead.
///
/// # Errors
/// If it cannot be started in these bounds.
pub(crate) async fn test_parking(
    program: &Path,
    args: &[String],
    confinement: Confinement,
) -> io::Result<Result<(), String>> {
    let lock = StandbyLock::take()?;
    let mut command = judge_command(program, args);
    command.stdin(lock.as_fd().try_clone_to_owned()?).stdout(Stdio::null()).stderr(Stdio::null());
    command.process_group(0);
    let mut child = spawn(command, confinement)?;
    let mut group = Group::of(&child);
    let result = wait_until_awaited(&mut child, &mut group, &lock).await;
    drop(group);
    reap(child).await;
    Ok(result)
}

async fn wait_until_awaited(child: &mut Child, group: &mut Group, lock: &StandbyLock) -> Result<(), String> {
    let begun = Instant::now();
    while !lock.is_awaited() {
        if begun.elapsed() > PARK_TIMEOUT {
            return Err(format!("it does not wait for its lock within {} s", PARK_TIMEOUT.as_secs()));
        }
        if let Ok(status) = tokio::time::timeout(standby_lock::POLL, child.wait()).await {
            group.0 = None;
            return Err(format!("it ended: {}", exit_of(&status)));
        }
    }
    Ok(())
}

/// `/proc/meminfo`; kernels before 3.14 do not say what is available.
fn is_enough(meminfo: &str) -> bool {
    let value = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = value.and_then(|value| value.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.is_some_and(|kib| kib.saturating_mul(1024) >= MEMORY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_known_to_be_there_is_not() {
        assert!(is_enough("MemTotal:  8000000 kB\nMemAvailable:     262144 kB\n"));
        assert!(!is_enough("MemTotal:  8000000 kB\nMemAvailable:     262143 kB\n"));
        assert!(!is_enough("MemTotal:  8000000 kB\nMemFree: 8000000 kB\n"));
    }
}
