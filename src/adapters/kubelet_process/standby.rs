//! A standby: a kubelet that has loaded and validated its configuration and waits for its lock file, `--lock-file`.
//!
//! It reads nothing, opens no listener and touches nothing of the node before it has the lock (v1.20 and v1.36,
//! cmd/kubelet/app/server.go). The lock is on a file in memory that nobody else has, and the standby's standard input is the
//! very open file that holds it. So it does not fall when the supervisor dies: the standby holds it against itself. It falls
//! only if the supervisor says so, which it does once the kubelet before has ended.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{major, minor};
use tokio::process::Child;
use tokio::sync::oneshot;

use super::run_command::{RunCommand, StartedKubelet};
use crate::adapters::fsx::FileId;
use crate::adapters::process::{Confinement, Group, exit_of, judge_command, reap, spawn};
use crate::adapters::stderr_relay::{HeldOutput, StderrRelay};
use crate::machine::model::Rendered;
use kubelet_config::flags::KubeletArgs;

/// The kernel tells nobody when a lock comes to be waited for; its list is read as often as this.
const POLL: Duration = Duration::from_millis(4);

/// A standby gets so long to wait for its lock: it takes 0.05 s, and half a second where it makes its certificates.
const PARK_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of memory that must be available: what a waiting kubelet takes (65 MB, v1.20 and v1.36), as much again for what it
/// takes up while the one before leaves, and the 100 MiB at which the default eviction threshold ends pods.
const MEMORY: u64 = 256 << 20;

/// The standby, if there is one; shared by who has it judge and who starts it.
#[derive(Clone, Debug)]
pub struct StandbyKubelet {
    run: RunCommand,
    slot: Arc<Mutex<Slot>>,
}

#[derive(Debug, Default)]
struct Slot {
    /// The question whose standby is kept.
    expected: Option<u64>,
    standby: Option<Standby>,
}

#[derive(Debug)]
struct Standby {
    child: Child,
    /// Killed with it, unless it is started.
    group: Group,
    lock: StandbyLock,
    /// Of the run that it is for.
    args: Vec<String>,
    binary: Option<FileId>,
    relay: StderrRelay,
    last_lines: oneshot::Receiver<()>,
    output: HeldOutput,
}

impl StandbyKubelet {
    /// There is none yet.
    #[must_use]
    pub fn new(run: RunCommand) -> Self {
        Self { run, slot: Arc::default() }
    }

    /// A standby is to be kept for this question; an earlier one is ended.
    pub(crate) fn expect(&self, ticket: u64) {
        *self.slot() = Slot { expected: Some(ticket), standby: None };
    }

    /// Ends the standby, and the one that is on its way as soon as it waits.
    pub(crate) fn discard(&self) {
        *self.slot() = Slot::default();
    }

    /// Starts a standby with this configuration. Gives what it printed once it waits; it is kept if it is still expected.
    ///
    /// # Errors
    /// Why there is none: nothing of it is left then.
    pub(crate) async fn park(&self, ticket: u64, config: &Rendered) -> Result<String, String> {
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        if !is_enough(&meminfo) {
            return Err(format!("less than {} MiB of memory are available", MEMORY >> 20));
        }
        let mut standby = Standby::start(&self.run, config).map_err(|error| error.to_string())?;
        standby.wait().await?;
        let text = standby.output.text();
        let mut slot = self.slot();
        if slot.expected == Some(ticket) {
            slot.standby = Some(standby);
        }
        Ok(text)
    }

    /// Lets the standby go on as the kubelet with these arguments, if it is for them, of this very binary, and still waits;
    /// otherwise it is ended.
    pub(super) fn promote(&self, args: &[String]) -> Option<StartedKubelet> {
        let standby = std::mem::take(&mut *self.slot()).standby?;
        let fits = standby.args == args && standby.binary.is_some() && standby.binary == FileId::of(&self.run.program);
        if !fits || !standby.lock.is_awaited() {
            tracing::info!("the standby kubelet is not the one to be started: it is ended");
            return None;
        }
        standby.promote()
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Standby {
    fn start(run: &RunCommand, config: &Rendered) -> io::Result<Self> {
        let args = run.args(Some(config));
        let (binary, lock) = (FileId::of(&run.program), StandbyLock::take()?);
        let (relay, output) = StderrRelay::held()?;
        let mut command = run.command(&KubeletArgs::for_standby(&args));
        command.stdin(lock.0.try_clone()?).stderr(relay.writer);
        let child = spawn(command, Confinement::Kubelet)?;
        let group = Group::of(&child);
        Ok(Self { child, group, lock, args, binary, relay: relay.relay, last_lines: relay.ended, output })
    }

    /// Waits until it waits, and all that it printed is read.
    async fn wait(&mut self) -> Result<(), String> {
        wait_until_awaited(&mut self.child, &mut self.group, &self.lock).await?;
        let begun = Instant::now();
        while !self.relay.is_idle() && begun.elapsed() < PARK_TIMEOUT {
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    fn promote(mut self) -> Option<StartedKubelet> {
        // First: what is held is passed on with what comes next, and a kubelet may write nothing for long once it has gone on.
        self.output.release();
        self.lock.0.unlock().inspect_err(|error| tracing::warn!("the standby kubelet is ended: {error}")).ok()?;
        self.group.0 = None;
        Some(StartedKubelet { child: self.child, relay: Some((self.relay, self.last_lines)) })
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
    command.stdin(lock.0.try_clone()?).stdout(Stdio::null()).stderr(Stdio::null());
    command.process_group(0).kill_on_drop(true);
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
        if let Ok(status) = tokio::time::timeout(POLL, child.wait()).await {
            group.0 = None;
            return Err(format!("it ended: {}", exit_of(&status)));
        }
    }
    Ok(())
}

/// A locked file in memory. Closing it does not unlock it while a standby has it as its standard input.
#[derive(Debug)]
struct StandbyLock(File);

impl StandbyLock {
    fn take() -> io::Result<Self> {
        let file = File::from(memfd_create(c"standby-lock", MFdFlags::MFD_CLOEXEC)?);
        file.try_lock().map_err(io::Error::from)?;
        Ok(Self(file))
    }

    /// True if somebody waits for it, who can only be the standby.
    fn is_awaited(&self) -> bool {
        let Ok(meta) = self.0.metadata() else { return false };
        let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
        is_awaited(&locks, meta.dev(), meta.ino())
    }
}

/// Reads the kernel's list of locks (fs/locks.c, `lock_get_status`): who waits is listed below who holds, after an arrow.
fn is_awaited(locks: &str, device: u64, inode: u64) -> bool {
    let file = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    locks.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.get(1) == Some(&"->") && words.get(2) == Some(&"FLOCK") && words.get(6) == Some(&file.as_str())
    })
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
    fn who_waits_is_told_from_who_holds() {
        let locks = "1: FLOCK  ADVISORY  WRITE 1552 00:01:1046 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 9 fe:00:77 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 1603 fe:00:77 0 EOF\n\
                     3: POSIX  ADVISORY  READ 5 00:01:78 128 128\n\
                     3: -> POSIX  ADVISORY  WRITE 6 00:01:78 128 128\n";
        let device = |major, minor| nix::sys::stat::makedev(major, minor);
        assert!(is_awaited(locks, device(0xfe, 0), 77));
        assert!(!is_awaited(locks, device(0, 1), 1046), "it is held alone");
        assert!(!is_awaited(locks, device(0, 1), 77), "another device");
        assert!(!is_awaited(locks, device(0, 1), 78), "another kind of lock");
        assert!(!is_awaited("", device(0, 1), 1046));
    }

    #[test]
    fn memory_that_is_not_known_to_be_there_is_not() {
        assert!(is_enough("MemTotal:  8000000 kB\nMemAvailable:     262144 kB\n"));
        assert!(!is_enough("MemTotal:  8000000 kB\nMemAvailable:     262143 kB\n"));
        assert!(!is_enough("MemTotal:  8000000 kB\nMemFree: 8000000 kB\n"));
    }

    #[test]
    fn the_lock_outlives_its_owner_in_whoever_has_it_as_standard_input() {
        let lock = StandbyLock::take().unwrap();
        let standby = lock.0.try_clone().unwrap(); // as a child's is: the same open file
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&standby));
        let opened = File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        drop(lock);
        assert!(opened.try_lock().is_err(), "it is held still");
        standby.unlock().unwrap();
        opened.try_lock().unwrap();
    }
}
