//! The node that a file is judged or rendered for: a kubelet's command line, given or that of the running supervisor.

use std::path::PathBuf;

use clap::Args;

use super::common::{Failure, MergeOption, PolicyOption, local_files, parse_kubelet};
use super::control::StoreDir;
use super::run;
use crate::adapters::local_files::LocalFiles;
use crate::daemon::settings;
use kubelet_config::flags::KubeletArgs;

#[derive(Debug, Args)]
pub(super) struct NodeOptions {
    /// The supervisor's directory [default: the kubelet's own --dynamic-config-dir, else /var/lib/kubelet/dynamic-config]
    #[arg(long, env = "KUBELET_SUPERVISOR_DYNAMIC_CONFIG_DIR", value_name = "DIR")]
    dynamic_config_dir: Option<PathBuf>,
    #[command(flatten)]
    policy: PolicyOption,
    #[command(flatten)]
    merge: MergeOption,
    /// The kubelet and its arguments, as kubelet.service has them [default: those of the running supervisor]
    #[arg(last = true, num_args = 1.., value_name = "KUBELET [ARGS]")]
    kubelet: Vec<String>,
}

/// What its files say, and where its supervisor's store is.
pub(super) struct Node {
    pub(super) local: LocalFiles,
    pub(super) store: PathBuf,
}

impl NodeOptions {
    pub(super) fn node(&self) -> Result<Node, Failure> {
        let given = self.dynamic_config_dir.as_deref();
        if !self.kubelet.is_empty() {
            let (program, args) = parse_kubelet(&self.kubelet)?;
            let local = local_files(program, &args, self.merge.merge, self.policy.path(None));
            return Ok(Node { local, store: settings::store_dir(given, &args) });
        }
        let store = settings::store_dir(given, &KubeletArgs::default());
        let pid = match StoreDir::at(store.clone()).supervisor() {
            Ok(pid) => pid,
            Err(unreachable) => {
                let why = unreachable.unless_refused()?;
                return Err(Failure::usage(format!(
                    "no supervisor answers ({why}): give the kubelet's command after --, as kubelet.service has it, or \
                     --dynamic-config-dir"
                )));
            }
        };
        let running = run::settings_of(pid).ok_or_else(|| {
            Failure::usage(format!(
                "command line and environment of the running supervisor, pid {pid}, cannot be read, or are none of `run`: \
                 give the kubelet's command after --"
            ))
        })?;
        let policy = self.policy.path(Some(running.policy));
        Ok(Node { local: local_files(running.program, &running.args, running.merge, policy), store })
    }
}
