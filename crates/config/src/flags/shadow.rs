//! What of a payload a command line overrides.

use serde_json::Value;

use super::KubeletArgs;
use super::table;
use crate::{hazard, schema};

/// A payload field that a command-line flag overrides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shadow {
    /// Dotted field path, as in `authentication.anonymous.enabled`.
    pub field: String,
    /// The flag's name without dashes.
    pub flag: &'static str,
}

impl KubeletArgs {
    /// The fields of `payload` that a flag on this command line overrides with something else.
    #[must_use]
    pub(crate) fn shadowed(&self, payload: &Value) -> Vec<Shadow> {
        let stands = |field: &str| field.split('.').try_fold(payload, |at, name| at.get(name)).is_some();
        let mut shadows: Vec<Shadow> = table::FIELDS
            .iter()
            .filter(|(flag, field, _)| self.has(flag) && stands(field))
            .map(|(flag, field, _)| Shadow { field: (*field).to_owned(), flag })
            .collect();
        // Gates merge one by one, and here too the flag wins.
        let gates = self.flags.iter().filter(|flag| flag.name == "feature-gates");
        let names = gates.flat_map(|flag| flag.value.iter().flat_map(|value| value.split(',')));
        for name in names.filter_map(|pair| pair.split('=').next()) {
            let field = format!("featureGates.{}", name.trim());
            if stands(&field) {
                shadows.push(Shadow { field, flag: "feature-gates" });
            }
        }
        // By what they mean: `60s` is `1m0s`, and 110 the default of maxPods.
        let changed = hazard::diff(payload, &self.overlay(payload));
        shadows.retain(|shadow| changed.iter().any(|change| schema::overlap(&change.field, &shadow.field)));
        shadows
    }
}
