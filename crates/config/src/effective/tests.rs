use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;

const CONFIGMAP: &str = "ConfigMap kubelet-config/a";
const LOCAL: &str = "/etc/kubernetes/kubelet.yaml";

fn args(args: &[&str]) -> KubeletArgs {
    KubeletArgs::parse(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>())
}

/// A kubelet v1.20 with this.
#[derive(Default)]
struct Node<'a> {
    configuration: Value,
    payload: Option<Value>,
    drop_ins: &'a [(&'a str, &'a str)],
    args: &'a [&'a str],
    added: &'a [&'a str],
}

/// Value and origin by path, those that a version's default decides left out.
fn set(node: &Node<'_>) -> BTreeMap<String, (Value, String)> {
    all(node, Some(20)).into_iter().filter(|(_, (_, origin))| origin != "default").collect()
}

fn all(node: &Node<'_>, minor: Option<u64>) -> BTreeMap<String, (Value, String)> {
    let drop_in = |(path, text): &(&str, &str)| {
        DropIn::new(*path, format!("kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n{text}"))
    };
    let drop_ins: Vec<DropIn> = node.drop_ins.iter().map(drop_in).collect();
    let from = Sources {
        configuration: &node.configuration,
        local: LOCAL,
        payload: node.payload.as_ref().map(|payload| (CONFIGMAP, payload)),
        drop_ins: &drop_ins,
        args: &args(&[node.args, node.added].concat()),
        added: &args(node.added),
        merges: !drop_ins.is_empty() || args(node.args).has("config-dir"),
    };
    let found = fields(&layers(&from), minor);
    let count = found.len();
    let by_path: BTreeMap<_, _> =
        found.into_iter().map(|field| (field.path, (field.value, field.origin.to_string()))).collect();
    assert_eq!(by_path.len(), count, "a field stands twice");
    by_path
}

fn expect(found: &BTreeMap<String, (Value, String)>, expected: &[(&str, Value, &str)]) {
    let expected = expected.iter().map(|(path, value, from)| ((*path).to_owned(), (value.clone(), (*from).to_owned())));
    assert_eq!(*found, expected.collect());
}

#[test]
fn each_source_by_its_name() {
    let node = Node {
        configuration: json!({
            "kind": "KubeletConfiguration", "maxPods": 50, "podsPerCore": 5, "clusterDomain": "a.test",
            "healthzPort": 1, "clusterDNS": ["10.0.0.1"], "featureGates": {"A": true, "B": true, "C": true},
            "authentication": {"x509": {"clientCAFile": "/d/ca.crt"}, "webhook": {"enabled": true}},
        }),
        payload: Some(json!({
            "maxPods": 50, "podsPerCore": 5, "clusterDNS": ["10.0.0.1"], "featureGates": {"A": true, "B": true},
            "authentication": {"x509": {"clientCAFile": "ca.crt"}},
        })),
        drop_ins: &[
            ("/d/10.conf", "clusterDNS: [10.0.0.9]\nhealthzPort: 2\nfeatureGates: {D: true}"),
            ("/d/20.conf", "healthzPort: 3\nclusterDomain: null\nnot: [yaml"),
            ("/d/30.conf", "healthzPort: 4"),
        ],
        args: &["--pods-per-core=6", "--feature-gates=B=false", "--event-qps=0"],
        added: &["--max-pods=9", "--feature-gates=E=false"],
    };
    expect(
        &set(&node),
        &[
            ("authentication.webhook.enabled", json!(true), "local file /etc/kubernetes/kubelet.yaml"),
            ("authentication.x509.clientCAFile", json!("/d/ca.crt"), "payload ConfigMap kubelet-config/a"),
            ("clusterDNS", json!(["10.0.0.9"]), "drop-in /d/10.conf"),
            ("clusterDomain", json!("a.test"), "local file /etc/kubernetes/kubelet.yaml"),
            ("eventRecordQPS", json!(0), "flag --event-qps"),
            ("featureGates.A", json!(true), "payload ConfigMap kubelet-config/a"),
            ("featureGates.B", json!(false), "flag --feature-gates"),
            ("featureGates.C", json!(true), "local file /etc/kubernetes/kubelet.yaml"),
            ("featureGates.D", json!(true), "drop-in /d/10.conf"),
            ("featureGates.E", json!(false), "flag override --feature-gates"),
            ("healthzPort", json!(4), "drop-in /d/30.conf"),
            ("maxPods", json!(9), "flag override --max-pods"),
            ("podsPerCore", json!(6), "flag --pods-per-core"),
        ],
    );
}

/// As v1.36.2 does: an empty list of the file is not there any more for drop-ins, so that its default is back, and hard
/// eviction that is empty or taken out stays so. An empty list of a drop-in counts.
#[test]
fn what_is_empty_is_lost_on_the_way_to_drop_ins() {
    let of = |configuration: Value, drop_ins: &[(&str, &str)], args: &[&str], path: &str| {
        let found = all(&Node { configuration, drop_ins, args, ..Node::default() }, Some(36));
        found.get(path).map(|(value, origin)| (value.clone(), origin.clone()))
    };
    let empty = || json!({"enforceNodeAllocatable": []});
    let list = "enforceNodeAllocatable";
    assert_eq!(of(empty(), &[], &[], list), Some((json!([]), format!("local file {LOCAL}"))));
    let default = Some((json!(["pods"]), "default".to_owned()));
    assert_eq!(of(empty(), &[], &["--config-dir=/d"], list), default, "though there is none in it");
    assert_eq!(of(empty(), &[("/d/1.conf", "maxPods: 9")], &["--config-dir=/d"], list), default);
    let drop_in = [("/d/1.conf", "enforceNodeAllocatable: []\nevictionHard: null")];
    assert_eq!(of(json!({}), &drop_in, &[], list), Some((json!([]), "drop-in /d/1.conf".to_owned())));
    assert_eq!(of(json!({}), &drop_in, &[], "evictionHard.memory.available"), None);
    assert_eq!(
        of(json!({"tracing": {}}), &[("/d/1.conf", "maxPods: 9")], &[], "tracing").map(|(value, _)| value),
        Some(json!({})),
        "a pointer: it is there"
    );
    let none = json!({"evictionHard": {}});
    assert_eq!(of(none, &[("/d/1.conf", "maxPods: 9")], &[], "evictionHard.memory.available"), None);
}

#[test]
fn a_certificate_that_the_kubelet_chose() {
    let of = |cert: &str, key: &str, bootstrap: bool| {
        chose_certificate(&json!({"tlsCertFile": cert, "tlsPrivateKeyFile": key, "serverTLSBootstrap": bootstrap}))
    };
    assert!(of("/var/lib/kubelet/pki/kubelet.crt", "/var/lib/kubelet/pki/kubelet.key", false));
    for (cert, key, bootstrap) in [
        ("/var/lib/kubelet/pki/kubelet.crt", "/var/lib/kubelet/pki/kubelet.key", true),
        ("/var/lib/kubelet/pki/kubelet.crt", "/q/kubelet.key", false),
        ("/p/node.crt", "/p/node.key", false),
        ("/p/kubelet.crt", "/p/kubelet.key", false),
        ("", "", false),
    ] {
        assert!(!of(cert, key, bootstrap), "{cert} {key} {bootstrap}");
    }
    assert!(!chose_certificate(&json!({})));
}

/// What one path is with these drop-ins, in a kubelet of this version.
fn at(minor: u64, configuration: Value, drop_ins: &[&str], path: &str) -> Option<(Value, String)> {
    let drop_ins: Vec<_> = drop_ins.iter().zip(["/1", "/2", "/3"]).map(|(text, path)| (path, *text)).collect();
    all(&Node { configuration, drop_ins: &drop_ins, ..Node::default() }, Some(minor)).remove(path)
}

/// As Go's encoding/json does: names of fields in any case, in byte order, the later one wins.
#[test]
fn names_in_drop_ins_are_read_in_any_case() {
    let pods = || json!({"maxPods": 5});
    for (configuration, drop_ins, path, expected) in [
        (pods(), &["maxpods: 7"][..], "maxPods", Some((json!(7), "drop-in /1"))),
        (pods(), &["MAXPODS: 7"], "maxPods", Some((json!(5), "local file /etc/kubernetes/kubelet.yaml"))),
        (pods(), &["maxpods: 7", "maxPods: 9"], "maxPods", Some((json!(7), "drop-in /1"))),
        (
            pods(),
            &["maxpods: 7", "maxpods: null"],
            "maxPods",
            Some((json!(5), "local file /etc/kubernetes/kubelet.yaml")),
        ),
        (pods(), &["maxpods: 7", "maxPods: null"], "maxPods", Some((json!(7), "drop-in /1"))),
        // What is omitted in what they are merged over.
        (json!({"readOnlyPort": 0}), &["READONLYPORT: 1"], "readOnlyPort", Some((json!(1), "drop-in /1"))),
        (
            json!({}),
            &["Authentication: {ANONYMOUS: {enabled: true}}"],
            "authentication.anonymous.enabled",
            Some((json!(false), "default")),
        ),
        (
            json!({}),
            &["authentication: {x509: {clientcafile: /a}}"],
            "authentication.x509.clientCAFile",
            Some((json!("/a"), "drop-in /1")),
        ),
        // Names in a map are entries; that of the map is a field.
        (
            json!({"kubeReserved": {"cpu": "1"}}),
            &["kubereserved: {CPU: '2'}"],
            "kubeReserved.CPU",
            Some((json!("2"), "drop-in /1")),
        ),
        (
            json!({"kubeReserved": {"cpu": "1"}}),
            &["kubereserved: {CPU: '2'}"],
            "kubeReserved.cpu",
            Some((json!("1"), "local file /etc/kubernetes/kubelet.yaml")),
        ),
        (
            json!({}),
            &["registerWithTaints: [{KEY: a, effect: b}]"],
            "registerWithTaints",
            Some((json!([{"key": "a", "effect": "b"}]), "drop-in /1")),
        ),
        (json!({}), &["nonsense: 1"], "nonsense", None),
        // The file tells names apart by case.
        (json!({"readonlyport": 1, "authentication": {"x509": {"clientcafile": "/a"}}}), &[""], "readOnlyPort", None),
    ] {
        let found = at(36, configuration.clone(), drop_ins, path);
        let expected = expected.map(|(value, origin)| (value, origin.to_owned()));
        assert_eq!(found, expected, "{configuration} {drop_ins:?}: {path}");
    }
}

/// 1.28 lays each over with its own defaults, without what is zero; 1.29 to 1.31 fill in nothing; from 1.32 on null takes out.
#[test]
fn drop_ins_are_merged_by_the_rules_of_the_version() {
    let (pods, list, none) = (json!({"maxPods": 5}), json!({"enforceNodeAllocatable": []}), json!({}));
    let local = |value: Value| (value, format!("local file {LOCAL}"));
    let default = |value: Value| (value, "default".to_owned());
    let given = |value: Value| (value, "drop-in /1".to_owned());
    let many = || default(json!(110));
    let resolv = || default(json!("/etc/resolv.conf"));
    for (configuration, drop_in, path, in_28, in_29, in_32) in [
        (&pods, "maxPods: null", "maxPods", many(), local(json!(5)), many()),
        (&pods, "maxPods: 0", "maxPods", many(), given(json!(0)), many()),
        (&pods, "podsPerCore: 3", "maxPods", many(), local(json!(5)), local(json!(5))),
        (
            &list,
            "podsPerCore: 3",
            "enforceNodeAllocatable",
            default(json!(["pods"])),
            local(json!([])),
            default(json!(["pods"])),
        ),
        (&none, "resolvConf: /a", "resolvConf", given(json!("/a")), resolv(), given(json!("/a"))),
        (&none, "resolverConfig: /a", "resolvConf", resolv(), given(json!("/a")), resolv()),
        (&none, "maxpods: 7", "maxPods", many(), given(json!(7)), given(json!(7))),
    ] {
        for (minor, expected) in [(28, in_28), (29, in_29.clone()), (31, in_29), (32, in_32)] {
            let found = at(minor, configuration.clone(), &[drop_in], path);
            assert_eq!(found, Some(expected), "1.{minor}: {configuration} {drop_in}: {path}");
        }
    }
}

#[test]
fn defaults_are_filled_in_before_drop_ins_and_flags() {
    let node = Node {
        configuration: json!({"syncFrequency": "0s", "evictionHard": {"memory.available": "1Gi"}, "maxPods": 7}),
        drop_ins: &[("/d/1.conf", "nodeStatusUpdateFrequency: 7s\nmaxPods: null\nevictionHard: {pid.available: 5%}")],
        args: &["--event-burst=0"],
        ..Node::default()
    };
    let found = all(&node, Some(20));
    let of = |path: &str| found.get(path).map(|(value, origin)| (value.clone(), origin.as_str()));
    // Zero is not set in a file; in a flag it is zero.
    assert_eq!(of("syncFrequency"), Some((json!("1m"), "default")));
    assert_eq!(of("eventBurst"), Some((json!(0), "flag --event-burst")));
    // The default follows the update frequency of the file, not of a drop-in.
    assert_eq!(of("nodeStatusReportFrequency"), Some((json!("5m"), "default")));
    assert_eq!(of("maxPods"), Some((json!(110), "default")), "a drop-in took it out");
    // A map of the file replaces the defaults, one of a drop-in is merged.
    assert_eq!(of("evictionHard.memory.available"), Some((json!("1Gi"), "local file /etc/kubernetes/kubelet.yaml")));
    assert_eq!(of("evictionHard.pid.available"), Some((json!("5%"), "drop-in /d/1.conf")));
    assert_eq!(of("evictionHard.nodefs.available"), None);

    // A flag's map replaces whatever is there.
    let node = Node { configuration: json!({}), args: &["--eviction-hard=pid.available<5%"], ..Node::default() };
    expect(&set(&node), &[("evictionHard.pid.available", json!("5%"), "flag --eviction-hard")]);
    let found = all(&node, Some(20));
    assert!(!found.contains_key("evictionHard.memory.available"), "{found:#?}");
    // Nothing is left of the default, and the mapping is there.
    let node = Node { configuration: json!({"evictionHard": {}}), ..Node::default() };
    expect(&set(&node), &[("evictionHard", json!({}), "local file /etc/kubernetes/kubelet.yaml")]);
    let node = Node {
        configuration: json!({"evictionHard": {"memory.available": "1Gi"}, "mergeDefaultEvictionSettings": true}),
        ..Node::default()
    };
    let found = all(&node, Some(36));
    assert_eq!(found["evictionHard.memory.available"].1, "local file /etc/kubernetes/kubelet.yaml");
    assert_eq!(found["evictionHard.imagefs.inodesFree"], (json!("5%"), "default".to_owned()));
}

#[test]
fn what_follows_another_field_at_the_start_follows_its_flag() {
    let node = Node {
        configuration: json!({}),
        args: &["--container-runtime-endpoint=unix:///c", "--cgroups-per-qos=false"],
        ..Node::default()
    };
    let found = all(&node, Some(36));
    assert_eq!(found["imageServiceEndpoint"], (json!("unix:///c"), "default".to_owned()));
    assert_eq!(found.get("cgroupRoot"), None);
    let found = all(&Node { configuration: json!({}), ..Node::default() }, Some(36));
    assert_eq!(found["cgroupRoot"], (json!("/"), "default".to_owned()));
}

#[test]
fn cpus_that_are_named_are_the_only_ones_reserved() {
    let node = Node {
        configuration: json!({"kubeReserved": {"cpu": "1"}, "systemReserved": {"cpu": "2", "memory": "1Gi"}}),
        args: &["--reserved-cpus=0-1,4"],
        ..Node::default()
    };
    expect(
        &set(&node),
        &[
            ("reservedSystemCPUs", json!("0-1,4"), "flag --reserved-cpus"),
            ("systemReserved.cpu", json!("3"), "flag --reserved-cpus"),
            ("systemReserved.memory", json!("1Gi"), "local file /etc/kubernetes/kubelet.yaml"),
        ],
    );
}

#[test]
fn a_kubelet_without_a_file_has_other_defaults() {
    let node = Node { configuration: Value::Null, args: &["--anonymous-auth=false"], ..Node::default() };
    let without = "default without --config";
    expect(
        &set(&node),
        &[
            ("authentication.anonymous.enabled", json!(false), "flag --anonymous-auth"),
            ("authentication.webhook.enabled", json!(false), without),
            ("authorization.mode", json!("AlwaysAllow"), without),
            ("readOnlyPort", json!(10255), without),
        ],
    );
}

#[test]
fn what_the_version_does_not_know_is_left_out() {
    let node = Node {
        configuration: json!({"seccompDefault": true, "MaxPods": 3, "authentication": {"x509": {"clientCaFile": "x"}}}),
        args: &["--container-runtime-endpoint=unix:///c", "--v=4"],
        ..Node::default()
    };
    expect(&set(&node), &[]);
    let found = all(&node, Some(27));
    for (path, origin) in [
        ("containerRuntimeEndpoint", "flag --container-runtime-endpoint"),
        ("logging.verbosity", "flag --v"),
        ("seccompDefault", "local file /etc/kubernetes/kubelet.yaml"),
    ] {
        assert_eq!(found[path].1, origin, "{path}");
    }
    assert_eq!(found["kubeAPIQPS"], (json!(50), "default".to_owned()));
    // Of a version that nobody knows, a default that depends on it has no value.
    assert_eq!(all(&node, None)["kubeAPIQPS"], (Value::Null, "default".to_owned()));
    assert_eq!(all(&node, None)["podPidsLimit"], (json!(-1), "default".to_owned()));
    assert_eq!(all(&node, Some(32))["singleProcessOOMKill"], (Value::Null, "default".to_owned()));
}

/// A value for a few fields, or nothing, or what takes it out.
fn patch() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![3 => Just(None), 3 => (1..9_i64).prop_map(|number| Some(json!(number))), 1 => Just(Some(Value::Null))];
    let map = prop::collection::btree_map(
        "[ab]",
        prop_oneof![3 => "[1-9]".prop_map(Value::from), 1 => Just(Value::Null)],
        0..3,
    );
    (scalar.clone(), scalar, prop::option::of(map)).prop_map(|(one, other, map)| {
        let map = map.map(|map| Value::Object(map.into_iter().collect()));
        let fields = [("maxPods", one), ("podsPerCore", other), ("kubeReserved", map)];
        Value::Object(fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect())
    })
}

proptest! {
    /// The last layer that sets a field has it; what the last one takes out is the default again, or gone.
    #[test]
    fn the_last_layer_that_sets_a_field_wins(patches in prop::collection::vec(patch(), 1..6)) {
        let name = |number: usize| Origin::DropIn(number.to_string());
        let mut layers: Vec<Layer> = patches.iter().enumerate().map(|(number, patch)| Layer::Merge(name(number), patch.clone())).collect();
        layers.push(Layer::Defaults);
        let found = fields(&layers, Some(20));
        for path in ["/maxPods", "/podsPerCore", "/kubeReserved/a", "/kubeReserved/b"] {
            let last = patches.iter().enumerate().rev().find_map(|(number, patch)| Some((number, patch.pointer(path)?)));
            let expected = match (last, path) {
                (Some((number, value)), _) if !value.is_null() => Some((value.clone(), name(number))),
                (_, "/maxPods") => Some((json!(110), Origin::Default)),
                _ => None,
            };
            let dotted = path.trim_start_matches('/').replace('/', ".");
            let seen = found.iter().find(|field| field.path == dotted).map(|field| (field.value.clone(), field.origin.clone()));
            prop_assert_eq!(seen, expected, "{}", path);
        }
    }
}
