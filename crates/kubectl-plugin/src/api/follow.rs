//! Nodes, followed: one list, then one watch, which goes on from where it was when the API server ends it.

use kubelet_config::duration;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use kube::api::WatchParams;
use kube::core::WatchEvent;
use kube::core::request::Request as Path;
use serde_json::Value;

use crate::api::nodes::{self, Choice, NODES};
use crate::fleet::node::NodeRow;
use crate::{Context, Failure};

/// The API server ends a watch after this long, seconds.
const WATCH: u32 = 290;

/// One that says nothing for this long is dead: there are bookmarks, and the end.
const DEAD: Duration = Duration::from_secs(310);

/// Pauses while the API server does not answer.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);

type Events = BoxStream<'static, kube::Result<WatchEvent<Value>>>;

/// What became of a node.
pub enum Seen {
    /// It is so now.
    Row(Box<NodeRow>),
    /// It is gone, or none of the chosen any more.
    Gone(String),
}

/// A list and what comes after it.
pub struct Follow<'a> {
    context: &'a Context,
    choice: Choice,
    /// The watch goes on from here.
    version: String,
    /// Names of the nodes that were shown.
    known: BTreeSet<String>,
    events: Option<Events>,
    due: VecDeque<Seen>,
    failures: u32,
}

impl<'a> Follow<'a> {
    /// Lists the nodes.
    ///
    /// # Errors
    /// The API server's.
    pub async fn begin(context: &'a Context, choice: Choice) -> Result<(Self, Vec<NodeRow>), Failure> {
        let (mut rows, version) = nodes::list(context, &choice).await?;
        rows.sort_by(|one, other| one.name.cmp(&other.name));
        let known = rows.iter().map(|row| row.name.clone()).collect();
        let follow = Self { context, choice, version, known, events: None, due: VecDeque::new(), failures: 0 };
        Ok((follow, rows))
    }

    /// The next change, for as long as that takes. After a gap that the API server cannot bridge (410) each node is
    /// shown as it is. Cancel-safe, but that a pause may begin anew.
    ///
    /// # Errors
    /// A refusal that will stay one. An API server that is away is waited for, and said to be once.
    pub async fn next(&mut self) -> Result<Seen, Failure> {
        loop {
            if let Some(seen) = self.due.pop_front() {
                return Ok(seen);
            }
            let Some(events) = &mut self.events else {
                self.watch().await?;
                continue;
            };
            match tokio::time::timeout(DEAD, events.next()).await {
                Ok(Some(Ok(event))) => self.take(event).await?,
                Ok(Some(Err(error))) => {
                    self.events = None;
                    self.failed(&error).await?;
                }
                Ok(None) | Err(_) => self.events = None,
            }
        }
    }

    async fn watch(&mut self) -> Result<(), Failure> {
        let params = WatchParams {
            label_selector: self.choice.selector.clone(),
            field_selector: self.choice.field_selector(),
            timeout: Some(WATCH),
            bookmarks: true,
            ..WatchParams::default()
        };
        let request = Path::new(NODES).watch(&params, &self.version);
        let request = request.map_err(|error| Failure::new(format!("watch nodes: {error}")))?;
        match self.context.client.request_events::<Value>(request).await {
            Ok(events) => {
                self.events = Some(events.boxed());
                Ok(())
            }
            Err(error) => self.failed(&error).await,
        }
    }

    async fn take(&mut self, event: WatchEvent<Value>) -> Result<(), Failure> {
        let node = match event {
            WatchEvent::Added(node) | WatchEvent::Modified(node) => node,
            WatchEvent::Deleted(node) => {
                self.advance(node.pointer("/metadata/resourceVersion").and_then(Value::as_str));
                let name = node.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
                if self.known.remove(&name) {
                    self.due.push_back(Seen::Gone(name));
                }
                return Ok(());
            }
            WatchEvent::Bookmark(bookmark) => {
                self.advance(Some(&bookmark.metadata.resource_version));
                return Ok(());
            }
            WatchEvent::Error(status) => {
                self.events = None;
                return self.failed(&kube::Error::Api(status)).await;
            }
        };
        let row = NodeRow::of(&node, &self.context.namespace);
        self.advance(Some(&row.version));
        if self.choice.has(&row.name) {
            self.known.insert(row.name.clone());
            self.due.push_back(Seen::Row(Box::new(row)));
        }
        Ok(())
    }

    fn advance(&mut self, version: Option<&str>) {
        self.failures = 0;
        if let Some(version) = version.filter(|version| !version.is_empty()) {
            version.clone_into(&mut self.version);
        }
    }

    /// Begins anew, waits, or gives up, as the error asks for.
    async fn failed(&mut self, error: &kube::Error) -> Result<(), Failure> {
        let code = if let kube::Error::Api(status) = error { status.code } else { 0 };
        match code {
            410 => self.list_again().await,
            400..=499 if code != 429 => Err(Failure::api("watch nodes", error)),
            _ => {
                if self.failures == 0 {
                    eprintln!("warning: {}; trying on", Failure::api("watch nodes", error).message);
                }
                self.pause().await;
                Ok(())
            }
        }
    }

    async fn pause(&mut self) {
        tokio::time::sleep(duration::backoff(PAUSE_FIRST, PAUSE_MAX, self.failures)).await;
        self.failures = self.failures.saturating_add(1);
    }

    /// The history is gone: what became of the nodes meanwhile shows in a new list.
    async fn list_again(&mut self) -> Result<(), Failure> {
        let (follow, rows) = Self::begin(self.context, self.choice.clone()).await?;
        let gone = self.known.difference(&follow.known).cloned().map(Seen::Gone);
        self.due.extend(gone.chain(rows.into_iter().map(|row| Seen::Row(Box::new(row)))));
        (self.known, self.version) = (follow.known, follow.version);
        Ok(())
    }
}
