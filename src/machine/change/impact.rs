//! What a change would cost this node: hazards of its fields, pods that would be turned away, and fields of no effect.

use std::collections::BTreeSet;

use crate::machine::evidence::Hold;
use crate::machine::model::{ConfigError, Rendered};
use crate::machine::records::{BadReason, BadVersion, Version};
use crate::machine::{Level, State};
use kubelet_config::digest::Digest;
use kubelet_config::hazard::{self, Acknowledged, HazardClass, Impact};
use kubelet_config::pods::PodInventory;
use kubelet_config::readmission::{Kubelet, Supplies};
use kubelet_config::schema::{self, UnknownFields};
use kubelet_config::source::Source;
use kubelet_config::status;

impl State {
    /// The way back to what was proven is always open.
    fn is_way_back(&self, rendered: &Rendered) -> bool {
        self.running().effective.is_null() || self.judgement().way_back_content() == Some(&rendered.digest)
    }

    /// What this kubelet would ignore in the payload, as far as its version is known.
    pub(super) fn field_problems(&self, rendered: &Rendered) -> Vec<String> {
        schema::messages(&rendered.problems, self.kubelet_minor())
    }

    fn kubelet_minor(&self) -> Option<u64> {
        schema::minor(self.kubelet_version()?).ok()
    }

    /// Why the payload is refused for that, where it is.
    pub(in crate::machine) fn refused_field_problems(&self, rendered: &Rendered) -> Option<String> {
        let messages = self.field_problems(rendered);
        let is_proven = self.judgement().way_back_content() == Some(&rendered.digest);
        let by_policy = rendered.admission.refuses_unknown_fields;
        let refuses = by_policy || self.settings.unknown_fields == UnknownFields::Refuse;
        let whom = if by_policy { "the node's policy" } else { "--unknown-fields" };
        (refuses && !is_proven && !messages.is_empty()).then(|| schema::refusal_by(whom, &messages))
    }

    /// Tells what a restart costs although nothing refuses it, and that it is not known where pods could not be listed.
    pub(super) fn tell_cost(&mut self, source: Option<&Source>, told: Option<String>, rendered: &Rendered) {
        let unlisted = self.settings.api_server && self.inventory_of_change().is_none() && !self.is_way_back(rendered);
        let unlisted = unlisted
            .then(|| "the pods of this node could not be listed, so what the restart costs is not known".to_owned());
        for why in told.into_iter().chain(unlisted) {
            self.log(Level::Warn, format!("{}: {why}", status::name(source)));
        }
    }

    /// Pods that any restart may cost, by name: this change is not to blame for them, foreseen or not.
    pub(super) fn lost_to_any_restart(&self, rendered: &Rendered) -> BTreeSet<String> {
        let anyway = self.impacts_of_change(rendered).into_iter().filter(Impact::is_of_any_restart);
        anyway.flat_map(|impact| impact.pods).map(|refusal| refusal.pod).collect()
    }

    /// Held against this version, not its content: an acknowledgement changes only the former.
    pub(super) fn refuse(
        &mut self,
        classes: BTreeSet<HazardClass>,
        source: &Source,
        rendered: &Rendered,
        stood_for: Option<Digest>,
        why: &str,
    ) {
        if source.is_local_files() {
            self.note_local_hazards(source, rendered, &classes);
        }
        let is_same = |bad: &BadVersion| bad.source == *source && bad.digest.is_none() && bad.detail == why;
        let is_news = !self.records().bad.iter().any(is_same);
        if let Some(change) = self.change.as_mut().filter(|_| is_news) {
            change.hazards = classes;
        }
        let bad = self.bad(&Version::named(source.clone()), BadReason::Rejected, ConfigError::Validate, why);
        self.reject_as(BadVersion { stood_for, ..bad });
    }

    /// Why the change must not be made on a live node, where nobody accepted that.
    pub(in crate::machine) fn refused_hazards(&self, rendered: &Rendered) -> Option<(BTreeSet<HazardClass>, String)> {
        if self.is_way_back(rendered) {
            return None;
        }
        let changes = hazard::diff(&self.running().effective, &rendered.effective);
        let acknowledged = acknowledged(rendered);
        let why = hazard::refused(&changes, &acknowledged)?;
        Some((hazard::refused_classes(&changes, &acknowledged), bounded_by_policy(why, rendered)))
    }

    /// The pods before the change, as far as they were listed.
    pub(super) fn inventory_of_change(&self) -> Option<&PodInventory> {
        self.inquiry_of_change()?.inventory.as_ref()
    }

    /// What the restart of the change under way would cost.
    pub(super) fn impacts_of_change(&self, rendered: &Rendered) -> Vec<Impact> {
        self.impacts(rendered, self.inventory_of_change(), &self.health.supplies())
    }

    /// What a restart into it would cost, as far as that can be foreseen.
    pub(in crate::machine) fn impacts(
        &self,
        rendered: &Rendered,
        inventory: Option<&PodInventory>,
        supplies: &Supplies,
    ) -> Vec<Impact> {
        if self.is_way_back(rendered) {
            return Vec::new();
        }
        let running = self.running();
        let minor = self.kubelet_minor().filter(|minor| *minor <= schema::NEWEST);
        let old = Kubelet { config: &running.effective, minor, supplies, ignores_eviction: running.ignores_eviction };
        let new = Kubelet { config: &rendered.effective, ignores_eviction: rendered.ignores_eviction, ..old };
        hazard::preview(&old, &new, inventory)
    }
}

/// The pods that are known to go, and why that is refused.
pub(in crate::machine) fn refused_impact(
    impacts: &[Impact],
    rendered: &Rendered,
) -> Option<(BTreeSet<String>, String)> {
    let why = hazard::refused_impact(impacts, &acknowledged(rendered))?;
    let pods = impacts.iter().flat_map(Impact::lost).map(str::to_owned).collect();
    Some((pods, bounded_by_policy(why, rendered)))
}

/// The pods that any restart would cost, unless that is accepted. A reset (no source) and the local files have nothing that
/// could accept it, and are told of alone. What the change would cost itself refuses it, and is looked at first.
pub(super) fn pods_lost(source: &Source, rendered: &Rendered, impacts: &[Impact]) -> Option<Hold> {
    let pods: Vec<String> = hazard::lost_to_any_restart(impacts).into_iter().map(ToString::to_string).collect();
    let accepted = hazard::accepts_any_restart(rendered.annotations.acknowledge.as_deref());
    if pods.is_empty() || accepted || source.is_local_files() || refused_impact(impacts, rendered).is_some() {
        return None;
    }
    let how = "annotation kubelet-supervisor.io/acknowledge: pods";
    Some(Hold::PodsLost(pods, rendered.admission.lets_acknowledge(HazardClass::Pods).then_some(how)))
}

/// What an operator accepted for it, and where.
fn acknowledged(rendered: &Rendered) -> Acknowledged<'_> {
    Acknowledged::parse(rendered.annotations.acknowledge.as_deref()).on_node(rendered.is_local_files)
}

/// With what the policy lets be acknowledged, if it says so.
fn bounded_by_policy(why: String, rendered: &Rendered) -> String {
    match &rendered.admission.acknowledgeable {
        Some(allowed) if rendered.is_local_files => {
            format!("{why}; the node's policy lets only {allowed} be acknowledged")
        }
        Some(allowed) => format!("{why}; the node's policy lets a ConfigMap acknowledge {allowed} alone"),
        None => why,
    }
}
