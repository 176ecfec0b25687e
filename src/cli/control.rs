//! The supervisor's directory, and the running supervisor as the other verbs reach it.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{UnixCredentials, getsockopt};
use nix::unistd::geteuid;

use super::common::Failure;
use crate::adapters::lock;
use crate::daemon::settings::DEFAULT_DIR;
use crate::os::ownership::{self, OwnershipError};

/// Where it listens, in its directory.
const SOCKET: &str = "supervisor/control.sock";

/// Longer than the supervisor itself waits for the answer to a command.
const TIMEOUT: Duration = Duration::from_secs(15);

/// `--dynamic-config-dir` of the verbs that are about a supervisor.
#[derive(Debug, Args)]
pub(super) struct StoreDir {
    /// The supervisor's directory.
    #[arg(long, env = "KUBELET_SUPERVISOR_DYNAMIC_CONFIG_DIR", default_value = DEFAULT_DIR, value_name = "DIR")]
    dynamic_config_dir: PathBuf,
}

/// How a verb shows what it found.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(super) enum Output {
    #[default]
    Text,
    Json,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Unreachable {
    /// Nobody listens.
    Absent(String),
    /// It is not for this user, or somebody listens who is neither root nor this user; with what to do. It ends any verb.
    Refused(String),
    /// Somebody listens, and gives no answer to be understood.
    NoAnswer(String),
}

impl Unreachable {
    /// Why nobody answers, where the verb can say more or go on.
    pub(super) fn unless_refused(self) -> Result<String, Failure> {
        match self {
            Self::Refused(why) => Err(why.into()),
            Self::Absent(why) | Self::NoAnswer(why) => Ok(why),
        }
    }

    fn from_connect(socket: &Path, error: &std::io::Error) -> Self {
        let why = format!("{}: {error}", socket.display());
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::ConnectionRefused => Self::Absent(why),
            ErrorKind::PermissionDenied => Self::Refused(denied(why)),
            _ => Self::NoAnswer(why),
        }
    }
}

fn denied(why: impl std::fmt::Display) -> String {
    format!("{why}; the supervisor's files are root's alone: run this as root, such as with sudo")
}

/// A worker that is replaced is back within this time.
const REPLACED: Duration = Duration::from_secs(2);

/// Connects; to a supervisor whose worker is being replaced, as soon as the next one listens.
fn connect(socket: &Path) -> Result<(UnixStream, UnixCredentials), Unreachable> {
    let begun = Instant::now();
    loop {
        match connect_once(socket) {
            Err(Unreachable::Absent(why)) => match monitor(socket) {
                Some(_) if begun.elapsed() < REPLACED => std::thread::sleep(Duration::from_millis(20)),
                Some(pid) => {
                    return Err(Unreachable::Absent(format!(
                        "{why}; the supervisor (pid {pid}) runs the kubelet and has no worker that answers: see journalctl -u kubelet"
                    )));
                }
                None => return Err(Unreachable::Absent(why)),
            },
            found => return found,
        }
    }
}

/// The supervisor that had the store last, if it lives.
fn monitor(socket: &Path) -> Option<u32> {
    lock::living(std::fs::read_to_string(socket.with_file_name("lock")).ok()?.trim())
}

/// Connects, if root or this user listens: whoever may write in the directory could answer for the supervisor.
fn connect_once(socket: &Path) -> Result<(UnixStream, UnixCredentials), Unreachable> {
    let changeable = match ownership::check(socket) {
        Err(error @ OwnershipError::Changeable { .. }) => Some(Unreachable::NoAnswer(error.to_string())),
        _ => None,
    };
    let stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(error) => return Err(changeable.unwrap_or_else(|| Unreachable::from_connect(socket, &error))),
    };
    let peer = getsockopt(&stream, PeerCredentials)
        .map_err(|error| Unreachable::NoAnswer(format!("{}: {error}", socket.display())))?;
    if peer.uid() != 0 && peer.uid() != geteuid().as_raw() {
        return Err(Unreachable::Refused(format!(
            "{}: a process of uid {} listens there (pid {}), and neither root nor this user: no supervisor of a kubelet. Find \
             out who may write in {}, take the socket away, and give the supervisor's own --dynamic-config-dir if it is \
             elsewhere",
            socket.display(),
            peer.uid(),
            peer.pid(),
            socket.parent().unwrap_or(socket).display()
        )));
    }
    changeable.map_or(Ok((stream, peer)), Err)
}

impl StoreDir {
    pub(super) fn at(dir: PathBuf) -> Self {
        Self { dynamic_config_dir: dir }
    }

    pub(super) fn path(&self) -> PathBuf {
        std::path::absolute(&self.dynamic_config_dir).unwrap_or_else(|_| self.dynamic_config_dir.clone())
    }

    /// The process id of the running supervisor.
    pub(super) fn supervisor(&self) -> Result<u32, Unreachable> {
        let socket = self.path().join(SOCKET);
        let (_, peer) = connect(&socket)?;
        u32::try_from(peer.pid()).map_err(|error| Unreachable::NoAnswer(format!("{}: {error}", socket.display())))
    }

    /// Fails if there is no store, or none that this user may see; `why` no supervisor answers goes
    /// before it.
    pub(super) fn require(&self, why: &str) -> Result<PathBuf, Failure> {
        let dir = self.path();
        let may_list = |path: &Path| match std::fs::read_dir(path) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                Err(denied(format_args!("{}: {error}", path.display())))
            }
            result => Ok(result.is_ok()),
        };
        if may_list(&dir)? {
            may_list(&dir.join("supervisor"))?;
            return Ok(dir);
        }
        let store = dir.display();
        let hint = "`kubelet-supervisor enable` sets it up on this node; give --dynamic-config-dir if it is elsewhere";
        Err(format!("{why}there is no store at {store}: {hint}").into())
    }

    /// Asks the running supervisor; gives status code and body.
    pub(super) fn ask(&self, method: &str, path: &str, body: &str) -> Result<(u16, String), Unreachable> {
        let socket = self.path().join(SOCKET);
        let (mut stream, _) = connect(&socket)?;
        let mut exchange = || -> std::io::Result<String> {
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            let length = body.len();
            let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
            stream.write_all(format!("{head}content-length: {length}\r\n\r\n{body}").as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = exchange().map_err(|error| match error.kind() {
            // The system's message is "Resource temporarily unavailable".
            ErrorKind::WouldBlock => {
                Unreachable::NoAnswer(format!("{}: no answer within {} s", socket.display(), TIMEOUT.as_secs()))
            }
            _ => Unreachable::NoAnswer(format!("{}: {error}", socket.display())),
        })?;
        let parts = answer.split_once("\r\n\r\n").and_then(|(head, body)| {
            let code = head.split(' ').nth(1)?.parse().ok()?;
            Some((code, body.to_owned()))
        });
        parts.ok_or_else(|| Unreachable::NoAnswer(format!("{}: the answer was cut", socket.display())))
    }
}
