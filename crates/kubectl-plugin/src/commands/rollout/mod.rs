//! `rollout`: a pool from a terminal. It is written and followed; a controller carries it out.

mod args;
mod begin;
mod follow;
mod progress_reporter;
mod status;
mod verbs;

use clap::Args;

use crate::context::NAMESPACE;
use crate::{Context, Failure};
use args::{BeginArgs, StatusArgs, StrategyArgs, Verb};

const OF_WHAT: &str =
    "rollout of what? Name a ConfigMap and -l SELECTOR, or a verb: kubectl kubelet-config rollout --help";

/// Options of `rollout`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(override_usage = "kubectl kubelet-config rollout CONFIGMAP -l SELECTOR [OPTIONS]\n       \
    kubectl kubelet-config rollout <COMMAND>")]
pub(crate) struct Options {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    begin: Option<BeginArgs>,
    // Not in the other one, which clap would not see to be there then.
    #[command(flatten)]
    strategy: StrategyArgs,
}

impl Options {
    pub(crate) async fn run(self, context: &Context) -> Result<(), Failure> {
        // Others read a ConfigMap, or what a pool makes of one.
        let reads_none = matches!(&self.verb, Some(Verb::Pause(_) | Verb::Status(StatusArgs { name: None, .. })));
        if reads_none && context.namespace != NAMESPACE {
            let message = format!(
                "-n {}: pools are of the whole cluster and have no namespace, and this command reads no ConfigMap: leave -n out",
                context.namespace
            );
            return Err(Failure { code: 2, message });
        }
        match (self.verb, self.begin) {
            (Some(verb), _) => verb.run(context).await,
            (None, Some(begin)) => begin.run(context, &self.strategy.fields()).await,
            (None, None) => Err(Failure { code: 2, message: OF_WHAT.to_owned() }),
        }
    }
}
