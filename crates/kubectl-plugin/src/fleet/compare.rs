//! Two configurations side by side, and what going from one to the other would ask of a node.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::field_paths::{at, clean, paths, settle_paths};
use kubelet_config::effective::{self, SERVING_CERTIFICATE, Sources};
use kubelet_config::flags::{FlagOverrides, KubeletArgs};
use kubelet_config::hazard::defaults::depends_on_node;
use kubelet_config::hazard::{self, Change, Impact};
use kubelet_config::merge::merge;
use kubelet_config::pods::PodInventory;
use kubelet_config::readmission::{Kubelet, Supplies};
use kubelet_config::schema::overlap;
use kubelet_config::source::Merge;

/// A configuration, and where it is from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Side {
    /// What stands there, flags that are fields laid over it.
    pub(crate) value: Value,
    /// Flag overrides, if they are known.
    pub(crate) flags: Option<FlagOverrides>,
    pub(crate) kind: Kind,
}

/// How a configuration is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A kubelet's own word, complete; with its minor version, if that is known.
    Running(Option<u64>),
    /// A ConfigMap's or a file's.
    Written(Merge),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Comparison {
    /// The fields that differ.
    pub(crate) changes: Vec<Change>,
    /// What pods would feel.
    pub(crate) impacts: Vec<Impact>,
    /// Fields that only one side sets and whose default depends on the node: nobody can say.
    pub(crate) open: Vec<String>,
    /// What else to know.
    pub(crate) notes: Vec<String>,
}

/// What is known of the node beside its configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeFacts {
    /// Its pods, if it is `from`.
    pub(crate) inventory: Option<PodInventory>,
    /// The feature gates that the ConfigMap it runs sets; none at all if it runs its own configuration, nothing if
    /// nobody knows. All others are from its flags and files, and stay whatever ConfigMap comes.
    pub(crate) gates: Option<BTreeSet<String>>,
    /// The KubeletConfiguration of the ConfigMap it runs, if it runs one and that is known.
    pub(crate) payload: Option<Value>,
    /// The flag overrides of the ConfigMap it runs, if they are known.
    pub(crate) flags: Option<FlagOverrides>,
    /// Fields that its flags or drop-ins hold, whatever a ConfigMap says.
    pub(crate) held: BTreeSet<String>,
}

impl NodeFacts {
    /// True if this field, or a part of it, is held.
    pub(crate) fn holds(&self, field: &str) -> bool {
        self.held.iter().any(|held| overlap(held, field))
    }
}

pub(crate) fn compare(from: &Side, to: &Side, facts: &NodeFacts) -> Comparison {
    let mut notes = Vec::new();
    let (old, new) = match (from.kind, to.kind) {
        (Kind::Running(_), Kind::Written(_)) => (from.value.clone(), on(from, to, facts)),
        (Kind::Written(_), Kind::Running(_)) => (on(to, from, facts), to.value.clone()),
        _ => (from.value.clone(), to.value.clone()),
    };
    let minor = |kind: Kind| if let Kind::Running(minor) = kind { minor } else { None };
    let any = minor(from.kind).or(minor(to.kind));
    let (mut old, mut new) = (clean(&old), clean(&new));
    let is_overlay = |side: &Side| side.kind == Kind::Written(Merge::Overlay);
    let is_running = |side: &Side| matches!(side.kind, Kind::Running(_));
    let both_overlays = is_overlay(from) && is_overlay(to);
    if both_overlays {
        // What an overlay does not set is the node's own, and no default.
        notes.push(
            "two overlays: a field that one of them leaves out is then the node's own, whatever that is".to_owned(),
        );
    } else {
        if (is_overlay(from) || is_overlay(to)) && !is_running(from) && !is_running(to) {
            notes.push(
                "one of them is an overlay, laid over each node's local file: compare it with a NODE to see what comes out".to_owned(),
            );
        }
        let goes_by = |side: &Side, other: &Side, value: &Value| {
            let args = KubeletArgs::default().with(side.flags.as_ref().unwrap_or(&FlagOverrides::default()));
            match side.kind {
                Kind::Running(minor) => effective::reported(value, minor.or(any)),
                Kind::Written(Merge::Overlay) if is_running(other) => {
                    effective::laid_over(&clean(&other.value), value, &args, any)
                }
                Kind::Written(_) => effective::value(&effective::layers(&Sources::of(value, &[], &args)), any),
            }
        };
        (old, new) = (goes_by(from, to, &old), goes_by(to, from, &new));
    }
    if !names_certificate(from) && !names_certificate(to) {
        for value in [&mut old, &mut new] {
            effective::drop_certificate(value);
        }
    }
    let mut changes = hazard::diff(&old, &new);
    if both_overlays {
        changes.extend(left_out(&old, &new, &changes));
        changes.sort_by(|one, other| one.field.cmp(&other.field));
    }
    let flags = |side: &Side| side.flags.clone().or_else(|| facts.flags.clone());
    if let (Some(old), Some(new)) = (flags(from), flags(to)) {
        changes.extend(flag_changes(&old, &new));
        changes.sort_by(|one, other| one.field.cmp(&other.field));
    }
    if let (Kind::Running(_), Kind::Written(Merge::Overlay), Some(payload)) = (from.kind, to.kind, &facts.payload) {
        let back: Vec<Change> =
            given_back(&clean(payload), from, to).into_iter().filter(|change| !facts.holds(&change.field)).collect();
        if !back.is_empty() {
            let fields: Vec<&str> = back.iter().map(|change| change.field.as_str()).collect();
            notes.push(format!(
                "{}: set by the ConfigMap that the node runs and not by the overlay, so they go back to the node's own \
                 file, which cannot be read from here",
                fields.join(", ")
            ));
            changes.extend(back);
            changes.sort_by(|one, other| one.field.cmp(&other.field));
        }
    }
    let (open, changes): (Vec<_>, Vec<_>) = changes
        .into_iter()
        .partition(|change| depends_on_node(change.top()) && (change.old.is_null() || change.new.is_null()));
    let loses_gates = changes.iter().any(|change| change.top() == "featureGates" && change.new.is_null());
    if loses_gates && facts.gates.is_none() && to.kind == Kind::Written(Merge::Replace) {
        notes.push(
            "feature gates of the node's own flags and files stay below any ConfigMap; which they are is not to be seen from here"
                .to_owned(),
        );
    }
    // Equal content is not restarted.
    let impacts = if is_running(from) && !changes.is_empty() {
        let new = with_held(&new, &changes, facts);
        // What is left of memory and disks is known on the node alone.
        // The flags of a ConfigMap, as far as they are known; the unit's own are not to be seen from here.
        let [before, after] = [from, to]
            .map(|side| flags(side).is_some_and(|flags| KubeletArgs::default().with(&flags).ignores_eviction()));
        let (minor, supplies) = (minor(from.kind), &Supplies::new());
        let old = Kubelet { config: &old, minor, supplies, ignores_eviction: before };
        let new = Kubelet { config: &new, ignores_eviction: after, ..old };
        hazard::preview(&old, &new, facts.inventory.as_ref())
    } else {
        Vec::new()
    };
    Comparison { changes, impacts, open: open.into_iter().map(|change| change.field).collect(), notes }
}

/// True if somebody set the serving certificate, and not the kubelet itself.
fn names_certificate(side: &Side) -> bool {
    let is_set = |field: &str| side.value.get(field).is_some_and(|value| !value.is_null() && value != "");
    let is_chosen = matches!(side.kind, Kind::Running(_)) && effective::chose_certificate(&side.value);
    !is_chosen && SERVING_CERTIFICATE.into_iter().any(is_set)
}

/// A payload where this runs: an overlay as it is, any other with the gates that stay.
fn on(running: &Side, payload: &Side, facts: &NodeFacts) -> Value {
    let (running, mode) = (&running.value, payload.kind);
    let payload = settle_paths(&payload.value, running);
    if mode == Kind::Written(Merge::Overlay) {
        return payload;
    }
    let mut value = Value::Object(serde_json::Map::new());
    let gates = running.get("featureGates").and_then(Value::as_object).into_iter().flatten();
    let stays = |gate: &str| facts.gates.as_ref().is_some_and(|of_map| !of_map.contains(gate));
    for (gate, on) in gates.filter(|(gate, _)| stays(gate)) {
        merge(&mut value, &json!({ "featureGates": { gate.as_str(): on } }));
    }
    merge(&mut value, &payload);
    value
}

/// The new configuration where what is held stays.
fn with_held(new: &Value, changes: &[Change], facts: &NodeFacts) -> Value {
    let mut new = new.clone();
    for change in changes.iter().filter(|change| facts.holds(&change.field)) {
        let old = match change.field.split_once('.') {
            // Entries of maps may have dots in their names; deeper structs cost no pods.
            Some((top, entry)) => json!({ top: { entry: change.old } }),
            None => json!({ change.field.as_str(): change.old }),
        };
        merge(&mut new, &old);
    }
    new
}

/// What the ConfigMap in force sets and an overlay after it does not.
fn given_back(payload: &Value, from: &Side, to: &Side) -> Vec<Change> {
    let fields: BTreeSet<String> = paths(payload).collect();
    let value = |field: &String| at(&from.value, field).filter(|value| !value.is_null()).cloned();
    let lost = fields.into_iter().filter(|field| at(&to.value, field).is_none());
    lost.filter_map(|field| value(&field).map(|old| Change::new(field, old, Value::Null))).collect()
}

/// Flag overrides that differ and are no fields.
fn flag_changes(old: &FlagOverrides, new: &FlagOverrides) -> Vec<Change> {
    let (old, new) = (old.beside_fields(), new.beside_fields());
    let value = |flags: &BTreeMap<String, Vec<String>>, name: &String| {
        flags.get(name).map_or(Value::Null, |values| values.join(",").into())
    };
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let differing = names.into_iter().filter(|name| old.get(*name) != new.get(*name));
    differing.map(|name| Change::new(name.clone(), value(&old, name), value(&new, name))).collect()
}

/// Top-level fields that only one of them has, and that are set to a default there.
fn left_out(old: &Value, new: &Value, known: &[Change]) -> Vec<Change> {
    let fields = |value: &Value| -> BTreeSet<String> {
        let fields = value.as_object().into_iter().flatten().map(|(name, _)| name.clone());
        fields.filter(|name| !matches!(name.as_str(), "apiVersion" | "kind")).collect()
    };
    let known: BTreeSet<&str> = known.iter().map(Change::top).collect();
    let only = fields(old).symmetric_difference(&fields(new)).cloned().collect::<Vec<_>>();
    let of = |value: &Value, field: &String| value.get(field).cloned().unwrap_or_default();
    let only = only.into_iter().filter(|field| !known.contains(field.as_str()));
    only.map(|field| Change::new(field.clone(), of(old, &field), of(new, &field))).collect()
}

#[cfg(test)]
mod tests {
    use kubelet_config::hazard::defaults::defaulted;

    use super::*;

    fn running(value: Value) -> Side {
        Side { value, flags: None, kind: Kind::Running(Some(20)) }
    }

    fn written(value: Value, merge: Merge) -> Side {
        Side { value, flags: Some(FlagOverrides::default()), kind: Kind::Written(merge) }
    }

    fn fields(comparison: &Comparison) -> Vec<&str> {
        comparison.changes.iter().map(|change| change.field.as_str()).collect()
    }

    /// As a v1.20.2 kubelet answers, with all of its defaults.
    fn configz() -> Value {
        let set = json!({"maxPods": 110, "eventRecordQPS": 5, "eventBurst": 10, "serializeImagePulls": true, "evictionHard": {
            "memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%", "imagefs.available": "15%"},
            "syncFrequency": "1m0s", "clusterDomain": "cluster.local", "cgroupDriver": "systemd",
            "nodeStatusReportFrequency": "5m0s", "nodeStatusUpdateFrequency": "10s",
            "authentication": {"x509": {"clientCAFile": "/v/checkpoints/u/1/ca.crt"}}});
        defaulted(&set, Some(20))
    }

    #[test]
    fn defaults_that_a_kubelet_spells_out_are_no_changes() {
        let to = written(
            json!({"clusterDomain": "cluster.local", "cgroupDriver": "systemd", "featureGates": {"DynamicKubeletConfig": true},
                "authentication": {"x509": {"clientCAFile": "ca.crt"}}}),
            Merge::Replace,
        );
        let comparison = compare(&running(configz()), &to, &NodeFacts::default());
        assert_eq!(comparison, Comparison::default());
        assert_eq!(compare(&to, &running(configz()), &NodeFacts::default()), Comparison::default());
        // What a later kubelet adds is no change either.
        let mut later = configz();
        later["evictionHard"]["imagefs.inodesFree"] = json!("5%");
        later["logging"] =
            json!({"format": "text", "flushFrequency": "5s", "options": {"json": {"infoBufferSize": "0"}}});
        later["singleProcessOOMKill"] = json!(false);
        for (field, value) in [("eventRecordQPS", 50), ("eventBurst", 100), ("kubeAPIQPS", 50), ("kubeAPIBurst", 100)] {
            later[field] = json!(value);
        }
        let later = Side { kind: Kind::Running(Some(33)), ..running(defaulted(&later, Some(33))) };
        let comparison = compare(&later, &to, &NodeFacts::default());
        assert_eq!(
            (fields(&comparison), comparison.open.as_slice()),
            (vec![], ["singleProcessOOMKill".to_owned()].as_slice())
        );
    }

    /// `/configz` leaves out what is zero by a flag: an overlay keeps it, what replaces has the default.
    #[test]
    fn what_a_flag_sets_to_zero_is_zero() {
        let mut node = configz();
        node.as_object_mut().unwrap().remove("maxPods");
        let node = running(node);
        let of = |payload: Value, merge| {
            let mut changes = compare(&node, &written(payload, merge), &NodeFacts::default()).changes;
            changes.retain(|change| ["maxPods", "podsPerCore", "syncFrequency"].contains(&change.field.as_str()));
            changes.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(of(json!({}), Merge::Replace), ["maxPods: 0 → 110"]);
        assert_eq!(of(json!({"maxPods": 7}), Merge::Replace), ["maxPods: 0 → 7"]);
        assert_eq!(of(json!({}), Merge::Overlay), [""; 0]);
        // In a file zero is not set, and null is none.
        assert_eq!(of(json!({"maxPods": 0}), Merge::Overlay), ["maxPods: 0 → 110"]);
        assert_eq!(of(json!({"maxPods": null}), Merge::Overlay), ["maxPods: 0 → 110"]);
        assert_eq!(of(json!({"syncFrequency": null, "podsPerCore": 3}), Merge::Overlay), ["podsPerCore: unset → 3"]);
        let to = Side {
            flags: Some(FlagOverrides::parse("--max-pods=0").unwrap()),
            ..written(json!({"maxPods": 0}), Merge::Overlay)
        };
        assert_eq!(compare(&node, &to, &NodeFacts::default()).changes, []);
    }

    /// It is nobody's setting, until somebody sets it.
    #[test]
    fn a_certificate_that_the_kubelet_chose_is_no_change() {
        let mut node = configz();
        (node["tlsCertFile"], node["tlsPrivateKeyFile"]) =
            (json!("/var/lib/kubelet/pki/kubelet.crt"), json!("/var/lib/kubelet/pki/kubelet.key"));
        let mut payload = configz();
        payload["authentication"]["x509"]["clientCAFile"] = json!("ca.crt");
        let diff = |from: &Side, to: &Side| compare(from, to, &NodeFacts::default()).changes.len();
        let (node, bare) = (running(node), running(configz()));
        for merge in [Merge::Replace, Merge::Overlay] {
            assert_eq!(diff(&node, &written(payload.clone(), merge)), 0);
        }
        assert_eq!((diff(&node, &bare), diff(&bare, &node)), (0, 0));
        (payload["tlsCertFile"], payload["tlsPrivateKeyFile"]) = (json!("/p/a.crt"), json!("/p/a.key"));
        let to = written(payload, Merge::Replace);
        assert_eq!((diff(&node, &to), diff(&to, &node)), (2, 2));
    }

    #[test]
    fn what_an_overlay_no_longer_sets_goes_back() {
        let payload =
            Some(json!({"kind": "x", "maxPods": 110, "syncFrequency": "1m", "clusterDomain": "cluster.local"}));
        let facts = NodeFacts { payload, held: BTreeSet::from(["clusterDomain".to_owned()]), ..NodeFacts::default() };
        let to = written(json!({"syncFrequency": "2m"}), Merge::Overlay);
        let comparison = compare(&running(configz()), &to, &facts);
        assert_eq!(fields(&comparison), ["maxPods", "syncFrequency"]);
        assert_eq!((&comparison.changes[0].old, &comparison.changes[0].new), (&json!(110), &Value::Null));
        assert!(comparison.notes[0].starts_with("maxPods: set by the ConfigMap"), "{:?}", comparison.notes);
    }

    #[test]
    fn two_overlays_have_no_defaults() {
        let overlay = |value: Value| written(value, Merge::Overlay);
        let comparison =
            compare(&overlay(json!({"maxPods": 110})), &overlay(json!({"kind": "x"})), &NodeFacts::default());
        assert_eq!(fields(&comparison), ["maxPods"]);
        assert_eq!((comparison.changes[0].old.clone(), comparison.notes.len()), (json!(110), 1));
        let same = compare(
            &overlay(json!({"syncFrequency": "60s"})),
            &overlay(json!({"syncFrequency": "1m"})),
            &NodeFacts::default(),
        );
        assert_eq!(fields(&same), Vec::<&str>::new());
    }

    #[test]
    fn flags_that_are_no_fields_differ_by_their_name() {
        let flags = |text: &str| Some(FlagOverrides::parse(text).unwrap());
        let to = Side {
            flags: flags("--node-labels=a=b\n--node-labels=c=d\n!--cgroup-driver\n--max-pods=5"),
            ..written(configz(), Merge::Replace)
        };
        assert_eq!(
            fields(&compare(&running(configz()), &to, &NodeFacts::default())),
            ["maxPods"],
            "others are not known"
        );
        let facts = NodeFacts { flags: flags("--node-labels=a=b"), ..NodeFacts::default() };
        let comparison = compare(&running(configz()), &to, &facts);
        assert_eq!(fields(&comparison), ["!--cgroup-driver", "--node-labels", "maxPods"]);
        assert_eq!(comparison.changes[1].to_string(), "--node-labels: \"a=b\" → \"a=b,c=d\"");
    }

    #[test]
    fn gates_of_flags_and_files_stay() {
        let mut node = configz();
        node["featureGates"] = json!({"A": true, "B": false});
        let to = written(configz(), Merge::Replace);
        let diff = |gates: Option<&[&str]>| {
            let gates = gates.map(|gates| gates.iter().map(|gate| (*gate).to_owned()).collect());
            compare(&running(node.clone()), &to, &NodeFacts { gates, ..NodeFacts::default() })
        };
        let unknown = diff(None);
        assert_eq!((fields(&unknown), unknown.notes.len()), (vec!["featureGates.A", "featureGates.B"], 1));
        assert_eq!(fields(&diff(Some(&[]))), Vec::<&str>::new(), "the node runs its own configuration");
        let known = diff(Some(&["B", "C"]));
        assert_eq!((fields(&known), known.notes.len()), (vec!["featureGates.B"], 0));
    }
}
