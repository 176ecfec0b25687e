//! The Lease: who acts.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kube::api::{GetParams, PostParams};
use kube::core::request::Request as Path;
use serde_json::Value;
use tokio::time::Instant;

use crate::Failure;
use crate::api::client::{ApiError, Client};
use crate::fleet::pool::lease::{Claim, RENEW_DEADLINE, RETRY, claim, released, taken};

/// Its name, in the namespace of the ConfigMaps.
pub(super) const LEASE: &str = "kubelet-config-controller";

/// Until when its holder may act.
#[derive(Clone, Default)]
pub(super) struct Term(Arc<Mutex<Option<Instant>>>);

impl Term {
    /// The Lease was renewed a short time ago.
    pub(super) fn holds(&self) -> bool {
        let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() < until)
    }

    fn set(&self, until: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }
}

pub(super) struct Leadership {
    client: Client,
    path: String,
    id: String,
    /// As it was last seen to change, and when.
    seen: (Value, Instant),
    term: Term,
}

impl Leadership {
    pub(super) fn new(client: &Client) -> Self {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", client.namespace);
        let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        // Two of one host, or one that began anew, are not the same.
        let nanos = Timestamp::now().as_nanosecond();
        let id = format!("{}_{nanos:x}_{:x}", host.unwrap_or_default(), std::process::id());
        Self { client: client.clone(), path, id, seen: (Value::Null, Instant::now()), term: Term::default() }
    }

    pub(super) fn identity(&self) -> &str {
        &self.id
    }

    pub(super) fn term(&self) -> Term {
        self.term.clone()
    }

    /// Until it is ours.
    ///
    /// # Errors
    /// A refusal that will stay one.
    pub(super) async fn acquire(&mut self) -> Result<(), Failure> {
        let mut told = None;
        loop {
            match self.try_hold().await {
                Ok(Claim::Ours) => return Ok(()),
                Ok(Claim::Held(other)) if told.as_ref() != Some(&other) => {
                    eprintln!("{other} holds the Lease {LEASE}; waiting");
                    told = Some(other);
                }
                Ok(_) => {}
                Err(error) if error.may_pass() || error.is_conflict() => {}
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Renews it for as long as it can be.
    ///
    /// # Errors
    /// A refusal that will stay one.
    pub(super) async fn keep(&mut self) -> Result<(), Failure> {
        while self.term.holds() {
            tokio::time::sleep(RETRY).await;
            match self.try_hold().await {
                Ok(Claim::Ours) => {}
                Ok(_) => break,
                Err(error) if error.may_pass() || error.is_conflict() => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.term.set(None);
        Ok(())
    }

    /// Others need not wait until it is over.
    pub(super) async fn release(&mut self) {
        if self.term.holds() {
            self.term.set(None);
            let body = released(&self.seen.0, LEASE);
            let request = Path::new(&self.path).replace(LEASE, &PostParams::default(), body.to_string().into_bytes());
            let _ = tokio::time::timeout(RETRY, self.client.once("release the Lease", request)).await;
        }
    }

    async fn try_hold(&mut self) -> Result<Claim, ApiError> {
        let begun = Instant::now();
        let get = Path::new(&self.path).get(LEASE, &GetParams::default());
        let lease = self.in_time(self.client.optional(&format!("get the Lease {LEASE}"), get)).await?;
        let lease = lease.unwrap_or_default();
        if lease != self.seen.0 {
            self.seen = (lease.clone(), Instant::now());
        }
        let now = claim(&lease, &self.id, self.seen.1.elapsed());
        if let Claim::Held(_) = now {
            return Ok(now);
        }
        let body = taken(&lease, LEASE, &self.id, Timestamp::now()).to_string().into_bytes();
        let (path, params) = (Path::new(&self.path), PostParams::default());
        let what = format!("write the Lease {LEASE}");
        // The resourceVersion that was read is in it: of two that write at once one is told 409.
        let request = if lease.is_null() { path.create(&params, body) } else { path.replace(LEASE, &params, body) };
        let written = self.in_time(self.client.once(&what, request)).await?;
        self.seen = (written, Instant::now());
        self.term.set(Some(begun + RENEW_DEADLINE));
        Ok(Claim::Ours)
    }

    async fn in_time<T>(&self, answer: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
        const ANSWER: Duration = Duration::from_secs(5);
        tokio::time::timeout(ANSWER, answer).await.unwrap_or_else(|_| Err(ApiError::no_answer("hold the Lease")))
    }
}
