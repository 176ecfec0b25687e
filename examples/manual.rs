//! Manual pages and completions from the command line's own definition: `cargo run --example manual -- DIR`.
//!
//! An example and not a verb: what only a build needs is not carried to every node.

use std::io;
use std::path::Path;

use clap_complete::Shell;

fn main() -> io::Result<()> {
    let dir = std::env::args_os().nth(1).ok_or_else(|| io::Error::other("say where to: manual DIR"))?;
    let dir = Path::new(&dir);
    std::fs::create_dir_all(dir)?;
    // One page for each verb but `help`.
    let mut command = kubelet_supervisor::cli::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command.clone(), dir)?;
    let name = command.get_name().to_owned();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, &name, dir)?;
    }
    Ok(())
}
