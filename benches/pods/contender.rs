//! Who restarts the kubelet, and how it is told to.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::Result;
use crate::cluster::{CHANGE, Cluster};

const SUPERVISOR: &str = env!("CARGO_BIN_EXE_kubelet-supervisor");

#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    /// SIGTERM, and started again at once.
    Bare,
    /// Native dynamic configuration, RestartSec=0.
    Native,
    Plain,
    Standby,
    Courtesy,
}

impl Kind {
    pub const ALL: [Self; 5] = [Self::Bare, Self::Native, Self::Plain, Self::Standby, Self::Courtesy];

    /// For the environment.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Native => "native-0",
            Self::Plain => "no-standby",
            Self::Standby => "no-courtesy",
            Self::Courtesy => "supervised",
        }
    }

    /// For the table.
    pub fn title(self) -> &'static str {
        match self {
            Self::Bare => "bare restart",
            Self::Native => "native, RestartSec=0",
            Self::Plain => "supervised, `--standby=false --courtesy=0`",
            Self::Standby => "supervised, `--courtesy=0`",
            Self::Courtesy => "supervised",
        }
    }

    /// Options of the supervisor, where there is one.
    fn options(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Bare | Self::Native => None,
            Self::Plain => Some(&["--standby=false", "--courtesy=0"]),
            Self::Standby => Some(&["--courtesy=0"]),
            Self::Courtesy => Some(&[]),
        }
    }
}

/// A process that is started again at once when it ends, as systemd does it.
struct Unit {
    stop: Arc<AtomicBool>,
    pid: Arc<AtomicU32>,
    thread: Option<JoinHandle<()>>,
}

impl Unit {
    fn start(mut command: Command) -> Result<Self> {
        let (stop, pid) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let (is_stopped, id) = (Arc::clone(&stop), Arc::clone(&pid));
        let thread = std::thread::Builder::new().spawn(move || {
            while !is_stopped.load(Ordering::SeqCst) {
                let Ok(mut child) = command.spawn() else { return };
                id.store(child.id(), Ordering::SeqCst);
                if is_stopped.load(Ordering::SeqCst) {
                    let _ = child.kill(); // whoever stopped it knew the process before
                }
                let _ = child.wait();
            }
        })?;
        Ok(Self { stop, pid, thread: Some(thread) })
    }

    fn terminate(&self) {
        if let Ok(pid @ 1..) = i32::try_from(self.pid.load(Ordering::SeqCst)) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.terminate();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub struct Contender<'a> {
    cluster: &'a Cluster,
    kind: Kind,
    /// The dynamic configuration directory.
    store: PathBuf,
    unit: Unit,
}

impl<'a> Contender<'a> {
    /// With nothing assigned, and nothing known of earlier ones.
    pub fn start(cluster: &'a Cluster, kind: Kind, id: &str) -> Result<Self> {
        let store = cluster.dir.join("dynamic").join(id);
        let supervisor = [SUPERVISOR, "run", "--metrics-bind-address="].map(str::to_owned);
        let mut words = Vec::new();
        if let Some(options) = kind.options() {
            words.extend(supervisor.into_iter().chain(options.iter().map(|&option| option.to_owned())));
            words.push("--".to_owned());
        }
        words.extend(cluster.kubelet.iter().cloned());
        if kind != Kind::Bare {
            words.push(format!("--dynamic-config-dir={}", store.display()));
        }
        let (program, args) = words.split_first().ok_or("no command")?;
        let log = File::options().create(true).append(true).open(cluster.dir.join("logs").join(format!("{id}.log")))?;
        let mut command = Command::new(program);
        command.args(args).stdout(log.try_clone()?).stderr(log);
        Ok(Self { cluster, kind, store, unit: Unit::start(command)? })
    }

    /// The process of the kubelet that runs.
    pub fn kubelet(&self) -> Option<u32> {
        if self.kind.options().is_none() {
            return Some(self.unit.pid.load(Ordering::SeqCst));
        }
        let mut status = Command::new(SUPERVISOR);
        let output = status.args(["status", "-o", "json", "--dynamic-config-dir"]).arg(&self.store).output().ok()?;
        let status: Value = serde_json::from_slice(&output.stdout).ok()?;
        status.pointer("/kubelet/pid")?.as_u64()?.try_into().ok()
    }

    /// What is measured.
    pub fn change(&self) -> Result<()> {
        if self.kind == Kind::Bare {
            self.unit.terminate();
            return Ok(());
        }
        self.cluster.assign(Some(CHANGE))
    }

    /// Whether the change is what runs.
    pub fn has_changed(&self) -> Result<bool> {
        Ok(self.kind == Kind::Bare || self.cluster.active()?.as_deref() == Some(CHANGE))
    }

    /// The next one has the node as it was.
    pub fn stop(self) -> Result<()> {
        let Self { cluster, unit, .. } = self;
        drop(unit);
        cluster.assign(None)
    }
}
