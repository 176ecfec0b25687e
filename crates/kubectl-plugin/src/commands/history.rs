//! `history`: the events of a node's configuration.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use crate::api::list::{Pager, Selector};
use crate::api::nodes;
use crate::commands::configuration;
use crate::commands::status::now;
use crate::fleet::events::{self, ConfigEvent};
use crate::fleet::view::human;
use crate::output::{self, Format, Out, Table, Tone};
use crate::{Context, Failure};

/// Where events about Nodes, which have no namespace, are kept.
const EVENTS: &str = "/api/v1/namespaces/default/events";

/// Options of `history`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Whose.
    #[arg(value_name = "NODE")]
    node: String,
    /// How.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

impl Options {
    pub(crate) async fn run(self, context: &Context) -> Result<ExitCode, Failure> {
        let node = self.node.strip_prefix("node/").unwrap_or(&self.node);
        let node = configuration::segment(node, "node")?;
        let selector = Selector::fields(format!("involvedObject.kind=Node,involvedObject.name={node}"));
        let what = format!("list the events of node {node} in namespace default");
        let api = context.api();
        let read = |event: &Value| Ok::<_, Failure>(ConfigEvent::from_event(event));
        let (mut events, _) = Pager::new(&api, EVENTS, &what, &selector).all(read).await?;
        events::sort(&mut events);
        if events.is_empty() {
            // A node that is not there is not one without events.
            nodes::get(&api, node).await?;
            eprintln!(
                "note: the API server has no events of node {node}'s configuration; it keeps them for an hour, if nobody \
                 told it otherwise: `kubelet-supervisor history` on the node goes further back"
            );
        }
        match self.output {
            Format::Json | Format::Yaml => {
                output::document(self.output, &json!(events.iter().map(ConfigEvent::document).collect::<Vec<_>>()))?;
            }
            _ if events.is_empty() => {}
            format => {
                output::write_stdout(&table(&events, format == Format::Wide).render(Out::for_format(format)))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn table(events: &[ConfigEvent], wide: bool) -> Table {
    let first: &[&str] = if wide { &["LAST (UTC)", "FIRST (UTC)"] } else { &["LAST SEEN"] };
    let headings: Vec<&str> = first.iter().chain(&["COUNT", "REASON", "MESSAGE"]).copied().collect();
    let mut table = Table::new(&headings).whole();
    let now = now();
    let utc = |time: &str| time.split('.').next().unwrap_or_default().trim_end_matches('Z').to_owned();
    for event in events {
        let times = if wide { vec![utc(&event.last), utc(&event.first)] } else { vec![ago(&event.last, now)] };
        let times = times.into_iter().map(|time| (Tone::Plain, time));
        let tone = if event.warning { Tone::Bad } else { Tone::Plain };
        let rest = [
            (Tone::Plain, event.count.to_string()),
            (tone, event.reason.clone()),
            (Tone::Plain, event.message.clone()),
        ];
        table.row(times.chain(rest));
    }
    table
}

/// How long ago an RFC 3339 time is, as kubectl shows it.
pub(crate) fn ago(time: &str, now: i64) -> String {
    let time = time.parse::<jiff::Timestamp>();
    time.map(|time| human(u64::try_from(now.saturating_sub(time.as_second())).unwrap_or_default())).unwrap_or_default()
}
