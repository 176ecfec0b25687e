//! A reload: another supervisor goes on in our place, with the same process id and the same kubelet.
//!
//! First the binary that is installed now is asked whether it could go on from what we know; then, in
//! a calm moment, it does. What is on its way and found again by itself (a change up to its record) is
//! dropped; what is not (a kubelet that starts or stops, a pending failure) is waited for. The boot clock
//! goes on, so a trial's health does as well, and no try is spent.

use serde::{Deserialize, Serialize};

use super::model::Moment;
use super::question::Asked;

mod document;
mod step;

/// The stages of a reload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReloadStage {
    /// None is asked for.
    #[default]
    None,
    /// It waits for a calm moment.
    #[serde(rename = "Wanted")]
    Requested,
    /// The installed binary is being asked whether it can go on from here.
    Proving,
    /// The next calm moment is the one.
    Proven,
}

/// The reload that was asked for, and those before it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reload {
    /// The step it waits for.
    pub stage: ReloadStage,
    /// Why the last one did not happen.
    pub error: Option<String>,
    /// Reloads since the supervisor was started.
    pub count: u32,
    /// The question to the installed binary.
    #[serde(skip)]
    asked: Option<Asked>,
}

impl Reload {
    /// True from the request to the end of it.
    pub(super) fn is_under_way(&self) -> bool {
        self.stage != ReloadStage::None
    }

    pub(super) fn deadline(&self) -> Option<Moment> {
        self.asked.map(|asked| asked.until)
    }
}
