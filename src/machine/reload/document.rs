//! The document that is handed over, and its reading.

use serde::{Deserialize, Serialize};

use crate::machine::handover::Handover;
use crate::machine::State;

/// The format of the document; raised when an older supervisor could not make sense of what a newer one hands over.
pub(super) const VERSION: u32 = 2;

/// What is handed over: all that is known, less the operator's choices, which come from the command line. Fields that
/// the reader does not know are ignored, those it misses have their defaults.
#[derive(Serialize, Deserialize)]
pub(super) struct Document<S> {
    pub(super) version: u32,
    pub(super) state: S,
}

impl Handover {
    /// Reads a document.
    ///
    /// # Errors
    /// Why nobody could go on from it.
    pub fn decode(text: &str) -> Result<Self, String> {
        let (state, saved) = decode(text)?;
        let pid = state.pid().ok_or("what is handed over: there is no kubelet in it")?;
        Ok(Self { document: text.to_owned(), pid, saved: Some(state.saved().clone()).filter(|_| saved) })
    }

    /// What is known, for tests.
    ///
    /// # Errors
    /// Why nobody could go on from it.
    #[doc(hidden)]
    pub fn state(&self) -> Result<State, String> {
        decode(&self.document).map(|(state, _)| state)
    }
}

/// The state, and whether its records are those on disk.
pub(super) fn decode(text: &str) -> Result<(State, bool), String> {
    let cannot = |error: serde_json::Error| format!("what is handed over: {error}");
    let Document { version, .. } = serde_json::from_str::<Document<serde::de::IgnoredAny>>(text).map_err(cannot)?;
    match version {
        VERSION => {
            let Document { state, .. } = serde_json::from_str::<Document<State>>(text).map_err(cannot)?;
            let saved = !state.is_unsaved();
            Ok((state, saved))
        }
        _ => Err(format!("what is handed over has version {version}, this binary reads {VERSION}")),
    }
}
