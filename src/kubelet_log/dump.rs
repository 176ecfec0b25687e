//! Tells a dump of Go's, JSON's or YAML's from a brace in prose, and empties it.

/// Empties `Type{…}`, `{Name:…}` and `map[…]`, however deep. What is not closed hides all that follows.
pub(super) fn emptied(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::new();
    let mut at = 0;
    let mut brackets = 0_usize;
    while let Some(c) = chars.get(at).copied() {
        out.push(c);
        let end = match c {
            '{' if !is_prose(&chars, at) => end(&chars, at, ('{', '}'), 0),
            '[' if out.ends_with("map[") => end(&chars, at, ('[', ']'), brackets),
            _ => {
                match c {
                    '[' => brackets += 1,
                    ']' => brackets = brackets.saturating_sub(1),
                    _ => {}
                }
                at += 1;
                continue;
            }
        };
        out.push('…');
        let Some(end) = end else { return out };
        out.extend(chars.get(end));
        at = end + 1;
    }
    out
}

/// Where what is opened at `at` ends. A value may hold the closing sign: as long as one more of them follows than was opened
/// (`outer` of them before), it is not over yet.
fn end(chars: &[char], at: usize, pair: (char, char), outer: usize) -> Option<usize> {
    let (mut depth, mut outer, mut end) = (0_usize, outer, None);
    for (at, c) in chars.iter().enumerate().skip(at) {
        if *c == pair.0 {
            depth += 1;
        } else if *c == pair.1 && depth > 0 {
            depth -= 1;
            if depth == 0 && end.is_none() {
                end = Some(at);
            }
        } else if *c == pair.1 && outer > 0 {
            outer -= 1;
        } else if *c == pair.1 {
            end = Some(at);
        }
    }
    end
}

/// True for a brace that holds nothing: `expect { or n`, `'{'`, `but found {, error`, `{30s}`. In doubt it is a dump.
fn is_prose(chars: &[char], at: usize) -> bool {
    let before = at.checked_sub(1).and_then(|at| chars.get(at)).copied().unwrap_or(' ');
    let after = chars.get(at + 1..).unwrap_or_default();
    if is_duration(after) {
        return true;
    }
    if before.is_alphanumeric() || "_])}>&*".contains(before) {
        return false; // `Type{`, `[]Type{`, `map[…]Type{`, `(Type) {` has a blank
    }
    let Some(next) = after.first().copied() else { return true };
    if "'\"`".contains(before) && next == before || ",.;)".contains(next) {
        return true;
    }
    // A word of a sentence follows, and no key.
    let mut rest = after.iter().copied().skip_while(|c| *c == ' ').peekable();
    let mut word = 0_usize;
    while rest.next_if(char::is_ascii_lowercase).is_some() {
        word += 1;
    }
    let is_word = (1..=12).contains(&word) && matches!(rest.next(), None | Some(' ' | ',' | '.'));
    next == ' ' && (after.iter().all(|c| *c == ' ') || is_word && !has_key(after))
}

/// `30s}`: a duration or a quantity, as Go prints the structs that hold them.
fn is_duration(after: &[char]) -> bool {
    let length = after.iter().position(|c| *c == '}').unwrap_or(usize::MAX);
    let is_unit = |c: &char| c.is_ascii_digit() || "hmsnuµkKMGTPEi.-%".contains(*c);
    (1..=20).contains(&length)
        && after.first().is_some_and(|c| c.is_ascii_digit() || *c == '-')
        && after.iter().take(length).all(is_unit)
}

/// True if a closing brace follows, and before it something that looks like `key:` or `key=`.
fn has_key(after: &[char]) -> bool {
    let inside: Vec<char> = after.iter().copied().take_while(|c| !"{}".contains(*c)).collect();
    after.get(inside.len()) == Some(&'}') && inside.iter().any(|c| ":=\"".contains(*c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dumps_are_emptied_and_prose_is_kept() {
        for (text, expected) in [
            ("x &KubeletConfiguration{A:{B},C:map[d:e],} y", "x &KubeletConfiguration{…} y"),
            ("got {Name:a Field:b} there", "got {…} there"),
            ("got {a b} there", "got {…} there"),
            ("got [{a b} {c d}] there", "got [{…} {…}] there"),
            ("got []Type{{a}, {b}} there", "got []Type{…} there"),
            ("got map[string]Type{\"a\":b} there", "got map[…]Type{…} there"),
            ("got (v1.Type) { A: (string) (len=1) \"b\" } there", "got (v1.Type) {…} there"),
            ("got { a: b } there", "got {…} there"),
            ("got { \"a\": 1 } there", "got {…} there"),
            ("got { a = b } there", "got {…} there"),
            ("a value that closes: A{B:\"}\", C:secret} there", "a value that closes: A{…} there"),
            ("a value that closes: map[a:]b] there", "a value that closes: map[…] there"),
            ("[labels map[a:b[c]] here, more]", "[labels map[…] here, more]"),
            ("never closed {secret: x", "never closed {…"),
            ("never closed {secret x y", "never closed {…"),
            ("never closed {\"secret\": x", "never closed {…"),
            ("never closed { Secret x", "never closed {…"),
            // Prose.
            ("ReadMapCB: expect { or n, but found \", error", "ReadMapCB: expect { or n, but found \", error"),
            ("expect { or , or } or n, but found x", "expect { or , or } or n, but found x"),
            ("expect [ or n, but found {, error", "expect [ or n, but found {, error"),
            ("but found {", "but found {"),
            ("invalid character '{' looking for the beginning", "invalid character '{' looking for the beginning"),
            ("the period {30s} must be above {1m0s} or {1.5Gi}", "the period {30s} must be above {1m0s} or {1.5Gi}"),
            ("the field { was not expected, use A{b:c} instead", "the field { was not expected, use A{…} instead"),
        ] {
            assert_eq!(emptied(text), expected, "{text}");
        }
    }
}
