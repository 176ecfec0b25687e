//! Shared by the verbs: the kubelet's command line, a failure with its exit code, a runtime.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use clap::Args;

use crate::adapters::local_files;
use crate::os::block_all_signals;
use kubelet_config::flags::KubeletArgs;

/// EX_USAGE of sysexits(3).
pub(super) const USAGE: u8 = 64;

/// The kubelet's program and its arguments.
pub(super) fn parse_kubelet(command: &[String]) -> Result<(PathBuf, KubeletArgs), Failure> {
    let (program, args) = command.split_first().ok_or_else(|| Failure::usage("no kubelet given after --"))?;
    let program = local_files::resolve_program(program)
        .map_err(|why| Failure::usage(format!("the kubelet cannot be run: {why}")))?;
    Ok((program, KubeletArgs::parse(args)))
}

/// Flags beside a file.
#[derive(Debug, Args)]
pub(super) struct FlagsOption {
    /// File with changes of the kubelet's command line, as a ConfigMap has them in its key KEY.flags: --name=value or !--name, one a line.
    #[arg(long, value_name = "FLAGS", requires = "file")]
    pub(super) flags: Option<PathBuf>,
}

/// A message for the user and an exit code.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) code: u8,
    pub(super) message: String,
}

impl Failure {
    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self { code: USAGE, message: message.into() }
    }

    pub(super) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// What went wrong, with exit code 1.
impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self { code: 1, message }
    }
}

/// The strings in a file of another process, such as its command line.
pub(super) fn strings_of(pid: u32, file: &str) -> Option<Vec<OsString>> {
    let bytes = std::fs::read(format!("/proc/{pid}/{file}")).ok()?;
    let strings = bytes.split_inclusive(|byte| *byte == 0).map(|string| string.strip_suffix(b"\0").unwrap_or(string));
    Some(strings.map(|string| OsStr::from_bytes(string).to_owned()).collect())
}

/// A runtime on this thread: the parent-death signal of a child is tied to the thread that
/// spawned it.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_start(block_all_signals)
        .build()
        .map_err(|error| format!("cannot start the runtime: {error}"))?;
    let value = runtime.block_on(future);
    // A name look-up or exec plugin that hangs in the background must not hold up the exit.
    runtime.shutdown_background();
    Ok(value)
}
