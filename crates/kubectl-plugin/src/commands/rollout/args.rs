//! What `rollout` is told on its command line.

use clap::{Args, Subcommand, ValueEnum};

use crate::commands::targets::DryRun;
use crate::fleet::rollout::drain::Draining;
use crate::fleet::rollout::{OnFailure, WaitFor};
use crate::output::Format;
use kubelet_config::duration::GoDuration;

/// A rollout to begin.
#[derive(Debug, Args)]
pub(crate) struct BeginArgs {
    /// The ConfigMap.
    #[arg(value_name = "CONFIGMAP", required = true)]
    pub(crate) config_map: String,
    /// Nodes with these labels, as they are now; those that come later are not its own.
    #[arg(short = 'l', long, value_name = "SELECTOR", required = true)]
    pub(crate) selector: String,
    /// The key of its data.
    #[arg(long, value_name = "KEY", default_value = kubelet_config::assignment::DEFAULT_KEY)]
    pub(crate) key: String,
    /// The rollout's name, if not the ConfigMap's.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Nodes that go first, of as many zones as there are; 0: none.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) canary: usize,
    /// Nodes that may be in flight or not Ready at a time: a number, or a share of all, rounded down.
    #[arg(long, value_name = "N|P%", default_value = "1")]
    pub(crate) max_unavailable: String,
    /// A node is done when it runs with it, or when it is last known good.
    #[arg(long, value_enum, default_value = "proven")]
    pub(crate) wait_for: WaitForArg,
    /// Wait for `rollout resume` there.
    #[arg(long, value_enum, value_name = "WHEN")]
    pub(crate) pause_after: Option<PauseAfterArg>,
    /// The label that says where a node is.
    #[arg(long, value_name = "KEY")]
    pub(crate) zone_key: Option<String>,
    /// What the first node that does not like it brings about: no further node gets it, or all get back what they had.
    #[arg(long, value_enum, default_value = "stop")]
    pub(crate) on_failure: OnFailureArg,
    /// A node that is not done after so long has failed.
    #[arg(long, value_name = "DURATION", default_value = "30m")]
    pub(crate) timeout_per_node: GoDuration,
    /// Drain each node before it gets it, and before it gets back what it had: cordon it, and evict its Pods. Refused
    /// are Pods without a controller and those with an emptyDir; =force evicts them too.
    #[arg(long, value_enum, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "careful")]
    pub(crate) drain: Option<DrainArg>,
    /// What these nodes say of the version counts for nothing: they were to blame for what they called bad.
    #[arg(long = "despite", value_name = "NODE", value_delimiter = ',')]
    pub(crate) excluded_nodes: Vec<String>,
    /// none: do it; client, server: show who would be next when, and write nothing.
    #[arg(long, value_enum, default_value = "none", default_missing_value = "client", num_args = 0..=1, require_equals = true)]
    pub(crate) dry_run: DryRun,
    /// Say only how it ends.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// How far it is; without a name, all rollouts.
    Status(StatusArgs),
    /// No further node gets it; those in flight come to their end.
    Pause(NamedArgs),
    /// Go on with what is paused, has stopped, or lost its client.
    Resume(ResumeArgs),
    /// Give it up; nodes keep what they have.
    Abort(NamedArgs),
    /// Give all nodes back what they had.
    Undo(NamedArgs),
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Its name.
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// How.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Format,
}

#[derive(Debug, Args)]
pub(crate) struct NamedArgs {
    /// Its name.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Say only how it ends.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    pub(crate) named: NamedArgs,
    /// What these nodes say of the version counts for nothing: they were to blame for what they called bad.
    #[arg(long = "despite", value_name = "NODE", value_delimiter = ',')]
    pub(crate) excluded_nodes: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WaitForArg {
    Active,
    Proven,
}

impl From<WaitForArg> for WaitFor {
    fn from(wait: WaitForArg) -> Self {
        match wait {
            WaitForArg::Active => Self::Active,
            WaitForArg::Proven => Self::Proven,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PauseAfterArg {
    Canary,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnFailureArg {
    Stop,
    Revert,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DrainArg {
    Careful,
    Force,
}

impl From<DrainArg> for Draining {
    fn from(drained: DrainArg) -> Self {
        match drained {
            DrainArg::Careful => Self::Careful,
            DrainArg::Force => Self::Force,
        }
    }
}

impl From<OnFailureArg> for OnFailure {
    fn from(failing: OnFailureArg) -> Self {
        match failing {
            OnFailureArg::Stop => Self::Stop,
            OnFailureArg::Revert => Self::Revert,
        }
    }
}
