//! `render`: what the kubelet would be given, and what it goes by.

use std::path::{Path, PathBuf};

use clap::Args;

use super::check;
use super::common::{Failure, FlagsOption};
use super::control::{Output, StoreDir};
use super::effective::{self, Shown};
use super::node::{Node, NodeOptions, ask_version};
use super::policy;
use crate::adapters::fsx::RealDisk;
use crate::adapters::local_files::LocalFiles;
use crate::adapters::store::FsStore;
use crate::daemon::admission::Policy;
use crate::daemon::render;
use crate::machine::model::RenderError;
use crate::ports::Local as _;
use kubelet_config::schema;
use kubelet_config::source::Source;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// A KubeletConfiguration [default: what is assigned to this node, or else its own file]
    file: Option<PathBuf>,
    /// Print what the kubelet goes by, field by field, and where each value comes from; without FILE, of the configuration that is active.
    #[arg(long)]
    effective: bool,
    /// Output format of --effective.
    #[arg(short, long, value_enum, default_value_t, requires = "effective")]
    output: Output,
    #[command(flatten)]
    flags: FlagsOption,
    #[command(flatten)]
    node: NodeOptions,
}

pub(super) fn run(options: &Options) -> Result<u8, Failure> {
    let Node { local, store, .. } = options.node.node()?;
    ask_version(&local)?;
    let rendered = if let Some(path) = &options.file {
        check::file(path, None, &options.flags, &local)?.and_then(|(configuration, admission)| {
            policy::admitted(&admission)?;
            Ok(Shown { configuration, payload: path.display().to_string() })
        })
    } else {
        stored(&store, options.effective, &local)?
    };
    let rendered = rendered.map_err(|error| error.to_string())?;
    check::report_notes(&rendered.configuration);
    check::report(&schema::messages(&rendered.configuration.problems, local.kubelet_minor()));
    let text = if options.effective {
        effective::text(&rendered, &local, options.output)?
    } else {
        format!("{:#}\n", rendered.configuration.value)
    };
    print!("{text}");
    Ok(0)
}

/// What the store holds: the assigned configuration, or what a running supervisor says is active.
fn stored(dir: &Path, active: bool, local: &LocalFiles) -> Result<Result<Shown, RenderError>, Failure> {
    let args = &local.args;
    let mut store = FsStore::new(RealDisk::guarded(dir), dir);
    let records = store.load();
    let running = if active { effective::active(&StoreDir::at(dir.to_owned()))? } else { None };
    let what = if running.is_some() { "active" } else { "assigned" };
    let source = running.map_or_else(|| records.assigned.clone(), |active| Ok(active.0));
    let unreadable = |why| format!("{}: the record of the assignment is unreadable: {why}", dir.display());
    let source = source.map_err(unreadable)?;
    let Some(source) = source else {
        eprintln!("note: the local configuration, nothing is {what} in {}", dir.display());
        let configuration = render::configuration(None, None, args, local);
        return Ok(configuration.map(|configuration| Shown { configuration, payload: String::new() }));
    };
    eprintln!("note: the {what} configuration, {source}");
    let configs = store.configs_dir().display().to_string();
    let asked = Policy::read(local);
    let configuration = store.open(&source).and_then(|checkpoint| {
        render::configuration(Some(asked.payload(&checkpoint, &source)), Some(&configs), args, local)
    });
    let rendered = configuration.map(|configuration| Shown { configuration, payload: name(&source) });
    Ok(rendered
        .map(|rendered| if active { effective::as_it_runs(rendered, &store, records, &source) } else { rendered }))
}

fn name(source: &Source) -> String {
    if let Some(title) = source.title() {
        return format!("{title}, {}", source.reference.kubelet_config_key);
    }
    format!("ConfigMap {}/{}", source.reference.namespace, source.reference.name)
}
