//! `spec.rollout.windows`: when Nodes may be given a new revision.

use std::time::Duration;

use jiff::civil::Time;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan as _};

use super::types::MaintenanceWindow;

/// The longest window, in days, and the farthest next one: both are a week.
const WEEK: i64 = 7;

/// Whether a window is open, and until when that is so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Windows {
    /// There are none: everything may begin at any time.
    None,
    OpenUntil(Timestamp),
    ClosedUntil(Timestamp),
}

impl Windows {
    /// # Errors
    /// What is wrong with a window, for people.
    pub(crate) fn at(windows: &[MaintenanceWindow], now: Timestamp) -> Result<Self, String> {
        let mut state = Self::None;
        for (index, window) in windows.iter().enumerate() {
            let fault = |why: String| format!("spec.rollout.windows[{index}]{why}");
            state = state.or(window.at(now).map_err(fault)?);
        }
        Ok(state)
    }

    /// How long it stays so; none: for ever.
    pub(crate) fn lasts(self, now: Timestamp) -> Option<Duration> {
        match self {
            Self::None => None,
            Self::OpenUntil(then) | Self::ClosedUntil(then) => Some(then.duration_since(now).unsigned_abs()),
        }
    }

    /// Open if one of them is: until the last closes, or the first opens.
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::None, it) | (it, Self::None) => it,
            (Self::OpenUntil(one), Self::OpenUntil(other)) => Self::OpenUntil(one.max(other)),
            (Self::ClosedUntil(one), Self::ClosedUntil(other)) => Self::ClosedUntil(one.min(other)),
            (open @ Self::OpenUntil(_), _) | (_, open) => open,
        }
    }
}

impl MaintenanceWindow {
    fn at(&self, now: Timestamp) -> Result<Windows, String> {
        let zone = TimeZone::get(&self.time_zone).map_err(|_| {
            format!(".timeZone {:?}: no time zone of the IANA database, such as Europe/Rome or UTC", self.time_zone)
        })?;
        let begins = Time::strptime("%H:%M", &self.start)
            .map_err(|_| format!(".start {:?}: a time such as 02:00 is needed", self.start))?;
        if !(1..=168).contains(&self.hours) {
            return Err(format!(".hours {}: from 1 to 168 (a week)", self.hours));
        }
        let length = SignedDuration::from_hours(self.hours.into());
        let today = now.to_zoned(zone.clone()).date();
        let mut next = None;
        // One that is open began within the last week, by the clocks of the zone.
        for offset in -WEEK..=WEEK + 1 {
            let Ok(date) = today.checked_add(offset.days()) else { continue };
            // Both have Monday first.
            let weekday = date.weekday().to_monday_zero_offset();
            if !self.days.is_empty() && !self.days.iter().any(|day| *day as i8 == weekday) {
                continue;
            }
            // A start that the clocks skip comes after them, one that they repeat the first time.
            let Ok(start) = zone.to_ambiguous_zoned(date.to_datetime(begins)).compatible() else { continue };
            let start = start.timestamp();
            if start > now {
                next = Some(start);
                break;
            }
            if let Ok(end) = start.checked_add(length)
                && now < end
            {
                return Ok(Windows::OpenUntil(end));
            }
        }
        next.map(Windows::ClosedUntil).ok_or_else(|| ": it never opens".to_owned())
    }
}

#[cfg(test)]
mod tests;
