//! The loop: inputs → step → effects.

pub mod exec;
pub mod failopen;
pub mod settings;
pub mod wire;

use std::cell::Cell;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::core::machine::Input;
use crate::ports::{Clock, Ports};
use exec::Executor;

/// Signals that end the supervisor, and those that are passed on to the kubelet.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    forwarded: [(nix::sys::signal::Signal, Signal); 4],
}

impl Signals {
    /// Takes over the signals.
    ///
    /// # Errors
    /// As the system gives them.
    pub fn register() -> std::io::Result<Self> {
        use nix::sys::signal::Signal::{SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
        let forward =
            |kind: nix::sys::signal::Signal| signal(SignalKind::from_raw(kind as i32)).map(|stream| (kind, stream));
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            forwarded: [forward(SIGHUP)?, forward(SIGQUIT)?, forward(SIGUSR1)?, forward(SIGUSR2)?],
        })
    }
}

/// What woke the loop.
enum Woken {
    Input(Input),
    Forward(nix::sys::signal::Signal),
    /// SIGTERM or SIGINT.
    Leave,
}

/// Runs until the machine quits. True if it ended by the second SIGTERM; `leaving` is set by the
/// first.
pub async fn run<P: Ports>(
    executor: &mut Executor<P>,
    inputs: &mut UnboundedReceiver<Input>,
    signals: &mut Signals,
    clock: &impl Clock,
    forward: impl Fn(nix::sys::signal::Signal),
    leaving: &Cell<bool>,
) -> bool {
    let mut go_on = executor.boot(clock.now());
    while go_on {
        let input = match wake(executor.state.deadline(), inputs, signals, clock).await {
            Woken::Input(input) => input,
            Woken::Forward(kind) => {
                forward(kind);
                continue;
            }
            Woken::Leave if leaving.get() => {
                executor.ports.kubelet().kill();
                return true;
            }
            Woken::Leave => {
                leaving.set(true);
                Input::Shutdown
            }
        };
        go_on = executor.handle(input, clock.now());
    }
    false
}

async fn wake(
    deadline: Option<Duration>,
    inputs: &mut UnboundedReceiver<Input>,
    signals: &mut Signals,
    clock: &impl Clock,
) -> Woken {
    let [hangup, quit, user1, user2] = &mut signals.forwarded;
    let due = async {
        match deadline {
            // A moment more, so that the deadline has passed by the boot clock too.
            Some(at) => tokio::time::sleep(at.saturating_sub(clock.now().boot) + Duration::from_millis(1)).await,
            None => std::future::pending().await,
        }
    };
    // Every arm is cancel-safe: channels and signal streams keep what was not taken, and the
    // deadline is computed anew. Signals go first: with KillMode=control-group systemd signals the
    // kubelet too, and its end must not be taken for a crash.
    tokio::select! {
        biased;
        _ = signals.terminate.recv() => Woken::Leave,
        _ = signals.interrupt.recv() => Woken::Leave,
        input = inputs.recv() => Woken::Input(input.unwrap_or(Input::Tick)),
        () = due => Woken::Input(Input::Tick),
        _ = hangup.1.recv() => Woken::Forward(hangup.0),
        _ = quit.1.recv() => Woken::Forward(quit.0),
        _ = user1.1.recv() => Woken::Forward(user1.0),
        _ = user2.1.recv() => Woken::Forward(user2.0),
    }
}
