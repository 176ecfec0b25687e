//! What the operator chose, checked.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::machine;
use kubelet_config::duration::GoDuration;
use kubelet_config::flags::KubeletArgs;
use kubelet_config::source::Merge;

/// Where native's users mostly kept its store; our default.
pub(crate) const DEFAULT_DIR: &str = "/var/lib/kubelet/dynamic-config";

/// Settings of `run`; nothing here means "default" any more.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The kubelet, resolved.
    pub(crate) program: PathBuf,
    /// Its arguments as given.
    pub(crate) args: KubeletArgs,
    /// Root of the store, absolute.
    pub(crate) dir: PathBuf,
    /// The machine's.
    pub(crate) machine: machine::Settings,
    /// Merge mode of ConfigMaps that say nothing.
    pub(crate) merge: Merge,
    /// `--config-namespace`.
    pub(crate) config_namespace: String,
    /// `--policy`, absolute; empty: there is none.
    pub(crate) policy: PathBuf,
    /// Metrics and health; `None` is off.
    pub(crate) metrics: Option<SocketAddr>,
    /// `--node-name`.
    pub(crate) node_name: Option<String>,
    /// `--standby`.
    pub(crate) standby: bool,
}

/// The directory of the store: ours, else the kubelet's own flag, else the default.
pub(crate) fn store_dir(own: Option<&Path>, args: &KubeletArgs) -> PathBuf {
    let dir = own.unwrap_or_else(|| Path::new(args.last("dynamic-config-dir").unwrap_or(DEFAULT_DIR)));
    std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned())
}

/// Parses a positive duration.
pub(crate) fn positive(text: &str) -> Result<GoDuration, String> {
    match text.parse::<GoDuration>()? {
        GoDuration(duration) if duration.is_zero() => Err("it must be more than zero".to_owned()),
        duration => Ok(duration),
    }
}
