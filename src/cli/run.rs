//! `run`: the daemon.

use std::path::PathBuf;

use clap::Args;

use super::{Failure, KubeletCommand, MergeOption, block_on};
use crate::adapters::log;
use crate::core::machine;
use crate::core::payload::duration::GoDuration;
use crate::daemon::settings::{self, Settings};
use crate::daemon::wire;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Where checkpoints are kept [default: the kubelet's own --dynamic-config-dir, else /var/lib/kubelet/dynamic-config]
    #[arg(long, env = "KUBELET_SUPERVISOR_DYNAMIC_CONFIG_DIR", value_name = "DIR")]
    dynamic_config_dir: Option<PathBuf>,
    /// Continuous health after which a configuration becomes last known good.
    #[arg(long, env = "KUBELET_SUPERVISOR_TRIAL_DURATION", default_value = "10m", value_parser = settings::positive, value_name = "DURATION")]
    trial_duration: GoDuration,
    /// A new configuration must have the kubelet ready by then.
    #[arg(long, env = "KUBELET_SUPERVISOR_START_TIMEOUT", default_value = "2m", value_parser = settings::positive, value_name = "DURATION")]
    start_timeout: GoDuration,
    #[command(flatten)]
    merge: MergeOption,
    /// Where /metrics, /healthz and /readyz are served; empty turns them off.
    #[arg(
        long,
        env = "KUBELET_SUPERVISOR_METRICS_BIND_ADDRESS",
        default_value = "127.0.0.1:10246",
        value_name = "ADDRESS:PORT"
    )]
    metrics_bind_address: String,
    /// The Node's name [default: from the client certificate, else as the kubelet has it]
    #[arg(long, env = "KUBELET_SUPERVISOR_NODE_NAME", value_name = "NAME")]
    node_name: Option<String>,
    /// How the supervisor's own lines look; the kubelet's are passed through untouched.
    #[arg(long, env = "KUBELET_SUPERVISOR_LOG_FORMAT", value_enum, default_value_t, value_name = "text|json")]
    log_format: log::Format,
    #[command(flatten)]
    kubelet: KubeletCommand,
}

pub(super) fn run(options: Options) -> Result<u8, Failure> {
    let (program, args) = options.kubelet.parse()?;
    let metrics = settings::listener(&options.metrics_bind_address)
        .map_err(|why| Failure::usage(format!("--metrics-bind-address: {why}")))?;
    let settings = Settings {
        program,
        dir: settings::store_dir(options.dynamic_config_dir.as_deref(), &args),
        args,
        machine: machine::Settings { trial_duration: options.trial_duration.0, start_timeout: options.start_timeout.0 },
        merge: options.merge.merge,
        metrics,
        node_name: options.node_name.filter(|name| !name.is_empty()),
    };
    log::init(options.log_format);
    block_on(wire::supervise(settings))?.map_err(|error| Failure::new(1, format!("{error:#}")))
}
