//! Tests of the command line's reading, rewriting and precedence. The command lines as they are found on nodes are
//! `fixtures/node_command_lines.yaml`.

use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

fn split(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn args(words: &str) -> KubeletArgs {
    KubeletArgs::parse(&split(words))
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
    let expected = "--cert-dir=/pki --log-dir=/l --config=/c --cert-dir=/p --exit-on-lock-contention=true \
                    --lock-file= --v=0 --logtostderr=true";
    assert_eq!(words, split(expected));
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
    let fields: Vec<String> = flags.shadowed(&payload).into_iter().map(|shadow| shadow.path.join(".")).collect();
    assert_eq!(fields, ["failSwapOn", "featureGates.B"]);
}

#[test]
fn feature_gates_are_shadowed_one_by_one() {
    let shadows = args("--feature-gates=A=true,B=false").shadowed(&json!({"featureGates": {"B": true, "C": true}}));
    let path = ["featureGates", "B"].map(str::to_owned).to_vec();
    assert_eq!(shadows, [Setting { flag: "feature-gates", path, value: json!(false) }]);
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

#[test]
fn command_lines_as_found_on_nodes() {
    // Fields that people like to set by flag as well, with no value that any of the command lines has.
    let payload = json!({
        "maxPods": 3, "systemReserved": {"cpu": "1"}, "clusterDNS": ["10.0.0.10"], "address": "0.0.0.0",
        "staticPodPath": "/x", "authentication": {"anonymous": {"enabled": true}, "x509": {"clientCAFile": "/ca"}},
        "logging": {"verbosity": 7}, "featureGates": {"RotateKubeletServerCertificate": true, "DynamicKubeletConfig": true},
        "containerRuntimeEndpoint": "unix:///x", "registerWithTaints": [], "cgroupDriver": "other",
        "podInfraContainerImage": "x", "volumePluginDir": "/v", "healthzPort": 1,
    });
    let found: Vec<Value> = serde_yaml::from_str(include_str!("fixtures/node_command_lines.yaml")).unwrap();
    assert_eq!(found.len(), 12);
    for found in found {
        let (name, line) = (&found["name"], found["line"].as_str().unwrap());
        let args = args(line);
        for (flag, key) in [
            ("config", "config"),
            ("kubeconfig", "kubeconfig"),
            ("hostname-override", "hostname"),
            ("root-dir", "rootDir"),
            ("config-dir", "configDir"),
        ] {
            assert_eq!(args.last(flag), found[key].as_str(), "{name}: --{flag}");
        }
        let run = split(found["run"].as_str().unwrap());
        let bare = split(found["bare"].as_str().unwrap_or(line));
        for (config, expected) in [(Some("/r"), run), (None, bare)] {
            assert_eq!(args.for_run(config, &ConfigDir::Unit), expected, "{name}");
            let leave = split("--cert-dir=/p --exit-on-lock-contention=true --lock-file= --v=0");
            assert_eq!(
                args.for_preflight(config, &ConfigDir::Unit, "/p"),
                [expected, leave].concat(),
                "{name}: before the run"
            );
        }
        let mut shadowed: Vec<String> =
            args.shadowed(&payload).into_iter().map(|shadow| shadow.path.join(".")).collect();
        let mut expected: Vec<String> = found["shadowed"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|field| field.as_str().unwrap().to_owned())
            .collect();
        shadowed.sort();
        expected.sort();
        assert_eq!(shadowed, expected, "{name}");
    }
}

#[test]
fn the_native_gate_goes_in_every_spelling() {
    for (line, left) in [
        (vec!["--feature-gates=A=true,DynamicKubeletConfig=true"], vec!["--feature-gates=A=true"]),
        (vec!["--feature-gates=DynamicKubeletConfig=true,A=true"], vec!["--feature-gates=A=true"]),
        (vec!["--feature-gates=A=true, DynamicKubeletConfig = true ,B=false"], vec!["--feature-gates=A=true,B=false"]),
        (vec!["--feature-gates", "A=true,DynamicKubeletConfig=false"], vec!["--feature-gates", "A=true"]),
        (vec!["--feature_gates=DynamicKubeletConfig=1,A=true"], vec!["--feature_gates=A=true"]),
        (vec!["--feature-gates=DynamicKubeletConfig=true"], vec![]),
        (vec!["--feature-gates=DynamicKubeletConfig=true,"], vec![]),
        (vec!["--feature-gates", "DynamicKubeletConfig=true", "--v=2"], vec!["--v=2"]),
        (
            vec![
                "--feature-gates=DynamicKubeletConfig=true",
                "--feature-gates=A=true",
                "--feature_gates",
                "DynamicKubeletConfig=true",
            ],
            vec!["--feature-gates=A=true"],
        ),
        // Other gates are handed on as they are.
        (vec!["--feature-gates=A=true,,B=true, C=nonsense"], vec!["--feature-gates=A=true,,B=true, C=nonsense"]),
        (vec!["--feature-gates="], vec!["--feature-gates="]),
        (vec!["--feature-gates"], vec!["--feature-gates"]),
        (vec!["--feature-gates=MyDynamicKubeletConfig=true"], vec!["--feature-gates=MyDynamicKubeletConfig=true"]),
        (vec!["--node-labels=DynamicKubeletConfig=true"], vec!["--node-labels=DynamicKubeletConfig=true"]),
        (
            vec!["--v=2", "--", "--feature-gates=DynamicKubeletConfig=true"],
            vec!["--v=2", "--", "--feature-gates=DynamicKubeletConfig=true"],
        ),
    ] {
        let args = KubeletArgs::parse(&line.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>());
        assert_eq!(args.for_run(None, &ConfigDir::Unit), left, "{line:?}");
        assert!(args.overlay(&json!({}))["featureGates"].get(NATIVE_GATE).is_none(), "{line:?}");
    }
}
