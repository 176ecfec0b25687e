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
        NodeRow::from_node(&self.node, "ns")
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
        self.asked.push(self.row().desired.map(|desired| desired.name));
    }

    fn now(&self) -> WrittenAssignment {
        WrittenAssignment::from_row(&self.row())
    }

    /// Until it is done; whether the server was seen to keep the field.
    fn settle(&mut self, target: Option<&ConfigMapRef>, choice: Option<Carrier>) -> Result<Option<bool>, String> {
        self.take(None, |now, keeps| next_step(now, "5", target, choice, keeps))
    }

    fn take(
        &mut self,
        mut keeps: Option<bool>,
        step: impl Fn(&WrittenAssignment, Option<bool>) -> Step,
    ) -> Result<Option<bool>, String> {
        for _ in 0..4 {
            match step(&self.now(), keeps) {
                Step::Done => return Ok(keeps),
                Step::Refuse(why) => return Err(why),
                Step::Write(patch) => {
                    self.patch(&patch);
                    keeps = source_kept(&patch, &self.now()).or(keeps);
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
        assert_eq!((server.row().carrier, server.now().labels.len()), (Some(Carrier::Native), 0));
        assert_eq!(server.row().labels["pool"], "a", "what is not ours stays");

        let mut server = Server::new(false, &node);
        assert_eq!(server.settle(Some(&map("new")), None), Ok(Some(false)));
        assert_eq!(server.row().carrier, Some(Carrier::Labels));
        assert_eq!(server.now().labels, labels(&map("new")), "no key of the old one is left");
    }
}

#[test]
fn at_no_moment_a_third_configuration_is_asked_for() {
    for keeps in [true, false] {
        for node in [labelled("old"), sourced("old")] {
            for choice in [None, Some(Carrier::Labels)] {
                let mut server = Server::new(keeps, &node);
                server.settle(Some(&map("new")), choice).unwrap();
                let asked: Vec<&str> = server.asked.iter().map(|asked| asked.as_deref().unwrap_or("local")).collect();
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
    assert!(server.now().labels.is_empty());
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
    let now = WrittenAssignment::from_row(&NodeRow::from_node(&bare(), "ns"));
    let Step::Write(patch) = next_step(&now, "5", Some(&map("m")), None, None) else { panic!("no write") };
    assert_eq!(patch.pointer("/metadata/resourceVersion"), Some(&json!("5")));
}

/// All that may be there.
fn all() -> [Value; 5] {
    let mut sparse = bare();
    sparse["metadata"]["labels"][format!("{LABELS}name")] = json!("old");
    let mut both = sourced("old");
    both["metadata"]["labels"] = labelled("shadowed")["metadata"]["labels"].clone();
    [bare(), sparse, labelled("old"), sourced("old"), both]
}

#[test]
fn what_is_known_saves_writes() {
    for node in all() {
        for (keeps, known, writes) in
            [(true, None, 2), (false, None, 2), (true, Some(true), 1), (false, Some(false), 1)]
        {
            let mut server = Server::new(keeps, &node);
            let target = map("new");
            server.take(known, |now, keeps| next_step(now, "5", Some(&target), None, keeps)).unwrap();
            assert!(server.asked.len() <= writes, "keeps: {keeps}, known: {known:?}, {node:#}");
        }
    }
    let mut server = Server::new(false, &bare());
    server.settle(Some(&map("new")), None).unwrap();
    assert_eq!(server.asked.len(), 1, "today's servers need not be asked first");
}

/// Wherever a client dies, the two carriers say the same, or one of them nothing; but for what others left behind.
#[test]
fn no_write_leaves_a_contradiction() {
    for keeps in [true, false] {
        for node in [bare(), labelled("old"), sourced("old")] {
            let mut server = Server::new(keeps, &node);
            let (target, contradictions) = (map("new"), std::cell::Cell::new(0));
            let step = |now: &WrittenAssignment, keeps| {
                let by_label = now.labels.get("name");
                let is_one = by_label.is_none() || now.native.as_ref().is_none_or(|map| Some(&map.name) == by_label);
                contradictions.set(contradictions.get() + usize::from(!is_one));
                next_step(now, "5", Some(&target), None, keeps)
            };
            server.take(None, step).unwrap();
            assert_eq!(contradictions.get(), 0, "keeps: {keeps}, {node:#}");
        }
    }
}

fn version(name: &str, version: &str) -> Source {
    Source { reference: map(name), resource_version: version.into(), uid: "u".into() }
}

#[test]
fn a_wish_is_always_a_new_one() {
    let source = version("m", "7");
    assert_eq!(version_value(&source, None), "u/7");
    assert_eq!(version_value(&source, Some("u/7")), "7");
    assert_eq!(version_value(&source, Some("7")), "u/7");
    assert_eq!(version_value(&source, Some("u/6")), "u/7");
}
