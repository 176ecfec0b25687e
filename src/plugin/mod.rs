//! The kubectl plugin: one command a file; what they decide is in [`crate::core::fleet`].

mod capture;
mod config;
mod context;
mod diff;
mod explain;
mod history;
mod nodes;
mod output;
mod push;
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
    /// What a node's kubelet runs with, as a file.
    Capture(capture::Options),
    /// Makes an immutable ConfigMap of a file; the same file gives the same name.
    Push(push::Options),
    /// Two configurations by field, and what going from one to the other takes.
    Diff(diff::Options),
    /// Where each value comes from that a node's kubelet runs with.
    Explain(explain::Options),
    /// The events of a node's configuration.
    History(history::Options),
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

impl Cli {
    async fn run(self) -> Result<ExitCode, Failure> {
        let connection = &self.connection;
        match self.command {
            Command::Status(options) => options.run(&Context::new(connection).await?).await,
            Command::Capture(options) => options.run(&Context::new(connection).await?).await,
            // These may do without a cluster.
            Command::Push(options) => options.run(connection).await,
            Command::Diff(options) => options.run(connection).await,
            Command::Explain(options) => options.run(&Context::new(connection).await?).await,
            Command::History(options) => options.run(&Context::new(connection).await?).await,
        }
    }
}
