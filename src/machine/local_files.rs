//! The local files (`--config`, `--config-dir`) while a kubelet runs: what they say now is compared with what it was
//! started with. With `--follow-local` they are taken up, like any change; else it is told.

use super::model::{LocalFilesDifference, Moment};
use super::records::Version;
use kubelet_config::policy::Admission;

mod step;

/// What is known of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LocalFiles {
    /// They were taken up as this, by digest, or by what is wrong with them; the same is not taken up again each minute.
    taken_up: Option<String>,
    /// They are being written, since then.
    touched: Option<Moment>,
    /// They are compared then.
    due: Option<Moment>,
    /// Active at the latest comparison; another version is compared anew.
    compared_version: Option<Version>,
    /// It is told once.
    difference: Option<LocalFilesDifference>,
    /// What the node's policy said of them last.
    admission: Admission,
}

impl LocalFiles {
    fn compare_by(&mut self, due: Moment) {
        self.due = Some(self.due.map_or(due, |before| before.min(due)));
    }

    pub(super) fn deadlines(&self, due: &mut Vec<Moment>) {
        due.extend(self.due);
    }
}
