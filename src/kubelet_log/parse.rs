//! Lines of the kubelet's log: klog text, structured text, JSON.

use serde_json::Value;

/// Severity and text of a klog line: `F1121 03:24:02.289282 30620 server.go:269] text`.
pub(crate) fn klog(line: &str) -> Option<(char, &str)> {
    let level = line.chars().next().filter(|level| matches!(level, 'I' | 'W' | 'E' | 'F'))?;
    let (header, text) = line.split_once("] ")?;
    let is_header = header.get(1..5)?.chars().all(|c| c.is_ascii_digit()) && header.contains(".go:");
    is_header.then_some((level, text))
}

/// What a structured klog text says: `"message" err="error"`.
pub(crate) fn structured(text: &str) -> Option<String> {
    let error = quoted_after(text, "err=\"")?;
    let message = quoted_after(text, "\"").unwrap_or_default();
    // 1.25 and later say only "command failed"; before, the message names the stage.
    Some(if message == "command failed" || message.eq_ignore_ascii_case("failed to run kubelet") {
        error
    } else {
        format!("{message}: {error}")
    })
}

/// The Go-quoted string that follows `prefix` (which ends in the opening quote), unescaped.
pub(crate) fn quoted_after(text: &str, prefix: &str) -> Option<String> {
    let start = text.find(prefix)? + prefix.len();
    let mut out = String::new();
    let mut chars = text.get(start..)?.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => return Some(out),
            '\\' => match chars.next()? {
                'n' => out.push('\n'),
                't' => out.push('\t'),
                other => out.push(other),
            },
            other => out.push(other),
        }
    }
    None
}

/// A JSON log record.
pub(crate) fn json(line: &str) -> Option<Value> {
    line.starts_with('{').then(|| serde_json::from_str(line).ok())?
}

pub(crate) fn json_error(line: &str) -> Option<String> {
    let record = json(line)?;
    let message = record.get("msg")?.as_str()?.trim();
    match record.get("err").and_then(Value::as_str) {
        Some(error) if message == "command failed" => Some(error.trim().to_owned()),
        Some(error) => Some(format!("{message}: {}", error.trim())),
        // v1.20 logs its fatal error as a plain message.
        None if message.starts_with("failed") || message.starts_with("invalid") => Some(message.to_owned()),
        None => None,
    }
}

/// A line without its log header.
pub(crate) fn message(line: &str) -> String {
    klog(line).map_or_else(|| line.to_owned(), |(_, text)| text.to_owned())
}

/// What a JSON log record says; its other fields can hold anything.
pub(crate) fn json_text(line: &str) -> Option<String> {
    let record = json(line)?;
    let message = record.get("msg")?.as_str()?;
    Some(match record.get("err").and_then(Value::as_str) {
        Some(error) => format!("{message}: {error}"),
        None => message.to_owned(),
    })
}
