//! The port, and the task behind it: one session after the other, each with the credentials of its time.

use std::convert::Infallible;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

use super::access::{Access, Connected};
use super::outbox::Outbox;
use super::search::{CredentialSearch, Refusals};
use super::session::{Seen, Session, SessionEnd};
use crate::adapters::metrics::Metrics;
use crate::machine::Input;
use crate::ports::{self, ClusterRequest};

/// The port. Requests are taken up by a task of its own, connected or not.
#[derive(Debug)]
pub struct KubeCluster {
    requests: UnboundedSender<ClusterRequest>,
}

impl KubeCluster {
    /// Starts the task; `namespace` is that of labels which name none.
    #[must_use]
    pub fn start(access: impl Access, namespace: String, inputs: UnboundedSender<Input>, metrics: Metrics) -> Self {
        let (sender, requests) = unbounded_channel();
        tokio::spawn(Task { namespace, requests, inputs, outbox: Outbox::default() }.run(access, metrics));
        Self { requests: sender }
    }
}

impl ports::Cluster for KubeCluster {
    fn submit(&mut self, request: ClusterRequest) {
        if self.requests.send(request).is_err() {
            // Only after a panic in the task; the kubelet is none the worse for it.
            tracing::error!("the API server task has ended; restart the supervisor when convenient");
        }
    }
}

/// What outlives sessions.
struct Task {
    /// The namespace of labels which name none.
    namespace: String,
    requests: UnboundedReceiver<ClusterRequest>,
    inputs: UnboundedSender<Input>,
    outbox: Outbox,
}

impl Task {
    /// One session after the other; `None` when the supervisor ends.
    async fn run(mut self, access: impl Access, metrics: Metrics) -> Option<Infallible> {
        let mut search = CredentialSearch::new(access, metrics);
        let mut refusals = Refusals::default();
        let mut next = None;
        loop {
            let (connected, signals) = match next.take() {
                Some(next) => next,
                None => self.without_session(search.find("no credentials yet"), "no credentials").await?,
            };
            tracing::info!("reading {}, this is node {}", connected.origin, connected.node_name);
            let Connected { client, fingerprint, origin, node_name, renew_at, .. } = connected;
            let started = Instant::now();
            let (namespace, inputs) = (self.namespace.clone(), self.inputs.clone());
            let (outbox, seen) = (&mut self.outbox, Seen::default());
            let mut session = Session { client, signals: signals.clone(), node_name, namespace, inputs, outbox, seen };
            // A session that is dropped takes its watches and its connections along; what was not answered yet is still in
            // the outbox.
            let replacement = tokio::select! {
                Err(end) = session.run(&mut self.requests) => match end {
                    SessionEnd::Shutdown => return None,
                    SessionEnd::Unauthorized => None,
                },
                replacement = search.replacement(fingerprint, renew_at, &signals) => replacement,
            };
            drop(session);
            let changed = match &replacement {
                Some(_) => true,
                None => self.without_session(search.access.fingerprint(), REFUSED).await? != fingerprint,
            };
            if changed {
                tracing::info!("the credentials have changed, connecting anew");
                next = replacement;
                continue;
            }
            if let Some(pause) = refusals.pause(started.elapsed()) {
                search.log_once(format!(
                    "the API server does not accept the credentials of {origin} (401); waiting for others"
                ));
                let wait = search.wait_for_change(fingerprint, pause);
                self.without_session(wait, REFUSED).await?;
            }
        }
    }

    /// Awaits `work` while there is no session: requests are kept, queries answered at once. `None` when the
    /// supervisor ends.
    async fn without_session<T>(&mut self, work: impl Future<Output = T>, why: &str) -> Option<T> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Some(done),
                request = self.requests.recv() => if let Some(query) = self.outbox.accept(request?) {
                    let _ = self.inputs.send(query.without_answer(why));
                },
            }
        }
    }
}

/// The answer to queries until there are others.
const REFUSED: &str = "the credentials were refused";
