//! How the kubelet ended, by its own words.

use super::line::Severity;
use super::reader::records;
use super::record::{End, Kind, Record};
use super::redact::redact;

/// How sure it is that a record tells why. The table in [`super`] has the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Strength {
    /// An error among others, or a last line of no logger.
    Complaint,
    /// A panic that was caught, and logged.
    Caught,
    /// Somebody ended it.
    Signal,
    /// An error without a header, of the kubelet's command line or of a program that it ran.
    Bare,
    /// An error after which a kubelet leaves.
    Farewell,
    /// The program cannot go on.
    Crash,
}

/// What was written longer than this before the last record is no reason, in seconds. klog gives its output so long to be
/// written before it leaves (`ExitFlushTimeout` in klog v2's exit.go).
const SECONDS: f64 = 10.0;

/// Nor is what so many records of other work follow: a process that leaves lets others log some more lines.
const LATER: usize = 32;

/// An error among others is held to less: a kubelet that goes on logs some lines a second.
const LATER_THAN_COMPLAINT: usize = 8;

/// Errors after which v1.21 and later leave with `os.Exit`, by how they begin (pkg/kubelet/kubelet.go, server/server.go).
const FAREWELLS: [&str; 8] = [
    "command failed",
    "failed to run kubelet",
    "failed to start containermanager",
    "failed to start cadvisor",
    "failed to initialize internal modules",
    "failed to listen and serve",
    "failed to create listener for",
    "kubelet failed to get node info",
];

/// How a line without a header begins that tells of a failure.
const FAILURES: [&str; 6] = ["failed to ", "unable to ", "cannot ", "could not ", "invalid ", "unknown "];

/// What tells why the kubelet ended, redacted, its log header taken off.
///
/// `lines` are its last ones, oldest first.
#[must_use]
pub fn fatal(lines: &[String]) -> Option<String> {
    let records = records(lines.iter().map(String::as_str));
    let found = redact(&ended(&records)?.1.said());
    (!found.is_empty()).then_some(found)
}

/// The last error of a kubelet that lives, redacted.
pub(crate) fn last_error(lines: &[String]) -> Option<String> {
    let records = records(lines.iter().map(String::as_str));
    Some(redact(&records.iter().rev().find(|record| record.is_error())?.said()))
}

/// The record that tells why the program ended, and how surely.
pub(crate) fn ended(records: &[Record]) -> Option<(Strength, &Record)> {
    let mut best: Option<(Strength, &Record)> = None;
    let last = records.iter().rev().find_map(|record| record.time);
    let mut later = records.iter().filter(|record| is_log(record)).count();
    for (at, record) in records.iter().enumerate() {
        later -= usize::from(is_log(record));
        let (before, rest) = (records.get(..at).unwrap_or_default(), records.get(at + 1..).unwrap_or_default());
        let Some(found) = strength(record, before.last(), rest) else { continue };
        // A line without a time was written before the next one that has one: nobody knows how long before.
        let time = record.time.or_else(|| rest.iter().find_map(|later| later.time));
        let age = time.and_then(|time| time.until(last?)).unwrap_or_default();
        let most = if found <= Strength::Caught { LATER_THAN_COMPLAINT } else { LATER };
        if age > SECONDS || later > most {
            continue;
        }
        // A program ends once: the first crash is the cause of the others. Of complaints the last one is nearest to the end.
        let is_better = match best {
            Some((known, _)) if known == found => found <= Strength::Caught,
            Some((known, _)) => known < found,
            None => true,
        };
        if is_better {
            best = Some((found, record));
        }
    }
    best
}

fn is_log(record: &Record) -> bool {
    matches!(record.kind, Kind::Log(_))
}

fn strength(record: &Record, before: Option<&Record>, rest: &[Record]) -> Option<Strength> {
    let message = record.message.trim().to_lowercase();
    let begins = |texts: &[&str]| texts.iter().any(|text| message.starts_with(text));
    match record.kind {
        Kind::End(End::Panic | End::Runtime) => Some(Strength::Crash),
        Kind::End(End::Command) => Some(Strength::Bare),
        Kind::Log(Severity::Fatal) => Some(Strength::Farewell),
        Kind::End(End::Signal) => Some(Strength::Signal),
        Kind::Log(Severity::Error | Severity::Unknown) if begins(&FAREWELLS) || message.ends_with(", exiting.") => {
            Some(Strength::Farewell)
        }
        // v1.20 in JSON: without a severity, but with the stacks of a fatal error.
        Kind::Log(_) if record.is_json && is_followed_by_stacks(rest) => Some(Strength::Farewell),
        Kind::Log(Severity::Error) if begins(&["observed a panic"]) || is_go_error(&message) => Some(Strength::Caught),
        Kind::Log(Severity::Error) => Some(Strength::Complaint),
        Kind::Log(Severity::Unknown) => record.error().map(|_| Strength::Complaint),
        Kind::Plain if begins(&FAILURES) => Some(Strength::Complaint),
        // After a stack it is a part of one that was cut.
        Kind::Plain if before.is_none_or(|record| record.kind != Kind::Trace) => {
            let says_more = |record: &Record| !matches!(record.kind, Kind::Trace | Kind::Indented | Kind::Notice);
            (!rest.iter().any(says_more)).then_some(Strength::Complaint)
        }
        _ => None,
    }
}

/// True for an error that Go's runtime raises; a container's runtime has errors of its own.
fn is_go_error(message: &str) -> bool {
    message.contains("runtime error: ") && !message.contains("oci runtime error: ")
}

/// True if nothing but the stacks of all goroutines follows.
fn is_followed_by_stacks(rest: &[Record]) -> bool {
    let mut rest = rest.iter();
    rest.next().is_some_and(|record| record.kind == Kind::Trace && record.message.starts_with("goroutine "))
        && rest.all(|record| record.kind == Kind::Trace)
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
    fn a_vendor_s_words() {
        let of = |text: &str| super::super::vendor(text.lines());
        assert_eq!(of(&format!("kubelet {E}x\n")).as_deref(), Some("kubelet"));
        assert_eq!(of(&format!("Nov 26 22:20:24 n kubelet[1]: ??? {E}x\n")).as_deref(), Some("???"));
        assert_eq!(of(&format!("{E}x\nplain words\n{DUMP}")), None);
    }

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
            ("sh: 1: exec: kubelet: not found\n\n".to_owned(), "sh: 1: exec: kubelet: not found"),
        ] {
            assert_eq!(told(&text).as_deref(), Some(expected), "{text}");
        }
        assert_eq!(told(""), None);
        assert_eq!(told(DUMP), None);
    }

    /// And then it raises SIGABRT, of which Go tells.
    #[test]
    fn what_the_c_library_says_before_it_aborts() {
        for line in [
            "free(): invalid pointer",
            "malloc(): corrupted top size",
            "double free or corruption (out)",
            "*** stack smashing detected ***: terminated",
            "kubelet: malloc.c:2379: sysmalloc: Assertion `old_top' failed.",
        ] {
            let log = format!("{E}\"Error syncing pod\" err=\"x\"\n{line}\nSIGABRT: abort\nPC=0x1 m=0 sigcode=0\n");
            assert_eq!(told(&log).as_deref(), Some(line));
        }
    }

    /// Each is a neighbour of what kubelets were seen to print.
    #[test]
    fn neighbours() {
        let later = |count: usize, second: u32| {
            format!("I1121 03:24:{second:02}.289282   30620 x.go:1] \"work\"\n").repeat(count)
        };
        for (text, expected) in [
            // Panics.
            ("panic: a\n\tpanic: b\n\tpanic: c [recovered]\n\ngoroutine 1 [running]:\n".to_owned(), Some("panic: c")),
            ("panic: main.T{Token:\"s3cret\"}\n\ngoroutine 1 [running]:\n".to_owned(), Some("panic: main.T{…}")),
            (format!("{DUMP}panic: late\n"), Some("panic: late")),
            ("panic: x\n\tgoroutine running on other thread; stack unavailable\n".to_owned(), Some("panic: x")),
            // The runtime.
            (
                "fatal error: fault\n[signal SIGSEGV: segmentation violation code=0x80 addr=0x0 pc=0x41]\n".to_owned(),
                Some("fatal error: fault (SIGSEGV: segmentation violation)"),
            ),
            (
                "fatal: morestack on g0\nSIGTRAP: trace trap\nPC=0x1 m=0 sigcode=0\n".to_owned(),
                Some("fatal: morestack on g0"),
            ),
            (
                "runtime/cgo: out of memory in thread_start\nSIGABRT: abort\n".to_owned(),
                Some("runtime/cgo: out of memory in thread_start"),
            ),
            (format!("{E}\"Unable to register node\" err=\"x\"\nSIGQUIT: quit\n"), Some("SIGQUIT: quit")),
            // What a hook of a container died of is no end of the kubelet.
            (
                format!("{F}why\n{E}\"hook\" err=\"nvidia: error while loading shared libraries: libx.so\"\n"),
                Some("why"),
            ),
            (
                format!("{E}\"hook\" err=\"hook: error while loading shared libraries: libx.so\"\n{F}why\n"),
                Some("why"),
            ),
            // A credential plugin has the kubelet's standard error.
            (
                format!("Error: no token\n{E}\"command failed\" err=\"failed to run Kubelet: x\"\n"),
                Some("failed to run Kubelet: x"),
            ),
            (
                format!("error: no token\n{E}\"Failed to start ContainerManager\" err=\"y\"\n"),
                Some("Failed to start ContainerManager: y"),
            ),
            // klog.
            (format!("{F}first\ngoroutine 1 [running]:\n{F}second\ngoroutine 2 [running]:\n"), Some("first")),
            (format!("{E}\"command failed\" reason=\"why\"\n"), Some("command failed reason=\"why\"")),
            (format!("{E}\"command failed\" err=\"a \\\"b\\\", cut in the mid"), Some("a \"b\", cut in the mid")),
            (format!("{E}Failed to start X: open y:\n\tdetails: a\n"), Some("Failed to start X: open y: details: a")),
            (format!("{E}Failed to start X:\nopen y\n"), Some("Failed to start X: open y")),
            (
                format!("{E}\"Observed a panic\" panic=\"runtime error: x\" stacktrace=<\n\tgoroutine 1 [running]:\n\tmain.f(0x1)\n >\n"),
                Some("Observed a panic: runtime error: x"),
            ),
            // The journal makes blanks of tabs.
            (
                format!("Nov 26 22:20:24 n kubelet[1]: {E}\"command failed\" err=<\nNov 26 22:20:24 n kubelet[1]:         a\nNov 26 22:20:24 n kubelet[1]:  >\n"),
                Some("a"),
            ),
            (format!("[kubelet]{E}\"command failed\" err=\"x\"\n"), Some("x")),
            (format!("??? {E}\"command failed\" err=<\n??? \ta\n??? \tb\n???  >\n"), Some("a b")),
            (format!("??? {E}\"work\"\n??? panic: x\n"), Some("panic: x")),
            ("E1121 03:24:02.289282   30620 run.".to_owned(), None),
            // What is old, or has work after it.
            (format!("{E}\"Syncing\" err=\"x\"\n{}", later(8, 2)), Some("Syncing: x")),
            (format!("{E}\"Syncing\" err=\"x\"\n{}", later(9, 2)), None),
            (format!("{E}\"Syncing\" err=\"x\"\n{}", later(1, 13)), None),
            (format!("{E}\"command failed\" err=\"x\"\n{}", later(32, 12)), Some("x")),
            (format!("{E}\"command failed\" err=\"x\"\n{}", later(33, 2)), None),
            (format!("{E}\"command failed\" err=\"x\"\n{}", later(1, 13)), None),
            // JSON.
            ("{\"err\":\"b\",\"msg\":\"command failed\",\"ts\":1}\n".to_owned(), Some("b")),
            (
                "{\"msg\":\"command failed\",\"err\":null,\"error\":[\"b\",{\"message\":\"c\"}]}\n".to_owned(),
                Some("[b, c]"),
            ),
            (
                "{\"msg\":\"command failed\",\"err\":{\"config\":{\"a\":\"s3cret\"}}}\n".to_owned(),
                Some("command failed"),
            ),
            ("{\"msg\":\"Failed to initialize\",\"v\":0,\"err\":\"b\"}\n".to_owned(), Some("Failed to initialize: b")),
            ("{\"msg\":\"Synced\",\"v\":0,\"err\":\"b\"}\n".to_owned(), None),
            (
                "{\"level\":\"fatal\",\"msg\":\"dead\",\"stacktrace\":\"main.main\\n\\tx.go:1\"}\n".to_owned(),
                Some("dead"),
            ),
            // Others.
            ("2026/11/28 22:20:24 http: TLS handshake error from 10.0.0.1:3: EOF\n".to_owned(), None),
            (
                "bash: line 1: /usr/bin/kubelet: Permission denied\n".to_owned(),
                Some("bash: line 1: /usr/bin/kubelet: Permission denied"),
            ),
            (
                "Error loading shared library libc.so: No such file (needed by /kubelet)\nError relocating /kubelet: x\n".to_owned(),
                Some("Error loading shared library libc.so: No such file (needed by /kubelet)"),
            ),
            ("unknown flag: --x\nSee 'kubelet --help' for usage\n".to_owned(), Some("unknown flag: --x")),
            (
                "I1121 03:24:02.289282 1 x.go:1] x\nSegmentation fault (core dumped)\n".to_owned(),
                Some("Segmentation fault (core dumped)"),
            ),
        ] {
            assert_eq!(told(&text).as_deref(), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_survived(line in "\\PC{0,80}|[ -~\\t]{0,900}|.{0,700}") {
            let _ = fatal(&[line]);
        }
    }
}
