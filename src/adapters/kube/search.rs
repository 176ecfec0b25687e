//! The search for credentials that work, beside the session that uses those before.

use std::sync::Arc;
use std::time::Duration;

use backon::ExponentialBackoff;
use futures_util::future::OptionFuture;
use tokio::time::Instant;

use super::access::{Access, Connected};
use super::backoff::pauses;
use super::client_layer::{ClientLayer, ClientSignals};
use super::credentials::Fingerprint;
use crate::adapters::metrics::Metrics;

/// How often the credential files are read while all is well; at once when a request fails. Five small files; no
/// request leaves the node.
const CHECK_INTERVAL: Duration = Duration::from_secs(15);

/// And while there are none that can be used.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// After a second refusal in a row; doubled each time.
const REFUSAL_PAUSE: Duration = Duration::from_secs(15);

/// The longest wait for credentials that are refused, or for a plugin that fails, to become better by themselves.
const PAUSE_MAX: Duration = Duration::from_secs(120);

/// A session that lasted this long was accepted: a refusal after it is a first one.
const REFUSAL_FORGOTTEN: Duration = Duration::from_secs(60);

/// How long to wait with credentials that were refused: not at all at first, as a plugin may have others, and the
/// refusal may have been the API server's own fault; then longer and longer, unless the files change.
#[derive(Debug, Default)]
pub(super) struct Refusals(Option<ExponentialBackoff>);

impl Refusals {
    /// None: at once.
    pub(super) fn pause(&mut self, lasted: Duration) -> Option<Duration> {
        if let Some(pauses) = self.0.as_mut().filter(|_| lasted < REFUSAL_FORGOTTEN) {
            return pauses.next();
        }
        self.0 = Some(pauses(REFUSAL_PAUSE, PAUSE_MAX));
        None
    }
}

/// Finds credentials that work, and notices when others are there.
pub(super) struct CredentialSearch<A> {
    pub(super) access: A,
    metrics: Metrics,
    /// The last line on why there are none.
    last_logged: String,
    /// The last notices about those there are.
    last_notices: Vec<String>,
}

impl<A: Access> CredentialSearch<A> {
    pub(super) fn new(access: A, metrics: Metrics) -> Self {
        Self { access, metrics, last_logged: String::new(), last_notices: Vec::new() }
    }

    /// Tries until there is a client. `without` is how things stand until then.
    pub(super) async fn find(&mut self, without: &str) -> (Connected, Arc<ClientSignals>) {
        let mut waits = pauses(RETRY_INTERVAL, PAUSE_MAX);
        loop {
            let fingerprint = self.access.fingerprint().await;
            let layer = ClientLayer::new(self.metrics.clone());
            let signals = layer.signals();
            match self.access.connect(layer).await {
                Ok(connected) => {
                    for notice in connected.notices.iter().filter(|notice| !self.last_notices.contains(notice)) {
                        tracing::warn!("{notice}");
                    }
                    self.last_notices.clone_from(&connected.notices);
                    return (connected, signals);
                }
                Err(why) => {
                    self.log_once(format!("{without} ({why}); the kubelet runs, its configuration is kept"));
                    if self.wait_for_change(fingerprint, waits.next().unwrap_or(PAUSE_MAX)).await {
                        waits = pauses(RETRY_INTERVAL, PAUSE_MAX);
                    }
                }
            }
        }
    }

    /// Waits for the end of these credentials: others are there and usable, or these are refused (`None`). What cannot
    /// be used, because it is half-written for instance, ends nothing.
    pub(super) async fn replacement(
        &mut self,
        fingerprint: Fingerprint,
        renew_at: Option<Instant>,
        signals: &ClientSignals,
    ) -> Option<(Connected, Arc<ClientSignals>)> {
        loop {
            let due = tokio::select! {
                () = tokio::time::sleep(CHECK_INTERVAL) => {
                    self.last_logged.clear(); // this is another story now
                    false
                }
                () = signals.auth_failure() => false,
                Some(()) = OptionFuture::from(renew_at.map(tokio::time::sleep_until)) => true,
            };
            if due || self.access.fingerprint().await != fingerprint {
                return Some(self.find("the new credentials cannot be used yet, those before are kept").await);
            }
            if signals.is_refused() {
                return None;
            }
        }
    }

    /// Waits for other credentials than these, but not for ever. True if they are there.
    pub(super) async fn wait_for_change(&self, fingerprint: Fingerprint, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        while Instant::now() < end {
            tokio::time::sleep_until(end.min(Instant::now() + RETRY_INTERVAL)).await;
            if self.access.fingerprint().await != fingerprint {
                return true;
            }
        }
        false
    }

    pub(super) fn log_once(&mut self, why: String) {
        if why != self.last_logged {
            tracing::info!("{why}");
            self.last_logged = why;
        }
    }
}
