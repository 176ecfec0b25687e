//! One connection's worth of work: two watches, the status, the events.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::{Event as CoreEvent, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::Instant;

use super::credentials::chain;
use super::types::{ConfigMapView, NodeView};
use super::{CREDENTIALS_INTERVAL, Command};
use crate::core::machine::{Input, Wanted};
use crate::core::model::{ConfigMapRef, Payload, Wishes};
use crate::core::policy;
use crate::core::record::Entry;
use crate::core::report::NodeConfigStatus;

/// The API server ends a watch after this long; we ask again. Longer means fewer requests, and a
/// longer wait until a connection that died silently is noticed.
const WATCH_SECONDS: u32 = 120;

/// A watch that says nothing for this long is dead: the API server sends bookmarks, and ends it.
pub const READ_TIMEOUT: Duration = Duration::from_secs(150);

/// Events kept while the API server is away.
const EVENTS_KEPT: usize = 32;

/// Pauses after failures: 50 ms at first, because right after an assignment the Node authorizer
/// needs a moment; 15 s at most.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(15);

/// What is to be sent and watched; outlives a session.
#[derive(Debug, Default)]
pub struct Outbox {
    map: Option<ConfigMapRef>,
    status: Option<NodeConfigStatus>,
    events: VecDeque<Entry>,
}

impl Outbox {
    /// Notes a command.
    pub fn take(&mut self, command: Command) {
        match command {
            Command::Watch(map) => self.map = map,
            Command::Publish(status) => self.status = Some(*status),
            Command::Emit(entry) => {
                if self.events.len() == EVENTS_KEPT {
                    self.events.pop_front();
                }
                self.events.push_back(*entry);
            }
        }
    }
}

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
    /// Other credentials are there, or these were refused.
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
    trouble: Option<String>,
}

impl<'a> Session<'a> {
    /// A session that has not begun.
    pub fn new(client: Client, node_name: String, inputs: UnboundedSender<Input>, outbox: &'a mut Outbox) -> Self {
        Self { client, node_name, inputs, outbox, shown: None, dropped: None, trouble: None }
    }

    /// Works until the credentials are of no more use; `None` when the supervisor ends.
    pub async fn run(&mut self, commands: &mut UnboundedReceiver<Command>, changed: impl Fn() -> bool) -> Option<End> {
        let mut node = Watch::<NodeView>::new(Api::all(self.client.clone()), &self.node_name);
        let mut map = self.map_watch();
        let mut status_pause = Pause::default();
        let mut event_pause = Pause::default();
        let mut look = tokio::time::interval(CREDENTIALS_INTERVAL);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut patch: InFlight<NodeView> = None;
        let mut post: InFlight<()> = None;
        let (mut sent, mut posted) = (None, 0);
        loop {
            let status = self.due_status();
            let event = self.outbox.events.front().cloned();
            tokio::select! {
                // Cancel-safe: recv, next, pass and tick keep their place, and requests in flight
                // are kept across turns.
                command = commands.recv() => {
                    let watch = matches!(command, Some(Command::Watch(_)));
                    self.outbox.take(command?);
                    if watch {
                        map = self.map_watch();
                    }
                }
                seen = node.next() => if self.node_seen(seen) { return Some(End::Credentials) },
                seen = next_map(&mut map) => if self.map_seen(seen) { return Some(End::Credentials) },
                () = status_pause.pass(), if patch.is_none() && status.is_some() => {
                    patch = status.clone().map(|status| patch_status(self.client.clone(), self.node_name.clone(), status).boxed());
                    sent = status;
                }
                result = answer(&mut patch) => self.patched(result, sent.take(), &mut status_pause),
                () = event_pause.pass(), if post.is_none() && event.is_some() => if let Some(event) = event {
                    posted = event.number;
                    post = Some(post_event(self.client.clone(), self.node_name.clone(), event).boxed());
                },
                result = answer(&mut post) => self.posted(result, posted, &mut event_pause),
                _ = look.tick() => if changed() {
                    tracing::info!("the credentials have changed, connecting anew");
                    return Some(End::Credentials);
                },
            }
        }
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
                self.shown = Some(node.status.config.unwrap_or_default());
                let _ = self.inputs.send(Input::Node(wanted(node.spec.config_source.as_ref())));
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
            Seen::Object(map) => Input::Map(Arc::new(payload(map))),
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
        let due = !status.matches(shown) && self.dropped.as_ref() != Some(status);
        due.then(|| status.clone())
    }

    fn posted(&mut self, result: kube::Result<()>, sent: u64, pause: &mut Pause) {
        match result {
            Ok(()) => {
                pause.succeeded();
                self.sent(sent);
            }
            Err(kube::Error::Api(refusal)) if refusal.code < 500 && refusal.code != 429 => {
                tracing::warn!("an event was refused: {}", refusal.message);
                self.sent(sent);
            }
            Err(_) => pause.failed(None),
        }
    }

    fn sent(&mut self, number: u64) {
        self.outbox.events.pop_front();
        let _ = self.inputs.send(Input::Reported(number));
    }

    fn patched(&mut self, result: kube::Result<NodeView>, status: Option<NodeConfigStatus>, pause: &mut Pause) {
        match result {
            Ok(node) => {
                pause.succeeded();
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

async fn patch_status(client: Client, name: String, status: NodeConfigStatus) -> kube::Result<NodeView> {
    // PATCH only: a PUT would erase fields this build does not know.
    let api: Api<NodeView> = Api::all(client);
    api.patch_status(&name, &PatchParams::default(), &Patch::Merge(status.patch())).await
}

async fn post_event(client: Client, node: String, event: Entry) -> kube::Result<()> {
    let api: Api<CoreEvent> = Api::namespaced(client, "default");
    match api.create(&PostParams::default(), &core_event(&node, &event)).await {
        // It was sent before and the answer got lost.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        result => result.map(drop),
    }
}

/// Native's shape (configsync.go:234-266, v1.20.2): core/v1, because a node may not write the
/// newer kind; the involved Node's uid is its name.
fn core_event(node: &str, event: &Entry) -> CoreEvent {
    let nanos = event.nanos;
    let time = jiff::Timestamp::from_nanosecond(i128::from(nanos)).ok().map(Time);
    CoreEvent {
        metadata: ObjectMeta {
            name: Some(format!("{node}.{nanos:x}")),
            namespace: Some("default".to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            uid: Some(node.to_owned()),
            ..ObjectReference::default()
        },
        reason: Some(event.reason.clone()),
        message: Some(event.message.clone()),
        type_: Some(if event.warning { "Warning" } else { "Normal" }.to_owned()),
        count: Some(1),
        first_timestamp: time.clone(),
        last_timestamp: time,
        source: Some(EventSource { component: Some("kubelet".to_owned()), host: Some(node.to_owned()) }),
        ..CoreEvent::default()
    }
}

fn payload(map: ConfigMapView) -> Payload {
    let meta = map.metadata;
    Payload {
        namespace: meta.namespace.unwrap_or_default(),
        name: meta.name.unwrap_or_default(),
        uid: meta.uid.unwrap_or_default(),
        resource_version: meta.resource_version.unwrap_or_default(),
        data: map.data.unwrap_or_default(),
        wishes: wishes(meta.annotations.unwrap_or_default()),
    }
}

fn wishes(mut annotations: BTreeMap<String, String>) -> Wishes {
    let mut take = |name: &str| annotations.remove(&format!("kubelet-supervisor.io/{name}"));
    Wishes { merge: take("merge"), acknowledge: take("acknowledge"), confirm_within: take("confirm-within") }
}

fn wanted(source: Option<&Value>) -> Wanted {
    let Some(source) = source.filter(|source| !source.is_null()) else { return Wanted::Local };
    let map = source.get("configMap").cloned().unwrap_or_default();
    serde_json::from_value(map).map_or(Wanted::AllNil, Wanted::Map)
}
