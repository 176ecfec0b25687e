//! The monitor: `kubelet-supervisor run`, the unit's main process. It owns the kubelet, and does not think.
//!
//! What thinks is a worker, its child, which may die, hang or be replaced at any time. [`Monitor::step`] is pure: an
//! event and the time in, actions out. [`run()`] is its edge: one poll loop on one thread, which waits for nothing else.
//!
//! | what happens | what the monitor does |
//! |---|---|
//! | a worker asks for a start | starts it, if no kubelet exists; the standby with the same arguments goes on |
//! | a worker asks for anything about a run that is over | nothing |
//! | a kubelet ends, a worker speaks | the worker has [`ABSENCE`]; then the monitor starts the last command |
//! | a kubelet ends, no worker speaks | the last command, after a pause of 1 to 10 s |
//! | nothing was started yet, no worker says hello in [`HELLO`] | last known good, else the unit's own |
//! | a worker ends, cannot be executed, is silent for [`SILENCE`], or cannot be understood | it is ended and another started, after a pause of 0.1 to 60 s |
//! | three workers end early, or cannot be forked | the next is this very binary's, until one lives for [`SETTLED`] |
//! | SIGHUP | a successor starts; once it says hello the worker retires; when that is reaped, it is the successor's turn |
//! | the successor ends, or says no hello | the worker that is there stays |
//! | a child is in a phase for too long | it gets SIGKILL; if that does not end it, it is left alone |
//! | the kubelet pings | systemd is pinged |
//! | no kubelet, one that never pings, a worker's lease | the monitor pings, for no kubelet at most [`FEED_MAX`] |
//! | SIGTERM, SIGINT | the kubelet gets SIGTERM, and SIGKILL after [`GRACE`]; the worker has [`LAST_WORDS`] more; then the end |
//! | SIGQUIT, SIGUSR1, SIGUSR2 | the kubelet gets it |
//! | a worker refuses to begin before anything was started | the end, with its exit code |
//!
//! Each child goes from phase to phase and never back, and has so long in each:
//!
//! | | begins | lives | ends | killed |
//! |---|---|---|---|---|
//! | the kubelet | until it is executed | as long as it likes | [`GRACE`] | [`GRACE`] |
//! | the standby | until it waits for its lock: [`CLAIM`] | until it is claimed: [`CLAIM`] | – | [`GRACE`] |
//! | a worker | until hello: [`HELLO`] | after each message: [`SILENCE`] | [`GRACE`] | [`GRACE`] |
//!
//! Nothing grows: one kubelet, one standby, two workers and two more that cannot be killed, and the last state of each.

mod children;
mod run;
mod state;
mod step;
pub mod wire;

pub use children::Command;
pub(crate) use children::{receive, say};
pub use run::run;
pub use state::{
    ABSENCE, Action, CLAIM, Event, FEED_MAX, GRACE, HELLO, LAST_WORDS, Monitor, READ, Role, SETTLED, SILENCE,
};
