//! The loop: inputs → step → effects.

pub(crate) mod admission;
pub mod exec;
pub mod render;
pub(crate) mod settings;
pub mod store_worker;
pub(crate) mod wire;

use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;

use crate::machine::model::Beginning;
use crate::machine::{Input, limits};
use crate::ports::{Clock, Ports};
use exec::Executor;

/// The machine is stepped as often as this, and the monitor hears of each step: who says nothing for 30 s hangs.
const BEAT: Duration = Duration::from_secs(10);

/// Runs until the machine quits.
pub async fn run<P: Ports>(
    executor: &mut Executor<P>,
    inputs: &mut UnboundedReceiver<Input>,
    clock: &impl Clock,
    beginning: Beginning,
) {
    let mut go_on = executor.boot(clock.now(), beginning);
    while go_on {
        let left = executor.state.deadline().map_or(BEAT, |at| at.saturating_sub(clock.now().boot));
        // A moment more, so that the deadline has passed by the boot clock too. The channel keeps what was not taken.
        let input = tokio::time::timeout(left.min(BEAT) + Duration::from_millis(1), inputs.recv()).await;
        go_on = executor.handle(input.ok().flatten().unwrap_or(Input::Tick), clock.now());
    }
    // What the next start must know is on its way to the disk; a disk that stalls must not hold up a shutdown.
    executor.ports.store().finish(limits::LOAD_DEADLINE);
}
