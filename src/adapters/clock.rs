//! The clocks.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};

use crate::machine::model::Moment;
use crate::ports::Clock;

/// CLOCK_BOOTTIME for decisions, the wall clock for people.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Moment {
        // Cannot fail on Linux; a clock at zero would only keep deadlines from passing.
        let boot = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Moment { boot, wall_nanos: u64::try_from(wall.as_nanos()).unwrap_or_default() }
    }
}

/// Tells one boot of the machine from another; 0 if the kernel does not say.
#[must_use]
pub fn boot_id() -> u128 {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    u128::from_str_radix(&text.trim().replace('-', ""), 16).unwrap_or_default()
}
