//! The fields in which two configurations differ in effect, and which of them must not change on a live node.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::{Map, Value};

use super::acknowledge::Acknowledged;
use super::defaults;
use super::effective::effective;
use super::message::{bounded, cut, top};
use super::table::{self, Asks, Hazard, HazardClass, Unset};
use crate::schema;
use crate::types::Type;

/// Fields whose values are nobody's business: headers with tokens, and a URL that may have a password or a signature in it. No
/// other field of v1.20 to v1.36 is meant for a credential; all others name files.
const SECRETS: [&str; 2] = ["staticPodURL", "staticPodURLHeader"];

/// A field whose effective value differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Dotted path, as in `featureGates.NodeSwap`.
    pub field: String,
    /// The class of the top-level field.
    pub class: HazardClass,
    /// The value before; null if there is none.
    pub old: Value,
    /// The value after.
    pub new: Value,
    /// What an operator has to do, or to know; may be empty.
    pub needs: &'static str,
}

impl Change {
    /// Of this field, from one value to the other.
    #[must_use]
    pub fn new(field: String, old: Value, new: Value) -> Self {
        let hazard = table::find(top(&field));
        let class = hazard.map_or(HazardClass::Unknown, |hazard| hazard.class);
        Self { class, old, new, needs: hazard.map_or("", |hazard| hazard.needs), field }
    }

    /// What it asks for on the node.
    #[must_use]
    pub fn asks(&self) -> Asks {
        table::find(self.top()).map_or(Asks::Restart, |hazard| hazard.asks)
    }

    /// True if its values are nobody's business.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        is_secret(&self.field)
    }

    /// The top-level field it is in.
    #[must_use]
    pub fn top(&self) -> &str {
        top(&self.field)
    }
}

/// `cgroupDriver: "cgroupfs" → "systemd"`, never a secret, never long.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = cut(&self.field);
        if self.is_secret() {
            return write!(f, "{field}: (hidden)");
        }
        write!(f, "{field}: {} → {}", shown(&self.old), shown(&self.new))
    }
}

/// True for a field, or what is below one, whose values hold credentials.
#[must_use]
pub fn is_secret(path: &str) -> bool {
    SECRETS.contains(&top(path))
}

fn shown(value: &Value) -> String {
    if value.is_null() { "unset".to_owned() } else { cut(&value.to_string()) }
}

/// The fields in which two kubelets go by something else ([`crate::effective::value`] of each), by name. Nothing can be said if
/// one of them is not known (not an object).
#[must_use]
pub fn diff(old: &Value, new: &Value) -> Vec<Change> {
    changes(old, new, is_untold)
}

/// The same for a policy: where nobody knows the kubelet's version, what may be a change is one.
#[must_use]
pub(crate) fn possible_diff(old: &Value, new: &Value) -> Vec<Change> {
    changes(old, new, |_, _, _| false)
}

/// A field of both sides that is left out.
type LeftOut = fn(&Hazard, Option<&Value>, Option<&Value>) -> bool;

fn changes(old: &Value, new: &Value, is_left_out: LeftOut) -> Vec<Change> {
    let (Value::Object(before), Value::Object(after)) = (old, new) else { return Vec::new() };
    let fields: BTreeSet<&str> = before.keys().chain(after.keys()).map(String::as_str).collect();
    let mut changes = Vec::new();
    for field in fields.into_iter().filter(|field| !matches!(*field, "apiVersion" | "kind")) {
        let first = changes.len();
        let (old, new) = (effective(old, field), effective(new, field));
        let Some(hazard) = table::find(field) else {
            compare(field, Type::Text, old, new, &mut changes);
            // `maxPods.x` at the top is no part of maxPods.
            let unknown = |change: &mut Change| (change.class, change.needs) = (HazardClass::Unknown, "");
            changes.iter_mut().skip(first).for_each(unknown);
            continue;
        };
        if !is_left_out(hazard, before.get(field), after.get(field)) {
            compare(field, hazard.of, old, new, &mut changes);
        }
    }
    changes
}

/// True if one of them is not set, and the other is the default of some version. Where the version is known such a field is
/// never left out, so here it was not known of one of them.
fn is_untold(hazard: &Hazard, old: Option<&Value>, new: Option<&Value>) -> bool {
    match (old, new) {
        (None, Some(given)) | (Some(given), None) => defaults::is_default_somewhere(hazard.field, given),
        _ => false,
    }
}

fn compare(field: &str, of: Type, old: Value, new: Value, changes: &mut Vec<Change>) {
    let is_zero = |value: &Value| value.is_null() || zero_is_none(field) && of.is_zero(value);
    if of.is_same(&old, &new) || is_zero(&old) && is_zero(&new) {
        return;
    }
    // Entry by entry; an object against nothing has all of its entries new.
    let none = Map::new();
    let (before, after) = match (&old, &new) {
        _ if is_secret(field) => (None, None),
        (Value::Object(before), Value::Object(after)) => (Some(before), Some(after)),
        (Value::Object(before), Value::Null) => (Some(before), Some(&none)),
        (Value::Null, Value::Object(after)) => (Some(&none), Some(after)),
        _ => (None, None),
    };
    let both = before.zip(after).filter(|(before, after)| !before.is_empty() || !after.is_empty());
    let Some((before, after)) = both else { return changes.push(Change::new(field.to_owned(), old, new)) };
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for name in names {
        let at = |map: &Map<String, Value>| map.get(name).cloned().unwrap_or_default();
        compare(&format!("{field}.{name}"), of.entry(name), at(before), at(after), changes);
    }
}

/// True where the kubelet makes no difference between a zero value and none: of a field without a default, and within structs.
fn zero_is_none(field: &str) -> bool {
    table::find(field).map_or_else(|| schema::is_in_struct(field), |hazard| hazard.unset == Unset::Zero)
}

/// Why these changes must not be made yet, unless they are acknowledged.
#[must_use]
pub fn refused(changes: &[Change], acknowledged: &Acknowledged<'_>) -> Option<String> {
    let open: Vec<&Change> = open(changes, acknowledged).collect();
    if open.is_empty() {
        return None;
    }
    let known: BTreeSet<&str> = changes.iter().map(Change::top).collect();
    let fields: BTreeSet<&str> = open.iter().map(|change| change.top()).collect();
    let classes: BTreeSet<&str> = open.iter().map(|change| change.class.label()).collect();
    let advice = acknowledged.advice(&fields, &classes, &|word| known.contains(word));
    let items = open.iter().map(|change| format!("{change}: {}", change.needs));
    Some(bounded(items, &format!("; if that is taken care of, {advice}")))
}

/// The classes of hazards for which [`refused`] refuses.
#[must_use]
pub fn refused_classes(changes: &[Change], acknowledged: &Acknowledged<'_>) -> BTreeSet<HazardClass> {
    open(changes, acknowledged).map(|change| change.class).collect()
}

/// What nobody acknowledged.
fn open<'a>(changes: &'a [Change], acknowledged: &Acknowledged<'_>) -> impl Iterator<Item = &'a Change> {
    let is_open = |change: &&Change| change.class.is_refused() && !acknowledged.covers(&change.field, change.class);
    changes.iter().filter(is_open)
}
