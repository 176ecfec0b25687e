//! `kubectl kubelet-config`: the administrator's side.

use std::process::ExitCode;

fn main() -> ExitCode {
    kubectl_plugin::main(std::env::args_os())
}
