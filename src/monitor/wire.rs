//! What monitor and worker tell each other: one JSON object a message, on a `SOCK_SEQPACKET` pair.
//!
//! The worker asks; the monitor tells its state, whole, whenever it differs from what it told last. An answer that is lost or
//! late is in the next one. Both sides name [`PROTOCOL`] first, and another number is refused.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::machine::model::{Beginning, Exit, RunId};

/// The version of these messages. Whoever changes their meaning or shape counts on.
pub const PROTOCOL: u32 = 3;

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
    /// SIGTERM, once, to the kubelet of this run ([`Child::run`]), and SIGKILL after the grace.
    Stop(u64),
    /// SIGQUIT to the kubelet of this run: its stacks.
    Dump(u64),
    /// Somebody minds the kubelet: systemd's watchdog is fed for so long.
    Feed(Duration),
    /// The unit's STATUS= in words: one line.
    Show(String),
}

/// The state that a worker is told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    pub kubelet: Option<Child>,
    /// The last kubelet that was reaped.
    pub ended: Option<Child>,
    /// The last [`Request::Start`] or [`Request::Park`] that was not carried out, and why.
    pub refused: Option<(u64, String)>,
    /// The standby, while it is not reaped.
    pub standby: Option<Child>,
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
        let running = self.kubelet.as_ref().filter(|kubelet| kubelet.phase < Phase::Ends).map(Child::id);
        Beginning::Worker { running, why: self.before.clone(), generation: self.generation }
    }
}

/// A process of the monitor's: the kubelet, one that stands by, or a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Child {
    /// Process id; 0: it is asked for, and not forked yet.
    pub pid: i32,
    /// CLOCK_BOOTTIME when it was asked for.
    pub since: Duration,
    /// How far it is.
    pub phase: Phase,
    /// CLOCK_BOOTTIME when this phase began, or it said something.
    #[serde(skip)]
    pub(super) heard: Duration,
    /// Of the [`Request::Start`] or [`Request::Park`] that it was started for; `None`: the monitor started it by itself.
    pub ticket: Option<u64>,
    /// [`fingerprint`] of its arguments.
    pub command: u64,
    /// Counts kubelets from one.
    pub run: u64,
    /// CLOCK_BOOTTIME when it first said READY=1.
    pub ready: Option<Duration>,
    /// How often it said WATCHDOG=1.
    pub pings: u64,
    /// A descriptor of the monitor's: a file with its last lines, of a standby with all that it wrote so far. None: its output is
    /// not read.
    pub output: Option<i32>,
    /// How it ended, once it is reaped.
    pub exit: Option<Exit>,
}

/// How far a child is. It only goes forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// It is a copy of the monitor that is about to execute its program; or its program has yet to show that it works.
    #[default]
    Begins,
    /// The kubelet's program was executed; the standby waits for its lock: its configuration is valid; the worker said hello.
    Lives,
    /// It was told to end.
    Ends,
    /// It was sent SIGKILL.
    Killed,
    /// It cannot be killed, as on a disk that hangs. Nobody waits for it.
    Left,
}

impl Child {
    /// What the machine knows this process by.
    #[must_use]
    pub fn id(&self) -> RunId {
        RunId { pid: u32::try_from(self.pid).unwrap_or_default(), started: self.since }
    }
}

/// Tells one command line from another (FNV-1a, 64 bits; nobody who could choose them may start a kubelet).
#[must_use]
pub fn fingerprint(args: &[String]) -> u64 {
    let bytes = args.iter().flat_map(|arg| arg.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
