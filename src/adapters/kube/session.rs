//! One connection's worth of work: two watches, the status, the events, looks.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::{Stream, StreamExt as _};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::Instant;

use super::credentials::chain;
use super::outbox::{Outbox, Posted};
use super::types::{ConfigMapView, NodeView};
use super::{Command, Look, requests, sight};
use crate::core::evidence::NodeSight;
use crate::core::machine::{Input, Wanted};
use crate::core::policy;
use crate::core::report::NodeConfigStatus;

/// The API server ends a watch after this long; we ask again. Longer means fewer requests, and a
/// longer wait until a connection that died silently is noticed.
const WATCH_SECONDS: u32 = 120;

/// A watch that says nothing for this long is dead: the API server sends bookmarks, and ends it.
pub const READ_TIMEOUT: Duration = Duration::from_secs(150);

/// Pauses after failures: 50 ms at first, because right after an assignment the Node authorizer
/// needs a moment; 15 s at most.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(15);

/// Failures in a row, and until when to pause for them.
#[derive(Debug, Default)]
struct Pause {
    failures: u32,
    until: Option<Instant>,
}

impl Pause {
    fn failed(&mut self, retry_after: Option<u64>) {
        let pause = policy::backoff(PAUSE_FIRST, PAUSE_MAX, self.failures);
        // Half of it is jitter, so that nodes do not come back in step.
        let jitter = pause.mul_f64(f64::from(jiff::Timestamp::now().subsec_nanosecond() % 1000) / 2000.0);
        let asked = Duration::from_secs(retry_after.unwrap_or_default().min(60));
        self.failures = self.failures.saturating_add(1);
        self.until = Some(Instant::now() + (pause / 2 + jitter).max(asked));
    }

    fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// Cancel-safe: an interrupted pause is taken up again.
    async fn pass(&mut self) {
        if let Some(until) = self.until {
            tokio::time::sleep_until(until).await;
            self.until = None;
        }
    }
}

type Events<K> = Pin<Box<dyn Stream<Item = watcher::Result<watcher::Event<K>>> + Send>>;

/// A watch of one object.
struct Watch<K> {
    api: Api<K>,
    name: String,
    events: Events<K>,
    pause: Pause,
    found: bool,
}

enum Seen<K> {
    Object(K),
    Absent,
    Failed { why: String, code: Option<u16> },
}

impl<K> Watch<K>
where
    K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    fn new(api: Api<K>, name: &str) -> Self {
        let events = Self::begin(&api, name);
        Self { api, name: name.to_owned(), events, pause: Pause::default(), found: false }
    }

    fn begin(api: &Api<K>, name: &str) -> Events<K> {
        let config = watcher::Config::default().fields(&format!("metadata.name={name}")).timeout(WATCH_SECONDS);
        watcher(api.clone(), config).boxed()
    }

    /// The next thing worth knowing. Cancel-safe: stream and pause keep their place.
    async fn next(&mut self) -> Seen<K> {
        loop {
            self.pause.pass().await;
            match self.events.next().await {
                Some(Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object))) => {
                    self.pause.succeeded();
                    self.found = true;
                    return Seen::Object(object);
                }
                Some(Ok(watcher::Event::Init)) => self.found = false,
                Some(Ok(watcher::Event::InitDone)) => {
                    self.pause.succeeded();
                    if !self.found {
                        return Seen::Absent;
                    }
                }
                Some(Ok(watcher::Event::Delete(_))) => return Seen::Absent,
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
                        self.events = Self::begin(&self.api, &self.name);
                    } else {
                        return Seen::Failed { why: chain(&error), code };
                    }
                }
                None => std::future::pending().await, // a watcher never ends
            }
        }
    }
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

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// They were refused.
    Credentials,
}

/// See the module.
pub struct Session<'a> {
    client: Client,
    node_name: String,
    inputs: UnboundedSender<Input>,
    outbox: &'a mut Outbox,
    /// `status.config` as the API server last showed it; `None` while there is no Node.
    shown: Option<Value>,
    /// A status the server accepted and did not keep.
    dropped: Option<NodeConfigStatus>,
    /// Our condition as the API server last showed it.
    condition: Option<Value>,
    trouble: Option<String>,
    /// The condition Ready as the machine was last told.
    ready: Option<NodeSight>,
    capacity: BTreeMap<String, String>,
}

impl<'a> Session<'a> {
    /// A session that has not begun.
    pub fn new(client: Client, node_name: String, inputs: UnboundedSender<Input>, outbox: &'a mut Outbox) -> Self {
        Self {
            client,
            node_name,
            inputs,
            outbox,
            shown: None,
            dropped: None,
            condition: None,
            trouble: None,
            ready: None,
            capacity: BTreeMap::new(),
        }
    }

    /// Works until the credentials are of no more use; `None` when the supervisor ends.
    pub async fn run(&mut self, commands: &mut UnboundedReceiver<Command>) -> Option<End> {
        let mut node = Watch::<NodeView>::new(Api::all(self.client.clone()), &self.node_name);
        let mut map = self.map_watch();
        let mut status_pause = Pause::default();
        let mut event_pause = Pause::default();
        let mut patch: InFlight<NodeView> = None;
        let mut post: InFlight<()> = None;
        let (mut sent, mut posted) = (None, Posted::default());
        loop {
            let status = self.due_status();
            let event = self.outbox.events.front().cloned();
            tokio::select! {
                // Cancel-safe: recv, next and pass keep their place, and requests in flight
                // are kept across turns.
                command = commands.recv() => {
                    let watch = matches!(command, Some(Command::Watch(_)));
                    if let Some(look) = self.outbox.take(command?) {
                        self.look(look);
                    }
                    if watch {
                        map = self.map_watch();
                    }
                }
                seen = node.next() => if self.node_seen(seen) { return Some(End::Credentials) },
                seen = next_map(&mut map) => if self.map_seen(seen) { return Some(End::Credentials) },
                () = status_pause.pass(), if patch.is_none() && status.is_some() => {
                    let body = status.as_ref().map(|status| status.patch(self.condition.as_ref(), &jiff::Timestamp::now().strftime("%FT%TZ").to_string()));
                    patch = body.map(|body| requests::patch_status(self.client.clone(), self.node_name.clone(), body).boxed());
                    sent = status;
                }
                result = answer(&mut patch) => self.patched(result, sent.take(), &mut status_pause),
                () = event_pause.pass(), if post.is_none() && event.is_some() => if let Some(event) = event {
                    posted = Posted::of(&event);
                    post = Some(requests::post_event(self.client.clone(), self.node_name.clone(), event).boxed());
                },
                result = answer(&mut post) => self.posted(result, posted, &mut event_pause),
            }
        }
    }

    /// Beside the loop, and to its end even if the session ends before: each look has an answer.
    fn look(&self, look: Look) {
        let (client, node, inputs) = (self.client.clone(), self.node_name.clone(), self.inputs.clone());
        let capacity = self.capacity.clone();
        tokio::spawn(async move {
            let _ = inputs.send(match look {
                Look::Lease => Input::LeaseSeen(requests::look_lease(client, node).await),
                Look::Pods => Input::PodsSeen(requests::look_pods(client, node, capacity).await),
            });
        });
    }

    fn map_watch(&self) -> Option<Watch<ConfigMapView>> {
        let reference = self.outbox.map.as_ref()?;
        Some(Watch::new(Api::namespaced(self.client.clone(), &reference.namespace), &reference.name))
    }

    /// True if the credentials are refused.
    fn node_seen(&mut self, seen: Seen<NodeView>) -> bool {
        match seen {
            Seen::Object(node) => {
                self.recovered();
                self.capacity = sight::capacity(&node);
                if let Some(ready) = sight::node_sight(&node).filter(|ready| self.ready.as_ref() != Some(ready)) {
                    self.ready = Some(ready.clone());
                    let _ = self.inputs.send(Input::NodeSeen(ready));
                }
                let _ = self.inputs.send(Input::Node(sight::wanted(&node)));
                let asked = sight::asked(&node);
                if asked != self.outbox.asked {
                    self.outbox.asked = asked.clone();
                    let _ = self.inputs.send(Input::Asked { retry: asked.retry, confirm: asked.confirm });
                }
                self.condition = sight::own_condition(&node);
                self.shown = Some(node.status.config.unwrap_or_default());
            }
            Seen::Absent => {
                self.recovered();
                self.shown = None;
                tracing::info!("there is no Node {} (yet); its configuration is kept", self.node_name);
                let _ = self.inputs.send(Input::Node(Wanted::Unknown));
            }
            Seen::Failed { why, code } => {
                if code == Some(401) {
                    return true;
                }
                if self.trouble.is_none() {
                    tracing::warn!("the Node cannot be watched: {why}");
                }
                self.trouble = Some(why);
            }
        }
        false
    }

    fn recovered(&mut self) {
        if self.trouble.take().is_some() {
            tracing::info!("the API server is back");
        }
    }

    fn map_seen(&mut self, seen: Seen<ConfigMapView>) -> bool {
        let input = match seen {
            Seen::Object(map) => Input::Map(Arc::new(sight::payload(map))),
            Seen::Absent => {
                let name = self.outbox.map.as_ref().map(ToString::to_string).unwrap_or_default();
                Input::MapFailed { why: format!("the ConfigMap {name} does not exist"), definite: true }
            }
            Seen::Failed { code: Some(401), .. } => return true,
            Seen::Failed { why, code } => Input::MapFailed { why, definite: matches!(code, Some(403 | 404)) },
        };
        let _ = self.inputs.send(input);
        false
    }

    /// The status that the Node does not show yet.
    fn due_status(&self) -> Option<NodeConfigStatus> {
        let (shown, status) = (self.shown.as_ref()?, self.outbox.status.as_ref()?);
        let kept = status.matches(shown) || self.dropped.as_ref().is_some_and(|dropped| dropped.same_config(status));
        let due = !kept || !status.condition.is_shown(self.condition.as_ref());
        due.then(|| status.clone())
    }

    fn posted(&mut self, result: kube::Result<()>, posted: Posted, pause: &mut Pause) {
        match result {
            Ok(()) => pause.succeeded(),
            // Refused for good; 401 is about the credentials, which the watches have noticed too.
            Err(kube::Error::Api(refusal)) if refusal.code < 500 && !matches!(refusal.code, 401 | 429) => {
                tracing::warn!("an event was refused: {}", refusal.message);
            }
            Err(_) => return pause.failed(None),
        }
        self.outbox.sent(posted);
        if posted.number != 0 {
            let _ = self.inputs.send(Input::Reported(posted.number));
        }
    }

    fn patched(&mut self, result: kube::Result<NodeView>, status: Option<NodeConfigStatus>, pause: &mut Pause) {
        match result {
            Ok(node) => {
                pause.succeeded();
                self.condition = sight::own_condition(&node);
                let shown = node.status.config.unwrap_or_default();
                if let Some(status) = status.filter(|status| !status.matches(&shown)) {
                    if self.dropped.is_none() {
                        tracing::warn!(
                            "this API server does not keep Node.status.config (gone since Kubernetes 1.26, off since 1.22)"
                        );
                    }
                    self.dropped = Some(status);
                }
                self.shown = Some(shown);
            }
            Err(error) => {
                if pause.failures == 2 {
                    tracing::warn!("the Node's status cannot be written, trying on: {}", chain(&error));
                }
                pause.failed(None);
            }
        }
    }
}

async fn next_map(map: &mut Option<Watch<ConfigMapView>>) -> Seen<ConfigMapView> {
    match map {
        Some(map) => map.next().await,
        None => std::future::pending().await,
    }
}

/// A request under way, if there is one.
type InFlight<T> = Option<BoxFuture<'static, kube::Result<T>>>;

/// The answer to a request in flight, which is taken off; for ever if there is none.
async fn answer<T>(request: &mut InFlight<T>) -> kube::Result<T> {
    let Some(future) = request else { return std::future::pending().await };
    let result = future.await;
    *request = None;
    result
}
