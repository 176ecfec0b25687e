//! A rollout as ConfigMaps: a small one that is written often, and the nodes, which are written
//! once, in as many as their names need.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::member::Member;
use super::{LABEL, NODES_LABEL, Record};
use crate::fleet::assign::WrittenAssignment;
use kubelet_config::assignment::is_object_name;
use kubelet_config::reported::{self, bounded};

/// Key of the record.
const RECORD: &str = "rollout";
/// Key of the nodes: `NAME NUMBER` a line, the number that of what it was assigned before.
const NODES: &str = "nodes";
/// Key of the different assignments, a JSON list.
const BEFORE: &str = "before";

/// Bytes of nodes in one ConfigMap. A ConfigMap may have 1 MiB; names have 253 bytes at the most
/// and 40 on clouds, where one such part holds 6,000 nodes.
const PART: usize = 256 * 1024;
/// Bytes of different assignments in one ConfigMap. One has 700 bytes at the most.
const PART_BEFORE: usize = 256 * 1024;

/// Bytes of the text on where a rollout is: what a node said, and names of nodes.
const MAX_WHY: usize = 8 * 1024;

/// The ConfigMap's name of a rollout.
pub(crate) fn map_name(name: &str) -> String {
    format!("rollout-{name}")
}

/// The ConfigMap with part of its nodes. `second`: see [`Record::second`].
pub(crate) fn part_name(name: &str, second: bool, part: usize) -> String {
    let set = if second { "nodes-again" } else { "nodes" };
    format!("rollout-{name}-{set}-{part}")
}

/// The record as a ConfigMap. `version`: the resourceVersion it must still have.
pub(crate) fn encode(name: &str, record: &Record, version: Option<&str>) -> Value {
    let mut map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": map_name(name), "labels": {LABEL: name}},
        "data": {RECORD: json!(record).to_string()},
    });
    if let (Some(version), Some(metadata)) = (version, map.get_mut("metadata").and_then(Value::as_object_mut)) {
        metadata.insert("resourceVersion".to_owned(), json!(version));
    }
    map
}

/// Name, record and resourceVersion.
///
/// # Errors
/// What is not as we write it.
pub(crate) fn decode(map: &Value) -> Result<(String, Record, String), String> {
    let text = |pointer: &str| map.pointer(pointer).and_then(Value::as_str);
    let object = text("/metadata/name").unwrap_or_default();
    let labels = map.pointer("/metadata/labels");
    let name = labels.and_then(|labels| labels.get(LABEL)).and_then(Value::as_str);
    let name = name.ok_or_else(|| format!("ConfigMap {object} has no label {LABEL}: it is no rollout's"))?;
    let record = map.pointer("/data").and_then(|data| data.get(RECORD)).and_then(Value::as_str).unwrap_or_default();
    let mut record: Record = serde_json::from_str(record).map_err(|error| {
        format!("ConfigMap {object}, key {RECORD}: {error}; it is not of this version, or somebody edited it")
    })?;
    bound(&mut record);
    Ok((name.to_owned(), record, text("/metadata/resourceVersion").unwrap_or_default().to_owned()))
}

/// What nodes say is short where it is read. Former versions wrote it down as it was, and a record that is too large for a
/// ConfigMap cannot be written any more.
fn bound(record: &mut Record) {
    record.why = bounded(&record.why, MAX_WHY);
    record.bad.iter_mut().for_each(|bad| bad.why = reported::text(&bad.why));
    record.cleared.iter_mut().for_each(|cleared| cleared.why = reported::text(&cleared.why));
    if let Some(former) = &mut record.replaces {
        bound(former);
    }
}

#[derive(Serialize, Deserialize)]
struct Part {
    before: Vec<WrittenAssignment>,
    nodes: String,
}

/// The nodes as ConfigMaps, in order.
pub(crate) fn encode_nodes(name: &str, second: bool, members: &[Member]) -> Vec<Value> {
    let mut parts = Vec::new();
    let mut numbers: BTreeMap<&WrittenAssignment, usize> = BTreeMap::new();
    let (mut part, mut bytes) = (Part { before: Vec::new(), nodes: String::new() }, 0);
    for member in members {
        if part.nodes.len() + member.name.len() > PART || bytes > PART_BEFORE {
            parts.push(std::mem::replace(&mut part, Part { before: Vec::new(), nodes: String::new() }));
            numbers.clear();
            bytes = 0;
        }
        let number = *numbers.entry(&member.before).or_insert_with(|| {
            bytes += json!(member.before).to_string().len();
            part.before.push(member.before.clone());
            part.before.len() - 1
        });
        part.nodes.push_str(&format_line(&member.name, number));
    }
    parts.push(part);
    let encode = |(number, part): (usize, Part)| {
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": part_name(name, second, number), "labels": {NODES_LABEL: name}},
            "data": {NODES: part.nodes, BEFORE: json!(part.before).to_string()},
        })
    };
    parts.into_iter().enumerate().map(encode).collect()
}

fn format_line(name: &str, number: usize) -> String {
    format!("{name} {number}\n")
}

/// The nodes of one ConfigMap.
///
/// # Errors
/// What is not as we write it.
pub(crate) fn decode_nodes(map: &Value) -> Result<Vec<Member>, String> {
    let object = map.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let odd = |key: &str| format!("ConfigMap {object}, key {key}: it is not of this version, or somebody edited it");
    let data = |key: &str| map.pointer("/data").and_then(|data| data.get(key)).and_then(Value::as_str);
    let before: Vec<WrittenAssignment> =
        data(BEFORE).and_then(|text| serde_json::from_str(text).ok()).ok_or_else(|| odd(BEFORE))?;
    let member = |line: &str| {
        let (name, number) = line.split_once(' ').filter(|(name, _)| is_object_name(name))?;
        Some(Member { name: name.to_owned(), before: before.get(number.parse::<usize>().ok()?)?.clone() })
    };
    let lines = data(NODES).ok_or_else(|| odd(NODES))?.lines();
    lines.map(|line| member(line).ok_or_else(|| odd(NODES))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(count: usize, length: usize, distinct: usize) -> Vec<Member> {
        let labels = |n: usize| BTreeMap::from([("name".to_owned(), format!("pool-{}", n % distinct))]);
        let name = |n: usize| format!("{n:05}{}", "x".repeat(length - 5));
        (0..count)
            .map(|n| Member { name: name(n), before: WrittenAssignment { native: None, labels: labels(n) } })
            .collect()
    }

    #[test]
    fn nodes_come_back_in_order_and_no_part_is_too_big() {
        for (count, length, distinct, parts) in [(0, 9, 1, 1), (5000, 40, 3, 1), (5000, 253, 3, 5), (5000, 63, 5000, 2)]
        {
            let members = members(count, length, distinct);
            let maps = encode_nodes("r", false, &members);
            assert_eq!(maps.len(), parts, "{count} nodes of {length} bytes");
            assert!(maps.iter().all(|map| map.to_string().len() < 900_000));
            let read: Vec<Member> = maps.iter().flat_map(|map| decode_nodes(map).unwrap()).collect();
            assert_eq!(read, members);
        }
    }

    #[test]
    fn a_record_of_a_former_version_is_read() {
        let record = json!({
            "target": {"namespace": "n", "name": "m", "kubeletConfigKey": "kubelet", "uid": "u", "resourceVersion": "1",
                "immutable": true},
            "selector": "a=b", "nodes": 1, "parts": 1, "namespace": "n", "phase": "Running", "wave": 0,
            "options": {"canaries": 1, "maxUnavailable": 1, "waitFor": "proven", "pauseAfterCanaries": false,
                "onFailure": "stop", "timeoutSeconds": 60},
            "bad": [{"node": "n1", "why": "no"}],
        });
        let map = json!({"metadata": {"name": "rollout-r", "labels": {LABEL: "r"}, "resourceVersion": "7"},
            "data": {"rollout": record.to_string()}});
        let (_, record, _) = decode(&map).unwrap();
        assert_eq!((record.options.drain, record.bad.len(), record.withdrawn.len()), (None, 1, 0));
    }

    #[test]
    fn names_in_a_record_stay() {
        let record = json!({
            "target": {"namespace": "n", "name": "m", "kubeletConfigKey": "kubelet", "uid": "u", "resourceVersion": "1",
                "immutable": true},
            "selector": "a=b", "nodes": 1, "parts": 1, "namespace": "n", "phase": "Running", "wave": 0,
            "options": {"canaries": 1, "maxUnavailable": 1, "waitFor": "proven", "pauseAfterCanaries": false,
                "onFailure": "stop", "timeoutSeconds": 60, "drain": "careful"},
            "why": "", "bad": [{"node": "n1", "why": "no", "from": "r2"}],
            "lifted": [{"node": "n2", "why": "no", "how": "--despite"}], "despite": ["n2"], "withdrawn": ["n3"],
            "undone": true, "behind": 2, "holder": {"id": "x", "beat": 3}, "started": "t",
        });
        let read: Record = serde_json::from_value(record.clone()).unwrap();
        assert_eq!(json!(read), record);
    }

    #[test]
    fn what_somebody_edited_is_reported() {
        let mut map = encode_nodes("r", false, &members(2, 9, 1)).remove(0);
        map["data"]["nodes"] = json!("n1 7\n");
        assert!(decode_nodes(&map).unwrap_err().contains("rollout-r-nodes-0, key nodes"));
        assert!(decode(&json!({"metadata": {"name": "m"}})).unwrap_err().contains("it is no rollout's"));
    }
}
