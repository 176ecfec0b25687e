//! When a record was written, as far as its format says: klog's has no year.

/// Days before each month, in a year without 29 February.
const DAYS: [u32; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
const DAY: f64 = 86_400.0;

/// A moment, to be compared with others of the same log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Time {
    /// Local time without a year: klog's.
    InYear { month: u32, day: u32, second: f64 },
    /// Seconds since 1970: that of JSON.
    Epoch(f64),
}

impl Time {
    /// From `1126` and `22:20:24.890620`.
    pub(super) fn of_klog(date: &str, clock: &str) -> Option<Self> {
        Self::in_year(date.get(..2)?, date.get(2..)?, clock)
    }

    /// From `2026-11-28T22:20:24.1Z` or `2026/11/28 22:20:24`.
    pub(super) fn of_date(text: &str) -> Option<Self> {
        is_date(text).then(|| Self::in_year(text.get(5..7)?, text.get(8..10)?, text.get(11..)?))?
    }

    /// From a number in JSON: milliseconds, as Kubernetes writes it, or seconds.
    pub(super) fn of_number(number: f64) -> Self {
        // Seconds get there in the year 5138.
        Self::Epoch(if number > 1e11 { number / 1000.0 } else { number })
    }

    fn in_year(month: &str, day: &str, clock: &str) -> Option<Self> {
        let (month, day) = (month.parse().ok()?, day.parse().ok()?);
        let mut parts = clock.splitn(3, ':');
        let (hour, minute): (u32, u32) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let rest = parts.next()?;
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let second: f64 = rest.get(..end)?.parse().ok()?;
        let known = (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60;
        known.then(|| Self::InYear { month, day, second: f64::from(hour * 3600 + minute * 60) + second })
    }

    /// Seconds from this to a later record; none if the clock was set back, `None` if the two cannot be compared.
    pub(crate) fn until(self, later: Self) -> Option<f64> {
        match (self, later) {
            (Self::Epoch(from), Self::Epoch(to)) => Some((to - from).max(0.0)),
            (Self::InYear { .. }, Self::InYear { .. }) => {
                // Nobody says whether there is a 29 February between them: the shorter way is right in either year.
                let [short, long] = [0, 1].map(|leap| later.of_year(leap) - self.of_year(leap));
                let gap = if short.abs() < long.abs() { short } else { long };
                // From December to January.
                let gap = if gap < -300.0 * DAY { gap + 365.0 * DAY } else { gap };
                Some(gap.max(0.0))
            }
            _ => None,
        }
    }

    /// Seconds since the year began.
    fn of_year(self, leap: u32) -> f64 {
        match self {
            Self::Epoch(seconds) => seconds,
            Self::InYear { month, day, second } => {
                let before = DAYS.get(month as usize - 1).copied().unwrap_or_default();
                // Without a leap day, 29 February and 1 March are two names of one day.
                let leap = if month > 2 { leap } else { 0 };
                f64::from(before + day + leap) * DAY + second
            }
        }
    }
}

/// True for what begins as a date with a year does.
pub(super) fn is_date(text: &str) -> bool {
    let form = |at: usize, c: char| match at {
        4 | 7 => c == '-' || c == '/',
        _ => c.is_ascii_digit(),
    };
    text.len() >= 10 && text.chars().take(10).enumerate().all(|(at, c)| form(at, c))
}

pub(super) fn is_month(text: &str) -> bool {
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"].contains(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(from: (&str, &str), to: (&str, &str)) -> Option<f64> {
        Time::of_klog(from.0, from.1)?.until(Time::of_klog(to.0, to.1)?)
    }

    #[test]
    fn gaps_are_right_without_a_year() {
        assert_eq!(gap(("1128", "22:20:24.5"), ("1128", "22:20:26.0")), Some(1.5));
        assert_eq!(gap(("1231", "23:59:59.000000"), ("0101", "00:00:01.000000")), Some(2.0));
        assert_eq!(gap(("0228", "23:59:59.0"), ("0301", "00:00:01.0")), Some(2.0));
        assert_eq!(gap(("0229", "23:59:59.0"), ("0301", "00:00:01.0")), Some(2.0));
        assert_eq!(gap(("0131", "00:00:00.0"), ("0201", "00:00:00.0")), Some(DAY));
        // A clock that is set back makes nothing old.
        assert_eq!(gap(("1128", "22:20:26.0"), ("1128", "20:20:24.0")), Some(0.0));
        assert_eq!(Time::of_number(1_700_000_000_500.0), Time::Epoch(1_700_000_000.5));
        assert_eq!(Time::of_number(1.5).until(Time::of_number(3.5)), Some(2.0));
        assert_eq!(Time::of_date("2026/11/28 22:20:24"), Time::of_klog("1128", "22:20:24"));
        assert_eq!(Time::of_date("2026-11-28T22:20:24.5Z"), Time::of_klog("1128", "22:20:24.5"));
        for wrong in [("1328", "1:1:1"), ("1100", "1:1:1"), ("1101", "24:1:1"), ("1101", "1:1"), ("1101", "x")] {
            assert_eq!(Time::of_klog(wrong.0, wrong.1), None, "{wrong:?}");
        }
    }
}
