//! `rollout`: a ConfigMap for many nodes, canaries first, that stops by itself.

mod args;
mod bad_versions;
mod begin;
pub(crate) mod client;
mod drain;
mod drive;
mod fleet;
mod lock;
pub(crate) mod lock_timing;
mod progress_reporter;
mod records;
mod replace;
mod run;
mod verbs;

use std::process::ExitCode;

use clap::Args;

use crate::{Context, Failure};
use args::{BeginArgs, StatusArgs, Verb};
use client::RolloutClient;

/// Options of `rollout`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Options {
    /// The namespace of the records: which nodes it has, what they said and what they had before; else that of -n, which all
    /// nodes may read.
    #[arg(long, global = true, value_name = "NAMESPACE", value_parser = crate::context::namespace)]
    records_namespace: Option<String>,
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    begin: Option<BeginArgs>,
}

impl Options {
    pub(crate) async fn run(self, context: &Context) -> Result<ExitCode, Failure> {
        let api = RolloutClient::new(context, self.records_namespace);
        match (self.verb, self.begin) {
            (Some(Verb::Status(StatusArgs { name: Some(name), output })), _) => {
                verbs::status(&api, &name, output).await
            }
            (Some(Verb::Status(StatusArgs { output, .. })), _) => verbs::list(&api, output).await,
            (Some(Verb::Pause(named)), _) => verbs::pause(&api, &named).await,
            (Some(Verb::Resume(resumed)), _) => Box::pin(verbs::resume(&api, &resumed)).await,
            (Some(Verb::Abort(named)), _) => verbs::abort(&api, &named).await,
            (Some(Verb::Undo(named)), _) => Box::pin(verbs::undo(&api, &named)).await,
            (None, Some(begin)) => Box::pin(begin.run(&api)).await,
            (None, None) => {
                Err(Failure { code: 2, message: "rollout of what? A ConfigMap and -l SELECTOR".to_owned() })
            }
        }
    }
}
