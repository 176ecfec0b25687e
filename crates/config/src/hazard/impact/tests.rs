use super::*;
use crate::hazard::tests::configuration;
use crate::pods::PodSummary;
use proptest::prelude::*;
use serde_json::json;

/// `count` pods, each younger than the one before, of one core and 1Gi each.
fn inventory(count: usize, cpu: &str, memory: &str) -> PodInventory {
    let pod = |index: usize| PodSummary {
        uid: index.to_string(),
        name: format!("default/pod-{index}"),
        created: format!("2026-01-01T00:00:{index:02}Z"),
        phase: "Running".to_owned(),
        requests: [("cpu".to_owned(), 1000), ("memory".to_owned(), 1 << 30)].into(),
        ..PodSummary::default()
    };
    PodInventory {
        // Youngest first: the order they come in says nothing.
        pods: (0..count).rev().map(pod).collect(),
        node: NodeSummary {
            capacity: [("cpu", cpu), ("memory", memory), ("pods", "110")].map(|(k, v)| (k.into(), v.into())).into(),
            ..NodeSummary::default()
        },
    }
}

fn foresee(old: &Value, new: &Value, inventory: &PodInventory) -> Vec<Impact> {
    preview(old, new, Some(inventory), &BTreeMap::new())
}

#[test]
fn fewer_places_than_pods_turn_the_newest_away() {
    let impacts = foresee(&json!({}), &json!({"maxPods": 3}), &inventory(5, "8", "16Gi"));
    assert_eq!(impacts.len(), 1);
    assert_eq!(impacts[0].field, "maxPods");
    assert_eq!(impacts[0].lost(), ["default/pod-3", "default/pod-4"]);
    assert_eq!(foresee(&json!({}), &json!({"maxPods": 5}), &inventory(5, "8", "16Gi")), []);
    let better = foresee(&json!({"maxPods": 2}), &json!({"maxPods": 3}), &inventory(5, "8", "16Gi"));
    assert_eq!(better[0].lost(), ["default/pod-3", "default/pod-4"], "a restart costs them all the same");
    assert_eq!(better[0].field, "pods", "and not for this field");
    let mut done = inventory(5, "8", "16Gi");
    done.pods[0].phase = "Succeeded".to_owned();
    done.pods[1].phase = "Failed".to_owned();
    assert_eq!(foresee(&json!({}), &json!({"maxPods": 3}), &done), []);
}

#[test]
fn pods_per_core_counts_where_it_is_less() {
    let mut small = inventory(5, "2", "16Gi");
    small.pods.iter_mut().for_each(|pod| pod.requests.clear());
    let impacts = foresee(&json!({}), &json!({"podsPerCore": 2}), &small);
    assert!(
        impacts.iter().any(|impact| impact.field == "podsPerCore" && impact.lost() == ["default/pod-4"]),
        "{impacts:?}"
    );
    assert_eq!(foresee(&json!({}), &json!({"podsPerCore": 0}), &inventory(5, "8", "16Gi")), []);
}

#[test]
fn cpus_of_the_system_are_blamed_for_what_they_take() {
    let impacts = foresee(&json!({}), &json!({"reservedSystemCPUs": "0-3"}), &inventory(6, "8", "16Gi"));
    let [impact] = impacts.as_slice() else { panic!("{impacts:?}") };
    assert_eq!((impact.field, impact.lost()), ("reservedSystemCPUs", vec!["default/pod-4", "default/pod-5"]));
    let same = json!({"reservedSystemCPUs": "0-3", "maxPods": 50});
    let impacts = foresee(&json!({"reservedSystemCPUs": "0-3"}), &same, &inventory(6, "8", "16Gi"));
    assert_eq!(impacts[0].field, "pods", "any restart costs them");
}

#[test]
fn larger_reservations_turn_away_what_no_longer_fits() {
    let inventory = inventory(5, "8", "6Gi");
    let impacts = foresee(&json!({}), &json!({"systemReserved": {"memory": "2Gi"}}), &inventory);
    assert_eq!(impacts.len(), 1, "{impacts:?}");
    assert_eq!((impacts[0].field, impacts[0].lost()), ("systemReserved", vec!["default/pod-3", "default/pod-4"]));
    let impacts = foresee(&json!({}), &json!({"kubeReserved": {"cpu": "3500m"}}), &inventory);
    assert_eq!(
        (impacts[0].lost(), impacts[0].message.as_str()),
        (vec!["default/pod-4"], "what is left for pods would go down: cpu from 8000m to 4500m")
    );
    let impacts = foresee(&json!({}), &json!({"evictionHard": {"memory.available": "50%"}}), &inventory);
    assert_eq!((impacts[0].field, impacts[0].pods.len()), ("evictionHard", 2));
    // One pod does not fit before, and it is the same one after: any restart would cost it.
    let tight = json!({"systemReserved": {"memory": "2Gi"}});
    let other = json!({"systemReserved": {"memory": "2Gi"}, "syncFrequency": "2m"});
    let impacts = foresee(&tight, &other, &inventory);
    assert_eq!((impacts[0].field, impacts[0].lost()), ("pods", vec!["default/pod-3", "default/pod-4"]));
    assert_eq!(foresee(&json!({"kubeReserved": {"cpu": "7"}}), &json!({}), &inventory), []);
}

#[test]
fn a_threshold_that_is_crossed_already_evicts_at_once() {
    let supplies = BTreeMap::from([
        ("memory.available".to_owned(), Supply { available: 300 << 20, capacity: 2 << 30 }),
        ("nodefs.inodesFree".to_owned(), Supply { available: 900, capacity: 10_000 }),
    ]);
    let foresee = |old: &Value, new: &Value| preview(old, new, None, &supplies);
    let new =
        json!({"evictionHard": {"memory.available": "1Gi", "nodefs.inodesFree": "10%", "nodefs.available": "50%"}});
    let impacts = foresee(&json!({}), &new);
    let messages: Vec<&str> = impacts.iter().map(|impact| impact.message.as_str()).collect();
    assert_eq!(
        messages,
        [
            "would evict pods at once: memory.available is 300Mi, the new threshold 1Gi",
            "would evict pods at once: nodefs.inodesFree is 900, the new threshold 1000"
        ]
    );
    assert_eq!(foresee(&new, &new), []);
    assert_eq!(
        foresee(
            &json!({"evictionHard": {"memory.available": "400Mi"}}),
            &json!({"evictionHard": {"memory.available": "1Gi"}})
        ),
        [],
        "crossed before"
    );
    assert_eq!(foresee(&json!({}), &json!({"evictionHard": {"memory.available": "200Mi"}})), [], "not crossed");
    assert_eq!(foresee(&json!({}), &json!({"evictionHard": {"memory.available": "100%"}})), [], "off");
}

#[test]
fn a_refusal_names_the_pods_and_the_ways_out() {
    let impacts = foresee(&json!({}), &json!({"maxPods": 3}), &inventory(20, "64", "64Gi"));
    let message = refused_impact(&impacts, None).unwrap();
    assert_eq!(
        message,
        "maxPods: 20 pods run here and 3 places would be left; these pods would be turned away: \
         default/pod-3 (OutOfpods), default/pod-4 (OutOfpods), default/pod-5 (OutOfpods), default/pod-6 (OutOfpods), \
         default/pod-7 (OutOfpods), default/pod-8 (OutOfpods), default/pod-9 (OutOfpods), default/pod-10 (OutOfpods), \
         default/pod-11 (OutOfpods), default/pod-12 (OutOfpods) and 7 more; move these pods away (drain them), then run \
         kubelet-supervisor retry on the node, or annotate the ConfigMap with \
         kubelet-supervisor.io/acknowledge: \"maxPods\""
    );
    for enough in ["maxPods", "pods", "all"] {
        assert_eq!(refused_impact(&impacts, Some(enough)), None, "{enough}");
    }
    assert!(refused_impact(&impacts, Some("reboot")).unwrap().contains("acknowledge: \"reboot, maxPods\""));
    assert_eq!(refused_impact(&[], None), None);
}

#[test]
fn the_unknown_costs_nothing() {
    assert_eq!(preview(&Value::Null, &json!({"maxPods": 1}), Some(&inventory(5, "8", "16Gi")), &BTreeMap::new()), []);
    assert_eq!(preview(&json!({}), &json!({"maxPods": 1}), None, &BTreeMap::new()), []);
    let blind = PodInventory { node: NodeSummary::default(), ..inventory(5, "", "") };
    assert_eq!(foresee(&json!({}), &json!({"kubeReserved": {"cpu": "9"}, "podsPerCore": 1}), &blind), []);
}

proptest! {
    #[test]
    fn nothing_is_lost_where_there_is_room(config in configuration(), count in 0..30_usize) {
        prop_assume!(config.get("maxPods").is_none() && config.get("podsPerCore").is_none());
        prop_assert_eq!(foresee(&config, &config, &inventory(count, "4000", "8000Gi")), []);
    }

    #[test]
    fn messages_fit_and_never_panic(
        old in configuration(), new in configuration(), count in 0..30_usize, max in 0..20_u32, reserve in 0..10_u32,
        cpu in "[0-9.a-z]{0,5}", available in any::<u64>(), capacity in any::<u64>(),
    ) {
        let mut new = new;
        new["maxPods"] = max.into();
        new["systemReserved"] = json!({"memory": format!("{reserve}Gi")});
        let mut inventory = inventory(count, &cpu, "8Gi");
        for pod in &mut inventory.pods {
            pod.name = format!("{}/{}", "n".repeat(63), pod.name.repeat(18));
        }
        let supplies = ["memory.available", "nodefs.available", "pid.available"].map(|signal| (signal.to_owned(), Supply { available, capacity }));
        let impacts = preview(&old, &new, Some(&inventory), &supplies.into());
        if let Some(message) = refused_impact(&impacts, Some("x")) {
            prop_assert!(message.len() < 900, "{} {}", message.len(), message);
        }
        prop_assert_eq!(refused_impact(&impacts, Some("pods")), None);
    }
}
