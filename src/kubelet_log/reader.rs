//! Puts lines together to records.

use serde_json::Value;

use super::line::{self, Severity, is_trace};
use super::pairs;
use super::record::{End, Kind, Record};
use super::time::Time;

/// What ends a program, by the beginning of its line.
const ENDS: [(&str, End); 9] = [
    ("panic: ", End::Panic),
    ("fatal error: ", End::Runtime),
    ("fatal: ", End::Runtime),
    ("runtime/cgo: ", End::Runtime),
    ("Error loading shared library ", End::Runtime),
    ("Error relocating ", End::Runtime),
    ("Inconsistency detected by ld.so: ", End::Runtime),
    ("Error: ", End::Command),
    ("error: ", End::Command),
];

/// What the dynamic linker says, and the C library before it aborts, by a part of its line.
const C_LIBRARY: [&str; 11] = [
    ": error while loading shared libraries: ",
    " not found (required by ",
    ": symbol lookup error: ",
    ": relocation error: ",
    "free(): ",
    "alloc(): ",
    "double free or corruption",
    "corrupted size vs. prev_size",
    " detected ***: ",
    ": Assertion `",
    "Fatal glibc error: ",
];

/// What a shell says of a program that a signal ended.
const KILLED: [&str; 6] = ["Killed", "Terminated", "Aborted", "Segmentation fault", "Bus error", "Illegal instruction"];

/// Beginnings of lines that say nothing of an end. `http: ` are clients that went away.
const NOTICES: [&str; 9] =
    ["Usage:", "Flags:", "Global Flags:", "Aliases:", "Examples:", "Use \"", "See '", "Run '", "http: "];

/// How errors begin whose record has no severity, or no header.
const FAILED: [&str; 6] = ["failed", "invalid", "command failed", "unable", "unknown", "cannot"];

/// Lines of a panic's text at the most: more are somebody else's.
const PANIC_LINES: usize = 64;

/// Reads the log, oldest line first.
pub(crate) fn records<'a>(lines: impl IntoIterator<Item = &'a str>) -> Vec<Record> {
    let mut reader = Reader::default();
    for line in lines {
        if let Some(line) = line::bare(line) {
            reader.push(&line);
        }
    }
    reader.found
}

/// What stands before klog's header, if something does: a vendor's words.
pub(crate) fn vendor<'a>(lines: impl IntoIterator<Item = &'a str>) -> Option<String> {
    lines.into_iter().find_map(|line| {
        let line = line::bare(line)?;
        let words = line::header(&line)?.vendor.trim();
        (!words.is_empty()).then(|| words.to_owned())
    })
}

#[derive(Default)]
struct Reader {
    found: Vec<Record>,
    /// The last record's last value goes on.
    in_value: bool,
    /// The last record's text goes on.
    is_open: bool,
    /// What Go's runtime says before its `fatal error: …`.
    notes: Vec<String>,
    /// What stood before klog's last header, and so may stand before other lines.
    vendor: String,
}

impl Reader {
    fn push(&mut self, line: &str) {
        let line = line.strip_prefix(self.vendor.as_str()).unwrap_or(line);
        if self.in_value && self.push_value(line) || self.is_open && self.push_more(line) {
            return;
        }
        // An empty line ends neither a panic's text nor anything else.
        if line.trim().is_empty() {
            return;
        }
        let mut record = self.read(line);
        if record.kind == Kind::Plain && line.starts_with("runtime: ") {
            self.notes.push(line.trim().to_owned());
        }
        if record.kind == Kind::End(End::Runtime) && line.starts_with("fatal error: ") {
            record.more = std::mem::take(&mut self.notes);
        }
        self.is_open = !self.in_value && !record.is_json && record.pairs.is_empty();
        self.found.push(record);
    }

    /// A line of a value over several lines. klog indents each with a tab, of which the journal makes blanks, and ends them
    /// with ` >`. False if it is none.
    fn push_value(&mut self, line: &str) -> bool {
        let Some(record) = self.found.last_mut() else { return false };
        if let Some(after) = line.trim_start_matches(' ').strip_prefix('>') {
            self.in_value = pairs::read(after, &mut record.pairs);
            return true;
        }
        let body = ["\t", "        "].iter().find_map(|indent| line.strip_prefix(indent));
        let body = body.or_else(|| line.trim().is_empty().then_some(""));
        self.in_value = body.is_some();
        if let (Some(body), Some((_, value))) = (body, record.pairs.last_mut()) {
            value.push_str(body);
            value.push('\n');
        }
        body.is_some()
    }

    /// A line that goes on with the last record's text. False if it is of its own.
    fn push_more(&mut self, line: &str) -> bool {
        let Some(record) = self.found.last_mut() else { return false };
        if let Some(signal) = line.strip_prefix("[signal ") {
            // `[signal SIGSEGV: segmentation violation code=0x1 addr=0x0 pc=0x46f3e1]`; a panic's text says it already.
            if record.kind == Kind::End(End::Runtime) {
                record.more.push(signal.split(" code=").next().unwrap_or_default().to_owned());
            }
            return true;
        }
        let is_panic = record.kind == Kind::End(End::Panic);
        if let Some(nested) = line.strip_prefix("\tpanic: ").filter(|_| is_panic) {
            record.message = format!("panic: {nested}");
            record.more.clear();
            return true;
        }
        let is_indented = line.starts_with([' ', '\t']);
        let belongs = match record.kind {
            _ if line.trim().is_empty() => return false,
            _ if is_trace(line) => false,
            Kind::End(End::Panic) if record.more.len() >= PANIC_LINES => false,
            Kind::End(End::Panic) | Kind::Log(Severity::Fatal) => is_indented || is_of_nobody(line),
            Kind::End(End::Command) => is_indented,
            Kind::Log(Severity::Error) if is_of_nobody(line) => {
                let lower = line.to_ascii_lowercase();
                !FAILED.iter().any(|start| lower.starts_with(start))
            }
            // The candidate, as v1.20 prints it in a warning.
            Kind::Log(_) => is_indented || line.starts_with(['}', ']']),
            _ => false,
        };
        if belongs {
            record.more.push(line.trim_end().to_owned());
        }
        self.is_open = belongs;
        belongs
    }

    fn read(&mut self, line: &str) -> Record {
        if is_trace(line) {
            return Record::new(Kind::Trace, line);
        }
        if line.starts_with([' ', '\t']) {
            return Record::new(Kind::Indented, line);
        }
        if let Some(end) = end(line) {
            return Record::new(Kind::End(end), line.trim_end());
        }
        if let Some(record) = json(line).or_else(|| logfmt(line)) {
            return record;
        }
        let Some(header) = line::header(line) else { return self.plain(line) };
        header.vendor.clone_into(&mut self.vendor);
        let mut record = Record::new(Kind::Log(header.severity), header.text.trim_end());
        record.time = header.time;
        line.strip_suffix(header.text).unwrap_or_default().clone_into(&mut record.header);
        self.read_pairs(&mut record);
        record
    }

    /// A line without any logger's header, or with that of Go's own: `2026/11/28 22:20:24 text`.
    fn plain(&mut self, line: &str) -> Record {
        let time = Time::of_date(line);
        let text = if time.is_some() { line.splitn(3, ' ').nth(2).unwrap_or_default() } else { line };
        let is_notice = NOTICES.iter().any(|start| text.starts_with(start))
            || text.starts_with("Flag --") && text.contains(" has been deprecated")
            || line::is_cut_header(text);
        let kind = if is_notice { Kind::Notice } else { end(text).map_or(Kind::Plain, Kind::End) };
        let mut record = Record { time, ..Record::new(kind, text.trim_end()) };
        // klog may be told to print no headers.
        if kind == Kind::Plain && self.read_pairs(&mut record) {
            record.kind = Kind::Log(Severity::Unknown);
        }
        record
    }

    /// Takes a structured text apart. False if it is none.
    fn read_pairs(&mut self, record: &mut Record) -> bool {
        let Some((message, rest)) = pairs::structured(&record.message) else { return false };
        self.in_value = pairs::read(rest, &mut record.pairs);
        record.message = message;
        true
    }
}

fn end(line: &str) -> Option<End> {
    let by_start = ENDS.iter().find(|(start, _)| line.starts_with(start)).map(|(_, end)| *end);
    by_start
        .or_else(|| is_of_c_library(line).then_some(End::Runtime))
        .or_else(|| is_signal(line).then_some(End::Signal))
}

/// A record of klog may quote what became of another program.
fn is_of_c_library(line: &str) -> bool {
    C_LIBRARY.iter().any(|part| line.contains(part)) && line::header(line).is_none() && !line.starts_with("{\"")
}

/// `SIGQUIT: quit`, `Segmentation fault (core dumped)`.
fn is_signal(line: &str) -> bool {
    let of_go = line.strip_prefix("SIG").and_then(|rest| rest.split_once(": ")).is_some_and(|(name, text)| {
        (2..=6).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_uppercase())
            && text.starts_with(|c: char| c.is_ascii_lowercase())
    });
    let line = line.strip_suffix(" (core dumped)").unwrap_or(line);
    of_go || KILLED.contains(&line.trim_end())
}

/// True for a line that is of no record of its own.
fn is_of_nobody(line: &str) -> bool {
    end(line).is_none()
        && !line.starts_with("{\"")
        && logfmt(line).is_none()
        && line::header(line).is_none()
        && !line::is_cut_header(line)
        && Time::of_date(line).is_none()
        && !NOTICES.iter().any(|start| line.starts_with(start))
}

/// `{"ts":1700000000000.1,"caller":"cli/run.go:74","msg":"command failed","err":"…"}`
fn json(line: &str) -> Option<Record> {
    let fields = pairs::object(line.trim_end())?;
    let field = |names: &[&str]| names.iter().find_map(|name| fields.get(*name));
    let message = field(&["msg", "message"])?.as_str()?.trim().to_owned();
    let mut record = Record::new(Kind::Log(Severity::Unknown), message);
    record.is_json = true;
    record.time = match field(&["ts", "time"]) {
        Some(Value::Number(number)) => number.as_f64().map(Time::of_number),
        Some(Value::String(text)) => Time::of_date(text),
        _ => None,
    };
    for name in ["err", "error", "panic"] {
        if let Some(value) = fields.get(name) {
            record.pairs.push((name.to_owned(), pairs::text(value)));
        }
    }
    let level = field(&["level", "severity"]).and_then(Value::as_str);
    // Information has a verbosity. v1.20 gives one to its errors, too.
    let lower = record.message.to_ascii_lowercase();
    let begin = if record.error().is_some() { &lower } else { &record.message };
    // It says of none where it is from.
    let may_be = !fields.contains_key("v") || !fields.contains_key("caller");
    let is_error = may_be && (!fields.contains_key("v") || FAILED.iter().any(|start| begin.starts_with(start)));
    let severity = level.map_or(if is_error { Severity::Error } else { Severity::Info }, severity_of);
    record.kind = match end(&record.message) {
        Some(end @ (End::Panic | End::Runtime)) => Kind::End(end),
        _ => Kind::Log(severity),
    };
    Some(record)
}

/// `time="2026-11-28T22:20:24Z" level=fatal msg="…" error="…"`
fn logfmt(line: &str) -> Option<Record> {
    if !["time=", "ts=", "level="].iter().any(|start| line.starts_with(start)) {
        return None;
    }
    let mut found = pairs::Pairs::new();
    pairs::read(line, &mut found);
    let field = |name: &str| found.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let mut record = Record::new(Kind::Log(severity_of(field("level")?)), field("msg")?);
    record.time = field("time").or_else(|| field("ts")).and_then(Time::of_date);
    record.is_json = true;
    record.pairs = found.into_iter().filter(|(key, _)| key == "err" || key == "error").collect();
    Some(record)
}

fn severity_of(level: &str) -> Severity {
    match level.to_ascii_lowercase().as_str() {
        "fatal" | "panic" | "dpanic" => Severity::Fatal,
        "error" => Severity::Error,
        "warn" | "warning" => Severity::Warning,
        _ => Severity::Info,
    }
}
