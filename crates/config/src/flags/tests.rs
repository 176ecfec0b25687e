//! Tests of the command line's reading, rewriting and precedence.

use super::shadow::Shadow;
use super::*;
use proptest::prelude::*;
use serde_json::json;

fn args(words: &str) -> KubeletArgs {
    KubeletArgs::parse(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
}

#[test]
fn reads_every_spelling() {
    let parsed = args(
        "kubelet --config /a --dynamic_config_dir=/dyn --fail-swap-on --v=2 --config=/b --hostname-override= -v 4 --kubeconfig /k",
    );
    assert_eq!(parsed.last("config"), Some("/b"));
    assert_eq!(parsed.last("dynamic-config-dir"), Some("/dyn"));
    assert_eq!(parsed.last("hostname-override"), None);
    assert!(parsed.has("hostname-override"));
    assert_eq!(parsed.last("kubeconfig"), Some("/k"));
}

#[test]
fn whether_eviction_thresholds_are_ignored_for_allocatable() {
    for (words, ignores) in [
        ("--v=2", false),
        ("--experimental-allocatable-ignore-eviction", true),
        ("--experimental_allocatable_ignore_eviction --v=2", true),
        ("--experimental-allocatable-ignore-eviction=T", true),
        ("--experimental-allocatable-ignore-eviction=false", false),
        ("--experimental-allocatable-ignore-eviction=maybe", false), // no kubelet starts with it
        ("--experimental-allocatable-ignore-eviction --experimental-allocatable-ignore-eviction=0", false),
    ] {
        assert_eq!(args(words).ignores_eviction(), ignores, "{words}");
    }
}

#[test]
fn a_real_run_replaces_every_config_and_strips_the_dynamic_dir() {
    let parsed = args("--config /a --v=2 --dynamic-config-dir /dyn --config=/b");
    assert_eq!(parsed.for_run(Some("/r"), &ConfigDir::Unit), ["--v=2", "--config=/r"]);
    assert_eq!(parsed.for_run(None, &ConfigDir::Unit), ["--config", "/a", "--v=2", "--config=/b"]);
}

#[test]
fn additions_go_before_the_end_of_flags() {
    let parsed = args("kubelet --v=2 -- extra");
    assert_eq!(parsed.for_run(Some("/r"), &ConfigDir::Unit), ["kubelet", "--v=2", "--config=/r", "--", "extra"]);
}

#[test]
fn the_preflight_leaves_before_it_touches_anything() {
    let words = args("--config=/a --cert-dir=/pki --log-dir=/l").for_preflight(Some("/c"), &ConfigDir::Unit, "/p");
    assert_eq!(
        words,
        [
            "--cert-dir=/pki",
            "--log-dir=/l",
            "--config=/c",
            "--cert-dir=/p",
            "--exit-on-lock-contention=true",
            "--lock-file=",
            "--v=0",
            "--logtostderr=true"
        ]
    );
    assert!(
        !args("--config=/a").for_preflight(None, &ConfigDir::Unit, "/p").contains(&"--logtostderr=true".to_owned())
    );
    assert!(args("--config=/a").for_preflight(None, &ConfigDir::Unit, "/p").contains(&"--config=/a".to_owned()));
}

#[test]
fn a_flag_that_says_the_same_shadows_nothing() {
    let flags = args(
        "--max-pods=42 --sync-frequency=60s --cluster-dns=10.0.0.10 --feature-gates=A=true,B=true --fail-swap-on=false",
    );
    let payload = json!({"maxPods": 42, "syncFrequency": "1m0s", "clusterDNS": ["10.0.0.10"], "failSwapOn": true,
        "featureGates": {"A": true, "B": false}});
    let fields: Vec<String> = flags.shadowed(&payload).into_iter().map(|shadow| shadow.field).collect();
    assert_eq!(fields, ["failSwapOn", "featureGates.B"]);
}

#[test]
fn feature_gates_are_shadowed_one_by_one() {
    let shadows = args("--feature-gates=A=true,B=false").shadowed(&json!({"featureGates": {"B": true, "C": true}}));
    assert_eq!(shadows, [Shadow { field: "featureGates.B".to_owned(), flag: "feature-gates" }]);
}

proptest! {
    #[test]
    fn a_line_without_our_flags_is_passed_through(words in prop::collection::vec("(--?[a-z]{1,8}(=[a-z]{0,4})?|[a-z]{1,4}|--)", 0..10)) {
        let parsed = KubeletArgs::parse(&words);
        prop_assume!(!parsed.has("config") && !parsed.has("dynamic-config-dir"));
        prop_assert_eq!(parsed.for_run(None, &ConfigDir::Unit), words.clone());
        let with = parsed.for_run(Some("/r"), &ConfigDir::Unit);
        prop_assert_eq!(with.len(), words.len() + 1);
    }
}
