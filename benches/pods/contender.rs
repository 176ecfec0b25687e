//! Who restarts the kubelet, and how it is told to.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use testkit::restarted::Restarted;

use crate::Result;
use crate::cluster::{CHANGE, Cluster};

const SUPERVISOR: &str = env!("CARGO_BIN_EXE_kubelet-supervisor");

#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    /// SIGTERM, and started again at once.
    Bare,
    /// Native dynamic configuration, RestartSec=0.
    Native,
    /// Without a standby, and each change at once.
    NoStandby,
    /// Each change at once.
    NoCourtesy,
    Supervised,
}

impl Kind {
    pub const ALL: [Self; 5] = [Self::Bare, Self::Native, Self::NoStandby, Self::NoCourtesy, Self::Supervised];

    /// For the environment.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Native => "native-0",
            Self::NoStandby => "no-standby",
            Self::NoCourtesy => "no-courtesy",
            Self::Supervised => "supervised",
        }
    }

    /// For the table.
    pub fn title(self) -> &'static str {
        match self {
            Self::Bare => "bare restart",
            Self::Native => "native, RestartSec=0",
            Self::NoStandby => "supervised, `--standby=false --courtesy=0`",
            Self::NoCourtesy => "supervised, `--courtesy=0`",
            Self::Supervised => "supervised",
        }
    }

    /// Options of the supervisor, where there is one.
    fn options(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Bare | Self::Native => None,
            Self::NoStandby => Some(&["--standby=false", "--courtesy=0"]),
            Self::NoCourtesy => Some(&["--courtesy=0"]),
            Self::Supervised => Some(&[]),
        }
    }
}

pub struct Contender<'a> {
    cluster: &'a Cluster,
    kind: Kind,
    /// The dynamic configuration directory.
    store: PathBuf,
    process: Restarted,
}

impl<'a> Contender<'a> {
    /// With nothing assigned, and nothing known of earlier ones.
    pub fn start(cluster: &'a Cluster, kind: Kind, id: &str) -> Result<Self> {
        let store = cluster.dir.join("dynamic").join(id);
        let supervisor = [SUPERVISOR, "run", "--metrics-bind-address="].map(str::to_owned);
        let mut words = Vec::new();
        if let Some(options) = kind.options() {
            words.extend(supervisor.into_iter().chain(options.iter().map(|&option| option.to_owned())));
            words.push("--".to_owned());
        }
        words.extend(cluster.kubelet.iter().cloned());
        if kind != Kind::Bare {
            words.push(format!("--dynamic-config-dir={}", store.display()));
        }
        let (program, args) = words.split_first().ok_or("no command")?;
        let log = File::options().create(true).append(true).open(cluster.dir.join("logs").join(format!("{id}.log")))?;
        let mut command = Command::new(program);
        command.args(args).stdout(log.try_clone()?).stderr(log);
        Ok(Self { cluster, kind, store, process: Restarted::start(command, Duration::ZERO)? })
    }

    /// The process of the kubelet that runs.
    pub fn kubelet(&self) -> Option<u32> {
        if self.kind.options().is_none() {
            return Some(self.process.pid()).filter(|pid| *pid != 0);
        }
        let mut status = Command::new(SUPERVISOR);
        let output = status.args(["status", "-o", "json", "--dynamic-config-dir"]).arg(&self.store).output().ok()?;
        let status: Value = serde_json::from_slice(&output.stdout).ok()?;
        status.pointer("/kubelet/pid")?.as_u64()?.try_into().ok()
    }

    /// What is measured.
    pub fn change(&self) -> Result<()> {
        if self.kind == Kind::Bare {
            self.process.terminate();
            return Ok(());
        }
        self.cluster.assign(Some(CHANGE))
    }

    /// Whether the change is what runs.
    pub fn has_changed(&self) -> Result<bool> {
        Ok(self.kind == Kind::Bare || self.cluster.active()?.as_deref() == Some(CHANGE))
    }

    /// The next one has the node as it was.
    pub fn stop(self) -> Result<()> {
        let Self { cluster, process, .. } = self;
        drop(process);
        cluster.assign(None)
    }
}
