//! A reload: this process becomes the binary that is installed now, with the same pid. Its children
//! stay its children, and what it needs to go on stays open:
//!
//! - the kubelet's notify socket, with whatever waits in it;
//! - the reading ends of the kubelet's stderr, lest it gets EPIPE;
//! - the lock of the store;
//! - a document in memory (a disk may be full) that names them all, beside what the machine knows.
//!
//! One environment variable, gone again before anything else is done, names the document. Signals
//! that come meanwhile are held, as `exec` forgets who would have taken them.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedSender;

use super::process::{self, KubeletProcess};
use crate::machine::model::Exit;
use crate::machine::{Handover, Input, limits};
use crate::ports::ReexecError;

/// `PID:FD:KUBELET`: our own process id, lest a stray variable is believed, the document, and the
/// kubelet's process id in case the document cannot be read.
const VARIABLE: &str = "KUBELET_SUPERVISOR_HANDOVER";

/// The hidden verb that reads the document and says whether it could go on from it.
pub const VERB: &str = "can-take-over";

/// To read a document and a command line takes milliseconds; a node under load gets some more.
const PROOF: Duration = Duration::from_secs(10);

/// For the last lines that were read to be written.
const SETTLE: Duration = Duration::from_secs(1);

/// What is handed over. Public for the test that reads what released versions wrote.
#[doc(hidden)]
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Estate {
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
    /// The reading ends of its standard error, with what was last read, the latest last.
    #[serde(default)]
    pub relays: Vec<(RawFd, Vec<String>)>,
    #[serde(default, flatten)]
    pub told: Told,
}

/// What others were told, and told us.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Told {
    /// systemd was told READY=1.
    pub ready: bool,
    /// What the kubelet's `--version` says, if it was asked.
    pub version: Option<String>,
}

/// What was taken over.
#[derive(Debug)]
pub struct Inheritance {
    /// For the machine.
    pub handover: Handover,
    /// The kubelet.
    pub pid: i32,
    /// Its notify socket and that one's name.
    pub notify: Option<(OwnedFd, String)>,
    /// The store's lock.
    pub lock: Option<File>,
    /// The reading ends of its standard error.
    pub relays: Vec<(OwnedFd, Vec<String>)>,
    /// See [`Told`].
    pub told: Told,
}

/// How a supervisor begins.
#[derive(Debug)]
pub enum Beginning {
    /// On its own.
    Afresh,
    /// In another one's place.
    Heir(Box<Inheritance>),
    /// It should have, and could not; why. The kubelet that was there is gone.
    Disinherited(String),
}

/// Looks whether there is something to take over. For the beginning of `main` only.
#[must_use]
pub fn begin() -> Beginning {
    let Some(value) = process::take_variable(VARIABLE) else { return Beginning::Afresh };
    let value = value.to_string_lossy().into_owned();
    let mut parts = value.split(':').map(|part| part.parse::<i32>().unwrap_or_default());
    let (own, fd, pid) =
        (parts.next().unwrap_or_default(), parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    if u32::try_from(own) != Ok(std::process::id()) {
        return Beginning::Afresh; // somebody's leftover
    }
    match inherit(fd) {
        Ok(inheritance) => Beginning::Heir(Box::new(inheritance)),
        Err(why) => {
            // Never two kubelets, and none whose output nobody reads.
            process::close_inherited();
            if pid > 0 {
                process::end_child(pid, limits::STOP_GRACE);
            }
            Beginning::Disinherited(why)
        }
    }
}

fn inherit(fd: RawFd) -> Result<Inheritance, String> {
    let mut file = File::from(process::inherited(fd).ok_or("the document is not there")?);
    let mut text = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut text)).map_err(|error| error.to_string())?;
    let (estate, handover) = read(&text)?;
    let relays = estate.relays.into_iter();
    Ok(Inheritance {
        handover,
        pid: estate.pid,
        notify: estate.notify.and_then(process::inherited).map(|fd| (fd, estate.notify_name)),
        lock: estate.lock.and_then(process::inherited).map(File::from),
        relays: relays.filter_map(|(fd, words)| Some((process::inherited(fd)?, words))).collect(),
        told: estate.told,
    })
}

/// Reads the document.
///
/// # Errors
/// Why nobody could go on from it.
#[doc(hidden)]
pub fn read(text: &str) -> Result<(Estate, Handover), String> {
    let estate: Estate = serde_json::from_str(text).map_err(|error| format!("the document: {error}"))?;
    let handover = Handover::decode(&estate.machine)?;
    if handover.pid().and_then(|pid| i32::try_from(pid).ok()) != Some(estate.pid) {
        return Err("the document names two kubelets".to_owned());
    }
    Ok((estate, handover))
}

/// True if this binary could go on from the document.
///
/// # Errors
/// Why not.
pub fn can_take_over(text: &str) -> Result<(), String> {
    read(text).map(drop)
}

/// Whoever goes on in our place.
#[derive(Debug)]
pub struct Successor {
    /// The kubelet's notify socket, and its name.
    pub notify: Option<(OwnedFd, String)>,
    /// The store's lock, where there is one.
    pub lock: Option<File>,
    /// The daemon's queue.
    pub inputs: UnboundedSender<Input>,
}

impl Successor {
    /// Asks the installed binary whether it could go on from this.
    pub fn prove(&self, document: &str, pid: Option<i32>) {
        // A kubelet that was just reaped is in the document all the same; it will be asked again then.
        let told = || Handover::decode(document).ok()?.pid().and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.or_else(told).unwrap_or_default();
        let estate = Estate { machine: document.to_owned(), pid, ..Estate::default() };
        let inputs = self.inputs.clone();
        tokio::spawn(async move {
            let _ = inputs.send(Input::ReloadProven(proof(&estate).await));
        });
    }

    /// Becomes the installed binary. `tell` says to systemd that a reload begins (true) or is off.
    ///
    /// # Errors
    /// Why we are still here; nothing has changed then.
    pub fn replace(
        &self,
        document: &str,
        kubelet: &KubeletProcess,
        told: Told,
        tell: impl Fn(bool),
    ) -> Result<(), ReexecError> {
        // One that was reaped is about to be reported, one that was told to stop about to end.
        let Some(pid) = kubelet.pid.get().filter(|_| !kubelet.pid.is_stopping()) else { return Err(ReexecError::Busy) };
        let program = installed()?;
        let relays: Vec<_> = kubelet.relays.iter().filter(|relay| !relay.is_ended()).collect();
        let resume = || relays.iter().for_each(|relay| relay.go_on());
        if !relays.iter().all(|relay| relay.pause(SETTLE)) {
            resume();
            return Err(ReexecError::OutputBlocked);
        }
        let notify = self.notify.as_ref();
        let estate = Estate {
            machine: document.to_owned(),
            pid,
            notify: notify.map(|(fd, _)| fd.as_raw_fd()),
            notify_name: notify.map(|(_, name)| name.clone()).unwrap_or_default(),
            lock: self.lock.as_ref().map(File::as_raw_fd),
            relays: relays.iter().map(|relay| (relay.reader().as_raw_fd(), relay.words())).collect(),
            told,
        };
        tell(true);
        let mut kept: Vec<BorrowedFd<'_>> = relays.iter().map(|relay| relay.reader()).collect();
        kept.extend(notify.map(|(fd, _)| fd.as_fd()).into_iter().chain(self.lock.as_ref().map(|file| file.as_fd())));
        let cause = become_heir(&program, &estate, &kept);
        for fd in kept {
            let _ = process::inherit(fd, false);
        }
        resume();
        tell(false);
        Err(ReexecError::Exec { program, cause: cause.into() })
    }
}

fn become_heir(program: &Path, estate: &Estate, kept: &[BorrowedFd<'_>]) -> std::io::Error {
    let attempt = || -> std::io::Result<std::convert::Infallible> {
        let document = document(estate)?;
        for fd in kept.iter().copied().chain([document.as_fd()]) {
            process::inherit(fd, true)?;
        }
        let value = format!("{}:{}:{}", std::process::id(), document.as_raw_fd(), estate.pid);
        let mut env: Vec<(OsString, OsString)> = std::env::vars_os().filter(|(name, _)| name != VARIABLE).collect();
        env.push((VARIABLE.into(), value.into()));
        let args: Vec<OsString> = std::env::args_os().collect();
        Err(process::become_program(program, &args, &env))
    };
    match attempt() {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

fn document(estate: &Estate) -> std::io::Result<OwnedFd> {
    let mut file = File::from(memfd_create(c"kubelet-supervisor", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(serde_json::to_string(estate)?.as_bytes())?;
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

async fn proof(estate: &Estate) -> Result<String, String> {
    let program = installed().map_err(|error| error.to_string())?;
    let at = |why: &dyn std::fmt::Display| format!("{}: {why}", program.display());
    let input = document(estate).map_err(|error| at(&error))?;
    let own = std::env::args_os().skip(1);
    let args: Vec<OsString> = [VERB.into(), "--".into()].into_iter().chain(own).collect();
    let run = process::run_with_input(&program, &args, input, PROOF).await.map_err(|error| at(&error))?;
    let said = String::from_utf8_lossy(&run.output).trim().to_owned();
    let last = said.lines().last().unwrap_or_default();
    match run.exit {
        Some(Exit::Code(0)) => match last.strip_prefix("can take over: ") {
            Some(version) => Ok(version.to_owned()),
            None => Err(at(&"it is not a kubelet-supervisor")),
        },
        Some(exit) => Err(at(&format!("it cannot take over ({exit}): {said}"))),
        None => Err(at(&format!("it did not say within {} s whether it can take over", PROOF.as_secs()))),
    }
}
