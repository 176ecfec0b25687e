//! Preflight on request: an annotation of the Node names a ConfigMap, and the node says what would become of it. It goes the
//! way of a change up to where that would be decided, and changes nothing: neither the record, nor checkpoints, nor what is
//! known of versions, nor the kubelet.

use super::model::{Moment, Rendered};
use kubelet_config::pods::PodInventory;
use kubelet_config::preflight::{PreflightRequest, PreflightStatus};
use kubelet_config::readmission::Supplies;
use kubelet_config::source::Source;

mod step;

/// What the Node is asked to judge, and its answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OnRequest {
    /// The Node's annotations were seen.
    known: bool,
    /// The request, verbatim.
    request: Option<String>,
    /// The answer to it.
    answer: Option<PreflightStatus>,
    /// What is known of it, while it is judged.
    inquiry: Option<Inquiry>,
    /// What an inquiry was rendered to may lie on the disk.
    leaves_content: bool,
    /// Tries that came to nothing through no fault of the request.
    failures: u32,
    /// Nothing is begun before.
    not_before: Option<Moment>,
}

/// A request on its way to an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Inquiry {
    stage: Stage,
    source: Source,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Fetching(PreflightRequest),
    Loading,
    Judging(Box<Rendered>),
    /// The kubelet has judged it. What runs here, and what there is left of what runs out.
    Observing(Box<Rendered>, Observed),
}

/// What is known of a candidate that the kubelet accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Observed {
    /// What the kubelet said of it.
    remarks: String,
    pods: Option<PodInventory>,
    supplies: Option<Supplies>,
}

impl OnRequest {
    /// True if its content lies on the disk, or may soon, and no record names it.
    pub(super) fn is_under_way(&self) -> bool {
        self.inquiry.is_some()
    }

    pub(super) fn leave_content(&mut self) {
        self.leaves_content = true;
    }

    pub(super) fn collected(&mut self) {
        self.leaves_content = false;
    }

    pub(super) fn deadlines(&self, due: &mut Vec<Moment>) {
        due.extend(self.not_before);
    }
}
