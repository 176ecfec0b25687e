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

use crate::Failure;
use crate::api::client::{Api, may_pass};
use crate::api::list::Pages;

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

/// What is new.
pub(crate) enum News {
    /// A list begins.
    Begins,
    /// All of a list of this version was said: what was not in it is gone, or not of the choice any more.
    Listed(String),
    /// An object as it is now.
    Object(Box<Value>),
    /// An object is gone, or not of the choice any more.
    Gone(Box<Value>),
    /// It cannot be followed.
    Failed(Failure),
}

/// Followed objects. Dropping it ends the watch.
pub(crate) struct Feed {
    pub(crate) news: mpsc::Receiver<News>,
    task: JoinHandle<()>,
}

impl Feed {
    /// `what`: such as "nodes". `from`: the version of a list that was read already; none: begins with one.
    pub(crate) fn new(api: &Api, path: Path, what: &'static str, choice: Choice, from: Option<String>) -> Self {
        let (sender, news) = mpsc::channel(QUEUE);
        let follower = Follower { api: api.clone(), path, what, choice, sender };
        Self { news, task: tokio::spawn(follower.run(from)) }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Which objects.
#[derive(Clone, Default)]
pub(crate) struct Choice {
    pub(crate) labels: Option<String>,
    pub(crate) fields: Option<String>,
}

struct Follower {
    api: Api,
    path: Path,
    what: &'static str,
    choice: Choice,
    sender: mpsc::Sender<News>,
}

enum End {
    /// Nobody reads any more.
    Unread,
    /// The history is gone.
    Relist,
    /// Begin a watch where this one ended.
    Again,
}

impl Follower {
    async fn run(self, mut from: Option<String>) {
        let mut pause = PAUSE_FIRST;
        loop {
            let listed = match from.take() {
                Some(version) => Ok(Some(version)),
                None => self.list().await,
            };
            let mut version = match listed {
                Ok(Some(version)) => version,
                Ok(None) => return,
                Err(failure) => {
                    let _ = self.sender.send(News::Failed(failure)).await;
                    return;
                }
            };
            loop {
                let begun = Instant::now();
                let relists = match self.watch(&mut version).await {
                    Ok(End::Unread) => return,
                    Ok(End::Relist) => true,
                    Ok(End::Again) => false,
                    Err(failure) => {
                        let _ = self.sender.send(News::Failed(failure)).await;
                        return;
                    }
                };
                // One that failed at once: a server in trouble is not to be asked without end, least of all for lists.
                let failed = begun.elapsed() < SOON;
                if !failed {
                    pause = PAUSE_FIRST;
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

    /// The version of the list; none if nobody reads any more.
    async fn list(&self) -> Result<Option<String>, Failure> {
        let what = format!("list {}", self.what);
        let mut pages = Pages::new(&self.api, &self.path, &what, &self.choice);
        loop {
            let page = pages.next().await?;
            let begins = page.is_first.then_some(News::Begins);
            let listed = page.version.clone().map(News::Listed);
            let objects = page.items.into_iter().map(|object| News::Object(Box::new(object)));
            for news in begins.into_iter().chain(objects).chain(listed) {
                if self.sender.send(news).await.is_err() {
                    return Ok(None);
                }
            }
            if page.version.is_some() {
                return Ok(page.version);
            }
        }
    }

    async fn watch(&self, version: &mut String) -> Result<End, Failure> {
        let Choice { labels, fields } = self.choice.clone();
        let params = WatchParams {
            label_selector: labels,
            field_selector: fields,
            timeout: Some(WATCH_SECONDS),
            bookmarks: true,
            ..WatchParams::default()
        };
        let request = self.path.watch(&params, version);
        let request = request.map_err(|error| Failure::new(format!("watch {}: {error}", self.what)))?;
        self.api.count();
        let events = match self.api.client.request_events::<Value>(request).await {
            Ok(events) => events,
            Err(kube::Error::Api(status)) if status.code == 410 => return Ok(End::Relist),
            Err(error) if may_pass(&error) => return Ok(End::Again),
            Err(error) => return Err(Failure::api(&format!("watch {}", self.what), &error)),
        };
        let mut events = pin!(events);
        loop {
            let Ok(Some(Ok(event))) = tokio::time::timeout(DEAD, events.next()).await else { return Ok(End::Again) };
            let news = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    keep_version(&object, version);
                    News::Object(Box::new(object))
                }
                WatchEvent::Deleted(object) => {
                    keep_version(&object, version);
                    News::Gone(Box::new(object))
                }
                WatchEvent::Bookmark(bookmark) => {
                    version.clone_from(&bookmark.metadata.resource_version);
                    continue;
                }
                // A server in trouble has forgotten nothing: a list would be more trouble.
                WatchEvent::Error(status) if status.code == 429 || status.code >= 500 => return Ok(End::Again),
                WatchEvent::Error(_) => return Ok(End::Relist),
            };
            if self.sender.send(news).await.is_err() {
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
