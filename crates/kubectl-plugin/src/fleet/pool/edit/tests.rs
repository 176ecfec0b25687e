use super::super::types::BadRevision;
use super::*;

fn map(name: &str) -> ConfigMapRef {
    ConfigMapRef { namespace: "ns".into(), name: name.into(), kubelet_config_key: "kubelet".into() }
}

#[test]
fn a_config_map_takes_the_place_of_what_was_there() {
    let spec = json!({"nodeSelector": {}, "kubeletConfiguration": {"maxPods": 1}, "flags": ["--v=1"], "merge": "overlay",
        "acknowledge": ["pods"], "paused": true, "startupTaint": "t", "rollout": {"canaries": 3, "later": 1}});
    let strategy = json!({"maxUnavailable": 2}).as_object().unwrap().clone();
    assert_eq!(
        roll_out(&spec, &NodeSelector::default(), &map("m"), &strategy),
        json!({"nodeSelector": {}, "configMap": {"name": "m", "key": "kubelet"}, "paused": false, "startupTaint": "t",
            "rollout": {"canaries": 3, "later": 1, "maxUnavailable": 2}})
    );
}

#[test]
fn what_was_made_of_a_spec_becomes_that_spec_again() {
    for configuration in [json!({"maxPods": 60}), json!({"maxPods": "${node.cpu * 10}"})] {
        let spec = json!({"nodeSelector": {}, "kubeletConfiguration": configuration, "merge": "overlay",
            "flags": ["--v=4", "!--cgroup-driver"], "acknowledge": ["pods"], "rollout": {}});
        let typed = serde_json::from_value(spec.clone()).unwrap();
        let revision = Revision::of_spec("p", &typed, "ns").unwrap();
        let (stored, to) = (revision.object().unwrap(), revision.reference());
        let now = json!({"nodeSelector": {}, "configMap": {"name": "m"}, "paused": true, "rollout": {}});
        let mut expected = spec;
        expected["paused"] = json!(false);
        assert_eq!(go_back("p", &now, stored, to).unwrap(), expected);
        // Another pool's is a ConfigMap like others; with expressions it has not the key that nodes need.
        let other = go_back("q", &now, stored, to);
        assert_eq!(other.is_ok(), configuration["maxPods"] == 60, "{other:?}");
    }
    let mutable = json!({"data": {"kubelet": "{}"}});
    assert!(go_back("p", &json!({}), &mutable, &map("m")).unwrap_err().contains("can be edited"));
}

#[test]
fn back_is_what_all_had_last() {
    let status = |current: &str, history: &[&str], bad: &[&str]| KubeletConfigPoolStatus {
        current_revision: Some(current.to_owned()),
        history: history.iter().map(|name| (*name).to_owned()).collect(),
        bad_revisions: bad
            .iter()
            .map(|name| BadRevision { revision: (*name).to_owned(), ..BadRevision::default() })
            .collect(),
        ..KubeletConfigPoolStatus::default()
    };
    assert_eq!(former_revisions(&status("b", &["z", "a"], &[]), "c"), ["b", "a", "z"], "the update did not get there");
    assert_eq!(former_revisions(&status("b", &["z", "a"], &["a"]), "b"), ["z"]);
    let none = chosen("p", &[], None, "ns").unwrap_err();
    assert!(none.contains("no revision to go back to"), "{none}");
    assert_eq!(chosen("p", &["b", "a"], None, "ns").unwrap().name, "b");
    assert_eq!(chosen("p", &["b", "a/x"], Some("a/x"), "ns").unwrap().kubelet_config_key, "x");
    assert!(chosen("p", &["b", "a"], Some("c"), "ns").unwrap_err().contains("there are b, a"));
}
