//! What monitor and worker tell each other: one JSON object a message, on a `SOCK_SEQPACKET` pair.
//!
//! The worker asks; the monitor tells its state, whole, whenever it differs from what it told last. An answer that is lost or
//! late is in the next one. Both sides name [`PROTOCOL`] first, and another number is refused.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::machine::model::{Beginning, Exit, RunId};

/// The version of these messages. Whoever changes their meaning or shape counts on.
pub const PROTOCOL: u32 = 1;

/// The longest message, in bytes. A kubelet's command line has two or three thousand.
pub const MESSAGE_MAX: usize = 64 << 10;

/// The worker's end of the socket pair, in the worker.
pub const WORKER_FD: i32 = 3;

/// The exit code of a worker where nobody but a person waits and the options are wrong (EX_USAGE of sysexits(3)). As the next
/// one, it is heeded only before anything was started.
pub const WRONG_OPTIONS: u8 = 64;

/// The exit code of a worker where another supervisor has the store.
pub const IN_USE: u8 = 65;

/// What a worker asks for, or says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Request {
    /// The first message: the worker can begin.
    Hello {
        /// Its [`PROTOCOL`].
        protocol: u32,
        /// Its release.
        version: String,
    },
    /// It lives. Every other message says so, too.
    Beat,
    /// Start the kubelet with these arguments. The standby with the same ones goes on as the kubelet.
    Start {
        /// Tells this start from others.
        ticket: u64,
        /// All of them, without the program.
        args: Vec<String>,
    },
    /// Start a kubelet that stands by: it waits for the lock on its standard input before it touches the node.
    Park {
        /// Tells this standby from others.
        ticket: u64,
        /// What [`Request::Start`] will say.
        args: Vec<String>,
    },
    /// End the standby.
    Unpark,
    /// SIGTERM, once, to the kubelet of this run, and SIGKILL after the grace.
    Stop {
        /// [`Running::run`].
        run: u64,
    },
    /// SIGQUIT to the kubelet of this run: its stacks.
    Dump {
        /// [`Running::run`].
        run: u64,
    },
    /// Somebody minds the kubelet: systemd's watchdog is fed for so long.
    Feed {
        /// Milliseconds from now.
        millis: u64,
    },
    /// The unit's STATUS= in words.
    Show {
        /// One line.
        text: String,
    },
}

/// The state that a worker is told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The monitor's [`PROTOCOL`].
    pub protocol: u32,
    /// Which worker the receiver is, counted from one.
    pub generation: u64,
    /// It is the receiver's turn: the worker before has ended, and nobody else is obeyed.
    pub turn: bool,
    /// No worker of this supervisor had its turn before.
    pub first: bool,
    /// The receiver is to end; the kubelet goes on.
    pub retire: bool,
    /// The supervisor ends: SIGTERM came, and the kubelet was sent it, too.
    pub leaving: bool,
    /// Why the worker before ended; `None`: it was replaced because somebody asked for it.
    pub before: Option<String>,
    /// The kubelet, while it is not reaped.
    pub kubelet: Option<Running>,
    /// The last end of a kubelet.
    pub ended: Option<Ended>,
    /// The last [`Request::Start`] or [`Request::Park`] that was not carried out, and why.
    pub refused: Option<(u64, String)>,
    /// The standby, while it is not reaped.
    pub standby: Option<Standby>,
}

impl Status {
    /// How the receiver begins. A supervisor begins with the first worker that has its turn: what the monitor started for want of
    /// one is nobody's trial.
    #[must_use]
    pub fn beginning(&self) -> Beginning {
        if self.first {
            return Beginning::Supervisor;
        }
        // One that is told to end does not go on.
        let running = self.kubelet.as_ref().filter(|kubelet| !kubelet.stopping).map(Running::id);
        Beginning::Worker { running, why: self.before.clone(), generation: self.generation }
    }
}

/// A kubelet that acts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Running {
    /// Counts kubelets from one.
    pub run: u64,
    /// Of the [`Request::Start`] that it was started for; `None`: the monitor started it by itself.
    pub ticket: Option<u64>,
    /// Process id.
    pub pid: i32,
    /// CLOCK_BOOTTIME at its start, in nanoseconds.
    pub started: u64,
    /// [`fingerprint`] of its arguments.
    pub command: u64,
    /// The program was executed; before that it is a copy of the monitor that tries to.
    pub executed: bool,
    /// CLOCK_BOOTTIME when it first said READY=1, in nanoseconds.
    pub ready: Option<u64>,
    /// How often it said WATCHDOG=1.
    pub pings: u64,
    /// It was sent a signal that ends it.
    pub stopping: bool,
    /// A descriptor of the monitor's: a file with its last lines. None: its output is not read.
    pub output: Option<i32>,
}

impl Running {
    /// What the machine knows this process by.
    #[must_use]
    pub fn id(&self) -> RunId {
        RunId { pid: u32::try_from(self.pid).unwrap_or_default(), started: Duration::from_nanos(self.started) }
    }
}

/// The end of a kubelet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ended {
    /// The last that was told of it.
    pub was: Running,
    /// How it ended.
    pub exit: Exit,
}

/// A kubelet that stands by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Standby {
    /// Of its [`Request::Park`].
    pub ticket: u64,
    /// It waits for its lock: its configuration is loaded and valid.
    pub waits: bool,
    /// It is about to end.
    pub stopping: bool,
    /// A descriptor of the monitor's: a file with what it wrote so far. None: its output is not read.
    pub output: Option<i32>,
}

/// Tells one command line from another (FNV-1a, 64 bits; nobody who could choose them may start a kubelet).
#[must_use]
pub fn fingerprint(args: &[String]) -> u64 {
    let bytes = args.iter().flat_map(|arg| arg.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
