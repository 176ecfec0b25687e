//! Processes: the kubelet, and short runs of its binary. The only place that spawns, and the only
//! one that may say `unsafe`.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getppid};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};

pub use self::child::ChildPid;
pub(crate) use self::child::{Group, exit_of};
use crate::machine::model::Exit;

use kubelet_config::flags::{ConfigDir, KubeletArgs};

mod child;

/// Output kept of a short run: the fatal line of v1.20 is followed by a few hundred lines of
/// goroutines, and preceded by the whole candidate (at most 1 MiB).
const OUTPUT_LIMIT: usize = 1 << 20;

/// What a child may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confinement {
    /// The kubelet, whose pods inherit all of it: whatever we may.
    Kubelet,
    /// What others wrote and the node's administrator named.
    Helper,
    /// The kubelet's binary when it only judges. Processor seconds, all its threads together; without isolation it has
    /// these alone.
    Preflight { cpu_seconds: u64, isolated: bool },
}

impl Confinement {
    /// Between fork and exec: system calls only.
    fn apply(self) -> io::Result<()> {
        if self != Self::Kubelet {
            let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0); // its memory holds credentials
        }
        let Self::Preflight { cpu_seconds, isolated } = self else { return Ok(()) };
        let _ = setrlimit(Resource::RLIMIT_CPU, cpu_seconds, cpu_seconds);
        if !isolated {
            return Ok(());
        }
        nix::sys::prctl::set_no_new_privs()?;
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)?;
        // Nothing that is mounted there comes out. What the node unmounts goes there, too: a judge keeps no volume busy.
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)?;
        drop_capabilities()
    }
}

/// Leaves the capability to read files whoever owns them, and no other. A configuration may name a CA that is another user's
/// alone: a judge that cannot read it refuses what the kubelet takes.
fn drop_capabilities() -> io::Result<()> {
    const READ_SEARCH: libc::c_ulong = 2; // CAP_DAC_READ_SEARCH
    const RAISE: libc::c_ulong = 2; // PR_CAP_AMBIENT_RAISE
    const NONE: libc::c_ulong = 0;
    const VERSION_3: u32 = 0x2008_0522;
    const KEPT: u32 = 1 << READ_SEARCH;
    let told = |result: libc::c_long| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    let (header, sets) = ([VERSION_3, 0], [KEPT, KEPT, KEPT, 0, 0, 0]);
    // With this root's programs have what is ambient, and not everything.
    let bits = (libc::SECBIT_NOROOT | libc::SECBIT_NOROOT_LOCKED).unsigned_abs();
    // SAFETY: the kernel reads a header of two words and twice three words of sets, which are there, and writes nothing.
    unsafe {
        told(libc::prctl(libc::PR_SET_SECUREBITS, libc::c_ulong::from(bits)).into())?;
        told(libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()))?;
        told(libc::prctl(libc::PR_CAP_AMBIENT, RAISE, READ_SEARCH, NONE, NONE).into())
    }
}

/// Starts a child that does not outlive us.
///
/// # Errors
/// If it cannot be started so confined.
pub(crate) fn spawn(mut command: Command, confinement: Confinement) -> io::Result<Child> {
    let parent = nix::unistd::getpid();
    let hook = move || {
        set_parent_death_signal(parent)?;
        confinement.apply()
    };
    // SAFETY: the hook runs between fork and exec and makes async-signal-safe system calls; it allocates nothing and
    // takes no lock.
    unsafe { command.pre_exec(hook) };
    command.spawn()
}

/// Takes the child along when the supervisor dies, even by SIGKILL.
///
/// SIGKILL, not SIGTERM: a kubelet that hangs must not be there when the next supervisor starts
/// another. It loses nothing by it: on SIGTERM it would exit at once without draining. The signal
/// is tied to the spawning thread, so children are spawned from the main thread only.
fn set_parent_death_signal(parent: Pid) -> io::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    // The parent may have died before the line above took effect.
    if getppid() == parent { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
}

/// What this process was started with beside the standard streams is none of its children's; nor is its memory, in
/// which there are keys, a core dump's. For the beginning of `main` only.
pub(crate) fn harden_this_process() {
    for fd in std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let fd: Option<RawFd> = fd.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(fd) = fd.filter(|fd| *fd > 2) {
            // SAFETY: it is open: nobody else runs who could close it, and the directory is still being read.
            let _ = fcntl(unsafe { BorrowedFd::borrow_raw(fd) }, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
        }
    }
    let _ = nix::sys::prctl::set_dumpable(false); // of this process alone: an exec sets it again
}

/// One arena of glibc's for all threads, which are few and allocate little: what each left unused in one of its own was 0.2 of
/// 1.7 MB. For the beginning of `main` only.
pub(crate) fn share_one_arena() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets a number of the allocator; nobody else runs.
    let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// For threads beside the main one: signals come to that, and interrupt no write.
pub(crate) fn block_all_signals() {
    let _ = SigSet::all().thread_block();
}

/// Becomes the kubelet: the last resort of a supervisor that cannot even begin. It has our pid, so
/// systemd goes on as if there had never been a supervisor. Comes back with an error only.
#[must_use]
pub(crate) fn exec_kubelet(program: &Path, args: &KubeletArgs) -> io::Error {
    use std::os::unix::process::CommandExt as _;
    std::process::Command::new(program).args(args.for_run(None, &ConfigDir::Unit)).exec()
}

/// How a program ended, and what it printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramOutput {
    /// How it ended; `None` if it was killed because it took too long.
    pub exit: Option<Exit>,
    /// stdout and stderr together, any bytes.
    pub output: Vec<u8>,
}

/// Runs a program to its end with a minimal environment and collects what it prints.
///
/// # Errors
/// If it cannot be started.
pub(crate) async fn run_to_end(
    program: &Path,
    args: &[String],
    limit: Duration,
    confinement: Confinement,
) -> io::Result<ProgramOutput> {
    collect(judge_command(program, args), limit, confinement).await
}

/// A program that is not started yet.
pub(crate) fn command_of(program: &Path) -> Command {
    Command::new(program)
}

/// A run of the kubelet's binary that only judges: with a minimal environment, and nothing to read.
pub(crate) fn judge_command(program: &Path, args: &[String]) -> Command {
    let mut command = Command::new(program);
    command
        .args(args)
        .stdin(Stdio::null())
        .env_clear()
        // Nothing may be executed: v1.20 would start a transient systemd scope.
        .env("PATH", "/nonexistent")
        .env("HOME", "/");
    if let Some(value) = std::env::var_os("KUBELET_CONFIG_DROPIN_DIR_ALPHA") {
        command.env("KUBELET_CONFIG_DROPIN_DIR_ALPHA", value); // v1.28 and v1.29 want it for --config-dir
    }
    command
}

async fn collect(mut command: Command, limit: Duration, confinement: Confinement) -> io::Result<ProgramOutput> {
    let (reader, writer) = io::pipe()?;
    command.stdout(writer.try_clone()?).stderr(writer).process_group(0).kill_on_drop(true);
    let mut child = spawn(command, confinement)?;
    let mut group = Group::of(&child);
    let mut output = tokio::net::unix::pipe::Receiver::from_owned_fd(reader.into())?;
    let mut kept = Vec::new();
    let work = async {
        let mut chunk = vec![0_u8; 16 << 10];
        loop {
            match output.read(&mut chunk).await {
                Ok(0) | Err(_) => break,
                Ok(count) => {
                    kept.extend_from_slice(chunk.get(..count).unwrap_or_default());
                    if kept.len() > 2 * OUTPUT_LIMIT {
                        kept.drain(..kept.len() - OUTPUT_LIMIT);
                    }
                }
            }
        }
        exit_of(&child.wait().await)
    };
    let exit = tokio::time::timeout(limit, work).await.ok();
    if exit.is_some() {
        group.0 = None;
    } else {
        drop(group);
        reap(child).await;
    }
    Ok(ProgramOutput { exit, output: kept })
}

/// Waits for a child that was killed. One that the kernel holds, as on a disk that does not answer, is reaped by tokio later.
pub(crate) async fn reap(mut child: Child) {
    let _ = tokio::time::timeout(Duration::from_secs(1), child.wait()).await;
}

/// What a helper program printed.
#[derive(Clone, Debug, Default)]
pub struct HelperOutput {
    /// How it ended; `None`: it was ended after its time.
    pub exit: Option<Exit>,
    /// Its standard output, which may hold secrets.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
}

/// Runs a program that others wrote, such as a credential plugin, with our environment and `env`, nothing to read, and
/// an end: after `limit` it is killed, with all that it started.
///
/// # Errors
/// If it cannot be started.
pub(crate) async fn run_helper(
    program: &Path,
    args: &[String],
    env: &[(String, String)],
    limit: Duration,
) -> io::Result<HelperOutput> {
    let mut command = Command::new(program);
    command.args(args).envs(env.iter().map(|(name, value)| (name, value)));
    for ours in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"] {
        command.env_remove(ours);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
    let mut child = spawn(command, Confinement::Helper)?;
    let mut group = Group::of(&child);
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let work = async { tokio::join!(read_bounded(stdout), read_bounded(stderr), child.wait()) };
    if let Ok((stdout, stderr, status)) = tokio::time::timeout(limit, work).await {
        group.0 = None;
        return Ok(HelperOutput { exit: Some(exit_of(&status)), stdout, stderr });
    }
    drop(group);
    reap(child).await;
    Ok(HelperOutput::default())
}

/// All that comes, as much as is kept.
async fn read_bounded(output: Option<impl tokio::io::AsyncRead + Unpin>) -> Vec<u8> {
    let mut kept = Vec::new();
    let Some(mut output) = output else { return kept };
    let mut chunk = vec![0_u8; 16 << 10];
    while let Ok(count @ 1..) = output.read(&mut chunk).await {
        let room = OUTPUT_LIMIT.saturating_sub(kept.len());
        kept.extend_from_slice(chunk.get(..count.min(room)).unwrap_or_default());
    }
    kept
}
