//! The kubelet of all contenders: this benchmark's own executable under the name `kubelet`, which writes down that it was started
//! and becomes the kubelet. No start is missed, however short, and whoever starts it.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use crate::Result;
use crate::contender::LIMIT;
use crate::world::wait_for;

/// Stands for the path of a real kubelet.
const STAND_IN: &str = "stand-in";

/// CLOCK_MONOTONIC, nanoseconds.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| Duration::from(time).as_nanos());
    u64::try_from(now).unwrap_or_default()
}

/// Where the path of the kubelet is that it becomes: its environment is not ours.
fn target_file(own: &Path) -> PathBuf {
    own.with_extension("target")
}

fn journal_file(own: &Path) -> PathBuf {
    own.with_extension("starts")
}

pub fn become_the_kubelet_if_named_so() {
    let args: Vec<OsString> = std::env::args_os().collect();
    let Some(own) = args.first().map(Path::new).filter(|own| own.file_name().is_some_and(|name| name == "kubelet"))
    else {
        return;
    };
    let words: Vec<_> = args.iter().skip(1).map(|arg| arg.to_string_lossy()).collect();
    let line = format!("{} {} {}\n", now(), std::process::id(), words.join(" "));
    let journal = std::fs::OpenOptions::new().append(true).open(journal_file(own));
    let target = std::fs::read_to_string(target_file(own)).unwrap_or_default();
    if let Err(error) = journal.and_then(|mut journal| journal.write_all(line.as_bytes())) {
        eprintln!("the start is not counted: {error}");
        std::process::exit(1);
    }
    if target == STAND_IN {
        testkit::kubelet::run(args);
    }
    let error = Command::new(&target).args(args.iter().skip(1)).exec();
    eprintln!("{target}: {error}");
    std::process::exit(1);
}

/// What a start of the binary is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Run,
    /// It judges a configuration and leaves, or says its version.
    Judge,
    /// It judges, waits, and may be the next kubelet.
    Standby,
}

#[derive(Clone, Copy, Debug)]
struct Start {
    at: u64,
    pid: u32,
    kind: Kind,
}

impl Start {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let (at, pid) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let mut kind = Kind::Run;
        for word in words {
            if word.starts_with("--exit-on-lock-contention") || word == "--version" {
                kind = Kind::Judge;
            } else if word.starts_with("--lock-file=/proc/self/fd/") && kind == Kind::Run {
                kind = Kind::Standby;
            }
        }
        Some(Self { at, pid, kind })
    }

    /// A standby that is there still has become the kubelet.
    fn acts(&self) -> bool {
        let lives = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
            stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
        };
        self.kind == Kind::Run || self.kind == Kind::Standby && lives()
    }
}

/// Process starts: of kubelets that did something on the node, and of those that only judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Starts {
    pub acting: usize,
    pub judging: usize,
}

impl std::fmt::Display for Starts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.judging {
            0 => write!(f, "{}", self.acting),
            judging => write!(f, "{} + {judging} judging", self.acting),
        }
    }
}

/// The program in the kubelet's place.
pub struct CountedKubelet {
    pub path: PathBuf,
}

impl CountedKubelet {
    /// In this directory; `None`: it becomes the tests' stand-in.
    pub fn install(dir: &Path, kubelet: Option<&str>) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        let path = dir.join("kubelet");
        std::fs::copy(std::env::current_exe()?, &path)?;
        std::fs::write(target_file(&path), kubelet.unwrap_or(STAND_IN))?;
        std::fs::write(journal_file(&path), "")?;
        Ok(Self { path })
    }

    fn starts(&self) -> Vec<Start> {
        let text = std::fs::read_to_string(journal_file(&self.path)).unwrap_or_default();
        text.lines().filter_map(Start::parse).collect()
    }

    /// Waits until nobody has started it for a second.
    pub fn wait_quiet(&self) -> Result<()> {
        let (mut count, mut since) = (self.mark(), Instant::now());
        wait_for("a second without a start of the kubelet", LIMIT, || {
            if std::mem::replace(&mut count, self.mark()) != count {
                since = Instant::now();
            }
            since.elapsed() > Duration::from_secs(1)
        })
    }

    /// How many there were so far.
    pub fn mark(&self) -> usize {
        self.starts().len()
    }

    pub fn since(&self, mark: usize) -> Starts {
        let starts = self.starts();
        let acting = starts.iter().skip(mark).filter(|start| start.acts()).count();
        Starts { acting, judging: starts.len() - mark - acting }
    }

    /// When the first one since then began that acts.
    pub fn first_acting(&self, mark: usize) -> Option<u64> {
        self.starts().iter().skip(mark).find(|start| start.kind == Kind::Run).map(|start| start.at)
    }
}
