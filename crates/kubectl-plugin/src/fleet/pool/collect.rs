//! Revisions that the controller made and nobody needs any more.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::node::PoolNode;
use super::revision::{HASH, is_made_for, is_of_revision, parse_revision_name};
use super::template_revision::POOL_LABEL;
use super::types::{KubeletConfigPoolSpec, KubeletConfigPoolStatus};

/// Younger ones are left: whoever goes back to what was there today finds it, and nothing that is being made is taken away.
const MIN_AGE: SignedDuration = SignedDuration::from_hours(24);

/// What is needed in a namespace.
#[derive(Debug, Default)]
pub(crate) struct UsedRevisions {
    namespace: String,
    /// ConfigMaps.
    names: BTreeSet<String>,
    /// As pools name them; what expressions in them come to is needed too.
    revisions: BTreeSet<String>,
}

/// A ConfigMap that can go.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnusedRevision {
    created: Timestamp,
    pub(crate) name: String,
    pub(crate) uid: String,
}

impl UsedRevisions {
    pub(crate) fn new(namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), ..Self::default() }
    }

    pub(crate) fn keep(&mut self, name: impl Into<String>) {
        self.names.insert(name.into());
    }

    /// What a Node is assigned, runs, or falls back to.
    pub(crate) fn by_node(&mut self, node: &PoolNode) {
        let named = node.desired.iter().chain(&node.reported).filter(|it| it.namespace == self.namespace);
        self.names.extend(named.map(|reference| reference.name.clone()));
    }

    pub(crate) fn by_pool(&mut self, spec: &KubeletConfigPoolSpec, status: Option<&KubeletConfigPoolStatus>) {
        self.names.extend(spec.config_map.iter().map(|named| named.name.clone()));
        let Some(status) = status else { return };
        self.revisions.extend(status.revisions().cloned());
    }

    /// None: it is needed, or young, or nothing that the controller makes.
    pub(crate) fn unused(&self, map: &Value, now: Timestamp) -> Option<UnusedRevision> {
        let metadata = map.get("metadata")?;
        let text = |field: &str| metadata.get(field)?.as_str().map(str::to_owned);
        let (name, uid) = (text("name")?, text("uid")?);
        let pool = metadata.get("labels")?.get(POOL_LABEL)?.as_str()?;
        let revision = name.get(..name.len().min(pool.len() + HASH))?;
        let reference = parse_revision_name(&name, &self.namespace);
        let is_made = is_made_for(pool, revision) && is_of_revision(&reference, revision, &self.namespace);
        let is_named = |used: &String| {
            let used = used.split('/').next().unwrap_or_default();
            is_of_revision(&reference, used, &self.namespace)
        };
        let created: Timestamp = text("creationTimestamp")?.parse().ok()?;
        let is_old = now.duration_since(created) >= MIN_AGE;
        let is_needed = self.names.contains(&name) || self.revisions.iter().any(is_named);
        (is_made && is_old && !is_needed && text("deletionTimestamp").is_none()).then_some(UnusedRevision {
            created,
            name,
            uid,
        })
    }
}

#[cfg(test)]
mod tests;
