//! Edits of a pool, as `kubectl rollout` makes them of a Deployment.

use serde_json::json;

use super::args::Verb;
use super::follow;
use super::progress_reporter::ProgressReporter;
use super::status::{self, all_nodes};
use crate::api::client::Client;
use crate::api::pools::{self, StoredPool};
use crate::fleet::pool::edit::{chosen, former_revisions, go_back, revision_of};
use crate::fleet::pool::progress::{Standing, standing, without_failures};
use crate::fleet::pool::remaining::{refusing, update};
use crate::fleet::pool::revision::APPROVED_REVISION;
use crate::output;
use crate::{Context, Failure};

impl Verb {
    /// Edits the pool, says what was done, and follows it; `pause` and `status` leave it alone then.
    pub(crate) async fn run(self, context: &Context) -> Result<(), Failure> {
        let named = match &self {
            Self::Status(args) => return status::run(context, args).await,
            Self::Pause(named) | Self::Resume(named) | Self::Retry(named) => named,
            Self::Undo(args) => &args.named,
        };
        let api = context.api();
        let pool = pools::get(&api, &named.name).await?;
        let done = match &self {
            Self::Resume(_) => resume(&api, &pool).await?,
            Self::Undo(args) => Some(undo(&api, &pool, args.to_revision.as_deref()).await?),
            Self::Retry(_) => Some(retry(&api, &pool).await?),
            Self::Pause(_) => return pause(&api, &pool).await,
            Self::Status(_) => None, // it has returned
        };
        let reporter = ProgressReporter::new(named.quiet);
        if let Some(done) = done {
            reporter.note(&format!("pool/{} {done}", pool.name));
        }
        Box::pin(follow::run(context, &named.name, reporter)).await
    }
}

async fn pause(api: &Client, pool: &StoredPool) -> Result<(), Failure> {
    if !pool.pool.spec.paused {
        pools::patch(api, pool, None, &json!({"spec": {"paused": true}})).await?;
    }
    output::write_stdout(&format!("pool/{} paused; nodes on their way come to their end\n", pool.name))
}

/// None: there was nothing to do.
async fn resume(api: &Client, pool: &StoredPool) -> Result<Option<String>, Failure> {
    if pool.pool.spec.paused {
        pools::patch(api, pool, None, &json!({"spec": {"paused": false}})).await?;
        return Ok(Some("resumed".to_owned()));
    }
    let Standing::AwaitingApproval(revision) = standing(&pool.pool) else { return Ok(None) };
    let annotations = json!({"metadata": {"annotations": {APPROVED_REVISION: revision}}});
    pools::patch(api, pool, None, &annotations).await?;
    Ok(Some(format!("resumed: {revision} is approved")))
}

async fn undo(api: &Client, pool: &StoredPool, to_revision: Option<&str>) -> Result<String, Failure> {
    let (name, namespace) = (&pool.name, &api.namespace);
    let status = pool.pool.status.clone().unwrap_or_default();
    // A spec that makes no sense says no revision.
    let update = revision_of(name, &pool.pool.spec, namespace).unwrap_or_default();
    let former = former_revisions(&status, &update);
    let to = chosen(name, &former, to_revision, namespace).map_err(Failure::new)?;
    let failure = |why: &str| Failure::new(format!("revision {} cannot be gone back to: {why}", to.name));
    let stored = api.config_map(namespace, &to.name).await.map_err(|error| {
        if !error.is_absent() {
            return error.into();
        }
        failure(&format!(
            "its ConfigMap is not in namespace {namespace} any more; the pool had {}, one of which --to-revision names",
            former.join(", ")
        ))
    })?;
    let spec = go_back(name, pool.spec(), &stored, &to).map_err(|why| failure(&why))?;
    pools::put(api, name, Some(pool), &spec, false).await?;
    Ok(format!("goes back to {}", to.name))
}

async fn retry(api: &Client, pool: &StoredPool) -> Result<String, Failure> {
    let (name, namespace) = (&pool.name, &api.namespace);
    let Some((revision, patch)) = without_failures(name, &pool.pool, namespace) else {
        return Err(Failure::new(format!(
            "the revision that pool {name} is to have is not marked bad, and no node failed with it: there is nothing to try again; `kubectl kubelet-config rollout \
             status {name}` says where it is"
        )));
    };
    let nodes = all_nodes(api, pool).await?;
    let stored = update(&pool.pool, name, namespace);
    if let Some(node) = stored.iter().flat_map(|stored| refusing(stored, &pool.pool, &nodes)).next() {
        return Err(Failure::new(format!(
            "node {node} has {revision}, says that it is bad, and would say so again: mend the node, then `kubectl kubelet-config retry \
             {node}`, and this again"
        )));
    }
    pools::patch(api, pool, Some("status"), &patch).await?;
    Ok(format!("tries {revision} again"))
}
