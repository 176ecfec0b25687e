use super::*;
use serde_json::{Value, json};

fn pool(reason: &str, more: &Value) -> KubeletConfigPool {
    let is = |type_: &str| match (type_, reason) {
        ("Ready", "Complete") | ("Stalled", "FailuresExceeded" | "Conflict") => "True",
        _ => "False",
    };
    let conditions = ["Ready", "Stalled"].map(|type_| {
        json!({"type": type_, "status": is(type_), "reason": reason, "message": "m", "observedGeneration": 2,
            "lastTransitionTime": "t"})
    });
    let mut pool = json!({
        "apiVersion": "kubelet-supervisor.io/v1alpha1", "kind": "KubeletConfigPool",
        "metadata": {"name": "p", "generation": 2},
        "spec": {"nodeSelector": {}, "configMap": {"name": "m"}, "rollout": {}},
        "status": {"observedGeneration": 2, "updateRevision": "b", "conditions": conditions},
    });
    for (pointer, value) in more.as_object().unwrap() {
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        pool.pointer_mut(parent).unwrap()[field] = value.clone();
    }
    serde_json::from_value(pool).unwrap()
}

#[test]
fn where_it_is() {
    let stalled = |reason: &str| Standing::Stalled(reason.into(), "m".into());
    let bad = json!([{"revision": "b", "nodes": []}]);
    let back = json!({"/status/badRevisions": bad, "/status/currentRevision": "a", "/status/updated": 3});
    let gone_back = json!({"/status/badRevisions": bad, "/status/currentRevision": "a"});
    let stop = json!({"/status/badRevisions": bad, "/status/updated": 3, "/spec/rollout/onFailure": "Stop"});
    for (reason, more, expected) in [
        ("Complete", json!({}), Standing::Complete),
        ("Complete", json!({"/metadata/generation": 3}), Standing::OnItsWay),
        ("Waves", json!({}), Standing::OnItsWay),
        ("Conflict", json!({}), stalled("Conflict")),
        ("FailuresExceeded", back, Standing::GoingBack),
        ("FailuresExceeded", gone_back, stalled("FailuresExceeded")),
        ("FailuresExceeded", stop, stalled("FailuresExceeded")),
        ("FailuresExceeded", json!({}), Standing::OnItsWay), // it was forgotten a moment ago
        ("Paused", json!({}), Standing::Paused),
        ("AwaitingApproval", json!({}), Standing::AwaitingApproval("b".into())),
        ("AwaitingApproval", json!({"/metadata/annotations": {APPROVED_REVISION: "b"}}), Standing::OnItsWay),
        (
            "AwaitingApproval",
            json!({"/metadata/annotations": {APPROVED_REVISION: "a"}}),
            Standing::AwaitingApproval("b".into()),
        ),
    ] {
        assert_eq!(standing(&pool(reason, &more)), expected, "{reason} {more}");
    }
}

#[test]
fn counts_are_those_of_the_way_it_goes() {
    let status = json!({"/status/nodes": 10, "/status/updated": 5, "/status/proven": 2, "/status/updating": 2, "/status/failed": 1});
    let counts = Counts::new(&pool("Waves", &status));
    assert_eq!((counts.summary().as_str(), counts.left()), ("2/10 done, 2 in flight, 1 bad", 7));
    let mut active = status.clone();
    active["/spec/rollout/proof"] = json!("Active");
    assert_eq!(Counts::new(&pool("Waves", &active)).done, 2);
    let mut back = status;
    back["/status/badRevisions"] = json!([{"revision": "b", "nodes": []}]);
    back["/status/currentRevision"] = json!("a");
    let back = pool("FailuresExceeded", &back);
    assert_eq!((Counts::new(&back).done, phase(&back)), (3, "going back"));
}

#[test]
fn a_bar_is_as_wide_as_it_is() {
    let counts = Counts { total: 100, done: 50, in_flight: 10, bad: 1 };
    assert_eq!(counts.bar(20), "[##########>>!.......]");
    for done in 0..=9 {
        assert_eq!(Counts { done, total: 7, in_flight: 3, bad: 1 }.bar(20).len(), 22);
    }
    assert_eq!(Counts::default().bar(4), "[....]");
}

#[test]
fn time_left_goes_by_what_passed() {
    assert_eq!(time_left(Duration::from_secs(60), 0, 5), None);
    assert_eq!(time_left(Duration::from_secs(60), 2, 5).map(duration), Some("2m30s".to_owned()));
    assert_eq!(duration(Duration::from_secs(7500)), "2h05m");
}

#[test]
fn a_mark_goes_alone_and_failures_with_it() {
    let bad = json!([{"revision": "a", "nodes": []}, {"revision": "m", "nodes": []}]);
    let forgotten = |more: &Value| without_failures("p", &pool("Waves", more), "ns");
    let (update, patch) = forgotten(&json!({"/status/badRevisions": bad})).unwrap();
    assert_eq!(update, "m");
    assert_eq!(patch, json!({"status": {"badRevisions": [{"revision": "a", "nodes": []}], "rollout": null}}));
    assert!(forgotten(&json!({})).is_none());
    let failure = json!([{"uid": "u", "name": "n", "kind": "Silent", "time": ""}]);
    for (revision, is_it) in [("m", true), ("a", false)] {
        let rollout =
            json!({"revision": revision, "startedAt": "", "phase": "Waves", "phaseSince": "", "failures": failure});
        assert_eq!(forgotten(&json!({"/status/rollout": rollout})).is_some(), is_it);
    }
}
