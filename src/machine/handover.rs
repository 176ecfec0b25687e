//! What a supervisor hands over to the one that takes its place.

use serde::{Deserialize, Serialize};

use super::record::Records;
use super::state::State;
use super::state_parts::Kubelet;

/// Raised when an older supervisor could not make sense of what a newer one hands over.
pub(super) const VERSION: u32 = 1;

/// What a supervisor hands over. Fields that the reader does not know are ignored, those it misses
/// have their defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handover {
    /// Version of this document, [`VERSION`] when it was written.
    pub(super) version: u32,
    /// All that is known, less the operator's choices, which come from the command line.
    pub(super) state: State,
}

impl Handover {
    /// The document as JSON.
    #[must_use]
    pub fn encode(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the document.
    ///
    /// # Errors
    /// Why nobody could go on from it.
    pub fn decode(text: &str) -> Result<Self, String> {
        let read: Self = serde_json::from_str(text).map_err(|error| format!("what is handed over: {error}"))?;
        if read.version > VERSION {
            return Err(format!("what is handed over has version {}, this binary reads {VERSION}", read.version));
        }
        match read.state.kubelet {
            Kubelet::Running(_) => Ok(read),
            _ => Err("what is handed over: there is no kubelet in it".to_owned()),
        }
    }

    /// The records as they were last read or written; `None` if the last write failed.
    #[must_use]
    pub fn records(&self) -> Option<&Records> {
        Some(&self.state.saved).filter(|_| self.state.unsaved.is_none())
    }

    /// What goes along, for tests that spoil it.
    #[doc(hidden)]
    pub fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    /// The kubelet's process id.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.state.pid()
    }
}
