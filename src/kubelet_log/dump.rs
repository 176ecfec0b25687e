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
            '[' if out.ends_with("map[") && !is_type(chars.get(at + 1..).unwrap_or_default()) => {
                end(&chars, at, ('[', ']'), brackets)
            }
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
    if before == ' ' && next == '}' {
        return true; // `interface {}`
    }
    if "'\"`".contains(before) && next == before || ",.;)".contains(next) {
        return true;
    }
    // Words of a sentence follow, and no key.
    let text: String = after.iter().take(WORDS).collect();
    let mut words = text.split_ascii_whitespace();
    let is_word = |word: &str| word.trim_end_matches([',', '.']).chars().all(|c| c.is_ascii_lowercase());
    next == ' ' && words.next().is_none_or(is_word) && !words.take(3).any(is_key)
}

/// So much of a sentence is looked at.
const WORDS: usize = 80;

fn is_key(word: &str) -> bool {
    word.contains([':', '=']) || word.starts_with(['"', '\'']) && word.len() > 1
}

/// `30s}`: a duration or a quantity, as Go prints the structs that hold them.
fn is_duration(after: &[char]) -> bool {
    let length = after.iter().position(|c| *c == '}').unwrap_or(usize::MAX);
    let is_unit = |c: &char| c.is_ascii_digit() || "hmsnuµkKMGTPEi.-%".contains(*c);
    (1..=20).contains(&length)
        && after.first().is_some_and(|c| c.is_ascii_digit() || *c == '-')
        && after.iter().take(length).all(is_unit)
}

/// True for the key's type of `map[string]bool`, which is no dump.
fn is_type(after: &[char]) -> bool {
    let name: String = after.iter().take_while(|c| **c != ']').take(64).collect();
    let is_name = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    match name.split_once('.') {
        Some((package, name)) => {
            is_name(package) && is_name(name) && name.starts_with(|c: char| c.is_ascii_uppercase())
        }
        None => ["string", "int", "int32", "int64", "uint", "uint32", "uint64", "bool"].contains(&name.as_str()),
    }
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
            ("got map[string]Type{\"a\":b} there", "got map[string]Type{…} there"),
            ("got map[v1.Name]Type{\"a\":b} and map[v1.Name:b]", "got map[v1.Name]Type{…} and map[…]"),
            (
                "of type map[string]string, not map[string]interface {}",
                "of type map[string]string, not map[string]interface {}",
            ),
            ("got { a key: b } there", "got {…} there"),
            ("expect { or n, but found \", in |a\":\"b\"}|", "expect { or n, but found \", in |a\":\"b\"}|"),
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
