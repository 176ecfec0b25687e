use super::*;
use crate::hazard::tests::configuration;
use crate::pods::PodSummary;
use crate::readmission::{Supplies, Supply};
use proptest::prelude::*;
use serde_json::json;

fn refused_impact(impacts: &[Impact], acknowledged: Option<&str>) -> Option<String> {
    super::refused_impact(impacts, &Acknowledged::parse(acknowledged))
}

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
    restart(old, &kubelet(new, &Supplies::new()), Some(inventory))
}

/// Of kubelets that differ in nothing but their configuration.
fn restart(old: &Value, new: &Kubelet<'_>, inventory: Option<&PodInventory>) -> Vec<Impact> {
    preview(&Kubelet { config: old, ..*new }, new, inventory)
}

/// Of a version that has made the first pass of its eviction manager when it admits.
fn kubelet<'a>(config: &'a Value, supplies: &'a Supplies) -> Kubelet<'a> {
    Kubelet { config, minor: Some(36), supplies, ignores_eviction: false }
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

/// Plain, best effort, best effort that tolerates memory pressure, critical.
fn four_pods() -> PodInventory {
    let pod = |second: usize, class: &str, spec: &Value| {
        PodSummary::from_object(&json!({
            "metadata": {"namespace": "d", "name": class.to_lowercase() + &second.to_string(),
                "creationTimestamp": format!("2026-01-01T00:00:0{second}Z")},
            "spec": spec, "status": {"phase": "Running", "qosClass": class},
        }))
    };
    let tolerates = json!({"tolerations": [{"key": "node.kubernetes.io/memory-pressure", "operator": "Exists"}]});
    let pods = vec![
        pod(1, "Burstable", &json!({})),
        pod(2, "BestEffort", &json!({})),
        pod(3, "BestEffort", &tolerates),
        pod(4, "BestEffort", &json!({"priority": 2_000_000_000})),
    ];
    PodInventory { pods, node: NodeSummary::default() }
}

fn supplies(of: &[(&str, u64, u64)]) -> Supplies {
    of.iter()
        .map(|(signal, available, capacity)| {
            ((*signal).to_owned(), Supply { available: *available, capacity: *capacity })
        })
        .collect()
}

/// Each impact as it is told, refused ones first.
fn evictions(old: &Value, new: &Value, minor: Option<u64>, left: &Supplies) -> [Option<String>; 2] {
    let impacts = restart(old, &Kubelet { minor, ..kubelet(new, left) }, Some(&four_pods()));
    let refused = refused_impact(&impacts, None).map(|text| text.split("; move").next().unwrap_or_default().to_owned());
    [refused.map(|text| text.split("; make").next().unwrap_or_default().to_owned()), told_impact(&impacts)]
}

#[test]
fn a_threshold_that_is_crossed_already_turns_away() {
    const DISK: &str = "d/burstable1 (Evicted), d/besteffort2 (Evicted), d/besteffort3 (Evicted)";
    let left = supplies(&[
        ("memory.available", 300 << 20, 2 << 30),
        ("nodefs.available", 30 << 30, 100 << 30),
        ("nodefs.inodesFree", 900, 10_000),
        ("imagefs.available", 9 << 30, 100 << 30),
        ("pid.available", 50, 32_768),
    ]);
    let none = json!({"evictionHard": {}});
    let told = |crossed: &str, pods: &str| {
        format!("evictionHard: would evict pods at once: {crossed}; these pods would be turned away: {pods}")
    };
    // Memory alone is nothing to pods that asked for some, or tolerate it.
    let both = "memory.available is 300Mi, the new threshold 1Gi; nodefs.inodesFree is 900, the new threshold 1000";
    for (hard, crossed, pods) in [
        (
            json!({"memory.available": "1Gi"}),
            "memory.available is 300Mi, the new threshold 1Gi",
            "d/besteffort2 (Evicted)",
        ),
        (json!({"nodefs.available": "31%"}), "nodefs.available is 30Gi, the new threshold 31Gi", DISK),
        (json!({"nodefs.inodesFree": "10%"}), "nodefs.inodesFree is 900, the new threshold 1000", DISK),
        (json!({"imagefs.available": "15%"}), "imagefs.available is 9Gi, the new threshold 15Gi", DISK),
        (json!({"pid.available": "100"}), "pid.available is 50, the new threshold 100", DISK),
        (json!({"memory.available": "1Gi", "nodefs.inodesFree": "10%"}), both, DISK),
    ] {
        let refused = Some(told(crossed, pods));
        assert_eq!(evictions(&none, &json!({"evictionHard": hard}), Some(36), &left), [refused, None], "{crossed}");
    }
    let unknown = "evictionHard: whether its threshold of imagefs.inodesFree is crossed cannot be measured here";
    for (new, told) in [
        (json!({"evictionHard": {"imagefs.inodesFree": "5%"}}), Some(unknown.to_owned())),
        (json!({"evictionHard": {"memory.available": "300Mi", "nodefs.available": "30%"}}), None), // met exactly
        (json!({"evictionHard": {"memory.available": "100%", "nodefs.available": "0%"}}), None),   // off
        (json!({"evictionHard": {}, "evictionSoft": {"memory.available": "1Gi"}}), None),          // left to the trial
    ] {
        assert_eq!(evictions(&none, &new, Some(36), &left), [None, told], "{new}");
    }
    let hard = json!({"evictionHard": {"nodefs.available": "31%"}});
    let refused =
        told("nodefs.available is 30Gi, the new threshold 31Gi", &DISK.replace("(Evicted)", "(perhaps Evicted)"));
    for minor in [Some(20), None] {
        let found = evictions(&none, &hard, minor, &left);
        assert_eq!(found, [Some(refused.clone()), None], "{minor:?}: it evicts, of whom is the question");
    }
}

#[test]
fn pressure_that_is_there_already_costs_at_any_restart() {
    let left = supplies(&[("memory.available", 300 << 20, 2 << 30), ("pid.available", 50, 32_768)]);
    let old = json!({"evictionHard": {"memory.available": "400Mi"}});
    let more = json!({"evictionHard": {"memory.available": "1Gi"}});
    let told = "pods: the node is under pressure: memory.available is 300Mi, the threshold 1Gi; \
        these pods would be turned away: d/besteffort2 (Evicted)";
    assert_eq!(evictions(&old, &more, Some(36), &left), [None, Some(told.to_owned())]);
    let pids = json!({"evictionHard": {"memory.available": "1Gi", "pid.available": "100"}});
    assert_eq!(
        evictions(&old, &pids, Some(36), &left),
        [
            Some(
                "evictionHard: would evict pods at once: pid.available is 50, the new threshold 100; \
                these pods would be turned away: d/burstable1 (Evicted), d/besteffort3 (Evicted)"
                    .to_owned()
            ),
            Some(told.to_owned())
        ]
    );
    assert_eq!(
        evictions(&more, &json!({"evictionHard": {"memory.available": "200Mi"}}), Some(36), &left),
        [None, None]
    );
}

#[test]
fn reservations_that_pods_have_outgrown() {
    // Of 8Gi pods use 5Gi: with 2Gi kept they have 1Gi left, more than the threshold, with 3Gi nothing.
    let left = supplies(&[("allocatableMemory.available", 3 << 30, 8 << 30), ("memory.available", 2 << 30, 8 << 30)]);
    let of =
        |reserved: &str| json!({"evictionHard": {"memory.available": "512Mi"}, "kubeReserved": {"memory": reserved}});
    assert_eq!(evictions(&json!({"evictionHard": {}}), &of("2Gi"), Some(36), &left), [None, None]);
    let refused = "kubeReserved: would evict pods at once: allocatableMemory.available is 3Gi, the new threshold 3.5Gi; \
        these pods would be turned away: d/besteffort2 (Evicted)";
    assert_eq!(evictions(&of("2Gi"), &of("3Gi"), Some(36), &left), [Some(refused.to_owned()), None]);
    let mut free = of("3Gi");
    free["enforceNodeAllocatable"] = json!(["none"]);
    assert_eq!(evictions(&of("2Gi"), &free, Some(36), &left), [None, None], "nobody holds the pods to it");
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

/// With the flag a threshold takes nothing from pods, and without it what it takes is its doing.
#[test]
fn hard_eviction_thresholds_that_are_not_kept_from_pods() {
    let supplies = Supplies::new();
    let [plain, raised] = ["1Mi", "3Gi"].map(|least| json!({"evictionHard": {"memory.available": least}}));
    let of = |config, ignores_eviction| Kubelet { ignores_eviction, ..kubelet(config, &supplies) };
    for (old, new, lost) in [
        (of(&plain, false), of(&raised, false), true),
        (of(&plain, true), of(&raised, true), false),
        (of(&raised, true), of(&raised, false), true),
        (of(&raised, false), of(&raised, true), false),
    ] {
        let impacts = preview(&old, &new, Some(&inventory(6, "8", "8Gi")));
        let told = refused_impact(&impacts, None).unwrap_or_default();
        assert_eq!(told.contains("evictionHard: what is left for pods would go down: memory from "), lost, "{told}");
        assert_eq!(impacts.is_empty(), !lost, "{impacts:?}");
    }
}

/// Nor is what they use of the rest held against them.
#[test]
fn the_threshold_of_what_pods_use_goes_with_the_flag() {
    let left = supplies(&[("memory.available", 7 << 30, 8 << 30), ("allocatableMemory.available", 2 << 30, 8 << 30)]);
    let new = json!({"evictionHard": {"memory.available": "3Gi"}});
    let [heeded, ignored] = [false, true].map(|ignores_eviction| {
        let new = Kubelet { ignores_eviction, ..kubelet(&new, &left) };
        restart(&json!({}), &new, Some(&four_pods()))
    });
    assert!(refused_impact(&heeded, None).unwrap().contains("would evict pods at once"), "{heeded:?}");
    assert_eq!(ignored, []);
}

#[test]
fn the_unknown_costs_nothing() {
    assert_eq!(
        restart(&Value::Null, &kubelet(&json!({"maxPods": 1}), &Supplies::new()), Some(&inventory(5, "8", "16Gi"))),
        []
    );
    assert_eq!(restart(&json!({}), &kubelet(&json!({"maxPods": 1}), &Supplies::new()), None), []);
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
        let supplies = supplies.into();
        let impacts = restart(&old, &kubelet(&new, &supplies), Some(&inventory));
        if let Some(message) = refused_impact(&impacts, Some("x")) {
            prop_assert!(message.len() < 900, "{} {}", message.len(), message);
        }
        prop_assert_eq!(refused_impact(&impacts, Some("pods")), None);
    }
}
