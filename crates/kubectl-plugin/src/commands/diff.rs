//! `diff`: two configurations by field, and what going from one to the other would take.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use crate::api::client::Client;
use crate::commands::configuration::{self, ReadSide};
use crate::commands::pool_configuration;
use crate::fleet::compare::{Comparison, NodeFacts, compare};
use crate::fleet::config_ref::ConfigRef;
use crate::fleet::explain::Provenance;
use crate::fleet::node::{ConfigManager, NodeRow};
use crate::output::{self, Format, Out, Table, Tone};
use crate::{Context, Failure, context};
use kubelet_config::flags::FlagOverrides;
use kubelet_config::hazard::{Asks, Change, HazardClass, Impact};
use kubelet_config::readmission::{Certainty, Refusal};
use kubelet_config::reported::ReportedSupervisor;
use kubelet_config::schema;
use kubelet_config::source::Merge;

/// There are differences.
const DIFFERENT: u8 = 1;
/// There is no saying: as diff(1).
const ERROR: u8 = 2;

/// Options of `diff`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// What to compare: NODE or node/NODE (what its kubelet runs with), NAMESPACE/CONFIGMAP[/KEY], cm/CONFIGMAP (in the
    /// namespace of -n), pool/POOL, or a FILE (it begins with / or . or ends in .yaml, .yml or .json; `-`: standard input).
    #[arg(value_name = "FROM", value_parser = ConfigRef::parse)]
    from: ConfigRef,
    /// With what, in the same spelling.
    #[arg(value_name = "TO", value_parser = ConfigRef::parse)]
    to: ConfigRef,
    /// Files hold only what differs from the node's own file, as with `push --overlay`.
    #[arg(long)]
    overlay: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

impl Options {
    pub(crate) async fn run(self, connection: &context::Options) -> Result<ExitCode, Failure> {
        self.compare(connection).await.map_err(|failure| Failure { code: ERROR, ..failure })
    }

    async fn compare(self, connection: &context::Options) -> Result<ExitCode, Failure> {
        let is_file = |place: &ConfigRef| matches!(place, ConfigRef::File(_));
        // Two files need no cluster.
        let client =
            if is_file(&self.from) && is_file(&self.to) { None } else { Some(Context::new(connection).await?.api()) };
        let client = client.as_ref();
        let from = self.side(client, &self.from, &self.to).await?;
        let to = self.side(client, &self.to, &self.from).await?;
        let (from_row, to_row) = (&from.row, &to.row);
        let (mut notes, mut elsewhere) = (Vec::new(), None);
        let mut facts = NodeFacts::default();
        if let (Some(row), Some(client)) = (from_row, client) {
            match configuration::inventory(client, &row.name).await {
                Ok(inventory) => facts.inventory = Some(inventory),
                Err(failure) => notes.push(format!("which pods would be lost is not known: {}", failure.message)),
            }
        }
        let one = from_row.as_ref().map(|row| (row, &from.side.value));
        let runs = one.or(to_row.as_ref().map(|row| (row, &to.side.value)));
        if let (Some((row, configz)), Some(client)) = (runs, client)
            && from_row.is_some() != to_row.is_some()
        {
            let known;
            (known, elsewhere) = gather_facts(client, row, configz, &mut facts).await;
            notes.extend(known);
        }
        let minor = runs.and_then(|(row, _)| schema::minor(&row.kubelet).ok());
        let messages: Vec<String> = from.messages(minor).chain(to.messages(minor)).collect();
        notes.retain(|note| !messages.contains(note)); // of the ConfigMap that runs it may be said already
        notes.extend(messages);
        let mut comparison = compare(&from.side, &to.side, &facts);
        // What may be held matters to who changes something.
        notes.extend(elsewhere.filter(|_| !comparison.changes.is_empty()));
        comparison.notes.extend(notes);
        let result = ComparisonView { options: &self, comparison: &comparison, facts: &facts };
        output::show(self.output, || result.document(), |out| result.text(out))?;
        Ok(if comparison.changes.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(DIFFERENT) })
    }

    /// A pool with expressions says something for the node on the other side.
    async fn side(&self, client: Option<&Client>, place: &ConfigRef, other: &ConfigRef) -> Result<ReadSide, Failure> {
        let (ConfigRef::Pool(pool), Some(client)) = (place, client) else {
            let files = if self.overlay { Merge::Overlay } else { Merge::Replace };
            return configuration::side(client, place, files).await;
        };
        let node = if let ConfigRef::Node(name) = other { Some(name.as_str()) } else { None };
        let (reference, map) = pool_configuration::read(client, pool, node).await?;
        Ok(ReadSide::of_map(format!("{place} (ConfigMap {})", reference.name), map))
    }
}

/// A flag is not to be read through the API server, but it is seen by what it does. What else to say of the ConfigMap
/// that runs, and of flags.
async fn gather_facts(
    client: &Client,
    row: &NodeRow,
    configz: &Value,
    facts: &mut NodeFacts,
) -> (Vec<String>, Option<String>) {
    let elsewhere = format!(
        "flags and drop-ins of node {} cannot be read through the API server; `kubelet-supervisor status` on it names \
         the fields they shadow",
        row.name
    );
    let Some(in_force) = configuration::in_force(client, row).await else {
        // Of a node that says nothing nobody knows.
        let own = row.manager != Some(ConfigManager::Nobody);
        (facts.gates, facts.flags) = (own.then(BTreeSet::new), own.then(FlagOverrides::default));
        let unknown = format!("{elsewhere}; a change of a field that one of them holds will not take place");
        return (Vec::new(), Some(unknown));
    };
    let notes = in_force.notes;
    let Some(map) = in_force.map else {
        return (notes, Some(elsewhere));
    };
    let fields = map.fields();
    let origins = map.explain(configz, &ReportedSupervisor::default(), schema::minor(&row.kubelet).ok());
    let held = origins.into_iter().filter(|origin| matches!(origin.from, Provenance::Overridden | Provenance::Flag));
    facts.held = held.map(|origin| origin.field).collect();
    let gates = fields.get("featureGates").and_then(Value::as_object).into_iter().flatten();
    facts.gates = Some(gates.map(|(gate, _)| gate.clone()).collect());
    facts.payload = Some(fields);
    facts.flags = Some(map.overrides);
    let elsewhere = format!("{elsewhere}; those that hold a field against ConfigMap {} are marked", in_force.title);
    (notes, Some(elsewhere))
}

struct ComparisonView<'a> {
    options: &'a Options,
    comparison: &'a Comparison,
    facts: &'a NodeFacts,
}

impl ComparisonView<'_> {
    fn is_held(&self, change: &Change) -> bool {
        self.facts.holds(&change.field)
    }

    fn is_refused(&self, change: &Change) -> bool {
        change.class.is_refused() && !self.is_held(change)
    }

    /// A line a change; what does not fit on a terminal has a second one, for no value must be cut off another.
    fn table(&self, out: Out) -> String {
        let mut table = Table::new(&["FIELD", "CLASS", "ASKS FOR"]);
        let mut values = vec!["CHANGE".to_owned()];
        for change in &self.comparison.changes {
            let asks = if self.is_held(change) { "held by flag or drop-in" } else { change.asks().label() };
            let class = (self.tone(change), change.class.to_string());
            table.row([(Tone::Plain, output::plain(&change.field)), class, (Tone::Plain, asks.to_owned())]);
            // `110 → 50`: a long field is cut in the text, and a secret's values are hidden.
            let line = change.to_string();
            values.push(output::plain(line.split_once(": ").map_or(&line, |(_, values)| values)));
        }
        let bare = table.render(Out { colour: false, width: None });
        let width = bare.lines().map(|line| line.chars().count()).max().unwrap_or_default();
        let mut text = String::new();
        let lines = table.render(Out { width: None, ..out });
        for ((line, bare), value) in lines.lines().zip(bare.lines()).zip(&values) {
            let gap = width.saturating_sub(bare.chars().count()) + 3;
            let fits = out.width.is_none_or(|room| width + 3 + value.chars().count() <= room);
            let between = if fits { " ".repeat(gap) } else { format!("\n{}", " ".repeat(4)) };
            let _ = writeln!(text, "{line}{between}{value}");
        }
        text
    }

    fn tone(&self, change: &Change) -> Tone {
        match change.class {
            _ if self.is_held(change) => Tone::Plain,
            class if class.is_refused() => Tone::Bad,
            HazardClass::Tuning => Tone::Plain,
            _ => Tone::Open,
        }
    }

    fn text(&self, out: Out) -> String {
        let Comparison { changes, impacts, open, notes } = self.comparison;
        let text = if changes.is_empty() {
            let title = format!("{} → {}", self.options.from, self.options.to);
            format!("{}: no field differs\n", output::plain(&title))
        } else {
            self.table(out)
        };
        let mut lines = Vec::new();
        for impact in impacts {
            let pods: Vec<String> = impact.pods.iter().map(ToString::to_string).collect();
            let pods = if pods.is_empty() { String::new() } else { format!(": {}", pods.join(", ")) };
            let (tone, what) = if impact.is_certain { (Tone::Bad, "lost") } else { (Tone::Open, "at risk") };
            lines.push((tone, format!("pods {what} ({}): {}{pods}", impact.field, impact.message)));
        }
        lines.extend(self.needs().into_iter().map(|line| (Tone::Plain, line)));
        let refused: BTreeSet<&str> =
            changes.iter().filter(|change| self.is_refused(change)).map(Change::top).collect();
        if !refused.is_empty() {
            let fields = refused.into_iter().collect::<Vec<_>>().join(", ");
            let why = format!(
                "{fields}: refused by the supervisor of a live node until the ConfigMap acknowledges it (annotation \
                 kubelet-supervisor.io/acknowledge)"
            );
            lines.push((Tone::Bad, why));
        }
        let unsaid = |field: &String| {
            (Tone::Plain, format!("{field}: one side leaves it to a default that depends on the node"))
        };
        lines.extend(open.iter().map(unsaid));
        lines.extend(notes.iter().map(|note| (Tone::Plain, format!("note: {note}"))));
        text + &output::below(out, &lines)
    }

    /// What to know, each said once with the fields it is about.
    fn needs(&self) -> Vec<String> {
        let mut said: Vec<(&str, Vec<&str>)> = Vec::new();
        let worth = |change: &&Change| {
            !change.needs.is_empty() && change.asks() != Asks::NewContainers && !self.is_held(change)
        };
        for change in self.comparison.changes.iter().filter(worth) {
            match said.iter_mut().find(|(needs, _)| *needs == change.needs) {
                Some((_, fields)) if fields.contains(&change.top()) => {}
                Some((_, fields)) => fields.push(change.top()),
                None => said.push((change.needs, vec![change.top()])),
            }
        }
        said.into_iter().map(|(needs, fields)| format!("{}: {needs}", fields.join(", "))).collect()
    }

    fn document(&self) -> Value {
        let Comparison { changes, impacts, open, notes } = self.comparison;
        let change = |change: &Change| {
            let value = |value: &Value| if change.is_secret() { "(hidden)".into() } else { value.clone() };
            json!({
                "field": change.field, "old": value(&change.old), "new": value(&change.new),
                "class": change.class.label(), "asksFor": change.asks().label(), "needs": change.needs,
                "refusedOnLiveNode": self.is_refused(change), "heldByFlagOrDropIn": self.is_held(change),
            })
        };
        let refusal = |refusal: &Refusal| {
            let is_certain = refusal.certainty == Certainty::Refused;
            json!({ "pod": refusal.pod, "reason": refusal.reason.to_string(), "certain": is_certain })
        };
        let impact = |impact: &Impact| {
            let refusals: Vec<Value> = impact.pods.iter().map(refusal).collect();
            json!({ "field": impact.field, "message": impact.message, "pods": impact.lost(), "refusals": refusals })
        };
        json!({
            "from": self.options.from.to_string(), "to": self.options.to.to_string(), "same": changes.is_empty(),
            "changes": changes.iter().map(change).collect::<Vec<_>>(),
            "podsLost": impacts.iter().map(impact).collect::<Vec<_>>(),
            "defaultsNotKnown": open, "notes": notes,
        })
    }
}
