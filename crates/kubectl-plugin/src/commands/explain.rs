//! `explain`: where each value comes from that a kubelet runs with.

use clap::Args;
use serde_json::{Value, json};

use crate::api::nodes::{self, bare_name};
use crate::commands::configuration;
use crate::fleet::explain::{Origin, Provenance, explain};
use crate::fleet::node::{ConfigManager, NodeRow, Stage};
use crate::output::{self, Format, Out, Table, Tone};
use crate::{Context, Failure};
use kubelet_config::bounds::shortened;
use kubelet_config::hazard::{self, Hazard, table};
use kubelet_config::reported::ReportedSupervisor;
use kubelet_config::schema::{self, is_within};

/// Options of `explain`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The node, as NODE or node/NODE.
    #[arg(value_name = "NODE")]
    node: String,
    /// Only this field and what is below it, such as kubeReserved or authentication.x509.clientCAFile.
    #[arg(value_name = "FIELD")]
    field: Option<String>,
    /// Show fields at their defaults too.
    #[arg(short, long)]
    all: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

/// What is known of the node.
struct Known {
    row: NodeRow,
    map: Option<String>,
    origins: Vec<Origin>,
    notes: Vec<String>,
}

impl Options {
    pub(crate) async fn run(self, context: &Context) -> Result<(), Failure> {
        let name = bare_name(&self.node);
        let client = context.api();
        let node = nodes::get(&client, name).await?;
        let row = NodeRow::from_node(&node, &context.namespace);
        let supervisor = ReportedSupervisor::from_node(&node);
        let configz = configuration::running(&client, name).await?;
        let mut notes = standing(&row);
        let in_force = configuration::in_force(&client, &row).await;
        let given = in_force.as_ref().and_then(|in_force| in_force.map.as_ref());
        let minor = schema::minor(&row.kubelet).ok();
        let origins = match given {
            Some(map) => map.explain(&configz, &supervisor, minor),
            None => explain(&configz, None, minor),
        };
        let map = in_force.as_ref().map(|in_force| in_force.title.clone());
        notes.extend(in_force.into_iter().flat_map(|in_force| in_force.notes));
        let known = Known { row, map, origins: self.chosen(origins)?, notes };
        output::show(self.output, || known.document(), |out| self.text(&known, out))
    }

    /// Those of the field asked for.
    fn chosen(&self, origins: Vec<Origin>) -> Result<Vec<Origin>, Failure> {
        let Some(field) = &self.field else { return Ok(origins) };
        let chosen: Vec<Origin> = origins.into_iter().filter(|origin| is_within(&origin.field, field)).collect();
        let top = field.split('.').next().unwrap_or_default();
        match (chosen.is_empty(), table::find(top)) {
            (false, _) => Ok(chosen),
            (true, Some(_)) => {
                Err(Failure::new(format!("the kubelet of node {} says nothing of {field:?}: it is not set", self.node)))
            }
            (true, None) => Err(Failure::new(format!(
                "{field:?} is no field of a KubeletConfiguration; names are told apart by case"
            ))),
        }
    }

    fn text(&self, known: &Known, out: Out) -> String {
        let wide = self.output == Format::Wide;
        let headings: &[&str] =
            if wide { &["FIELD", "VALUE", "INTENDED", "FROM"] } else { &["FIELD", "VALUE", "FROM"] };
        let mut table = Table::new(headings);
        let shown = |origin: &&Origin| self.all || self.field.is_some() || origin.from != Provenance::Default;
        // On a terminal a value leaves room for where it comes from.
        let cell =
            |field: &str, value: &Value| cell(field, value, if out.width.is_some() { LONGEST } else { usize::MAX });
        for origin in known.origins.iter().filter(shown) {
            let tone = if origin.from == Provenance::Overridden { Tone::Bad } else { Tone::Plain };
            let intended = cell(&origin.field, &origin.intended);
            let from = match (origin.from, &known.map) {
                (Provenance::ConfigMap, Some(map)) if wide => {
                    origin.label().replacen("ConfigMap", &format!("ConfigMap {map}"), 1)
                }
                (Provenance::Overridden, _) if !wide => format!("{}: {intended}", origin.label()),
                _ => origin.label(),
            };
            let value = cell(&origin.field, &origin.value);
            let values = if wide { vec![value, intended] } else { vec![value] };
            let cells = std::iter::once(origin.field.clone()).chain(values).map(|text| (Tone::Plain, text));
            table.row(cells.chain([(tone, from)]));
        }
        let text = table.render(out);
        let mut lines = Vec::new();
        if let Some(map) = known.map.as_ref().filter(|_| !wide) {
            lines.push(format!("the ConfigMap is {map}"));
        }
        let hidden = known.origins.iter().filter(|origin| !shown(origin)).count();
        if hidden > 0 {
            let are = if hidden == 1 { "field is at its default" } else { "fields are at their defaults" };
            lines.push(format!("{hidden} {are}; --all shows them"));
        }
        let elsewhere = |origin: &Origin| {
            let there = matches!(origin.from, Provenance::Flag | Provenance::Overridden | Provenance::Node);
            there && origin.flag.is_none()
        };
        let is_supervised = known.row.manager == Some(ConfigManager::Supervisor);
        if is_supervised && known.origins.iter().filter(shown).any(elsewhere) {
            lines.push("which file or flag: `kubelet-supervisor render --effective`, on the node".to_owned());
        }
        if let Some(hazard) = self.field.as_deref().and_then(|field| table::find(field.split('.').next()?)) {
            let Hazard { field, class, asks, needs, .. } = hazard;
            let needs = if needs.is_empty() { String::new() } else { format!(" ({needs})") };
            lines.push(format!("a change of {field} is of class {class} and asks for: {}{needs}", asks.label()));
        }
        lines.extend(known.notes.iter().map(|note| format!("note: {note}")));
        let lines: Vec<_> = lines.into_iter().map(|line| (Tone::Plain, line)).collect();
        text + &output::below(out, &lines)
    }
}

impl Known {
    fn document(&self) -> Value {
        let field = |origin: &Origin| {
            let value =
                |value: &Value| if hazard::is_secret(&origin.field) { "(hidden)".into() } else { value.clone() };
            let mut field = json!({
                "field": origin.field, "value": value(&origin.value), "intended": value(&origin.intended),
                "from": origin.from,
            });
            if let (Some(flag), Some(fields)) = (&origin.flag, field.as_object_mut()) {
                fields.insert("flag".to_owned(), format!("--{flag}").into());
            }
            field
        };
        json!({
            "node": self.row.name, "kubelet": self.row.kubelet, "configMap": self.map,
            "fields": self.origins.iter().map(field).collect::<Vec<_>>(), "notes": self.notes,
        })
    }
}

/// Of a value on a terminal: it leaves half of 80 columns for others.
const LONGEST: usize = 28;

/// A cell: JSON, of no more characters than this.
fn cell(field: &str, value: &Value, longest: usize) -> String {
    if value.is_null() {
        return String::new();
    }
    if hazard::is_secret(field) {
        return "(hidden)".to_owned();
    }
    shortened(&value.to_string(), longest.saturating_add(1), 0)
}

/// What to know of the node before its values.
fn standing(row: &NodeRow) -> Vec<String> {
    let mut notes = Vec::new();
    if row.manager == Some(ConfigManager::Nobody) {
        notes.push("no supervisor says anything of this node: whatever runs is its own".to_owned());
    }
    if row.desired.is_some() && row.assigned != row.active {
        let name = row.desired.as_ref().map(ToString::to_string).unwrap_or_default();
        notes.push(format!(
            "{name} is assigned and is not what runs: `kubectl kubelet-config status {}` says why",
            row.name
        ));
    }
    if row.stage() == Stage::OnTrial {
        notes.push("what runs is on trial and may be rolled back".to_owned());
    }
    notes
}
