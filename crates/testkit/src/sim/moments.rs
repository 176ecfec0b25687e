//! What a change waits for: streams through the kubelet, and pressure.

use std::collections::BTreeSet;
use std::time::Duration;

use kubelet_supervisor::machine::evidence::{Activity, NodePressure};

/// What a change waits for.
#[derive(Debug, Default)]
pub struct Moments {
    pub streams: u32,
    pub image_pulls: u32,
    /// Of which the supervisor was told last, and since when.
    pub told: Option<Duration>,
    pub is_under_pressure: bool,
}

impl Moments {
    pub fn activity(&self) -> Activity {
        Activity { streams: Some(self.streams), image_pulls: Some(self.image_pulls) }
    }

    pub fn pressure(&self) -> BTreeSet<NodePressure> {
        if self.is_under_pressure { [NodePressure::Disk].into() } else { BTreeSet::new() }
    }
}
