//! Go's duration syntax (`time.ParseDuration`), without the panics of other parsers.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A non-negative duration written as Go writes it: `10m`, `1h30m`, `1.5s`, `300ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoDuration(pub Duration);

const UNITS: [(&str, f64); 7] = [
    // Longer names first: "ms" must not be read as "m".
    ("ns", 1.0),
    ("us", 1e3),
    ("µs", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("m", 60e9),
    ("h", 3600e9),
];

impl FromStr for GoDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || format!("invalid duration {text:?}: use Go syntax such as 10m, 1h30m or 90s");
        let mut rest = text.strip_prefix('+').unwrap_or(text);
        if rest == "0" {
            return Ok(Self(Duration::ZERO));
        }
        if rest.is_empty() {
            return Err(error());
        }
        let mut nanos = 0.0_f64;
        while !rest.is_empty() {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(error)?;
            let (number, tail) = rest.split_at(end);
            let number: f64 = number.parse().map_err(|_| error())?;
            let (unit, scale) = UNITS
                .iter()
                .filter(|(unit, _)| tail.starts_with(unit))
                .max_by_key(|(unit, _)| unit.len())
                .ok_or_else(error)?;
            nanos += number * scale;
            rest = tail.get(unit.len()..).unwrap_or_default();
        }
        // Go's range: int64 nanoseconds, about 292 years.
        if !(0.0..=9.2e18).contains(&nanos) {
            return Err(error());
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // range checked above
        Ok(Self(Duration::from_nanos(nanos as u64)))
    }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if hours > 0 || minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        match self.0.subsec_millis() {
            0 => write!(f, "{rest}s"),
            millis => write!(f, "{rest}.{millis:03}s"),
        }
    }
}

/// Doubles `first` `attempt` times, up to `max`.
#[must_use]
pub fn backoff(first: Duration, max: Duration, attempt: u32) -> Duration {
    first.saturating_mul(1u32 << attempt.min(16)).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_go_reads() {
        for (text, millis) in [
            ("10m", 600_000),
            ("1h30m", 5_400_000),
            ("1.5s", 1_500),
            ("300ms", 300),
            ("10m0s", 600_000),
            ("0", 0),
            (".5s", 500),
            ("1000000ns", 1),
            ("+5s", 5_000),
        ] {
            let parsed: GoDuration = text.parse().expect(text);
            assert_eq!(parsed.0.as_millis(), millis, "{text}");
        }
    }

    #[test]
    fn refuses_what_go_refuses_and_negative_ones() {
        for text in ["", "5", "s", "5s-3s", "-5s", "+-5s", "99999999999999999999999h", "1x", "1..s", "é"] {
            assert!(text.parse::<GoDuration>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,20}") {
            let _ = text.parse::<GoDuration>();
        }

        #[test]
        fn display_is_read_back(millis in 0_u64..10_000_000_000) {
            let duration = GoDuration(Duration::from_millis(millis));
            prop_assert_eq!(duration.to_string().parse::<GoDuration>().unwrap(), duration);
        }
    }
}
