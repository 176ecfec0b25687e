//! The kubectl plugin: one command a file; what they decide is in [`crate::core::fleet`].

mod context;
mod nodes;
mod output;
mod rollout;
mod status;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

pub use context::{Context, Failure};
pub use output::{Format, Out, Table};

/// Kubelet configuration of nodes that run kubelet-supervisor.
#[derive(Debug, Parser)]
#[command(name = "kubectl kubelet-config", bin_name = "kubectl kubelet-config", version, about)]
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
    /// A ConfigMap for many nodes: canaries first, then waves; stops by itself where a node does not like it.
    Rollout(rollout::Options),
}

/// The command line's definition, for manuals and completions.
#[doc(hidden)]
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the plugin. Exit codes: 0; 1 on failure (`diff`: different); 2 for a usage error (`diff`: any error).
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(cli.run()) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("error: {}", failure.message);
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
        let context = Context::new(&self.connection).await?;
        self.command.run(&context).await
    }
}

impl Command {
    async fn run(self, context: &Context) -> Result<ExitCode, Failure> {
        match self {
            Self::Status(options) => options.run(context).await,
            Self::Rollout(options) => options.run(context).await,
        }
    }
}
