//! The node's own files, read as its kubelet reads them.

use serde_json::json;

use super::*;
use crate::own_files::{API_VERSION, KIND};

const HEAD: &str = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n";

/// What comes of a payload (an overlay), a local file and a drop-in.
fn rendered(payload: Option<&str>, local: &str, drop_in: Option<&str>) -> Result<Configuration, RenderFault> {
    let drop_ins: Vec<DropIn> = drop_in.map(|text| DropIn::new("/etc/k/conf.d/30-a.conf", text)).into_iter().collect();
    render(&RenderInput {
        payload: payload.map(|text| Text { text, dir: "/d/1" }),
        local: Some(Text { text: local, dir: "/etc/k" }),
        merge: Merge::Overlay,
        keys: &|_| None,
        configs: None,
        drop_ins: &drop_ins,
        args: &KubeletArgs::parse(&[]),
        overrides: &FlagOverrides::default(),
        minor: None,
    })
}

#[test]
fn what_the_kubelet_takes_is_a_note() {
    let two = "the local file: a kubelet reads the first YAML document of it, and ignores what begins in line ";
    for (local, note) in [
        (format!("{HEAD}maxPods: 5\n---\n"), two),
        (format!("{HEAD}maxPods: 5\n---\n\t{{torn"), two),
        (
            format!("{HEAD}maxPods: 4\nmaxPods: 5\n"),
            "duplicate field in the local file, the last one wins: maxPods, line 4, column 1",
        ),
    ] {
        for payload in [None, Some("podsPerCore: 3")] {
            let out = rendered(payload, &local, None).unwrap_or_else(|why| panic!("{local:?}: {why}"));
            assert_eq!(out.value["maxPods"], 5, "{local:?}");
            assert!(out.notes.iter().any(|found| found.starts_with(note)), "{:?}", out.notes);
            assert!(out.problems.is_empty(), "{:?}", out.problems);
        }
    }
    let out = rendered(Some("podsPerCore: 3"), &format!("{HEAD}noSuchField: 1\n"), None).unwrap();
    assert!(out.problems.is_empty() && out.notes.is_empty(), "{:?}, {:?}", out.problems, out.notes);
    let spelt = "Kind: KubeletConfiguration\nAPIVERSION: kubelet.config.k8s.io/v1beta1\nmaxPods: 5\n";
    let out = rendered(None, spelt, None).unwrap();
    assert_eq!(out.value, json!({"kind": KIND, "apiVersion": API_VERSION, "maxPods": 5}));
}

#[test]
fn what_comes_from_the_cluster_stays_strict() {
    let two = "maxPods: 5\n---\nmaxPods: 6\n";
    for (payload, why) in [(two, "more than one YAML document"), ("Kind: KubeletConfiguration\nkind: Pod\n", "kind is")]
    {
        let fault = rendered(Some(payload), HEAD, None).unwrap_err();
        assert!(matches!(&fault, RenderFault::Payload(found) if found.contains(why)), "{fault:?}");
    }
    let out = rendered(Some("noSuchField: 1\nmaxPods: 1\nmaxPods: 2\n"), HEAD, None).unwrap();
    assert_eq!(out.problems.len(), 2, "{:?}", out.problems);
}

/// What keeps a kubelet from starting.
#[test]
fn what_no_kubelet_starts_with_is_a_fault() {
    for (local, why) in [
        ("", "it is empty"),
        ("null", "it is empty, not a mapping"),
        ("# nothing\n", "it is empty, not a mapping"),
        ("---\n---\nkind: KubeletConfiguration\n", "it is empty, not a mapping"),
        ("maxPods: 5\n", "kind is missing"),
        ("{kind: KubeletConfiguration, apiVersion: kubelet.config.k8s.io/v1beta1}", "what begins with { is JSON"),
        ("maxPods: [5\n", "'[' is never closed"),
    ] {
        let fault = rendered(None, local, None).unwrap_err();
        assert!(matches!(&fault, RenderFault::Local(found) if found.contains(why)), "{local:?}: {fault:?}");
    }
    for (drop_in, why) in [
        ("", "it is empty"),
        ("\n", "it is empty"),
        ("null\n", "it is empty, not a mapping"),
        ("maxPods: 70\n", "kind is missing: it must be KubeletConfiguration"),
        ("kind: KubeletConfiguration\n", "apiVersion is missing"),
        ("Kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n", "kind is missing"),
        ("kind: Pod\napiVersion: v1\n", "kind is \"Pod\""),
        ("kind: [KubeletConfiguration\n", "'[' is never closed"),
        ("- a\n", "it is a list"),
    ] {
        for payload in [None, Some("maxPods: 1")] {
            let fault = rendered(payload, HEAD, Some(drop_in)).unwrap_err();
            let RenderFault::DropIn(found) = &fault else { panic!("{drop_in:?}: {fault:?}") };
            assert!(found.starts_with("/etc/k/conf.d/30-a.conf: ") && found.contains(why), "{drop_in:?}: {found}");
        }
        // What is wrong with the payload is wrong whatever the node has.
        assert!(matches!(rendered(Some("a: ["), HEAD, Some(drop_in)), Err(RenderFault::Payload(_))));
    }
    let twice = rendered(None, HEAD, Some(&format!("{HEAD}maxPods: 1\nmaxPods: 2\n"))).unwrap_err();
    assert_eq!(
        twice.to_string(),
        "/etc/k/conf.d/30-a.conf: a field stands twice, which is refused in a drop-in: maxPods, line 4, column 1"
    );
}

/// From 1.29 to 1.31 drop-ins are read as of any kind.
#[test]
fn of_which_kind_a_drop_in_is_follows_the_version() {
    let fault = |text: &str, minor| DropIn::new("/a.conf", text).fault(Some(minor)).is_some();
    let of = |text: &str| [28, 29, 31, 32].map(|minor| fault(text, minor));
    assert_eq!(of(HEAD), [false; 4]);
    assert_eq!(of("kind: Pod\n"), [true, false, false, true]);
    for text in ["maxPods: 1\n", "kind: ''\n", "kind: [\n"] {
        assert_eq!(of(text), [true; 4], "{text}");
    }
}

#[test]
fn of_a_drop_in_the_first_document_counts() {
    let out = rendered(None, HEAD, Some(&format!("{HEAD}maxPods: 70\nnoSuchField: 1\n---\nmaxPods: [\n"))).unwrap();
    assert_eq!(out.effective["maxPods"], 70);
    assert!(out.notes[0].starts_with("/etc/k/conf.d/30-a.conf: a kubelet reads the first"), "{:?}", out.notes);
    let same = rendered(None, HEAD, Some(&format!("{HEAD}noSuchField: 1\nmaxPods: 70\n"))).unwrap();
    assert_eq!(same.digest, out.digest);
}
