//! `diff`: two configurations by field, and what going from one to the other would take.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::output::{self, Format, Out, Table, Tone};
use super::{Context, Failure, config, context};
use crate::core::fleet::compare::{Comparison, compare};
use crate::core::fleet::explain::{self, From, Given, Origin};
use crate::core::fleet::node::NodeRow;
use crate::core::fleet::place::Place;
use crate::core::fleet::schema;
use crate::core::hazard::{Asks, Change, HazardClass};

/// There are differences.
const DIFFERENT: u8 = 1;
/// There is no saying: as diff(1).
const ERROR: u8 = 2;

/// `-o`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Shown {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
    /// For programs and people.
    Yaml,
}

/// Options of `diff`.
#[derive(Debug, Args)]
pub struct Options {
    /// NODE, NAMESPACE/CONFIGMAP, cm/CONFIGMAP or FILE.
    #[arg(value_name = "FROM", value_parser = Place::parse)]
    from: Place,
    /// The same.
    #[arg(value_name = "TO", value_parser = Place::parse)]
    to: Place,
    /// How.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Shown,
}

/// What a flag or drop-in of the node holds against its ConfigMap, and what can be said of that.
#[derive(Default)]
struct Overrides {
    /// By field: what the ConfigMap says in vain.
    fields: BTreeMap<String, Value>,
    notes: Vec<String>,
}

impl Options {
    pub(super) async fn run(self, connection: &context::Options) -> Result<ExitCode, Failure> {
        self.compare(connection).await.map_err(|failure| Failure { code: ERROR, ..failure })
    }

    async fn compare(self, connection: &context::Options) -> Result<ExitCode, Failure> {
        let is_file = |place: &Place| matches!(place, Place::File(_));
        // Two files need no cluster.
        let context =
            if is_file(&self.from) && is_file(&self.to) { None } else { Some(Context::new(connection).await?) };
        let context = context.as_ref();
        let (from, from_row) = config::side(context, &self.from).await?;
        let (to, to_row) = config::side(context, &self.to).await?;
        let mut notes = Vec::new();
        let mut census = None;
        if let (Some(row), Some(context)) = (&from_row, context) {
            match config::census(context, &row.name).await {
                Ok(counted) => census = Some(counted),
                Err(failure) => notes.push(format!("which pods would be lost is not known: {}", failure.message)),
            }
        }
        let mut comparison = compare(&from, &to, census.as_ref());
        let mut overrides = Overrides::default();
        let runs = from_row.as_ref().map(|row| (row, &from.value)).or(to_row.as_ref().map(|row| (row, &to.value)));
        if let (Some((row, configz)), Some(context)) = (runs, context)
            && from_row.is_some() != to_row.is_some()
        {
            overrides = overridden(context, row, configz).await;
        }
        comparison.notes.extend(notes);
        comparison.notes.append(&mut overrides.notes);
        let result = Shows { options: &self, comparison: &comparison, overrides: &overrides.fields };
        match self.output {
            Shown::Table => output::print(&result.text(Out::stdout()))?,
            Shown::Json => output::document(Format::Json, &result.document())?,
            Shown::Yaml => output::document(Format::Yaml, &result.document())?,
        }
        Ok(if comparison.changes.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(DIFFERENT) })
    }
}

/// A flag is not to be read through the API server, but it is seen by what it does.
async fn overridden(context: &Context, row: &NodeRow, configz: &Value) -> Overrides {
    let elsewhere = format!(
        "flags and drop-ins of node {} cannot be read through the API server; `kubelet-supervisor status` on it names \
         the fields they shadow",
        row.name
    );
    let Some(in_force) = config::in_force(context, row).await else {
        return Overrides { notes: vec![elsewhere], ..Overrides::default() };
    };
    let mut notes = in_force.notes;
    let Some(map) = in_force.map else {
        notes.push(elsewhere);
        return Overrides { notes, ..Overrides::default() };
    };
    let given = Given { payload: &map.value, merge: map.merge };
    let origins = explain::explain(configz, Some(given), schema::minor(&row.kubelet).ok());
    let held = |origin: Origin| (origin.from == From::Overridden).then_some((origin.field, origin.intended));
    notes.push(format!("{elsewhere}; those that go against ConfigMap {} are marked", in_force.title));
    Overrides { fields: origins.into_iter().filter_map(held).collect(), notes }
}

struct Shows<'a> {
    options: &'a Options,
    comparison: &'a Comparison,
    overrides: &'a BTreeMap<String, Value>,
}

impl Shows<'_> {
    /// A flag or drop-in holds this field, or a part of it.
    fn is_held(&self, change: &Change) -> bool {
        let near =
            |field: &String| explain::is_within(field, &change.field) || explain::is_within(&change.field, field);
        self.overrides.keys().any(near)
    }

    fn text(&self, out: Out) -> String {
        let Comparison { changes, impacts, open, notes } = self.comparison;
        let mut text = String::new();
        let title = format!("{} → {}", self.options.from, self.options.to);
        if changes.is_empty() {
            let _ = writeln!(text, "{}: no field differs", output::plain(&title));
        } else {
            let mut table = Table::new(&["FIELD", "CLASS", "ASKS FOR", "CHANGE"]);
            for change in changes {
                let asks = if self.is_held(change) { "held by flag or drop-in" } else { change.asks().words() };
                let plain = |text: &str| (Tone::Plain, output::plain(text));
                table.row([
                    plain(&change.field),
                    (tone(change), change.class.to_string()),
                    plain(asks),
                    plain(&values(change)),
                ]);
            }
            text.push_str(&table.render(out));
        }
        let mut lines = Vec::new();
        for impact in impacts {
            let pods = if impact.pods.is_empty() { String::new() } else { format!(": {}", impact.pods.join(", ")) };
            lines.push((Tone::Bad, format!("pods lost ({}): {}{pods}", impact.field, impact.message)));
        }
        lines.extend(needs(changes).into_iter().map(|line| (Tone::Plain, line)));
        if changes.iter().any(|change| change.class.is_refused()) {
            let why = "a supervisor refuses it on a live node until the ConfigMap acknowledges it (annotation \
                       kubelet-supervisor.io/acknowledge)";
            lines.push((Tone::Bad, why.to_owned()));
        }
        let unsaid = |field: &String| {
            (Tone::Plain, format!("{field}: one side leaves it to a default that depends on the node"))
        };
        lines.extend(open.iter().map(unsaid));
        lines.extend(notes.iter().map(|note| (Tone::Plain, format!("note: {note}"))));
        if !lines.is_empty() {
            text.push('\n');
        }
        for (tone, line) in lines {
            text.push_str(&output::paragraph(out, tone, &line));
        }
        text
    }

    fn document(&self) -> Value {
        let Comparison { changes, impacts, open, notes } = self.comparison;
        let change = |change: &Change| {
            let value = |value: &Value| if change.is_secret() { "(hidden)".into() } else { value.clone() };
            json!({
                "field": change.field, "old": value(&change.old), "new": value(&change.new),
                "class": change.class.word(), "asksFor": change.asks().words(), "needs": change.needs,
                "refusedOnLiveNode": change.class.is_refused(), "heldByFlagOrDropIn": self.is_held(change),
            })
        };
        let impact = |impact: &crate::core::hazard::Impact| json!({ "field": impact.field, "message": impact.message, "pods": impact.pods });
        json!({
            "from": self.options.from.to_string(), "to": self.options.to.to_string(), "same": changes.is_empty(),
            "changes": changes.iter().map(change).collect::<Vec<_>>(),
            "podsLost": impacts.iter().map(impact).collect::<Vec<_>>(),
            "defaultsNotKnown": open, "notes": notes,
        })
    }
}

fn tone(change: &Change) -> Tone {
    match change.class {
        class if class.is_refused() => Tone::Bad,
        HazardClass::Tuning => Tone::Plain,
        _ => Tone::Open,
    }
}

/// `110 → 50`.
fn values(change: &Change) -> String {
    let line = change.to_string();
    // A long field is cut in it, and a secret's values are hidden.
    line.split_once(": ").map_or(line.clone(), |(_, values)| values.to_owned())
}

/// What to know, each said once with the fields it is about.
fn needs(changes: &[Change]) -> Vec<String> {
    let mut said: Vec<(&str, Vec<&str>)> = Vec::new();
    for change in changes.iter().filter(|change| !change.needs.is_empty() && change.asks() != Asks::NewContainers) {
        match said.iter_mut().find(|(needs, _)| *needs == change.needs) {
            Some((_, fields)) if fields.contains(&change.top()) => {}
            Some((_, fields)) => fields.push(change.top()),
            None => said.push((change.needs, vec![change.top()])),
        }
    }
    said.into_iter().map(|(needs, fields)| format!("{}: {needs}", fields.join(", "))).collect()
}
