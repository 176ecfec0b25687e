//! What a change would cost this node: hazards of its fields, and pods that would be turned away.

use super::State;
use super::model::Rendered;
use kubelet_config::hazard;
use kubelet_config::source::Source;

impl State {
    /// Why the change from what runs must not be made on a live node, unless somebody accepted it.
    /// The way back to last known good is always open.
    pub(super) fn refused_hazards(&self, source: &Source, rendered: &Rendered) -> Option<String> {
        if self.running.effective.is_null() || self.fallback().as_ref() == Some(source) {
            return None;
        }
        let changes = hazard::diff(&self.running.effective, &rendered.effective);
        hazard::refused(&changes, rendered.annotations.acknowledge.as_deref())
    }

    /// Which pods it would cost, unless somebody accepted that.
    pub(super) fn refused_impact(&self, source: &Source, rendered: &Rendered) -> Option<String> {
        if self.running.effective.is_null() || self.fallback().as_ref() == Some(source) {
            return None;
        }
        let inventory = self.change.as_ref()?.inventory.as_ref();
        let supplies = self.environment.as_ref().map(|(environment, _)| environment.supplies.clone());
        let impacts =
            hazard::preview(&self.running.effective, &rendered.effective, inventory, &supplies.unwrap_or_default());
        hazard::refused_impact(&impacts, rendered.annotations.acknowledge.as_deref())
    }
}
