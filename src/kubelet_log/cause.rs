//! Which of the kubelet's last lines tells why it died.

use super::parse::{json_error, klog, message, structured};
use super::redact::redact;

/// The one line that tells why the kubelet died, redacted, its log header taken off.
///
/// `lines` are its last ones, oldest first. In this order: the last final error (a klog fatal line,
/// `"command failed" err="…"`, a panic), a line with `runtime error`, the last error line, the last
/// line that is no stack trace.
#[must_use]
pub fn fatal(lines: &[String]) -> Option<String> {
    let last = |read: fn(&str) -> Option<String>| lines.iter().rev().find_map(|line| read(line.trim()));
    let found = last(final_error).or_else(|| last(runtime_error)).or_else(|| last(error)).or_else(|| {
        let line = lines.iter().rev().find(|line| !is_stack_frame(line))?;
        Some(message(line.trim()))
    })?;
    Some(redact(&found)).filter(|found| !found.is_empty())
}

/// True for a line of a Go stack trace, and for an empty one: hundreds of them follow the line that
/// says why.
pub(crate) fn is_stack_frame(line: &str) -> bool {
    let line = line.trim_end();
    if line.is_empty() || line.starts_with('\t') && !line.starts_with("\tpanic: ") {
        return true;
    }
    if line.starts_with("goroutine ") && line.ends_with(':') || line.starts_with("created by ") {
        return true;
    }
    // Registers: `rip    0x46f3e1`.
    let mut parts = line.split_whitespace();
    if let (Some(_), Some(value), None) = (parts.next(), parts.next(), parts.next())
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

fn final_error(line: &str) -> Option<String> {
    if ["panic: ", "fatal error: ", "Error: "].iter().any(|start| line.starts_with(start)) {
        return Some(line.to_owned());
    }
    if let Some((level, text)) = klog(line) {
        let failed = ["\"command failed\"", "\"failed to run kubelet\""]
            .iter()
            .any(|start| text.get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start)));
        let is_final = level == 'F' || (level == 'E' && failed);
        // A line that was cut has no closing quote.
        return is_final.then(|| structured(text).unwrap_or_else(|| text.to_owned()));
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
    fn frames_are_told_from_lines() {
        assert!(DUMP.lines().all(is_stack_frame), "{DUMP}");
        for line in [
            "F1121 03:24:02.289282 1 server.go:269] failed (badly)",
            "{\"msg\":\"x (y)\"}",
            "panic: oh no (again)",
            "\tpanic: second",
            "failed to start (code 1)",
            "[signal SIGSEGV: segmentation violation code=0x1 addr=0x0 pc=0x46f3e1]",
        ] {
            assert!(!is_stack_frame(line), "{line}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_survived(line in "\\PC{0,80}|[ -~\\t]{0,900}|.{0,700}") {
            let _ = fatal(&[line]);
        }
    }
}
