//! One object, followed: by a watch, or by asking again and again where only `get` is granted.

use std::pin::Pin;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::{Stream, StreamExt as _};
use kube::Api;
use kube::api::GetParams;
use kube::runtime::watcher::{self, watcher};
use kubelet_config::{duration, reported};
use tokio::time::Instant;

use super::client_layer::RETRY_AFTER_MAX;
use super::credentials::chain;
use super::decode::fault_of;
use super::limits::RateLimiter;
use super::types::ConfigMapView;

/// The API server ends a watch after this long and a share of [`WATCH_SPREAD`]; we ask again. Longer means fewer requests, and a
/// longer wait until a connection that died silently is noticed. Each watch chooses, so that
/// nodes whose watches broke together do not renew them together for ever.
const WATCH_SECONDS: u32 = 90;
/// See [`WATCH_SECONDS`].
const WATCH_SPREAD: Duration = Duration::from_secs(40);

/// A watch that says nothing for this long is dead: the API server sends bookmarks, and ends it.
pub const READ_TIMEOUT: Duration = Duration::from_secs(150);

/// Pauses after failures: 50 ms at first, because right after an assignment the Node authorizer
/// needs a moment; 15 s at most.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(15);

/// A failure so long ago is no reason to wait after the next one. One success is not enough: a list may be answered and each watch
/// after it fail.
const FAILURE_FORGOTTEN: Duration = Duration::from_secs(30);

/// What is seen of an object has this pace after a burst of [`EVENT_BURST`]: what else the API server sends waits on its side.
const EVENT_INTERVAL: Duration = Duration::from_millis(100);
/// See [`EVENT_INTERVAL`].
const EVENT_BURST: u32 = 100;

/// Half of it by chance, so that nodes do not come back in step.
pub(super) fn jittered(pause: Duration) -> Duration {
    pause / 2 + pause.mul_f64(random_share() / 2.0)
}

/// Failures in a row, and until when to pause for them.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    pub(super) failures: u32,
    last: Option<Instant>,
    until: Option<Instant>,
}

impl Backoff {
    pub(super) fn failed(&mut self, retry_after: Option<u64>) {
        self.settle();
        let pause = duration::backoff(PAUSE_FIRST, PAUSE_MAX, self.failures);
        let asked = Duration::from_secs(retry_after.unwrap_or_default()).min(RETRY_AFTER_MAX);
        self.failures = self.failures.saturating_add(1);
        self.last = Some(Instant::now());
        self.until = Some(Instant::now() + jittered(pause).max(asked));
    }

    pub(super) fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// Forgets failures that are long ago.
    fn settle(&mut self) {
        if self.last.is_some_and(|last| last.elapsed() >= FAILURE_FORGOTTEN) {
            self.succeeded();
        }
    }

    /// Cancel-safe: an interrupted pause is taken up again.
    pub(super) async fn elapsed(&mut self) {
        if let Some(until) = self.until {
            tokio::time::sleep_until(until).await;
            self.until = None;
        }
    }
}

/// From 0 to 1, with no claim to quality: nodes are not to act in step.
fn random_share() -> f64 {
    f64::from(jiff::Timestamp::now().subsec_nanosecond() % 1000) / 1000.0
}

type Events<K> = Pin<Box<dyn Stream<Item = watcher::Result<watcher::Event<K>>> + Send>>;

/// A watch of one object.
pub(super) struct ObjectWatch<K> {
    api: Api<K>,
    name: String,
    events: Events<K>,
    pause: Backoff,
    limiter: RateLimiter,
    found: bool,
}

/// What became of an object.
pub(super) enum WatchEvent<K> {
    Object(K),
    Absent,
    Failed { why: String, code: Option<u16> },
}

impl<K> ObjectWatch<K>
where
    K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    pub(super) fn new(api: Api<K>, name: &str) -> Self {
        let events = Self::start_stream(&api, name);
        let limiter = RateLimiter::new(EVENT_INTERVAL, EVENT_BURST);
        Self { api, name: name.to_owned(), events, pause: Backoff::default(), limiter, found: false }
    }

    fn start_stream(api: &Api<K>, name: &str) -> Events<K> {
        let share = WATCH_SPREAD.mul_f64(random_share()).as_secs();
        let seconds = WATCH_SECONDS + u32::try_from(share).unwrap_or_default();
        let config = watcher::Config::default().fields(&format!("metadata.name={name}")).timeout(seconds);
        watcher(api.clone(), config).boxed()
    }

    /// Begins with a new list.
    fn restart(&mut self) {
        self.events = Self::start_stream(&self.api, &self.name);
    }

    /// The next thing worth knowing. Cancel-safe: stream and pause keep their place.
    pub(super) async fn next(&mut self) -> WatchEvent<K> {
        loop {
            self.pause.elapsed().await;
            tokio::time::sleep_until(self.limiter.next_at()).await;
            let event = self.events.next().await;
            self.limiter.consume();
            if let Some(Ok(
                watcher::Event::Apply(object) | watcher::Event::InitApply(object) | watcher::Event::Delete(object),
            )) = &event
                && let Some(why) = other(&self.api, &self.name, object)
            {
                self.pause.failed(None);
                // This stream has nothing more to say of the true one until it changes.
                self.restart();
                return WatchEvent::Failed { why, code: None };
            }
            match event {
                Some(Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object))) => {
                    self.pause.settle();
                    self.found = true;
                    return WatchEvent::Object(object);
                }
                Some(Ok(watcher::Event::Init)) => self.found = false,
                Some(Ok(watcher::Event::InitDone)) => {
                    self.pause.settle();
                    if !self.found {
                        return WatchEvent::Absent;
                    }
                }
                Some(Ok(watcher::Event::Delete(_))) => return WatchEvent::Absent,
                Some(Err(error)) => {
                    let status = api_status(&error);
                    self.pause.failed(
                        status.and_then(|status| Some(u64::from(status.details.as_ref()?.retry_after_seconds))),
                    );
                    let code = status.map(|status| status.code);
                    if code == Some(410) {
                        // A history that is gone is the server's way of asking for a new list.
                        // kube's watcher does so if told within the stream, but asks on for the
                        // lost version if told by the status of the answer.
                        self.restart();
                    } else {
                        return WatchEvent::Failed { why: chain(&error), code };
                    }
                }
                None => std::future::pending().await, // a watcher never ends
            }
        }
    }
}

/// Said of an object that nobody asked for.
pub(super) fn other<K: kube::Resource>(api: &Api<K>, name: &str, object: &K) -> Option<String> {
    let found = object.meta();
    let is_it = found.name.as_deref() == Some(name) && found.namespace.as_deref() == api.namespace();
    let full_name = |namespace: Option<&str>, name: &str| match namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    };
    let found = full_name(found.namespace.as_deref(), found.name.as_deref().unwrap_or_default());
    let asked = full_name(api.namespace(), name);
    (!is_it).then(|| reported::text(&format!("asked for {asked}, the API server answered with {found}")))
}

fn api_status(error: &watcher::Error) -> Option<&kube::core::Status> {
    match error {
        watcher::Error::WatchError(status) => Some(status),
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status)) => Some(status),
        _ => None,
    }
}

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
pub(super) struct ConfigMapWatch {
    watch: ObjectWatch<ConfigMapView>,
    /// Set while `watch` is forbidden and `get` is not.
    poll: Option<Poll>,
    /// How often the watch was refused.
    refused: u32,
    /// The version that polling has found, while the watch is tried.
    known_version: Option<String>,
    /// How often in a row it was one that cannot be, ...
    impossible: u32,
    /// ... and when to list anew for it.
    list_at: Option<Instant>,
}

/// Polling, because watching is forbidden.
struct Poll {
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
    pub(super) fn new(api: Api<ConfigMapView>, name: &str) -> Self {
        Self {
            watch: ObjectWatch::new(api, name),
            poll: None,
            refused: 0,
            known_version: None,
            impossible: 0,
            list_at: None,
        }
    }

    /// The next thing worth knowing. Cancel-safe: watch, question and pauses keep their place.
    pub(super) async fn next(&mut self) -> WatchEvent<ConfigMapView> {
        let event = self.observe().await;
        if let WatchEvent::Object(map) = &event {
            self.doubt(fault_of(map).is_some());
        }
        event
    }

    /// One that cannot be may have come instead of the true one, which no watch tells again while it is unchanged. Ever more
    /// seldom: it may as well be the author's, and the watch tells when it is mended.
    fn doubt(&mut self, doubtful: bool) {
        self.list_at = None;
        if !doubtful {
            self.impossible = 0;
        } else if let Some(poll) = &mut self.poll {
            poll.version = None;
        } else {
            let pause = duration::backoff(WATCH_AGAIN, WATCH_AGAIN_MAX, self.impossible);
            self.impossible = self.impossible.saturating_add(1);
            self.list_at = Some(Instant::now() + jittered(pause));
        }
    }

    /// The next of the watch; `None` when it is time to list anew.
    async fn watched(&mut self) -> Option<WatchEvent<ConfigMapView>> {
        match self.list_at {
            Some(at) => tokio::time::timeout_at(at, self.watch.next()).await.ok(),
            None => Some(self.watch.next().await),
        }
    }

    async fn observe(&mut self) -> WatchEvent<ConfigMapView> {
        loop {
            let Some(poll) = &mut self.poll else {
                let Some(event) = self.watched().await else {
                    self.list_at = None;
                    self.watch.restart();
                    continue;
                };
                match event {
                    WatchEvent::Failed { why, code: Some(403) } => {
                        let pause = duration::backoff(WATCH_AGAIN, WATCH_AGAIN_MAX, self.refused);
                        self.refused = self.refused.saturating_add(1);
                        self.poll = Some(Poll::new(why, self.known_version.take(), Instant::now() + pause));
                        continue;
                    }
                    event => {
                        self.known_version = None;
                        if !matches!(event, WatchEvent::Failed { .. }) {
                            self.refused = 0;
                        }
                        return event;
                    }
                }
            };
            match poll.next(&self.watch.api, &self.watch.name).await {
                Some(Ok(Some(map))) => match other(&self.watch.api, &self.watch.name, &map) {
                    Some(why) => {
                        self.watch.pause.failed(None);
                        self.watch.restart();
                        self.poll = None;
                        return WatchEvent::Failed { why, code: None };
                    }
                    None => return WatchEvent::Object(map),
                },
                Some(Ok(None)) => {}
                Some(Err(error)) => {
                    let code = match &error {
                        kube::Error::Api(status) => Some(status.code),
                        _ => None,
                    };
                    if code == Some(404) {
                        return WatchEvent::Absent;
                    }
                    // The watch has its pauses, and is what the administrator is to grant.
                    let why = if code == Some(403) { poll.why.clone() } else { chain(&error) };
                    self.poll = None;
                    return WatchEvent::Failed { why, code };
                }
                None => {
                    self.watch.restart();
                    self.known_version = self.poll.take().and_then(|poll| poll.version);
                }
            }
        }
    }
}

impl Poll {
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
        self.due = Instant::now() + POLL_INTERVAL + POLL_INTERVAL.mul_f64(random_share());
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
