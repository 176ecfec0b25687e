//! A file of `--config-dir`.

use serde_json::Value;

use crate::document::check_kind;
use crate::yaml;

/// Directories below `--config-dir` that are entered, one in the other.
pub const DROP_IN_DEPTH: u32 = 16;

/// A file of `--config-dir`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropIn {
    /// Its path, for people.
    pub path: String,
    /// Its content.
    pub text: String,
}

impl DropIn {
    /// A name for a copy. The number keeps the order, the name is for people: messages of the kubelet show it.
    #[must_use]
    pub fn stored_name(&self, number: usize) -> String {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        let safe = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' };
        let name: String = name.trim_end_matches(".conf").chars().take(100).map(safe).collect();
        format!("{number:04}-{name}.conf")
    }

    /// Why a kubelet would not take it, as far as is known here (mergeKubeletConfigurations, cmd/kubelet/app/server.go, v1.36).
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let found = yaml::parse(&self.text).and_then(|mut document| check_kind(&mut document.value, false));
        found.err().map(|why| format!("{}: {why}", self.path))
    }

    /// What makes it another one: what it says, not how it is written. Text that is not YAML counts as it is written; the
    /// kubelet will refuse it.
    pub(crate) fn identity(&self) -> String {
        let text = || Value::from(self.text.as_str());
        format!("drop-in {}", yaml::parse(&self.text).map_or_else(|_| text(), |document| document.value))
    }
}
