//! The assigned ConfigMap, followed: by a watch, or by asking again and again where only `get` is granted.
//!
//! kube's watcher knows no such fallback.

use std::convert::Infallible;
use std::time::Duration;

use backon::ExponentialBackoff;
use futures_util::future::{BoxFuture, FutureExt as _};
use kube::Api;
use kube::api::GetParams;
use kubelet_config::reported;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, sleep_until};

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

/// The assigned ConfigMap.
pub(in crate::adapters::kube) struct ConfigMapWatch {
    /// Runs only while somebody waits for an event.
    work: BoxFuture<'static, Infallible>,
    events: Receiver<WatchEvent<ConfigMapView>>,
}

impl ConfigMapWatch {
    pub(in crate::adapters::kube) fn new(api: Api<ConfigMapView>, name: &str) -> Self {
        let (sender, events) = channel(1);
        let watch = ObjectWatch::new(api, name);
        let follower = Follower { watch, events: sender, refusals: seldom(), known_version: None };
        Self { work: follower.run().boxed(), events }
    }

    /// The next thing worth knowing. Cancel-safe: the work keeps its place.
    pub(in crate::adapters::kube) async fn next(&mut self) -> WatchEvent<ConfigMapView> {
        tokio::select! {
            biased;
            Some(event) = self.events.recv() => event,
            never = &mut self.work => match never {},
        }
    }
}

/// Pauses before the next watch or list.
fn seldom() -> ExponentialBackoff {
    pauses(WATCH_AGAIN, WATCH_AGAIN_MAX)
}

struct Follower {
    watch: ObjectWatch<ConfigMapView>,
    events: Sender<WatchEvent<ConfigMapView>>,
    /// Pauses after refusals of the watch.
    refusals: ExponentialBackoff,
    /// The version that polling found, until the watch has told anything.
    known_version: Option<String>,
}

impl Follower {
    async fn run(mut self) -> Infallible {
        // An object that cannot be may have come instead of the true one, which no watch tells again while it is unchanged. It is
        // listed ever more seldom: it may as well be the author's, and the watch tells when it is mended.
        let mut relists = seldom();
        let mut relist_at: Option<Instant> = None;
        loop {
            let event = match relist_at {
                Some(at) => tokio::time::timeout_at(at, self.watch.next()).await.ok(),
                None => Some(self.watch.next().await),
            };
            match event {
                None => {
                    relist_at = None;
                    self.watch.restart();
                }
                Some(WatchEvent::Failed { why, code: Some(403) }) => {
                    relist_at = None;
                    self.poll(why).await;
                    self.watch.restart();
                }
                Some(event) => {
                    self.known_version = None;
                    if !matches!(event, WatchEvent::Failed { .. }) {
                        self.refusals = seldom();
                    }
                    if let WatchEvent::Object(map) = &event {
                        let is_invalid = fault_of(map).is_some();
                        if !is_invalid {
                            relists = seldom();
                        }
                        let pause = if is_invalid { relists.next() } else { None };
                        relist_at = pause.map(|pause| Instant::now() + pause);
                    }
                    self.tell(event).await;
                }
            }
        }
    }

    /// Asks for the object, until it is time to try a watch again or a question fails. `refusal` is the watch's.
    async fn poll(&mut self, refusal: String) {
        let until = Instant::now() + self.refusals.next().unwrap_or(WATCH_AGAIN_MAX);
        let mut version = self.known_version.take();
        loop {
            match get_if_changed(&self.watch.api, &self.watch.name, version.as_deref()).await {
                Ok(None) => {}
                Ok(Some(map)) => {
                    if let Some(why) = other(&self.watch.api, &self.watch.name, &map) {
                        self.watch.pause.failed(None);
                        return self.tell(WatchEvent::Failed { why, code: None }).await;
                    }
                    version = map.metadata.resource_version.clone().filter(|_| fault_of(&map).is_none());
                    self.tell(WatchEvent::Object(map)).await;
                }
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    version = None;
                    self.tell(WatchEvent::Absent).await;
                }
                Err(error) => {
                    let code = match &error {
                        kube::Error::Api(status) => Some(status.code),
                        _ => None,
                    };
                    // The watch has its pauses, and is what the administrator is to grant.
                    let why = if code == Some(403) { refusal } else { reported::error_chain(&error) };
                    return self.tell(WatchEvent::Failed { why, code }).await;
                }
            }
            // Not between a refusal and the answer to the question after it, however short the time.
            let due = Instant::now() + POLL_INTERVAL + POLL_INTERVAL.mul_f64(fastrand::f64());
            if until <= due {
                sleep_until(until).await;
                self.known_version = version;
                return;
            }
            sleep_until(due).await;
        }
    }

    /// Whoever listens no more does not drive this either.
    async fn tell(&mut self, event: WatchEvent<ConfigMapView>) {
        let _ = self.events.send(event).await;
    }
}

/// Asks for the metadata, out of the API server's cache, and for the rest only if it is another
/// version than `known`.
async fn get_if_changed(
    api: &Api<ConfigMapView>,
    name: &str,
    known: Option<&str>,
) -> kube::Result<Option<ConfigMapView>> {
    if known.is_some() {
        let cached = GetParams { resource_version: Some("0".to_owned()) };
        if api.get_metadata_with(name, &cached).await?.metadata.resource_version.as_deref() == known {
            return Ok(None);
        }
    }
    api.get(name).await.map(Some)
}

#[cfg(test)]
mod tests;
