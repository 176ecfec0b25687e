//! Bounds of texts: short, without what would steer a terminal, and within its width; and of numbers.

/// Bytes of one text of a node, in UTF-8; what is longer is cut, and ends with an ellipsis.
pub const MAX_TEXT: usize = 512;

/// Bytes of the message of an event, which the API server does not let be longer (ValidateEvent,
/// pkg/apis/core/validation/events.go, v1.20.2; older events are not checked).
pub const MAX_EVENT: usize = 1024;

/// Entries of one list of a node.
pub const MAX_LIST: usize = 64;

/// `a, b and 3 more`: so many of them by name.
#[must_use]
pub fn first_of(names: &[String], most: usize) -> String {
    let first = names.get(..most).unwrap_or(names).join(", ");
    match names.len().saturating_sub(most) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// The text without what would move a terminal's cursor, change its colours or turn its writing round.
#[must_use]
pub fn plain(text: &str) -> String {
    text.chars().map(shown).collect()
}

/// A text of a node: [`plain`], and at most [`MAX_TEXT`] bytes.
#[must_use]
pub fn text(text: &str) -> String {
    bounded(text, MAX_TEXT)
}

/// The text as [`plain`] has it, cut to so many bytes.
#[must_use]
pub fn bounded(text: &str, bytes: usize) -> String {
    const CUT: char = '…';
    let mut out = String::new();
    let mut fits = 0;
    for c in text.chars() {
        let shown = shown(c);
        if out.len() + shown.len() > bytes {
            out.truncate(fits);
            out.push(CUT);
            return out;
        }
        out.push_str(&shown);
        if out.len() + CUT.len_utf8() <= bytes {
            fits = out.len();
        }
    }
    out
}

/// An error and its causes, once each, as [`bounded`] has it for an event.
#[must_use]
pub fn error_chain(error: &dyn std::error::Error) -> String {
    bounded(&with_causes(error), MAX_EVENT)
}

/// An error and its causes, once each.
#[must_use]
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        next = cause.source();
    }
    text
}

/// Lines of this width, between words; the first is indented by `first`, the others by `more`.
#[must_use]
pub fn broken(text: &str, width: usize, first: &str, more: &str) -> Vec<String> {
    let mut lines = vec![first.to_owned()];
    for word in plain(text).split_whitespace() {
        let line = lines.last().map_or(0, |line| line.chars().count());
        if line > more.len() && line.saturating_add(1).saturating_add(word.chars().count()) > width {
            lines.push(more.to_owned());
        }
        let Some(line) = lines.last_mut() else { continue };
        if !line.trim().is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines
}

/// Reads the value of an option that is a whole number within these bounds, or says what it must be.
pub fn whole_number(bounds: std::ops::RangeInclusive<u32>) -> impl Fn(&str) -> Result<u32, String> + Clone {
    let (least, most) = bounds.into_inner();
    let within = move |number: &u32| (least..=most).contains(number);
    move |text| {
        text.parse().ok().filter(within).ok_or_else(|| match most {
            u32::MAX => format!("it must be a whole number, {least} or more"),
            _ => format!("it must be a whole number from {least} to {most}"),
        })
    }
}

/// The text within so many characters, its last `tail` ones among them; an ellipsis stands for what is left out.
#[must_use]
pub fn shortened(text: &str, room: usize, tail: usize) -> String {
    let length = text.chars().count();
    if length <= room || room < 2 {
        return text.to_owned();
    }
    let head = text.chars().take((room - 1).saturating_sub(tail));
    head.chain(std::iter::once('…')).chain(text.chars().skip(length.saturating_sub(tail))).collect()
}

fn shown(c: char) -> String {
    let turns = |c: char| matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
    match c {
        '\n' | '\t' => " ".to_owned(),
        c if c.is_control() || turns(c) => c.escape_default().to_string(),
        c => c.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_short_and_steer_nothing() {
        assert_eq!(text("a\u{1b}[31mb\nc\u{202e}d\u{7}ä"), "a\\u{1b}[31mb c\\u{202e}d\\u{7}ä");
        let exact = "x".repeat(MAX_TEXT);
        assert_eq!(text(&exact), exact);
        for long in ["x".repeat(90_000), "ä".repeat(400), "\u{1b}".repeat(200), format!("{exact}y")] {
            let cut = text(&long);
            assert!(cut.len() <= MAX_TEXT && cut.len() > MAX_TEXT - 10 && cut.ends_with('…'), "{cut}");
        }
    }
}
