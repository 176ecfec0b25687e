//! The assigned ConfigMap, followed: by a watch, or by asking again and again where only `get` is granted.

use std::time::Duration;

use backon::ExponentialBackoff;
use futures_util::future::{BoxFuture, FutureExt as _};
use kube::Api;
use kube::api::GetParams;
use kubelet_config::reported;
use tokio::time::Instant;

use super::{ObjectWatch, WatchEvent, other};
use crate::adapters::kube::backoff::pauses;
use crate::adapters::kube::decode::fault_of;
use crate::adapters::kube::types::ConfigMapView;

/// Pauses between two questions where a watch is forbidden: one to two minutes, so that ten thousand
/// nodes ask a hundred times a second for metadata the API server has at hand.
const POLL_INTERVAL: Duration = Duration::from_secs(60);

/// The watch is tried again after this long, because right after an assignment the Node authorizer
/// may have allowed the question only just now; ...
const WATCH_AGAIN: Duration = Duration::from_secs(2);
/// ... and ever more seldom, up to this: somebody may grant it one day.
const WATCH_AGAIN_MAX: Duration = Duration::from_secs(600);

/// An answer to a question: nothing, if the version is the one that was seen before.
type PollResult = kube::Result<Option<ConfigMapView>>;

/// The assigned ConfigMap.
pub(in crate::adapters::kube) struct ConfigMapWatch {
    watch: ObjectWatch<ConfigMapView>,
    mode: Mode,
    /// Pauses after refusals of the watch.
    refusals: ExponentialBackoff,
    /// Pauses after objects that cannot be.
    relists: ExponentialBackoff,
}

enum Mode {
    Watching {
        /// The version that polling found, until the watch has told anything.
        known_version: Option<String>,
        /// When to list anew, because it was one that cannot be.
        relist_at: Option<Instant>,
    },
    /// `watch` is forbidden and `get` is not.
    Polling(Polling),
}

struct Polling {
    /// The question under way.
    request: Option<BoxFuture<'static, PollResult>>,
    /// The next one is due.
    due: Instant,
    /// It was answered since the watch was refused.
    answered: bool,
    /// The version seen last.
    version: Option<String>,
    /// The first refusal's message, for when polling is refused too.
    why: String,
    /// The watch is tried again then.
    until: Instant,
}

impl ConfigMapWatch {
    pub(in crate::adapters::kube) fn new(api: Api<ConfigMapView>, name: &str) -> Self {
        let mode = Mode::Watching { known_version: None, relist_at: None };
        Self { watch: ObjectWatch::new(api, name), mode, refusals: seldom(), relists: seldom() }
    }

    /// The next thing worth knowing. Cancel-safe: watch, question and pauses keep their place.
    pub(in crate::adapters::kube) async fn next(&mut self) -> WatchEvent<ConfigMapView> {
        let event = self.observe().await;
        if let WatchEvent::Object(map) = &event {
            self.schedule_relist(fault_of(map).is_some());
        }
        event
    }

    /// One that cannot be may have come instead of the true one, which no watch tells again while it is unchanged. Ever more
    /// seldom: it may as well be the author's, and the watch tells when it is mended.
    fn schedule_relist(&mut self, is_invalid: bool) {
        let pause = if is_invalid { self.relists.next() } else { None };
        if !is_invalid {
            self.relists = seldom();
        }
        match &mut self.mode {
            Mode::Polling(polling) if is_invalid => polling.version = None,
            Mode::Polling(_) => {}
            Mode::Watching { relist_at, .. } => *relist_at = pause.map(|pause| Instant::now() + pause),
        }
    }

    async fn observe(&mut self) -> WatchEvent<ConfigMapView> {
        loop {
            let event = match &mut self.mode {
                Mode::Watching { .. } => self.watched().await,
                Mode::Polling(polling) => {
                    let answer = polling.next(&self.watch.api, &self.watch.name).await;
                    self.polled(answer)
                }
            };
            if let Some(event) = event {
                return event;
            }
        }
    }

    /// What the watch tells; `None` if it is to be listed anew, or polled.
    async fn watched(&mut self) -> Option<WatchEvent<ConfigMapView>> {
        let Mode::Watching { known_version, relist_at } = &mut self.mode else { return None };
        let event = match *relist_at {
            Some(at) => tokio::time::timeout_at(at, self.watch.next()).await.ok(),
            None => Some(self.watch.next().await),
        };
        match event {
            None => {
                *relist_at = None;
                self.watch.restart();
                None
            }
            Some(WatchEvent::Failed { why, code: Some(403) }) => {
                let pause = self.refusals.next().unwrap_or(WATCH_AGAIN_MAX);
                self.mode = Mode::Polling(Polling::new(why, known_version.take(), Instant::now() + pause));
                None
            }
            Some(event) => {
                *known_version = None;
                if !matches!(event, WatchEvent::Failed { .. }) {
                    self.refusals = seldom();
                }
                Some(event)
            }
        }
    }

    /// What an answer tells, if anything; none is the time to try the watch.
    fn polled(&mut self, answer: Option<PollResult>) -> Option<WatchEvent<ConfigMapView>> {
        let Mode::Polling(polling) = &mut self.mode else { return None };
        match answer {
            Some(Ok(Some(map))) => match other(&self.watch.api, &self.watch.name, &map) {
                Some(why) => {
                    self.watch.pause.failed(None);
                    self.watch_again(None);
                    Some(WatchEvent::Failed { why, code: None })
                }
                None => Some(WatchEvent::Object(map)),
            },
            Some(Ok(None)) => None,
            Some(Err(kube::Error::Api(status))) if status.code == 404 => Some(WatchEvent::Absent),
            Some(Err(error)) => {
                let code = match &error {
                    kube::Error::Api(status) => Some(status.code),
                    _ => None,
                };
                // The watch has its pauses, and is what the administrator is to grant.
                let why = if code == Some(403) { polling.why.clone() } else { reported::error_chain(&error) };
                self.watch_again(None);
                Some(WatchEvent::Failed { why, code })
            }
            None => {
                let version = polling.version.take();
                self.watch_again(version);
                None
            }
        }
    }

    /// Begins with a list.
    fn watch_again(&mut self, known_version: Option<String>) {
        self.watch.restart();
        self.mode = Mode::Watching { known_version, relist_at: None };
    }
}

/// Pauses before the next watch.
fn seldom() -> ExponentialBackoff {
    pauses(WATCH_AGAIN, WATCH_AGAIN_MAX)
}

impl Polling {
    fn new(why: String, version: Option<String>, until: Instant) -> Self {
        Self { request: None, due: Instant::now(), answered: false, version, why, until }
    }

    /// The next answer; `None` when it is time to try a watch.
    async fn next(&mut self, api: &Api<ConfigMapView>, name: &str) -> Option<PollResult> {
        if self.request.is_none() {
            // Not between a refusal and the answer to the question after it, however short the time.
            if self.answered && self.until <= self.due {
                tokio::time::sleep_until(self.until).await;
                return None;
            }
            tokio::time::sleep_until(self.due).await;
        }
        let request = self
            .request
            .get_or_insert_with(|| get_if_changed(api.clone(), name.to_owned(), self.version.clone()).boxed());
        let result = request.await;
        self.request = None;
        self.answered = true;
        self.due = Instant::now() + POLL_INTERVAL + POLL_INTERVAL.mul_f64(fastrand::f64());
        match &result {
            Ok(Some(map)) => self.version.clone_from(&map.metadata.resource_version),
            Err(_) => self.version = None,
            Ok(None) => {}
        }
        Some(result)
    }
}

/// Asks for the metadata, out of the API server's cache, and for the rest only if it is another
/// version than `known`.
async fn get_if_changed(api: Api<ConfigMapView>, name: String, known: Option<String>) -> PollResult {
    if known.is_some() {
        let cached = GetParams { resource_version: Some("0".to_owned()) };
        if api.get_metadata_with(&name, &cached).await?.metadata.resource_version == known {
            return Ok(None);
        }
    }
    api.get(&name).await.map(Some)
}

#[cfg(test)]
mod tests;
