//! What a change would cost this node: hazards of its fields, pods that would be turned away, and fields of no effect.

use crate::machine::State;
use crate::machine::model::Rendered;
use kubelet_config::hazard;
use kubelet_config::schema::{self, UnknownFields};

impl State {
    /// The way back to what was proven is always open.
    fn is_way_back(&self, rendered: &Rendered) -> bool {
        self.running().effective.is_null() || self.fallback_content() == Some(&rendered.digest)
    }

    /// What this kubelet would read over in the payload, as far as its version is known.
    pub(super) fn odd_fields(&self, rendered: &Rendered) -> Vec<String> {
        let minor = self.kubelet_version().and_then(|version| schema::minor(version).ok());
        schema::told(&rendered.problems, minor)
    }

    /// Why the payload is refused for that, where it is.
    pub(super) fn refused_fields(&self, rendered: &Rendered) -> Option<String> {
        let told = self.odd_fields(rendered);
        let is_proven = self.fallback_content() == Some(&rendered.digest);
        let is_refused = self.settings.unknown_fields == UnknownFields::Refuse && !is_proven && !told.is_empty();
        is_refused.then(|| schema::refusal(&told))
    }

    /// Why the change from what runs must not be made on a live node, unless somebody accepted it.
    pub(super) fn refused_hazards(&self, rendered: &Rendered) -> Option<String> {
        if self.is_way_back(rendered) {
            return None;
        }
        let changes = hazard::diff(&self.running().effective, &rendered.effective);
        hazard::refused(&changes, rendered.annotations.acknowledge.as_deref())
    }

    /// Which pods it would cost, unless somebody accepted that.
    pub(super) fn refused_impact(&self, rendered: &Rendered) -> Option<String> {
        if self.is_way_back(rendered) {
            return None;
        }
        let inventory = self.change.as_ref()?.inventory.as_ref();
        let supplies = self.health.supplies();
        let impacts = hazard::preview(&self.running().effective, &rendered.effective, inventory, &supplies);
        hazard::refused_impact(&impacts, rendered.annotations.acknowledge.as_deref())
    }
}
