//! Writing to nodes one after the other: which ones, how, and what is said of each.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::api::client::{ApiError, Client};
use crate::api::nodes::{self, NodeSelection};
use crate::api::pools::{self, StoredPool};
use crate::api::write::{AssignmentWriter, DryRun, Target, WriteError, patch_node};
use crate::context::Context;
use crate::failure::Failure;
use crate::fleet::assign::{self, WrittenAssignment};
use crate::fleet::node::{Carrier, ConfigManager, NodeRow};
use crate::fleet::wait::Expectation;
use crate::output::{self, plain};
use kubelet_config::assignment::reference_fault;
use kubelet_config::merge::merge;
use kubelet_config::source::ConfigMapRef;

/// A Node that a kubelet reports on changes under our hands now and then; so often in a row it does not.
const CONFLICTS: u32 = 10;

/// Two carriers, a contradiction to remove, and one to spare.
const PATCHES: u32 = 4;

/// `--carrier`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CarrierChoice {
    /// spec.configSource where the API server keeps it, else labels.
    #[default]
    Auto,
    /// spec.configSource.
    Native,
    /// Node labels.
    Labels,
}

impl From<CarrierChoice> for Option<Carrier> {
    fn from(choice: CarrierChoice) -> Self {
        match choice {
            CarrierChoice::Auto => None,
            CarrierChoice::Native => Some(Carrier::Native),
            CarrierChoice::Labels => Some(Carrier::Labels),
        }
    }
}

/// Which nodes a command that changes something is about: all of them is nothing to say by leaving something out.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Targets {
    /// The nodes, as NODE or node/NODE.
    #[arg(value_name = "NODE")]
    nodes: Vec<String>,
    /// Nodes with these labels, as kubectl takes them, such as pool=a,tier!=test.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
}

impl Targets {
    pub(crate) fn selection(self) -> NodeSelection {
        NodeSelection::new(self.nodes, self.selector)
    }
}

/// What every writing command takes.
#[derive(Clone, Debug, Args)]
#[group(skip)]
pub(crate) struct Writing {
    #[command(flatten)]
    targets: Targets,
    /// none: do it; client: only say what would be written; server: have the API server check it, and keep nothing.
    #[arg(long, value_enum, default_value = "none", default_missing_value = "client", num_args = 0..=1, require_equals = true)]
    dry_run: DryRun,
}

impl Writing {
    /// A writer, and the nodes as they are. Names that cannot be read are said and counted; a selector of nothing is an
    /// error. `carrier`: the only one to write; none: the one that the API server keeps.
    pub(crate) async fn open(
        self,
        context: &Context,
        carrier: Option<Carrier>,
    ) -> Result<(Writer, Vec<NodeRow>), Failure> {
        let mut writer = Writer {
            client: context.api(),
            selection: self.targets.selection(),
            assignments: AssignmentWriter::new(carrier, self.dry_run),
            done: BTreeMap::new(),
            failed: 0,
            pools: None,
        };
        let (rows, failed) = nodes::read_each(&writer.client, &writer.selection).await?;
        for failure in &failed {
            writer.failed(&failure.message);
        }
        if rows.is_empty() && failed.is_empty() {
            return Err(writer.selection.nothing());
        }
        Ok((writer, rows))
    }
}

/// Writes to nodes and counts.
pub(crate) struct Writer {
    pub(crate) client: Client,
    pub(crate) selection: NodeSelection,
    assignments: AssignmentWriter,
    /// Nodes that now ask for what they should, and what is expected of each.
    pub(crate) done: BTreeMap<String, Expectation>,
    failed: u32,
    /// That are carried out, once they were read.
    pools: Option<Vec<StoredPool>>,
}

impl Writer {
    /// True if what was written is there.
    pub(crate) fn is_real(&self) -> bool {
        self.assignments.dry_run == DryRun::None
    }

    /// Says why something was not done to a node, and goes on.
    pub(crate) fn failed(&mut self, message: &str) {
        self.failed += 1;
        eprintln!("error: {}", plain(message));
    }

    /// Has the node ask for this, and says what was written. A failure is said and counted.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub(crate) async fn assign(&mut self, row: NodeRow, expected: &Expectation, verb: &str) -> Result<(), Failure> {
        let (map, dry_run) = (expected.target.as_ref(), self.assignments.dry_run);
        let name = row.name.clone();
        let before = assign::describe(&row);
        let nobody = row.manager == Some(ConfigManager::Nobody);
        self.warn_of_pool(&row).await;
        let mut node = ReadNode { client: self.client.clone(), row, answer: None, conflicts: 0, is_written: false };
        let written = self.assignments.write(&self.client, &name, map, &mut node, PATCHES + CONFLICTS).await;
        if let Err(WriteError::Refused(why) | WriteError::Failed(Failure { message: why, .. })) = written {
            self.failed(&format!("node/{name}: {why}"));
            return Ok(());
        }
        let after = node.answer.as_ref().unwrap_or(&node.row);
        let line = if node.is_written {
            let was = if map.is_none() { format!(", was {before}") } else { String::new() };
            // Whoever asks nobody cannot know.
            let unsure = dry_run == DryRun::Client
                && self.assignments.only.is_none()
                && self.assignments.keeps_source.is_none()
                && map.is_some()
                && after.carrier == Some(Carrier::Native);
            let or = if unsure { ", or labels if the API server drops that" } else { "" };
            format!("node/{name} {verb}: {}{or}{was}{}", assign::describe(after), dry_run.suffix())
        } else {
            format!("node/{name} unchanged: {}", assign::describe(after))
        };
        output::write_stdout(&(plain(&line) + "\n"))?;
        if nobody {
            let hint =
                "no supervisor has said anything there: it takes effect when one runs (kubelet-supervisor enable)";
            eprintln!("warning: node/{name}: {hint}");
        }
        self.done.insert(name, expected.clone());
        Ok(())
    }

    /// What is written into its nodes a pool undoes. Who may not list pools, or has none, is told nothing.
    async fn warn_of_pool(&mut self, row: &NodeRow) {
        if self.pools.is_none() {
            self.pools = Some(pools::list(&self.client).await.unwrap_or_default());
        }
        let is_its_own = |pool: &&StoredPool| {
            let spec = &pool.pool.spec;
            !spec.paused && spec.node_selector.selects(&row.labels)
        };
        if let Some(StoredPool { name, .. }) = self.pools.iter().flatten().find(is_its_own) {
            eprintln!(
                "warning: node/{} is in pool {name}, which undoes this: edit the pool, or `kubectl kubelet-config rollout undo {name}`; \
                 `rollout pause {name}` keeps it from its nodes",
                plain(&row.name)
            );
        }
    }

    /// Sets an annotation, and says so. It names a version, so no other state of the Node can make it wrong.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub(crate) async fn annotate(
        &mut self,
        node: &str,
        annotation: &str,
        value: &str,
        done: &str,
    ) -> Result<(), Failure> {
        let patch = json!({"metadata": {"annotations": {annotation: value}}});
        let dry_run = self.assignments.dry_run;
        if dry_run != DryRun::Client
            && let Err(error) = patch_node(&self.client, node, &patch, dry_run == DryRun::Server).await
        {
            let why = if error.is_conflict() || error.refuses_source() {
                format!("the API server refuses the annotation {annotation}")
            } else {
                Failure::from(error).message
            };
            self.failed(&format!("node/{node}: {why}"));
            return Ok(());
        }
        let line = plain(&format!("node/{node} {done}: {annotation}={value}"));
        output::write_stdout(&format!("{line}{}\n", dry_run.suffix()))
    }

    /// Says that there is nothing to do to a node: an error if the user named it, no matter if a selector chose it.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub(crate) fn skipped(&mut self, node: &str, why: &str) -> Result<(), Failure> {
        if self.selection.labels.is_none() {
            self.failed(&format!("node/{node}: {why}"));
            return Ok(());
        }
        output::write_stdout(&format!("{}\n", plain(&format!("node/{node} skipped: {why}"))))
    }

    /// 0, or 1 if anything failed.
    pub(crate) fn code(&self) -> ExitCode {
        if self.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// A Node that was read before it is written.
struct ReadNode {
    client: Client,
    row: NodeRow,
    /// As it would be, in a dry run.
    answer: Option<NodeRow>,
    conflicts: u32,
    is_written: bool,
}

impl Target for ReadNode {
    fn current(&self) -> Option<(WrittenAssignment, String)> {
        Some((WrittenAssignment::from_row(&self.row), self.row.version.clone()))
    }

    fn answered(&mut self, node: &Value, dry_run: DryRun) -> WrittenAssignment {
        let row = NodeRow::from_node(node, &self.client.namespace);
        let is = WrittenAssignment::from_row(&row);
        if dry_run == DryRun::None {
            self.is_written |= WrittenAssignment::from_row(&self.row) != is;
            self.row = row;
        } else {
            (self.answer, self.is_written) = (Some(row), true);
        }
        is
    }

    fn planned(&mut self, patch: &Value) {
        (self.answer, self.is_written) = (Some(applied(&self.row, patch, &self.client.namespace)), true);
    }

    /// After a conflict: a heartbeat is no matter, another assignment is.
    async fn failed(&mut self, error: ApiError) -> Result<bool, Failure> {
        if !error.is_conflict() {
            return Err(error.into());
        }
        if self.conflicts == CONFLICTS {
            return Err(Failure::new("the Node changes faster than it can be written: try again"));
        }
        self.conflicts += 1;
        let row = NodeRow::from_node(&nodes::get(&self.client, &self.row.name).await?, &self.client.namespace);
        if (&row.desired, row.carrier) != (&self.row.desired, self.row.carrier) {
            let now = assign::describe(&row);
            return Err(Failure::new(format!(
                "somebody else has assigned to it meanwhile ({now}): look, and try again"
            )));
        }
        self.row = row;
        Ok(true)
    }
}

/// What a Node would be after a patch, if the API server keeps all of it.
fn applied(row: &NodeRow, patch: &Value, namespace: &str) -> NodeRow {
    let source = row.desired.as_ref().filter(|_| row.carrier == Some(Carrier::Native));
    let source = source.map(|desired| json!({"configMap": desired}));
    let mut node = json!({"metadata": {"name": row.name, "labels": row.labels}, "spec": {"configSource": source}});
    merge(&mut node, patch);
    NodeRow::from_node(&node, namespace)
}

/// The ConfigMap of an assignment, which must be there and have the key. `None`, after a warning, if the user may not
/// read it: the nodes may.
///
/// # Errors
/// It is not there, or has no such key; or the API server cannot say.
pub(crate) async fn readable_config_map(client: &Client, target: &ConfigMapRef) -> Result<Option<Value>, Failure> {
    let ConfigMapRef { namespace, name, kubelet_config_key: key } = target;
    if let Some((part, why)) = reference_fault(target) {
        return Err(Failure::new(format!("get ConfigMap {namespace}/{name}: {part}: {why}")));
    }
    let map = match client.config_map(namespace, name).await {
        Ok(map) => map,
        Err(error) if error.code() == 403 => {
            eprintln!(
                "warning: you may not get ConfigMap {namespace}/{name}, so nobody has checked that it is there and has \
                 the key {key}"
            );
            return Ok(None);
        }
        Err(error) if error.is_absent() => {
            return Err(Failure::new(format!(
                "there is no ConfigMap {namespace}/{name}: `kubectl get configmaps -n {namespace}` lists those there are, -n names \
                 another namespace, `kubectl kubelet-config push FILE` makes one"
            )));
        }
        Err(error) => return Err(error.into()),
    };
    let keys: Vec<&str> =
        map.get("data").and_then(Value::as_object).into_iter().flatten().map(|(key, _)| key.as_str()).collect();
    if !keys.contains(&key.as_str()) {
        let keys = if keys.is_empty() { "none".to_owned() } else { keys.join(", ") };
        return Err(Failure::new(format!(
            "ConfigMap {namespace}/{name} has no key {key:?} in its data (there are: {keys}): name one with --key"
        )));
    }
    Ok(Some(map))
}
