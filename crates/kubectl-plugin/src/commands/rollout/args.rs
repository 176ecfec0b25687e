//! What `rollout` is told on its command line.

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::api::write::DryRun;
use crate::commands::render::pool_name;
use crate::fleet::pool::selector_text;
use crate::fleet::pool::types::{DrainMode, NodeSelector, OnFailure, Proof, max_unavailable};
use crate::output::Format;
use kubelet_config::bounds::whole_number;
use kubelet_config::duration::GoDuration;

/// Nodes, by a selector as kubectl takes it.
#[derive(Clone, Debug)]
pub(crate) struct Selected {
    pub(crate) text: String,
    pub(crate) selector: NodeSelector,
}

fn selected(text: &str) -> Result<Selected, String> {
    selector_text::parse(text).map(|selector| Selected { text: text.to_owned(), selector })
}

/// What a pool is to have, and how; what is not said stays as it is in the pool.
#[derive(Debug, Args)]
pub(crate) struct BeginArgs {
    /// The ConfigMap, an immutable one, in the namespace of -n.
    #[arg(value_name = "CONFIGMAP", required = true)]
    pub(crate) config_map: String,
    /// Nodes with these labels, also those that join later.
    #[arg(short = 'l', long, value_name = "SELECTOR", required = true, value_parser = selected)]
    pub(crate) selector: Selected,
    /// The pool's name; default: the pool that has these nodes, or a new one that is named like the ConfigMap.
    #[arg(long, value_name = "POOL", value_parser = pool_name)]
    pub(crate) name: Option<String>,
    /// The key of the ConfigMap's data.
    #[arg(long, value_name = "KEY", default_value = kubelet_config::assignment::DEFAULT_KEY)]
    pub(crate) key: String,
    /// none: do it; client: print the pool as it would be; server: have the API server check it, and print it.
    #[arg(long, value_enum, default_value = "none", default_missing_value = "client", num_args = 0..=1, require_equals = true)]
    pub(crate) dry_run: DryRun,
    /// Print nothing but how it ends.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// Fields of `spec.rollout`.
#[derive(Debug, Args, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StrategyArgs {
    /// How many nodes go first, from as many zones as there are; default of a new pool: 1.
    #[arg(long, value_name = "N", value_parser = whole_number(0..=1000))]
    canaries: Option<u32>,
    /// Nodes that may be unavailable at once: a number, or a percentage, rounded down; default of a new pool: 10%.
    #[arg(long, value_name = "N|P%", value_parser = count_or_share)]
    max_unavailable: Option<Value>,
    /// When a node has finished: it runs the configuration and the Node is Ready (active), or it has passed its trial (proven, the default of a new pool).
    #[arg(long, value_enum)]
    proof: Option<Proof>,
    /// The Node label with the zone; default of a new pool: topology.kubernetes.io/zone.
    #[arg(long, value_name = "KEY")]
    zone_key: Option<String>,
    /// What follows when too many nodes fail: no further node gets it (stop), or nodes go back to what they had (revert, the
    /// default of a new pool).
    #[arg(long, value_enum)]
    on_failure: Option<OnFailure>,
    /// How many nodes must fail before no other gets it; default of a new pool: one canary, or two or 2 % of the nodes later.
    #[arg(long, value_name = "N", value_parser = whole_number(1..=1000))]
    max_failures: Option<u32>,
    /// After this time a node that has not finished counts as silent, 1m to 24h; default of a new pool: 1h.
    #[arg(long, value_name = "DURATION", value_parser = seconds(60, "from 1m to 24h"))]
    #[serde(rename = "nodeTimeoutSeconds")]
    node_timeout: Option<u64>,
    /// The shortest trial on these nodes (kubelet-supervisor run --trial-duration), 1s to 24h: who says sooner that it has
    /// passed is not believed; default of a new pool: 10m.
    #[arg(long, value_name = "DURATION", value_parser = seconds(1, "from 1s to 24h"))]
    #[serde(rename = "minTrialSeconds")]
    min_trial: Option<u64>,
    /// Pause after the canaries, until `rollout resume`.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false")]
    pause_after_canaries: Option<bool>,
    /// Drain each node first; careful refuses Pods that nobody would start again or whose data would be lost, force evicts them.
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "careful")]
    drain: Option<DrainMode>,
}

impl StrategyArgs {
    /// The fields that were given.
    pub(crate) fn fields(&self) -> Map<String, Value> {
        let fields = json!(self).as_object().cloned().unwrap_or_default();
        fields.into_iter().filter(|(_, value)| !value.is_null()).collect()
    }
}

fn count_or_share(text: &str) -> Result<Value, String> {
    let value = text.parse::<u32>().map_or_else(|_| json!(text), Value::from);
    max_unavailable(&value, 1)
        .map_err(|_| "it must be a whole number, 1 or more, or a percentage such as 10%".to_owned())?;
    Ok(value)
}

/// Reads a duration of so many seconds at least, and a day at most.
fn seconds(least: u64, range: &'static str) -> impl Fn(&str) -> Result<u64, String> + Clone {
    move |text| {
        let seconds = text.parse::<GoDuration>()?.0.as_secs();
        if (least..=86_400).contains(&seconds) { Ok(seconds) } else { Err(format!("it must be {range}")) }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// How far it is, and every node that is not done; without a name, all pools.
    Status(StatusArgs),
    /// No further node gets it; those on their way come to their end.
    Pause(NamedArgs),
    /// Go on with what is paused or waits for approval, and follow it.
    Resume(NamedArgs),
    /// Back to the previous revision, or the one that is named.
    Undo(UndoArgs),
    /// Try a revision again that was marked bad.
    Retry(NamedArgs),
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The pool (KubeletConfigPool), as NAME or pool/NAME.
    #[arg(value_name = "POOL", value_parser = pool_name)]
    pub(crate) name: Option<String>,
    /// Follow the pool, and change nothing, until it has come to an end; Ctrl-C leaves it as it is.
    #[arg(short, long, requires = "name", conflicts_with = "output")]
    pub(crate) watch: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Format,
}

#[derive(Debug, Args)]
pub(crate) struct NamedArgs {
    /// The pool (KubeletConfigPool), as NAME or pool/NAME.
    #[arg(value_name = "POOL", value_parser = pool_name)]
    pub(crate) name: String,
    /// Print nothing but how it ends.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UndoArgs {
    #[command(flatten)]
    pub(crate) named: NamedArgs,
    /// A revision of the pool's status: currentRevision, or one of history.
    #[arg(long, value_name = "REVISION")]
    pub(crate) to_revision: Option<String>,
}
