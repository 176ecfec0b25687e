//! Old revisions are deleted, some at a time.

use kube::api::{DeleteParams, Preconditions};
use kube::core::request::Request as Path;
use tokio::time::Instant;

use super::{COLLECT_EVERY, Reconciler};
use crate::api::client::ApiError;
use crate::api::list::{Selector, list};
use crate::fleet::pool::collect::{UnusedRevision, UsedRevisions};
use crate::fleet::pool::revision::POOL_LABEL;
use crate::output;

/// Deleted at a time: pools have their turn between.
const DELETED_AT_ONCE: usize = 10;

impl Reconciler {
    /// Nothing depends on it: what fails is said, and tried again an hour later. That there is no right to it is said once.
    pub(super) async fn collect(&self) {
        let mut collection = std::mem::take(&mut self.memory.lock().collection);
        if collection.at.is_none_or(|at| at.elapsed() >= COLLECT_EVERY) {
            collection.at = Some(Instant::now());
            if let Err(error) = self.delete_unused().await {
                let is_refusal = error.code() == 403;
                if !is_refusal || !collection.is_refused {
                    let advice = if is_refusal {
                        "; the rule is in packaging/manifests/pools/rbac.yaml, and an admission policy may refuse it too"
                    } else {
                        ""
                    };
                    output::note(&format!("warning: old revisions stay: {}{advice}", error.cause()));
                }
                collection.is_refused |= is_refusal;
            }
        }
        self.memory.lock().collection = collection;
    }

    async fn delete_unused(&self) -> Result<(), ApiError> {
        let namespace = &self.client.namespace;
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        let (what, made) =
            (format!("list configmaps in namespace {namespace}"), Selector::default().labels(POOL_LABEL));
        // What is used is looked at after the list: nothing that is in it can be needed meanwhile and not be seen.
        let maps = list(&self.client, &path, &what, made, Some).await?;
        let (used, now) = (self.used_revisions(), self.clock.now());
        let mut unused: Vec<UnusedRevision> = maps.iter().filter_map(|map| used.unused(map, now)).collect();
        unused.sort();
        for UnusedRevision { name, uid, .. } in unused.into_iter().take(DELETED_AT_ONCE) {
            if !self.guard.is_leader() {
                break;
            }
            let preconditions = Preconditions { uid: Some(uid), resource_version: None };
            let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            let what = format!("delete ConfigMap {name} in namespace {namespace}");
            match self.client.request(&what, Path::new(&path).delete(&name, &params)).await {
                // It is gone, or another one.
                Err(error) if !matches!(error.code(), 404 | 409) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// By all pools and Nodes, and by this controller, which does not look again at what it saw a moment ago.
    fn used_revisions(&self) -> UsedRevisions {
        let mut used = UsedRevisions::new(&self.client.namespace);
        for pool in self.pools.state().iter().filter_map(|pool| self.newest(pool)) {
            used.by_pool(&pool.spec, pool.status.as_ref());
        }
        self.nodes.read(|nodes| nodes.values().for_each(|node| used.by_node(node)));
        let memory = self.memory.lock();
        for pool in memory.pools.values() {
            let revisions = pool.revision.iter().map(|seen| &seen.revision).chain(&pool.current);
            revisions.for_each(|revision| used.keep(&revision.reference().name));
        }
        memory.rendered.keys().for_each(|name| used.keep(name));
        used
    }
}
