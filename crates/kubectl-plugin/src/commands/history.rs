//! `history`: the events of a node's configuration.

use clap::Args;
use serde_json::json;

use crate::api::client::segment;
use crate::api::list::{Selector, list};
use crate::api::nodes::{self, bare_name};
use crate::commands::status::now;
use crate::fleet::events::{self, ConfigEvent};
use crate::fleet::view::{human, seconds_since};
use crate::output::{self, Format, Table, Tone};
use crate::{Context, Failure};

/// Where events about Nodes, which have no namespace, are kept.
const EVENTS: &str = "/api/v1/namespaces/default/events";

/// Options of `history`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The node, as NODE or node/NODE.
    #[arg(value_name = "NODE")]
    node: String,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

impl Options {
    pub(crate) async fn run(self, context: &Context) -> Result<(), Failure> {
        let node = segment(bare_name(&self.node), "node").map_err(|error| Failure::new(error.to_string()))?;
        let selector = Selector::default().fields(&format!("involvedObject.kind=Node,involvedObject.name={node}"));
        let what = format!("list the events of node {node} in namespace default");
        let api = context.api();
        let mut events = list(&api, EVENTS, &what, selector, |event| ConfigEvent::from_event(&event)).await?;
        events::sort(&mut events);
        if events.is_empty() {
            // A node that is not there is not one without events.
            nodes::get(&api, node).await?;
            eprintln!(
                "note: the API server has no events of node {node}'s configuration; it keeps them for an hour, if nobody \
                 told it otherwise: `kubelet-supervisor history` on the node goes further back"
            );
        }
        let document = || json!(events.iter().map(ConfigEvent::document).collect::<Vec<_>>());
        let text = |out| if events.is_empty() { String::new() } else { table(&events, self.output).render(out) };
        output::show(self.output, document, text)
    }
}

fn table(events: &[ConfigEvent], format: Format) -> Table {
    let wide = format == Format::Wide;
    let first: &[&str] = if wide { &["LAST (UTC)", "FIRST (UTC)"] } else { &["LAST SEEN"] };
    let headings: Vec<&str> = first.iter().chain(&["COUNT", "REASON", "MESSAGE"]).copied().collect();
    let mut table = Table::new(&headings).whole();
    let now = now();
    let plain = |text: String| (Tone::Plain, text);
    let utc = |time: &str| time.split('.').next().unwrap_or_default().trim_end_matches('Z').to_owned();
    for event in events {
        let times = if wide {
            vec![utc(&event.last), utc(&event.first)]
        } else {
            vec![seconds_since(&event.last, now).map(human).unwrap_or_default()]
        };
        let tone = if event.warning { Tone::Bad } else { Tone::Plain };
        let rest = [plain(event.count.to_string()), (tone, event.reason.clone()), plain(event.message.clone())];
        table.row(times.into_iter().map(plain).chain(rest));
    }
    table
}
