//! Who may write a node's ConfigMap, against the policies that are shipped; and against the parsers.

use kubelet_config::{policy, yaml};
use serde_json::Value;
use testkit::kubelet::Style;
use testkit::rig::{NAMESPACE, Rig, Version, configuration, eventually, is, is_gone};

/// A value that no node has by itself, for each field that a shipped policy keeps.
const VALUES: &str = include_str!("values.yaml");

/// Of a field and its value.
type Spelling = fn(&str, &str) -> String;

/// How a field can be written so that a reader may miss it.
const SPELLINGS: &[(&str, Spelling)] = &[
    ("as it is", |field, value| format!("{field}: {value}")),
    ("escaped", |field, value| {
        let (first, rest) = field.split_at(1);
        format!("\"\\x{:02x}{rest}\": {value}", first.as_bytes()[0])
    }),
    ("a merge key", |field, value| format!("<<: {{{field}: {value}}}")),
    ("a list of merge keys", |field, value| format!("<<: [{{podsPerCore: 5}}, {{{field}: {value}}}]")),
    ("an alias", |field, value| format!("evil: &evil {value}\n{field}: *evil")),
    ("an alias of a key", |field, value| format!("evil: &evil {field}\n*evil : {value}")),
    ("a merged alias", |field, value| format!("evil: &evil {{{field}: {value}}}\n<<: *evil")),
    ("twice, the last one wins", |field, value| format!("{field}: null\n{field}: {value}")),
    ("an explicit key", |field, value| format!("? {field}\n: {value}")),
    ("a tag", |field, value| format!("!!str {field}: {value}")),
    ("upper case", |field, value| format!("{}: {value}", field.to_uppercase())),
    ("another document", |field, value| {
        format!("podsPerCore: 5\n---\n{}", configuration(&format!("{field}: {value}")))
    }),
];

fn rig(shipped: &str) -> Rig {
    let mut rig = Rig::with(Style::V1_36, "1s");
    std::fs::create_dir(rig.at("etc")).unwrap();
    // The tests' ConfigMaps are elsewhere.
    let text = std::fs::read_to_string(policy_file(shipped)).unwrap();
    let text = text.replace("allowedNamespaces: [kubelet-config]", &format!("allowedNamespaces: [{NAMESPACE}]"));
    std::fs::write(rig.at("etc/policy.yaml"), text).unwrap();
    let path = rig.at("etc/policy.yaml").display().to_string();
    rig.option("--policy", &path);
    rig.option("--config-namespace", NAMESPACE);
    rig.local(&KEPT.replace("maxPods: 42", "maxPods: 110"));
    rig
}

fn policy_file(shipped: &str) -> std::path::PathBuf {
    testkit::built::file(&format!("packaging/policy/{shipped}.yaml"))
}

/// Top-level fields that a shipped policy denies or pins.
fn kept(shipped: &str) -> Vec<String> {
    let text = std::fs::read_to_string(policy_file(shipped)).unwrap();
    let policy = yaml::parse(&text).unwrap().value;
    let denied =
        policy["deniedFields"].as_array().into_iter().flatten().map(|field| field.as_str().unwrap().to_owned());
    let pinned = policy["pinnedFields"].as_object().into_iter().flatten().map(|(path, _)| path.clone());
    // A gate that switches a kept field off is no field.
    let denied = denied.filter(|path| !path.starts_with("featureGates."));
    let mut fields: Vec<String> = denied.chain(pinned).map(|path| path.split('.').next().unwrap().to_owned()).collect();
    fields.sort();
    fields.dedup();
    assert!(fields.len() > 20, "{fields:?}");
    policy::NodePolicy::parse(&text).expect("a shipped policy");
    fields
}

/// What becomes of it: its error, empty if it runs.
fn outcome(rig: &Rig, version: &Version) -> String {
    let config = rig.wait_config(&format!("{version:?} is judged"), |config| {
        is(config, "assigned", version) && (!config["error"].is_null() || is(config, "active", version))
    });
    if !config["error"].is_null() {
        return rig.status()["errorDetail"].as_str().unwrap().to_owned();
    }
    rig.wait_status("its kubelet is ready", |status| {
        is(status, "active", version)
            && status["kubelet"]["ready"] == true
            && status["kubelet"]["pid"] == rig.last_pid()
    });
    String::new()
}

/// What was on trial is left for last known good if the next version is refused: its kubelet may just have been stopped.
fn a_kubelet_lives(rig: &Rig) {
    eventually("a kubelet lives", || (!is_gone(rig.last_pid())).then_some(()));
}

/// Each field that a shipped policy keeps, however it is spelt: refused by its name, or not there for the kubelet either.
#[test]
fn what_a_shipped_policy_keeps_cannot_be_written_in_any_spelling() {
    let values: Value = serde_yaml::from_str(VALUES).unwrap();
    for shipped in ["baseline", "strict"] {
        let mut rig = rig(shipped).running();
        rig.apply("a", &configuration(KEPT));
        let local = rig.last_config();
        for field in kept(shipped) {
            let value = values[&field].as_str().expect("a value for each field");
            // A reading is the same for all fields: the first spelling for each, all of them for one of each kind.
            let all = ["staticPodPath", "authentication", "readOnlyPort", "featureGates"].contains(&field.as_str());
            for (spelling, write) in if all { SPELLINGS } else { &SPELLINGS[..2] } {
                let what = format!("{shipped}: {field}, {spelling}");
                let others: Vec<&str> = KEPT.lines().filter(|line| !line.starts_with(&format!("{field}:"))).collect();
                let version = rig.put("a", &configuration(&format!("{}\n{}", others.join("\n"), write(&field, value))));
                let error = outcome(&rig, &version);
                if error.is_empty() {
                    // A kubelet minds the case; what is absent is its default, which is what the policy compares with.
                    let given = &rig.last_config()[&field];
                    assert!(given.is_null() || *given == local[&field], "{what}: {given}");
                }
                if *spelling == "as it is" {
                    assert!(error.contains("the node's policy") && error.contains(&field), "{what}: {error:?}");
                }
                assert!(error.len() < 4096 && !error.contains(char::is_control), "{what}: {error:?}");
            }
        }
        a_kubelet_lives(&rig);
        rig.stop();
    }
}

/// Fields in keys that are none of the configuration, and flags.
#[test]
fn neither_other_keys_nor_flags_get_round_a_policy() {
    for shipped in ["baseline", "strict"] {
        let mut rig = rig(shipped).running();
        rig.apply("a", &configuration(KEPT));
        let evil = configuration("staticPodPath: /evil");
        let good = configuration(KEPT);
        for (key, text, told) in [
            ("kubelet.flags", "--pod-manifest-path=/evil", "pod-manifest-path"),
            ("kubelet.flags", "--anonymous-auth=true", "anonymous-auth"),
            ("kubelet.flags", "--config-dir=/evil", "config-dir"),
            ("kubelet.flags", "--config=/evil", "config"),
            ("kubelet.flags", "!--config", "config"),
            ("kubelet.flags", "--kubeconfig=/evil", "kubeconfig"),
            ("kubelet.flags", "--v=2\u{0}--config=/evil", ""),
            ("kubelet.flags", "--v=2 --config=/evil", ""),
            ("10-evil.conf", &evil, ""),
            ("kubelet.conf.d", &evil, ""),
            ("drop-ins", &evil, ""),
            ("config.json", &evil, ""),
            ("kubelet.json", &evil, ""),
            ("0000-10-pods.conf", &evil, ""),
            ("state.json", &evil, ""),
            ("kubelet.minisig", &evil, ""),
        ] {
            let what = format!("{shipped}: {key} {text:?}");
            let data = [("kubelet", good.as_str()), (key, text)];
            rig.server.put_config_map(NAMESPACE, "a", &[]);
            let version = rig.server.put_config_map(NAMESPACE, "a", &data);
            let error = outcome(&rig, &version);
            assert!(told.is_empty() || error.contains(told), "{what}: {error:?}");
            let start = rig.kubelet.starts().last().unwrap().to_string();
            assert!(!start.contains("evil"), "{what}: {start}");
        }
        a_kubelet_lives(&rig);
        rig.stop();
    }
}

/// What the policies pin, as the node has it: in mode `replace` a payload repeats it.
const KEPT: &str =
    "maxPods: 42\nreadOnlyPort: 0\nauthentication: {anonymous: {enabled: false}}\nauthorization: {mode: Webhook}";

/// A megabyte at the most, and whatever can be done with it.
#[test]
fn bombs_are_refused_and_cost_little() {
    let rig = Rig::new().running();
    rig.prove("a", &configuration("maxPods: 42"));
    let size = (1 << 20) - 200;
    let repeated = |text: &str| text.repeat(size / text.len());
    let lines = |count: usize, line: fn(usize) -> String| (0..count).map(line).collect::<Vec<_>>().concat();
    let laughs = ('b'..='j')
        .zip('a'..)
        .map(|(name, before)| format!("{name}: &{name} [{}]\n", vec![format!("*{before}"); 9].join(",")))
        .collect::<Vec<_>>()
        .concat();
    let quadratic = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 19), vec!["*a"; 100_000].join(","));
    let merges = lines(2000, |n| format!("m{0}: &m{0} {{<<: [*m{n}, *m{n}], k{0}: 1}}\n", n + 1));
    for (what, text) in [
        ("depth in brackets", repeated("[")),
        ("depth in braces", repeated("{a: ")),
        ("depth in blocks", lines(1000, |n| format!("{}a:\n", " ".repeat(n)))),
        ("depth in lists", repeated("- ")),
        ("depth in keys", repeated("? ")),
        ("laughs", format!("a: &a [x,x,x]\n{laughs}")),
        ("one large alias often", quadratic),
        ("merge keys of merge keys", format!("m0: &m0 {{k0: 1}}\n{merges}")),
        ("an alias of itself", "a: &a [*a]\n".to_owned()),
        ("anchors", repeated("&a ")),
        ("the same key", repeated("maxPods: 1\n")),
        ("unknown keys", lines(60_000, |n| format!("evil{n}: 1\n"))),
        ("one long key", format!("{}: 1", "k".repeat(size))),
        ("one long value", format!("maxPods: {}", "9".repeat(size))),
        ("one long text", format!("clusterDomain: {}", "\\u001b".repeat(size / 6))),
        ("an escape that is not closed", format!("clusterDomain: \"{}", repeated("\\u001b"))),
        ("tags", repeated("!!a ")),
        ("comments", repeated("#\n")),
        ("documents", repeated("---\n")),
        ("directives", repeated("%YAML 1.2\n")),
        ("binary", repeated("\u{1}\u{7f}\u{85}")),
        ("a clock", repeated("1:")),
    ] {
        let version = rig.put("a", &configuration(&text));
        let error = outcome(&rig, &version);
        if error.is_empty() {
            assert!(
                ["comments", "unknown keys", "one long key", "one long text"].contains(&what),
                "{what} was taken up"
            );
            assert!(!rig.last_config().to_string().contains('\u{1b}'), "{what}");
        }
        assert!(error.len() < 4096 && !error.contains(char::is_control), "{what}: {error:?}");
        a_kubelet_lives(&rig);
        let memory = crate::liars::memory(&rig);
        assert!(memory < 400, "{what}: {memory} MiB");
    }
    let lowest = rig.status();
    assert!(lowest["lastKnownGood"].is_object(), "{lowest}");
    rig.prove("a", &configuration("maxPods: 43"));
}
