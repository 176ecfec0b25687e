//! Numbers and booleans as Go's strconv reads them.

/// What strconv.ParseBool finds.
pub(crate) fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// The base that the prefix of a number without sign names, and the digits after that prefix: what strconv.ParseInt takes in
/// base 0. A leading 0 is octal.
pub(crate) fn base(number: &str) -> (u32, &str) {
    let after = |prefix: &str| {
        let (head, digits) = number.split_at_checked(prefix.len())?;
        head.eq_ignore_ascii_case(prefix).then_some(digits)
    };
    let named = [("0x", 16), ("0o", 8), ("0b", 2)].into_iter().find_map(|(prefix, base)| Some((base, after(prefix)?)));
    let octal = || number.strip_prefix('0').filter(|digits| !digits.is_empty()).map(|digits| (8, digits));
    named.or_else(octal).unwrap_or((10, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_names_the_base() {
        for (number, expected) in [
            ("0", (10, "0")),
            ("19", (10, "19")),
            ("017", (8, "17")),
            ("0o17", (8, "17")),
            ("0O17", (8, "17")),
            ("0b11", (2, "11")),
            ("0X1F", (16, "1F")),
            ("0x", (16, "")),
            ("", (10, "")),
            ("0\u{e9}", (8, "\u{e9}")),
        ] {
            assert_eq!(base(number), expected, "{number:?}");
        }
    }
}
