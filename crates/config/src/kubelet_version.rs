//! The version of a kubelet as somebody else may name it: it becomes the name of a directory, so nothing else gets through.

use std::fmt;
use std::str::FromStr;

use crate::schema;

/// Bytes of a version; distributions add a suffix such as `-gke.1067004` or `+rke2r1`.
const MAX_LENGTH: usize = 64;

/// Digits of a number of it.
const MAX_DIGITS: usize = 5;

/// What `kubelet --version` says after "Kubernetes ": `vMAJOR.MINOR.PATCH`, and after a `-` or `+` letters, digits, `-`, `+`
/// and `.`, but no `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KubeletVersion(String);

impl KubeletVersion {
    /// As it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its minor version, if the tables of fields and defaults know that.
    #[must_use]
    pub fn known_minor(&self) -> Option<u64> {
        schema::minor(&self.0).ok().filter(|minor| *minor <= schema::NEWEST)
    }
}

impl FromStr for KubeletVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.len() <= MAX_LENGTH && is_version(text) {
            return Ok(Self(text.to_owned()));
        }
        let shown = crate::bounds::bounded(text, MAX_LENGTH);
        Err(format!(
            "{shown:?} is not the version of a kubelet: vMAJOR.MINOR.PATCH as kubelet --version says it, such as v1.31.4"
        ))
    }
}

fn is_version(text: &str) -> bool {
    let Some(numbers) = text.strip_prefix('v') else { return false };
    let (numbers, suffix) = match numbers.find(['-', '+']) {
        Some(at) => {
            let (numbers, suffix) = numbers.split_at(at);
            (numbers, suffix.get(1..))
        }
        None => (numbers, None),
    };
    let is_number = |number: &str| {
        let leading_zero = number.len() > 1 && number.starts_with('0');
        (1..=MAX_DIGITS).contains(&number.len()) && !leading_zero && number.bytes().all(|b| b.is_ascii_digit())
    };
    let is_suffix = |suffix: &str| {
        let known = |c: char| c.is_ascii_alphanumeric() || "-+.".contains(c);
        !suffix.is_empty() && !suffix.contains("..") && suffix.chars().all(known)
    };
    numbers.split('.').count() == 3 && numbers.split('.').all(is_number) && suffix.is_none_or(is_suffix)
}

impl fmt::Display for KubeletVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_a_version_is_one() {
        for good in ["v1.31.4", "v1.20.0", "v1.27.3-gke.100", "v1.29.3+rke2r1", "v1.32.0-rc.1", "v2.0.0", "v0.0.0"] {
            assert_eq!(good.parse::<KubeletVersion>().unwrap().to_string(), good);
        }
        let long = format!("v1.31.4-{}", "a".repeat(57));
        for bad in [
            "",
            "v",
            "1.31.4",
            "v1.31",
            "v1.31.4.5",
            "v1..4",
            "v1.31.",
            "v01.31.4",
            "v1.031.4",
            "v1.31.999999",
            "V1.31.4",
            "v1.31.4-",
            "v1.31.4+",
            "v1.31.4-a/b",
            "v1.31.4-..",
            "v1.31.4-a..b",
            "v1.31.4/../x",
            "../v1.31.4",
            "/v1.31.4",
            "v1.31.4\0",
            "v1.31.4-\n",
            "v1.31.4 ",
            " v1.31.4",
            "v1.31.4-ä",
            "v1.٣.4",
            "v1.-1.4",
            "v1.+1.4",
            ".",
            "..",
            "v..",
            "v1.31.4-%2e%2e",
            "v1.31.4-a b",
            "v1.31.4_1",
            &long,
        ] {
            assert!(bad.parse::<KubeletVersion>().is_err(), "{bad:?} was accepted");
        }
        assert!(long.get(..64).unwrap().parse::<KubeletVersion>().is_ok(), "the longest that there can be");
    }

    #[test]
    fn the_tables_end_somewhere() {
        let minor = |text: &str| text.parse::<KubeletVersion>().unwrap().known_minor();
        assert_eq!((minor("v1.31.4"), minor("v1.37.0-rc.1")), (Some(31), Some(37)));
        assert_eq!((minor(&format!("v1.{}.0", schema::NEWEST + 1)), minor("v2.31.4")), (None, None));
    }
}
