//! What a scalar is: a number, a boolean, nothing, or a text.
//!
//! The rules are those of `resolve` in gopkg.in/yaml.v2 (resolve.go, v2.2.8 to v2.4.0), which kubelets 1.16 to 1.37 read
//! with by way of sigs.k8s.io/yaml, whose goyaml.v2 has them too (v1.4.0 to v1.6.0). Its number beyond 64 bits is a text here
//! where it is not decimal, as in all but the last of these; no field has room for it.

use serde_json::{Number, Value};

use crate::digest::decode_base64;
use crate::strconv::base;

/// A scalar with its type. The keys of a mapping are told apart by it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scalar {
    Null,
    Bool(bool),
    /// What fits 64 bits, with or without sign.
    Int(i128),
    Float(f64),
    Text(String),
}

/// What a scalar is that stands without quotes (`tag` is none), or with a tag.
///
/// # Errors
/// It is not what its tag says.
pub(super) fn resolve(tag: Option<&str>, text: &str) -> Result<Scalar, ()> {
    let Some(tag) = tag else { return Ok(plain(text)) };
    match (tag.strip_prefix("tag:yaml.org,2002:").unwrap_or_default(), plain(text)) {
        ("int", found @ Scalar::Int(_)) | ("float", found @ Scalar::Float(_)) => Ok(found),
        ("bool", found @ Scalar::Bool(_)) | ("null", found @ Scalar::Null) => Ok(found),
        #[allow(clippy::cast_precision_loss)]
        ("float", Scalar::Int(number)) if i64::try_from(number).is_ok() => Ok(Scalar::Float(number as f64)),
        ("binary", _) => base64(text).map(|bytes| Scalar::Text(lossy(&bytes))).ok_or(()),
        ("int" | "float" | "bool" | "null", _) => Err(()),
        ("timestamp", _) if !is_timestamp(text) => Err(()),
        _ => Ok(Scalar::Text(text.to_owned())),
    }
}

/// Only these spellings: `nULL` and `tRUE` are texts.
fn plain(text: &str) -> Scalar {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Scalar::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => return Scalar::Bool(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Scalar::Bool(false);
        }
        ".nan" | ".NaN" | ".NAN" => return Scalar::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return Scalar::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return Scalar::Float(f64::NEG_INFINITY),
        _ => {}
    }
    let found = match text.as_bytes().first() {
        Some(b'.') if are_between_digits(text) => float(&without_underscores(text)),
        Some(b'0'..=b'9' | b'+' | b'-') => {
            let text = without_underscores(text);
            integer(&text).or_else(|| float(&text)).or_else(|| signed_binary(&text))
        }
        _ => None,
    };
    found.unwrap_or_else(|| Scalar::Text(text.to_owned()))
}

fn without_underscores(text: &str) -> String {
    text.replace('_', "")
}

/// Whether each underscore is between two digits: a number that begins with a dot goes through no replacement (underscoreOK,
/// strconv/number.go, Go 1.15).
fn are_between_digits(text: &str) -> bool {
    let is_digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_digit);
    text.split('_')
        .map(str::as_bytes)
        .zip(text.split('_').map(str::as_bytes).skip(1))
        .all(|(before, after)| is_digit(before.last()) && is_digit(after.first()))
}

/// As strconv.ParseInt and ParseUint read it in base 0.
fn integer(text: &str) -> Option<Scalar> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => (-1, text.get(1..)?),
        b'+' => (1, text.get(1..)?),
        _ => (1, text),
    };
    let (base, number) = base(digits);
    if number.starts_with(['+', '-']) {
        return None;
    }
    let number = sign * i128::from(u64::from_str_radix(number, base).ok()?);
    let fits = i64::try_from(number).is_ok() || digits.len() == text.len();
    fits.then_some(Scalar::Int(number))
}

/// `0b-1` is a number: the digits are read with their sign.
fn signed_binary(text: &str) -> Option<Scalar> {
    let number = i64::from_str_radix(text.strip_prefix("0b")?, 2).ok()?;
    Some(Scalar::Int(number.into()))
}

/// Digits, a dot, an exponent. What is too large for a double is a text.
fn float(text: &str) -> Option<Scalar> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent.strip_prefix(['+', '-']).unwrap_or(exponent))),
        None => (unsigned, None),
    };
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, rest) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let is_number = are_digits(whole) && are_digits(rest) && !(whole.is_empty() && rest.is_empty());
    if !is_number || exponent.is_some_and(|exponent| exponent.is_empty() || !are_digits(exponent)) {
        return None;
    }
    text.parse().ok().filter(|number: &f64| number.is_finite()).map(Scalar::Float)
}

impl Scalar {
    /// As JSON has it; none for what it cannot say. A whole float has no point there (encoding/json), so it is an integer.
    #[allow(clippy::cast_possible_truncation, clippy::float_cmp)]
    pub(super) fn value(self) -> Option<Value> {
        let integer = |number: i128| match (i64::try_from(number), u64::try_from(number)) {
            (Ok(number), _) => Some(Number::from(number)),
            (_, Ok(number)) => Some(Number::from(number)),
            _ => None,
        };
        Some(match self {
            Self::Null => Value::Null,
            Self::Bool(value) => value.into(),
            Self::Text(text) => text.into(),
            Self::Int(number) => integer(number)?.into(),
            Self::Float(float) => {
                let whole = (float.trunc() == float && float.abs() < 1e20).then(|| integer(float as i128)).flatten();
                whole.or_else(|| Number::from_f64(float))?.into()
            }
        })
    }

    /// As the name of a field; none for what has no name (convertToJSONableObject, sigs.k8s.io/yaml v1.2.0).
    pub(super) fn name(self) -> Option<String> {
        match self {
            Self::Null => None,
            Self::Bool(value) => Some(value.to_string()),
            Self::Text(text) => Some(text),
            Self::Int(number) => i64::try_from(number).ok().map(|number| number.to_string()),
            Self::Float(float) => Some(shortest(float)),
        }
    }
}

/// As strconv.FormatFloat writes a float of 32 bits with format `g`.
#[allow(clippy::cast_possible_truncation)]
fn shortest(float: f64) -> String {
    let float = float as f32;
    if !float.is_finite() {
        return if float.is_nan() {
            ".nan"
        } else if float > 0.0 {
            ".inf"
        } else {
            "-.inf"
        }
        .to_owned();
    }
    let scientific = format!("{float:e}");
    let Some((digits, Ok(exponent))) = scientific.split_once('e').map(|(d, e)| (d, e.parse::<i32>())) else {
        return scientific;
    };
    if (-4..6).contains(&exponent) {
        return format!("{float}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// A day, and maybe a time (parseTimestamp): such a scalar is a text, but `!!timestamp` asks for it.
fn is_timestamp(text: &str) -> bool {
    let (day, time) = text.split_at_checked(text.find(['T', 't', ' ']).unwrap_or(text.len())).unwrap_or((text, ""));
    let mut parts = day.splitn(3, '-').map(|part| (part.len(), part.parse::<i8>(), part.parse::<i16>()));
    let is_day = match (parts.next(), parts.next(), parts.next()) {
        (Some((4, _, Ok(year))), Some((1..=2, Ok(month), _)), Some((1..=2, Ok(day), _))) => {
            jiff::civil::Date::new(year, month, day).is_ok()
        }
        _ => false,
    };
    let clock = time.get(1..).unwrap_or_default();
    let zone = clock.find(['Z', '+', '-']);
    let (clock, zone) = clock.split_at_checked(zone.unwrap_or(clock.len())).unwrap_or((clock, ""));
    let is_time =
        clock.split(':').count() == 3 && clock.bytes().all(|byte| byte.is_ascii_digit() || b":.".contains(&byte));
    is_day && (time.is_empty() || (is_time && time.starts_with(' ') == zone.is_empty()))
}

/// Standard base64, padded; line breaks in it do not count, other white space does (encoding/base64, StdEncoding).
fn base64(text: &str) -> Option<Vec<u8>> {
    let text = text.replace(['\r', '\n'], "");
    let digits = text.trim_end_matches('=');
    let is_padded = text.len().is_multiple_of(4) && text.len() - digits.len() <= 2;
    let is_strict = is_padded && !digits.contains(|c: char| c == '=' || c.is_ascii_whitespace());
    decode_base64(digits).filter(|_| is_strict)
}

/// Each byte that is no text becomes one mark (encoding/json).
fn lossy(bytes: &[u8]) -> String {
    let chunks = bytes.utf8_chunks();
    chunks.flat_map(|chunk| [chunk.valid().to_owned(), "\u{fffd}".repeat(chunk.invalid().len())]).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What the kubelet 1.20.2 made of each, asked one by one.
    #[test]
    fn scalars_of_the_real_kubelet() {
        let text = |text: &str| json!(text);
        for (scalar, expected) in [
            ("", Value::Null),
            ("~", Value::Null),
            ("NULL", Value::Null),
            ("nULL", text("nULL")),
            ("tRUE", text("tRUE")),
            ("yEs", text("yEs")),
            ("y", json!(true)),
            ("On", json!(true)),
            ("OFF", json!(false)),
            ("<<", text("<<")),
            ("0_9", json!(9)),
            ("0_8.5", json!(8.5)),
            ("1__0", json!(10)),
            ("1_", json!(1)),
            ("_1", text("_1")),
            ("+_1", json!(1)),
            ("0_", json!(0)),
            ("0", json!(0)),
            ("-0", json!(0)),
            ("1_0.0", json!(10)),
            ("0.1_0", json!(0.1)),
            ("1e1_0", json!(10_000_000_000_i64)),
            (".5_0", json!(0.5)),
            ("._5", text("._5")),
            (".5e1_0", json!(5_000_000_000_i64)),
            (".", text(".")),
            ("5.", json!(5)),
            ("1e", text("1e")),
            ("1e+3", json!(1000)),
            ("1e999", text("1e999")),
            (".5e999", text(".5e999")),
            ("010", json!(8)),
            ("08", json!(8)),
            ("09.5", json!(9.5)),
            ("0o17", json!(15)),
            ("0O17", json!(15)),
            ("0o8", text("0o8")),
            ("0X1f", json!(31)),
            ("0x_f", json!(15)),
            ("0x", text("0x")),
            ("0x1p4", text("0x1p4")),
            ("0b", text("0b")),
            ("0B11", json!(3)),
            ("+0b1", json!(1)),
            ("-0b1", json!(-1)),
            ("0b-1", json!(-1)),
            ("0b+1", json!(1)),
            ("-0b-1", text("-0b-1")),
            ("--1", text("--1")),
            ("9223372036854775808", json!(9_223_372_036_854_775_808_u64)),
            ("+9223372036854775808", json!(9_223_372_036_854_775_808_u64)),
            ("-9223372036854775808", json!(i64::MIN)),
            ("18446744073709551616", json!(18_446_744_073_709_551_616.0)),
            ("0xffffffffffffffffff", text("0xffffffffffffffffff")),
            ("1:30", text("1:30")),
            ("2020-01-01", text("2020-01-01")),
            ("infinity", text("infinity")),
            ("+inf", text("+inf")),
            ("nan", text("nan")),
        ] {
            assert_eq!(resolve(None, scalar).unwrap().value(), Some(expected), "{scalar:?}");
        }
        for scalar in [".nan", ".NaN", "-.inf", "+.INF", ".Inf"] {
            assert_eq!(resolve(None, scalar).unwrap().value(), None, "{scalar:?}");
        }
    }

    #[test]
    fn a_tag_says_what_it_must_be() {
        for (tag, scalar, expected) in [
            ("int", "7", Some(json!(7))),
            ("int", "5.0", None),
            ("float", "5", Some(json!(5))),
            ("float", "9223372036854775808", None),
            ("bool", "yes", Some(json!(true))),
            ("bool", "1", None),
            ("null", "", Some(Value::Null)),
            ("null", "x", None),
            ("str", "5", Some(json!("5"))),
            ("timestamp", "2020-01-01", Some(json!("2020-01-01"))),
            ("timestamp", "2020-1-1T1:2:3.4Z", Some(json!("2020-1-1T1:2:3.4Z"))),
            ("timestamp", "2020-1-1 1:2:3", Some(json!("2020-1-1 1:2:3"))),
            ("timestamp", "2020-13-01", None),
            ("timestamp", "x", None),
            ("binary", "aGVsbG8=", Some(json!("hello"))),
            ("binary", "aGVs\nbG8=\n", Some(json!("hello"))),
            ("binary", "/w==", Some(json!("\u{fffd}"))),
            ("binary", "aGVs bG8=", None),
            ("binary", "a===", None),
            ("set", "5", Some(json!("5"))),
        ] {
            let found = resolve(Some(&format!("tag:yaml.org,2002:{tag}")), scalar).ok().and_then(Scalar::value);
            assert_eq!(found, expected, "!!{tag} {scalar}");
        }
        assert_eq!(resolve(Some("!t"), "5"), Ok(Scalar::Text("5".to_owned())));
    }

    #[test]
    fn names_of_fields() {
        for (scalar, name) in [
            ("1", Some("1")),
            ("0x10", Some("16")),
            ("yes", Some("true")),
            ("1.5", Some("1.5")),
            (".5", Some("0.5")),
            ("1e6", Some("1e+06")),
            ("1e5", Some("100000")),
            ("123456.5", Some("123456.5")),
            ("-0.0", Some("-0")),
            ("0.0001234", Some("0.0001234")),
            ("12345678.0", Some("1.2345678e+07")),
            ("1e-5", Some("1e-05")),
            (".inf", Some(".inf")),
            ("2020-01-01", Some("2020-01-01")),
            ("~", None),
            ("9223372036854775808", None),
        ] {
            assert_eq!(resolve(None, scalar).unwrap().name().as_deref(), name, "{scalar}");
        }
    }
}
