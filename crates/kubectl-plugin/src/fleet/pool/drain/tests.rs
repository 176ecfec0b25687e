use super::*;

fn pod(name: &str, more: &Value) -> Value {
    let mut pod = json!({"metadata": {"namespace": "n", "name": name, "uid": name,
        "ownerReferences": [{"kind": "ReplicaSet", "controller": true}]}, "spec": {}, "status": {"phase": "Running"}});
    for (part, fields) in more.as_object().unwrap() {
        for (field, value) in fields.as_object().unwrap() {
            pod[part][field] = value.clone();
        }
    }
    pod
}

#[test]
fn pods_are_judged_as_kubectl_drain_does() {
    let owner = |kind: &str| json!({"metadata": {"ownerReferences": [{"kind": kind, "controller": true}]}});
    let cases = [
        (json!({}), EvictionDecision::Leaves, EvictionDecision::Leaves),
        (owner("StatefulSet"), EvictionDecision::Leaves, EvictionDecision::Leaves),
        (owner("DaemonSet"), EvictionDecision::Stays, EvictionDecision::Stays),
        (
            json!({"metadata": {"annotations": {MIRROR: "x"}, "ownerReferences": [{"kind": "Node", "controller": true}]}}),
            EvictionDecision::Stays,
            EvictionDecision::Stays,
        ),
        (
            json!({"metadata": {"ownerReferences": null}, "status": {"phase": "Succeeded"}}),
            EvictionDecision::Stays,
            EvictionDecision::Stays,
        ),
        (
            json!({"metadata": {"ownerReferences": null}, "status": {"phase": "Failed"}}),
            EvictionDecision::Stays,
            EvictionDecision::Stays,
        ),
        (
            json!({"metadata": {"ownerReferences": null}}),
            EvictionDecision::Refuses("has no controller: nobody would start it again"),
            EvictionDecision::Leaves,
        ),
        (
            json!({"metadata": {"ownerReferences": [{"kind": "Thing"}]}}),
            EvictionDecision::Refuses("has no controller: nobody would start it again"),
            EvictionDecision::Leaves,
        ),
        (
            json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}),
            EvictionDecision::Refuses("has an emptyDir, whose data would be lost"),
            EvictionDecision::Leaves,
        ),
        (
            json!({"metadata": {"ownerReferences": null, "deletionTimestamp": "now"}}),
            EvictionDecision::Leaves,
            EvictionDecision::Leaves,
        ),
    ];
    for (more, careful, force) in cases {
        let pod = pod("p", &more);
        assert_eq!(
            (eviction_decision(&pod, DrainMode::Careful), eviction_decision(&pod, DrainMode::Force)),
            (careful, force),
            "{pod:#}"
        );
    }
    assert_eq!(
        eviction_decision(&json!({"metadata": 7}), DrainMode::Force),
        EvictionDecision::Leaves,
        "an odd one is read"
    );
}

#[test]
fn a_drain_from_its_list_to_the_last_pod() {
    let at = Duration::from_secs;
    let mut pods = Pods::new(DrainMode::Careful, true);
    assert_eq!(pods.state(at(0)), Drain::Listing);
    pods.begin();
    pods.observe(&pod("a", &json!({})));
    pods.observe(&pod("b", &json!({})));
    pods.listed();
    let going = |pods: &Pods, now| match pods.state(now) {
        Drain::Going { left, next, such } => (left, next.map(|next| next.as_secs()), such),
        other => panic!("{other:?}"),
    };
    assert_eq!(going(&pods, at(0)), (2, Some(0), "Pod n/a".to_owned()));
    let a = pods.due(at(0)).unwrap().clone();
    pods.denied(&a, "the budget says no", at(0));
    let b = pods.due(at(0)).unwrap().clone();
    assert_eq!((a.name.as_str(), b.name.as_str()), ("a", "b"));
    pods.granted(&b, at(0));
    assert_eq!(pods.due(at(4)), None);
    assert_eq!(going(&pods, at(1)), (2, Some(4), "Pod n/a: the budget says no".to_owned()));
    // Each no makes the pause longer, up to a limit.
    let mut now = at(5);
    for pause in [10, 20, 40, 40] {
        assert_eq!(pods.due(now), Some(&a));
        pods.denied(&a, "no", now);
        pods.observe(&pod("b", &json!({"metadata": {"deletionTimestamp": "now"}})));
        assert_eq!(going(&pods, now).1, Some(pause));
        now += at(pause);
    }
    pods.granted(&a, now);
    pods.observe(&pod("a", &json!({"metadata": {"deletionTimestamp": "now"}})));
    assert_eq!(going(&pods, now), (2, None, "Pod n/a: it is ending".to_owned()));
    pods.remove(&pod("a", &json!({})));
    // A list that does not have it: it is gone.
    pods.begin();
    pods.listed();
    assert_eq!(pods.state(now), Drain::Empty);
    // One that comes under the same name is another one.
    pods.observe(&pod("a", &json!({"metadata": {"uid": "other"}})));
    pods.granted(&a, now);
    assert_eq!(pods.due(now).map(|pod| pod.uid.as_str()), Some("other"));
}

#[test]
fn a_granted_eviction_that_does_not_show_is_asked_for_again() {
    let mut pods = Pods::new(DrainMode::Force, true);
    pods.begin();
    pods.observe(&pod("a", &json!({})));
    pods.listed();
    let a = pods.due(Duration::ZERO).unwrap().clone();
    pods.granted(&a, Duration::ZERO);
    assert_eq!(pods.due(SHOWS.checked_sub(Duration::from_millis(1)).unwrap()), None);
    assert_eq!(pods.due(SHOWS), Some(&a));
}

#[test]
fn only_a_list_after_the_cordon_has_all_pods() {
    let mut pods = Pods::new(DrainMode::Careful, false);
    assert_eq!([false, true, true].map(|cordoned| pods.is_outdated(cordoned)), [false, true, true]);
    // An administrator took the cordon away, and we gave it back.
    let mut pods = Pods::new(DrainMode::Careful, true);
    assert_eq!([true, false, true].map(|cordoned| pods.is_outdated(cordoned)), [false, false, true]);
}

#[test]
fn none_is_evicted_while_one_refuses() {
    let mut pods = Pods::new(DrainMode::Careful, true);
    pods.begin();
    pods.observe(&pod("a", &json!({})));
    pods.observe(&pod("bare", &json!({"metadata": {"ownerReferences": null}})));
    assert_eq!(pods.due(Duration::ZERO), None, "the list is not complete");
    pods.listed();
    let why = "Pod n/bare has no controller: nobody would start it again";
    assert_eq!((pods.state(Duration::ZERO), pods.due(Duration::ZERO)), (Drain::Refused(why.to_owned()), None));
    pods.remove(&pod("bare", &json!({})));
    assert_eq!(pods.due(Duration::ZERO).map(|pod| pod.name.as_str()), Some("a"));
}

#[test]
fn whose_cordon_it_is() {
    let of = |unschedulable, by| Cordon::new(unschedulable, by, "r");
    assert_eq!([of(false, None), of(false, Some("pool/x")), of(false, Some("r"))], [Cordon::No; 3]);
    assert_eq!([of(false, Some("pool/r")), of(true, Some("pool/r"))], [Cordon::Stale, Cordon::Ours]);
    assert_eq!([of(true, Some("pool/x")), of(true, None)], [Cordon::Former, Cordon::Theirs]);
    assert_eq!(of(true, Some("r")), Cordon::Theirs, "it names no pool");
    let patch = Cordon::patch(Some("r"), "7");
    assert_eq!(patch["metadata"]["annotations"][CORDONED_BY], "pool/r");
}
