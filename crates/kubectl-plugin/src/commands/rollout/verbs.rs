//! Edits of a pool, as `kubectl rollout` makes them of a Deployment.

use std::process::ExitCode;

use serde_json::json;

use super::args::{NamedArgs, UndoArgs};
use super::follow;
use super::progress_reporter::ProgressReporter;
use super::status::all_nodes;
use crate::api::pools;
use crate::fleet::pool::edit::{chosen, former_revisions, go_back, revision_of};
use crate::fleet::pool::progress::{Standing, standing, without_bad_mark};
use crate::fleet::pool::remaining::{refusing, update};
use crate::fleet::pool::revision::APPROVED_REVISION;
use crate::output;
use crate::{Context, Failure};

/// `rollout pause`.
pub(crate) async fn pause(context: &Context, NamedArgs { name, .. }: &NamedArgs) -> Result<ExitCode, Failure> {
    let api = context.api();
    let pool = pools::get(&api, name).await?;
    if !pool.pool.spec.paused {
        pools::patch(&api, &pool, None, &json!({"spec": {"paused": true}})).await?;
    }
    output::write_stdout(&format!("pool/{name} paused; nodes on their way come to their end\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// `rollout resume`.
pub(crate) async fn resume(context: &Context, NamedArgs { name, quiet }: &NamedArgs) -> Result<ExitCode, Failure> {
    let api = context.api();
    let pool = pools::get(&api, name).await?;
    let reporter = ProgressReporter::new(*quiet);
    if pool.pool.spec.paused {
        pools::patch(&api, &pool, None, &json!({"spec": {"paused": false}})).await?;
        reporter.note(&format!("pool/{name} resumed"));
    } else if let Standing::AwaitingApproval(revision) = standing(&pool.pool) {
        let annotations = json!({"metadata": {"annotations": {APPROVED_REVISION: revision}}});
        pools::patch(&api, &pool, None, &annotations).await?;
        reporter.note(&format!("pool/{name} resumed: {revision} is approved"));
    }
    Box::pin(follow::run(context, name, reporter)).await
}

/// `rollout undo`.
pub(crate) async fn undo(context: &Context, args: &UndoArgs) -> Result<ExitCode, Failure> {
    let NamedArgs { name, quiet } = &args.named;
    let api = context.api();
    let pool = pools::get(&api, name).await?;
    let status = pool.pool.status.clone().unwrap_or_default();
    let namespace = &api.namespace;
    // A spec that makes no sense says no revision.
    let update = revision_of(name, &pool.pool.spec, namespace).unwrap_or_default();
    let former = former_revisions(&status, &update);
    let to = chosen(name, &former, args.to_revision.as_deref(), namespace).map_err(Failure::new)?;
    let failure = |why: &str| Failure::new(format!("revision {} cannot be gone back to: {why}", to.name));
    let stored = match api.config_map(namespace, &to.name).await {
        Err(error) if error.is_absent() => Err(failure(&format!(
            "its ConfigMap is not in namespace {namespace} any more; the pool had {}, one of which --to-revision names",
            former.join(", ")
        ))),
        result => result.map_err(Failure::from),
    }?;
    let spec = go_back(name, pool.spec(), &stored, &to).map_err(|why| failure(&why))?;
    pools::put(&api, name, Some(&pool), &spec, false).await?;
    let reporter = ProgressReporter::new(*quiet);
    reporter.note(&format!("pool/{name} goes back to {}", to.name));
    Box::pin(follow::run(context, name, reporter)).await
}

/// `rollout retry`.
pub(crate) async fn retry(context: &Context, NamedArgs { name, quiet }: &NamedArgs) -> Result<ExitCode, Failure> {
    let api = context.api();
    let pool = pools::get(&api, name).await?;
    let Some((revision, others)) = without_bad_mark(name, &pool.pool, &api.namespace) else {
        return Err(Failure::new(format!(
            "the revision that pool {name} is to have is not marked bad: there is nothing to try again; `kubectl kubelet-config rollout \
             status {name}` says where it is"
        )));
    };
    let nodes = all_nodes(&api).await?;
    let stored = update(&pool.pool, name, &api.namespace);
    if let Some(node) = stored.iter().flat_map(|stored| refusing(stored, &pool.pool, &nodes)).next() {
        return Err(Failure::new(format!(
            "node {node} has {revision}, says that it is bad, and would say so again: mend the node, then `kubectl kubelet-config retry \
             {node}`, and this again"
        )));
    }
    pools::patch(&api, &pool, Some("status"), &json!({"status": {"badRevisions": others}})).await?;
    let reporter = ProgressReporter::new(*quiet);
    reporter.note(&format!("pool/{name} tries {revision} again"));
    Box::pin(follow::run(context, name, reporter)).await
}
