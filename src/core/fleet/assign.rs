//! What to write into a Node so that it asks for a ConfigMap, or for none: on the carrier that its API server keeps,
//! and so that the two never contradict each other.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::node::{Carrier, NodeRow};
use crate::core::carrier::{DEFAULT_KEY, LABELS};
use crate::core::directory;
use crate::core::model::{ConfigMapRef, Source};

/// A label's value holds so many characters (apimachinery/pkg/util/validation, v1.20.2 and v1.36.2).
const LABEL_MAX: usize = 63;

/// Beyond `Carrier`: whichever the API server keeps.
pub type Choice = Option<Carrier>;

/// What is to be done to a Node next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It asks for that, and nothing contradicts it.
    Done,
    /// A merge patch (RFC 7396); the answer is to be looked at again.
    Write(Value),
    /// It cannot be.
    Refuse(String),
}

/// The next step towards a Node that asks for `target`; none is its own configuration. `keeps`: whether the API server
/// keeps `spec.configSource`, as far as that was found out.
///
/// `spec.configSource` wins over labels. So it is written beside labels of an earlier assignment, and these are taken
/// away only when the answer has shown that it was kept; a server that drops it has changed nothing then.
#[must_use]
pub fn next(row: &NodeRow, target: Option<&ConfigMapRef>, choice: Choice, keeps: Option<bool>) -> Step {
    let (has_source, has_labels) = (row.carrier == Some(Carrier::Native), !labels_of(row).is_empty());
    let Some(target) = target else {
        if !has_source && !has_labels {
            return Step::Done;
        }
        return write(row, has_labels.then(no_labels), has_source.then_some(Value::Null));
    };
    let by_source = has_source && row.wanted.as_ref() == Some(target);
    let by_labels = !has_source && labels_of(row) == labels(target);
    match choice {
        _ if by_source && choice != Some(Carrier::Labels) => {
            if has_labels { write(row, Some(no_labels()), None) } else { Step::Done }
        }
        _ if by_labels && choice != Some(Carrier::Native) => Step::Done,
        Some(Carrier::Native) if keeps == Some(false) => Step::Refuse(
            "this API server does not keep spec.configSource (off since Kubernetes 1.22, gone since 1.26): use --carrier labels, \
             or auto"
                .to_owned(),
        ),
        Some(Carrier::Native) => write(row, None, Some(config_source(target))),
        None if keeps != Some(false) => write(row, None, Some(config_source(target))),
        _ => label_fault(target).map_or_else(
            || {
                let mut all = no_labels();
                all.extend(labels(target).into_iter().map(|(name, value)| (name, json!(value))));
                write(row, Some(all), has_source.then_some(Value::Null))
            },
            Step::Refuse,
        ),
    }
}

/// True if a patch sets `spec.configSource`, and the Node that came back does not show it.
#[must_use]
pub fn was_dropped(patch: &Value, answer: &NodeRow) -> bool {
    let sent = patch.pointer("/spec/configSource/configMap");
    let sent = sent.and_then(|map| serde_json::from_value::<ConfigMapRef>(map.clone()).ok());
    sent.is_some() && (answer.carrier != Some(Carrier::Native) || answer.wanted != sent)
}

/// Where a Node's assignment stands now, for people.
#[must_use]
pub fn shown(row: &NodeRow) -> String {
    match (row.carrier, &row.wanted) {
        (None, _) => "no assignment".to_owned(),
        (Some(Carrier::Native), Some(wanted)) => format!("spec.configSource {wanted}"),
        (Some(Carrier::Native), None) => "spec.configSource without a ConfigMap".to_owned(),
        (Some(Carrier::Labels), _) => {
            let labels = labels_of(row);
            let bare = |name: &String| name.trim_start_matches(LABELS).to_owned();
            let pairs: Vec<String> = labels.iter().map(|(name, value)| format!("{}={value}", bare(name))).collect();
            format!("labels {LABELS}{{{}}}", pairs.join(","))
        }
    }
}

/// The version that a Node falls back to, as an assignment. `Ok(None)`: its own configuration.
///
/// # Errors
/// Why there is nothing to go back to by an assignment.
pub fn way_back(row: &NodeRow) -> Result<Option<&Source>, String> {
    if [&row.assigned, &row.active].into_iter().flatten().any(directory::is_source) {
        return Err("it follows its source directory (--source-dir), not an assignment".to_owned());
    }
    if row.carrier.is_none() {
        return Err("nothing is assigned".to_owned());
    }
    let back = row.last_known_good.as_ref();
    if back.is_some() && row.assigned.as_ref() == back {
        let same = row.wanted.as_ref() == back.map(|source| &source.reference);
        if same {
            return Err("what is assigned is last known good already; --to names another ConfigMap".to_owned());
        }
    }
    Ok(back)
}

/// Why a ConfigMap as it is now is not the version to go back to, if it is not.
#[must_use]
pub fn is_other_version(back: &Source, uid: &str, version: &str) -> Option<String> {
    (back.uid != uid || back.resource_version != version).then(|| {
        format!(
            "last known good is version {} of ConfigMap {}/{}, which has been edited since (now {version}): on the node, \
             `kubelet-supervisor rollback` goes back to what it keeps; or --to names a ConfigMap with the old content",
            back.resource_version, back.reference.namespace, back.reference.name
        )
    })
}

/// The value of an annotation `retry` or `confirm` for this version that is another than `before`: the node obeys a
/// value once, and takes the resourceVersion alone as well.
#[must_use]
pub fn wish(source: &Source, before: Option<&str>) -> String {
    let long = format!("{}/{}", source.uid, source.resource_version);
    if before == Some(long.as_str()) { source.resource_version.clone() } else { long }
}

fn write(row: &NodeRow, labels: Option<Map<String, Value>>, source: Option<Value>) -> Step {
    let mut metadata = Map::new();
    // What was decided holds for the Node that was read, and for no other.
    if !row.version.is_empty() {
        metadata.insert("resourceVersion".to_owned(), json!(row.version));
    }
    if let Some(labels) = labels {
        metadata.insert("labels".to_owned(), labels.into());
    }
    let mut patch = Map::from_iter([("metadata".to_owned(), metadata.into())]);
    if let Some(source) = source {
        patch.insert("spec".to_owned(), json!({ "configSource": source }));
    }
    Step::Write(patch.into())
}

fn config_source(target: &ConfigMapRef) -> Value {
    json!({ "configMap": target })
}

/// The labels of an assignment that a Node has.
fn labels_of(row: &NodeRow) -> BTreeMap<String, String> {
    let ours = |name: &str| row.labels.get_key_value(&format!("{LABELS}{name}"));
    let found = ["name", "namespace", "key"].into_iter().filter_map(ours);
    found.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The namespace is always named: what supervisors take for it is their own business. The key only if it must be.
fn labels(target: &ConfigMapRef) -> BTreeMap<String, String> {
    let key = Some(&target.kubelet_config_key).filter(|key| *key != DEFAULT_KEY);
    let all = [("name", Some(&target.name)), ("namespace", Some(&target.namespace)), ("key", key)];
    all.into_iter().filter_map(|(name, value)| Some((format!("{LABELS}{name}"), value?.clone()))).collect()
}

fn no_labels() -> Map<String, Value> {
    ["name", "namespace", "key"].into_iter().map(|name| (format!("{LABELS}{name}"), Value::Null)).collect()
}

/// What no label can say of this target.
fn label_fault(target: &ConfigMapRef) -> Option<String> {
    let parts = [("name", &target.name), ("key", &target.kubelet_config_key)];
    let (part, value) = parts.into_iter().find(|(_, value)| value.len() > LABEL_MAX)?;
    Some(format!(
        "the {part} {value:?} has {} characters, and on this API server the assignment is a Node label, which holds {LABEL_MAX}: \
         give the ConfigMap a shorter {part}",
        value.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(name: &str) -> ConfigMapRef {
        ConfigMapRef { namespace: "ns".into(), name: name.into(), kubelet_config_key: "kubelet".into() }
    }

    /// An API server with one Node, which keeps `spec.configSource` or does not.
    struct Server {
        node: Value,
        keeps: bool,
        /// What the Node asked for after each write, as a supervisor reads it.
        asked: Vec<Option<String>>,
    }

    impl Server {
        fn new(keeps: bool, node: &Value) -> Self {
            Self { node: node.clone(), keeps, asked: Vec::new() }
        }

        fn row(&self) -> NodeRow {
            NodeRow::of(&self.node, "ns")
        }

        fn patch(&mut self, patch: &Value) {
            for (name, value) in patch.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flatten() {
                let labels = self.node["metadata"]["labels"].as_object_mut().unwrap();
                if value.is_null() {
                    labels.remove(name);
                } else {
                    labels.insert(name.clone(), value.clone());
                }
            }
            if let Some(source) = patch.pointer("/spec/configSource")
                && (self.keeps || source.is_null())
            {
                self.node["spec"]["configSource"] = source.clone();
            }
            self.asked.push(self.row().wanted.map(|wanted| wanted.name));
        }

        /// Until it is done; whether the server was seen to keep the field.
        fn settle(&mut self, target: Option<&ConfigMapRef>, choice: Choice) -> Result<Option<bool>, String> {
            let mut keeps = None;
            for _ in 0..4 {
                match next(&self.row(), target, choice, keeps) {
                    Step::Done => return Ok(keeps),
                    Step::Refuse(why) => return Err(why),
                    Step::Write(patch) => {
                        self.patch(&patch);
                        if patch.pointer("/spec/configSource/configMap").is_some() {
                            keeps = Some(!was_dropped(&patch, &self.row()));
                        }
                    }
                }
            }
            panic!("it goes on for ever: {:#}", self.node);
        }
    }

    fn bare() -> Value {
        json!({"metadata": {"name": "n1", "resourceVersion": "5", "labels": {"pool": "a"}}, "spec": {}})
    }

    fn labelled(name: &str) -> Value {
        let mut node = bare();
        node["metadata"]["labels"][format!("{LABELS}name")] = json!(name);
        node["metadata"]["labels"][format!("{LABELS}namespace")] = json!("ns");
        node["metadata"]["labels"][format!("{LABELS}key")] = json!("old-key");
        node
    }

    fn sourced(name: &str) -> Value {
        let mut node = bare();
        node["spec"]["configSource"] = json!({"configMap": map(name)});
        node
    }

    #[test]
    fn the_carrier_is_what_the_server_keeps() {
        for node in [bare(), labelled("old")] {
            let mut server = Server::new(true, &node);
            assert_eq!(server.settle(Some(&map("new")), None), Ok(Some(true)));
            assert_eq!((server.row().carrier, labels_of(&server.row()).len()), (Some(Carrier::Native), 0));
            assert_eq!(server.row().labels["pool"], "a", "what is not ours stays");

            let mut server = Server::new(false, &node);
            assert_eq!(server.settle(Some(&map("new")), None), Ok(Some(false)));
            assert_eq!(server.row().carrier, Some(Carrier::Labels));
            assert_eq!(labels_of(&server.row()), labels(&map("new")), "no key of the old one is left");
        }
    }

    #[test]
    fn at_no_moment_a_third_configuration_is_asked_for() {
        for keeps in [true, false] {
            for node in [labelled("old"), sourced("old")] {
                for choice in [None, Some(Carrier::Labels)] {
                    let mut server = Server::new(keeps, &node);
                    server.settle(Some(&map("new")), choice).unwrap();
                    let asked: Vec<&str> =
                        server.asked.iter().map(|asked| asked.as_deref().unwrap_or("local")).collect();
                    let turn = asked.iter().position(|asked| *asked == "new").unwrap();
                    assert!(asked.iter().take(turn).all(|asked| *asked == "old"), "{asked:?}");
                    assert!(asked.iter().skip(turn).all(|asked| *asked == "new"), "{asked:?}");
                }
            }
        }
    }

    #[test]
    fn what_is_there_is_not_written_again() {
        for (keeps, node) in [(true, sourced("m")), (false, bare())] {
            let mut server = Server::new(keeps, &node);
            server.settle(Some(&map("m")), None).unwrap();
            server.asked.clear();
            server.settle(Some(&map("m")), None).unwrap();
            assert_eq!(server.asked.len(), 0);
        }
    }

    #[test]
    fn contradictions_of_others_are_removed() {
        let mut both = sourced("m");
        both["metadata"]["labels"] = labelled("other")["metadata"]["labels"].clone();
        let mut server = Server::new(true, &both);
        server.settle(Some(&map("m")), None).unwrap();
        assert!(labels_of(&server.row()).is_empty());
        let mut server = Server::new(true, &both);
        server.settle(None, None).unwrap();
        assert_eq!((server.asked.len(), server.row().carrier), (1, None), "a reset is one write");
        let mut server = Server::new(true, &both);
        server.settle(Some(&map("m")), Some(Carrier::Labels)).unwrap();
        assert_eq!(server.row().carrier, Some(Carrier::Labels));
    }

    #[test]
    fn what_cannot_be_is_said() {
        let mut server = Server::new(false, &bare());
        let why = server.settle(Some(&map("m")), Some(Carrier::Native)).unwrap_err();
        assert!(why.contains("does not keep spec.configSource"), "{why}");
        let why = server.settle(Some(&map(&"x".repeat(64))), None).unwrap_err();
        assert!(why.contains("64 characters") && why.contains("shorter name"), "{why}");
        let mut server = Server::new(true, &bare());
        assert_eq!(server.settle(Some(&map(&"x".repeat(64))), None), Ok(Some(true)), "a source holds 253");
    }

    #[test]
    fn every_write_holds_for_the_node_that_was_read() {
        let row = NodeRow::of(&bare(), "ns");
        let Step::Write(patch) = next(&row, Some(&map("m")), None, None) else { panic!("no write") };
        assert_eq!(patch.pointer("/metadata/resourceVersion"), Some(&json!("5")));
    }

    fn version(name: &str, version: &str) -> Source {
        Source { reference: map(name), resource_version: version.into(), uid: "u".into() }
    }

    #[test]
    fn the_way_back() {
        let of = |node: &Value, assigned: Option<Source>, good: Option<Source>| {
            let row = NodeRow {
                assigned: assigned.clone(),
                active: assigned,
                last_known_good: good,
                ..NodeRow::of(node, "ns")
            };
            way_back(&row).map(|back| back.map(|back| back.reference.name.clone()))
        };
        let (new, old) = (version("new", "2"), version("old", "1"));
        assert_eq!(of(&sourced("new"), Some(new.clone()), Some(old.clone())), Ok(Some("old".into())));
        assert_eq!(of(&sourced("new"), Some(new.clone()), None), Ok(None), "to its own files");
        assert!(of(&sourced("new"), Some(new.clone()), Some(new)).is_err(), "there is nothing to leave");
        assert_eq!(of(&sourced("new"), Some(old.clone()), Some(old)), Ok(Some("old".into())), "not taken up yet");
        assert!(of(&bare(), None, None).is_err());
        let back = version("old", "1");
        assert_eq!(is_other_version(&back, "u", "1"), None);
        assert!(is_other_version(&back, "u", "2").unwrap().contains("kubelet-supervisor rollback"));
    }

    #[test]
    fn a_wish_is_always_a_new_one() {
        let source = version("m", "7");
        assert_eq!(wish(&source, None), "u/7");
        assert_eq!(wish(&source, Some("u/7")), "7");
        assert_eq!(wish(&source, Some("7")), "u/7");
        assert_eq!(wish(&source, Some("u/6")), "u/7");
    }
}
