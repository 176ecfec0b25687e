//! The loop: inputs → step → effects.

pub(crate) mod admission;
pub mod exec;
pub mod failopen;
pub mod render;
pub(crate) mod settings;
mod signals;
pub mod store_worker;
pub(crate) mod wire;

use std::cell::Cell;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::machine::{Input, limits};
use crate::ports::{Clock, Ports};
use exec::Executor;
pub use signals::Signals;

/// What woke the loop.
enum WakeUp {
    Input(Input),
    Forward(Signal),
    /// SIGTERM or SIGINT.
    Shutdown,
}

/// Runs until the machine quits; gives the supervisor's exit code, 1 if it ended by the second
/// SIGTERM. `leaving` is set by the first.
pub async fn run<P: Ports>(
    executor: &mut Executor<P>,
    inputs: &mut UnboundedReceiver<Input>,
    signals: &Signals,
    clock: &impl Clock,
    forward: impl Fn(Signal),
    leaving: &Cell<bool>,
) -> u8 {
    let mut go_on = executor.boot(clock.now());
    while go_on {
        let input = match wake(executor.state.deadline(), inputs, signals, clock).await {
            WakeUp::Input(input) => input,
            WakeUp::Forward(kind) => {
                forward(kind);
                continue;
            }
            WakeUp::Shutdown if leaving.get() => {
                executor.ports.kubelet().kill();
                return 1;
            }
            WakeUp::Shutdown => {
                leaving.set(true);
                Input::Shutdown
            }
        };
        go_on = executor.handle(input, clock.now());
    }
    // What the next start must know is on its way to the disk; a disk that stalls must not hold up a shutdown.
    executor.ports.store().finish(limits::LOAD_DEADLINE);
    0
}

async fn wake(
    deadline: Option<Duration>,
    inputs: &mut UnboundedReceiver<Input>,
    signals: &Signals,
    clock: &impl Clock,
) -> WakeUp {
    let due = async {
        match deadline {
            // A moment more, so that the deadline has passed by the boot clock too.
            Some(at) => tokio::time::sleep(at.saturating_sub(clock.now().boot) + Duration::from_millis(1)).await,
            None => std::future::pending().await,
        }
    };
    // Every arm is cancel-safe: signals and channel keep what was not taken, and the deadline is
    // computed anew. Signals go first: with KillMode=control-group systemd signals the kubelet too,
    // and its end must not be taken for a crash.
    tokio::select! {
        biased;
        signal = signals.next() => match signal {
            Signal::SIGTERM | Signal::SIGINT => WakeUp::Shutdown,
            forwarded => WakeUp::Forward(forwarded),
        },
        input = inputs.recv() => WakeUp::Input(input.unwrap_or(Input::Tick)),
        () = due => WakeUp::Input(Input::Tick),
    }
}
