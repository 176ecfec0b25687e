//! The command line: one verb a file, the operator's small ones in one.

mod check;
mod common;
mod control;
mod effective;
mod enable;
mod history;
mod node;
mod operate;
mod policy;
mod render;
mod run;
mod status;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use self::common::{Failure, USAGE};
use crate::adapters::process;
use crate::os::fork;

/// Help is no wider than the terminals that people have, in a pipe too.
const COLUMNS: usize = 80;

const EXAMPLES: &str = "\
Examples:
  kubelet-supervisor enable --dry-run     what would change on this node
  kubelet-supervisor status               what runs, and what is wrong
  kubelet-supervisor history -n 5         the newest of what happened
  kubelet-supervisor rollback             back to last known good
  kubelet-supervisor check new.yaml -- /usr/bin/kubelet --config=FILE";

/// Dynamic kubelet configuration around an unmodified kubelet.
#[derive(Debug, Parser)]
#[command(name = "kubelet-supervisor", version, about, max_term_width = COLUMNS, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Supervise the kubelet: the ExecStart of kubelet.service.
    Run(run::Options),
    /// What `run` starts: all that is not the kubelet's process.
    #[command(hide = true)]
    Worker(run::Options),
    /// Show what is assigned, active and last known good.
    Status(status::Options),
    /// Have the kubelet judge a configuration file: exit 0 valid, 1 rejected, 2 could not tell.
    #[command(after_help = "\
Example, with the command in ExecStart= of the kubelet's unit:
  kubelet-supervisor check new.yaml -- /usr/bin/kubelet --config=FILE")]
    Check(check::Options),
    /// Print the configuration the kubelet would be given.
    #[command(after_help = "\
Examples:
  kubelet-supervisor render                    what is assigned, as it is given
  kubelet-supervisor render --effective        each field, and where it comes from
  kubelet-supervisor render new.yaml --merge overlay")]
    Render(render::Options),
    /// Show what happened to this node's configuration, and why.
    History(history::Options),
    #[command(flatten)]
    Operate(operate::Verb),
    /// Put the supervisor between systemd and the kubelet of this node; restarts nothing.
    #[command(after_help = "\
Examples:
  kubelet-supervisor enable --dry-run
  kubelet-supervisor enable --policy baseline -- --trial-duration 5m
  systemctl restart kubelet")]
    Enable(enable::Enable),
    /// Look at the node's policy, which says what the cluster may do to this node.
    Policy(policy::Options),
    /// Give the unit back to the kubelet alone; restarts nothing.
    Disable(enable::Disable),
}

/// The command line's definition, for manuals and completions.
#[doc(hidden)]
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    fork::close_on_exec();
    fork::share_one_arena();
    let args: Vec<OsString> = args.into_iter().collect();
    let verb = args.get(1).and_then(|verb| verb.to_str()).unwrap_or_default();
    if verb == "run"
        && let Some(result) = run::supervise(&args)
    {
        return exit_code(result);
    }
    carry_out(&args, verb)
}

/// Not a part of `main`, whose frame the monitor keeps for as long as it lives.
#[inline(never)]
fn carry_out(args: &[OsString], verb: &str) -> ExitCode {
    process::keep_memory_from_others();
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            // --help and --version are errors to clap, but not to the user.
            let failed = if verb == "worker" { run::refuse() } else { USAGE };
            return ExitCode::from(if error.use_stderr() { failed } else { 0 });
        }
    };
    let result = match cli.verb {
        Verb::Run(options) => run::run(&options),
        Verb::Worker(options) => run::work(&options),
        Verb::Status(options) => status::run(&options),
        Verb::Check(options) => check::run(&options),
        Verb::Render(options) => render::run(&options),
        Verb::History(options) => history::run(&options),
        Verb::Operate(verb) => operate::run(verb),
        Verb::Enable(options) => options.run(),
        Verb::Policy(options) => policy::run(&options),
        Verb::Disable(options) => options.run(),
    };
    exit_code(result)
}

fn exit_code(result: Result<u8, Failure>) -> ExitCode {
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("kubelet-supervisor: {}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}
