//! The kubelet's own words: which of its last lines tells why it died, and what of a line may be
//! shown.
//!
//! Lines of a kubelet can hold what must not be in an event: v1.20 prints the whole configuration
//! file when it finds an unknown field, and a configuration can hold credentials
//! (`staticPodURLHeader`). So whatever looks like a dump or a credential is taken out, rather too
//! much than too little.

use super::preflight::{json_error, klog, structured};

/// Longest line that is shown, in characters; an event's message holds 1024 bytes.
const LONGEST: usize = 512;

/// What stands for something taken out.
const GONE: &str = "[…]";

/// From these words on nothing of a line is shown: what follows is a secret, in a form that
/// depends on who prints it (YAML, JSON, Go).
const SECRETS: [&str; 5] =
    ["staticpodurlheader", "manifest-url-header", "authorization:", "authorization=", "authorization\":"];

/// The value after these is a secret.
const KEYS: [&str; 5] = ["bearer ", "basic ", "password=", "token=", "secret="];

/// A kubelet's line without secrets, dumps and control characters, cut at 512 characters.
#[must_use]
pub fn scrub(line: &str) -> String {
    let line = line.trim();
    let said = json_text(line).unwrap_or_else(|| line.to_owned());
    let flat: String = said.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let open = cut_secrets(&flat);
    let open = without_pem(&open);
    let open = collapse(&open);
    let open = without_path_dump(&open);
    let open: Vec<String> = mask_values(&open).split_whitespace().map(mask_token).collect();
    shorten(&open.join(" "))
}

/// The one line that tells why the kubelet died, scrubbed, its log header taken off.
///
/// `lines` are its last ones, oldest first. In this order: the last farewell (a klog fatal line,
/// `"command failed" err="…"`, a panic), a line with `runtime error`, the last error line, the last
/// line that is no stack trace.
#[must_use]
pub fn fatal(lines: &[String]) -> Option<String> {
    let last = |read: fn(&str) -> Option<String>| lines.iter().rev().find_map(|line| read(line.trim()));
    let found = last(farewell).or_else(|| last(runtime_error)).or_else(|| last(error)).or_else(|| {
        let told = lines.iter().rev().find(|line| !is_frame(line))?;
        Some(message(told.trim()))
    })?;
    Some(scrub(&found)).filter(|found| !found.is_empty())
}

/// True for a line of a Go stack trace, and for an empty one: hundreds of them follow the line that
/// says why.
#[must_use]
pub fn is_frame(line: &str) -> bool {
    let line = line.trim_end();
    if line.is_empty() || line.starts_with('\t') && !line.starts_with("\tpanic: ") {
        return true;
    }
    if line.starts_with("goroutine ") && line.ends_with(':') || line.starts_with("created by ") {
        return true;
    }
    // Registers: `rip    0x46f3e1`.
    let mut words = line.split_whitespace();
    if let (Some(_), Some(value), None) = (words.next(), words.next(), words.next())
        && value.starts_with("0x")
    {
        return true;
    }
    // `main.main()`, `k8s.io/…/v2.(*loggingT).flushDaemon(0x6f1e0a0)`, `panic({0x1, 0x2})`.
    line.ends_with(')')
        && line
            .split_once('(')
            .is_some_and(|(name, _)| !name.contains(char::is_whitespace) && (name.contains('.') || name == "panic"))
}

fn farewell(line: &str) -> Option<String> {
    if ["panic: ", "fatal error: ", "Error: "].iter().any(|start| line.starts_with(start)) {
        return Some(line.to_owned());
    }
    if let Some((level, text)) = klog(line) {
        let failed = ["\"command failed\"", "\"failed to run kubelet\""]
            .iter()
            .any(|start| text.get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start)));
        return match level {
            // A line that was cut has no closing quote.
            'F' => Some(structured(text).unwrap_or_else(|| text.to_owned())),
            'E' if failed => Some(structured(text).unwrap_or_else(|| text.to_owned())),
            _ => None,
        };
    }
    json_error(line).filter(|_| line.contains("\"command failed\""))
}

fn runtime_error(line: &str) -> Option<String> {
    line.contains("runtime error").then(|| message(line))
}

fn error(line: &str) -> Option<String> {
    match klog(line) {
        Some(('E', text)) => Some(structured(text).unwrap_or_else(|| text.to_owned())),
        Some(_) => None,
        None => json_error(line),
    }
}

/// A line without its log header.
fn message(line: &str) -> String {
    klog(line).map_or_else(|| line.to_owned(), |(_, text)| text.to_owned())
}

/// What a JSON log record says; its other fields can hold anything.
fn json_text(line: &str) -> Option<String> {
    let record: serde_json::Value = line.starts_with('{').then(|| serde_json::from_str(line).ok())??;
    let message = record.get("msg")?.as_str()?;
    Some(match record.get("err").and_then(serde_json::Value::as_str) {
        Some(error) => format!("{message}: {error}"),
        None => message.to_owned(),
    })
}

fn cut_secrets(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let first = SECRETS.iter().filter_map(|word| Some(lower.find(word)? + word.len())).min();
    match first.and_then(|end| text.get(..end)) {
        Some(kept) => format!("{kept} {GONE}"),
        None => text.to_owned(),
    }
}

fn without_pem(text: &str) -> String {
    const BEGIN: &str = "-----BEGIN ";
    const END: &str = "-----END ";
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, block)) = rest.split_once(BEGIN) {
        out.push_str(before);
        out.push_str(GONE);
        // A block that does not end hides all that follows.
        rest = block.split_once(END).and_then(|(_, name)| name.split_once("-----")).map_or("", |(_, after)| after);
    }
    out + rest
}

/// Empties `Type{…}` and `map[…]`, however deep; what is not closed hides all that follows.
fn collapse(text: &str) -> String {
    let mut out = String::new();
    let mut depth = 0_usize;
    let mut pair = ('{', '}');
    for c in text.chars() {
        if depth > 0 {
            if c == pair.0 {
                depth += 1;
            } else if c == pair.1 {
                depth -= 1;
            }
            if depth == 0 {
                out.push(c);
            }
            continue;
        }
        out.push(c);
        if c == '{' || c == '[' && out.ends_with("map[") {
            pair = if c == '{' { ('{', '}') } else { ('[', ']') };
            depth = 1;
            out.push('…');
        }
    }
    out
}

/// Since v1.24 a validation error ends in `, path: &TypeMeta{…}`, which is a struct and no path.
fn without_path_dump(text: &str) -> String {
    let Some((before, dump)) = text.split_once(", path: &") else { return text.to_owned() };
    match dump.split_once("{…}") {
        Some((name, after)) if name.chars().all(char::is_alphanumeric) => format!("{before}{after}"),
        _ => text.to_owned(),
    }
}

/// Hides what follows [`KEYS`], up to a blank or a quote.
fn mask_values(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    loop {
        let lower = rest.to_ascii_lowercase();
        let next = KEYS.iter().filter_map(|key| Some(lower.find(key)? + key.len())).min();
        let Some((kept, value)) = next.and_then(|at| Some((rest.get(..at)?, rest.get(at..)?))) else {
            return out + rest;
        };
        out.push_str(kept);
        out.push_str(GONE);
        let opening = value.trim_start_matches(['"', '\'', '\\']);
        rest = opening.trim_start_matches(|c: char| !c.is_whitespace() && !"\"'\\,&;)".contains(c));
    }
}

/// Hides tokens and keys in a word: JWTs, long base64, the user in a URL.
fn mask_token(word: &str) -> String {
    if let Some((scheme, rest)) = word.split_once("://")
        && let Some((user, host)) = rest.split_once('@')
        && !user.contains('/')
    {
        return format!("{scheme}://{GONE}@{host}");
    }
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || "+/=".contains(c);
    if word.len() >= 40 && word.chars().all(is_base64) && !word.starts_with('/') && is_mixed(word) {
        return GONE.to_owned(); // a line of a PEM block
    }
    let mut out = String::new();
    for part in word.split_inclusive(|c: char| !c.is_ascii_alphanumeric() && !"+=_-.".contains(c)) {
        let (body, end) = match part.char_indices().next_back() {
            Some((at, c)) if !c.is_ascii_alphanumeric() && !"+=_-.".contains(c) => part.split_at(at),
            _ => (part, ""),
        };
        // 40: longer than any name with digits and capitals, shorter than any token. Hexadecimal
        // digests and container ids have one case only.
        let secret = body.starts_with("eyJ") && body.len() >= 20
            || body.split('.').any(|piece| piece.len() >= 40 && is_mixed(piece));
        out.push_str(if secret { GONE } else { body });
        out.push_str(end);
    }
    out
}

fn is_mixed(text: &str) -> bool {
    let has = |kind: fn(&char) -> bool| text.chars().any(|c| kind(&c));
    has(char::is_ascii_uppercase) && has(char::is_ascii_lowercase) && has(char::is_ascii_digit)
}

fn shorten(text: &str) -> String {
    if text.chars().nth(LONGEST).is_none() {
        return text.to_owned();
    }
    text.chars().take(LONGEST - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const F: &str = "F1121 03:24:02.289282   30620 server.go:269] ";
    const E: &str = "E1121 03:24:02.289282   30620 run.go:72] ";

    fn told(text: &str) -> Option<String> {
        fatal(&text.lines().map(str::to_owned).collect::<Vec<_>>())
    }

    const DUMP: &str = "goroutine 1 [running]:\nk8s.io/kubernetes/vendor/k8s.io/klog/v2.stacks(0xc000128001, 0xc0003a0000, 0x7b)\n\t/build/vendor/k8s.io/klog/v2/klog.go:1026 +0xb9\nmain.main()\n\t_output/local/go/src/k8s.io/kubernetes/cmd/kubelet/kubelet.go:41 +0xe5\n\ngoroutine 6 [chan receive]:\nk8s.io/kubernetes/vendor/k8s.io/klog/v2.(*loggingT).flushDaemon(0x6f1e0a0)\n\t/build/klog.go:1169 +0x8b\ncreated by k8s.io/kubernetes/vendor/k8s.io/klog/v2.init.0\n\t/build/klog.go:417 +0xdf\nrip    0x46f3e1\n";

    #[test]
    fn the_line_that_tells_why() {
        for (text, expected) in [
            // 1.20: the reason, then hundreds of lines.
            (
                format!("I1121 03:24:02.289282 1 server.go:416] Version: v1.20.2\n{F}failed to run Kubelet: unable to load client CA file /ca: open /ca: no such file or directory\n{DUMP}"),
                "failed to run Kubelet: unable to load client CA file /ca: open /ca: no such file or directory",
            ),
            (
                format!("{F}Failed to start ContainerManager Failed to enforce System Reserved Cgroup Limits on \"/no-such-cgroup\": [\"no-such-cgroup\"] cgroup does not exist\n{DUMP}"),
                "Failed to start ContainerManager Failed to enforce System Reserved Cgroup Limits on \"/no-such-cgroup\": [\"no-such-cgroup\"] cgroup does not exist",
            ),
            // 1.21 to 1.23.
            (
                "E1121 03:24:02.289282 1 server.go:294] \"Failed to run kubelet\" err=\"failed to run Kubelet: misconfiguration: kubelet cgroup driver: \\\"cgroupfs\\\" is different from docker cgroup driver: \\\"systemd\\\"\"\n".to_owned(),
                "failed to run Kubelet: misconfiguration: kubelet cgroup driver: \"cgroupfs\" is different from docker cgroup driver: \"systemd\"",
            ),
            // 1.25 and later; complaints before and after are not the reason.
            (
                format!("{E}\"Error syncing pod\" err=\"x\"\n{E}\"command failed\" err=\"failed to run Kubelet: running with swap on is not supported, please disable swap or set --fail-swap-on flag to false\"\n{E}\"Unhandled\" err=\"y\"\n"),
                "failed to run Kubelet: running with swap on is not supported, please disable swap or set --fail-swap-on flag to false",
            ),
            (
                format!("{E}\"command failed\" err=\"failed to validate kubelet configuration, error: invalid configuration: kubeAPIQPS -1 must not be a negative number, path: &TypeMeta{{Kind:,APIVersion:,}}\"\n"),
                "failed to validate kubelet configuration, error: invalid configuration: kubeAPIQPS -1 must not be a negative number",
            ),
            // It logs, and leaves.
            (
                "E1121 03:24:02.289282 1 kubelet.go:1831] \"Failed to start ContainerManager\" err=\"[invalid Node Allocatable configuration]\"\nI1121 03:24:02.289282 1 x.go:1] \"Stopping\"\n".to_owned(),
                "Failed to start ContainerManager: [invalid Node Allocatable configuration]",
            ),
            (
                "{\"ts\":1,\"caller\":\"run.go:72\",\"msg\":\"command failed\",\"err\":\"failed to run Kubelet: x\"}\n".to_owned(),
                "failed to run Kubelet: x",
            ),
            // 1.20 with logging.format=json.
            (
                format!("{{\"ts\":1.5,\"msg\":\"invalid configuration: x\\n\",\"v\":0}}\n{DUMP}"),
                "invalid configuration: x",
            ),
            (
                format!("panic: failed to merge global and in-flight KubeletConfiguration while setting defaults, error: unrecognized feature gate: X\n\n{DUMP}"),
                "panic: failed to merge global and in-flight KubeletConfiguration while setting defaults, error: unrecognized feature gate: X",
            ),
            (
                format!("panic: first [recovered]\n\tpanic: runtime error: index out of range [3] with length 2\n\n{DUMP}"),
                "panic: runtime error: index out of range [3] with length 2",
            ),
            (format!("fatal error: runtime: out of memory\n\n{DUMP}"), "fatal error: runtime: out of memory"),
            (
                "E1121 03:24:02.289282 1 runtime.go:77] Observed a panic: \"invalid memory address\" (runtime error: x)\nW1121 03:24:02.289282 1 x.go:1] w\n".to_owned(),
                "Observed a panic: \"invalid memory address\" (runtime error: x)",
            ),
            ("Error: unknown flag: --nope\nUsage:\n  kubelet [flags]\n".to_owned(), "Error: unknown flag: --nope"),
            (format!("I1121 03:24:02.289282 1 x.go:1] last words\n{DUMP}"), "last words"),
            ("sh: 1: exec: kubelet: not found\n\n".to_owned(), "sh: 1: exec: kubelet: not found"),
        ] {
            assert_eq!(told(&text).as_deref(), Some(expected), "{text}");
        }
        assert_eq!(told(""), None);
        assert_eq!(told(DUMP), None);
    }

    #[test]
    fn secrets_and_dumps_are_taken_out() {
        for (line, expected) in [
            (
                "plain, with path=/var/lib/kubelet/pods/1b2c and \"quotes\"",
                "plain, with path=/var/lib/kubelet/pods/1b2c and \"quotes\"",
            ),
            ("x &KubeletConfiguration{A:{B},C:map[d:e],} y", "x &KubeletConfiguration{…} y"),
            ("error: e, path: &TypeMeta{Kind:,APIVersion:,}", "error: e"),
            ("a StaticPodURLHeader:map[X-Key:[s3cret]] b", "a StaticPodURLHeader […]"),
            ("a \"staticPodURLHeader\":\\n  X-Key: s3cret", "a \"staticPodURLHeader […]"),
            ("FLAG: --manifest-url-header=\"a:b\"", "FLAG: --manifest-url-header […]"),
            ("got Authorization: Basic dXNlcjpwYXNz end", "got Authorization: […]"),
            ("used Bearer abc.def-ghi, and went on", "used Bearer […], and went on"),
            ("token=abc&x=1 password=\"pw\" end", "token=[…]&x=1 password=[…]\" end"),
            ("labels map[a:b[c]] here", "labels map[…] here"),
            ("never closed {secret: x", "never closed {…"),
            ("key -----BEGIN RSA PRIVATE KEY-----\\nMIIE\\n-----END RSA PRIVATE KEY----- after", "key […] after"),
            ("key -----BEGIN RSA PRIVATE KEY-----\\nMIIE", "key […]"),
            ("MIIEpAIBAAKCAQEAyVdVnXj8Qh2yq2h0k5oJm0Yw0m3k/8J8c+1G1n3Q0d0x9u7a", "[…]"),
            ("get https://me:pw@host/path?x", "get https://[…]@host/path?x"),
            ("jwt eyJhbGciOiJSUzI1NiIsImtpZCI6Ij.eyJpc3MiOiJrdWJl.c2ln done", "jwt […] done"),
            (
                "container 4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945 exited",
                "container 4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945 exited",
            ),
            ("\u{1b}[31mred\u{7}\tand\0more", "[31mred and more"),
            ("{\"ts\":1,\"msg\":\"said\",\"err\":\"why\",\"config\":\"secret\"}", "said: why"),
        ] {
            assert_eq!(scrub(line), expected, "{line}");
        }
        assert_eq!(scrub(&"é".repeat(600)).chars().count(), 512);
        assert_eq!(scrub(&"é ".repeat(256)).chars().count(), 511);
    }

    #[test]
    fn frames_are_told_from_lines() {
        assert!(DUMP.lines().all(is_frame), "{DUMP}");
        for line in [
            "F1121 03:24:02.289282 1 server.go:269] failed (badly)",
            "{\"msg\":\"x (y)\"}",
            "panic: oh no (again)",
            "\tpanic: second",
            "failed to start (code 1)",
            "[signal SIGSEGV: segmentation violation code=0x1 addr=0x0 pc=0x46f3e1]",
        ] {
            assert!(!is_frame(line), "{line}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_survived(line in "\\PC{0,80}|[ -~\\t]{0,900}|.{0,700}") {
            let shown = scrub(&line);
            prop_assert!(shown.chars().count() <= 512 && !shown.chars().any(char::is_control), "{shown:?}");
            let _ = fatal(&[line]);
        }

        #[test]
        fn what_is_in_a_dump_is_never_shown(before in "[a-z ]{0,9}", inside in "[a-z0-9{}:, \\[\\]]{0,30}", open in "&A\\{|map\\[|Authorization: |staticPodURLHeader") {
            let shown = scrub(&format!("{before}{open}XYZZY{inside}"));
            prop_assert!(!shown.contains("XYZZY"), "{shown}");
        }
    }
}
