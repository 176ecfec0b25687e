//! What a preflight run of the kubelet says: the classifier.
//!
//! The kubelet loads and validates its configuration, then refuses to go on because it was told to
//! watch a lock file without naming one. The texts it can leave with were read in v1.20 to v1.37
//! (cmd/kubelet/app/server.go); the order of the rules below matters, the first match decides.
//! `classify/tests.rs` has them version by version.

use serde_json::Value;

use crate::adapters::process::ProgramOutput;
use crate::kubelet_log;
use crate::kubelet_log::parse::{json, json_error, klog, quoted_after, structured};
use crate::machine::model::{Exit, Verdict};
use kubelet_config::reported::{MAX_LIST, plain};

/// Text the kubelet leaves with when everything before the lock file was in order.
const VALID: &str = "failed to run kubelet: cannot exit on lock file contention";
const LOAD: [&str; 2] = ["failed to load kubelet config file", "failed to merge kubelet configs"];
/// Since v1.32 defaulting applies the feature gates and panics (v1beta1/defaults.go).
const DEFAULTING_PANIC: &str = "failed to merge global and in-flight kubeletconfiguration";
const FLAGS: [&str; 8] = [
    "failed to parse kubelet flag",
    "failed to validate kubelet flags",
    "failed to precedence kubeletconfigflag",
    "unknown flag",
    "unknown shorthand flag",
    "flag needs an argument",
    "unknown command",
    "unknown 'kubernetes.io'",
];
const VALIDATE: [&str; 5] = [
    "failed to validate kubelet configuration",
    "invalid configuration",
    "feature gate",
    "initialize logging",
    "unsupported log format",
];
/// Found before the lock, where native crash-looped: TLS settings and, in v1.20, the client CA.
const DEPENDENCIES: [&str; 5] =
    ["failed to construct kubelet dependencies", "unable to load client ca", "cipher suite", "tls version", "curve"];

/// Judges a finished preflight run.
///
/// # Errors
/// The command line itself is refused, and why; the candidate is not at fault.
pub fn classify(run: &ProgramOutput) -> Result<Verdict, String> {
    let text = String::from_utf8_lossy(&run.output);
    let code = match run.exit {
        None => return Ok(inconclusive("the preflight did not end in time")),
        Some(Exit::Signal(signal)) => return Ok(inconclusive(&format!("the preflight was killed by signal {signal}"))),
        Some(Exit::Code(0)) => return Ok(inconclusive("the preflight ended with exit code 0")),
        Some(Exit::Code(code)) => code,
    };
    let Some(record) = error_record(&text) else {
        // v1.24.0 to v1.24.3 swallow the error text; the version line is printed only after
        // load, validation and dependencies.
        return if matches!(code, 1 | 255) && is_silent_after_its_version(&text) {
            Ok(Verdict::Valid(remarks(&text)))
        } else {
            Ok(inconclusive(&format!("exit code {code} without an error text")))
        };
    };
    let lower = record.to_lowercase();
    let any = |needles: &[&str]| needles.iter().any(|needle| lower.contains(needle));
    let message = || shorten(&kubelet_log::redact(without_excerpt(&record)));
    if lower.starts_with(VALID) {
        Ok(Verdict::Valid(remarks(&text)))
    } else if any(&LOAD) {
        Ok(Verdict::Load(message()))
    } else if lower.contains(DEFAULTING_PANIC) {
        Ok(Verdict::Validate(message()))
    } else if any(&FLAGS) || (lower.contains("invalid argument") && lower.contains(" flag")) {
        Err(message())
    } else if any(&VALIDATE) || any(&DEPENDENCIES) {
        Ok(Verdict::Validate(message()))
    } else if code == 255 && !logs_its_version(&text) {
        // v1.20 prints its version after validation and dependencies: it did not get that far.
        Ok(Verdict::Validate(message()))
    } else {
        Ok(inconclusive(&message()))
    }
}

/// True if the kubelet got to the line with its version. Lines of the candidate, which later
/// kubelets log as well, do not count.
fn logs_its_version(output: &str) -> bool {
    output.lines().any(is_version)
}

fn is_version(line: &str) -> bool {
    let says = |text: &str| text.trim_matches('"').starts_with("Kubelet version") || text.starts_with("Version: v");
    match klog(line) {
        Some((_, text)) => says(text),
        None => json(line).is_some_and(|record| record.get("msg").and_then(Value::as_str).is_some_and(says)),
    }
}

/// True if no error follows the line with the version: one that nobody knows here is no silence.
fn is_silent_after_its_version(output: &str) -> bool {
    let mut lines = output.lines();
    lines.any(is_version) && lines.take_while(|line| *line != "Usage:").all(is_no_error)
}

fn is_no_error(line: &str) -> bool {
    let belongs_to_another = line.is_empty() || line.starts_with([' ', '\t']);
    belongs_to_another
        || match klog(line) {
            Some((level, _)) => matches!(level, 'I' | 'W'),
            None => json(line).is_some_and(|record| ["err", "error"].iter().all(|field| record.get(field).is_none())),
        }
}

/// The decoders quote the file around what they stumbled over, which may be anything: what they
/// say of it comes before.
fn without_excerpt(record: &str) -> &str {
    let ends = [", error found in #", " is missing in '"];
    let end = ends.iter().filter_map(|start| record.find(start)).min();
    end.and_then(|end| record.get(..end)).unwrap_or(record)
}

/// What a kubelet remarks on a configuration that it finds valid: fields it ignores. Its strict decoder names the first of them in a warning
/// (`found unknown field: x` in v1.20, `unknown field "x"` later) and its lenient one goes on.
pub(super) fn remarks(output: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let warnings = output.lines().filter(|line| line.to_lowercase().contains("using lenient decoding"));
    // The candidate's own text may say it as often as it likes.
    for after in warnings.flat_map(|line| line.split("unknown field").skip(1)) {
        let name: String = after
            .trim_start_matches([':', ' ', '"', '\\'])
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric() || "._-".contains(*c))
            .take(80)
            .collect();
        let remark = format!("unknown field {name}, ignored by the kubelet");
        if !name.is_empty() && !found.contains(&remark) {
            found.push(remark);
        }
        if found.len() >= MAX_LIST {
            break;
        }
    }
    found
}

fn inconclusive(reason: &str) -> Verdict {
    Verdict::Inconclusive(shorten(reason))
}

/// The text of the last error record, header and quoting removed.
///
/// A record is a klog fatal or error line (`F1121 … server.go:269] text`), a JSON line, a panic,
/// cobra's `Error: …`, or a bare message. All of them begin their line: what is indented is the
/// candidate's, or of a stack.
fn error_record(output: &str) -> Option<String> {
    let mut found = None;
    let mut lines = output.lines().map(str::trim_end).peekable();
    while let Some(line) = lines.next() {
        // klog writes what has several lines as `err=<`, lines after a tab, ` >`.
        let whole = line.strip_suffix(" err=<").map(|head| {
            let body: Vec<&str> = std::iter::from_fn(|| lines.next_if(|line| line.starts_with('\t'))).collect();
            format!("{head} err=\"{}\"", body.join(" ").replace('\\', "\\\\").replace('"', "\\\""))
        });
        let line = whole.as_deref().unwrap_or(line);
        if let Some(text) = klog_fatal(line).or_else(|| json_error(line)).or_else(|| plain_error(line)) {
            found = Some(text);
        }
    }
    found
}

fn klog_fatal(line: &str) -> Option<String> {
    let (level, text) = klog(line)?;
    match (level, structured(text)) {
        ('F', None) => Some(text.to_owned()),
        // An error line counts only when it is the structured final error; others are complaints,
        // such as about permissions.
        ('F', error) => error,
        ('E', error) => error.filter(|_| is_final_error(text)),
        _ => None,
    }
}

/// v1.21 to v1.23 name the stage, later ones say "command failed".
fn is_final_error(text: &str) -> bool {
    let message = quoted_after(text, "\"").unwrap_or_default().to_lowercase();
    message == "command failed" || message.starts_with("failed to ") || message.starts_with("unknown command")
}

fn plain_error(line: &str) -> Option<String> {
    for prefix in ["panic: ", "Error: "] {
        if let Some(text) = line.strip_prefix(prefix) {
            return Some(text.to_owned());
        }
    }
    let lower = line.to_lowercase();
    let starts = |texts: &[&str]| texts.iter().any(|text| lower.starts_with(text));
    (starts(&[VALID]) || starts(&LOAD) || starts(&FLAGS) || starts(&VALIDATE) || starts(&DEPENDENCIES))
        .then(|| line.to_owned())
}

/// Keeps a message fit for an event: one line without control characters, of which the candidate's text may have any, and
/// 400 characters.
fn shorten(text: &str) -> String {
    let flat = plain(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    match flat.char_indices().nth(400) {
        Some((cut, _)) => format!("{}…", flat.get(..cut).unwrap_or_default()),
        None => flat,
    }
}

#[cfg(test)]
mod tests;
