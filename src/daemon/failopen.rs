//! Law 1 to the end: after a panic in the loop the supervisor decides nothing any more. It keeps the
//! kubelet, or starts it with the node's own arguments if there is none, passes signals on, and ends
//! with it, so that systemd starts both anew.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use futures_util::FutureExt as _;
use nix::sys::signal::Signal;
use tokio::sync::mpsc::UnboundedReceiver;

use super::exec::Executor;
use super::{Signals, WakeUp, run, wake};
use crate::machine::{Input, limits};
use crate::ports::{Clock, Ports};

/// Between checks of the child, and between attempts to start it.
const PAUSE: Duration = Duration::from_secs(1);

/// Exit code after a panic, whatever the kubelet's: systemd shall see a failure.
const FAILED: u8 = 1;

/// The kubelet process and systemd, without machine and ports. Nothing here may depend on what a panic can leave half-done.
pub trait KubeletControl {
    /// True while the process exists.
    fn is_alive(&self) -> bool;
    /// True if it was sent SIGTERM or SIGKILL: its end is near, and was asked for.
    fn is_stopping(&self) -> bool;
    /// Sends a signal, if there is a process.
    fn signal(&self, signal: Signal);
    /// Tells systemd that the kubelet is ready.
    fn ready(&self);
    /// Tells systemd what is going on.
    fn status(&self, text: &str);
    /// Pings systemd's watchdog, if there is one.
    fn ping_watchdog(&self);
}

/// Runs the machine until it quits, or, after a panic, keeps the kubelet until that ends. Gives
/// the supervisor's exit code.
pub async fn run_guarded<P: Ports>(
    executor: &mut Executor<P>,
    queue: &mut UnboundedReceiver<Input>,
    signals: &Signals,
    clock: &impl Clock,
    control: &impl KubeletControl,
) -> u8 {
    let leaving = Cell::new(false);
    let work = run(executor, queue, signals, clock, |kind| control.signal(kind), &leaving);
    let panic = match AssertUnwindSafe(work).catch_unwind().await {
        Ok(code) => return code,
        Err(panic) => panic,
    };
    let what = panic_message(panic.as_ref());
    tracing::error!(
        "internal error: {what}; the kubelet runs on without configuration changes; restart kubelet.service when convenient"
    );
    control.status(&format!("internal error: {what}; restart kubelet.service when convenient"));
    keep_kubelet(executor, queue, signals, clock, control, leaving.get()).await
}

async fn keep_kubelet<P: Ports>(
    executor: &mut Executor<P>,
    queue: &mut UnboundedReceiver<Input>,
    signals: &Signals,
    clock: &impl Clock,
    control: &impl KubeletControl,
    mut leaving: bool,
) -> u8 {
    let now = || clock.now().boot;
    // One that was being stopped for a change is followed by another; one that ends by itself is a
    // good moment for a whole supervisor.
    let mut end_with_it = control.is_alive() && !control.is_stopping();
    // The machine would have seen to a kubelet that does not mind SIGTERM.
    let mut kill_at = control.is_stopping().then(|| now() + limits::STOP_GRACE);
    let mut start_at = now();
    if leaving {
        control.signal(Signal::SIGTERM); // maybe once more: it only makes the kubelet end at once
        kill_at = Some(now() + limits::STOP_GRACE);
    }
    // A kubelet that pings is relayed, and nothing more; see `machine/watchdog.rs`.
    let mut pings = false;
    loop {
        pings &= control.is_alive();
        if !pings {
            control.ping_watchdog();
        }
        if control.is_alive() {
            if kill_at.is_some_and(|at| now() >= at) {
                control.signal(Signal::SIGKILL);
                kill_at = None;
            }
        } else if leaving || end_with_it {
            return FAILED;
        } else if now() >= start_at {
            start_at = now() + PAUSE;
            kill_at = None;
            start(executor);
            end_with_it = control.is_alive();
        }
        match wake(Some(now() + PAUSE), queue, signals, clock).await {
            WakeUp::Shutdown if leaving => {
                control.signal(Signal::SIGKILL);
                return FAILED;
            }
            WakeUp::Shutdown => {
                leaving = true;
                control.signal(Signal::SIGTERM);
                kill_at = Some(now() + limits::STOP_GRACE);
            }
            WakeUp::Forward(kind) => control.signal(kind),
            // A service of Type=notify that is starting waits for it.
            WakeUp::Input(Input::Ready) => control.ready(),
            WakeUp::Input(Input::Watchdog) => {
                pings = true;
                control.ping_watchdog();
            }
            WakeUp::Input(_) => {}
        }
    }
}

/// Starts the kubelet with its own arguments and nothing else.
fn start<P: Ports>(executor: &mut Executor<P>) {
    match catch_unwind(AssertUnwindSafe(|| executor.ports.kubelet().start(None))) {
        Ok(Ok(pid)) => tracing::warn!("kubelet started, pid {pid}, with its own arguments"),
        Ok(Err(why)) => tracing::error!("the kubelet could not be started: {why}; trying again"),
        Err(panic) => tracing::error!("internal error: {}; trying again", panic_message(panic.as_ref())),
    }
}

/// The message of a panic.
#[must_use]
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".to_owned())
}
