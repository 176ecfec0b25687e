//! `run`: the daemon.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use clap::{Args, Parser as _};

use super::{Cli, Failure, KubeletCommand, MergeOption, Verb, block_on};
use crate::adapters::successor::Beginning;
use crate::adapters::systemd::Systemd;
use crate::adapters::{clock, log};
use crate::core::payload::duration::GoDuration;
use crate::core::{machine, policy};
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
    /// A node that loses contact with a new configuration is put back after this long.
    #[arg(long, env = "KUBELET_SUPERVISOR_ISOLATION_TIMEOUT", default_value = "90s", value_parser = settings::positive, value_name = "DURATION")]
    isolation_timeout: GoDuration,
    /// Starts of the supervisor without proof, as in a machine that reboots in a loop, that fail a trial.
    #[arg(long, env = "KUBELET_SUPERVISOR_TRIAL_BOOTS", default_value_t = policy::TRIAL_BOOTS, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    trial_boots: u32,
    /// Roll back what nobody confirmed within this time of being healthy, where the ConfigMap's annotation kubelet-supervisor.io/confirm-within says nothing.
    #[arg(long, env = "KUBELET_SUPERVISOR_CONFIRM_WITHIN", value_parser = settings::positive, value_name = "DURATION")]
    confirm_within: Option<GoDuration>,
    /// Who starts the next kubelet: the supervisor itself (exec), or systemd, after the supervisor's own end with exit code 75 (exit), so that ExecStartPre runs.
    #[arg(long, env = "KUBELET_SUPERVISOR_RESTART_BY", default_value = "exec", value_name = "exec|exit")]
    restart_by: machine::RestartBy,
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

impl Options {
    /// What they amount to.
    pub(super) fn settings(&self) -> Result<Settings, Failure> {
        let (program, args) = self.kubelet.parse()?;
        let metrics = settings::listener(&self.metrics_bind_address)
            .map_err(|why| Failure::usage(format!("--metrics-bind-address: {why}")))?;
        Ok(Settings {
            program,
            dir: settings::store_dir(self.dynamic_config_dir.as_deref(), &args),
            args,
            machine: machine::Settings {
                trial_duration: self.trial_duration.0,
                start_timeout: self.start_timeout.0,
                isolation: self.isolation_timeout.0,
                boots: self.trial_boots,
                confirm_within: self.confirm_within.map(|within| within.0),
                restart_by: self.restart_by,
                watchdog: Systemd::watchdog(),
                boot_id: clock::boot_id(),
            },
            merge: self.merge.merge,
            metrics,
            node_name: self.node_name.clone().filter(|name| !name.is_empty()),
        })
    }
}

pub(super) fn run(options: &Options, beginning: Beginning) -> Result<u8, Failure> {
    let settings = options.settings()?;
    log::init(options.log_format);
    if options.restart_by == machine::RestartBy::Exit && std::env::var_os("INVOCATION_ID").is_none() {
        tracing::warn!(
            "--restart-by exit, and INVOCATION_ID is not set: if systemd did not start this, nobody will start the kubelet again"
        );
    }
    block_on(wire::supervise(settings, beginning))?.map_err(|error| Failure::new(1, format!("{error:#}")))
}

/// The directory of a running supervisor, by its command line.
pub(super) fn store_of(pid: &str) -> Option<PathBuf> {
    let pid: u32 = pid.parse().ok()?;
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = line.strip_suffix(b"\0")?.split(|byte| *byte == 0).map(|word| OsStr::from_bytes(word).to_owned());
    match Cli::try_parse_from(words).ok()?.verb {
        Verb::Run(options) => Some(options.settings().ok()?.dir),
        _ => None,
    }
}
