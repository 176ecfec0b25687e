//! One object, followed by a watch.

use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use kube::Api;
use kube::runtime::watcher::{self, watcher};
use kubelet_config::reported;

use super::backoff::Backoff;
use super::rate_limiter::RateLimiter;

mod config_map;

pub(super) use config_map::ConfigMapWatch;

/// The API server ends a watch after this long and a share of [`WATCH_SPREAD`]; we ask again. Longer means fewer requests, and a
/// longer wait until a connection that died silently is noticed. Each watch chooses, so that
/// nodes whose watches broke together do not renew them together for ever.
const WATCH_SECONDS: u32 = 90;
/// See [`WATCH_SECONDS`].
const WATCH_SPREAD: Duration = Duration::from_secs(40);

/// What is seen of an object has this pace after a burst of [`EVENT_BURST`]: what else the API server sends waits on its side.
const EVENT_INTERVAL: Duration = Duration::from_millis(100);
/// See [`EVENT_INTERVAL`].
const EVENT_BURST: u32 = 100;

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
        let share = WATCH_SPREAD.mul_f64(fastrand::f64()).as_secs();
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
                        return WatchEvent::Failed { why: reported::error_chain(&error), code };
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
