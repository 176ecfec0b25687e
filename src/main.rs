//! The command: arguments in, exit code out.

use std::process::ExitCode;

fn main() -> ExitCode {
    kubelet_supervisor::cli::main(std::env::args_os())
}
