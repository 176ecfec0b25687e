//! How a kubelet lays drop-ins over its configuration: by other rules in 1.28, from 1.29 to 1.31, and later
//! (`mergeKubeletConfigurations`, cmd/kubelet/app/server.go, v1.28 to v1.36).
//!
//! From 1.29 on drop-ins are merged as they are written, key by key. Go's encoding/json reads the outcome, keys in byte order: it
//! takes names of fields in any case, the later one wins, and structs and maps are read into what is there.

use serde_json::{Map, Value};

use super::{Origin, View};
use crate::hazard::defaults;
use crate::hazard::table::{self, Unset};
use crate::merge::merge;
use crate::own_files::DropInMerge;
use crate::schema;
use crate::types::Type;

/// What a name in the struct at this path is read as; `None`: it is read over.
type NameOf = for<'a> fn(&str, &'a str) -> Option<&'a str>;

impl View {
    pub(super) fn lay_drop_ins(&mut self, drop_ins: &[(Origin, Value)], minor: Option<u64>) {
        match DropInMerge::of(minor) {
            DropInMerge::Defaulted => {
                for (origin, drop_in) in drop_ins {
                    let given = schema::known_part(drop_in, minor);
                    self.merge(&Origin::Default, &without_zeros("", &defaults::defaulted(&given, minor)));
                    self.merge(origin, &without_zeros("", &given));
                }
            }
            DropInMerge::Internal => {
                let mut over = Self::default();
                over.merge_all(drop_ins);
                over.fold(name_of_internal);
                merge(&mut self.value, &schema::known_part(&over.value, minor));
                over.origins.keys().for_each(|path| self.forget(path));
                self.origins.extend(over.origins);
            }
            DropInMerge::Versioned => {
                self.fold(exact_name);
                self.leave_out_empty();
                self.merge_all(drop_ins);
                self.fold(|parent, name| Some(in_any_case(parent, name)));
                self.value = schema::known_part(&self.value, minor);
                self.fill_merged(minor);
            }
        }
    }

    /// As they are spelt.
    fn merge_all(&mut self, drop_ins: &[(Origin, Value)]) {
        for (origin, drop_in) in drop_ins {
            self.merge(origin, drop_in);
        }
    }

    /// What is written to merge drop-ins over it lacks what is empty.
    fn leave_out_empty(&mut self) {
        let is_left_out = |field: &str, value: &Value| {
            let hazard = table::find(field);
            match value {
                Value::Array(items) => items.is_empty(),
                // A pointer in Go is there.
                Value::Object(fields) => {
                    fields.is_empty() && !hazard.is_some_and(|hazard| matches!(hazard.of, Type::Optional(_)))
                }
                _ => hazard.is_some_and(|hazard| {
                    hazard.unset == Unset::Zero && hazard.of != Type::Duration && defaults::is_go_zero(hazard.of, value)
                }),
            }
        };
        let Some(fields) = self.value.as_object_mut() else { return };
        fields.retain(|field, value| !is_left_out(field, value));
        self.origins.retain(|path, _| path.len() != 1 || path.first().is_some_and(|field| fields.contains_key(field)));
    }

    /// Hard eviction has its defaults from the reader of the file alone (`loadConfigFile`): what drop-ins take out is gone.
    fn fill_merged(&mut self, minor: Option<u64>) {
        let mut filled = defaults::defaulted(&self.value, minor);
        if let Some(fields) = filled.as_object_mut() {
            let hard = self.value.get("evictionHard").cloned().unwrap_or_else(|| Value::Object(Map::new()));
            fields.insert("evictionHard".to_owned(), hard);
        }
        self.fill(&filled);
    }

    /// Reads names of fields in any case.
    fn fold(&mut self, name_of: NameOf) {
        self.value = folded("", &self.value, name_of);
        let origins = std::mem::take(&mut self.origins);
        let read = origins.into_iter().filter_map(|(path, origin)| Some((folded_path(&path, name_of)?, origin)));
        self.origins.extend(read);
    }
}

fn folded(parent: &str, value: &Value, name_of: NameOf) -> Value {
    match value {
        Value::Array(items) => items.iter().map(|item| folded(parent, item, name_of)).collect(),
        Value::Object(fields) if schema::has_fields(parent) => {
            let mut all = Map::new();
            for (name, value) in fields {
                let Some(name) = name_of(parent, name) else { continue };
                merge(all.entry(name).or_insert(Value::Null), &folded(&schema::join(parent, name), value, name_of));
            }
            Value::Object(all)
        }
        value => value.clone(),
    }
}

fn folded_path(path: &[String], name_of: NameOf) -> Option<Vec<String>> {
    let (mut parent, mut folded) = (String::new(), Vec::new());
    for name in path {
        let name = if schema::has_fields(&parent) { name_of(&parent, name)? } else { name };
        parent = schema::join(&parent, name);
        folded.push(name.to_owned());
    }
    Some(folded)
}

/// What a file says: a name in another case is none there.
fn exact_name<'a>(parent: &str, name: &'a str) -> Option<&'a str> {
    (in_any_case(parent, name) == name).then_some(name)
}

fn in_any_case<'a>(parent: &str, name: &'a str) -> &'a str {
    schema::field_in_any_case(parent, name).unwrap_or(name)
}

/// The names of Go's own type, `KubeletConfiguration` of pkg/kubelet/apis/config/types.go, v1.29 to v1.31. Its own fields begin
/// with a capital letter, and so come before all that is spelt with a small one.
fn name_of_internal<'a>(parent: &str, name: &'a str) -> Option<&'a str> {
    match name.to_ascii_lowercase().as_str() {
        "resolverconfig" if parent.is_empty() => Some("resolvConf"),
        "resolvconf" if parent.is_empty() => None,
        _ => Some(in_any_case(parent, name)),
    }
}

/// A configuration without what is zero in Go: it is laid over nothing (mergo's `WithOverride`). Entries of maps are.
fn without_zeros(parent: &str, value: &Value) -> Value {
    let Value::Object(fields) = value else { return value.clone() };
    let kept = fields.iter().filter_map(|(name, value)| {
        let path = schema::join(parent, name);
        let value = if schema::has_fields(&path) { without_zeros(&path, value) } else { value.clone() };
        let is_zero = schema::type_of(&path).is_some_and(|of| defaults::is_go_zero(of, &value));
        (!is_zero).then(|| (name.clone(), value))
    });
    Value::Object(kept.collect())
}
