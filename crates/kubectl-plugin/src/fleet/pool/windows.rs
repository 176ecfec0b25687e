//! `spec.rollout.windows`: when Nodes may be given a new revision.

use std::time::Duration;

use jiff::civil::{Time, Weekday};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan as _};

use super::types::{Day, MaintenanceWindow};

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
            if !self.days.is_empty() && !self.days.iter().any(|day| weekday(*day) == date.weekday()) {
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

fn weekday(day: Day) -> Weekday {
    match day {
        Day::Mon => Weekday::Monday,
        Day::Tue => Weekday::Tuesday,
        Day::Wed => Weekday::Wednesday,
        Day::Thu => Weekday::Thursday,
        Day::Fri => Weekday::Friday,
        Day::Sat => Weekday::Saturday,
        Day::Sun => Weekday::Sunday,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(windows: Value, now: &str) -> Result<Windows, String> {
        let windows: Vec<MaintenanceWindow> = serde_json::from_value(windows).unwrap();
        Windows::at(&windows, now.parse().unwrap())
    }

    fn open(until: &str) -> Windows {
        Windows::OpenUntil(until.parse().unwrap())
    }

    fn closed(until: &str) -> Windows {
        Windows::ClosedUntil(until.parse().unwrap())
    }

    #[test]
    fn a_day_is_that_of_the_start() {
        // 2026-01-05 is a Monday.
        let night = json!([{"days": ["Mon"], "start": "22:00", "hours": 4}]);
        assert_eq!(at(night.clone(), "2026-01-05T21:59:59Z").unwrap(), closed("2026-01-05T22:00:00Z"));
        assert_eq!(at(night.clone(), "2026-01-05T22:00:00Z").unwrap(), open("2026-01-06T02:00:00Z"));
        assert_eq!(
            at(night.clone(), "2026-01-06T01:00:00Z").unwrap(),
            open("2026-01-06T02:00:00Z"),
            "Tuesday, past midnight"
        );
        assert_eq!(at(night.clone(), "2026-01-06T02:00:00Z").unwrap(), closed("2026-01-12T22:00:00Z"));
        assert_eq!(
            at(night, "2026-01-05T01:00:00Z").unwrap(),
            closed("2026-01-05T22:00:00Z"),
            "Monday, before it begins"
        );
    }

    #[test]
    fn clocks_are_those_of_the_zone() {
        let rome = json!([{"start": "02:30", "hours": 1, "timeZone": "Europe/Rome"}]);
        assert_eq!(at(rome.clone(), "2026-01-05T01:30:00Z").unwrap(), open("2026-01-05T02:30:00Z"), "CET");
        assert_eq!(at(rome.clone(), "2026-07-05T00:30:00Z").unwrap(), open("2026-07-05T01:30:00Z"), "CEST");
        // On 2026-03-29 clocks go from 02:00 to 03:00, on 2026-10-25 from 03:00 back to 02:00.
        assert_eq!(at(rome.clone(), "2026-03-29T01:15:00Z").unwrap(), closed("2026-03-29T01:30:00Z"), "02:30 is 03:30");
        assert_eq!(at(rome.clone(), "2026-10-25T00:45:00Z").unwrap(), open("2026-10-25T01:30:00Z"), "the first 02:30");
        assert_eq!(at(rome, "2026-10-25T01:45:00Z").unwrap(), closed("2026-10-26T01:30:00Z"), "and not the second");
    }

    #[test]
    fn hours_are_hours_whatever_clocks_do() {
        let rome = json!([{"days": ["Sat"], "start": "22:00", "hours": 8, "timeZone": "Europe/Rome"}]);
        assert_eq!(
            at(rome, "2026-03-28T22:00:00Z").unwrap(),
            open("2026-03-29T05:00:00Z"),
            "07:00, and 06:00 in other weeks"
        );
    }

    #[test]
    fn one_that_is_open_is_enough() {
        let two = json!([{"start": "01:00", "hours": 2}, {"start": "02:00", "hours": 2}]);
        assert_eq!(at(two.clone(), "2026-01-05T01:30:00Z").unwrap(), open("2026-01-05T03:00:00Z"));
        assert_eq!(at(two.clone(), "2026-01-05T02:30:00Z").unwrap(), open("2026-01-05T04:00:00Z"));
        assert_eq!(at(two, "2026-01-05T12:00:00Z").unwrap(), closed("2026-01-06T01:00:00Z"));
        assert_eq!(at(json!([]), "2026-01-05T12:00:00Z").unwrap(), Windows::None);
        let week = json!([{"days": ["Mon"], "start": "00:00", "hours": 168}]);
        assert_eq!(at(week, "2026-01-11T23:59:59Z").unwrap(), open("2026-01-12T00:00:00Z"), "always open");
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let fault = |window: Value| at(json!([window]), "2026-01-05T12:00:00Z").unwrap_err();
        let zone = fault(json!({"start": "02:00", "hours": 1, "timeZone": "Europe/Rom"}));
        assert!(zone.starts_with("spec.rollout.windows[0].timeZone \"Europe/Rom\""), "{zone}");
        assert!(fault(json!({"start": "25:00", "hours": 1})).contains(".start \"25:00\""));
        assert!(fault(json!({"start": "02:00", "hours": 0})).contains(".hours 0"));
    }
}
