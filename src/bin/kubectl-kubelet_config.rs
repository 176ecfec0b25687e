//! `kubectl kubelet-config`: the administrator's side.

use std::process::ExitCode;

fn main() -> ExitCode {
    kubelet_supervisor::plugin::main(std::env::args_os())
}
