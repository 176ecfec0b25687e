//! Manual pages and completions from the command lines' own definitions: `cargo run --example manual -- DIR`.
//!
//! An example and not a verb: what only a build needs is not carried to every node.

use std::io;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;

fn main() -> io::Result<()> {
    let dir = std::env::args_os().nth(1).ok_or_else(|| io::Error::other("say where to: manual DIR"))?;
    let dir = Path::new(&dir);
    std::fs::create_dir_all(dir)?;
    let supervisor = kubelet_supervisor::cli::command();
    pages(&supervisor, dir)?;
    complete(supervisor, dir)?;
    // `kubectl kubelet-config` is no name for a file; its pages are found by the program's. What completes it asks the
    // plugin itself, which knows the names of nodes.
    let plugin = "kubectl-kubelet_config";
    pages(&kubectl_plugin::command().name(plugin).display_name(plugin), dir)
}

/// One page for the command, and one for each verb but `help`.
fn pages(command: &Command, dir: &Path) -> io::Result<()> {
    clap_mangen::generate_to(command.clone().disable_help_subcommand(true), dir)
}

fn complete(command: Command, dir: &Path) -> io::Result<()> {
    let mut command = command.disable_help_subcommand(true);
    let name = command.get_name().to_owned();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, &name, dir)?;
    }
    Ok(())
}
