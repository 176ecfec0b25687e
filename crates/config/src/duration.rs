//! Go's duration syntax (`time.ParseDuration`), without the panics of other parsers.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A non-negative duration written as Go writes it: `10m`, `1h30m`, `1.5s`, `300ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoDuration(pub Duration);

/// Nanoseconds of each unit.
const UNITS: [(&str, u64); 8] = [
    // Longer names first: "ms" must not be read as "m".
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// A length of time in nanoseconds, negative ones too, as time.ParseDuration reads it; `None` if that refuses it.
#[must_use]
pub fn nanos(text: &str) -> Option<i64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut sum = 0_u64;
    while !rest.is_empty() {
        let (number, tail) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.')?);
        let (unit, scale) = UNITS.iter().find(|(unit, _)| {
            let letters = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
            tail.get(..letters) == Some(unit)
        })?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.len() + fraction.len() == 0 || fraction.contains('.') {
            return None;
        }
        let count: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        sum = sum.checked_add(count.checked_mul(*scale)?)?.checked_add(part(fraction, *scale)?)?;
        rest = tail.get(unit.len()..)?;
    }
    Some(sign * i64::try_from(sum).ok()?)
}

/// Of a unit the decimals, cut off below a nanosecond.
fn part(fraction: &str, scale: u64) -> Option<u64> {
    let digits = fraction.get(..fraction.len().min(15))?;
    let count: u128 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    let power = 10_u128.checked_pow(u32::try_from(digits.len()).ok()?)?;
    u64::try_from(count * u128::from(scale) / power).ok()
}

impl FromStr for GoDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let nanos = nanos(text).and_then(|nanos| u64::try_from(nanos).ok());
        let wrong = || format!("invalid duration {text:?}: use Go syntax such as 10m, 1h30m or 90s");
        nanos.map(|nanos| Self(Duration::from_nanos(nanos))).ok_or_else(wrong)
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
