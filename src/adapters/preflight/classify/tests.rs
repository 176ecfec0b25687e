//! What kubelets of v1.20 to v1.37 print in a preflight, stage by stage, and what is made of it.
//!
//! The kubelets' own strings, in the shapes of their versions: read in cmd/kubelet/app/server.go and
//! component-base/cli/run.go of these versions, in outputs that people put into issues, and run on
//! v1.20.2 and v1.36.2. The rest of each output is ours.

use super::*;
use proptest::prelude::*;

/// The kubelet quotes the file, whose author may write to the terminal of whoever reads the message.
#[test]
fn messages_steer_no_terminal_and_lists_are_short() {
    let classified =
        |output: String| classify(&ProgramOutput { exit: Some(Exit::Code(1)), output: output.into_bytes() });
    let Ok(Verdict::Load(message)) =
        classified("Error: failed to load Kubelet config file /c: key \u{1b}[2J\u{202e}a\u{9b}\n".to_owned())
    else {
        panic!("it is no LOAD")
    };
    assert_eq!(message, "failed to load Kubelet config file /c: key [2J\\u{202e}a");
    let fields = (0..50_000).map(|n| format!("unknown field \"f{n}\"")).collect::<Vec<_>>().join(" ");
    let output = format!(
        "W1121 using lenient decoding: {fields}\nError: failed to run Kubelet: cannot exit on lock file contention\n"
    );
    let Ok(Verdict::Valid(remarks)) = classified(output) else { panic!("it is not VALID") };
    assert_eq!(remarks.len(), MAX_LIST);
}

/// Ages of kubelets that end alike.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Age {
    /// klog.Fatal: exit 255, goroutines after the text. The version comes after the dependencies.
    V1_20,
    /// The same, once the candidate's `logging.format: json` is in force.
    V1_20Json,
    /// A structured error that names the stage, exit 1.
    V1_21,
    /// v1.24.0 to v1.24.3: no message.
    V1_24Silent,
    /// cobra's `Error: …`, then the usage; also what embeds a kubelet, as k3s does.
    V1_24,
    /// `"command failed" err="…"`.
    V1_25,
    V1_25Json,
    /// The same, with the gates' panic in defaulting.
    V1_32,
    /// The effective configuration is logged before it is judged.
    V1_37,
}

use Age::{V1_20, V1_20Json, V1_21, V1_24, V1_24Silent, V1_25, V1_25Json, V1_32, V1_37};

const VERSIONS: [&str; 2] = ["Version: v1.20.2", "\"Kubelet version\" kubeletVersion=\"v1.36.2\""];

const GOROUTINES: &str = "goroutine 1 [running]:\nk8s.io/kubernetes/vendor/k8s.io/klog/v2.stacks(0xc000128001, 0xc0003a0000, 0x7b, 0x1d3)\n\
    \t/build/vendor/k8s.io/klog/v2/klog.go:1026 +0xb9\nmain.main()\n\t/build/cmd/kubelet/kubelet.go:41 +0xe5\n\n\
    goroutine 6 [chan receive]:\nk8s.io/klog/v2.(*loggingT).flushDaemon(0x6f1e0a0)\n\t/build/klog.go:1169 +0x8b\n";

const USAGE: &str = "Usage:\n  kubelet [flags]\n\nFlags:\n      --config string   The Kubelet will load its initial configuration from this file. Error: none\n  -v, --v Level   number for the log level verbosity\n\n";

/// Go's %q, as far as these texts need it.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

/// A whole output: `stage` is the message of v1.21 to v1.23, `text` what the version wraps around
/// its error. `late` is after the line with the version.
fn output(age: Age, late: bool, stage: &str, text: &str) -> (i32, String) {
    let mut out = String::from("Flag --cgroup-driver has been deprecated, see the documentation\n");
    if age == V1_37 {
        out += "I1121 11:00:00.000001   77 server.go:250] \"Effective KubeletConfiguration\" config=<\n\
                \tapiVersion: kubelet.config.k8s.io/v1beta1\n\tclusterDomain: \"Kubelet version\"\n\
                \tError: failed to run Kubelet: cannot exit on lock file contention\n >\n";
    }
    if late {
        let version = VERSIONS[usize::from(!matches!(age, V1_20 | V1_20Json))];
        let line = match age {
            V1_25Json => "{\"ts\":1.5,\"caller\":\"app/server.go:545\",\"msg\":\"Kubelet version\",\"v\":0,\"kubeletVersion\":\"v1.30.1\"}\n".to_owned(),
            V1_20Json => "{\"ts\":1.5,\"msg\":\"Version: v1.20.2\\n\",\"v\":0}\n".to_owned(),
            _ => format!("I1121 11:00:00.000002   77 server.go:416] {version}\n"),
        };
        out.push_str(&line);
    }
    let (code, end) = match age {
        V1_20 => (255, format!("F1121 11:00:00.000003   77 server.go:269] {text}\n{GOROUTINES}")),
        V1_20Json => (255, format!("{{\"ts\":1.5,\"msg\":{},\"v\":0}}\n{GOROUTINES}", quoted(&format!("{text}\n")))),
        V1_21 => (
            1,
            format!("E1121 11:00:00.000003   77 server.go:206] {} err={} path=\"/c\"\n", quoted(stage), quoted(text)),
        ),
        V1_24Silent => (1, String::new()),
        V1_24 => (1, format!("Error: {text}\n{USAGE}")),
        V1_25 => (1, format!("E1121 11:00:00.000003   77 run.go:74] \"command failed\" err={}\n", quoted(text))),
        V1_25Json => (
            1,
            format!(
                "{{\"ts\":1.5,\"caller\":\"cli/run.go:74\",\"msg\":\"command failed\",\"err\":{}}}\n",
                quoted(text)
            ),
        ),
        V1_32 | V1_37 => {
            (1, format!("E1121 11:00:00.000003   77 run.go:72] \"command failed\" err={}\n", quoted(text)))
        }
    };
    (code, out + &end)
}

fn judge(code: i32, output: &str) -> Result<Verdict, String> {
    classify(&ProgramOutput { exit: Some(Exit::Code(code)), output: output.as_bytes().to_vec() })
}

fn kind_and_message(class: &Result<Verdict, String>) -> (&'static str, String) {
    match class {
        Err(message) => ("flags", message.clone()),
        Ok(Verdict::Valid(remarks)) => ("valid", remarks.join("; ")),
        Ok(verdict @ (Verdict::Load(message) | Verdict::Validate(message) | Verdict::Inconclusive(message))) => {
            (verdict.result().as_str(), message.clone())
        }
        Ok(Verdict::NotItsFault(message)) => ("not its fault", message.clone()),
    }
}

/// One way to end.
struct Case {
    ages: &'static [Age],
    /// The message of v1.21 to v1.23.
    stage: &'static str,
    text: &'static str,
    /// After the version was printed.
    late: bool,
    verdict: &'static str,
    /// What people are told of the text; v1.21 to v1.23 have the stage before it.
    message: &'static str,
}

const EARLY: Case = Case { ages: &[], stage: "", text: "", late: false, verdict: "", message: "" };

#[rustfmt::skip]
const TABLE: &[Case] = &[
    Case {
        ages: &[V1_20, V1_20Json, V1_21, V1_24, V1_25, V1_25Json, V1_32, V1_37], late: true,
        stage: "Failed to run kubelet", text: "failed to run Kubelet: cannot exit on lock file contention: no lock file specified",
        verdict: "valid", ..EARLY
    },
    Case { ages: &[V1_24Silent], late: true, verdict: "valid", ..EARLY },
    Case { ages: &[V1_24Silent], verdict: "inconclusive", message: "exit code 1 without an error text", ..EARLY },

    // ---- flags
    Case { ages: &[V1_20], text: "unknown flag: --network-plugin", verdict: "flags", message: "unknown flag: --network-plugin", ..EARLY },
    Case { ages: &[V1_20], text: "unknown command: extra", verdict: "flags", message: "unknown command: extra", ..EARLY },
    Case {
        ages: &[V1_21], stage: "Failed to parse kubelet flag", text: "unknown flag: --nope",
        verdict: "flags", message: "Failed to parse kubelet flag: unknown flag: --nope", ..EARLY
    },
    Case {
        ages: &[V1_21], stage: "Failed to validate kubelet flags",
        text: "the DynamicKubeletConfig feature gate must be enabled in order to use the --dynamic-config-dir flag",
        verdict: "flags",
        message: "Failed to validate kubelet flags: the DynamicKubeletConfig feature gate must be enabled in order to use the --dynamic-config-dir flag", ..EARLY
    },
    Case {
        ages: &[V1_24, V1_25, V1_25Json, V1_32], text: "failed to parse kubelet flag: unknown flag: --container-runtime",
        verdict: "flags", message: "failed to parse kubelet flag: unknown flag: --container-runtime", ..EARLY
    },
    Case {
        ages: &[V1_25, V1_37], text: "failed to parse kubelet flag: invalid argument \"x\" for \"--max-pods\" flag: strconv.ParseInt: parsing \"x\": invalid syntax",
        verdict: "flags", message: "failed to parse kubelet flag: invalid argument \"x\" for \"--max-pods\" flag: strconv.ParseInt: parsing \"x\": invalid syntax", ..EARLY
    },
    Case { ages: &[V1_20], text: "invalid argument \"x\" for \"--max-pods\" flag: strconv.ParseInt: parsing \"x\": invalid syntax", verdict: "flags", message: "invalid argument \"x\" for \"--max-pods\" flag: strconv.ParseInt: parsing \"x\": invalid syntax", ..EARLY },
    Case { ages: &[V1_20, V1_24], text: "flag needs an argument: --config", verdict: "flags", message: "flag needs an argument: --config", ..EARLY },
    Case { ages: &[V1_25, V1_37], text: "unknown command extra", verdict: "flags", message: "unknown command extra", ..EARLY },
    Case {
        ages: &[V1_20, V1_25], text: "failed to validate kubelet flags: unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: [node-role.kubernetes.io/x]",
        verdict: "flags", message: "failed to validate kubelet flags: unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: [node-role.kubernetes.io/x]", ..EARLY
    },
    Case { ages: &[V1_25], text: "failed to precedence kubeletConfigFlag: invalid argument", verdict: "flags", message: "failed to precedence kubeletConfigFlag: invalid argument", ..EARLY },

    // ---- load
    Case {
        ages: &[V1_20, V1_24, V1_24], text: "failed to load Kubelet config file /c, error failed to read kubelet config file \"/c\", error: open /c: no such file or directory",
        verdict: "load", message: "failed to load Kubelet config file /c, error failed to read kubelet config file \"/c\", error: open /c: no such file or directory", ..EARLY
    },
    Case {
        ages: &[V1_20], text: "failed to load Kubelet config file /c, error failed to decode: v1beta1.KubeletConfiguration.MaxPods: readUint32: unexpected character: \u{fffd}, error found in #10 byte of ...|axPods\":\"x\"}|..., bigger context ...|,\"staticPodURLHeader\":{\"Authorization\":[\"Bearer s3cr3t\"]},\"maxPods\":\"x\"}|...",
        verdict: "load", message: "failed to load Kubelet config file /c, error failed to decode: v1beta1.KubeletConfiguration.MaxPods: readUint32: unexpected character: \u{fffd}", ..EARLY
    },
    Case {
        ages: &[V1_21], stage: "Failed to load kubelet config file", text: "failed to load Kubelet config file /c, error failed to decode: no kind \"Config\" is registered for version \"v1\" in scheme \"k8s.io/kubernetes/pkg/kubelet/apis/config/scheme/scheme.go:32\"",
        verdict: "load", message: "Failed to load kubelet config file: failed to load Kubelet config file /c, error failed to decode: no kind \"Config\" is registered for version \"v1\" in scheme \"k8s.io/kubernetes/pkg/kubelet/apis/config/scheme/scheme.go:32\"", ..EARLY
    },
    Case {
        ages: &[V1_24], text: "failed to load kubelet config file, error: failed to load Kubelet config file /c, error failed to decode: Object 'Kind' is missing in 'maxPods: 5\npassword: s3cr3t', path: /c",
        verdict: "load", message: "failed to load kubelet config file, error: failed to load Kubelet config file /c, error failed to decode: Object 'Kind'", ..EARLY
    },
    Case {
        ages: &[V1_25, V1_25Json, V1_32, V1_37], text: "failed to load kubelet config file, path: /c, error: failed to load Kubelet config file /c, error failed to decode: json: cannot unmarshal string into Go struct field KubeletConfiguration.maxPods of type int32",
        verdict: "load", message: "failed to load kubelet config file, path: /c, error: failed to load Kubelet config file /c, error failed to decode: json: cannot unmarshal string into Go struct field KubeletConfiguration.maxPods of type int32", ..EARLY
    },

    // ---- drop-ins, since v1.28
    Case {
        ages: &[V1_25, V1_32, V1_37], text: "failed to merge kubelet configs: failed to walk through kubelet dropin directory \"/d\": failed to load kubelet dropin file, path: /d/a.conf, no apiVersion/kind",
        verdict: "load", message: "failed to merge kubelet configs: failed to walk through kubelet dropin directory \"/d\": failed to load kubelet dropin file, path: /d/a.conf, no apiVersion/kind", ..EARLY
    },
    Case {
        ages: &[V1_32], text: "failed to merge kubelet configs: failed to walk through kubelet dropin directory \"/d\": lstat /d: no such file or directory",
        verdict: "load", message: "failed to merge kubelet configs: failed to walk through kubelet dropin directory \"/d\": lstat /d: no such file or directory", ..EARLY
    },

    // ---- gates, logging, validation
    Case { ages: &[V1_20], text: "unrecognized feature gate: Nope", verdict: "validate", message: "unrecognized feature gate: Nope", ..EARLY },
    Case {
        ages: &[V1_20], text: "cannot set feature gate WindowsGMSA to false, feature is locked to true",
        verdict: "validate", message: "cannot set feature gate WindowsGMSA to false, feature is locked to true", ..EARLY
    },
    Case {
        ages: &[V1_21], stage: "Failed to set feature gates from initial flags-based config", text: "unrecognized feature gate: Nope",
        verdict: "validate", message: "Failed to set feature gates from initial flags-based config: unrecognized feature gate: Nope", ..EARLY
    },
    Case {
        ages: &[V1_24, V1_25, V1_25Json], text: "failed to set feature gates from initial flags-based config: unrecognized feature gate: Nope",
        verdict: "validate", message: "failed to set feature gates from initial flags-based config: unrecognized feature gate: Nope", ..EARLY
    },
    Case {
        // What is left of native's gate in v1.24 and v1.25.
        ages: &[V1_24, V1_25], text: "cannot set feature gate DynamicKubeletConfig to true, feature is locked to false",
        verdict: "validate", message: "cannot set feature gate DynamicKubeletConfig to true, feature is locked to false", ..EARLY
    },
    Case {
        ages: &[V1_20, V1_24], text: "invalid configuration: KubeAPIQPS (--kube-api-qps) -1 must not be a negative number",
        verdict: "validate", message: "invalid configuration: KubeAPIQPS (--kube-api-qps) -1 must not be a negative number", ..EARLY
    },
    Case { ages: &[V1_20], text: "[invalid configuration: a, invalid configuration: b]", verdict: "validate", message: "[invalid configuration: a, invalid configuration: b]", ..EARLY },
    Case {
        ages: &[V1_20], text: "can't use reservedSystemCPUs (--reserved-cpus) with kubeReservedCgroup (--kube-reserved-cgroup) or systemReservedCgroup (--system-reserved-cgroup)",
        verdict: "validate", message: "can't use reservedSystemCPUs (--reserved-cpus) with kubeReservedCgroup (--kube-reserved-cgroup) or systemReservedCgroup (--system-reserved-cgroup)", ..EARLY
    },
    Case { ages: &[V1_20], text: "unsupported log format: xml", verdict: "validate", message: "unsupported log format: xml", ..EARLY },
    Case {
        ages: &[V1_21], stage: "Failed to validate kubelet configuration", text: "invalid configuration: MaxPods (--max-pods) -1 must not be a negative number",
        verdict: "validate", message: "Failed to validate kubelet configuration: invalid configuration: MaxPods (--max-pods) -1 must not be a negative number", ..EARLY
    },
    Case {
        ages: &[V1_24, V1_25, V1_32, V1_37], text: "failed to validate kubelet configuration, error: [invalid configuration: kubeAPIQPS (--kube-api-qps) -1 must not be a negative number, invalid configuration: podsPerCore (--pods-per-core) -1 must not be a negative number], path: &TypeMeta{Kind:,APIVersion:,}",
        verdict: "validate", message: "failed to validate kubelet configuration, error: [invalid configuration: kubeAPIQPS (--kube-api-qps) -1 must not be a negative number, invalid configuration: podsPerCore (--pods-per-core) -1 must not be a negative number]", ..EARLY
    },
    Case {
        // The node, not the candidate: the local configuration is refused likewise, which the judge finds out.
        ages: &[V1_32, V1_37], text: "failed to validate kubelet configuration, error: kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is unsupported and will be removed in a future release, path: &TypeMeta{Kind:,APIVersion:,}",
        verdict: "validate", message: "failed to validate kubelet configuration, error: kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is unsupported and will be removed in a future release", ..EARLY
    },
    Case {
        ages: &[V1_24, V1_25, V1_32, V1_37], text: "initialize logging: logging.format: Invalid value: \"xml\": Unsupported log format",
        verdict: "validate", message: "initialize logging: logging.format: Invalid value: \"xml\": Unsupported log format", ..EARLY
    },

    // ---- dependencies
    Case {
        ages: &[V1_20], text: "unable to load client CA file /ca: open /ca: no such file or directory",
        verdict: "validate", message: "unable to load client CA file /ca: open /ca: no such file or directory", ..EARLY
    },
    Case { ages: &[V1_20], text: "Cipher suite X not supported or doesn't exist", verdict: "validate", message: "Cipher suite X not supported or doesn't exist", ..EARLY },
    Case { ages: &[V1_20], text: "unknown tls version \"VersionTLS9\"", verdict: "validate", message: "unknown tls version \"VersionTLS9\"", ..EARLY },
    Case { ages: &[V1_20], text: "mkdir /pki: read-only file system", verdict: "validate", message: "mkdir /pki: read-only file system", ..EARLY },
    Case {
        ages: &[V1_21], stage: "Failed to construct kubelet dependencies", text: "unable to load client CA file /ca: open /ca: no such file or directory",
        verdict: "validate", message: "Failed to construct kubelet dependencies: unable to load client CA file /ca: open /ca: no such file or directory", ..EARLY
    },
    Case {
        ages: &[V1_24, V1_25, V1_25Json, V1_32, V1_37], text: "failed to construct kubelet dependencies: Cipher suite X not supported or doesn't exist",
        verdict: "validate", message: "failed to construct kubelet dependencies: Cipher suite X not supported or doesn't exist", ..EARLY
    },

    // ---- after all that: nobody can tell
    Case {
        ages: &[V1_32, V1_37], late: true, text: "failed to run Kubelet: create health checker: configure watchdog: invalid WATCHDOG_USEC",
        verdict: "inconclusive", message: "failed to run Kubelet: create health checker: configure watchdog: invalid WATCHDOG_USEC", ..EARLY
    },
    Case {
        ages: &[V1_20, V1_20Json], late: true, text: "failed to run Kubelet: unable to acquire file lock on \"/l\": permission denied",
        verdict: "inconclusive", message: "failed to run Kubelet: unable to acquire file lock on \"/l\": permission denied", ..EARLY
    },
];

#[test]
fn every_stage_of_every_age() {
    for case in TABLE {
        for age in case.ages {
            let (code, output) = output(*age, case.late, case.stage, case.text);
            let found = kind_and_message(&judge(code, &output));
            assert_eq!(found, (case.verdict, case.message.to_owned()), "{age:?}:\n{output}");
        }
    }
}

/// Defaulting applies the gates and panics (v1beta1/defaults.go, since v1.32): exit 2.
#[test]
fn a_gate_that_defaulting_panics_over() {
    for why in [
        "unrecognized feature gate: Nope",
        "cannot set feature gate NodeSwap to false, feature is locked to true",
        "InPlacePodLevelResourcesVerticalScaling is enabled, but depends on features that are disabled: [PodLevelResources]",
    ] {
        let text =
            format!("failed to merge global and in-flight KubeletConfiguration while setting defaults, error: {why}");
        let output = format!(
            "I1121 11:00:00.000001 77 feature_gate.go:477] \"Warning: setting GA feature gate. It will be removed in a future release.\" featureGate=\"NodeSwap\" value=true\npanic: {text}\n\n{GOROUTINES}"
        );
        assert_eq!(kind_and_message(&judge(2, &output)), ("validate", text));
    }
    let crash = format!(
        "panic: runtime error: invalid memory address or nil pointer dereference\n[signal SIGSEGV]\n\n{GOROUTINES}"
    );
    assert_eq!(kind_and_message(&judge(2, &crash)).0, "inconclusive", "a bug of the kubelet's is no verdict");
    let crash = format!(
        "I1121 11:00:00.000001 77 server.go:1] \"Kubelet version\" kubeletVersion=\"v1.36.2\"\nfatal error: out of memory\n\n{GOROUTINES}"
    );
    assert_eq!(kind_and_message(&judge(2, &crash)).0, "inconclusive", "nor the silence of v1.24");
}

/// What no kubelet says that was read, in a shape that is known and in one that is not.
#[test]
fn what_nobody_knows_is_no_verdict() {
    for age in [V1_21, V1_24, V1_25, V1_25Json, V1_32, V1_37] {
        for late in [false, true] {
            let (code, output) = output(age, late, "Failed to foresee this", "the moon is full");
            let (verdict, message) = kind_and_message(&judge(code, &output));
            assert_eq!(verdict, "inconclusive", "{age:?}:\n{output}");
            assert!(message.contains("the moon is full"), "{message}");
        }
    }
    let version = "I1121 11:00:00.000001 77 server.go:1] \"Kubelet version\" kubeletVersion=\"v1.40.0\"\n";
    for said in [
        "E1121 11:00:00.000002 77 run.go:1] \"Kubelet stays away\" err=\"the moon is full\"\n",
        "E1121 11:00:00.000002 77 run.go:1] \"Kubelet stays away\" error=\"the moon is full\"\n",
        "{\"ts\":1.5,\"msg\":\"Kubelet stays away\",\"error\":\"the moon is full\"}\n",
        "Kubelet stays away: the moon is full\n",
    ] {
        let found = kind_and_message(&judge(1, &format!("{version}{said}")));
        assert_eq!(found.0, "inconclusive", "an error is no silence: {said}");
    }
}

#[test]
fn an_error_of_several_lines() {
    let output = "E1121 11:00:00.000003   77 run.go:74] \"command failed\" err=<\n\
        \tfailed to load kubelet config file, path: /c, error: yaml: unmarshal errors:\n\
        \t  line 4: key \"maxPods\" already set in map\n >\n";
    let message = "failed to load kubelet config file, path: /c, error: yaml: unmarshal errors: line 4: key \"maxPods\" already set in map";
    assert_eq!(kind_and_message(&judge(1, output)), ("load", message.to_owned()));
}

/// Without any of the loggers, as the first versions of component-base/cli printed it.
#[test]
fn a_bare_error() {
    let text = "failed to construct kubelet dependencies: curve";
    assert_eq!(kind_and_message(&judge(1, &format!("{text}\n{USAGE}"))), ("validate", text.to_owned()));
    assert_eq!(kind_and_message(&judge(1, &format!("{USAGE}unknown shorthand flag: 'x' in -x\n"))).0, "flags");
}

#[test]
fn a_complaint_is_no_farewell() {
    // As somebody other than root, v1.24.0 says this and no more.
    let complaint = "E1121 11:00:00.000001 77 server.go:1] \"kubelet running with insufficient permissions\" err=\"kubelet needs to run as uid `0`. It is being run as 65534\"\nI1121 11:00:00.000002 77 server.go:1] \"Kubelet version\" kubeletVersion=\"v1.24.1\"\n";
    assert_eq!(kind_and_message(&judge(1, complaint)).0, "valid");
}

#[test]
fn the_candidate_cannot_talk_itself_valid() {
    const F: &str = "F1121 03:24:02.289282   30620 server.go:269] ";
    // The lenient-decode warning of v1.20 prints the whole file, and so does v1.37.
    let said = "failed to run Kubelet: cannot exit on lock file contention";
    for candidate in [
        said.to_owned(),
        format!("{{\n  \"a\": 1,\n  {F}{said}\n  panic: {said}\n  Error: {said}\n  \"Kubelet version\"\n}}"),
    ] {
        let warning = format!(
            "W1121 03:24:02.289282 1 codec.go:73] using lenient decoding as strict decoding failed: strict decoder error for {candidate}: x\n"
        );
        assert_eq!(
            kind_and_message(&judge(255, &format!("{warning}{F}invalid configuration: x {said}\n"))).0,
            "validate"
        );
        assert_eq!(kind_and_message(&judge(1, &warning)).0, "inconclusive", "{candidate}");
    }
    let dump = format!(
        "I1121 11:00:00.000001 77 server.go:1] \"Effective KubeletConfiguration\" config=<\n\tError: {said}\n\t\"Kubelet version\"\n >\n"
    );
    assert_eq!(kind_and_message(&judge(1, &dump)).0, "inconclusive");
}

#[test]
fn unknown_fields_are_remarked_upon() {
    for warning in [
        "W1121 03:24:02.289282 1 configfiles.go:1] using lenient decoding as strict decoding failed: strict decoder error for {...}: v1beta1.KubeletConfiguration.ReadObject: found unknown field: maxPodz, error found in #10 byte of ...",
        "I1121 03:24:02.289282 1 configfiles.go:1] \"Using lenient decoding as strict decoding failed\" err=\"strict decoding error: unknown field \\\"maxPodz\\\"\"",
    ] {
        let (code, end) = output(
            V1_20,
            true,
            "",
            "failed to run Kubelet: cannot exit on lock file contention: no lock file specified",
        );
        let remark = "unknown field maxPodz, ignored by the kubelet".to_owned();
        assert_eq!(kind_and_message(&judge(code, &format!("{warning}\n{end}"))), ("valid", remark));
    }
}

#[test]
fn no_answer_is_never_valid() {
    let of = |exit| {
        kind_and_message(&classify(&ProgramOutput {
            exit,
            output: b"failed to run Kubelet: cannot exit on lock file contention\n".to_vec(),
        }))
    };
    assert_eq!(of(None), ("inconclusive", "the preflight did not end in time".to_owned()));
    assert_eq!(of(Some(Exit::Signal(9))), ("inconclusive", "the preflight was killed by signal 9".to_owned()));
    assert_eq!(of(Some(Exit::Code(0))), ("inconclusive", "the preflight ended with exit code 0".to_owned()));
    assert_eq!(kind_and_message(&judge(1, "")), ("inconclusive", "exit code 1 without an error text".to_owned()));
}

#[test]
fn words_are_short_on_one_line_and_hold_no_secrets() {
    let long = format!("invalid configuration: {}", "é ".repeat(1000));
    let (code, printed) = output(V1_20, false, "", &long);
    let (_, message) = kind_and_message(&judge(code, &printed));
    assert!(message.chars().count() <= 401, "{message}");
    for secret in [
        "failed to decode: map[Authorization:[Bearer s3cr3t]]",
        "bad --manifest-url-header Authorization: s3cr3t",
        "&KubeletConfiguration{StaticPodURLHeader:map[string][]string{Authorization: [s3cr3t],},MaxPods:5,}",
        "json: {\"staticPodURLHeader\":{\"X\":[\"s3cr3t\"]}}",
    ] {
        for text in [
            format!("failed to load Kubelet config file /c, error {secret}"),
            format!("failed to run Kubelet: {secret}"),
        ] {
            let (code, printed) = output(V1_25, false, "", &text);
            let (_, message) = kind_and_message(&judge(code, &printed));
            assert!(!message.contains("s3cr3t"), "{message}");
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_survived(code in -1..256_i32, output in prop::collection::vec(any::<u8>(), 0..200)) {
        let class = classify(&ProgramOutput { exit: Some(Exit::Code(code)), output });
        prop_assert_ne!(kind_and_message(&class).0, "valid");
    }
}
