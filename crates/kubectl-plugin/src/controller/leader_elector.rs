//! Leader election: one replica reconciles.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::PostParams;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use crate::Failure;
use crate::api::client::{ApiError, Client};
use crate::api::pools::{lease, leases};
use crate::context::{NAMESPACE, identity};
use crate::fleet::leader_election::{
    Claim, LEASE_NAME, RENEW_DEADLINE, RETRY_PERIOD, acquired_or_renewed, claim, released,
};
use crate::output;

/// Until when its holder may act.
#[derive(Clone, Default)]
pub(super) struct LeadershipGuard {
    until: Arc<Mutex<Option<Instant>>>,
    /// When the API server said something of the Lease last.
    answered: Arc<Mutex<Option<Instant>>>,
}

impl LeadershipGuard {
    /// The Lease was renewed a short time ago.
    pub(super) fn is_leader(&self) -> bool {
        self.until.lock().is_some_and(|until| Instant::now() < until)
    }

    fn set(&self, until: Option<Instant>) {
        *self.until.lock() = until;
    }

    /// Whether the API server has said something of the Lease since then, whoever holds it.
    pub(super) fn answered_within(&self, time: Duration) -> bool {
        self.answered.lock().is_some_and(|at| at.elapsed() < time)
    }
}

pub(super) struct LeaderElector {
    client: Client,
    id: String,
    /// As it was last seen to change, and when.
    seen: (Value, Instant),
    /// We wrote that, so it need not be read: if another one wrote since, our next write is refused, and it is read then.
    is_as_written: bool,
    guard: LeadershipGuard,
}

impl LeaderElector {
    pub(super) fn new(client: &Client) -> Self {
        Self {
            client: client.clone(),
            id: identity(),
            seen: (Value::Null, Instant::now()),
            is_as_written: false,
            guard: LeadershipGuard::default(),
        }
    }

    pub(super) fn guard(&self) -> LeadershipGuard {
        self.guard.clone()
    }

    /// Until it is ours.
    ///
    /// # Errors
    /// A refusal that will stay one.
    pub(super) async fn acquire(&mut self) -> Result<(), Failure> {
        let mut told = None;
        loop {
            match self.try_acquire_or_renew().await {
                Ok(Claim::Ours) => {
                    output::note(&format!("{} holds the Lease {LEASE_NAME}", self.id));
                    return Ok(());
                }
                Ok(Claim::Held(other)) if told.as_ref() != Some(&other) => {
                    output::note(&format!("{other} holds the Lease {LEASE_NAME}; waiting"));
                    told = Some(other);
                }
                Ok(_) => {}
                Err(error) if error.may_pass() || error.is_conflict() => {
                    let cause = error.cause();
                    if told.as_ref() != Some(&cause) {
                        output::note(&format!(
                            "warning: the Lease {LEASE_NAME} in {NAMESPACE}: {cause}; trying again every {} s",
                            RETRY_PERIOD.as_secs()
                        ));
                        told = Some(cause);
                    }
                }
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(RETRY_PERIOD).await;
        }
    }

    /// Renews it for as long as it can be.
    ///
    /// # Errors
    /// A refusal that will stay one.
    pub(super) async fn renew(&mut self) -> Result<(), Failure> {
        while self.guard.is_leader() {
            tokio::time::sleep(RETRY_PERIOD).await;
            match self.try_acquire_or_renew().await {
                Ok(Claim::Ours) => {}
                Ok(_) => break,
                Err(error) if error.may_pass() || error.is_conflict() => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.guard.set(None);
        output::note(&format!("the Lease {LEASE_NAME} is lost"));
        Ok(())
    }

    /// Others need not wait until it is over.
    pub(super) async fn release(&mut self) {
        if self.guard.is_leader() {
            self.guard.set(None);
            let body = released(&self.seen.0);
            let request = leases().replace(LEASE_NAME, &PostParams::default(), body.to_string().into_bytes());
            let _ = tokio::time::timeout(RETRY_PERIOD, self.client.request("release the Lease", request)).await;
        }
    }

    async fn try_acquire_or_renew(&mut self) -> Result<Claim, ApiError> {
        let begun = Instant::now();
        let lease = if std::mem::take(&mut self.is_as_written) {
            self.seen.0.clone()
        } else {
            self.answered(lease(&self.client).await)?
        };
        if lease != self.seen.0 {
            self.seen = (lease.clone(), Instant::now());
        }
        let now = claim(&lease, &self.id, self.seen.1.elapsed());
        if let Claim::Held(_) = now {
            return Ok(now);
        }
        let body = acquired_or_renewed(&lease, &self.id, Timestamp::now()).to_string().into_bytes();
        let (path, params) = (leases(), PostParams::default());
        let what = format!("write the Lease {LEASE_NAME}");
        // The resourceVersion that was read is in it: of two that write at once one is told 409.
        let request =
            if lease.is_null() { path.create(&params, body) } else { path.replace(LEASE_NAME, &params, body) };
        let written = self.answered(self.client.request(&what, request).await)?;
        self.seen = (written, Instant::now());
        self.is_as_written = true;
        self.guard.set(Some(begun + RENEW_DEADLINE));
        Ok(Claim::Ours)
    }

    fn answered<T>(&self, answer: Result<T, ApiError>) -> Result<T, ApiError> {
        if answer.is_ok() {
            *self.guard.answered.lock() = Some(Instant::now());
        }
        answer
    }
}
