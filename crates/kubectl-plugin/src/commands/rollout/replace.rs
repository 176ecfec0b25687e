//! Beginning in the place of a rollout that is over. What its nodes had before stands in its records alone, so that at
//! no request a client may die without one of the two records being there, and whole:
//!
//! 1. it takes the lock of the old record, lest another client does the same;
//! 2. the nodes of the new one are written beside those of the old one;
//! 3. the new record replaces the old one, by its resourceVersion, and has it within;
//! 4. what is refused now is put back; else it runs;
//! 5. the nodes of the old one go.

use super::client::RolloutClient;
use super::lock::{Lock, LockAttempt};
use super::progress_reporter::ProgressReporter;
use super::records::{StoredRecord, no_overlap};
use crate::Failure;
use crate::fleet::rollout::member::Member;
use crate::fleet::rollout::{Phase, Record};

/// The record and its lock, and it runs.
///
/// # Errors
/// What is over is as it was.
pub(crate) async fn take_place(
    api: &RolloutClient,
    old: &StoredRecord,
    record: Record,
    members: &[Member],
    reporter: &ProgressReporter,
) -> Result<Lock, Failure> {
    let name = &old.name;
    let mut lock = match Lock::acquire(api, name, |text| reporter.note(text)).await? {
        LockAttempt::Acquired(lock) => lock,
        LockAttempt::Held(other) => {
            let phase = old.record.phase.label();
            return Err(Failure::new(format!(
                "rollout {name} is {phase}, and {other} is not yet at its end with it: run this again in a minute"
            )));
        }
    };
    let former = free(&lock.stored.record);
    if former != free(&old.record) {
        lock.release().await;
        return Err(meanwhile(name));
    }
    let record = Record { second: !former.second, replaces: Some(Box::new(former.clone())), ..record };
    match begun(api, &mut lock, &record, members).await {
        Ok(()) => {
            // What a failure leaves of them nobody reads, and the next one of this name replaces.
            let _ = api.forget_nodes(name, &former).await;
            Ok(lock)
        }
        Err(failure) => {
            if is_begun(&lock.stored.record) {
                restore(api, lock).await?;
            } else {
                lock.release().await;
            }
            Err(failure)
        }
    }
}

async fn begun(api: &RolloutClient, lock: &mut Lock, record: &Record, members: &[Member]) -> Result<(), Failure> {
    let name = lock.stored.name.clone();
    api.create_nodes(&name, record.second, members).await?;
    lock.save(record.clone()).await?;
    if !is_begun(&lock.stored.record) {
        return Err(meanwhile(&name)); // nothing was written
    }
    no_overlap(api, &name, members).await?;
    lock.save(Record { phase: Phase::Running, replaces: None, ..record.clone() }).await
}

/// What a client that died in the midst of this left is put back.
///
/// # Errors
/// That client is alive.
pub(crate) async fn put_back(
    api: &RolloutClient,
    found: StoredRecord,
    reporter: &ProgressReporter,
) -> Result<StoredRecord, Failure> {
    if !is_begun(&found.record) {
        return Ok(found);
    }
    let name = &found.name;
    match Lock::acquire(api, name, |text| reporter.note(text)).await? {
        LockAttempt::Acquired(lock) if is_begun(&lock.stored.record) => restore(api, lock).await?,
        LockAttempt::Acquired(lock) => lock.release().await,
        LockAttempt::Held(other) => {
            return Err(Failure::new(format!("rollout {name} is just being begun by {other}")));
        }
    }
    api.known(name).await
}

async fn restore(api: &RolloutClient, mut lock: Lock) -> Result<(), Failure> {
    let begun = lock.stored.record.clone();
    if let Some(former) = &begun.replaces {
        lock.save(Record::clone(former)).await?;
        // Somebody may have aborted it at this very moment: then it stays, with its nodes.
        if free(&lock.stored.record) == **former {
            api.forget_nodes(&lock.stored.name, &begun).await?;
        }
    }
    lock.release().await;
    Ok(())
}

fn is_begun(record: &Record) -> bool {
    record.phase == Phase::Starting && record.replaces.is_some()
}

fn free(record: &Record) -> Record {
    Record { holder: None, ..record.clone() }
}

fn meanwhile(name: &str) -> Failure {
    Failure::new(format!("somebody else changed rollout {name} at this moment: run this again"))
}
