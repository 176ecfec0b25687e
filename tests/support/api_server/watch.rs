//! Watches: a task each, which writes JSON lines into the response's body until somebody has had enough.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::faults::{FaultKind, half};
use super::http::{Body, Query, Selection};
use super::state::{Change, Shared, State, status};

type Sender = mpsc::Sender<Result<Frame<Bytes>, std::io::Error>>;

/// A watch without `timeoutSeconds`; the real server picks something between 30 and 60 minutes.
const LONG: Duration = Duration::from_secs(3600);

/// Starts a watch and returns the response's body, or the Status object of an HTTP 410.
pub fn start(
    shared: &Arc<Shared>,
    selection: Selection,
    query: &Query,
    fault: Option<FaultKind>,
) -> Result<Body, Value> {
    let timeout = query.get("timeoutSeconds").and_then(|s| s.parse().ok()).map_or(LONG, Duration::from_secs);
    let deadline = Instant::now() + timeout;
    let (mut watch, first, gone_as_http) = shared.change(|s| {
        let (watch, first) = Watch::begin(s, selection, query);
        s.watches.push(watch.epoch);
        (watch, first, s.gone_as_http)
    });
    let counted = Counted(Arc::clone(shared), watch.epoch);
    if matches!(fault, Some(FaultKind::GoneInStream)) {
        watch.version = None;
    } else if watch.version.is_none() && gone_as_http {
        return Err(gone());
    }
    let (lines, receiver) = mpsc::channel(64);
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let _counted = counted;
        if matches!(fault, Some(FaultKind::CutMidLine)) {
            let line = first.first().map_or_else(|| watch.bookmark(false), Value::clone).to_string();
            let _ = lines.send(Ok(Frame::data(half(&line)))).await;
            let _ = lines.send(Err(ErrorKind::ConnectionAborted.into())).await;
            return;
        }
        tokio::select! {
            _ = watch.serve(&shared, &lines, first, deadline) => {}
            () = lines.closed() => {}
        }
    });
    let frames = stream::unfold(receiver, |mut receiver| async { receiver.recv().await.map(|line| (line, receiver)) });
    Ok(BodyExt::boxed(StreamBody::new(frames)))
}

struct Watch {
    selection: Selection,
    /// What the client has seen. `None`: it asks for what the history no longer has.
    version: Option<u64>,
    wants_bookmarks: bool,
    bookmarks: u64,
    epoch: u64,
}

impl Watch {
    /// The watch, and what it has to say before the first change.
    fn begin(state: &State, selection: Selection, query: &Query) -> (Watch, Vec<Value>) {
        let mut watch = Watch {
            selection,
            version: Some(state.version()),
            wants_bookmarks: query.is("allowWatchBookmarks"),
            bookmarks: state.bookmarks,
            epoch: state.watch_epoch,
        };
        let from = query.get("resourceVersion").and_then(|v| v.parse::<u64>().ok()).unwrap_or(0);
        if from != 0 && !query.is("sendInitialEvents") {
            watch.version = state.since(from).map(|_| from);
            return (watch, Vec::new());
        }
        // Without a version, or from 0, a watch begins with the objects there are.
        let mut lines: Vec<Value> = state
            .list(|key, object| watch.selection.has(key, object))
            .map(|object| json!({"type": "ADDED", "object": object}))
            .collect();
        if query.is("sendInitialEvents") {
            lines.push(watch.bookmark(true));
        }
        (watch, lines)
    }

    /// Sends lines until the client leaves (`None`), the time is over, or a test ends the watch.
    async fn serve(&mut self, shared: &Shared, lines: &Sender, first: Vec<Value>, deadline: Instant) -> Option<()> {
        // Before the state is read for the first time, so that no change slips in between.
        let mut ticks = shared.ticks.subscribe();
        for line in first {
            send(lines, &line).await?;
        }
        loop {
            let (batch, last) = shared.read(|s| self.next(s));
            for line in batch {
                send(lines, &line).await?;
            }
            if last {
                return Some(());
            }
            if timeout_at(deadline, ticks.changed()).await.is_err() {
                // The real server, too, says where it got to before it hangs up.
                if self.wants_bookmarks {
                    send(lines, &self.bookmark(false)).await?;
                }
                return Some(());
            }
        }
    }

    /// The lines that are due, and whether they are the last ones.
    fn next(&mut self, state: &State) -> (Vec<Value>, bool) {
        let Some(changes) = self.version.and_then(|version| state.since(version)) else {
            return (vec![json!({"type": "ERROR", "object": gone()})], true);
        };
        let mut lines: Vec<Value> = changes.filter_map(|change| self.line(change)).collect();
        self.version = Some(state.version());
        if self.bookmarks != state.bookmarks {
            self.bookmarks = state.bookmarks;
            if self.wants_bookmarks {
                lines.push(self.bookmark(false));
            }
        }
        (lines, self.epoch != state.watch_epoch)
    }

    /// A change as this watch sees it: what leaves the selection is deleted as far as that goes.
    fn line(&self, change: &Change) -> Option<Value> {
        let has = |object: &Value| self.selection.has(&change.key, object);
        let is = change.kind != "DELETED" && has(&change.object);
        let old = change.old.as_ref().filter(|old| has(old));
        let (kind, object) = match (old, is) {
            (None, false) => return None,
            (None, true) => ("ADDED", change.object.clone()),
            (Some(_), true) => ("MODIFIED", change.object.clone()),
            (Some(old), false) => {
                let mut object = old.clone();
                object["metadata"]["resourceVersion"] = change.version.to_string().into();
                ("DELETED", object)
            }
        };
        Some(json!({"type": kind, "object": object}))
    }

    fn bookmark(&self, ends_initial_events: bool) -> Value {
        let resource = self.selection.resource;
        let mut metadata = json!({"resourceVersion": self.version.unwrap_or_default().to_string()});
        if ends_initial_events {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        json!({"type": "BOOKMARK", "object":
            {"kind": resource.kind(), "apiVersion": resource.api_version(), "metadata": metadata}})
    }
}

async fn send(lines: &Sender, line: &Value) -> Option<()> {
    lines.send(Ok(Frame::data(format!("{line}\n").into()))).await.ok()
}

fn gone() -> Value {
    status(410, "The resourceVersion for the provided watch is too old.")
}

/// Takes the watch off the list of those that run, however it ends.
struct Counted(Arc<Shared>, u64);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.change(|s| {
            let index = s.watches.iter().position(|epoch| *epoch == self.1);
            index.map(|index| s.watches.swap_remove(index))
        });
    }
}
