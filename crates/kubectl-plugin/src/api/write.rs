//! Writing assignments, node after node: each write holds for the Node that was read, and its answer is looked at.

use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use kube::api::{GetParams, Patch, PatchParams};
use kube::core::request::Request as Path;
use serde_json::Value;

use crate::api::nodes::{self, NODES};
use crate::fleet::assign::{self, Choice, Step, Written};
use crate::fleet::node::{Carrier, Keeper, NodeRow};
use crate::output::{self, plain};
use crate::{Context, Failure};
use kubelet_config::source::ConfigMapRef;

/// Whose fields these are, in `metadata.managedFields`.
pub(crate) const MANAGER: &str = "kubectl-kubelet_config";

/// A Node that a kubelet reports on changes under our hands now and then; so often in a row it does not.
const CONFLICTS: u32 = 10;

/// Two carriers, a contradiction to remove, and one to spare.
const STEPS: u32 = 4;

/// `--dry-run`, as kubectl has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DryRun {
    /// Do it.
    #[default]
    None,
    /// Only say what would be written.
    Client,
    /// Have the API server check it, and keep nothing.
    Server,
}

impl DryRun {
    /// Behind each line, as kubectl has it.
    fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Client => " (dry run)",
            Self::Server => " (server dry run)",
        }
    }
}

/// What every writing command takes.
#[derive(Clone, Copy, Debug, Args)]
#[group(skip)]
pub struct Options {
    /// none: do it; client: only say what would be written; server: have the API server check it, and keep nothing.
    #[arg(long, value_enum, default_value = "none", default_missing_value = "client", num_args = 0..=1, require_equals = true)]
    pub(crate) dry_run: DryRun,
}

/// `--carrier`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CarrierChoice {
    /// spec.configSource where the API server keeps it, else labels.
    #[default]
    Auto,
    /// spec.configSource.
    Native,
    /// Node labels.
    Labels,
}

impl From<CarrierChoice> for Choice {
    fn from(choice: CarrierChoice) -> Self {
        match choice {
            CarrierChoice::Auto => None,
            CarrierChoice::Native => Some(Carrier::Native),
            CarrierChoice::Labels => Some(Carrier::Labels),
        }
    }
}

/// Why a write did not do.
enum Trouble {
    /// The Node is another by now.
    Conflict,
    /// This API server wants no `spec.configSource`.
    NoSource,
    Other(Failure),
}

/// Writes to nodes and counts.
pub struct Writer<'a> {
    context: &'a Context,
    choice: Choice,
    dry_run: DryRun,
    /// Whether this API server keeps `spec.configSource`, once that is known.
    keeps: Option<bool>,
    /// Nodes that now ask for what they should.
    pub done: BTreeSet<String>,
    failed: u32,
}

impl<'a> Writer<'a> {
    /// Nothing is known yet.
    pub fn new(context: &'a Context, choice: Choice, options: Options) -> Self {
        Self { context, choice, dry_run: options.dry_run, keeps: None, done: BTreeSet::new(), failed: 0 }
    }

    /// True if what was written is there.
    pub fn is_real(&self) -> bool {
        self.dry_run == DryRun::None
    }

    /// Says why something was not done to a node, and goes on.
    pub fn failed(&mut self, message: &str) {
        self.failed += 1;
        eprintln!("error: {}", plain(message));
    }

    /// Has the node ask for this, and says what was written. A failure is said and counted.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub async fn assign(&mut self, row: NodeRow, target: Option<&ConfigMapRef>, verb: &str) -> Result<(), Failure> {
        let name = row.name.clone();
        let before = assign::shown(&row);
        let nobody = row.keeper == Some(Keeper::Nobody);
        match self.settle(row, target).await {
            Ok((after, true)) => {
                let was = if target.is_none() { format!(", was {before}") } else { String::new() };
                // Whoever asks nobody cannot know.
                let unsure = self.dry_run == DryRun::Client && self.choice.is_none() && self.keeps.is_none();
                let unsure = unsure && target.is_some() && after.carrier == Some(Carrier::Native);
                let or = if unsure { ", or labels if the API server drops that" } else { "" };
                let line = format!("node/{name} {verb}: {}{or}{was}{}\n", assign::shown(&after), self.dry_run.suffix());
                output::print(&(plain(line.trim_end()) + "\n"))?;
            }
            Ok((after, false)) => {
                output::print(&(plain(&format!("node/{name} unchanged: {}", assign::shown(&after))) + "\n"))?;
            }
            Err(failure) => {
                self.failed(&format!("node/{name}: {}", failure.message));
                return Ok(());
            }
        }
        if nobody {
            let hint =
                "no supervisor has said anything there: it takes effect when one runs (kubelet-supervisor enable)";
            eprintln!("warning: node/{name}: {hint}");
        }
        self.done.insert(name);
        Ok(())
    }

    /// The Node as it then is, and whether anything was written.
    async fn settle(&mut self, first: NodeRow, target: Option<&ConfigMapRef>) -> Result<(NodeRow, bool), Failure> {
        let (mut row, mut conflicts, mut written) = (first.clone(), 0, false);
        for _ in 0..(STEPS + CONFLICTS) {
            let patch = match assign::next(&Written::of(&row), &row.version, target, self.choice, self.keeps) {
                Step::Done => return Ok((row, written)),
                Step::Refuse(why) => return Err(Failure::new(why)),
                Step::Write(patch) => patch,
            };
            let sets_source = patch.pointer("/spec/configSource/configMap").is_some();
            if self.dry_run == DryRun::Client {
                return Ok((applied(&row, &patch, &self.context.namespace), true));
            }
            match self.patch(&row.name, &patch).await {
                Ok(answer) => {
                    let (was, is) = (Written::of(&row), Written::of(&answer));
                    let kept = assign::is_kept(&patch, &is);
                    self.keeps = kept.or(self.keeps);
                    if !self.is_real() {
                        // What a dry run answers was not kept.
                        if kept == Some(false) {
                            continue;
                        }
                        return Ok((answer, true));
                    }
                    (row, written) = (answer, written || was != is);
                }
                Err(Trouble::NoSource) if sets_source && self.choice.is_none() => self.keeps = Some(false),
                Err(Trouble::NoSource) => {
                    return Err(Failure::new(
                        "this API server refuses spec.configSource: use --carrier labels, or auto",
                    ));
                }
                Err(Trouble::Conflict) if conflicts < CONFLICTS => {
                    conflicts += 1;
                    row = self.read_again(&row).await?;
                }
                Err(Trouble::Conflict) => {
                    return Err(Failure::new("the Node changes faster than it can be written: try again"));
                }
                Err(Trouble::Other(failure)) => return Err(failure),
            }
        }
        Err(Failure::new(
            "the API server does not keep what is written into this Node; an admission webhook may undo it",
        ))
    }

    /// After a conflict: a heartbeat is no matter, another assignment is.
    async fn read_again(&self, before: &NodeRow) -> Result<NodeRow, Failure> {
        let node = nodes::get(self.context, &before.name).await?;
        let row = NodeRow::of(&node, &self.context.namespace);
        if (&row.wanted, row.carrier) != (&before.wanted, before.carrier) {
            let now = assign::shown(&row);
            return Err(Failure::new(format!(
                "somebody else has assigned to it meanwhile ({now}): look, and try again"
            )));
        }
        Ok(row)
    }

    async fn patch(&self, name: &str, patch: &Value) -> Result<NodeRow, Trouble> {
        let what = format!("patch node {name}");
        let params = PatchParams {
            dry_run: self.dry_run == DryRun::Server,
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let request = Path::new(NODES).patch(name, &params, &Patch::Merge(patch));
        let request = request.map_err(|error| Trouble::Other(Failure::new(format!("{what}: {error}"))))?;
        match self.context.client.request::<Value>(request).await {
            Ok(node) => Ok(NodeRow::of(&node, &self.context.namespace)),
            Err(kube::Error::Api(status)) if status.code == 409 => Err(Trouble::Conflict),
            Err(kube::Error::Api(status)) if status.code == 422 && status.message.contains("configSource") => {
                Err(Trouble::NoSource)
            }
            Err(error) => Err(Trouble::Other(Failure::api(&what, &error))),
        }
    }

    /// Sets an annotation, and says so. It names a version, so no other state of the Node can make it wrong.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub async fn annotate(&mut self, node: &str, annotation: &str, value: &str, done: &str) -> Result<(), Failure> {
        let patch = serde_json::json!({"metadata": {"annotations": {annotation: value}}});
        if self.dry_run != DryRun::Client {
            match self.patch(node, &patch).await {
                Ok(_) => {}
                Err(Trouble::Other(failure)) => {
                    self.failed(&format!("node/{node}: {}", failure.message));
                    return Ok(());
                }
                Err(_) => {
                    self.failed(&format!("node/{node}: the API server refuses the annotation {annotation}"));
                    return Ok(());
                }
            }
        }
        self.done.insert(node.to_owned());
        output::print(&format!(
            "{}{}\n",
            plain(&format!("node/{node} {done}: {annotation}={value}")),
            self.dry_run.suffix()
        ))
    }

    /// Says that there is nothing to do to a node: an error if the user named it, no matter if a selector chose it.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn skipped(&mut self, node: &str, why: &str, choice: &nodes::Choice) -> Result<(), Failure> {
        if choice.selector.is_none() {
            self.failed(&format!("node/{node}: {why}"));
            return Ok(());
        }
        output::print(&format!("{}\n", plain(&format!("node/{node} skipped: {why}"))))
    }

    /// 0, or 1 if anything failed.
    pub fn code(&self) -> ExitCode {
        if self.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// What a Node would be after a patch, if the API server keeps all of it.
fn applied(row: &NodeRow, patch: &Value, namespace: &str) -> NodeRow {
    let mut labels = serde_json::to_value(&row.labels).unwrap_or_default();
    for (name, value) in patch.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flatten() {
        if let Some(labels) = labels.as_object_mut() {
            labels.insert(name.clone(), value.clone());
        }
    }
    let kept = row.wanted.as_ref().filter(|_| row.carrier == Some(Carrier::Native));
    let kept = kept.map(|wanted| serde_json::json!({"configMap": wanted}));
    let source = patch.pointer("/spec/configSource").cloned().or(kept);
    let node = serde_json::json!({"metadata": {"name": row.name, "labels": labels}, "spec": {"configSource": source}});
    NodeRow::of(&node, namespace)
}

/// The ConfigMap of an assignment, which must be there and have the key. `None`, after a warning, if the user may not
/// read it: the nodes may.
///
/// # Errors
/// It is not there, or has no such key; or the API server cannot say.
pub async fn config_map(context: &Context, target: &ConfigMapRef) -> Result<Option<Value>, Failure> {
    let ConfigMapRef { namespace, name, kubelet_config_key: key } = target;
    let what = format!("get ConfigMap {namespace}/{name}");
    let request = Path::new(format!("/api/v1/namespaces/{namespace}/configmaps")).get(name, &GetParams::default());
    let request = request.map_err(|error| Failure::new(format!("{what}: {error}")))?;
    let map: Value = match context.client.request(request).await {
        Ok(map) => map,
        Err(kube::Error::Api(status)) if status.code == 403 => {
            eprintln!("warning: you may not {what}, so nobody has checked that it is there and has the key {key}");
            return Ok(None);
        }
        Err(kube::Error::Api(status)) if status.code == 404 => {
            return Err(Failure::new(format!(
                "there is no ConfigMap {namespace}/{name}: `kubectl get configmaps -n {namespace}` lists those there are, -n names \
                 another namespace, `kubectl kubelet-config push FILE` makes one"
            )));
        }
        Err(error) => return Err(Failure::api(&what, &error)),
    };
    let keys = map.get("data").and_then(Value::as_object);
    if keys.is_none_or(|keys| !keys.contains_key(key)) {
        let keys: Vec<&str> = keys.into_iter().flatten().map(|(key, _)| key.as_str()).collect();
        let keys = if keys.is_empty() { "none".to_owned() } else { keys.join(", ") };
        return Err(Failure::new(format!(
            "ConfigMap {namespace}/{name} has no key {key:?} in its data (there are: {keys}): name one with --key"
        )));
    }
    Ok(Some(map))
}
