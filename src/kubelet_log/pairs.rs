//! What a record says in pairs of key and value: klog's structured text, logfmt, JSON. A line may be cut anywhere.

use serde_json::{Map, Value};

/// Key and value, in the order of the record.
pub(super) type Pairs = Vec<(String, String)>;

/// A string as Go quotes it, unescaped, and what follows it. One that was cut has no closing quote.
pub(super) fn quoted(text: &str) -> Option<(String, &str)> {
    let mut out = String::new();
    let mut chars = text.strip_prefix('"')?.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((out, text.get(at + 2..).unwrap_or_default())),
            '\\' => match chars.next() {
                Some((_, 'n')) => out.push('\n'),
                Some((_, 't')) => out.push('\t'),
                Some((_, 'r')) => out.push('\r'),
                Some((_, 'x')) => out.push(escaped(&mut chars, 2)),
                Some((_, 'u')) => out.push(escaped(&mut chars, 4)),
                Some((_, 'U')) => out.push(escaped(&mut chars, 8)),
                Some((_, other)) => out.push(other),
                None => {}
            },
            other => out.push(other),
        }
    }
    Some((out, ""))
}

fn escaped(chars: &mut std::str::CharIndices<'_>, digits: usize) -> char {
    let code = chars.take(digits).try_fold(0, |code: u32, (_, c)| Some(code.checked_mul(16)? + c.to_digit(16)?));
    code.and_then(char::from_u32).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Reads ` key="value" key=value`. True if the last value is the beginning of one over several lines (`key=<`).
pub(super) fn read(text: &str, pairs: &mut Pairs) -> bool {
    let mut rest = text.trim();
    while let Some((key, value)) = rest.split_once('=').filter(|(key, _)| is_key(key)) {
        if value == "<" {
            pairs.push((key.to_owned(), String::new()));
            return true;
        }
        let (value, after) = quoted(value).unwrap_or_else(|| {
            let end = bare_end(value);
            (value.get(..end).unwrap_or_default().to_owned(), value.get(end..).unwrap_or_default())
        });
        pairs.push((key.to_owned(), value));
        rest = after.trim_start();
    }
    false
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "_-./".contains(c))
}

/// Where a value without quotes ends: before the next ` key=`.
fn bare_end(value: &str) -> usize {
    let mut end = 0;
    for (at, word) in value.split(' ').enumerate() {
        if at > 0 && word.split_once('=').is_some_and(|(key, _)| is_key(key)) {
            return end - 1;
        }
        end += word.len() + 1;
    }
    value.len()
}

/// `"message" key="value"`: the message, and what follows it.
pub(super) fn structured(text: &str) -> Option<(String, &str)> {
    let (message, rest) = quoted(text)?;
    let end = rest.is_empty()
        || rest.strip_prefix(' ').is_some_and(|rest| rest.split_once('=').is_some_and(|(key, _)| is_key(key)));
    end.then_some((message, rest))
}

/// The JSON record of a line. Of one that was cut, what there is.
pub(super) fn object(line: &str) -> Option<Map<String, Value>> {
    let whole = |text: &str| serde_json::from_str::<Map<String, Value>>(text).ok();
    let is_record = line.starts_with('{') && ["\"msg\"", "\"message\""].iter().any(|key| line.contains(key));
    if !is_record {
        return None;
    }
    whole(line).or_else(|| mended(line).iter().find_map(|text| whole(text)))
}

/// What a JSON text that was cut may have been, the longest first.
fn mended(text: &str) -> Vec<String> {
    let (mut open, mut commas) = (Vec::new(), Vec::new());
    let (mut in_string, mut escaped) = (false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            _ if in_string => {}
            '{' => open.push('}'),
            '[' => open.push(']'),
            '}' | ']' => drop(open.pop()),
            ',' if open.len() == 1 => commas.push(at),
            _ => {}
        }
    }
    let closers: String = open.iter().rev().collect();
    let before = |at: usize| text.get(..at).unwrap_or_default();
    let mut found = Vec::new();
    if in_string {
        // An escape may be cut as well.
        let ends = [Some(text.len()), text.rfind('\\')];
        found.extend(ends.into_iter().flatten().map(|end| format!("{}\"{closers}", before(end))));
    }
    found.push(format!("{text}{closers}"));
    found.extend(commas.iter().rev().take(2).map(|at| format!("{}}}", before(*at))));
    found
}

/// What a JSON value says as text. Of an object, only what names an error: the rest may hold anything.
pub(super) fn text(value: &Value) -> String {
    const SAYS: [&str; 11] =
        ["op", "net", "path", "message", "msg", "error", "err", "reason", "cause", "detail", "details"];
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        Value::Array(values) => {
            let texts: Vec<String> = values.iter().map(text).filter(|text| !text.is_empty()).collect();
            format!("[{}]", texts.join(", "))
        }
        Value::Object(fields) => {
            let find = |name: &&str| fields.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
            let said = SAYS.iter().filter_map(find).map(|(_, value)| text(value)).filter(|text| !text.is_empty());
            said.collect::<Vec<_>>().join(": ")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> (Pairs, bool) {
        let mut found = Pairs::new();
        let open = read(text, &mut found);
        (found, open)
    }

    #[test]
    fn pairs_are_read_in_any_order_and_cut_anywhere() {
        let owned = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<Pairs>()
        };
        for (text, expected, open) in [
            (" err=\"a \\\"b\\\" err=\\\"c\\\"\" x=1", owned(&[("err", "a \"b\" err=\"c\""), ("x", "1")]), false),
            (" a={\"b\":1, \"c\":2} err=\"x\"", owned(&[("a", "{\"b\":1, \"c\":2}"), ("err", "x")]), false),
            (" pod=\"ns/p\" err=<", owned(&[("pod", "ns/p"), ("err", "")]), true),
            (" err=\"cut in the mid", owned(&[("err", "cut in the mid")]), false),
            (" err=\"cut in an escape\\", owned(&[("err", "cut in an escape")]), false),
            (" u=\"\\u00e9\\x41\\u00\"", owned(&[("u", "éA\u{fffd}")]), false),
            (" plain words", Pairs::new(), false),
        ] {
            assert_eq!(pairs(text), (expected, open), "{text}");
        }
        assert_eq!(structured("\"a\" b=1"), Some(("a".to_owned(), " b=1")));
        assert_eq!(structured("\"a\" is quoted"), None);
    }

    #[test]
    fn json_that_was_cut_says_what_it_can() {
        let line =
            "{\"ts\":1.5,\"msg\":\"command failed\",\"err\":{\"Op\":\"open\",\"Path\":\"/c\"},\"x\":\"\\u00e9\"}";
        for end in 0..=line.len() {
            let found = object(line.get(..end).unwrap());
            if end >= 38 {
                assert_eq!(found.as_ref().and_then(|found| found["msg"].as_str()), Some("command failed"), "{end}");
            }
        }
        assert_eq!(text(&object(line).unwrap()["err"]), "open: /c");
        assert_eq!(text(&serde_json::json!({"config": {"x": "s3cret"}})), "");
    }
}
