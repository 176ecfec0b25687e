//! Objects of a kind, followed: listed once by pages, or where somebody else's list ended, then watched.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use kube::api::WatchParams;
use kube::core::WatchEvent;
use kube::core::request::Request as Path;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::client::{ApiError, Client};
use super::list::{Pager, Selector};
use crate::failure::Failure;

/// The API server ends a watch after this long; kube allows 295 at the most.
const WATCH_SECONDS: u32 = 240;
/// A watch that says nothing for longer than it may last is dead.
const DEAD: Duration = Duration::from_secs(260);
/// Pauses after failures.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// A watch that ends before this failed.
const SOON: Duration = Duration::from_secs(5);
/// What is not yet read; more makes the watch wait.
const QUEUE: usize = 64;

/// What a watch reports.
pub(crate) enum Event {
    /// A list begins.
    Init,
    /// The list is complete: what was not in it is gone, or not selected any more.
    InitDone,
    /// An object as it is now.
    Apply(Box<Value>),
    /// An object is gone, or not selected any more.
    Delete(Box<Value>),
    /// The API server is away; the watch goes on when it is back. Said once until then.
    Interrupted(Failure),
    /// It cannot be followed.
    Failed(Failure),
}

/// Followed objects. Dropping it ends the watch.
pub(crate) struct Watcher {
    pub(crate) events: mpsc::Receiver<Event>,
    task: JoinHandle<()>,
}

impl Watcher {
    /// `path`: of the collection. `what`: such as "nodes". `from`: the version of a list that was read already; none:
    /// begins with one.
    pub(crate) fn new(
        client: &Client,
        path: &str,
        what: &'static str,
        selector: Selector,
        from: Option<String>,
    ) -> Self {
        let (sender, events) = mpsc::channel(QUEUE);
        let reflector = Reflector { client: client.clone(), path: path.to_owned(), what, selector, sender };
        Self { events, task: tokio::spawn(reflector.run(from)) }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Reflector {
    client: Client,
    path: String,
    what: &'static str,
    selector: Selector,
    sender: mpsc::Sender<Event>,
}

enum End {
    /// Nobody reads any more.
    Unread,
    /// The history is gone.
    Relist,
    /// Begin a watch where this one ended; why it did, if not as it should.
    Again(Option<ApiError>),
}

impl Reflector {
    async fn run(self, mut from: Option<String>) {
        let (mut pause, mut interrupted) = (PAUSE_FIRST, false);
        loop {
            let listed = match from.take() {
                Some(version) => Ok(Some(version)),
                None => self.list().await,
            };
            let mut version = match listed {
                Ok(Some(version)) => version,
                Ok(None) => return,
                Err(error) => return self.fail(error).await,
            };
            loop {
                let begun = Instant::now();
                let relists = match self.watch(&mut version).await {
                    Ok(End::Unread) => return,
                    Ok(End::Relist) => true,
                    Ok(End::Again(error)) => {
                        if let Some(error) = error.filter(|_| !interrupted) {
                            interrupted = true;
                            let _ = self.sender.send(Event::Interrupted(error.into())).await;
                        }
                        false
                    }
                    Err(error) => return self.fail(error).await,
                };
                // One that failed at once: a server in trouble is not to be asked without end, least of all for lists.
                let failed = begun.elapsed() < SOON;
                if !failed {
                    (pause, interrupted) = (PAUSE_FIRST, false);
                }
                if failed || relists {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                if relists {
                    break;
                }
            }
        }
    }

    async fn fail(&self, error: ApiError) {
        let _ = self.sender.send(Event::Failed(error.into())).await;
    }

    /// The version of the list; none if nobody reads any more.
    async fn list(&self) -> Result<Option<String>, ApiError> {
        let what = format!("list {}", self.what);
        let mut pages = Pager::new(&self.client, &self.path, &what, &self.selector);
        loop {
            let page = pages.next().await?;
            let init = page.is_first.then_some(Event::Init);
            let done = page.version.is_some().then_some(Event::InitDone);
            let objects = page.items.into_iter().map(|object| Event::Apply(Box::new(object)));
            for event in init.into_iter().chain(objects).chain(done) {
                if self.sender.send(event).await.is_err() {
                    return Ok(None);
                }
            }
            if page.version.is_some() {
                return Ok(page.version);
            }
        }
    }

    async fn watch(&self, version: &mut String) -> Result<End, ApiError> {
        let what = format!("watch {}", self.what);
        let Selector { labels, fields } = self.selector.clone();
        let params = WatchParams {
            label_selector: labels,
            field_selector: fields,
            timeout: Some(WATCH_SECONDS),
            bookmarks: true,
            ..WatchParams::default()
        };
        let request = Path::new(&self.path).watch(&params, version);
        let request = request.map_err(|error| ApiError::new(&what, error.to_string()))?;
        let events = match self.client.streaming().request_events::<Value>(request).await {
            Ok(events) => events,
            Err(error) => {
                let error = ApiError::from_kube(&what, error);
                return match error.code() {
                    410 => Ok(End::Relist),
                    // Credentials that worked for the list: an exec plugin may fail once when it renews them.
                    _ if error.may_pass() || error.is_auth() => Ok(End::Again(Some(error))),
                    _ => Err(error),
                };
            }
        };
        let mut events = pin!(events);
        loop {
            let event = match tokio::time::timeout(DEAD, events.next()).await {
                Ok(Some(Ok(event))) => event,
                Ok(Some(Err(error))) => return Ok(End::Again(Some(ApiError::from_kube(&what, error)))),
                Ok(None) | Err(_) => return Ok(End::Again(None)),
            };
            let event = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    keep_version(&object, version);
                    Event::Apply(Box::new(object))
                }
                WatchEvent::Deleted(object) => {
                    keep_version(&object, version);
                    Event::Delete(Box::new(object))
                }
                WatchEvent::Bookmark(bookmark) => {
                    version.clone_from(&bookmark.metadata.resource_version);
                    continue;
                }
                // A server in trouble has forgotten nothing: a list would be more trouble.
                WatchEvent::Error(status) => {
                    let error = ApiError::from_kube(&what, kube::Error::Api(status));
                    return Ok(if error.may_pass() { End::Again(Some(error)) } else { End::Relist });
                }
            };
            if self.sender.send(event).await.is_err() {
                return Ok(End::Unread);
            }
        }
    }
}

fn keep_version(object: &Value, version: &mut String) {
    if let Some(seen) = object.pointer("/metadata/resourceVersion").and_then(Value::as_str) {
        seen.clone_into(version);
    }
}

/// Whether a resourceVersion is before another one. They are numbers on every server that is built on etcd.
pub(crate) fn older(one: &str, other: &str) -> bool {
    matches!((one.parse::<u64>(), other.parse::<u64>()), (Ok(one), Ok(other)) if one < other)
}
