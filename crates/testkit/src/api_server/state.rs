//! The objects, their history, and the log of requests.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use super::faults::Fault;
use super::http::Selection;
use super::merge;

/// How many changes a watch can be behind before it is told 410: some of each node, where there are hundreds.
const HISTORY: usize = 5000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    Node,
    ConfigMap,
    Event,
    Lease,
    Pod,
    Pool,
}

impl Resource {
    pub fn kind(self) -> &'static str {
        match self {
            Resource::Node => "Node",
            Resource::ConfigMap => "ConfigMap",
            Resource::Event => "Event",
            Resource::Lease => "Lease",
            Resource::Pod => "Pod",
            Resource::Pool => "KubeletConfigPool",
        }
    }

    pub fn api_version(self) -> &'static str {
        match self {
            Resource::Lease => "coordination.k8s.io/v1",
            Resource::Pool => "kubelet-supervisor.io/v1alpha1",
            _ => "v1",
        }
    }

    pub fn plural(self) -> &'static str {
        match self {
            Resource::Node => "nodes",
            Resource::ConfigMap => "configmaps",
            Resource::Event => "events",
            Resource::Lease => "leases",
            Resource::Pod => "pods",
            Resource::Pool => "kubeletconfigpools",
        }
    }
}

/// Cluster scoped objects have an empty namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub resource: Resource,
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(resource: Resource, namespace: &str, name: &str) -> Key {
        Key { resource, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    pub fn node(name: &str) -> Key {
        Key::new(Resource::Node, "", name)
    }
}

/// One line of a watch.
#[derive(Clone, Debug)]
pub struct Change {
    pub version: u64,
    pub kind: &'static str,
    pub key: Key,
    pub object: Value,
    /// What it was before.
    pub old: Option<Value>,
}

/// One request as it came in.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub query: String,
    /// The bearer token.
    pub token: String,
    /// Serial number of the client certificate, hexadecimal.
    pub peer: String,
    pub at: Instant,
    /// 0 until the answer is decided, which for a request that hangs is never.
    pub status: u16,
    /// Of a write; `null` else.
    pub body: Value,
}

impl Request {
    pub fn is_watch(&self) -> bool {
        self.method == "GET" && self.query.contains("watch=")
    }
}

/// Hears of every change, in order.
pub type Listener = Box<dyn FnMut(&Change) + Send>;

/// A watch that is being served.
pub(super) struct Running {
    /// Of the server, when the watch began.
    pub(super) epoch: u64,
    pub(super) selection: Selection,
    /// What its client has seen. `None`: it asks for what the history no longer has.
    pub(super) version: Option<u64>,
    /// Something that it selects has changed since.
    pub(super) is_behind: bool,
    pub(super) wake: Arc<Notify>,
}

/// One change as one watch tells of it.
pub(super) enum Line<'a> {
    Added(&'a Value),
    Modified(&'a Value),
    /// What it was before, and when it went.
    Gone(&'a Value, u64),
}

impl Line<'_> {
    pub(super) fn json(self) -> Value {
        match self {
            Line::Added(object) => json!({"type": "ADDED", "object": object}),
            Line::Modified(object) => json!({"type": "MODIFIED", "object": object}),
            Line::Gone(old, version) => {
                let mut object = old.clone();
                object["metadata"]["resourceVersion"] = version.to_string().into();
                json!({"type": "DELETED", "object": object})
            }
        }
    }
}

impl Running {
    /// What leaves the selection is deleted as far as this watch goes.
    pub(super) fn line<'a>(&self, change: &'a Change) -> Option<Line<'a>> {
        let has = |object: &&Value| self.selection.has(&change.key, object);
        let is = change.kind != "DELETED" && has(&&change.object);
        match (change.old.as_ref().filter(has), is) {
            (None, false) => None,
            (None, true) => Some(Line::Added(&change.object)),
            (Some(_), true) => Some(Line::Modified(&change.object)),
            (Some(old), false) => Some(Line::Gone(old, change.version)),
        }
    }
}

/// Says whether the `spec` of an access review is allowed.
pub type AccessReviewer = Box<dyn Fn(&Value) -> bool + Send>;

#[derive(Default)]
pub struct State {
    version: u64,
    uids: u64,
    objects: BTreeMap<Key, Value>,
    history: VecDeque<Change>,
    /// Changes up to and including this version are no longer in the history.
    compacted: u64,
    requests: Vec<Request>,
    /// Of access reviews; none: all is allowed.
    pub(super) judge: Option<AccessReviewer>,
    /// NodeRestriction is off.
    pub(super) unguarded: bool,
    /// By Node: what its kubelet runs with.
    pub(super) configz: BTreeMap<String, Value>,
    pub(super) faults: Vec<Fault>,
    pub(super) drop_dynamic_config: bool,
    pub(super) gone_as_http: bool,
    pub(super) required_token: Option<String>,
    pub(super) tls: Option<std::sync::Arc<tokio_rustls::rustls::ServerConfig>>,
    /// A watch ends when this differs from what it was when the watch began.
    pub(super) watch_epoch: u64,
    /// A watch sends a bookmark when this differs from what it was at its last one.
    pub(super) bookmarks: u64,
    /// Those that run, by the order they began in.
    pub(super) watches: BTreeMap<u64, Running>,
    pub(super) listener: Option<Listener>,
}

impl State {
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn get(&self, key: &Key) -> Option<&Value> {
        self.objects.get(key)
    }

    pub fn node(&self, name: &str) -> Option<&Value> {
        self.get(&Key::node(name))
    }

    pub fn config_map(&self, namespace: &str, name: &str) -> Option<&Value> {
        self.get(&Key::new(Resource::ConfigMap, namespace, name))
    }

    pub fn events(&self) -> Vec<Value> {
        let mut events: Vec<Value> = self.list(|key, _| key.resource == Resource::Event).cloned().collect();
        events.sort_by_key(version_of);
        events
    }

    pub fn list(&self, wanted: impl Fn(&Key, &Value) -> bool) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(move |(key, object)| wanted(key, object)).map(|(_, object)| object)
    }

    /// Creates or replaces. A replacement that changes nothing keeps the resourceVersion and no watch hears of it,
    /// as on the real server.
    pub fn put(&mut self, key: &Key, mut object: Value) -> Value {
        self.shape(key, &mut object);
        let meta = &mut object["metadata"];
        let kind = if let Some(old) = self.objects.get(key) {
            if *old == object {
                return object;
            }
            "MODIFIED"
        } else {
            self.uids += 1;
            meta["uid"] = format!("5eed0000-0000-4000-8000-{:012x}", self.uids).into();
            // The real server has no ear for annotations here; tests need objects of different age.
            let wished = meta["creationTimestamp"].is_string();
            if !(matches!(key.resource, Resource::Pod | Resource::Node | Resource::ConfigMap) && wished) {
                meta["creationTimestamp"] = format!("{:.0}", jiff::Timestamp::now()).into();
            }
            "ADDED"
        };
        self.commit(kind, key, object)
    }

    /// What an object would be as this server keeps it; what a dry run answers.
    pub fn shape(&self, key: &Key, object: &mut Value) {
        if self.drop_dynamic_config {
            for (part, field) in [("spec", "configSource"), ("status", "config")] {
                object.get_mut(part).and_then(Value::as_object_mut).map(|part| part.remove(field));
            }
        }
        object["kind"] = key.resource.kind().into();
        object["apiVersion"] = key.resource.api_version().into();
        if !object["metadata"].is_object() {
            object["metadata"] = Value::Object(Map::new());
        }
        let meta = &mut object["metadata"];
        meta["name"] = key.name.as_str().into();
        if !key.namespace.is_empty() {
            meta["namespace"] = key.namespace.as_str().into();
        }
        let old = self.objects.get(key);
        if let Some(old) = old {
            for field in ["uid", "creationTimestamp", "resourceVersion"] {
                meta[field] = old["metadata"][field].clone();
            }
        }
        // Counts on with each change of the spec.
        if key.resource == Resource::Pool {
            let former = old.map(|old| (old["metadata"]["generation"].as_u64().unwrap_or_default(), &old["spec"]));
            let generation = match former {
                Some((generation, spec)) if *spec == object["spec"] => generation,
                Some((generation, _)) => generation + 1,
                None => 1,
            };
            object["metadata"]["generation"] = generation.into();
        }
    }

    /// RFC 7396 on any part of an object. `None`: there is no such object.
    pub fn patch(&mut self, key: &Key, patch: &Value) -> Option<Value> {
        let mut object = self.get(key)?.clone();
        merge::merge(&mut object, patch);
        Some(self.put(key, object))
    }

    pub fn strategic_patch(&mut self, key: &Key, patch: &Value) -> Option<Value> {
        let mut object = self.get(key)?.clone();
        merge::strategic_merge(&mut object, patch);
        Some(self.put(key, object))
    }

    pub fn delete(&mut self, key: &Key) -> Option<Value> {
        let object = self.objects.get(key)?.clone();
        let object = self.commit("DELETED", key, object);
        self.objects.remove(key);
        Some(object)
    }

    fn commit(&mut self, kind: &'static str, key: &Key, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let old = self.objects.insert(key.clone(), object.clone());
        if self.history.len() == HISTORY {
            self.compacted = self.history.pop_front().map_or(self.compacted, |oldest| oldest.version);
        }
        let change = Change { version: self.version, kind, key: key.clone(), object: object.clone(), old };
        for watch in self.watches.values_mut() {
            // One that has nothing to say of this is not behind because of it.
            if watch.line(&change).is_some() {
                watch.is_behind = true;
                watch.wake.notify_one();
            } else if !watch.is_behind && watch.version.is_some() {
                watch.version = Some(self.version);
            }
        }
        if let Some(listener) = &mut self.listener {
            listener(&change);
        }
        self.history.push_back(change);
        object
    }

    /// The changes after `version`. `None`: the history does not reach back so far.
    pub fn since(&self, version: u64) -> Option<impl Iterator<Item = &Change>> {
        let from = self.history.partition_point(|change| change.version <= version);
        (version >= self.compacted).then(|| self.history.range(from..))
    }

    /// Also uses up a version, so that a client which is up to date is behind too.
    pub fn compact(&mut self) {
        self.version += 1;
        self.compacted = self.version;
        self.history.clear();
        self.watches.values_mut().for_each(|watch| watch.is_behind = true);
        self.wake_watches();
    }

    pub(super) fn wake_watches(&self) {
        self.watches.values().for_each(|watch| watch.wake.notify_one());
    }

    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// How many watches are being served.
    pub fn watches(&self) -> usize {
        self.watches.len()
    }

    pub(super) fn log(&mut self, request: Request) -> usize {
        self.requests.push(request);
        self.requests.len() - 1
    }

    pub(super) fn log_status(&mut self, index: usize, status: u16) {
        self.requests[index].status = status;
    }

    pub(super) fn latest_requests(&self) -> String {
        let skip = self.requests.len().saturating_sub(15);
        let line = |r: &Request| format!("  {} {}?{} -> {}", r.method, r.path, r.query, r.status);
        self.requests[skip..].iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

pub fn version_of(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse().ok()).unwrap_or_default()
}

/// The state between the server's thread and the test's.
#[derive(Default)]
pub struct Shared {
    state: Mutex<State>,
    /// Wakes tests.
    pub changed: Condvar,
}

impl Shared {
    /// A test that panicked while holding the lock has failed already; the others may go on.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.lock())
    }

    /// Changes the state and wakes everybody who waits for that.
    pub fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let before = (state.watch_epoch, state.bookmarks);
        let result = change(&mut state);
        if before != (state.watch_epoch, state.bookmarks) {
            state.wake_watches();
        }
        drop(state);
        self.changed.notify_all();
        result
    }
}

/// A `metav1.Status`, the body of everything that is not a success.
pub fn status(code: u16, message: &str) -> Value {
    let reason = match code {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        405 => "MethodNotAllowed",
        409 => "Conflict",
        410 => "Expired",
        415 => "UnsupportedMediaType",
        422 => "Invalid",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "InternalError",
    };
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code})
}
