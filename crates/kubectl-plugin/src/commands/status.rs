//! `status`: one row a node.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use crate::api::nodes::{self, NodeEvent, NodeSelection, NodeWatcher};
use crate::fleet::node::{Carrier, NodeRow};
use crate::fleet::view::{View, human};
use crate::output::{self, Format, Out, Table, Tone};
use crate::{Context, Failure};
use kubelet_config::source::Source;

/// Options of `status`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The nodes, as NODE or node/NODE; default: all.
    #[arg(value_name = "NODE")]
    nodes: Vec<String>,
    /// Nodes with these labels, as kubectl takes them, such as pool=a,tier!=test.
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "nodes")]
    selector: Option<String>,
    /// Go on with a row for each change of a node, until interrupted (Ctrl-C).
    #[arg(short, long)]
    watch: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

impl Options {
    pub(crate) async fn run(self, context: &Context) -> Result<ExitCode, Failure> {
        let selection = NodeSelection::new(self.nodes, self.selector);
        if self.watch {
            return watch(context, selection, self.output).await.map(|()| ExitCode::SUCCESS);
        }
        let (rows, failed) = nodes::read_each(&context.api(), &selection).await?;
        let (format, now) = (self.output, now());
        if !rows.is_empty() || format.is_for_programs() {
            let documents = || rows.iter().map(|row| View::new(row, now).document()).collect();
            let mut table = table(format);
            for row in &rows {
                table.row(cells(row, format));
            }
            output::show(format, documents, |out| table.render(out))?;
        } else if failed.is_empty() {
            eprintln!("No nodes found");
        }
        for failure in &failed {
            eprintln!("error: {}", output::plain_lines(&failure.message));
        }
        Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// What a change is told by: a heartbeat, a label or an image changes nothing of it.
fn essence(row: &NodeRow) -> NodeRow {
    NodeRow { version: String::new(), assignment_written_at: String::new(), labels: BTreeMap::new(), ..row.clone() }
}

async fn watch(context: &Context, selection: NodeSelection, format: Format) -> Result<(), Failure> {
    let desired = selection.names.clone();
    let (mut nodes, rows) = NodeWatcher::new(&context.api(), selection).await?;
    for name in desired.iter().filter(|name| rows.iter().all(|row| row.name != **name)) {
        eprintln!("warning: there is no node {name} yet");
    }
    let mut lines = Lines { format, table: table(format), documents: String::new() };
    let mut shown = BTreeMap::new();
    for row in &rows {
        lines.row(row)?;
        shown.insert(row.name.clone(), essence(row));
    }
    while lines.flush()? {
        match nodes.next().await? {
            NodeEvent::Applied(row) => {
                let essence = essence(&row);
                if shown.get(&row.name) != Some(&essence) {
                    lines.row(&row)?;
                    shown.insert(row.name.clone(), essence);
                }
            }
            NodeEvent::Deleted(name) => {
                shown.remove(&name);
                lines.gone(name)?;
            }
        }
    }
    Ok(())
}

/// What is to be printed next: rows, or documents.
struct Lines {
    format: Format,
    table: Table,
    documents: String,
}

impl Lines {
    fn add(&mut self, cells: Vec<(Tone, String)>, document: &Value) -> Result<(), Failure> {
        if !self.format.is_for_programs() {
            self.table.row(cells);
            return Ok(());
        }
        if self.format == Format::Yaml {
            self.documents.push_str("---\n");
        }
        self.documents.push_str(&output::text_of(self.format, document)?);
        Ok(())
    }

    fn row(&mut self, row: &NodeRow) -> Result<(), Failure> {
        self.add(cells(row, self.format), &View::new(row, now()).document())
    }

    fn gone(&mut self, name: String) -> Result<(), Failure> {
        let document = json!({"node": name, "state": "deleted"});
        let state = (Tone::Bad, "deleted".to_owned());
        self.add(row_of(&NodeRow { name, ..NodeRow::default() }, self.format, &state, String::new()), &document)
    }

    /// Prints it; false if nobody reads any more.
    fn flush(&mut self) -> Result<bool, Failure> {
        let text = std::mem::take(&mut self.documents) + &self.table.take(Out::for_format(self.format));
        if text.is_empty() { Ok(true) } else { output::try_write_stdout(&text) }
    }
}

const WIDE: [&str; 9] =
    ["NODE", "KUBELET", "CARRIER", "ASSIGNED", "ACTIVE", "LAST-KNOWN-GOOD", "STATE", "AGE", "MESSAGE"];

fn table(format: Format) -> Table {
    match format {
        Format::Json | Format::Yaml => Table::default(),
        Format::Wide => Table::new(&WIDE),
        Format::Table => Table::new(&["NODE", "ASSIGNED", "STATE", "AGE", "MESSAGE"]),
    }
}

fn cells(row: &NodeRow, format: Format) -> Vec<(Tone, String)> {
    let view = View::new(row, now());
    row_of(row, format, &view.state(), view.message())
}

fn row_of(row: &NodeRow, format: Format, state: &(Tone, String), message: String) -> Vec<(Tone, String)> {
    let plain = |text: String| (Tone::Plain, text);
    let age = View::new(row, now()).age().map(human).unwrap_or_default();
    let name = |source: Option<&Source>| source.map_or_else(|| "local".to_owned(), version);
    let desired = row.desired.as_ref();
    let mut cells = vec![plain(row.name.clone())];
    if format == Format::Wide {
        let said = row.condition.is_some() || row.assigned.is_some() || row.active.is_some();
        let of = |source: Option<&Source>| if said { name(source) } else { String::new() };
        let carrier = row.carrier.map(Carrier::label).unwrap_or_default().to_owned();
        let assigned = desired.map(ToString::to_string).unwrap_or_default();
        let [active, good] = [&row.active, &row.last_known_good].map(|source| of(source.as_ref()));
        cells.extend([row.kubelet.clone(), carrier, assigned, active, good].map(plain));
    } else {
        cells.push(plain(desired.map(|desired| desired.name.clone()).unwrap_or_default()));
    }
    cells.extend([state.clone(), plain(age), plain(message)]);
    cells
}

/// A version in a column: the ConfigMap and its resourceVersion.
fn version(source: &Source) -> String {
    format!("{}/{}@{}", source.reference.namespace, source.reference.name, source.resource_version)
}
