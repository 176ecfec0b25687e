//! `status`: one row a node.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::nodes::{self, Choice};
use super::output::{self, Format, Out, Table, Tone};
use super::{Context, Failure};
use crate::core::fleet::node::{Keeper, NodeRow, Stage};
use crate::core::report::config_source;

/// Options of `status`.
#[derive(Debug, Args)]
pub struct Options {
    /// These; else all.
    #[arg(value_name = "NODE")]
    nodes: Vec<String>,
    /// Those with these labels.
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "nodes")]
    selector: Option<String>,
    /// How.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

impl Options {
    pub(super) async fn run(self, context: &Context) -> Result<ExitCode, Failure> {
        let choice = Choice { names: self.nodes, selector: self.selector };
        let rows = nodes::read(context, &choice).await?;
        match self.output {
            Format::Json | Format::Yaml => {
                output::document(self.output, &json!(rows.iter().map(document).collect::<Vec<_>>()))?;
            }
            _ => output::print(&table(&rows).render(Out::stdout()))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn document(row: &NodeRow) -> serde_json::Value {
    json!({
        "node": row.name,
        "assigned": config_source(row.assigned.as_ref()),
        "active": config_source(row.active.as_ref()),
        "lastKnownGood": config_source(row.last_known_good.as_ref()),
        "error": row.error,
    })
}

fn table(rows: &[NodeRow]) -> Table {
    let mut table = Table::new(&["NODE", "KUBELET", "ASSIGNED", "STATE", "MESSAGE"]);
    for row in rows {
        let (tone, words) = state(row);
        let message = row.condition.as_ref().map(|condition| condition.message.clone()).unwrap_or_default();
        let wanted = row.wanted.as_ref().map(|wanted| wanted.name.clone()).unwrap_or_default();
        let cells = [row.name.clone(), row.kubelet.clone(), wanted].map(|text| (Tone::Plain, text));
        table.row(cells.into_iter().chain([(tone, words.to_owned()), (Tone::Plain, message)]));
    }
    table
}

fn state(row: &NodeRow) -> (Tone, &'static str) {
    match (row.keeper, row.stage()) {
        (Some(Keeper::Nobody), _) => (Tone::Plain, "no supervisor"),
        (_, Stage::Local) => (Tone::Plain, "local"),
        (_, Stage::Pending) => (Tone::Open, "pending"),
        (_, Stage::Scheduled) => (Tone::Open, "scheduled"),
        (_, Stage::OnTrial) => (Tone::Open, "on trial"),
        (_, Stage::AwaitsConfirmation) => (Tone::Open, "to be confirmed"),
        (_, Stage::Proven) => (Tone::Good, "proven"),
        (_, Stage::Failed) => (Tone::Bad, "failed"),
        (_, Stage::Held) => (Tone::Open, "held"),
    }
}
