//! How the kubelet is run: its arguments, its environment, and where its output goes.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::sync::oneshot;

use crate::adapters::process::{Confinement, command_of, spawn};
use crate::adapters::stderr_relay::{StartedRelay, StderrRelay};
use crate::machine::model::Rendered;
use crate::ports::SpawnError;
use kubelet_config::flags::{ConfigDir, KubeletArgs};

/// How it is known that a kubelet is up.
#[derive(Clone, Debug)]
pub enum ReadySignal {
    /// It sends READY=1 here; a value of NOTIFY_SOCKET.
    Socket(String),
    /// No socket could be had: it counts as up once it has run for so long. It does not ping then.
    RunsFor(Duration),
}

/// What all kubelets of a supervisor are run with.
#[derive(Clone, Debug)]
pub struct RunCommand {
    /// Resolved path of the binary.
    pub program: PathBuf,
    /// Its own arguments.
    pub args: KubeletArgs,
    /// How it is known to be up.
    pub ready: ReadySignal,
    /// What it gets as `WATCHDOG_USEC`.
    pub watchdog: Duration,
}

/// A process, and what passes its output on.
#[derive(Debug)]
pub(super) struct StartedKubelet {
    pub(super) child: Child,
    /// With what fires when all is passed on; `None` if the output is not read.
    pub(super) relay: Option<(StderrRelay, oneshot::Receiver<()>)>,
}

impl RunCommand {
    /// The arguments with this configuration and its flags, or the unit's own.
    pub(super) fn args(&self, config: Option<&Rendered>) -> Vec<String> {
        config.map_or_else(
            || self.args.for_run(None, &ConfigDir::Unit),
            |config| self.args.with(&config.overrides).for_run(Some(&config.path), &config.config_dir),
        )
    }

    /// A kubelet that may do whatever we may, in a process group of its own.
    pub(super) fn command(&self, args: &[String]) -> Command {
        let mut command = command_of(&self.program);
        command
            .args(args)
            // systemd's watchdog is ours to serve, and its WATCHDOG_PID is not the kubelet's: a
            // kubelet that finds another's does not ping.
            .env_remove("WATCHDOG_PID")
            .process_group(0);
        match &self.ready {
            ReadySignal::Socket(name) => {
                command.env("NOTIFY_SOCKET", name).env("WATCHDOG_USEC", self.watchdog.as_micros().to_string())
            }
            ReadySignal::RunsFor(_) => command.env_remove("NOTIFY_SOCKET").env_remove("WATCHDOG_USEC"),
        };
        command
    }

    /// Starts it.
    pub(super) fn start(&self, args: &[String]) -> io::Result<StartedKubelet> {
        let mut command = self.command(args);
        let relay = match StderrRelay::to_stderr() {
            Ok(StartedRelay { relay, writer, ended }) => {
                command.stderr(writer);
                Some((relay, ended))
            }
            // Better without its log tail than without a kubelet.
            Err(error) => {
                tracing::warn!("the kubelet's output is not read: {error}");
                None
            }
        };
        Ok(StartedKubelet { child: spawn(command, Confinement::Kubelet)?, relay })
    }

    pub(super) fn failed(&self, error: io::Error) -> SpawnError {
        SpawnError { program: self.program.clone(), cause: error.into() }
    }
}
