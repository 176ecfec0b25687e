//! The kubelet, as the monitor has it: what the monitor tells comes as inputs, what the machine wants goes out as requests.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

use self::follow::{Follower, Next};
use super::inotify::{Raw, register};
use crate::machine::Input;
use crate::machine::model::{Rendered, RunId};
use crate::monitor::wire::{Child, PROTOCOL, Request, Status, WORKER_FD};
use crate::monitor::{receive, say};
use crate::os::fork;
use crate::os::stderr_relay;
use crate::ports;
use kubelet_config::flags::{ConfigDir, KubeletArgs};

mod follow;
mod standby;

pub use standby::StandbyKubelet;
pub(crate) use standby::test_parking;

/// The worker's end of the socket to the monitor. Cloned, it is the same.
#[derive(Clone, Debug)]
pub struct MonitorLink {
    socket: Arc<AsyncFd<Raw<OwnedFd>>>,
    status: watch::Receiver<Status>,
    tickets: Arc<AtomicU64>,
}

impl MonitorLink {
    /// Takes up the socket that this process was started with, says hello, and listens for ever.
    ///
    /// # Errors
    /// If there is none: nobody but a monitor starts a worker.
    pub fn take_up() -> io::Result<Self> {
        let socket = fork::inherited(WORKER_FD).ok_or(io::ErrorKind::NotConnected)?;
        fork::set_nonblocking(&socket)?;
        let socket = Arc::new(register(socket)?);
        let (seen, status) = watch::channel(Status::default());
        let link = Self { socket: socket.clone(), status, tickets: Arc::default() };
        link.send(&Request::Hello { protocol: PROTOCOL, version: env!("CARGO_PKG_VERSION").to_owned() });
        tokio::spawn(async move {
            while let Ok(status) = socket.async_io(Interest::READABLE, next).await {
                let _ = seen.send(status);
            }
            // The monitor has ended, or speaks another language: nothing can be done without it.
            tracing::error!("the monitor says nothing that is understood");
            std::process::exit(1);
        });
        Ok(link)
    }

    /// The state as it was told last.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// The state once it is so.
    ///
    /// # Errors
    /// There is no monitor any more.
    pub async fn until(&self, is_so: impl FnMut(&Status) -> bool) -> io::Result<Status> {
        let mut status = self.status.clone();
        let seen = status.wait_for(is_so).await;
        seen.map(|status| status.clone()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// A number that no request had, of no worker.
    fn ticket(&self) -> u64 {
        (self.status.borrow().generation << 32) | self.tickets.fetch_add(1, SeqCst)
    }

    /// Says it, if the monitor takes it: one that takes nothing has ended, or is about to end us.
    pub fn send(&self, request: &Request) {
        if let Err(error) = say(&self.socket.get_ref().0, request) {
            tracing::warn!("the monitor takes no message: {error}");
        }
    }
}

fn next(Raw(socket): &Raw<OwnedFd>) -> io::Result<Status> {
    match receive(socket)? {
        Some(Ok(message)) => serde_json::from_slice(&message).map_err(io::Error::from),
        Some(Err(_)) => Err(io::ErrorKind::InvalidData.into()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// What the monitor has in this file: see [`stderr_relay::read`].
fn output(descriptor: Option<i32>) -> Option<File> {
    let path = format!("/proc/{}/fd/{}", nix::unistd::getppid(), descriptor?);
    // The number may be another file's by now.
    let target = std::fs::read_link(&path).ok()?;
    target.to_string_lossy().contains("kubelet-output").then_some(())?;
    File::open(path).inspect_err(|error| tracing::warn!("the kubelet's output cannot be read: {error}")).ok()
}

/// The kubelet process.
#[derive(Clone, Debug)]
pub struct KubeletProcess {
    link: MonitorLink,
    /// The unit's own arguments.
    args: KubeletArgs,
    standby: Option<StandbyKubelet>,
    inputs: UnboundedSender<Input>,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    follower: Follower,
    /// Where the kubelet that the machine knows of, or knew last, writes.
    output: Option<File>,
}

impl Seen {
    fn note_started(&mut self, kubelet: Option<Child>) {
        if let Some(kubelet) = kubelet {
            self.output = output(kubelet.output);
        }
    }
}

impl KubeletProcess {
    /// Follows the monitor's state from this one on, in which its worker begins.
    #[must_use]
    pub fn start(
        link: MonitorLink,
        args: KubeletArgs,
        standby: Option<StandbyKubelet>,
        inputs: UnboundedSender<Input>,
        beginning: &Status,
    ) -> Self {
        let seen = Seen { follower: Follower::beginning(beginning), output: None };
        let kubelet = Self { link, args, standby, inputs, seen: Arc::new(Mutex::new(seen)) };
        let follows = kubelet.clone();
        tokio::spawn(async move {
            let mut status = follows.link.status.clone();
            loop {
                follows.advance();
                if status.changed().await.is_err() {
                    return;
                }
            }
        });
        kubelet
    }

    fn advance(&self) {
        let (status, mut seen) = (self.link.status(), self.seen.lock());
        let Next { inputs, requests, started } = seen.follower.advance(&status);
        seen.note_started(started);
        for request in &requests {
            self.link.send(request);
        }
        for input in inputs {
            let _ = self.inputs.send(input); // the loop has ended
        }
    }

    fn ask(&self, request: impl FnOnce(u64) -> Request) {
        if let Some(run) = self.seen.lock().follower.run() {
            self.link.send(&request(run));
        }
    }
}

/// The arguments with this configuration and its flags, or the unit's own.
fn args_of(own: &KubeletArgs, config: Option<&Rendered>) -> Vec<String> {
    config.map_or_else(
        || own.for_run(None, &ConfigDir::Unit),
        |config| own.with(&config.overrides).for_run(Some(&config.path), &config.config_dir),
    )
}

impl ports::Kubelet for KubeletProcess {
    fn start(&mut self, config: Option<&Rendered>) -> Vec<Input> {
        let args = args_of(&self.args, config);
        if let Some(standby) = &self.standby {
            standby.leave(&args);
        }
        self.seen.lock().follower.want(self.link.ticket(), args);
        self.advance();
        Vec::new()
    }

    fn go_on(&mut self, run: RunId) -> Vec<Input> {
        let mut seen = self.seen.lock();
        let Next { inputs, started, .. } = seen.follower.go_on(run, &self.link.status());
        seen.note_started(started);
        inputs
    }

    fn stop(&mut self) {
        self.ask(Request::Stop);
    }

    fn dump_stacks(&mut self) {
        self.ask(Request::Dump);
    }

    fn log_tail(&self) -> Vec<String> {
        let text = self.seen.lock().output.as_ref().map(stderr_relay::read).and_then(Result::ok).unwrap_or_default();
        String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
    }
}
