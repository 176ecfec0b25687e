//! What a preflight run of the kubelet says: the classifier.
//!
//! The kubelet loads and validates its configuration, then refuses to go on because it was told to
//! watch a lock file without naming one. The texts it can leave with were read in v1.20 to v1.36
//! (cmd/kubelet/app/server.go); the order of the rules below matters, the first match decides.

use super::model::{Exit, Verdict};

/// Outcome of one preflight run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// How it ended; `None` if it was killed because it took too long.
    pub exit: Option<Exit>,
    /// stdout and stderr together, any bytes.
    pub output: Vec<u8>,
}

/// A verdict on the candidate, or on the command line it came with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Class {
    /// Of the candidate.
    Candidate(Verdict),
    /// The command line itself is refused; the candidate is not to blame.
    Flags(String),
}

/// Text the kubelet leaves with when everything before the lock file was in order.
const VALID: &str = "failed to run kubelet: cannot exit on lock file contention";
const LOAD: [&str; 2] = ["failed to load kubelet config file", "failed to merge kubelet configs"];
/// Since v1.32 defaulting applies the feature gates and panics (v1beta1/defaults.go).
const DEFAULTING_PANIC: &str = "failed to merge global and in-flight kubeletconfiguration";
const FLAGS: [&str; 5] = [
    "failed to parse kubelet flag",
    "unknown flag",
    "unknown shorthand flag",
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
#[must_use]
pub fn classify(run: &Run) -> Class {
    let text = String::from_utf8_lossy(&run.output);
    let code = match run.exit {
        None => return inconclusive("the preflight did not end in time"),
        Some(Exit::Signal(signal)) => return inconclusive(&format!("the preflight was killed by signal {signal}")),
        Some(Exit::Code(0)) => return inconclusive("the preflight ended with exit code 0"),
        Some(Exit::Code(code)) => code,
    };
    let Some(record) = error_record(&text) else {
        // v1.24.0 to v1.24.3 swallow the error text; the version line is printed only after
        // load, validation and dependencies.
        let passed = text.contains("Kubelet version") || text.contains("Version: v");
        return if passed { valid(&text) } else { inconclusive(&format!("exit code {code} without an error text")) };
    };
    let lower = record.to_lowercase();
    let any = |needles: &[&str]| needles.iter().any(|needle| lower.contains(needle));
    let words = || shorten(&record);
    if lower.starts_with(VALID) {
        valid(&text)
    } else if any(&LOAD) {
        Class::Candidate(Verdict::Load(words()))
    } else if lower.contains(DEFAULTING_PANIC) {
        Class::Candidate(Verdict::Validate(words()))
    } else if any(&FLAGS)
        || (lower.contains("invalid argument") && lower.contains(" flag"))
        || lower.contains("failed to validate kubelet flags")
    {
        Class::Flags(words())
    } else if any(&VALIDATE) || any(&DEPENDENCIES) {
        Class::Candidate(Verdict::Validate(words()))
    } else if code == 255 && !text.contains("Version: v") {
        // v1.20 prints its version after validation and dependencies: it did not get that far.
        Class::Candidate(Verdict::Validate(words()))
    } else {
        inconclusive(&record)
    }
}

fn valid(output: &str) -> Class {
    Class::Candidate(Verdict::Valid(unknown_fields(output)))
}

/// Fields the kubelet ignores: its strict decoder names the first of them in a warning
/// (`found unknown field: x` in v1.20, `unknown field "x"` later) and its lenient one goes on.
fn unknown_fields(output: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let warnings = output.lines().filter(|line| line.to_lowercase().contains("using lenient decoding"));
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
    }
    found
}

fn inconclusive(reason: &str) -> Class {
    Class::Candidate(Verdict::Inconclusive(shorten(reason)))
}

/// The text of the last error record, header and quoting removed.
///
/// A record is a klog fatal or error line (`F1121 … server.go:269] text`), a JSON line, a panic,
/// cobra's `Error: …`, or pflag's bare message.
fn error_record(output: &str) -> Option<String> {
    let mut found = None;
    for line in output.lines().map(str::trim) {
        if let Some(text) = klog_fatal(line).or_else(|| json_error(line)).or_else(|| plain_error(line)) {
            found = Some(text);
        }
    }
    found
}

/// Severity and text of a klog line: `F1121 03:24:02.289282 30620 server.go:269] text`.
pub(super) fn klog(line: &str) -> Option<(char, &str)> {
    let level = line.chars().next().filter(|level| matches!(level, 'I' | 'W' | 'E' | 'F'))?;
    let (header, text) = line.split_once("] ")?;
    let is_header = header.get(1..5)?.chars().all(|c| c.is_ascii_digit()) && header.contains(".go:");
    is_header.then_some((level, text))
}

/// What a structured klog text says: `"message" err="error"`.
pub(super) fn structured(text: &str) -> Option<String> {
    let error = quoted_after(text, "err=\"")?;
    let message = quoted_after(text, "\"").unwrap_or_default();
    // 1.25 and later say only "command failed"; before, the message names the stage.
    Some(if message == "command failed" || message.eq_ignore_ascii_case("failed to run kubelet") {
        error
    } else {
        format!("{message}: {error}")
    })
}

fn klog_fatal(line: &str) -> Option<String> {
    let (level, text) = klog(line)?;
    match (level, structured(text)) {
        ('F', None) => Some(text.to_owned()),
        // An error line counts only when it is the structured farewell; others are mere complaints.
        ('F' | 'E', farewell) => farewell,
        _ => None,
    }
}

/// The Go-quoted string that follows `prefix` (which ends in the opening quote), unescaped.
fn quoted_after(text: &str, prefix: &str) -> Option<String> {
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

pub(super) fn json_error(line: &str) -> Option<String> {
    if !line.starts_with('{') {
        return None;
    }
    let record: serde_json::Value = serde_json::from_str(line).ok()?;
    let message = record.get("msg")?.as_str()?.trim();
    match record.get("err").and_then(serde_json::Value::as_str) {
        Some(error) if message == "command failed" => Some(error.trim().to_owned()),
        Some(error) => Some(format!("{message}: {}", error.trim())),
        // v1.20 logs its fatal error as a plain message.
        None if message.starts_with("failed") || message.starts_with("invalid") => Some(message.to_owned()),
        None => None,
    }
}

fn plain_error(line: &str) -> Option<String> {
    for prefix in ["panic: ", "Error: "] {
        if let Some(text) = line.strip_prefix(prefix) {
            return Some(text.to_owned());
        }
    }
    let lower = line.to_lowercase();
    (lower.starts_with("unknown flag") || lower.starts_with("unknown shorthand")).then(|| line.to_owned())
}

/// Keeps a message fit for an event: one line, 400 characters.
fn shorten(text: &str) -> String {
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match flat.char_indices().nth(400) {
        Some((cut, _)) => format!("{}…", flat.get(..cut).unwrap_or_default()),
        None => flat,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn judge(code: i32, output: &str) -> Class {
        classify(&Run { exit: Some(Exit::Code(code)), output: output.as_bytes().to_vec() })
    }

    fn is(class: &Class) -> &'static str {
        match class {
            Class::Flags(_) => "flags",
            Class::Candidate(verdict) => verdict.label(),
        }
    }

    const F: &str = "F1121 03:24:02.289282   30620 server.go:269] ";
    const E: &str = "E1121 03:24:02.289282   30620 run.go:72] \"command failed\" err=\"";

    #[test]
    fn every_stage_of_1_20() {
        for (text, expected) in [
            ("failed to run Kubelet: cannot exit on lock file contention: no lock file specified", "valid"),
            ("failed to load Kubelet config file /c, error failed to decode: no kind", "load"),
            ("invalid configuration: KubeAPIQPS (--kube-api-qps) -1 must not be a negative number", "validate"),
            ("[invalid configuration: a, invalid configuration: b]", "validate"),
            ("can't use reservedSystemCPUs (--reserved-cpus) with kubeReservedCgroup", "validate"),
            ("unrecognized feature gate: Nope", "validate"),
            ("unable to load client CA file /ca: open /ca: no such file or directory", "validate"),
            ("Cipher suite X not supported or doesn't exist", "validate"),
        ] {
            let output = format!(
                "I1121 03:24:02 1 x.go:1] hello\n{F}{text}\ngoroutine 1 [running]:\nmain.main()\n\t/a/b.go:12 +0x1\n"
            );
            assert_eq!(is(&judge(255, &output)), expected, "{text}");
        }
        assert_eq!(is(&judge(1, "Usage:\n  kubelet [flags]\nunknown flag: --nope\n")), "flags");
    }

    #[test]
    fn every_stage_of_later_versions() {
        for (text, expected) in [
            ("failed to run Kubelet: cannot exit on lock file contention: no lock file specified", "valid"),
            ("failed to load kubelet config file, path: /c, error: failed to decode", "load"),
            (
                "failed to validate kubelet configuration, error: [invalid configuration: kubeAPIQPS \\\"x\\\"]",
                "validate",
            ),
            ("failed to set feature gates from initial flags-based config: unrecognized feature gate: X", "validate"),
            ("initialize logging: format: Invalid value", "validate"),
            ("failed to construct kubelet dependencies: curve", "validate"),
            ("failed to parse kubelet flag: unknown flag: --nope", "flags"),
        ] {
            assert_eq!(is(&judge(1, &format!("{E}{text}\"\n"))), expected, "{text}");
            let json = format!("{{\"ts\":1,\"msg\":\"command failed\",\"err\":\"{text}\"}}\n");
            assert_eq!(is(&judge(1, &json)), expected, "json: {text}");
        }
        let panic = "panic: failed to merge global and in-flight KubeletConfiguration while setting defaults, error: unrecognized feature gate: X\n\ngoroutine 1 [running]:\n";
        assert_eq!(is(&judge(2, panic)), "validate");
        // 1.21 to 1.23: the message names the stage.
        let line = "E1121 03:24:02.289282 1 server.go:206] \"Failed to load kubelet config file\" err=\"failed to load Kubelet config file /c, error x\" path=\"/c\"\n";
        assert_eq!(is(&judge(1, line)), "load");
        let line = "E1121 03:24:02.289282 1 server.go:294] \"Failed to run kubelet\" err=\"failed to run Kubelet: cannot exit on lock file contention: no lock file specified\"\n";
        assert_eq!(is(&judge(1, line)), "valid");
        // 1.24.0: silent.
        assert_eq!(
            is(&judge(1, "I1121 03:24:02.289282 1 server.go:1] \"Kubelet version\" kubeletVersion=\"v1.24.1\"\n")),
            "valid"
        );
    }

    #[test]
    fn the_candidate_cannot_talk_itself_valid() {
        // The lenient-decode warning of 1.20 prints the whole file.
        let output = format!(
            "W1121 03:24:02.289282 1 configfiles.go:1] using lenient decoding as strict decoding failed: failed to run Kubelet: cannot exit on lock file contention\n{F}invalid configuration: x failed to run Kubelet: cannot exit on lock file contention\n"
        );
        assert_eq!(is(&judge(255, &output)), "validate");
    }

    #[test]
    fn unknown_fields_are_remarked_upon() {
        for warning in [
            "W1121 03:24:02.289282 1 configfiles.go:1] using lenient decoding as strict decoding failed: strict decoder error for {...}: v1beta1.KubeletConfiguration.ReadObject: found unknown field: maxPodz, error found in #10 byte of ...",
            "I1121 03:24:02.289282 1 configfiles.go:1] \"Using lenient decoding as strict decoding failed\" err=\"strict decoding error: unknown field \\\"maxPodz\\\"\"",
        ] {
            let output = format!(
                "{warning}\n{F}failed to run Kubelet: cannot exit on lock file contention: no lock file specified\n"
            );
            let Class::Candidate(Verdict::Valid(remarks)) = judge(255, &output) else { panic!("{warning}") };
            assert_eq!(remarks, ["unknown field maxPodz, ignored by the kubelet"]);
        }
    }

    #[test]
    fn no_answer_is_never_valid() {
        assert_eq!(is(&judge(0, "")), "inconclusive");
        assert_eq!(is(&judge(1, "")), "inconclusive");
        assert_eq!(is(&classify(&Run { exit: None, output: Vec::new() })), "inconclusive");
        assert_eq!(is(&classify(&Run { exit: Some(Exit::Signal(9)), output: Vec::new() })), "inconclusive");
    }

    #[test]
    fn words_are_short_and_on_one_line() {
        let Class::Candidate(Verdict::Validate(words)) =
            judge(255, &format!("{F}invalid configuration: {}\n", "é ".repeat(1000)))
        else {
            panic!("not rejected");
        };
        assert!(words.chars().count() <= 401, "{words}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(code in -1..256_i32, output in prop::collection::vec(any::<u8>(), 0..200)) {
            let class = classify(&Run { exit: Some(Exit::Code(code)), output });
            prop_assert_ne!(is(&class), "valid");
        }
    }
}
