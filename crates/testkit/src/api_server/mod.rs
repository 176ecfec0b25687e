//! A small in-process Kubernetes API server: Nodes, ConfigMaps, Leases, Pods and Events over plain HTTP on 127.0.0.1.
//!
//! It is small, but what it does it does like the real one, because the supervisor's correctness hangs on it:
//! one resourceVersion counter, no new version for a write that changes nothing, watches that replay out of a
//! bounded history and say 410 when that is gone, status as a subresource.
//!
//! The server runs on a thread of its own, the API for tests is synchronous. Whoever waits, waits on a condition
//! variable that every change and every request signals; nothing here polls.

mod access;
mod faults;
mod http;
mod merge;
mod state;
pub mod tls;
mod watch;

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::oneshot;

pub use faults::{Answer, Fault, FaultKind, Faults, Then, Verb};
pub use merge::merge;
pub use state::{Change, Key, Request, Resource, State};

use super::port::Port;
use state::Shared;

/// The bearer token that [`ApiServer::write_kubeconfig`] hands out; only checked after [`ApiServer::require_token`].
pub const TOKEN: &str = "stand-in-token";

/// A way in that is not a socket.
#[derive(Clone)]
pub struct Door {
    shared: Arc<Shared>,
    quiet: bool,
}

impl Door {
    /// One request.
    pub async fn answer<B: hyper::body::Body>(&self, request: hyper::Request<B>) -> http::Response {
        let shared = Arc::clone(&self.shared);
        if self.quiet {
            return http::answer_quietly(request, shared).await;
        }
        http::answer(request, shared, String::new()).await
    }

    /// For those who are not what a test is about: their requests are not in the log, and no fault is meant for them.
    #[must_use]
    pub fn quiet(self) -> Door {
        Door { quiet: true, ..self }
    }

    /// Reads anything out of the state.
    pub fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        self.shared.read(look)
    }

    /// Ends all watches, without waiting for it.
    pub fn end_watches(&self) {
        self.shared.change(|s| s.watch_epoch += 1);
    }
}

/// The server. Dropping it stops it.
pub struct ApiServer {
    shared: Arc<Shared>,
    /// Held while stopped, too: nobody else is to answer where this server does not.
    port: Port,
    running: Option<Running>,
}

struct Running {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl ApiServer {
    /// Starts on a free port.
    pub fn start() -> ApiServer {
        ApiServer::start_on(0)
    }

    /// Starts on the given port of 127.0.0.1.
    pub fn start_on(port: u16) -> ApiServer {
        let mut server = ApiServer { shared: Arc::default(), port: Port::hold(port), running: None };
        server.restart();
        server
    }

    /// Closes the port and every connection. Objects, faults and request log stay.
    pub fn stop(&mut self) {
        if let Some(Running { stop, thread }) = self.running.take() {
            let _ = stop.send(());
            let _ = thread.join();
        }
    }

    /// Stops if running, and listens on the same port again with the same state.
    pub fn restart(&mut self) {
        self.stop();
        // Bound here and not on the thread, so that the port is open when this returns.
        // A child that another thread has just forked holds the old listener open until its exec.
        let deadline = Instant::now() + Duration::from_secs(5);
        let listener = loop {
            match TcpListener::bind(self.port.address()) {
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                result => break result.expect("bind the API server's port"),
            }
        };
        listener.set_nonblocking(true).expect("set_nonblocking");
        let (stop, stopped) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new()
            .name("api-server".into())
            .spawn(move || http::serve(listener, shared, stopped))
            .expect("spawn the API server's thread");
        self.running = Some(Running { stop, thread });
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.port.address())
    }

    /// Writes a kubeconfig for this server, in JSON, which is YAML too.
    pub fn write_kubeconfig(&self, path: impl AsRef<Path>) {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url()}}],
            "users": [{"name": "test", "user": {"token": TOKEN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        std::fs::write(path, format!("{config:#}\n")).expect("write the kubeconfig");
    }

    /// From now on connections are TLS with this server's side of it; `None`: plain. Those there are go on.
    pub fn use_tls(&self, config: Option<Arc<tokio_rustls::rustls::ServerConfig>>) {
        self.shared.change(|s| s.tls = config);
    }

    /// Answers without a socket, on the caller's runtime: its clock may be a simulated one.
    pub fn door(&self) -> Door {
        Door { shared: Arc::clone(&self.shared), quiet: false }
    }

    /// From now on this hears of every change, in order.
    pub fn listen(&self, listener: impl FnMut(&Change) + Send + 'static) {
        self.shared.change(|s| s.listener = Some(Box::new(listener)));
    }

    /// From now on requests without this bearer token get 401 (`None`: anyone may).
    pub fn require_token(&self, token: Option<&str>) {
        self.shared.change(|s| s.required_token = token.map(str::to_owned));
    }

    /// Whether writes lose `spec.configSource` and `status.config`, as on servers since 1.26. The answer is 200.
    pub fn drop_dynamic_config(&self, drop: bool) {
        self.shared.change(|s| s.drop_dynamic_config = drop);
    }

    /// What access reviews say, given their `spec`.
    pub fn judge_access(&self, allowed: impl Fn(&Value) -> bool + Send + 'static) {
        self.shared.change(|s| s.judge = Some(Box::new(allowed)));
    }

    /// Whether NodeRestriction keeps nodes from labels of ours, as it does unless told otherwise.
    pub fn guard_labels(&self, guard: bool) {
        self.shared.change(|s| s.unguarded = !guard);
    }

    pub fn faults(&self) -> Faults<'_> {
        Faults(&self.shared)
    }

    // ---- objects -------------------------------------------------------------------------------------------

    pub fn create_node(&self, name: &str) -> Value {
        let node = json!({"metadata": {"name": name}, "spec": {}, "status": {}});
        self.shared.change(|s| s.put(&Key::node(name), node))
    }

    /// Creates a Node with all that is in `node`, or replaces it.
    pub fn put_node(&self, name: &str, node: Value) -> Value {
        self.shared.change(|s| s.put(&Key::node(name), node))
    }

    pub fn delete_node(&self, name: &str) {
        self.shared.change(|s| s.delete(&Key::node(name))).expect("no such Node");
    }

    /// The Node as it is now. Panics if there is none.
    pub fn node(&self, name: &str) -> Value {
        self.shared.read(|s| s.node(name).cloned()).expect("no such Node")
    }

    /// Merges `patch` (RFC 7396) into any part of the Node, status and restricted labels included.
    pub fn patch_node(&self, name: &str, patch: Value) -> Value {
        self.shared.change(|s| s.patch(&Key::node(name), &patch)).expect("no such Node")
    }

    /// Points the Node at a ConfigMap, as an administrator would (so `drop_dynamic_config` applies).
    pub fn assign(&self, node: &str, namespace: &str, name: &str, key: &str) -> Value {
        let source = json!({"configMap": {"namespace": namespace, "name": name, "kubeletConfigKey": key}});
        // Set whole, not merged: nothing of an earlier assignment may stay beside these fields.
        self.shared.change(|s| {
            let mut object = s.node(node).expect("no such Node").clone();
            object["spec"]["configSource"] = source;
            s.put(&Key::node(node), object)
        })
    }

    pub fn unassign(&self, node: &str) -> Value {
        self.patch_node(node, json!({"spec": {"configSource": null}}))
    }

    /// Gives the Node a kubelet that answers through the API server, with this for its `/configz`.
    pub fn set_configz(&self, node: &str, config: Value) {
        self.shared.change(|s| s.configz.insert(node.to_owned(), config));
    }

    /// Posts an Event, as it is.
    pub fn put_event(&self, name: &str, event: Value) {
        self.shared.change(|s| s.put(&Key::new(Resource::Event, "default", name), event));
    }

    /// Any part of a ConfigMap. Panics if there is none.
    pub fn config_map(&self, namespace: &str, name: &str) -> Value {
        self.shared.read(|s| s.config_map(namespace, name).cloned()).expect("no such ConfigMap")
    }

    /// Sets one condition of the Node's status, e.g. `("Ready", "True")`.
    pub fn set_condition(&self, node: &str, kind: &str, status: &str) {
        let now = jiff::Timestamp::now().to_string();
        let condition = json!({"type": kind, "status": status, "lastHeartbeatTime": now});
        let patch = json!({"status": {"conditions": [condition]}});
        self.shared.change(|s| s.strategic_patch(&Key::node(node), &patch)).expect("no such Node");
    }

    /// Creates the Node's Lease, or gives it this `renewTime`.
    pub fn set_lease(&self, node: &str, renew_time: &str) {
        let spec = json!({"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": renew_time});
        let key = Key::new(Resource::Lease, "kube-node-lease", node);
        self.shared.change(|s| {
            let mut lease = s.get(&key).cloned().unwrap_or_else(|| json!({"metadata": {}}));
            lease["spec"] = spec;
            s.put(&key, lease)
        });
    }

    pub fn delete_lease(&self, node: &str) {
        let key = Key::new(Resource::Lease, "kube-node-lease", node);
        self.shared.change(|s| s.delete(&key)).expect("no such Lease");
    }

    /// Sets `status.capacity`, as a kubelet does when it registers.
    pub fn set_capacity(&self, node: &str, cpu: &str, memory: &str, pods: &str) {
        self.patch_node(node, json!({"status": {"capacity": {"cpu": cpu, "memory": memory, "pods": pods}}}));
    }

    /// Creates a running Pod on this Node with one container, or merges `more` (RFC 7396) into it. `more` may set
    /// `metadata.creationTimestamp` of a new one.
    pub fn put_pod(&self, node: &str, namespace: &str, name: &str, more: Value) -> Value {
        let key = Key::new(Resource::Pod, namespace, name);
        self.shared.change(|s| {
            let new = json!({"metadata": {}, "spec": {"nodeName": node, "containers": [{"name": "c"}]},
                "status": {"phase": "Running"}});
            let mut pod = s.get(&key).cloned().unwrap_or(new);
            merge::merge(&mut pod, &more);
            s.put(&key, pod)
        })
    }

    pub fn delete_pod(&self, namespace: &str, name: &str) {
        let key = Key::new(Resource::Pod, namespace, name);
        self.shared.change(|s| s.delete(&key)).expect("no such Pod");
    }

    /// Creates the pool, or replaces its spec.
    pub fn put_pool(&self, name: &str, spec: &Value) {
        let key = Key::new(Resource::Pool, "", name);
        self.shared.change(|s| {
            let mut pool =
                s.get(&key).cloned().unwrap_or_else(|| json!({"metadata": {}, "status": {"observedGeneration": -1}}));
            pool["spec"] = spec.clone();
            s.put(&key, pool)
        });
    }

    /// A pool as it is.
    pub fn pool(&self, name: &str) -> Option<Value> {
        self.read(|s| s.get(&Key::new(Resource::Pool, "", name)).cloned())
    }

    pub fn delete_pool(&self, name: &str) {
        let key = Key::new(Resource::Pool, "", name);
        self.shared.change(|s| s.delete(&key)).expect("no such pool");
    }

    /// Merges into a pool, as an administrator would.
    pub fn patch_pool(&self, name: &str, patch: &Value) {
        self.shared.change(|s| s.patch(&Key::new(Resource::Pool, "", name), patch));
    }

    /// Creates a ConfigMap as it is; it may have a `metadata.creationTimestamp`.
    pub fn create_config_map(&self, map: &Value) {
        let text = |field: &str| map["metadata"][field].as_str().expect("a name and a namespace");
        let key = Key::new(Resource::ConfigMap, text("namespace"), text("name"));
        self.shared.change(|s| s.put(&key, map.clone()));
    }

    pub fn has_config_map(&self, namespace: &str, name: &str) -> bool {
        self.read(|s| s.get(&Key::new(Resource::ConfigMap, namespace, name)).is_some())
    }

    /// Creates the ConfigMap, or updates its data in place. Returns its uid and resourceVersion.
    pub fn put_config_map(&self, namespace: &str, name: &str, data: &[(&str, &str)]) -> (String, String) {
        self.put_annotated_config_map(namespace, name, data, None)
    }

    /// The same with an annotation, in one write.
    pub fn put_annotated_config_map(
        &self,
        namespace: &str,
        name: &str,
        data: &[(&str, &str)],
        annotation: Option<(&str, &str)>,
    ) -> (String, String) {
        let key = Key::new(Resource::ConfigMap, namespace, name);
        let data: serde_json::Map<String, Value> =
            data.iter().map(|(k, v)| ((*k).to_owned(), Value::from(*v))).collect();
        let map = self.shared.change(|s| {
            let mut map = s.get(&key).cloned().unwrap_or_else(|| json!({"metadata": {}}));
            map["data"] = data.into();
            if let Some((key, value)) = annotation {
                map["metadata"]["annotations"][key] = value.into();
            }
            s.put(&key, map)
        });
        identity(&map)
    }

    /// Sets an annotation of a ConfigMap. Returns its uid and new resourceVersion.
    pub fn annotate_config_map(&self, namespace: &str, name: &str, key: &str, value: &str) -> (String, String) {
        self.patch_config_map(namespace, name, json!({"metadata": {"annotations": {key: value}}}))
    }

    /// Sets a label of a ConfigMap. Returns its uid and new resourceVersion.
    pub fn label_config_map(&self, namespace: &str, name: &str, key: &str, value: &str) -> (String, String) {
        self.patch_config_map(namespace, name, json!({"metadata": {"labels": {key: value}}}))
    }

    /// Merges into a ConfigMap. Returns its uid and new resourceVersion.
    pub fn patch_config_map(&self, namespace: &str, name: &str, patch: Value) -> (String, String) {
        let key = Key::new(Resource::ConfigMap, namespace, name);
        identity(&self.shared.change(|s| s.patch(&key, &patch)).expect("no such ConfigMap"))
    }

    pub fn delete_config_map(&self, namespace: &str, name: &str) {
        let key = Key::new(Resource::ConfigMap, namespace, name);
        self.shared.change(|s| s.delete(&key)).expect("no such ConfigMap");
    }

    /// Every Event posted so far, in order.
    pub fn events(&self) -> Vec<Value> {
        self.shared.read(state::State::events)
    }

    // ---- watches -------------------------------------------------------------------------------------------

    /// Forgets the history: a watch from any version up to now gets 410, as after etcd's compaction.
    pub fn compact(&self) {
        self.shared.change(State::compact);
    }

    /// Whether "410 Gone" to a watch is the HTTP status, instead of an ERROR event in a 200 stream.
    /// The real server does the latter from its watch cache and the former without.
    pub fn gone_as_http(&self, http: bool) {
        self.shared.change(|s| s.gone_as_http = http);
    }

    /// Ends every running watch cleanly, as the real server does when `timeoutSeconds` is over. When this returns
    /// they are over: what changes next, their clients learn from the next watch.
    pub fn end_watches(&self) {
        let epoch = self.shared.change(|s| {
            s.watch_epoch += 1;
            s.watch_epoch
        });
        let over = |s: &State| s.watches.values().all(|watch| watch.epoch >= epoch).then_some(());
        self.wait_until(Duration::from_secs(10), over).expect("the watches end");
    }

    /// Sends a BOOKMARK to every running watch that asked for them.
    pub fn bookmark(&self) {
        self.shared.change(|s| s.bookmarks += 1);
    }

    // ---- looking and waiting -------------------------------------------------------------------------------

    /// Every request so far, in order of arrival.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.read(|s| s.requests().to_vec())
    }

    /// How many watches are being served.
    pub fn watches(&self) -> usize {
        self.shared.read(State::watches)
    }

    /// Reads anything else out of the state.
    pub fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        self.shared.read(look)
    }

    /// Blocks until `look` finds something. On timeout the error shows the latest requests.
    pub fn wait_until<T>(&self, timeout: Duration, mut look: impl FnMut(&State) -> Option<T>) -> Result<T, String> {
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.lock();
        loop {
            if let Some(found) = look(&state) {
                return Ok(found);
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                return Err(format!("not within {timeout:?}; the latest requests:\n{}", state.latest_requests()));
            };
            state = self.shared.changed.wait_timeout(state, left).expect("the state's lock").0;
        }
    }

    /// Blocks until the Node exists and `good` likes it.
    pub fn wait_node(&self, name: &str, timeout: Duration, good: impl Fn(&Value) -> bool) -> Result<Value, String> {
        self.wait_until(timeout, |s| s.node(name).filter(|node| good(node)).cloned()).map_err(|error| {
            let node = self.shared.read(|s| s.node(name).cloned());
            format!("Node {name}: {error}\nand the Node is {:#}", node.unwrap_or_default())
        })
    }

    /// Blocks until an Event that `good` likes was posted.
    pub fn wait_event(&self, timeout: Duration, good: impl Fn(&Value) -> bool) -> Result<Value, String> {
        self.wait_until(timeout, |s| s.events().into_iter().find(|event| good(event)))
    }

    /// Blocks until a request that `good` likes came in (its `status` is 0 until it is answered).
    pub fn wait_request(&self, timeout: Duration, good: impl Fn(&Request) -> bool) -> Result<Request, String> {
        self.wait_until(timeout, |s| s.requests().iter().find(|request| good(request)).cloned())
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn identity(object: &Value) -> (String, String) {
    let field = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
    (field("uid"), field("resourceVersion"))
}
