//! The ConfigMaps of revisions, and of what expressions in them come to.

use std::sync::Arc;

use kube::ResourceExt as _;
use kube::api::{GetParams, PostParams};
use kube::core::request::Request as Path;
use serde_json::Value;
use tokio::time::Instant;

use super::{REVISION_KNOWN, Reconciler, UpdateRevision};
use crate::Failure;
use crate::api::client::ApiError;
use crate::fleet::pool::renderings::StoredRevision;
use crate::fleet::pool::revision::{RenderedRevision, RevisionFault, check_made, parse_revision_name};
use crate::fleet::pool::template_revision::TemplateRevision;
use crate::fleet::pool::types::KubeletConfigPool;
use crate::output;
use kubelet_config::source::ConfigMapRef;

impl Reconciler {
    /// Before a revision goes to any Node, all that the pool's Nodes have of it can be had. Later, what a Node gets is made when
    /// it is assigned: a Node whose labels change all the time makes no ConfigMap a change.
    pub(super) async fn ensure_renderings(
        &self,
        pool: &KubeletConfigPool,
        update: UpdateRevision,
    ) -> Result<UpdateRevision, Failure> {
        let revision = match update {
            Ok(revision) => revision,
            Err(fault) => return Ok(Err(fault)),
        };
        let (renderings, fault) = self.nodes.read(|nodes| {
            let selected = || nodes.values().filter(|node| pool.spec.node_selector.selects(&node.labels));
            let (target, fault) = revision.target(selected());
            let is_begun = target.is_begun(pool.status.as_ref(), selected());
            if is_begun { (Vec::new(), Ok(())) } else { (target.renderings(), fault) }
        });
        if let Err(fault) = fault {
            return Ok(Err(fault));
        }
        for rendering in renderings {
            if let Err(why) = self.ensure_rendering(&rendering).await? {
                return Ok(Err(RevisionFault::invalid(why)));
            }
        }
        Ok(Ok(revision))
    }

    /// The ConfigMap of one result; why it cannot be had, for people.
    pub(super) async fn ensure_rendering(&self, rendering: &RenderedRevision) -> Result<Result<(), String>, Failure> {
        let name = &rendering.reference.name;
        let is_known = |at: &Instant| at.elapsed() < REVISION_KNOWN;
        if self.memory.lock().rendered.get(name).is_some_and(is_known) {
            return Ok(Ok(()));
        }
        let stored = self.ensure_config_map(&rendering.reference, Some(&rendering.object)).await?;
        let checked = stored.and_then(|stored| check_made(&stored.unwrap_or_default(), name, &rendering.object));
        if checked.is_ok() {
            let rendered = &mut self.memory.lock().rendered;
            rendered.retain(|_, at| is_known(at));
            rendered.insert(name.clone(), Instant::now());
        }
        Ok(checked)
    }

    /// The revision that the status names as current, if Nodes may have to be given it again.
    pub(super) async fn current_revision(
        &self,
        pool: &KubeletConfigPool,
        update: Option<&Arc<StoredRevision>>,
    ) -> Result<Option<Arc<StoredRevision>>, Failure> {
        let Some(named) = pool.status.as_ref().and_then(|status| status.current_revision.as_deref()) else {
            return Ok(None);
        };
        let reference = parse_revision_name(named, &self.client.namespace);
        let known = self.memory_of(pool).current.clone();
        let is_it = |revision: &&Arc<StoredRevision>| *revision.reference() == reference;
        let known = known.as_ref().filter(is_it);
        let was_lost = known.is_some_and(|known| matches!(**known, StoredRevision::Lost(_)));
        if let Some(revision) = update.filter(is_it).or(known.filter(|_| !was_lost)) {
            return Ok(Some(Arc::clone(revision)));
        }
        let stored = self.ensure_config_map(&reference, None).await?;
        let stored = stored.and_then(|stored| stored.ok_or_else(|| "it is there no more".to_owned()));
        let template = stored.and_then(|it| TemplateRevision::from_stored(&it, &pool.name_any(), &reference));
        let revision = Arc::new(match template {
            Ok(Some(template)) => StoredRevision::Template(Box::new(template)),
            Ok(None) => StoredRevision::Plain(reference),
            Err(why) => {
                if !was_lost {
                    output::note(&format!(
                        "warning: ConfigMap {}: {why}: no Node can be given it again",
                        reference.name
                    ));
                }
                StoredRevision::Lost(reference)
            }
        });
        self.memory_of(pool).current = Some(Arc::clone(&revision));
        Ok(Some(revision))
    }

    /// A ConfigMap, made if it is not there and is one that the controller makes. A refusal that stays one is for the pool
    /// to say.
    pub(super) async fn ensure_config_map(
        &self,
        reference: &ConfigMapRef,
        object: Option<&Value>,
    ) -> Result<Result<Option<Value>, String>, Failure> {
        match self.get_or_create(&reference.name, object).await {
            Ok(stored) => Ok(Ok(stored)),
            // No right, too large, no such namespace, a policy.
            Err(error) if (400..500).contains(&error.code()) && !matches!(error.code(), 401 | 408 | 429) => {
                Ok(Err(Failure::from(error).message))
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn get_or_create(&self, name: &str, object: Option<&Value>) -> Result<Option<Value>, ApiError> {
        let path = Path::new(format!("/api/v1/namespaces/{}/configmaps", self.client.namespace));
        let stored =
            self.client.optional(&format!("get ConfigMap {name}"), path.get(name, &GetParams::default())).await?;
        let (None, Some(object)) = (&stored, object) else { return Ok(stored) };
        let params = PostParams { field_manager: Some(self.client.manager.to_owned()), ..PostParams::default() };
        let create = path.create(&params, object.to_string().into_bytes());
        self.client.request(&format!("create ConfigMap {name}"), create).await.map(Some)
    }
}
