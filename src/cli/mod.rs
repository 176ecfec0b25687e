//! The command line: one verb a file, the operator's small ones in one.

mod check;
mod control;
mod enable;
mod history;
mod operate;
mod reload;
mod render;
mod run;
mod status;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory as _, Parser, Subcommand};

use crate::adapters::local::{self, LocalFiles};
use crate::adapters::{process, reexec};
use crate::machine::command::Command;
use kubelet_config::flags::KubeletArgs;
use kubelet_config::source::Merge;

/// EX_USAGE of sysexits(3).
const USAGE: u8 = 64;

/// Dynamic kubelet configuration around an unmodified kubelet.
#[derive(Debug, Parser)]
#[command(name = "kubelet-supervisor", version, about)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Supervise the kubelet: the ExecStart of kubelet.service.
    Run(run::Options),
    /// Show what is assigned, active and last known good.
    Status(status::Options),
    /// Have the kubelet judge a configuration file: exit 0 valid, 1 rejected, 2 could not tell.
    Check(check::Options),
    /// Print the configuration the kubelet would be given.
    Render(render::Options),
    /// Show what happened to this node's configuration, and why.
    History(history::Options),
    /// Forget that the assigned version failed, and try it again.
    Retry(operate::Plain),
    /// Leave what runs: to last known good, or to another version and stay there.
    Rollback(operate::Rollback),
    /// Stay with a version, whatever is assigned.
    Pin(operate::Pin),
    /// Follow the assignment again.
    Unpin(operate::Plain),
    /// Take up no change; a trial under way goes on.
    Freeze(operate::Plain),
    /// Take up changes again.
    Thaw(operate::Plain),
    /// Acknowledge the configuration that waits for it.
    Confirm(operate::Confirm),
    /// Let the installed binary go on in the running supervisor's place: same pid, same kubelet.
    Reload(reload::Options),
    #[command(name = reexec::VERB, hide = true)]
    CanTakeOver(reload::CanTakeOver),
    /// Put the supervisor between systemd and the kubelet of this node; restarts nothing.
    Enable(enable::Enable),
    /// Give the unit back to the kubelet alone; restarts nothing.
    Disable(enable::Disable),
}

/// The kubelet's command line, after `--`.
#[derive(Debug, Args)]
struct KubeletCommand {
    /// The kubelet and its arguments, as kubelet.service has them.
    #[arg(last = true, required = true, num_args = 1.., value_name = "KUBELET [ARGS]")]
    command: Vec<String>,
}

impl KubeletCommand {
    fn parse(&self) -> Result<(PathBuf, KubeletArgs), Failure> {
        let (program, args) = self.command.split_first().ok_or_else(|| Failure::usage("no kubelet given after --"))?;
        let program = local::resolve_program(program)
            .map_err(|why| Failure::usage(format!("the kubelet cannot be run: {why}")))?;
        Ok((program, KubeletArgs::parse(args)))
    }
}

/// How payloads are put together with the local file.
#[derive(Debug, Args)]
struct MergeOption {
    /// For ConfigMaps without the annotation kubelet-supervisor.io/merge: replace (as native did) or overlay.
    #[arg(long, env = "KUBELET_SUPERVISOR_MERGE", default_value = "replace", value_name = "replace|overlay")]
    merge: Merge,
}

fn local_files(program: PathBuf, args: &KubeletArgs, merge: Merge) -> LocalFiles {
    LocalFiles { program, args: args.clone(), merge }
}

/// A message for the user and an exit code.
#[derive(Debug)]
struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    fn usage(message: impl Into<String>) -> Self {
        Self { code: USAGE, message: message.into() }
    }

    fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// The command line's definition, for manuals and completions.
#[doc(hidden)]
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Tells now what `run` would say of these options at the next start of the node's kubelet.
fn check_options_of_run(options: &[String]) -> Result<(), Failure> {
    if options.iter().any(|option| option == "--") {
        return Err(Failure::usage(
            "the options for `run` end before the kubelet's command, which the unit has: no second --",
        ));
    }
    let words = ["kubelet-supervisor", "run"]
        .into_iter()
        .chain(options.iter().map(String::as_str))
        .chain(["--", "/proc/self/exe"]);
    match Cli::try_parse_from(words) {
        Ok(Cli { verb: Verb::Run(options) }) => options
            .settings()
            .map(drop)
            .map_err(|failure| Failure::usage(format!("the options for `run`: {}", failure.message))),
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::usage(format!("the options for `run`: {error}"))),
    }
}

/// Runs the command.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let start_mode = reexec::start_mode();
    let args: Vec<OsString> = args.into_iter().collect();
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            if error.use_stderr() {
                run::exec_kubelet_unsupervised(&args, start_mode);
            }
            // --help and --version are errors to clap, but not to the user.
            return ExitCode::from(if error.use_stderr() { USAGE } else { 0 });
        }
    };
    let result = match cli.verb {
        Verb::Run(options) => run::run(&options, &args, start_mode),
        Verb::Status(options) => status::run(&options),
        Verb::Check(options) => check::run(&options),
        Verb::Render(options) => render::run(&options),
        Verb::History(options) => history::run(&options),
        Verb::Retry(options) => options.run(&Command::Retry),
        Verb::Rollback(options) => options.run(),
        Verb::Pin(options) => options.run(),
        Verb::Unpin(options) => options.run(&Command::Unpin),
        Verb::Freeze(options) => options.run(&Command::Freeze),
        Verb::Thaw(options) => options.run(&Command::Thaw),
        Verb::Confirm(options) => options.run(),
        Verb::Reload(options) => reload::run(options),
        Verb::CanTakeOver(options) => options.run(),
        Verb::Enable(options) => options.run(),
        Verb::Disable(options) => options.run(),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("kubelet-supervisor: {}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}

/// A runtime on this thread: the parent-death signal of a child is tied to the thread that
/// spawned it.
fn block_on<T>(future: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_start(process::block_all_signals)
        .build()
        .map_err(|error| Failure::new(1, format!("cannot start the runtime: {error}")))?;
    let value = runtime.block_on(future);
    // A name look-up or exec plugin that hangs in the background must not hold up the exit.
    runtime.shutdown_background();
    Ok(value)
}
