//! Who is compared: what brings a node its next configuration.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use testkit::restarted::Restarted;

use crate::Result;
use crate::world::{World, wait_for};

pub const SUPERVISOR: &str = env!("CARGO_BIN_EXE_kubelet-supervisor");

/// Longer than the slowest of them takes to do anything; nothing waits for its end unless something fails.
pub const LIMIT: Duration = Duration::from_secs(120);

/// Native takes no notice of the Node in its first ten seconds, jittered by a fifth, and says so nowhere.
const NATIVE_IS_BLIND: Duration = Duration::from_secs(14);

/// Native's loops tick every 10 s. The rounds meet them at moments spread over that.
const NATIVE_TICKS: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// A kubelet that gets SIGTERM and is started again at once: what no change can be cheaper than, unless it waits ready.
    Bare,
    /// Native dynamic configuration, restarted as by systemd with this RestartSec.
    Native(u64),
    Supervised {
        standby: bool,
    },
}

impl Contender {
    pub const ALL: [Self; 5] = [
        Self::Bare,
        Self::Native(10),
        Self::Native(0),
        Self::Supervised { standby: false },
        Self::Supervised { standby: true },
    ];

    /// For the environment and for directories.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Native(0) => "native-0",
            Self::Native(_) => "native-10",
            Self::Supervised { standby: false } => "no-standby",
            Self::Supervised { standby: true } => "supervised",
        }
    }

    /// For the table.
    pub fn title(self) -> String {
        match self {
            Self::Bare => "bare kubelet".to_owned(),
            Self::Native(seconds) => format!("native, RestartSec={seconds}"),
            Self::Supervised { standby: false } => "supervised, `--standby=false`".to_owned(),
            Self::Supervised { standby: true } => "supervised".to_owned(),
        }
    }

    pub fn is_native(self) -> bool {
        matches!(self, Self::Native(_))
    }

    pub fn is_supervised(self) -> bool {
        matches!(self, Self::Supervised { .. })
    }

    /// Where it keeps its checkpoints.
    pub fn store(self, world: &World) -> PathBuf {
        world.dir.join("stores").join(self.name())
    }

    /// Starts it. `options` are the supervisor's.
    pub fn start(self, world: &World, options: &[String]) -> Result<Restarted> {
        let kubelet = [world.kubelet.path.display().to_string()].into_iter().chain(world.args.iter().cloned());
        let store = format!("--dynamic-config-dir={}", self.store(world).display());
        std::fs::create_dir_all(world.dir.join("stores"))?;
        let (words, pause): (Vec<String>, u64) = match self {
            Self::Bare => (kubelet.collect(), 0),
            Self::Native(pause) => (kubelet.chain([store]).collect(), pause),
            Self::Supervised { standby } => {
                let own = [SUPERVISOR.to_owned(), "run".to_owned(), store, format!("--standby={standby}")];
                // Edits and changes take effect at once.
                let at_once = ["--spread=0s", "--courtesy=0"].map(str::to_owned);
                let own = own.into_iter().chain(at_once).chain(options.iter().cloned());
                (own.chain(["--".to_owned()]).chain(kubelet).collect(), 10)
            }
        };
        let (program, args) = words.split_first().ok_or("no command")?;
        let log = world.dir.join(format!("{}.log", self.name()));
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        let mut command = Command::new(program);
        command.args(args).stdout(log.try_clone()?).stderr(log);
        Ok(Restarted::start(command, Duration::from_secs(pause))?)
    }

    /// Waits until it would notice a change, and has done what it does after a start: the kubelet is healthy and has renewed its Lease
    /// since, and its binary is not started for a second. `phase`, from 0 to 1, is where in native's ticks that is to end.
    pub fn settle(self, world: &World, phase: f64) -> Result<()> {
        let renewed = world.renewed();
        wait_for("a Lease that is renewed", LIMIT, || world.is_healthy() && world.renewed() != renewed)?;
        world.kubelet.wait_quiet()?;
        if self.is_native() {
            std::thread::sleep(NATIVE_IS_BLIND + NATIVE_TICKS.mul_f64(phase));
        }
        Ok(())
    }
}
