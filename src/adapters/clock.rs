//! The clocks.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd, RawFd};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{self, Expiration, TimerFlags, TimerSetTimeFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::UnboundedSender;

use super::inotify::register;
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
#[derive(Debug)]
struct SetTimer(timerfd::TimerFd);

impl AsRawFd for SetTimer {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl SetTimer {
    fn start() -> io::Result<AsyncFd<Self>> {
        let timer = timerfd::TimerFd::new(
            timerfd::ClockId::CLOCK_REALTIME,
            TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC,
        )?;
        let never = TimeSpec::new(nix::libc::time_t::MAX, 0);
        let flags = TimerSetTimeFlags::TFD_TIMER_ABSTIME | TimerSetTimeFlags::TFD_TIMER_CANCEL_ON_SET;
        timer.set(Expiration::OneShot(never), flags)?;
        register(Self(timer), Interest::READABLE)
    }
}

/// Begins to watch the wall clock: each time that it is set is one [`Input::ClockSet`]. It may run fast or slow unnoticed.
pub(crate) fn watch(inputs: UnboundedSender<Input>) {
    match SetTimer::start() {
        Ok(timer) => drop(tokio::spawn(run(timer, inputs))),
        Err(error) => tracing::warn!(
            "the wall clock is not watched (timerfd: {error}): what was refused as out of date is asked again at the next \
             change or restart"
        ),
    }
}

async fn run(timer: AsyncFd<SetTimer>, inputs: UnboundedSender<Input>) {
    while let Ok(mut ready) = timer.readable().await {
        match timer.get_ref().0.wait() {
            Ok(()) if inputs.send(Input::ClockSet).is_err() => return,
            Ok(()) => {}
            Err(_) => ready.clear_ready(), // EAGAIN; nothing else is known to happen
        }
    }
}
