//! What a change would cost this node: hazards of its fields, pods that would be turned away, and fields of no effect.

use std::collections::{BTreeMap, BTreeSet};

use crate::machine::State;
use crate::machine::io::Effect;
use crate::machine::model::{ConfigError, Rendered};
use crate::machine::records::Version;
use kubelet_config::hazard::impact::Supply;
use kubelet_config::hazard::{self, HazardClass};
use kubelet_config::pods::PodInventory;
use kubelet_config::schema::{self, UnknownFields};
use kubelet_config::source::Source;

impl State {
    /// The way back to what was proven is always open.
    fn is_way_back(&self, rendered: &Rendered) -> bool {
        self.running().effective.is_null() || self.fallback_content() == Some(&rendered.digest)
    }

    /// What this kubelet would ignore in the payload, as far as its version is known.
    pub(super) fn field_problems(&self, rendered: &Rendered) -> Vec<String> {
        let minor = self.kubelet_version().and_then(|version| schema::minor(version).ok());
        schema::messages(&rendered.problems, minor)
    }

    /// Why the payload is refused for that, where it is.
    pub(in crate::machine) fn refused_field_problems(&self, rendered: &Rendered) -> Option<String> {
        let messages = self.field_problems(rendered);
        let is_proven = self.fallback_content() == Some(&rendered.digest);
        let by_policy = rendered.admission.refuses_unknown_fields;
        let refuses = by_policy || self.settings.unknown_fields == UnknownFields::Refuse;
        let whom = if by_policy { "the node's policy" } else { "--unknown-fields" };
        (refuses && !is_proven && !messages.is_empty()).then(|| schema::refusal_by(whom, &messages))
    }

    /// Refuses the change if it must not be made on a live node and nobody accepted that.
    pub(super) fn refuse_hazards(&mut self, source: &Source, rendered: &Rendered, fx: &mut Vec<Effect>) -> bool {
        let Some((classes, why)) = self.refused_hazards(rendered) else { return false };
        self.refuse(classes, source, &why, fx);
        true
    }

    /// The same if it would cost pods.
    pub(super) fn refuse_impact(&mut self, source: &Source, rendered: &Rendered, fx: &mut Vec<Effect>) -> bool {
        let inventory = self.change.as_ref().and_then(|change| change.inventory.as_ref());
        let Some((_, why)) = self.refused_impact(rendered, inventory, &self.health.supplies()) else { return false };
        self.refuse(BTreeSet::from([HazardClass::Pods]), source, &why, fx);
        true
    }

    /// Held against this version, not its content: an acknowledgement changes only the former.
    fn refuse(&mut self, classes: BTreeSet<HazardClass>, source: &Source, why: &str, fx: &mut Vec<Effect>) {
        if let Some(change) = &mut self.change {
            change.hazards = classes;
        }
        self.reject(&Version::named(source.clone()), ConfigError::Validate, why, fx);
    }

    pub(in crate::machine) fn refused_hazards(&self, rendered: &Rendered) -> Option<(BTreeSet<HazardClass>, String)> {
        if self.is_way_back(rendered) {
            return None;
        }
        let changes = hazard::diff(&self.running().effective, &rendered.effective);
        let acknowledged = rendered.annotations.acknowledge.as_deref();
        let why = bounded_by_policy(hazard::refused(&changes, acknowledged)?, rendered);
        Some((hazard::refused_classes(&changes, acknowledged), why))
    }

    /// The pods that are known to go, and why that is refused.
    pub(in crate::machine) fn refused_impact(
        &self,
        rendered: &Rendered,
        inventory: Option<&PodInventory>,
        supplies: &BTreeMap<String, Supply>,
    ) -> Option<(BTreeSet<String>, String)> {
        if self.is_way_back(rendered) {
            return None;
        }
        let impacts = hazard::preview(&self.running().effective, &rendered.effective, inventory, supplies);
        let why = hazard::refused_impact(&impacts, rendered.annotations.acknowledge.as_deref())?;
        let pods = impacts.into_iter().flat_map(|impact| impact.pods).collect();
        Some((pods, bounded_by_policy(why, rendered)))
    }
}

/// An acknowledgement may not be enough.
fn bounded_by_policy(why: String, rendered: &Rendered) -> String {
    match &rendered.admission.acknowledgeable {
        Some(classes) => format!("{why}; the node's policy lets a ConfigMap acknowledge {classes} alone"),
        None => why,
    }
}
