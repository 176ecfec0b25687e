//! Short runs of programs: the kubelet's binary as a judge, helpers. The only place that spawns.

use std::io::{self, PipeWriter};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::process::{Child, Command};

use crate::machine::model::Exit;
pub(crate) use crate::os::fork::Confinement;
use crate::os::fork::confined;

use kubelet_config::flags::{ConfigDir, KubeletArgs};

/// Output kept of a short run: the fatal line of v1.20 is followed by a few hundred lines of
/// goroutines, and preceded by the whole candidate (at most 1 MiB).
const OUTPUT_LIMIT: usize = 1 << 20;

/// Starts a child that does not outlive us.
///
/// # Errors
/// If it cannot be started so confined.
pub(crate) fn spawn(command: std::process::Command, confinement: Confinement) -> io::Result<Child> {
    Command::from(confined(command, confinement)).kill_on_drop(true).spawn()
}

/// There are keys in the memory of this process: nobody else's core dump or debugger is to have them.
pub(crate) fn keep_memory_from_others() {
    let _ = nix::sys::prctl::set_dumpable(false); // of this process alone: an exec sets it again
}

/// Whoever signals a whole group or unit means the monitor, which says what follows. Not ignored: an exec would hand that on.
///
/// # Errors
/// As the system gives them.
pub(crate) fn leave_signals_to_the_monitor() -> io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    Ok(())
}

/// Becomes the kubelet: the last resort of a supervisor that cannot even begin. It has our pid, so
/// systemd goes on as if there had never been a supervisor. Comes back with an error only.
pub(crate) fn exec_kubelet(program: &Path, args: &KubeletArgs) -> io::Error {
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

/// A run of the kubelet's binary that only judges: with a minimal environment, and nothing to read.
pub(crate) fn judge_command(program: &Path, args: &[String]) -> std::process::Command {
    let mut command = std::process::Command::new(program);
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

async fn collect(
    mut command: std::process::Command,
    limit: Duration,
    confinement: Confinement,
) -> io::Result<ProgramOutput> {
    let (mut output, writer) = pipe()?;
    command.stdout(writer.try_clone()?).stderr(writer);
    let mut kept = Vec::new();
    let read = async {
        let mut chunk = vec![0_u8; 16 << 10];
        while let Ok(count @ 1..) = output.read(&mut chunk).await {
            kept.extend_from_slice(chunk.get(..count).unwrap_or_default());
            if kept.len() > 2 * OUTPUT_LIMIT {
                kept.drain(..kept.len() - OUTPUT_LIMIT);
            }
        }
    };
    let ended = run_with(command, limit, confinement, read).await?;
    Ok(ProgramOutput { exit: ended.map(|(exit, ())| exit), output: kept })
}

/// What a program prints, and where it does.
fn pipe() -> io::Result<(Receiver, PipeWriter)> {
    let (reader, writer) = io::pipe()?;
    Ok((Receiver::from_owned_fd(reader.into())?, writer))
}

/// Runs a program while its output is read. `None`: it was killed after this time, with all that it started.
async fn run_with<T>(
    mut command: std::process::Command,
    limit: Duration,
    confinement: Confinement,
    read: impl Future<Output = T>,
) -> io::Result<Option<(Exit, T)>> {
    command.stdin(Stdio::null()).process_group(0);
    let mut child = spawn(command, confinement)?;
    let mut group = Group::of(&child);
    let work = async {
        let output = read.await;
        (exit_of(&child.wait().await), output)
    };
    let ended = tokio::time::timeout(limit, work).await.ok();
    if ended.is_some() {
        group.0 = None;
    } else {
        drop(group);
        reap(child).await;
    }
    Ok(ended)
}

/// Waits for a child that was killed. One that the kernel holds, as on a disk that does not answer, is reaped by tokio later.
pub(crate) async fn reap(mut child: Child) {
    let _ = tokio::time::timeout(Duration::from_secs(1), child.wait()).await;
}

/// systemd's own helper.
pub(crate) fn systemctl() -> Option<PathBuf> {
    ["/usr/bin/systemctl", "/bin/systemctl"].map(PathBuf::from).into_iter().find(|it| it.exists())
}

/// systemd runs this machine.
pub(crate) fn is_booted_with_systemd() -> bool {
    Path::new("/run/systemd/system").exists()
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
    let mut command = std::process::Command::new(program);
    command.args(args).envs(env.iter().map(|(name, value)| (name, value)));
    for ours in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"] {
        command.env_remove(ours);
    }
    let ((stdout, out), (stderr, err)) = (pipe()?, pipe()?);
    command.stdout(out).stderr(err);
    let read = async { tokio::join!(read_bounded(stdout), read_bounded(stderr)) };
    let ended = run_with(command, limit, Confinement::Helper, read).await?;
    let Some((exit, (stdout, stderr))) = ended else { return Ok(HelperOutput::default()) };
    Ok(HelperOutput { exit: Some(exit), stdout, stderr })
}

/// All that comes, as much as is kept.
async fn read_bounded(mut output: Receiver) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut chunk = vec![0_u8; 16 << 10];
    while let Ok(count @ 1..) = output.read(&mut chunk).await {
        let room = OUTPUT_LIMIT.saturating_sub(kept.len());
        kept.extend_from_slice(chunk.get(..count.min(room)).unwrap_or_default());
    }
    kept
}

pub(crate) fn exit_of(status: &io::Result<std::process::ExitStatus>) -> Exit {
    use std::os::unix::process::ExitStatusExt as _;
    match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, signal) => Exit::Signal(signal.unwrap_or_default()),
        },
        // waitpid fails only if the child is not ours to wait for: it is gone for us.
        Err(_) => Exit::Code(-1),
    }
}

/// A process group that is killed when nobody waits for it any more, also if its leader has ended and a child of
/// that keeps the output open.
#[derive(Debug)]
pub(crate) struct Group(pub(crate) Option<i32>);

impl Group {
    /// That of a child that leads one.
    pub(crate) fn of(child: &tokio::process::Child) -> Self {
        Self(child.id().and_then(|id| i32::try_from(id).ok()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = nix::sys::signal::killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
    }
}
