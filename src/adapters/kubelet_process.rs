//! The kubelet process: started, or let go on where it stood by; signalled, and its end told.

use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use self::run_command::StartedKubelet;
use super::process::{ChildPid, exit_of};
use super::stderr_relay::StderrRelay;
use crate::machine::Input;
use crate::machine::model::Rendered;
use crate::ports::{self, SpawnError};

mod run_command;
mod standby;

pub use run_command::{ReadySignal, RunCommand};
pub use standby::StandbyKubelet;
pub(crate) use standby::test_parking;

/// How long the report of an exit waits for the last lines. They are there in a millisecond, unless
/// stderr is slow, or a descendant of the kubelet lives on and keeps the pipe open.
const LAST_LINES_TIMEOUT: Duration = Duration::from_millis(250);

/// How long the supervisor's own end waits for the output to be passed on.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The kubelet process.
#[derive(Debug)]
pub struct KubeletProcess {
    /// How it is run.
    pub run: RunCommand,
    /// What may wait to be the next one; `None`: every start is a new process.
    pub standby: Option<StandbyKubelet>,
    /// Its process id.
    pub pid: ChildPid,
    /// The daemon's queue.
    pub inputs: UnboundedSender<Input>,
    /// What passes its output on, the latest start's last. Earlier ones serve its descendants.
    pub relays: Vec<StderrRelay>,
}

impl ports::Kubelet for KubeletProcess {
    fn start(&mut self, config: Option<&Rendered>) -> Result<u32, SpawnError> {
        let args = self.run.args(config);
        let standby = self.standby.as_ref().and_then(|standby| standby.promote(&args));
        let started = match standby {
            Some(started) => started,
            None => self.run.start(&args).map_err(|error| self.run.failed(error))?,
        };
        Ok(self.follow(started))
    }

    fn stop(&mut self) {
        self.pid.signal(Signal::SIGTERM);
    }

    fn dump_stacks(&mut self) {
        self.pid.send(Signal::SIGQUIT, true);
    }

    fn kill(&mut self) {
        self.pid.signal(Signal::SIGKILL);
    }

    fn log_tail(&self) -> Vec<String> {
        self.relays.last().map(StderrRelay::log_tail).unwrap_or_default()
    }
}

impl KubeletProcess {
    /// It is this process from now on: its end and its READY=1 are told.
    fn follow(&mut self, started: StartedKubelet) -> u32 {
        let StartedKubelet { mut child, relay } = started;
        self.relays.retain(|relay| !relay.is_ended());
        let mut last_lines = None;
        match relay {
            Some((relay, ended)) => {
                self.relays.push(relay);
                last_lines = Some(ended);
            }
            None => self.relays.clear(),
        }
        let id = child.id().unwrap_or_default();
        self.pid.set(i32::try_from(id).unwrap_or_default());
        self.await_ready();
        let (pid, inputs) = (self.pid.clone(), self.inputs.clone());
        tokio::spawn(async move {
            let exit = exit_of(&child.wait().await);
            pid.reaped();
            await_last_words(last_lines).await;
            // The daemon is gone only when the supervisor ends.
            let _ = inputs.send(Input::Exited(exit));
        });
        id
    }

    /// Where no READY=1 can come, time stands for it.
    fn await_ready(&self) {
        let ReadySignal::RunsFor(time) = self.run.ready else { return };
        let (pid, started, inputs) = (self.pid.clone(), self.pid.get(), self.inputs.clone());
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            if started.is_some() && pid.get() == started {
                let _ = inputs.send(Input::Ready);
            }
        });
    }
}

/// What it wrote and said before its end comes first: lines on stderr, and READY=1, which lies in the notify socket by now. A
/// task that yields goes on after all that are woken by what can be read.
async fn await_last_words(last_lines: Option<oneshot::Receiver<()>>) {
    if let Some(last_lines) = last_lines {
        let _ = tokio::time::timeout(LAST_LINES_TIMEOUT, last_lines).await;
    }
    tokio::task::yield_now().await;
}

impl Drop for KubeletProcess {
    fn drop(&mut self) {
        for relay in &self.relays {
            relay.drain(DRAIN_TIMEOUT);
        }
    }
}
