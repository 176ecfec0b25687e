//! The command line, and the way from it to a command.

use std::ffi::OsString;
use std::future::Future;
use std::process::{ExitCode, Termination};

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::commands::{
    assign, capture, completion, controller, diff, doctor, explain, history, preflight, push, render, reset, retry,
    rollback, rollout, status,
};
use crate::context::{self, Context};
use crate::failure::Failure;
use crate::output;

/// The project's own description, not that of this package.
const ABOUT: &str = "Dynamic kubelet configuration for any cluster, around an unmodified kubelet";

/// Help is no wider than the terminals that people have, in a pipe too.
const COLUMNS: usize = 80;

const EXAMPLES: &str = "\
Examples, from a file to a pool of nodes:
  kubectl kubelet-config doctor                          what is missing
  kubectl kubelet-config capture node-1 -o pool-a.yaml   what runs there
  kubectl kubelet-config push pool-a.yaml                makes a ConfigMap
  kubectl kubelet-config preflight CONFIGMAP -l pool=a   asks the nodes
  kubectl kubelet-config rollout CONFIGMAP -l pool=a     canaries first
  kubectl kubelet-config status -l pool=a -w";

/// Kubelet configuration of nodes that run kubelet-supervisor.
#[derive(Debug, Parser)]
#[command(name = "kubectl kubelet-config", bin_name = "kubectl kubelet-config", version, about = ABOUT)]
#[command(max_term_width = COLUMNS, after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    connection: context::Options,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows a row for each node: what is assigned, what runs, and how far it is.
    Status(status::Options),
    /// Finds what is missing on the cluster and its nodes, and says what mends it. Changes nothing.
    Doctor(doctor::Options),
    /// Points nodes at a ConfigMap.
    #[command(after_help = "\
Examples:
  kubectl kubelet-config assign pool-a-5f7c8d node-1 --wait=proven
  kubectl kubelet-config assign pool-a-5f7c8d -l pool=a --dry-run=server")]
    Assign(assign::Options),
    /// Withdraws the assignment: nodes run their own configuration again.
    Reset(reset::Options),
    /// Has nodes try the assigned ConfigMap again that failed there.
    #[command(override_usage = "kubectl kubelet-config retry <NODE...|-l SELECTOR> [OPTIONS]")]
    Retry(retry::Options),
    /// Confirms a configuration that waits for it (confirm-within): it becomes last known good.
    #[command(override_usage = "kubectl kubelet-config confirm <NODE...|-l SELECTOR> [OPTIONS]")]
    Confirm(retry::Options),
    /// Assigns nodes the earlier push of the same name that is last known good there, or a ConfigMap that is named.
    #[command(after_help = "\
Examples:
  kubectl kubelet-config rollback node-1
  kubectl kubelet-config rollback -l pool=a --to pool-a-5f7c8d")]
    Rollback(rollback::Options),
    /// Prints a completion script for a shell.
    Completion(completion::Options),
    /// Writes what a node's kubelet runs with into a file.
    Capture(capture::Options),
    /// Makes an immutable ConfigMap of a file; the same file gives the same name.
    Push(push::Options),
    /// Has nodes judge a configuration with their own kubelets, which go on undisturbed.
    Preflight(preflight::Options),
    /// Compares two configurations by field, and says what going from one to the other takes.
    #[command(after_help = "\
Examples:
  kubectl kubelet-config diff node-1 node-2
  kubectl kubelet-config diff node-1 ./pool-a.yaml
  kubectl kubelet-config diff node-1 cm/pool-a-5f7c8d")]
    Diff(diff::Options),
    /// Shows what a pool says for a node, its expressions evaluated.
    Render(render::Options),
    /// Shows where each value comes from that a node's kubelet runs with.
    #[command(after_help = "\
Examples:
  kubectl kubelet-config explain node-1
  kubectl kubelet-config explain node-1 kubeReserved")]
    Explain(explain::Options),
    /// Shows the events of a node's configuration.
    History(history::Options),
    /// Brings a ConfigMap to a pool of nodes: canaries first, then waves. Writes a KubeletConfigPool and follows it; a controller carries it out.
    #[command(after_help = "\
Examples:
  kubectl kubelet-config rollout pool-a-5f7c8d -l pool=a --max-unavailable 5%
  kubectl kubelet-config rollout status pool-a
  kubectl kubelet-config rollout undo pool-a")]
    Rollout(rollout::Options),
    /// Carries out what pools say (KubeletConfigPool), until it is told to stop; one replica at a time acts.
    Controller(controller::Options),
}

/// The command line's definition, for manuals and completions.
#[doc(hidden)]
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the plugin. Exit codes: 0; 1 on failure (`diff`: different); 2 for a usage error (`diff`: any error;
/// `doctor`: it could not look); 75 where `rollout status --watch` follows it again.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    // Not for clap: what is to be completed is no command line yet.
    if let Some(question) = completion::Question::from_args(&args, command()) {
        return block_on(question.run());
    }
    match Cli::try_parse_from(args) {
        Ok(cli) => block_on(cli.run()),
        Err(error) => {
            let _ = error.print();
            ExitCode::from(if error.use_stderr() { 2 } else { 0 })
        }
    }
}

fn block_on<T: Termination>(work: impl Future<Output = Result<T, Failure>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(format!("no runtime: {error}")));
    match runtime.and_then(|runtime| runtime.block_on(work)) {
        Ok(done) => done.report(),
        Err(failure) => {
            eprintln!("error: {}", output::plain_lines(&failure.message));
            ExitCode::from(failure.code)
        }
    }
}

/// Runs a command with a connection that is there, for tests.
///
/// # Errors
/// What the user would be told.
#[doc(hidden)]
pub async fn run(context: &Context, args: &[&str]) -> Result<ExitCode, Failure> {
    let args = std::iter::once("kubectl-kubelet_config").chain(args.iter().copied());
    let cli = Cli::try_parse_from(args).map_err(|error| Failure { code: 2, message: error.to_string() })?;
    cli.command.run(context).await
}

impl Cli {
    async fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            // These may do without a cluster.
            Command::Completion(options) => options.run().map(Termination::report),
            Command::Push(options) => options.run(&self.connection).await.map(Termination::report),
            Command::Diff(options) => options.run(&self.connection).await,
            command => command.run(&Context::new(&self.connection).await?).await,
        }
    }
}

impl Command {
    /// With a connection that is there.
    async fn run(self, context: &Context) -> Result<ExitCode, Failure> {
        match self {
            Self::Status(options) => options.run(context).await,
            Self::Assign(options) => options.run(context).await,
            Self::Reset(options) => options.run(context).await,
            Self::Retry(options) => options.retry(context).await,
            Self::Confirm(options) => options.confirm(context).await,
            Self::Rollback(options) => options.run(context).await,
            Self::Doctor(options) => options.run(context).await,
            Self::Capture(options) => options.run(context).await.map(Termination::report),
            Self::Render(options) => options.run(context).await.map(Termination::report),
            Self::Explain(options) => options.run(context).await.map(Termination::report),
            Self::Preflight(options) => options.run(context).await,
            Self::History(options) => options.run(context).await.map(Termination::report),
            Self::Rollout(options) => options.run(context).await.map(Termination::report),
            Self::Controller(options) => options.run(context).await.map(Termination::report),
            Self::Completion(_) | Self::Push(_) | Self::Diff(_) => {
                Err(Failure::new("this command brings its own connection"))
            }
        }
    }
}
