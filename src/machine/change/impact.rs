//! What a change would cost this node: hazards of its fields, and pods that would be turned away.

use crate::machine::State;
use crate::machine::model::Rendered;
use kubelet_config::hazard;

impl State {
    /// The way back to what was proven is always open.
    fn is_way_back(&self, rendered: &Rendered) -> bool {
        self.running().effective.is_null() || self.fallback_content() == Some(&rendered.digest)
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
