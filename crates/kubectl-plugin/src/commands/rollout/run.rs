//! Driving a rollout to where this client can do nothing more, and how that ended.

use std::process::ExitCode;

use super::client::RolloutClient;
use super::drain::Drains;
use super::drive::{Drive, Outcome};
use super::fleet::Fleet;
use super::lock::{Lock, LockAttempt};
use super::progress_reporter::{ProgressReporter, clean};
use crate::Failure;
use crate::api::write::{AssignmentWriter, Mode};
use crate::commands::wait::interrupted;
use crate::fleet::node::NodeRow;
use crate::fleet::rollout::member::Member;
use crate::fleet::rollout::{Phase, Record};
use crate::output;

/// Exit code of a client that did not come to the end of its rollout: the same command goes on (EX_TEMPFAIL).
const AGAIN: u8 = 75;

/// Drives a rollout that is recorded, unless a living client does.
pub(crate) async fn drive_on(
    api: &RolloutClient,
    name: &str,
    reporter: ProgressReporter,
    what: &str,
) -> Result<ExitCode, Failure> {
    match Lock::acquire(api, name, |text| reporter.note(text)).await? {
        LockAttempt::Acquired(lock) => drive_locked(api, lock, reporter).await,
        LockAttempt::Held(other) => {
            reporter
                .note(&format!("{other} {what}; `kubectl kubelet-config rollout status {name}` says how far it is"));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The nodes of a rollout.
pub(crate) struct Nodes {
    pub(crate) members: Vec<Member>,
    /// As a list by its selector has them, if there was one, and its version.
    pub(crate) listed: Option<(Vec<NodeRow>, String)>,
    /// Whether the API server keeps `spec.configSource`, if somebody asked.
    pub(crate) keeps: Option<bool>,
}

pub(crate) async fn drive_locked(
    api: &RolloutClient,
    lock: Lock,
    reporter: ProgressReporter,
) -> Result<ExitCode, Failure> {
    let name = lock.stored.name.clone();
    let record = run_locked(api, lock, reporter).await?;
    ended(&name, &record, &format!(" ({} requests)", api.api.requests()))
}

/// The same, to its end, whatever that is.
pub(crate) async fn run_locked(api: &RolloutClient, lock: Lock, reporter: ProgressReporter) -> Result<Record, Failure> {
    match api.all_members(&lock.stored).await {
        Ok(members) => run_with(api, lock, Nodes { members, listed: None, keeps: None }, reporter).await,
        Err(failure) => {
            lock.release().await;
            Err(failure)
        }
    }
}

pub(crate) async fn drive_with(
    api: &RolloutClient,
    lock: Lock,
    nodes: Nodes,
    reporter: ProgressReporter,
) -> Result<ExitCode, Failure> {
    let name = lock.stored.name.clone();
    let record = run_with(api, lock, nodes, reporter).await?;
    ended(&name, &record, &format!(" ({} requests)", api.api.requests()))
}

async fn run_with(
    api: &RolloutClient,
    lock: Lock,
    nodes: Nodes,
    reporter: ProgressReporter,
) -> Result<Record, Failure> {
    let name = lock.stored.name.clone();
    let Nodes { members, listed, keeps } = nodes;
    let record = &lock.stored.record;
    let mut fleet = Fleet::new(members, record);
    // What the record says of nodes counts from the first event on.
    fleet.follow_record(&name, record);
    let from = listed.map(|(rows, version)| {
        fleet.set_listed(rows);
        version
    });
    let phase = record.phase;
    let drains = Drains::new(api, record.options.drain);
    let left = if drains.is_on() { ", and stay cordoned until somebody goes on" } else { "" };
    let (others_bad, others_listed) = (Vec::new(), false);
    let writer = AssignmentWriter { keeps_source: keeps, ..AssignmentWriter::new(None, Mode::Real) };
    let drive = Drive { api: api.clone(), lock, fleet, from, writer, reporter, others_bad, others_listed, drains };
    match Box::pin(drive.run(interrupted())).await {
        Ok(Outcome::Ended(record, cordoned)) => {
            if let Some(first) = cordoned.first() {
                eprintln!(
                    "warning: {} nodes stay cordoned by this rollout, as they are not well: {}; `kubectl uncordon {first}` once \
                     one is",
                    cordoned.len(),
                    clean(&cordoned.join(", "))
                );
            }
            Ok(record)
        }
        Ok(Outcome::Interrupted) => {
            // Somebody may have aborted it meanwhile, and it may have come to its end.
            let phase = match api.in_time(api.record(&name)).await {
                Some(Ok(Some(stored))) => stored.record.phase,
                _ => phase,
            };
            let message = format!("interrupted; nothing more is sent, and nodes in flight come to their end{left}.");
            Err(again(&name, phase, &message, " "))
        }
        Err(failure) => {
            let phase = match api.record(&name).await {
                // What is not there any more is nothing to go on with.
                Ok(None) => return Err(failure),
                Ok(Some(stored)) => stored.record.phase,
                Err(_) => phase,
            };
            let left =
                if left.is_empty() { String::new() } else { format!("\nNodes in flight come to their end{left}.") };
            Err(again(&name, phase, &format!("{}{left}", failure.message), "\n"))
        }
    }
}

/// A client came to its end before its rollout did: what goes on with a rollout in this phase.
pub(crate) fn again(name: &str, phase: Phase, message: &str, between: &str) -> Failure {
    let verb = match phase {
        // There may be nodes that are to be uncordoned.
        Phase::Aborted | Phase::Done | Phase::Reverted => "abort",
        Phase::Reverting => "undo",
        Phase::Starting | Phase::Running | Phase::Paused | Phase::Stopped => "resume",
    };
    let message = format!("{message}{between}Go on with `kubectl kubelet-config rollout {verb} {name}`");
    Failure { code: AGAIN, message }
}

/// How a rollout that is not driven any more has ended: 0 if all is as it should be.
pub(crate) fn ended(name: &str, record: &Record, requests: &str) -> Result<ExitCode, Failure> {
    let why = if record.why.is_empty() { String::new() } else { format!(": {}", clean(&record.why)) };
    match record.phase {
        Phase::Done => {}
        Phase::Reverted if record.undone && record.behind == 0 => {}
        Phase::Reverted if record.behind > 0 => {
            return Err(Failure::new(format!(
                "rollout {name} is reverted, but for {} nodes{why}\n`kubectl kubelet-config status` says how they fare, and \
                 `kubectl kubelet-config rollout undo {name}` looks again",
                record.behind
            )));
        }
        Phase::Stopped => {
            return Err(Failure::new(format!(
                "rollout {name} stopped{why}\n`kubectl kubelet-config rollout undo {name}` gives nodes back what they had; \
                 `resume` goes on once the cause is mended (with --despite NODE if a node alone was to blame), `abort` leaves all \
                 as it is"
            )));
        }
        phase => return Err(Failure::new(format!("rollout {name} is {}{why}", phase.label()))),
    }
    output::write_stdout(&format!("rollout/{name} {}{why}{requests}\n", record.phase.label()))?;
    Ok(ExitCode::SUCCESS)
}
