//! What a supervisor hands over to the one that takes its place.

use super::records::Records;

/// A document that a supervisor can go on from; it was read once, to see that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handover {
    pub(super) document: String,
    pub(super) pid: u32,
    pub(super) saved: Option<Records>,
}

impl Handover {
    /// The document, JSON.
    #[must_use]
    pub fn encode(&self) -> &str {
        &self.document
    }

    /// The kubelet's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The records as they were last read or written; `None` if they may be otherwise on disk.
    #[must_use]
    pub fn records(&self) -> Option<&Records> {
        self.saved.as_ref()
    }
}
