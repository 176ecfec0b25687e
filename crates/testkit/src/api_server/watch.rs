//! Watches: a task each, which writes JSON lines into the response's body until somebody has had enough.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout_at};

use super::faults::{FaultKind, half};
use super::http::{Body, Query, Selection};
use super::state::{Line, Resource, Running, Shared, State, status};

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
    let is_gone = matches!(fault, Some(FaultKind::GoneInStream));
    let (mut watch, first, refused) = shared.change(|s| Watch::begin(s, Arc::clone(shared), selection, query, is_gone));
    if refused && !is_gone {
        return Err(gone());
    }
    let (lines, receiver) = mpsc::channel(64);
    tokio::spawn(async move {
        if matches!(fault, Some(FaultKind::CutMidLine)) {
            let line = first.first().map_or_else(|| watch.bookmark(None, false), Value::clone).to_string();
            let _ = lines.send(Ok(Frame::data(half(&line)))).await;
            let _ = lines.send(Err(ErrorKind::ConnectionAborted.into())).await;
            return;
        }
        tokio::select! {
            _ = watch.serve(&lines, first, deadline) => {}
            () = lines.closed() => {}
        }
    });
    let frames = stream::unfold(receiver, |mut receiver| async { receiver.recv().await.map(|line| (line, receiver)) });
    Ok(BodyExt::boxed(StreamBody::new(frames)))
}

/// Takes itself off the list of those that run, however it ends.
struct Watch {
    shared: Arc<Shared>,
    number: u64,
    resource: Resource,
    wants_bookmarks: bool,
    bookmarks: u64,
    wake: Arc<Notify>,
}

impl Watch {
    /// The watch, what it has to say before the first change, and whether it asks for what is gone and is to be told so
    /// at once.
    fn begin(
        state: &mut State,
        shared: Arc<Shared>,
        selection: Selection,
        query: &Query,
        is_gone: bool,
    ) -> (Watch, Vec<Value>, bool) {
        let number = state.watches.last_key_value().map_or(0, |(number, _)| number + 1);
        let mut running = Running {
            epoch: state.watch_epoch,
            selection,
            version: Some(state.version()),
            is_behind: true,
            wake: Arc::default(),
        };
        let watch = Watch {
            shared,
            number,
            resource: running.selection.resource,
            wants_bookmarks: query.is("allowWatchBookmarks"),
            bookmarks: state.bookmarks,
            wake: Arc::clone(&running.wake),
        };
        let from = query.get("resourceVersion").and_then(|v| v.parse::<u64>().ok()).unwrap_or(0);
        let mut lines = Vec::new();
        if from != 0 && !query.is("sendInitialEvents") {
            running.version = state.since(from).map(|_| from);
        } else {
            // Without a version, or from 0, a watch begins with the objects there are.
            let there = state.list(|key, object| running.selection.has(key, object));
            lines.extend(there.map(|object| json!({"type": "ADDED", "object": object})));
            if query.is("sendInitialEvents") {
                lines.push(watch.bookmark(running.version, true));
            }
        }
        if is_gone {
            running.version = None;
        }
        let refused = running.version.is_none() && state.gone_as_http;
        state.watches.insert(number, running);
        (watch, lines, refused)
    }

    /// Sends lines until the client leaves (`None`), the time is over, or a test ends the watch.
    async fn serve(&mut self, lines: &Sender, first: Vec<Value>, deadline: Instant) -> Option<()> {
        for line in first {
            send(lines, &line).await?;
        }
        loop {
            let (batch, last) = self.next();
            for line in batch {
                send(lines, &line).await?;
            }
            if last {
                return Some(());
            }
            if timeout_at(deadline, self.wake.notified()).await.is_err() {
                // The real server, too, says where it got to before it hangs up.
                let (batch, _) = self.next();
                for line in batch {
                    send(lines, &line).await?;
                }
                if self.wants_bookmarks {
                    let version = self.shared.read(|s| s.watches.get(&self.number).and_then(|it| it.version));
                    send(lines, &self.bookmark(version, false)).await?;
                }
                return Some(());
            }
        }
    }

    /// The lines that are due, and whether they are the last ones.
    fn next(&mut self) -> (Vec<Value>, bool) {
        let mut state = self.shared.lock();
        let state = &mut *state;
        let Some(running) = state.watches.get(&self.number) else { return (Vec::new(), true) };
        let Some(changes) = running.version.and_then(|version| state.since(version)) else {
            return (vec![json!({"type": "ERROR", "object": gone()})], true);
        };
        let mut lines: Vec<Value> = changes.filter_map(|change| running.line(change)).map(Line::json).collect();
        let (version, last) = (Some(state.version()), running.epoch != state.watch_epoch);
        if let Some(running) = state.watches.get_mut(&self.number) {
            (running.version, running.is_behind) = (version, false);
        }
        if self.bookmarks != state.bookmarks {
            self.bookmarks = state.bookmarks;
            if self.wants_bookmarks {
                lines.push(self.bookmark(version, false));
            }
        }
        (lines, last)
    }

    fn bookmark(&self, version: Option<u64>, ends_initial_events: bool) -> Value {
        let mut metadata = json!({"resourceVersion": version.unwrap_or_default().to_string()});
        if ends_initial_events {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        json!({"type": "BOOKMARK", "object":
            {"kind": self.resource.kind(), "apiVersion": self.resource.api_version(), "metadata": metadata}})
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.change(|s| s.watches.remove(&self.number));
    }
}

async fn send(lines: &Sender, line: &Value) -> Option<()> {
    lines.send(Ok(Frame::data(format!("{line}\n").into()))).await.ok()
}

fn gone() -> Value {
    status(410, "The resourceVersion for the provided watch is too old.")
}
