//! The shapes of one line: what others put before it, klog's header, and what belongs to a Go program's stacks.

use std::borrow::Cow;

use super::time::{self, Time};

/// How serious its writer finds a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    Info,
    Warning,
    Error,
    Fatal,
    /// The format does not say.
    Unknown,
}

/// klog's header is looked for in so many words: a vendor's name, a date and a host may stand before it.
const WORDS: usize = 6;

/// Longer than any header of klog's.
const HEADER: usize = 160;

/// The line without what others put before and after it: colours, carriage returns, the prefixes of the journal and of a
/// container's log. `None` for what systemd itself says.
pub(super) fn bare(line: &str) -> Option<Cow<'_, str>> {
    let line = line.trim_end_matches(['\r', '\n']);
    if line.contains("\u{1b}[") {
        let plain = without_colours(line);
        return Some(Cow::Owned(without_prefix(&plain)?.to_owned()));
    }
    without_prefix(line).map(Cow::Borrowed)
}

fn without_colours(line: &str) -> String {
    let mut pieces = line.split("\u{1b}[");
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let after = piece.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';');
        match after.strip_prefix('m') {
            Some(after) => out.push_str(after),
            None => out.extend(["\u{1b}[", piece]), // it steers the terminal otherwise
        }
    }
    out
}

fn without_prefix(line: &str) -> Option<&str> {
    // A level of syslog's: `<3>`.
    let level = line.strip_prefix('<').and_then(|rest| rest.split_once('>'));
    let line = level.filter(|(digits, _)| is_number(digits)).map_or(line, |(_, rest)| rest);
    // A container's log: `2026-11-28T22:20:24.1Z stderr F text`.
    let mut words = line.splitn(4, ' ');
    if let (Some(date), Some("stdout" | "stderr"), Some("F" | "P"), Some(rest)) =
        (words.next(), words.next(), words.next(), words.next())
        && time::is_date(date)
    {
        return Some(rest);
    }
    // The journal: `Nov 28 22:20:24 node kubelet[373]: text`, or with another form of the date.
    let Some((head, rest)) = line.split_once("]: ").or_else(|| Some((line.strip_suffix("]:")?, ""))) else {
        return Some(line);
    };
    let Some((before, pid)) = head.rsplit_once('[') else { return Some(line) };
    let date = before.split(' ').next().unwrap_or_default();
    if before.contains(']') || !is_number(pid) || !(time::is_month(date) || time::is_date(date)) {
        return Some(line);
    }
    (!before.ends_with(" systemd")).then_some(rest)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// klog's header and the text after it.
pub(super) struct Header<'a> {
    /// Words of a vendor's.
    pub(super) vendor: &'a str,
    pub(super) severity: Severity,
    pub(super) time: Option<Time>,
    pub(super) text: &'a str,
}

/// Finds `F1121 03:24:02.289282 30620 server.go:269] text`, also after some words of a vendor's. What is indented is no
/// record: it belongs to the one before.
pub(super) fn header(line: &str) -> Option<Header<'_>> {
    let mut rest = line;
    for _ in 0..=WORDS {
        if let Some(found) = header_here(rest) {
            return Some(Header { vendor: line.strip_suffix(rest).unwrap_or_default(), ..found });
        }
        let (word, after) = rest.split_once(' ')?;
        // `[kubelet]E1126 …`
        let glued = word.rfind([']', ':', '|', '>']).and_then(|at| rest.get(at + 1..));
        if let Some(found) = glued.and_then(header_here) {
            return Some(found);
        }
        // Quoted text and values are no vendor's words.
        if word.is_empty() && rest.len() == line.len() || word.contains(['{', '}', '"', '\'', '`', '=', '\t']) {
            return None;
        }
        rest = after.trim_start_matches(' ');
    }
    None
}

/// True for a header that was cut.
pub(super) fn is_cut_header(text: &str) -> bool {
    text.starts_with(['I', 'W', 'E', 'F']) && text.get(1..5).is_some_and(is_number) && !text.contains(']')
}

fn header_here(text: &str) -> Option<Header<'_>> {
    let severity = match text.as_bytes().first()? {
        b'I' => Severity::Info,
        b'W' => Severity::Warning,
        b'E' => Severity::Error,
        b'F' => Severity::Fatal,
        _ => return None,
    };
    let date = text.get(1..5).filter(|date| is_number(date))?;
    let (head, after) = text.split_once(']').filter(|(head, _)| head.len() <= HEADER)?;
    let mut words = head.get(5..)?.split_ascii_whitespace();
    let place = words.clone().next_back()?;
    let (file, number) = place.rsplit_once(':')?;
    if file.is_empty() || !is_number(number) || words.clone().count() > 3 {
        return None;
    }
    let clock = words.next().unwrap_or_default();
    Some(Header {
        vendor: "",
        severity,
        time: Time::of_klog(date, clock),
        text: after.strip_prefix(' ').unwrap_or(after),
    })
}

/// True for an empty line and one of a Go program's stacks, registers or memory: hundreds of them stand around the line that
/// says why. None of them is a reason.
pub(crate) fn is_trace(line: &str) -> bool {
    let indented = line.starts_with('\t');
    let line = line.trim();
    if line.is_empty() || line == "-----" || indented && is_place(line) {
        return true;
    }
    let starts = |texts: &[&str]| texts.iter().any(|text| line.starts_with(text));
    starts(&TRACES)
        || line.strip_prefix("goroutine ").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        || line.starts_with("goroutine running on other thread")
        || line.starts_with("...") && line.ends_with("elided...")
        || line.starts_with("runtime: ") && (line.contains("0x") || line.contains(" g 0"))
        || is_memory(line)
        || is_registers(line)
        || is_call(line)
}

/// How lines begin that a dying Go program prints around its stacks.
const TRACES: [&str; 13] = [
    "created by ",
    "runtime stack:",
    "stack: frame=",
    "stack trace unavailable",
    "[originating from goroutine ",
    "[signal ",
    "PC=0x",
    "pc=0x",
    "signal arrived during ",
    "instruction bytes:",
    "unexpected fault address 0x",
    "non-Go function",
    "exit status ",
];

/// `/usr/lib/go/src/runtime/proc.go:250 +0x212 fp=…`, after a tab.
fn is_place(line: &str) -> bool {
    let place = line.split(' ').next().unwrap_or_default();
    place
        .rsplit_once(':')
        .is_some_and(|(file, number)| is_number(number) && [".go", ".s", ">"].iter().any(|end| file.ends_with(end)))
        || line.contains(" +0x")
}

/// A line of a hexdump: `000000c000123456:  0000000000000000 …`.
fn is_memory(line: &str) -> bool {
    let Some((address, _)) = line.split_once(':') else { return false };
    let digits = address.strip_prefix("0x").unwrap_or(address);
    matches!(digits.len(), 8 | 16) && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// `rip    0x46f3e1`, or some of these in a line.
fn is_registers(line: &str) -> bool {
    let mut words = line.split_ascii_whitespace();
    let mut found = false;
    while let Some(name) = words.next() {
        if name.len() > 8 || !words.next().is_some_and(|value| value.starts_with("0x")) {
            return false;
        }
        found = true;
    }
    found
}

/// `main.main()`, `k8s.io/…/v2.(*loggingT).flushDaemon(0x6f1e0a0)`, `panic({0x1, 0x2})`.
fn is_call(line: &str) -> bool {
    line.ends_with(')')
        && line.split_once('(').is_some_and(|(name, _)| {
            !name.contains(|c: char| c.is_whitespace() || "\"'`:={".contains(c))
                && (name.contains('.') || name == "panic")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUMP: &str = "goroutine 1 [running]:\nk8s.io/kubernetes/vendor/k8s.io/klog/v2.stacks(0xc000128001, 0xc0003a0000, 0x7b)\n\t/build/vendor/k8s.io/klog/v2/klog.go:1026 +0xb9\nmain.main()\n\t_output/local/go/src/k8s.io/kubernetes/cmd/kubelet/kubelet.go:41 +0xe5\n\ngoroutine 6 [chan receive]:\nk8s.io/kubernetes/vendor/k8s.io/klog/v2.(*loggingT).flushDaemon(0x6f1e0a0)\n\t/build/klog.go:1169 +0x8b\ncreated by k8s.io/kubernetes/vendor/k8s.io/klog/v2.init.0\n\t/build/klog.go:417 +0xdf\nrip    0x46f3e1\n";

    #[test]
    fn frames_are_told_from_lines() {
        assert!(DUMP.lines().all(is_trace), "{DUMP}");
        for line in [
            "F1121 03:24:02.289282 1 server.go:269] failed (badly)",
            "{\"msg\":\"x (y)\"}",
            "panic: oh no (again)",
            "\tpanic: second",
            "failed to start (code 1)",
        ] {
            assert!(!is_trace(line), "{line}");
        }
    }
}
