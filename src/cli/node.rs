//! The node that a file is judged or rendered for: a kubelet's command line, given or that of the running supervisor.

use std::path::PathBuf;

use clap::Args;

use super::common::{Failure, block_on, parse_kubelet};
use super::control::StoreDir;
use super::run;
use crate::adapters::local_files::LocalFiles;
use crate::adapters::policy::PolicyFile;
use crate::adapters::preflight::PreflightCommand;
use crate::daemon::settings;
use crate::ports::{KubeletVersion, Local as _};
use kubelet_config::flags::KubeletArgs;
use kubelet_config::policy::DEFAULT_PATH;
use kubelet_config::schema::UnknownFields;
use kubelet_config::source::Merge;

#[derive(Debug, Args)]
pub(super) struct NodeOptions {
    /// The supervisor's directory [default: the kubelet's own --dynamic-config-dir, else /var/lib/kubelet/dynamic-config]
    #[arg(long, env = "KUBELET_SUPERVISOR_DYNAMIC_CONFIG_DIR", value_name = "DIR")]
    dynamic_config_dir: Option<PathBuf>,
    /// The node's policy, which is asked as `run` asks it; a file that is not there allows everything [default: /etc/kubelet-supervisor/policy.yaml]
    #[arg(long, env = "KUBELET_SUPERVISOR_POLICY", value_name = "FILE")]
    policy: Option<PathBuf>,
    /// How a configuration without the annotation kubelet-supervisor.io/merge is put together with the node's own file: it replaces it, or it is laid over it [default: that of the running supervisor, whose command line is taken, else replace]
    #[arg(long, env = "KUBELET_SUPERVISOR_MERGE", value_name = "replace|overlay")]
    merge: Option<Merge>,
    /// The kubelet and its arguments, as kubelet.service has them [default: those of the running supervisor]
    #[arg(last = true, num_args = 1.., value_name = "KUBELET [ARGS]")]
    kubelet: Vec<String>,
}

/// What its files say, and where its supervisor's store is.
pub(super) struct Node {
    pub(super) local: LocalFiles,
    pub(super) store: PathBuf,
    /// Of the running supervisor, whose command line was taken.
    pub(super) unknown_fields: Option<UnknownFields>,
}

impl NodeOptions {
    pub(super) fn node(&self) -> Result<Node, Failure> {
        let given = self.dynamic_config_dir.as_deref();
        if !self.kubelet.is_empty() {
            let (program, args) = parse_kubelet(&self.kubelet)?;
            let store = settings::store_dir(given, &args);
            let (merge, policy) = (Merge::default(), DEFAULT_PATH.into());
            return Ok(Node { local: self.local_files(program, args, merge, policy), store, unknown_fields: None });
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
        let unknown_fields = Some(running.machine.unknown_fields);
        let local = self.local_files(running.program, running.args, running.merge, running.policy);
        Ok(Node { local, store, unknown_fields })
    }

    /// `merge` and `policy` where no option says otherwise.
    fn local_files(&self, program: PathBuf, args: KubeletArgs, merge: Merge, policy: PathBuf) -> LocalFiles {
        let policy = PolicyFile { path: self.policy.clone().unwrap_or(policy), ..PolicyFile::default() };
        let (merge, version) = (self.merge.unwrap_or(merge), KubeletVersion::default());
        LocalFiles { program, args, merge, policy, followed: false, version }
    }
}

/// Asks the kubelet for its version: what it goes by depends on that.
pub(super) fn ask_version(local: &LocalFiles) -> Result<(), Failure> {
    let (program, args) = (local.program.clone(), local.args.clone());
    block_on(PreflightCommand { program, args, dir: PathBuf::new() }.know_version(&local.version))?;
    if local.kubelet_minor().is_none() {
        eprintln!("note: the kubelet's version is not known: it does not answer to --version");
    }
    Ok(())
}
