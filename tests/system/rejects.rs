//! Payloads that the kubelet refuses, and some that look as if it would.

use std::fmt::Write as _;

use testkit::kubelet::Style;
use testkit::rig::{LOAD, NAMESPACE, NODE, Rig, VALIDATE, configuration, eventually};

struct Row {
    text: String,
    error: &'static str,
    /// Of the event, which has the kubelet's words.
    words: &'static str,
}

fn row(text: impl Into<String>, error: &'static str, words: &'static str) -> Row {
    Row { text: text.into(), error, words }
}

fn alias_bomb() -> String {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let alias = vec![format!("*a{}", level - 1); 10].join(", ");
        writeln!(text, "a{level}: &a{level} [{alias}]").unwrap();
    }
    configuration(&text)
}

/// Refused without a restart, with the error in the status and the words in an event.
fn refuse(style: Style, rows: Vec<Row>) {
    let rig = Rig::with(style, "1s").running();
    rig.prove("a", &configuration("maxPods: 42"));
    let pid = rig.last_pid();
    for (index, Row { text, error, words }) in rows.into_iter().enumerate() {
        let version = rig.put("a", &text);
        let message = rig.wait_event("KubeletConfigRejected", &version);
        assert!(message.contains(words), "{style:?} {index}: {words:?} in {message}");
        let config = rig.wait_error(&version, error);
        assert_eq!(config["active"], config["lastKnownGood"], "{style:?} {index}");
        assert!(rig.status()["errorDetail"].as_str().unwrap().contains(words), "{style:?} {index}");
    }
    assert_eq!((rig.starts(), rig.last_pid()), (2, pid));
    assert!(!rig.log().contains("will be started anew"), "{style:?}: none of them is");
    // Nothing of all that is in the way of a good one.
    let good = rig.apply("a", &configuration("maxPods: 43"));
    rig.wait_error(&good, "");
}

fn common() -> Vec<Row> {
    vec![
        row("{0xdeadbeef}", LOAD, ""),
        row("a: [", LOAD, ""),
        row("", LOAD, ""),
        row("just words", LOAD, ""),
        row("- a\n- b\n", LOAD, ""),
        row("kind: KubeletConfiguration\n", LOAD, ""),
        row("kind: Pod\napiVersion: v1\n", LOAD, ""),
        row(configuration("maxPods: ten"), LOAD, ""),
        row(alias_bomb(), LOAD, ""),
        row(format!("{}---\nkind: Nonsense\n", configuration("")), LOAD, "more than one YAML document"),
        row(configuration("kubeAPIQPS: -1"), VALIDATE, "must not be a negative number"),
        row(configuration("kubeAPIQPS: -1\neventRecordQPS: -1"), VALIDATE, "must not be a negative number"),
        row(configuration("featureGates: {Nonsense: true}"), VALIDATE, "unrecognized feature gate: Nonsense"),
        row(configuration("logging: {format: json}\nkubeAPIQPS: -2"), VALIDATE, "-2 must not be"),
        row(configuration("standIn: {preflight: nonutf8}\nkubeAPIQPS: -3"), VALIDATE, "-3 must not be"),
    ]
}

#[test]
fn what_1_20_refuses() {
    let mut rows = common();
    let ca = configuration("authentication: {x509: {clientCAFile: /no/such/ca.crt}}");
    rows.push(row(ca, VALIDATE, "unable to load client CA file /no/such/ca.crt"));
    refuse(Style::V1_20, rows);
}

#[test]
fn what_1_36_refuses() {
    refuse(Style::V1_36, common());
}

#[test]
fn a_preflight_without_a_verdict_leaves_it_to_the_trial() {
    let ways = [("exit0", "inconclusive"), ("unheard", "inconclusive"), ("silent", "valid")];
    for (style, (knob, metric)) in [Style::V1_20, Style::V1_36].into_iter().flat_map(|it| ways.map(|way| (it, way))) {
        let rig = Rig::with(style, "1s").running();
        rig.prove("a", &configuration(&format!("standIn: {{preflight: {knob}}}")));
        let counted = rig.metric(&format!("kubelet_supervisor_preflight_total{{result=\"{metric}\"}}"));
        assert!(counted >= Some(1.0), "{} {knob}: {counted:?}", style.name());
        assert_eq!(rig.starts(), 2);
    }
}

#[test]
fn the_right_key_is_needed() {
    let rig = Rig::new().running();
    let version = rig.server.put_config_map(NAMESPACE, "a", &[("other", &configuration("")), ("third", "x")]);
    rig.assign("a");
    rig.wait_told("KubeletConfigRejected", &version, "no key \"kubelet\" in its data (keys: other, third)");
    rig.wait_error(&version, LOAD);
    // The key is added, then another one is asked for.
    let (one, two) = (configuration("maxPods: 1"), configuration("maxPods: 2"));
    let version = rig.server.put_config_map(NAMESPACE, "a", &[("kubelet", &one), ("other", &two)]);
    rig.wait_active(&version);
    rig.wait_ready(2);
    rig.server.assign(NODE, NAMESPACE, "a", "other");
    rig.wait_config("the other key", |config| {
        config["active"]["configMap"]["kubeletConfigKey"] == "other" && config["error"].is_null()
    });
    rig.wait_ready(3);
    assert_eq!(rig.last_config()["maxPods"], 2);
}

#[test]
fn what_the_kubelet_takes_we_take() {
    for style in [Style::V1_20, Style::V1_36] {
        let rig = Rig::with(style, "10m").running();
        rig.apply("a", &configuration("maxPods: 1\nnoSuchField: 1"));
        rig.wait_log("unknown field noSuchField, ignored by the kubelet");
        rig.apply("a", &configuration("maxPods: 1\nmaxPods: 2"));
        rig.apply("a", &format!("{}# {}\n", configuration("maxPods: 4"), "x".repeat((1 << 20) - 200)));
        rig.apply("a", &configuration("maxPods: 0o12\nlogging: {format: json}"));
        assert_eq!(rig.starts(), 5, "{style:?}");
        eventually("ready", || (rig.status()["kubelet"]["ready"] == true).then_some(()));
    }
}

#[test]
fn a_broken_command_line_does_not_make_the_candidate_bad() {
    let mut rig = Rig::new();
    rig.args.push("--no-such-flag".to_owned());
    rig.start();
    let version = rig.offer("a", &configuration("maxPods: 1"));
    rig.wait_log("the kubelet refuses its own command line: unknown flag: --no-such-flag");
    // No start could succeed, so none is tried, and the version keeps its chance.
    let config = rig.wait_config("an error of ours", |config| {
        config["error"] == "failed to sync: internal failure, see Kubelet log for details"
    });
    assert!(config["assigned"].is_null(), "{version:?} was assigned: {config:#}");
    for verdict in ["KubeletConfigRejected", "KubeletConfigRolledBack", "KubeletConfigChanged"] {
        assert!(!rig.reasons().contains(&verdict.to_owned()), "{verdict}: {config:#}");
    }
}
