//! Kubernetes quantities (`ParseQuantity`, apimachinery/pkg/api/resource, v1.20.2): `100Mi`,
//! `1.5`, `500m`, `1e3`.

/// The whole number a quantity stands for, rounded up as `Quantity.Value` does: bytes, pods,
/// cores. `None` if it is no quantity, negative, or beyond all measure.
#[must_use]
pub fn whole(text: &str) -> Option<u64> {
    scaled(text, 0)
}

/// The same in thousandths, as `Quantity.MilliValue` does: millicores.
#[must_use]
pub fn millis(text: &str) -> Option<u64> {
    scaled(text, 3)
}

/// The same in billionths, negative ones too: no quantity has anything smaller. Two that are equal are one amount.
#[must_use]
pub fn nanos(text: &str) -> Option<i128> {
    match text.strip_prefix('-') {
        Some(text) => times(text, 9).map(|amount| -amount),
        None => times(text.strip_prefix('+').unwrap_or(text), 9),
    }
}

/// `text` times 10^`scale`, rounded up.
fn scaled(text: &str, scale: i32) -> Option<u64> {
    u64::try_from(times(text.strip_prefix('+').unwrap_or(text), scale)?).ok()
}

/// The same of a text without a sign.
fn times(text: &str, scale: i32) -> Option<i128> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || fraction.contains('.') {
        return None;
    }
    let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
    // 18 and 9 digits are more than any capacity has, and leave room for what follows.
    if whole.len() > 18 || fraction.len() > 9 {
        return None;
    }
    let digits: u128 = format!("0{whole}{fraction}").parse().ok()?;
    let (binary, decimal) = unit(suffix)?;
    let exponent = decimal + scale - i32::try_from(fraction.len()).ok()?;
    let power = 10_u128.checked_pow(exponent.unsigned_abs())?;
    let value = digits.checked_mul(1 << binary)?;
    let value = if exponent < 0 { value.div_ceil(power) } else { value.checked_mul(power)? };
    i128::try_from(value).ok()
}

/// Suffixes by powers of 1024, from the first on, ...
const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
/// ... and by powers of 1000, from that of -3 on.
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];

/// A suffix as a power of two and one of ten.
fn unit(suffix: &str) -> Option<(u32, i32)> {
    let binary = BINARY.iter().zip(1..).find(|(unit, _)| **unit == suffix).map(|(_, power)| (10 * power, 0));
    let decimal = || DECIMAL.iter().zip(-3..).find(|(unit, _)| **unit == suffix).map(|(_, power)| (0, 3 * power));
    binary.or_else(decimal).or_else(|| {
        let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
        Some((0, Some(exponent).filter(|exponent| exponent.unsigned_abs() <= 18)?))
    })
}

/// Bytes for people: the largest unit, at the most one decimal.
#[must_use]
pub fn bytes(count: u64) -> String {
    let mut unit = 1_u64;
    let mut name = "";
    for next in BINARY.into_iter().take(5) {
        if count / unit < 1024 {
            break;
        }
        unit *= 1024;
        name = next;
    }
    let tenths = u128::from(count) * 10 / u128::from(unit);
    let (whole, tenth) = (tenths / 10, tenths % 10);
    if tenth == 0 { format!("{whole}{name}") } else { format!("{whole}.{tenth}{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What apimachinery's own Quantity gives for the same texts.
    #[test]
    fn golden_values() {
        for (text, value, milli) in [
            ("0", 0, 0),
            ("1", 1, 1000),
            ("+2", 2, 2000),
            ("100Mi", 104_857_600, 104_857_600_000),
            ("1.5Gi", 1_610_612_736, 1_610_612_736_000),
            ("500m", 1, 500),
            ("1500m", 2, 1500),
            ("0.1", 1, 100),
            (".5", 1, 500),
            ("2.", 2, 2000),
            ("1k", 1000, 1_000_000),
            ("1e3", 1000, 1_000_000),
            ("12E2", 1200, 1_200_000),
            ("5e-3", 1, 5),
            ("1n", 1, 1),
            ("8010444Ki", 8_202_694_656, 8_202_694_656_000),
        ] {
            assert_eq!((whole(text), millis(text)), (Some(value), Some(milli)), "{text}");
        }
        assert_eq!(whole("1E"), Some(1_000_000_000_000_000_000));
        assert_eq!(whole("16Ei"), None, "beyond all measure");
    }

    #[test]
    fn what_is_no_quantity_is_none() {
        for text in
            ["", "-1", "1 Gi", "Gi", ".", "1..2", "1.2.3", "1mi", "1KI", "10%", "e3", "1e", "1e99", "1e1.5", "é", "1Gé"]
        {
            assert_eq!(whole(text), None, "{text:?}");
        }
    }

    #[test]
    fn bytes_for_people() {
        assert_eq!(bytes(0), "0");
        assert_eq!(bytes(1023), "1023");
        assert_eq!(bytes(300 << 20), "300Mi");
        assert_eq!(bytes(1 << 30), "1Gi");
        assert_eq!(bytes(1536 << 20), "1.5Gi");
        assert_eq!(bytes(u64::MAX), "16383.9Pi");
    }

    proptest! {
        #[test]
        fn never_panics(text in "[0-9.eE+-]{0,8}[a-zA-Zµ]{0,2}") {
            let _ = (whole(&text), millis(&text));
        }

        #[test]
        fn whole_numbers_are_themselves(count in 0..1_000_000_000_000_000_u64) {
            prop_assert_eq!(whole(&count.to_string()), Some(count));
            prop_assert_eq!(millis(&format!("{count}m")), Some(count));
            prop_assert!(bytes(count).len() < 10);
        }
    }
}
