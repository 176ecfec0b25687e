//! The command line, and the way from it to a command.

use std::ffi::OsString;
use std::future::Future;
use std::process::ExitCode;

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

/// Kubelet configuration of nodes that run kubelet-supervisor.
#[derive(Debug, Parser)]
#[command(name = "kubectl kubelet-config", bin_name = "kubectl kubelet-config", version, about = ABOUT)]
struct Cli {
    #[command(flatten)]
    connection: context::Options,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// One row a node: what is assigned, what runs, and how far it is.
    Status(status::Options),
    /// Finds what is missing on the cluster and its nodes, and says what mends it. Changes nothing.
    Doctor(doctor::Options),
    /// Points nodes at a ConfigMap.
    Assign(assign::Options),
    /// Withdraws the assignment: nodes run their own configuration again.
    Reset(reset::Options),
    /// Has nodes try a version again that failed there.
    #[command(override_usage = "kubectl kubelet-config retry <NODE...|-l SELECTOR> [OPTIONS]")]
    Retry(retry::Options),
    /// Confirms what waits for that: it becomes last known good.
    #[command(override_usage = "kubectl kubelet-config confirm <NODE...|-l SELECTOR> [OPTIONS]")]
    Confirm(retry::Options),
    /// Assigns nodes their last known good again, or a ConfigMap that is named.
    Rollback(rollback::Options),
    /// Prints a completion script for a shell.
    Completion(completion::Options),
    /// What a node's kubelet runs with, as a file.
    Capture(capture::Options),
    /// Makes an immutable ConfigMap of a file; the same file gives the same name.
    Push(push::Options),
    /// Has nodes judge a configuration with their own kubelets, which go on undisturbed.
    Preflight(preflight::Options),
    /// Two configurations by field, and what going from one to the other takes.
    Diff(diff::Options),
    /// What a pool says, for a node: its expressions evaluated.
    Render(render::Options),
    /// Where each value comes from that a node's kubelet runs with.
    Explain(explain::Options),
    /// The events of a node's configuration.
    History(history::Options),
    /// A ConfigMap for a pool of nodes: canaries first, then waves. Writes a KubeletConfigPool, and carries it out from here while
    /// no controller does.
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
/// `doctor`: it could not look).
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

fn block_on(work: impl Future<Output = Result<ExitCode, Failure>>) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(work) {
        Ok(code) => code,
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
            Command::Completion(options) => options.run(),
            Command::Push(options) => options.run(&self.connection).await,
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
            Self::Capture(options) => options.run(context).await,
            Self::Render(options) => options.run(context).await,
            Self::Explain(options) => options.run(context).await,
            Self::Preflight(options) => options.run(context).await,
            Self::History(options) => options.run(context).await,
            Self::Rollout(options) => options.run(context).await,
            Self::Controller(options) => options.run(context).await,
            Self::Completion(_) | Self::Push(_) | Self::Diff(_) => {
                Err(Failure::new("this command brings its own connection"))
            }
        }
    }
}
