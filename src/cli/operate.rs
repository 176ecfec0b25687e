//! The operator's verbs: they go to the running supervisor, else to the store, so that its next
//! start obeys. None of them needs the API server.

use clap::Subcommand;

use super::common::Failure;
use super::control::{StoreDir, Unreachable};
use crate::adapters::clock::BootClock;
use crate::adapters::fsx::RealDisk;
use crate::adapters::lock::{self, NotLocked};
use crate::adapters::store::FsStore;
use crate::daemon::settings;
use crate::machine;
use crate::machine::command::{Command, Target};
use crate::ports::Clock as _;
use kubelet_config::duration::GoDuration;
use kubelet_config::hazard::HazardClass;

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Forget that the assigned version failed, and try it again.
    Retry(StoreDir),
    /// Leave what runs: to last known good, or to another version and stay there.
    #[command(after_help = "\
Examples:
  kubelet-supervisor rollback                 to last known good
  kubelet-supervisor rollback --to local      to the node's own file and flags
  kubelet-supervisor history -v               has each UID/RESOURCEVERSION")]
    Rollback {
        /// Where to: last known good (lkg), the node's own file and flags (local), or a version that is kept (see `history -v`).
        #[arg(long, default_value = "lkg", value_name = "local|lkg|UID/RESOURCEVERSION")]
        to: Target,
        #[command(flatten)]
        store: StoreDir,
    },
    /// Stay with a version, whatever is assigned.
    Pin {
        /// What to stay with: the node's own file and flags (local), last known good (lkg), or UID/RESOURCEVERSION of a version that is kept (see `history -v`) [default: what runs]
        #[arg(value_name = "TARGET")]
        to: Option<Target>,
        #[command(flatten)]
        store: StoreDir,
    },
    /// Follow the assignment again.
    Unpin(StoreDir),
    /// Take up no change; a trial under way goes on.
    Freeze(StoreDir),
    /// Take up changes again.
    Thaw(StoreDir),
    /// Confirm the configuration that waits for it (--confirm-within): it is not rolled back.
    Confirm {
        /// Confirm nothing yet: the time to confirm ends this long from now, or from the end of the trial, such as 1h.
        #[arg(long, value_parser = settings::positive, value_name = "DURATION")]
        extend: Option<GoDuration>,
        #[command(flatten)]
        store: StoreDir,
    },
    /// Accept a hazard for which the local files, as they are, are refused (--follow-local).
    Acknowledge {
        /// The class of hazards for which the local files are refused; `status` names it.
        class: HazardClass,
        #[command(flatten)]
        store: StoreDir,
    },
}

pub(super) fn run(verb: Verb) -> Result<u8, Failure> {
    let (store, command) = match verb {
        Verb::Retry(store) => (store, Command::Retry),
        Verb::Rollback { to, store } => (store, Command::Rollback { to }),
        Verb::Pin { to, store } => (store, Command::Pin { to }),
        Verb::Unpin(store) => (store, Command::Unpin),
        Verb::Freeze(store) => (store, Command::Freeze),
        Verb::Thaw(store) => (store, Command::Thaw),
        Verb::Confirm { extend, store } => {
            let extend_seconds = extend.map(|extend| extend.0.as_secs().max(1));
            (store, Command::Confirm { extend_seconds })
        }
        Verb::Acknowledge { class, store } => (store, Command::Acknowledge { class }),
    };
    operate(&store, &command)
}

fn operate(store: &StoreDir, command: &Command) -> Result<u8, Failure> {
    let body = serde_json::to_string(command).map_err(|error| error.to_string())?;
    let why = match store.ask("POST", "/command", &body) {
        Ok((200, text)) => {
            println!("{}", text.trim_end());
            return Ok(0);
        }
        Ok((409, why)) => format!("refused: {}", why.trim_end()),
        // It may still be done.
        Ok((504, why)) => why.trim_end().to_owned(),
        Ok((code, why)) => format!("the supervisor did not take the command ({code}): {}", why.trim_end()),
        Err(Unreachable::Refused(why)) => why,
        Err(Unreachable::NoAnswer(why)) => {
            format!("the supervisor does not answer: {why}; see its journal, and `status` for whether it was done")
        }
        Err(Unreachable::Absent(why)) => return offline(store, command, &why),
    };
    Err(why.into())
}

/// Without a supervisor: writes to the store what the next one is to do.
fn offline(store: &StoreDir, command: &Command, why: &str) -> Result<u8, Failure> {
    let dir = store.require(&format!("no supervisor answers ({why}) and "))?;
    // Held to the end: a supervisor that starts meanwhile must not read half of it.
    let _lock = match lock::take(&dir) {
        Ok(file) => file,
        Err(NotLocked::Taken(pid)) => {
            let hint = "if it is just starting, try again; else see its journal";
            return Err(format!("a supervisor runs, pid {pid}, but does not listen ({why}); {hint}").into());
        }
        Err(NotLocked::Unavailable(reason)) => {
            return Err(format!("no supervisor answers ({why}) and the store cannot be locked: {reason}").into());
        }
    };
    let mut files = FsStore::new(RealDisk::guarded(&dir), &dir);
    let stored = files.load();
    let offline = machine::offline(stored, command, BootClock.now());
    let (records, text) = offline.map_err(|why| format!("refused: {why}"))?;
    let full = |why| format!("the store cannot be written: {why}; see `df -h` and `df -i` of {}", dir.display());
    files.record(&records).map_err(full)?;
    println!("{text}");
    eprintln!("note: no supervisor is running; the next one to start obeys");
    Ok(0)
}
