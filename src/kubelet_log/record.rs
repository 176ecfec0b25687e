//! Records: the lines that belong together, and what they say.

use super::line::Severity;
use super::pairs::Pairs;
use super::time::Time;

/// What kind of record it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Of a logger: klog's text or JSON, logfmt.
    Log(Severity),
    /// What a Go program, its loader or its shell says when it ends.
    End(End),
    /// A line of a stack, of registers or memory.
    Trace,
    /// An indented line that belongs to nothing known: the candidate's, or a usage text's.
    Indented,
    /// What says nothing of an end: flags that are deprecated, the heads of a usage text.
    Notice,
    /// Any other line.
    Plain,
}

/// How a program says that it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// `panic: …`
    Panic,
    /// Go's runtime, cgo, the C library, or the dynamic linker.
    Runtime,
    /// `Error: …`, of the library for command lines, or of a program that the kubelet ran.
    Command,
    /// `SIGQUIT: quit`, and what a shell says of a signal.
    Signal,
}

/// Some lines that belong together.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record {
    pub(crate) kind: Kind,
    pub(crate) time: Option<Time>,
    /// What stands before the message in klog's text.
    pub(crate) header: String,
    /// Without header and quotes.
    pub(crate) message: String,
    pub(crate) pairs: Pairs,
    /// The lines after the first that belong to it, but for those of values.
    pub(crate) more: Vec<String>,
    /// It was JSON or logfmt: its other fields can hold anything.
    pub(crate) is_json: bool,
}

/// Messages that say no more than the error after them.
const WRAPPERS: [&str; 2] = ["command failed", "failed to run kubelet"];

/// Fields whose values may have several lines and be shown.
const SAID: [&str; 6] = ["err", "error", "reason", "message", "panic", "cause"];

impl Record {
    pub(super) fn new(kind: Kind, message: impl Into<String>) -> Self {
        let (pairs, more) = (Pairs::new(), Vec::new());
        Self { kind, time: None, header: String::new(), message: message.into(), pairs, more, is_json: false }
    }

    /// The error that it tells of.
    pub(crate) fn error(&self) -> Option<&str> {
        let named = |name: &str| self.pairs.iter().find(|(key, value)| key == name && !value.trim().is_empty());
        named("err").or_else(|| named("error")).or_else(|| named("panic")).map(|(_, value)| value.trim())
    }

    pub(crate) fn is_error(&self) -> bool {
        matches!(self.kind, Kind::Log(Severity::Error | Severity::Fatal))
    }

    /// True if its error is all that it says.
    pub(crate) fn is_wrapper(&self) -> bool {
        WRAPPERS.iter().any(|message| self.message.trim().eq_ignore_ascii_case(message))
    }

    /// What it says, on several lines, without its header: `message: error`.
    pub(crate) fn said(&self) -> String {
        let mut text = self.message.trim().to_owned();
        match self.error() {
            Some(error) if self.is_wrapper() || text.is_empty() => error.clone_into(&mut text),
            Some(error) => text = format!("{text}: {error}"),
            None if !self.is_json => text.push_str(&self.pairs_shown()),
            None => {}
        }
        if matches!(self.kind, Kind::End(End::Runtime)) && !self.more.is_empty() {
            return format!("{text} ({})", self.more.join("; "));
        }
        let whole = [&[text][..], &self.more].concat().join("\n");
        // `panic: a [recovered, repanicked]`
        match whole.rfind(" [recovered").filter(|_| self.kind == Kind::End(End::Panic) && whole.ends_with(']')) {
            Some(at) => whole.get(..at).unwrap_or_default().to_owned(),
            None => whole,
        }
    }

    /// The whole record as its writer wrote it, but for fields of several lines, which can hold the whole configuration.
    pub(super) fn line(&self) -> String {
        if self.is_json || self.pairs.is_empty() {
            return format!("{}{}", self.header, self.said());
        }
        format!("{}\"{}\"{}", self.header, self.message, self.pairs_shown())
    }

    fn pairs_shown(&self) -> String {
        let one = |(key, value): &(String, String)| {
            let is_shown = !value.contains('\n') || SAID.contains(&key.as_str());
            format!(" {key}=\"{}\"", if is_shown { value.trim() } else { "[…]" })
        };
        self.pairs.iter().filter(|(_, value)| !value.is_empty()).map(one).collect()
    }
}
