//! `render`: what the kubelet would be given.

use std::path::PathBuf;

use clap::Args;

use super::check;
use super::common::{Failure, FlagsOption, KubeletCommand, MergeOption, local_files};
use crate::adapters::fsx::RealDisk;
use crate::adapters::store::FsStore;
use crate::daemon::{render, settings};

#[derive(Debug, Args)]
pub(super) struct Options {
    /// A payload; without it, the assigned configuration of the store, or the local one.
    file: Option<PathBuf>,
    /// The store [default: the kubelet's own --dynamic-config-dir, else /var/lib/kubelet/dynamic-config]
    #[arg(long, env = "KUBELET_SUPERVISOR_DYNAMIC_CONFIG_DIR", value_name = "DIR")]
    dynamic_config_dir: Option<PathBuf>,
    #[command(flatten)]
    flags: FlagsOption,
    #[command(flatten)]
    merge: MergeOption,
    #[command(flatten)]
    kubelet: KubeletCommand,
}

pub(super) fn run(options: &Options) -> Result<u8, Failure> {
    let (program, args) = options.kubelet.parse()?;
    let local = local_files(program, &args, options.merge.merge);
    let rendered = if let Some(path) = &options.file {
        check::file(path, &options.flags, &args, &local)?
    } else {
        let dir = settings::store_dir(options.dynamic_config_dir.as_deref(), &args);
        let mut store = FsStore::new(RealDisk, &dir);
        match store.load().assigned {
            Ok(Some(source)) => {
                eprintln!("note: the assigned configuration, {source}");
                let configs = store.configs_dir().display().to_string();
                store.open(&source).and_then(|checkpoint| {
                    render::configuration(Some((&checkpoint, &source)), Some(&configs), &args, &local)
                })
            }
            Ok(None) => {
                eprintln!("note: the local configuration, nothing is assigned in {}", dir.display());
                render::configuration(None, None, &args, &local)
            }
            Err(why) => {
                return Err(Failure::new(
                    1,
                    format!("{}: the record of the assignment is unreadable: {why}", dir.display()),
                ));
            }
        }
    };
    let rendered = rendered.map_err(|error| Failure::new(1, error.to_string()))?;
    check::report_notes(&rendered);
    let text = serde_json::to_string_pretty(&rendered.value).map_err(|error| Failure::new(1, error.to_string()))?;
    println!("{text}");
    Ok(0)
}
