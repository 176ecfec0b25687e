//! The clocks.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::UnboundedSender;

use super::inotify::{Raw, register};
use crate::machine::Input;
use crate::machine::model::Moment;
use crate::os::boot_time;
use crate::ports::Clock;

/// CLOCK_BOOTTIME for decisions, the wall clock for people.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Moment {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Moment { boot: boot_time(), wall_nanos: u64::try_from(wall.as_nanos()).unwrap_or_default() }
    }
}

/// Tells one boot of the machine from another; 0 if the kernel does not say.
#[must_use]
pub fn boot_id() -> u128 {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    u128::from_str_radix(&text.trim().replace('-', ""), 16).unwrap_or_default()
}

/// A timer that never fires and ends when somebody sets the wall clock (timerfd_create(2), TFD_TIMER_CANCEL_ON_SET).
fn set_timer() -> io::Result<AsyncFd<Raw<TimerFd>>> {
    let timer = TimerFd::new(ClockId::CLOCK_REALTIME, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
    let never = TimeSpec::new(nix::libc::time_t::MAX, 0);
    let flags = TimerSetTimeFlags::TFD_TIMER_ABSTIME | TimerSetTimeFlags::TFD_TIMER_CANCEL_ON_SET;
    timer.set(Expiration::OneShot(never), flags)?;
    register(timer)
}

/// Begins to watch the wall clock: each time that it is set is one [`Input::ClockSet`]. It may run fast or slow unnoticed.
pub(crate) fn watch(inputs: UnboundedSender<Input>) {
    match set_timer() {
        Ok(timer) => drop(tokio::spawn(run(timer, inputs))),
        Err(error) => tracing::warn!(
            "the wall clock is not watched (timerfd: {error}): what was refused as out of date is asked again at the next \
             change or restart"
        ),
    }
}

async fn run(timer: AsyncFd<Raw<TimerFd>>, inputs: UnboundedSender<Input>) {
    while let Ok(mut ready) = timer.readable().await {
        match timer.get_ref().0.wait() {
            Ok(()) if inputs.send(Input::ClockSet).is_err() => return,
            Ok(()) => {}
            Err(_) => ready.clear_ready(), // EAGAIN; nothing else is known to happen
        }
    }
}
