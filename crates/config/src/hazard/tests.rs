use super::*;
use crate::effective::of_file;
use proptest::prelude::*;
use serde_json::{Value, json};

fn refused(changes: &[Change], acknowledged: Option<&str>) -> Option<String> {
    super::refused(changes, &Acknowledged::parse(acknowledged))
}

fn fields(old: &Value, new: &Value) -> Vec<String> {
    diff(old, new).into_iter().map(|change| change.field).collect()
}

/// The same of two files.
#[expect(clippy::needless_pass_by_value, reason = "json! makes values")]
fn of_files(old: Value, new: Value) -> Vec<String> {
    fields(&of_file(&old, None), &of_file(&new, None))
}

#[test]
fn a_default_that_is_spelled_out_is_no_change() {
    let spelled = json!({
        "kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "cgroupDriver": "cgroupfs", "cgroupsPerQOS": true, "cgroupRoot": "", "cpuManagerPolicy": "none",
        "topologyManagerPolicy": "none", "topologyManagerScope": "container", "hairpinMode": "promiscuous-bridge",
        "memoryManagerPolicy": "None", "runOnce": false, "registerNode": true, "podLogsDir": "/var/log/pods",
        "podCIDR": "", "qosReserved": {}, "reservedMemory": [], "registerWithTaints": [], "kubeletCgroups": null,
        "imageServiceEndpoint": "", "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "maxPods": 110, "syncFrequency": "60s", "evictionSoft": {}, "shutdownGracePeriod": "0s", "enableServer": true,
        "authentication": {"anonymous": {"enabled": false}, "webhook": {"cacheTTL": "0h2m0s"}},
        "authorization": {"mode": "", "webhook": {"cacheAuthorizedTTL": "0s"}},
        "evictionHard": {"memory.available": "102400Ki", "nodefs.available": "10%", "nodefs.inodesFree": "5%", "imagefs.available": "15%"},
    });
    assert_eq!(of_files(json!({}), spelled.clone()), [""; 0]);
    assert_eq!(of_files(spelled, json!({})), [""; 0]);
    for hazard in table::HAZARDS {
        let explicit = json!({hazard.field: effective(&json!({}), hazard.field)});
        assert_eq!(diff(&json!({}), &explicit), [], "{}", hazard.field);
    }
}

#[test]
fn zero_is_a_value_where_go_has_a_pointer() {
    assert_eq!(of_files(json!({}), json!({"healthzPort": 0, "maxPods": 0})), ["healthzPort"]);
    assert_eq!(of_files(json!({}), json!({"enforceNodeAllocatable": []})), ["enforceNodeAllocatable"]);
    assert_eq!(of_files(json!({}), json!({"cgroupsPerQOS": false})), ["cgroupRoot", "cgroupsPerQOS"]);
    // A text is zero if it is empty, whatever it could be read as.
    assert_eq!(of_files(json!({}), json!({"clusterDomain": "0", "providerID": "0s"})), ["clusterDomain", "providerID"]);
}

/// Other spellings of what a class that is refused asks for.
#[test]
fn one_meaning_in_two_spellings_is_no_change() {
    for (field, one, other) in [
        (
            "reservedMemory",
            json!([{"numaNode": 0, "limits": {"memory": "1Gi", "hugepages-1Gi": "1Gi"}}, {"numaNode": 1, "limits": {"memory": "1Gi"}}]),
            json!([{"numaNode": 1, "limits": {"memory": "1Gi"}}, {"limits": {"hugepages-1Gi": "1024Mi"}}, {"numaNode": 0, "limits": {"memory": "1Gi"}}]),
        ),
        ("containerRuntimeEndpoint", json!("unix:///run/x.sock"), json!("Unix://localhost/run/x.sock")),
        ("cgroupRoot", json!("/kubepods"), json!("kubepods")),
        ("kubeReservedCgroup", json!("/a.slice"), json!("a.slice")),
        ("systemReservedCgroup", json!("/a/b"), json!("a/b")),
        ("tlsMinVersion", Value::Null, json!("VersionTLS12")),
        ("podPidsLimit", Value::Null, json!(-5)),
        ("evictionMinimumReclaim", Value::Null, json!({"memory.available": "0Mi", "nodefs.available": "0.0%"})),
        ("kubeReserved", json!({"memory": "1.500000000000Gi"}), json!({"memory": "0000000000000000000001536Mi"})),
    ] {
        assert_eq!(of_files(json!({field: one}), json!({field: other})), [""; 0], "{one} and {other}");
    }
    for (field, one, other) in [
        (
            "reservedMemory",
            json!([{"numaNode": 0, "limits": {"memory": "1Gi"}}, {"numaNode": 0, "limits": {"memory": "2Gi"}}]), // refused
            json!([{"numaNode": 0, "limits": {"memory": "2Gi"}}]),
        ),
        ("containerRuntimeEndpoint", json!("unix:///run/x.sock"), json!("unix://run/x.sock")),
        ("tlsMinVersion", Value::Null, json!("VersionTLS13")),
    ] {
        assert_eq!(of_files(json!({field: one}), json!({field: other})), [field], "{one} and {other}");
    }
}

#[test]
fn changes_are_named_entry_by_entry() {
    let old = json!({"featureGates": {"A": true, "B": true}, "kubeReserved": {"cpu": "1"}, "authentication": {}});
    let new = json!({"featureGates": {"B": false, "C": true}, "kubeReserved": {"cpu": "1000m", "memory": "1Gi"},
        "authentication": {"anonymous": {"enabled": true}}, "systemReserved": {"pid": "10"}, "notYetKnown": 1});
    let texts: Vec<String> = diff(&old, &new).iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "authentication.anonymous.enabled: false → true",
            "featureGates.A: true → unset",
            "featureGates.B: true → false",
            "featureGates.C: unset → true",
            "kubeReserved.memory: unset → \"1Gi\"",
            "notYetKnown: unset → 1",
            "systemReserved.pid: unset → \"10\"",
        ]
    );
    let unknown = diff(&old, &new).into_iter().find(|change| change.field == "notYetKnown").unwrap();
    assert_eq!(unknown.class, HazardClass::Unknown);
    assert_eq!(refused(&[unknown], None), None);
}

#[test]
fn a_name_with_a_dot_is_no_part_of_another_field() {
    let changes = diff(&json!({}), &json!({"cgroupDriver.x": "systemd"}));
    assert_eq!(changes.iter().map(|change| change.class).collect::<Vec<_>>(), [HazardClass::Unknown]);
}

#[test]
fn a_given_eviction_map_replaces_the_defaults() {
    let new = json!({"evictionHard": {"memory.available": "1Gi"}});
    assert_eq!(
        fields(&json!({}), &new),
        [
            "evictionHard.imagefs.available",
            "evictionHard.memory.available",
            "evictionHard.nodefs.available",
            "evictionHard.nodefs.inodesFree"
        ]
    );
    let merged = json!({"evictionHard": {"memory.available": "1Gi"}, "mergeDefaultEvictionSettings": true});
    assert_eq!(of_files(json!({}), merged), ["evictionHard.memory.available", "mergeDefaultEvictionSettings"]);
}

#[test]
fn secrets_are_hidden_and_long_values_cut() {
    let changes = diff(&json!({}), &json!({"staticPodURLHeader": {"Authorization": ["Bearer s3cret"]}}));
    assert_eq!(changes.iter().map(ToString::to_string).collect::<Vec<_>>(), ["staticPodURLHeader: (hidden)"]);
    let changes = diff(&json!({}), &json!({"clusterDomain": "é".repeat(5000)}));
    assert!(changes[0].to_string().len() < 250, "{}", changes[0]);
}

#[test]
fn nothing_is_said_of_the_unknown() {
    assert_eq!(diff(&Value::Null, &json!({"cgroupDriver": "systemd"})), []);
    assert_eq!(diff(&json!({"cgroupDriver": "systemd"}), &Value::Null), []);
}

#[test]
fn a_refusal_says_what_to_do() {
    let changes = diff(&json!({}), &json!({"cgroupDriver": "systemd", "maxPods": 10}));
    assert_eq!(
        refused(&changes, None).unwrap(),
        "cgroupDriver: \"cgroupfs\" → \"systemd\": cordon, drain and reboot the node; if that is taken care of, \
         annotate the ConfigMap with kubelet-supervisor.io/acknowledge: \"cgroupDriver\""
    );
    let on_node = super::refused(&changes, &Acknowledged::default().on_node(true)).unwrap();
    assert!(
        on_node.ends_with("; if that is taken care of, run kubelet-supervisor acknowledge reboot on the node"),
        "{on_node}"
    );
    for enough in ["cgroupDriver", "reboot", "all", "x,\n Reboot", "pods cgroupDriver"] {
        assert_eq!(refused(&changes, Some(enough)), None, "{enough}");
    }
    let message = refused(&changes, Some("pods cgroupdriver, forbidden")).unwrap();
    assert!(message.contains("acknowledge: \"pods, forbidden, cgroupDriver\""), "{message}");
    assert!(message.contains("it says \"cgroupdriver\", which is no field"), "{message}");
    assert_eq!(refused(&diff(&json!({}), &json!({"maxPods": 10})), None), None);
}

#[test]
fn a_refusal_of_everything_still_fits() {
    let (mut old, mut new) = (json!({}), json!({}));
    for hazard in table::HAZARDS {
        old[hazard.field] = json!("a".repeat(200));
        new[hazard.field] = json!("é".repeat(200));
    }
    let message = refused(&diff(&old, &new), Some("nonsense")).unwrap();
    assert!(message.len() < 900, "{}", message.len());
    assert!(message.contains(" more; if that"), "{message}");
    assert!(message.contains("acknowledge: \"forbidden, reboot\""), "{message}");
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-2..2_000_000_000_000_i64).prop_map(Value::from),
        "[a-zA-Z0-9.%-]{0,6}".prop_map(Value::from),
        (0..200_usize).prop_map(|count| "é".repeat(count).into()),
        Just(json!(0.5)),
    ];
    leaf.prop_recursive(2, 8, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("cpu|memory|memory.available|enabled|\\PC{0,3}", inner, 0..4)
                .prop_map(|map| map.into_iter().collect()),
        ]
    })
}

/// Objects with the names of real fields and arbitrary values.
pub(super) fn configuration() -> impl Strategy<Value = Value> {
    let field = prop_oneof![
        6 => (0..table::HAZARDS.len()).prop_map(|index| table::HAZARDS[index].field.to_owned()),
        1 => "[a-z.]{0,5}",
    ];
    prop::collection::btree_map(field, value(), 0..12).prop_map(|map| map.into_iter().collect())
}

proptest! {
    #[test]
    fn nothing_differs_from_itself(config in configuration()) {
        prop_assert_eq!(diff(&config, &config), []);
    }

    #[test]
    fn there_and_back_name_the_same_fields(old in configuration(), new in configuration()) {
        prop_assert_eq!(fields(&old, &new), fields(&new, &old));
    }

    #[test]
    fn what_is_acknowledged_is_not_refused(old in configuration(), new in configuration(), noise in "[a-z, ]{0,300}") {
        let changes = diff(&old, &new);
        let refusal = refused(&changes, Some(&noise));
        let classes = refused_classes(&changes, &Acknowledged::parse(Some(&noise)));
        prop_assert_eq!(refusal.is_none(), classes.is_empty());
        prop_assert!(classes.iter().all(|class| matches!(class, HazardClass::Reboot | HazardClass::Forbidden)), "{:?}", classes);
        if let Some(message) = &refusal {
            prop_assert!(message.len() < 900 && !message.contains('\n'), "{}", message);
            let advised = message.split("acknowledge: \"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
            prop_assert_eq!(refused(&changes, Some(advised)), None);
        }
        let tops: Vec<&str> = changes.iter().map(Change::top).collect();
        prop_assert_eq!(refused(&changes, Some(&tops.join(" "))), None);
        prop_assert_eq!(refused(&changes, Some("all")), None);
        let _ = policy_key(&new);
    }

    #[test]
    fn anything_at_all_is_survived(old in value(), new in value()) {
        let _ = (refused(&diff(&old, &new), None), policy_key(&old));
    }
}
