//! What a preflight run of the kubelet says: the classifier.
//!
//! The kubelet loads and validates its configuration, then refuses to go on because it was told to
//! watch a lock file without naming one. The texts it can leave with were read in v1.20 to v1.37
//! (cmd/kubelet/app/server.go); the order of the rules below matters, the first match decides.
//! `classify/tests.rs` has them version by version.

use crate::adapters::process::ProgramOutput;
use crate::kubelet_log::{self, Kind, Record, Severity, Strength};
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
    let records = kubelet_log::records(text.lines());
    let Some(record) = error_text(&records) else {
        // v1.24.0 to v1.24.3 swallow the error text; the version line is printed only after
        // load, validation and dependencies.
        return if matches!(code, 1 | 255) && is_silent_after_its_version(&records) {
            Ok(Verdict::Valid(remarks_in(&records)))
        } else {
            // What it complained of last may be why.
            let words = kubelet_log::ended(&records).map(|(_, record)| kubelet_log::redact(&record.said()));
            Ok(inconclusive(&words.unwrap_or_else(|| format!("exit code {code} without an error text"))))
        };
    };
    let lower = record.to_lowercase();
    let any = |needles: &[&str]| needles.iter().any(|needle| lower.contains(needle));
    let message = || shorten(&kubelet_log::redact(&record));
    if lower.starts_with(VALID) {
        Ok(Verdict::Valid(remarks_in(&records)))
    } else if any(&LOAD) {
        Ok(Verdict::Load(message()))
    } else if lower.contains(DEFAULTING_PANIC) {
        Ok(Verdict::Validate(message()))
    } else if any(&FLAGS) || (lower.contains("invalid argument") && lower.contains(" flag")) {
        Err(message())
    } else if any(&VALIDATE) || any(&DEPENDENCIES) {
        Ok(Verdict::Validate(message()))
    } else if code == 255 && !records.iter().any(is_version) {
        // v1.20 prints its version after validation and dependencies: it did not get that far.
        Ok(Verdict::Validate(message()))
    } else {
        Ok(inconclusive(&message()))
    }
}

/// True if the kubelet got to the line with its version. Lines of the candidate, which later
/// kubelets log as well, do not count.
fn is_version(record: &Record) -> bool {
    let says = ["Kubelet version", "Version: v"].iter().any(|start| record.message.starts_with(start));
    says && matches!(record.kind, Kind::Log(_))
}

/// True if no error follows the line with the version. A text that this file does not know is an error, too.
fn is_silent_after_its_version(records: &[Record]) -> bool {
    let mut records = records.iter();
    let is_usage = |record: &Record| record.kind == Kind::Notice && record.message == "Usage:";
    records.any(is_version) && records.take_while(|record| !is_usage(record)).all(is_no_error)
}

fn is_no_error(record: &Record) -> bool {
    match record.kind {
        Kind::Indented => true, // it belongs to another
        Kind::Log(Severity::Info | Severity::Warning) => !record.is_json || record.error().is_none(),
        _ => false,
    }
}

/// What a kubelet remarks on a configuration that it finds valid: fields it ignores. Its strict decoder names the first of them in a warning
/// (`found unknown field: x` in v1.20, `unknown field "x"` later) and its lenient one goes on.
pub(super) fn remarks(output: &str) -> Vec<String> {
    remarks_in(&kubelet_log::records(output.lines()))
}

fn remarks_in(records: &[Record]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let warnings = records.iter().filter(|record| record.message.to_lowercase().contains("using lenient decoding"));
    let texts: Vec<String> = warnings.map(Record::said).collect();
    // The candidate's own text may say it as often as it likes.
    for after in texts.iter().flat_map(|text| text.split("unknown field").skip(1)) {
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

/// What the program says when it ends, without what only says that it does. An error among others counts if it is one that
/// v1.21 to v1.23 end with, which name the stage, and a bare line if the texts above have it: others are complaints, such as
/// about permissions.
fn error_text(records: &[Record]) -> Option<String> {
    if let Some((_, record)) = kubelet_log::ended(records).filter(|(strength, _)| *strength >= Strength::Signal) {
        let text = record.said();
        let bare = ["panic: ", "Error: "].iter().find_map(|label| text.strip_prefix(label));
        return Some(bare.map_or_else(|| text.clone(), str::to_owned));
    }
    records.iter().rev().find(|record| is_stage(record) || is_known(record)).map(Record::said)
}

fn is_stage(record: &Record) -> bool {
    let message = record.message.to_lowercase();
    let names_it = ["failed ", "invalid ", "unknown command"].iter().any(|start| message.starts_with(start));
    record.is_error() && names_it && (record.is_json || record.error().is_some())
}

fn is_known(record: &Record) -> bool {
    let lower = record.message.to_lowercase();
    let starts = |texts: &[&str]| texts.iter().any(|text| lower.starts_with(text));
    record.kind == Kind::Plain
        && (starts(&[VALID]) || starts(&LOAD) || starts(&FLAGS) || starts(&VALIDATE) || starts(&DEPENDENCIES))
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
