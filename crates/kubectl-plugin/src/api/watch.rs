//! Objects of a kind, followed by kube's watcher: listed by pages, then watched.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt as _, future};
use hyper::Request;
use kube::api::DynamicObject;
use kube::client::Body;
use kube::core::ApiResource;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Error, watcher};
use kube::{Api, Resource};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};
use tower::service_fn;

use super::client::{ApiError, Client};
use super::list::Selector;
use crate::failure::Failure;

/// The API server ends a watch after this long; kube allows 295 at the most.
const WATCH_SECONDS: u32 = 240;
/// A list that expires page after page is begun anew for so long, however little patience there is.
const EXPIRED: Duration = Duration::from_secs(10);
/// One that fails again within this time has not recovered. kube's pauses are a minute at the most, and it takes the same time.
const RECOVERED: Duration = Duration::from_secs(120);

/// A watch begins no oftener than that.
const PACE: Duration = Duration::from_secs(2);

/// What a watch reports.
pub(crate) enum Event {
    /// A list begins.
    Init,
    /// The list is complete: what was not in it is gone, or not selected any more.
    InitDone,
    /// An object as it is now.
    Apply(Value),
    /// An object is gone, or not selected any more.
    Delete(Value),
    /// The API server is away; the watch goes on when it is back. Said once until then.
    Interrupted(Failure),
}

/// Followed objects. Dropping it ends the watch.
pub(crate) struct Watcher {
    events: BoxStream<'static, watcher::Result<watcher::Event<DynamicObject>>>,
    what: &'static str,
    patience: Duration,
    /// Since when lists fail.
    unlisted: Option<Instant>,
    failed: Option<Instant>,
}

impl Watcher {
    /// `what`: such as "nodes".
    pub(crate) fn new<K: Resource<DynamicType = ()>>(client: &Client, what: &'static str, selector: Selector) -> Self {
        let api: Api<DynamicObject> = Api::all_with(paced(client.kube.clone()), &ApiResource::erase::<K>(&()));
        let config = Selector { timeout: Some(WATCH_SECONDS), page_size: Some(client.page), ..selector };
        // kube asks for ever for a version that the API server no longer has, if the refusal is the answer's status and no event.
        let until_gone = move || {
            watcher(api.clone(), config.clone()).scan(false, |was_gone, event| {
                let event = (!*was_gone).then_some(event);
                *was_gone = matches!(&event, Some(Err(error)) if is_gone(error));
                future::ready(event)
            })
        };
        let events = stream::repeat_with(until_gone).flatten().backoff(Pauses::default()).boxed();
        Self { events, what, patience: client.patience, unlisted: None, failed: None }
    }

    /// What comes next, for as long as that takes. Nothing is lost if nobody waits for it any more.
    ///
    /// # Errors
    /// It cannot be followed.
    pub(crate) async fn next(&mut self) -> Result<Event, Failure> {
        loop {
            match self.events.next().await {
                Some(Ok(watcher::Event::Init)) => return Ok(Event::Init),
                Some(Ok(watcher::Event::InitDone)) => {
                    self.unlisted = None;
                    return Ok(Event::InitDone);
                }
                Some(Ok(watcher::Event::InitApply(object) | watcher::Event::Apply(object))) => {
                    return Ok(Event::Apply(whole(object)));
                }
                Some(Ok(watcher::Event::Delete(object))) => return Ok(Event::Delete(whole(object))),
                Some(Err(error)) if is_gone(&error) => {}
                Some(Err(error)) => {
                    if let Some(event) = self.failed(error)? {
                        return Ok(event);
                    }
                }
                None => return Err(Failure::new(format!("watch {}: it has ended: a bug; try again", self.what))),
            }
        }
    }

    /// Says it, if that is new.
    fn failed(&mut self, error: Error) -> Result<Option<Event>, Failure> {
        let now = Instant::now();
        let is_list = matches!(error, Error::InitialListFailed(_) | Error::NoResourceVersion);
        let is_start = matches!(error, Error::WatchStartFailed(_));
        let error = self.told(error);
        let goes_on = if is_list {
            let expired = error.code() == 410;
            let patience = if expired { self.patience.max(EXPIRED) } else { self.patience };
            (error.may_pass() || expired) && now - *self.unlisted.get_or_insert(now) < patience
        } else {
            // Credentials that worked for the list: an exec plugin may fail once when it renews them.
            !is_start || error.may_pass() || error.is_auth()
        };
        if !goes_on {
            return Err(error.into());
        }
        let was_told = self.failed.replace(now).is_some_and(|failed| now - failed < RECOVERED);
        Ok((!was_told).then(|| Event::Interrupted(error.into())))
    }

    fn told(&self, error: Error) -> ApiError {
        let what = |verb: &str| format!("{verb} {}", self.what);
        match error {
            Error::InitialListFailed(error) => ApiError::from_kube(&what("list"), error),
            Error::WatchStartFailed(error) | Error::WatchFailed(error) => ApiError::from_kube(&what("watch"), error),
            Error::WatchError(status) => ApiError::from_kube(&what("watch"), kube::Error::Api(status)),
            Error::NoResourceVersion => ApiError::new(&what("list"), "the API server's answer has no resourceVersion"),
        }
    }
}

/// kube asks again at once when a watch ends, be it one that an API server or a proxy in trouble ends as soon as it begins.
fn paced(client: kube::Client) -> kube::Client {
    let namespace = client.default_namespace().to_owned();
    let next = Arc::new(Mutex::new(Instant::now()));
    let send = move |request: Request<Body>| {
        let (client, next) = (client.clone(), Arc::clone(&next));
        async move {
            if request.uri().query().is_some_and(|query| query.contains("watch=")) {
                let mut next = next.lock().await;
                sleep_until(*next).await;
                *next = Instant::now() + PACE;
            }
            client.send(request).await
        }
    };
    kube::Client::new(service_fn(send), namespace)
}

/// kube's own begin anew with each list that begins, although none succeeds.
#[derive(Default)]
struct Pauses(watcher::DefaultBackoff);

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next()
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {}
}

/// The version that was to be gone on from is forgotten: all is to be listed anew. A server in trouble has forgotten nothing,
/// and a list would be more trouble.
fn is_gone(error: &Error) -> bool {
    match error {
        Error::WatchStartFailed(kube::Error::Api(status)) => status.code == 410,
        Error::WatchError(status) => status.code != 429 && status.code < 500,
        _ => false,
    }
}

/// As it is on the wire, without apiVersion and kind, which are not in lists.
fn whole(DynamicObject { metadata, mut data, .. }: DynamicObject) -> Value {
    if let (Some(fields), Ok(metadata)) = (data.as_object_mut(), serde_json::to_value(metadata)) {
        fields.insert("metadata".to_owned(), metadata);
    }
    data
}

/// Whether a resourceVersion is before another one. They are numbers on every server that is built on etcd.
pub(crate) fn older(one: &str, other: &str) -> bool {
    matches!((one.parse::<u64>(), other.parse::<u64>()), (Ok(one), Ok(other)) if one < other)
}
