//! A reload: this process becomes the binary that is installed now, with the same pid. Its children
//! stay its children, and what it needs to go on stays open:
//!
//! - the kubelet's notify socket, with whatever waits in it;
//! - the reading ends of the kubelet's stderr, lest it gets EPIPE;
//! - the lock of the store;
//! - the listener for metrics, whose port anybody could take if it were free for a moment;
//! - a document in memory (a disk may be full) that names them all, beside what the machine knows.
//!
//! One environment variable, gone again before anything else is done, names the document. Signals
//! that come meanwhile are held, as `exec` forgets who would have taken them.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedSender;

use super::kubelet_process::KubeletProcess;
use super::process;
use crate::machine::model::Exit;
use crate::machine::{Handover, Input, Ticket, limits};
use crate::ports::ReexecError;

/// `PID:FD:KUBELET`: our own process id, lest a stray variable is believed, the document, and the
/// kubelet's process id in case the document cannot be read.
const HANDOVER_VARIABLE: &str = "KUBELET_SUPERVISOR_HANDOVER";

/// The hidden verb that reads the document and says whether it could go on from it.
pub const VERB: &str = "can-take-over";

/// To read a document and a command line takes milliseconds; a node under load gets some more.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// For the last lines that were read to be written.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);

/// What is handed over. Public for the test that reads what earlier builds wrote.
#[doc(hidden)]
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReexecDocument {
    /// [`Handover`], encoded.
    pub machine: String,
    /// The kubelet.
    pub pid: i32,
    /// Its notify socket.
    #[serde(default)]
    pub notify: Option<RawFd>,
    /// And that one's name.
    #[serde(default)]
    pub notify_name: String,
    #[serde(default)]
    pub lock: Option<RawFd>,
    /// The listener for metrics.
    #[serde(default)]
    pub listener: Option<RawFd>,
    /// The reading ends of its standard error, with what was last read, the latest last.
    #[serde(default)]
    pub relays: Vec<(RawFd, Vec<String>)>,
    #[serde(default, flatten)]
    pub service: ServiceState,
}

/// What the next supervisor would else have to ask or send again.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceState {
    /// READY=1 was sent to systemd.
    pub ready: bool,
    /// What the kubelet's `--version` says, if it was asked.
    pub version: Option<String>,
}

/// What was taken over.
#[derive(Debug)]
pub struct InheritedState {
    /// For the machine.
    pub handover: Handover,
    /// The kubelet.
    pub pid: i32,
    /// Its notify socket and that one's name.
    pub notify: Option<(OwnedFd, String)>,
    /// The store's lock.
    pub lock: Option<File>,
    /// The listener for metrics.
    pub listener: Option<OwnedFd>,
    /// The reading ends of its standard error.
    pub relays: Vec<(OwnedFd, Vec<String>)>,
    /// See [`ServiceState`].
    pub service: ServiceState,
}

/// How a supervisor begins.
#[derive(Debug)]
pub enum StartMode {
    /// On its own.
    Fresh,
    /// In another one's place.
    Reexec(Box<InheritedState>),
    /// It should have, and could not; why. The kubelet that was there is gone.
    ReexecFailed(String),
}

/// Takes over what another supervisor left in this process, if one did. For the beginning of `main` only.
#[must_use]
pub fn start_mode() -> StartMode {
    let Some(value) = process::take_variable(HANDOVER_VARIABLE) else { return StartMode::Fresh };
    let value = value.to_string_lossy().into_owned();
    let mut parts = value.split(':').map(|part| part.parse::<i32>().unwrap_or_default());
    let (own, fd, pid) =
        (parts.next().unwrap_or_default(), parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    if u32::try_from(own) != Ok(std::process::id()) {
        return StartMode::Fresh; // somebody's leftover
    }
    match take_over(fd) {
        Ok(inherited) => StartMode::Reexec(Box::new(inherited)),
        Err(why) => {
            // Never two kubelets, and none whose output nobody reads.
            process::close_inherited_fds();
            if pid > 0 {
                process::end_child(pid, limits::STOP_GRACE);
            }
            StartMode::ReexecFailed(why)
        }
    }
}

fn take_over(fd: RawFd) -> Result<InheritedState, String> {
    let mut file = File::from(process::take_inherited_fd(fd).ok_or("the document is not there")?);
    let mut text = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut text)).map_err(|error| error.to_string())?;
    let (document, handover) = read(&text)?;
    let relays = document.relays.into_iter();
    Ok(InheritedState {
        handover,
        pid: document.pid,
        notify: document.notify.and_then(process::take_inherited_fd).map(|fd| (fd, document.notify_name)),
        lock: document.lock.and_then(process::take_inherited_fd).map(File::from),
        listener: document.listener.and_then(process::take_inherited_fd),
        relays: relays.filter_map(|(fd, log_tail)| Some((process::take_inherited_fd(fd)?, log_tail))).collect(),
        service: document.service,
    })
}

/// Reads the document.
///
/// # Errors
/// Why nobody could go on from it.
#[doc(hidden)]
pub fn read(text: &str) -> Result<(ReexecDocument, Handover), String> {
    let document: ReexecDocument = serde_json::from_str(text).map_err(|error| format!("the document: {error}"))?;
    let handover = Handover::decode(&document.machine)?;
    if i32::try_from(handover.pid()) != Ok(document.pid) {
        return Err("the document names two kubelets".to_owned());
    }
    Ok((document, handover))
}

/// True if this binary could go on from the document.
///
/// # Errors
/// Why not.
pub fn can_take_over(text: &str) -> Result<(), String> {
    read(text).map(drop)
}

/// A listener that may be bound later than the supervisor begins.
pub type SharedListener = Arc<OnceLock<OwnedFd>>;

/// Replaces this process by the installed binary.
#[derive(Debug)]
pub struct SelfExec {
    /// The kubelet's notify socket, and its name.
    pub notify: Option<(OwnedFd, String)>,
    /// The store's lock, once it is had.
    pub lock: Arc<OnceLock<File>>,
    /// The listener for metrics, once there is one.
    pub listener: SharedListener,
    /// The daemon's queue.
    pub inputs: UnboundedSender<Input>,
}

impl SelfExec {
    /// Asks the installed binary whether it could go on from this.
    pub fn prove(&self, ticket: Ticket, handover: &str, pid: Option<i32>) {
        // A kubelet that was just reaped is in the document all the same; it will be asked again then.
        let recorded = || i32::try_from(Handover::decode(handover).ok()?.pid()).ok();
        let pid = pid.or_else(recorded).unwrap_or_default();
        let document = ReexecDocument { machine: handover.to_owned(), pid, ..ReexecDocument::default() };
        let inputs = self.inputs.clone();
        tokio::spawn(async move {
            let _ = inputs.send(Input::ReloadProven(ticket, ask_installed(&document).await));
        });
    }

    /// Becomes the installed binary. `notify_reloading` says to systemd that a reload begins (true) or is off.
    ///
    /// # Errors
    /// Why we are still here; nothing has changed then.
    pub fn replace(
        &self,
        handover: &str,
        kubelet: &KubeletProcess,
        service: ServiceState,
        notify_reloading: impl Fn(bool),
    ) -> Result<(), ReexecError> {
        // One that was reaped is about to be reported, one that was sent SIGTERM about to end.
        let Some(pid) = kubelet.pid.get().filter(|_| !kubelet.pid.is_stopping()) else { return Err(ReexecError::Busy) };
        let program = installed()?;
        let relays: Vec<_> = kubelet.relays.iter().filter(|relay| !relay.is_ended()).collect();
        let resume = || relays.iter().for_each(|relay| relay.resume());
        if !relays.iter().all(|relay| relay.pause(OUTPUT_TIMEOUT)) {
            resume();
            return Err(ReexecError::OutputBlocked);
        }
        let notify = self.notify.as_ref();
        let document = ReexecDocument {
            machine: handover.to_owned(),
            pid,
            notify: notify.map(|(fd, _)| fd.as_raw_fd()),
            notify_name: notify.map(|(_, name)| name.clone()).unwrap_or_default(),
            lock: self.lock.get().map(File::as_raw_fd),
            listener: self.listener.get().map(AsRawFd::as_raw_fd),
            relays: relays.iter().map(|relay| (relay.reader().as_raw_fd(), relay.log_tail())).collect(),
            service,
        };
        notify_reloading(true);
        let mut kept: Vec<BorrowedFd<'_>> = relays.iter().map(|relay| relay.reader()).collect();
        kept.extend(notify.map(|(fd, _)| fd.as_fd()).into_iter().chain(self.lock.get().map(|file| file.as_fd())));
        kept.extend(self.listener.get().map(|fd| fd.as_fd()));
        let cause = exec_keeping(&program, &document, &kept);
        for fd in kept {
            let _ = process::set_inheritable(fd, false);
        }
        resume();
        notify_reloading(false);
        Err(ReexecError::Exec { program, cause: cause.into() })
    }
}

fn exec_keeping(program: &Path, document: &ReexecDocument, kept: &[BorrowedFd<'_>]) -> std::io::Error {
    let attempt = || -> std::io::Result<std::convert::Infallible> {
        let memfd = write_memfd(document)?;
        for fd in kept.iter().copied().chain([memfd.as_fd()]) {
            process::set_inheritable(fd, true)?;
        }
        let value = format!("{}:{}:{}", std::process::id(), memfd.as_raw_fd(), document.pid);
        let mut env: Vec<(OsString, OsString)> =
            std::env::vars_os().filter(|(name, _)| name != HANDOVER_VARIABLE).collect();
        env.push((HANDOVER_VARIABLE.into(), value.into()));
        let args: Vec<OsString> = std::env::args_os().collect();
        Err(process::exec_program(program, &args, &env))
    };
    match attempt() {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

fn write_memfd(document: &ReexecDocument) -> std::io::Result<OwnedFd> {
    let mut file = File::from(memfd_create(c"kubelet-supervisor", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(serde_json::to_string(document)?.as_bytes())?;
    file.rewind()?;
    Ok(file.into())
}

/// The binary that is installed where ours came from; a package may have put another one there, or an
/// administrator turned a link: what the unit's command names counts, and the file that runs only without that.
fn installed() -> Result<PathBuf, ReexecError> {
    let named = std::env::args_os().next().map(PathBuf::from).filter(|path| path.is_absolute() && path.exists());
    if let Some(named) = named {
        return Ok(named);
    }
    let own = Path::new("/proc/self/exe");
    let link =
        std::fs::read_link(own).map_err(|error| ReexecError::Exec { program: own.to_owned(), cause: error.into() })?;
    let path = link.to_string_lossy().into_owned();
    Ok(path.strip_suffix(" (deleted)").map_or(link, PathBuf::from))
}

async fn ask_installed(document: &ReexecDocument) -> Result<String, String> {
    let program = installed().map_err(|error| error.to_string())?;
    let at = |why: &dyn std::fmt::Display| format!("{}: {why}", program.display());
    let input = write_memfd(document).map_err(|error| at(&error))?;
    let own = std::env::args_os().skip(1);
    let args: Vec<OsString> = [VERB.into(), "--".into()].into_iter().chain(own).collect();
    let run = process::run_with_input(&program, &args, input, ANSWER_TIMEOUT).await.map_err(|error| at(&error))?;
    let answer = String::from_utf8_lossy(&run.output).trim().to_owned();
    let last = answer.lines().last().unwrap_or_default();
    match run.exit {
        Some(Exit::Code(0)) => match last.strip_prefix("can take over: ") {
            Some(version) => Ok(version.to_owned()),
            None => Err(at(&"it is not a kubelet-supervisor")),
        },
        Some(exit) => Err(at(&format!("it cannot take over ({exit}): {answer}"))),
        None => Err(at(&format!("it did not say within {} s whether it can take over", ANSWER_TIMEOUT.as_secs()))),
    }
}
