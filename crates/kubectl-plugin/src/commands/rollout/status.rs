//! `rollout status`: how far pools are.

use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Duration;

use super::args::StatusArgs;
use super::follow;
use super::progress_reporter::ProgressReporter;
use crate::api::client::Client;
use crate::api::list::{Selector, list};
use crate::api::nodes::NODES;
use crate::api::pools::{self, StoredPool};
use crate::clock::Clock;
use crate::fleet::pool::node::PoolNode;
use crate::fleet::pool::progress::{Counts, Standing, advice, condition, phase, standing};
use crate::fleet::pool::remaining::{Remaining, remaining};
use crate::fleet::pool::types::{BadRevision, KubeletConfigPoolStatus};
use crate::output::{self, Format, Out, Table, Tone};
use crate::{Context, Failure};
use kubelet_config::reported::{plain, text};

pub(crate) async fn run(context: &Context, args: &StatusArgs) -> Result<(), Failure> {
    let api = context.api();
    match &args.name {
        Some(name) if args.watch => Box::pin(follow::run(context, name, ProgressReporter::new(false))).await,
        Some(name) => one(&api, &pools::get(&api, name).await?, args.output).await,
        None => all(&pools::list(&api).await?, args.output),
    }
}

fn status_of(pool: &StoredPool) -> KubeletConfigPoolStatus {
    pool.pool.status.clone().unwrap_or_default()
}

fn all(pools: &[StoredPool], format: Format) -> Result<(), Failure> {
    if pools.is_empty() && !format.is_for_programs() {
        eprintln!("No pools found");
        return Ok(());
    }
    let document = || json!(pools.iter().map(document).collect::<Vec<_>>());
    output::show(format, document, |out| table(pools, format == Format::Wide).render(out))
}

fn table(pools: &[StoredPool], wide: bool) -> Table {
    let mut columns = vec!["POOL", "NODES", "UPDATED", "PROVEN", "UNAVAILABLE", "FAILED", "STATE"];
    columns.extend(if wide { ["CURRENT", "UPDATE", "MESSAGE"].as_slice() } else { &[] });
    let mut table = Table::new(&columns);
    for pool in pools {
        let status = status_of(pool);
        let number = |count: u32| (Tone::Plain, count.to_string());
        let mut cells = vec![(Tone::Plain, pool.name.clone()), number(status.nodes), number(status.updated)];
        cells.extend([number(status.proven), number(status.unavailable), number(status.failed)]);
        cells.push((tone(pool), phase(&pool.pool).to_owned()));
        if wide {
            let [current, update] =
                [&status.current_revision, &status.update_revision].map(|it| it.clone().unwrap_or_default());
            cells.extend([current, update, message(&status)].map(|text| (Tone::Plain, text)));
        }
        table.row(cells);
    }
    table
}

fn tone(pool: &StoredPool) -> Tone {
    match standing(&pool.pool) {
        Standing::Complete => Tone::Good,
        Standing::Stalled(..) | Standing::GoingBack => Tone::Bad,
        _ => Tone::Open,
    }
}

fn message(status: &KubeletConfigPoolStatus) -> String {
    condition(status, "Ready").map(|ready| ready.message.clone()).unwrap_or_default()
}

/// What programs read; all that is in it of Nodes is bounded where it was read.
fn document(pool: &StoredPool) -> Value {
    json!({
        "pool": pool.name, "generation": pool.pool.metadata.generation,
        "spec": pool.spec(), "status": pool.pool.status,
    })
}

/// All Nodes of the cluster, as pools see them.
pub(super) async fn all_nodes(api: &Client, pool: &StoredPool) -> Result<Vec<PoolNode>, Failure> {
    let (now, min_trial) = (Clock::new().now(), pool.pool.spec.rollout.min_trial_seconds);
    let read = |node| {
        let mut node = PoolNode::from_node(&node, &api.namespace);
        node.lasts = node.lasting_at(now, Duration::from_secs(min_trial.into()), false);
        Some(node)
    };
    let mut nodes = list(api, NODES, "list nodes", Selector::default(), read).await?;
    nodes.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(nodes)
}

async fn one(api: &Client, pool: &StoredPool, format: Format) -> Result<(), Failure> {
    let nodes = all_nodes(api, pool).await?;
    let remaining = remaining(&pool.pool, &pool.name, &api.namespace, &nodes);
    if format.is_for_programs() {
        let of = |it: &Remaining| json!({"node": it.node, "state": it.state, "message": it.message});
        let remaining: Vec<Value> = remaining.iter().map(of).collect();
        let mut document = document(pool);
        if let Some(document) = document.as_object_mut() {
            document.insert("remaining".to_owned(), remaining.into());
        }
        return output::document(format, &document);
    }
    let out = Out::for_format(format);
    let status = status_of(pool);
    let phase = Some(phase(&pool.pool)).filter(|phase| !phase.is_empty()).unwrap_or("not seen yet");
    let summary = format!("{}; {}", Counts::new(&pool.pool).summary(), message(&status));
    let mut shown = output::headed(out, tone(pool), phase, &summary);
    if let Standing::Stalled(reason, _) = standing(&pool.pool) {
        shown.push_str(&output::paragraph(out, Tone::Plain, &advice(&pool.name, &reason)));
    }
    let revision = |revision: &Option<String>| plain(revision.as_deref().unwrap_or("-"));
    let _ =
        writeln!(shown, "current {}, update {}", revision(&status.current_revision), revision(&status.update_revision));
    for other in status.conditions.iter().filter(|it| matches!(it.type_.as_str(), "Preflighted" | "Conflicting")) {
        let line = format!("{} {}: {}", other.type_, other.status, other.message);
        shown.push_str(&output::paragraph(out, Tone::Plain, &line));
    }
    // The condition's message may be about one of them.
    let told = message(&status);
    for BadRevision { revision, nodes, .. } in status.bad_revisions.iter().filter(|bad| !told.contains(&bad.revision)) {
        let said: Vec<String> = nodes.iter().map(|node| format!("{}: {}", node.name, text(&node.message))).collect();
        shown.push_str(&output::headed(out, Tone::Bad, &format!("bad {}", plain(revision)), &said.join("; ")));
    }
    if !remaining.is_empty() {
        let mut table = Table::new(&["NODE", "STATE", "MESSAGE"]);
        for Remaining { node, state, tone, message } in remaining {
            table.row([(Tone::Plain, node), (tone, state.to_owned()), (Tone::Plain, message)]);
        }
        shown.push_str(&table.render(out));
    }
    output::write_stdout(&shown)
}
