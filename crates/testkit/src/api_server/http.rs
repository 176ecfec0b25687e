//! From an HTTP request to an answer: routing, faults, and the verbs on objects.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Instant;

use futures_util::stream;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::faults::{self, FaultKind, Verb};
use super::state::{Key, Request, Resource, Shared, State, status, version_of};
use super::{access, merge, tls, watch};

pub type Body = BoxBody<Bytes, std::io::Error>;
pub type Response = hyper::Response<Body>;

/// Serves until `stopped` resolves. The runtime ends with it, and with the runtime every connection.
pub fn serve(listener: TcpListener, shared: Arc<Shared>, stopped: oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a tokio runtime");
    let accept = async {
        let listener = tokio::net::TcpListener::from_std(listener).expect("a tokio listener");
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            let shared = Arc::clone(&shared);
            let tls = shared.read(|s| s.tls.clone());
            tokio::spawn(async move {
                match tls {
                    None => converse(TokioIo::new(stream), &shared, String::new()).await,
                    Some(config) => {
                        // An error here is a client that does not trust us, or the other way round.
                        if let Ok(stream) = tokio_rustls::TlsAcceptor::from(config).accept(stream).await {
                            let peer = tls::peer(stream.get_ref().1);
                            converse(TokioIo::new(stream), &shared, peer).await;
                        }
                    }
                }
            });
        }
    };
    runtime.block_on(async {
        tokio::select! { () = accept => {}, _ = stopped => {} }
    });
}

/// One connection.
async fn converse(io: impl hyper::rt::Read + hyper::rt::Write + Unpin, shared: &Arc<Shared>, peer: String) {
    let service = service_fn(|request| {
        let (shared, peer) = (Arc::clone(shared), peer.clone());
        async move { Ok::<_, Infallible>(answer(request, shared, peer).await) }
    });
    // An error here is a client that left, or a body that a fault cut.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
}

/// What a URL's path names.
struct Target {
    resource: Resource,
    /// `None` with a namespaced resource: all namespaces.
    namespace: Option<String>,
    name: Option<String>,
    status: bool,
    /// The Eviction of a Pod.
    eviction: bool,
    /// What the kubelet of a Node is asked for, through the API server.
    proxy: Option<String>,
}

impl Target {
    fn parse(path: &str) -> Option<Target> {
        let mut parts = path.trim_matches('/').split('/');
        match (parts.next()?, parts.next()?) {
            ("api", "v1") => {}
            ("apis", "coordination.k8s.io") if parts.next()? == "v1" => {}
            ("apis", "kubelet-supervisor.io") if parts.next()? == "v1alpha1" => {}
            _ => return None,
        }
        let mut parts = parts.peekable();
        let namespace = parts.next_if_eq(&"namespaces").and_then(|_| parts.next()).map(str::to_owned);
        let resource = match parts.next()? {
            "nodes" => Resource::Node,
            "configmaps" => Resource::ConfigMap,
            "events" => Resource::Event,
            "leases" => Resource::Lease,
            "pods" => Resource::Pod,
            "kubeletconfigpools" => Resource::Pool,
            _ => return None,
        };
        let name = parts.next().map(str::to_owned);
        let (status, eviction, proxy) = match parts.next() {
            None => (false, false, None),
            Some("status") if matches!(resource, Resource::Node | Resource::Pool) => (true, false, None),
            Some("eviction") if resource == Resource::Pod => (false, true, None),
            Some("proxy") if resource == Resource::Node => (false, false, Some(parts.collect::<Vec<_>>().join("/"))),
            Some(_) => return None,
        };
        Some(Target { resource, namespace, name, status, eviction, proxy })
    }

    fn key(&self, name: &str) -> Key {
        Key::new(self.resource, self.namespace.as_deref().unwrap_or_default(), name)
    }
}

/// The query parameters that matter, unescaped.
#[derive(Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    fn parse(query: &str) -> Query {
        let pair = |pair: &str| pair.split_once('=').map(|(key, value)| (key.to_owned(), unescape(value)));
        Query(query.split('&').filter_map(pair).collect())
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    pub fn is(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| value == "true" || value == "1")
    }

    /// What a field selector asks of this field; fields that nobody asks about here select everything.
    fn selected(&self, wanted: &str) -> Option<&str> {
        self.get("fieldSelector")?.split(',').find_map(|term| {
            let (field, value) = term.split_once('=')?;
            (field == wanted).then(|| value.trim_start_matches('='))
        })
    }
}

/// `%XX`, and `+` for a blank.
fn unescape(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().replace('+', " ").into_bytes();
    for part in parts {
        let (code, rest) = part.split_at(part.len().min(2));
        bytes.extend(u8::from_str_radix(code, 16).ok());
        bytes.extend(rest.replace('+', " ").bytes());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether labels are as a selector wants them: `a`, `!a`, `a=b`, `a==b` and `a!=b`, joined by commas.
fn labelled(selector: &str, labels: &Value) -> bool {
    selector.split(',').map(str::trim).filter(|term| !term.is_empty()).all(|term| {
        if let Some((label, value)) = term.split_once("!=") {
            labels[label] != *value
        } else if let Some((label, value)) = term.split_once('=') {
            labels[label] == *value.trim_start_matches('=')
        } else if let Some(label) = term.strip_prefix('!') {
            labels[label].is_null()
        } else {
            !labels[term].is_null()
        }
    })
}

/// Which objects a list or watch is about.
#[derive(Clone)]
pub struct Selection {
    pub resource: Resource,
    namespace: Option<String>,
    name: Option<String>,
    /// `spec.nodeName`.
    node: Option<String>,
    labels: Option<String>,
    /// `involvedObject.kind` and `involvedObject.name`.
    involved: [Option<String>; 2],
}

impl Selection {
    pub fn has(&self, key: &Key, object: &Value) -> bool {
        key.resource == self.resource
            && self.node.as_ref().is_none_or(|node| object["spec"]["nodeName"] == **node)
            && ["kind", "name"]
                .iter()
                .zip(&self.involved)
                .all(|(field, wanted)| wanted.as_ref().is_none_or(|wanted| object["involvedObject"][field] == **wanted))
            && self.namespace.as_ref().is_none_or(|namespace| *namespace == key.namespace)
            && self.name.as_ref().is_none_or(|name| *name == key.name)
            && self.labels.as_ref().is_none_or(|selector| labelled(selector, &object["metadata"]["labels"]))
    }
}

/// One request. `peer` is the serial number of the client's certificate, if there is one.
pub async fn answer<B: hyper::body::Body>(request: hyper::Request<B>, shared: Arc<Shared>, peer: String) -> Response {
    handle(request, shared, Some(peer)).await
}

/// The same past the log and the faults.
pub async fn answer_quietly<B: hyper::body::Body>(request: hyper::Request<B>, shared: Arc<Shared>) -> Response {
    handle(request, shared, None).await
}

async fn handle<B: hyper::body::Body>(
    request: hyper::Request<B>,
    shared: Arc<Shared>,
    peer: Option<String>,
) -> Response {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let path = parts.uri.path().to_owned();
    let raw_query = parts.uri.query().unwrap_or_default().to_owned();
    let query = Query::parse(&raw_query);
    let target = Target::parse(&path);
    let verb = match (parts.method.as_str(), &target) {
        ("GET", Some(_)) if query.is("watch") => Verb::Watch,
        ("GET", Some(target)) if target.name.is_none() => Verb::List,
        ("PATCH", _) => Verb::Patch,
        ("POST", _) => Verb::Post,
        ("PUT", _) => Verb::Put,
        ("DELETE", _) => Verb::Delete,
        _ => Verb::Get,
    };
    let header = |name| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let entry = peer.map(|peer| Request {
        method: parts.method.to_string(),
        path: path.clone(),
        query: raw_query.clone(),
        token: header(AUTHORIZATION).trim_start_matches("Bearer ").to_owned(),
        peer,
        at: Instant::now(),
        status: 0,
        body: body.clone(),
    });
    let logged = entry.map(|entry| {
        shared.change(|s| (s.log(entry), faults::take(&mut s.faults, verb, &format!("{path}?{raw_query}"))))
    });
    let (index, fault) = logged.unzip();
    let fault = fault.flatten();
    let log_status = |code| index.inspect(|index| shared.change(|s| s.log_status(*index, code)));

    let reply = |code: u16, body: &Value| {
        log_status(code);
        json_response(code, body)
    };
    match &fault {
        Some(FaultKind::Status(code)) => return with_retry_after(reply(*code, &status(*code, "scripted")), 1),
        Some(FaultKind::Throttle(seconds)) => return with_retry_after(reply(429, &status(429, "scripted")), *seconds),
        Some(FaultKind::GoneInStream) if verb != Verb::Watch => return reply(410, &status(410, "scripted")),
        Some(FaultKind::Garbage) => return reply(200, &Value::from("<html>not a Kubernetes object</html>")),
        Some(FaultKind::Answer(answer)) => {
            let (code, response) = answer.clone().response();
            log_status(code);
            return response;
        }
        Some(FaultKind::Hang) => std::future::pending().await,
        Some(FaultKind::Slow(time)) => tokio::time::sleep(*time).await,
        Some(FaultKind::CutMidLine | FaultKind::GoneInStream) | None => {}
    }
    if shared
        .read(|s| s.required_token.as_ref().is_some_and(|token| header(AUTHORIZATION) != format!("Bearer {token}")))
    {
        return reply(401, &status(401, "Unauthorized"));
    }

    let refused = shared.read(|s| access::restricted(s, &parts.headers, &path, &body));
    if let Some((code, body)) = refused.or_else(|| shared.read(|s| access::review(s, &path, &body))) {
        return reply(code, &body);
    }
    let Some(target) = target else {
        let (code, body) = shared.read(|s| outside_objects(s, &path));
        return reply(code, &body);
    };
    let selection = Selection {
        resource: target.resource,
        namespace: target.namespace.clone(),
        name: query.selected("metadata.name").or(target.name.as_deref()).map(str::to_owned),
        node: query.selected("spec.nodeName").map(str::to_owned),
        labels: query.get("labelSelector").map(str::to_owned),
        involved: ["involvedObject.kind", "involvedObject.name"].map(|field| query.selected(field).map(str::to_owned)),
    };
    if verb == Verb::Watch {
        return match watch::start(&shared, selection, &query, fault) {
            Ok(body) => {
                log_status(200);
                response(200, body)
            }
            Err(gone) => reply(410, &gone),
        };
    }
    if let (Some(path), Some(name)) = (&target.proxy, &target.name) {
        let (code, body) = shared.read(|s| kubelet(s, name, path));
        return reply(code, &body);
    }
    let dry = query.get("dryRun").is_some();
    let (code, object) = shared.change(|s| match verb {
        Verb::Post if target.eviction => evict(s, &target, &body),
        Verb::Post if dry => dry_create(s, &target, body),
        Verb::List => list(s, &selection, &query),
        _ => write_or_get(s, verb, &target, header(CONTENT_TYPE), body, dry),
    });
    let whole = reply(code, &object);
    if matches!(fault, Some(FaultKind::CutMidLine)) { cut(code, &object) } else { whole }
}

fn outside_objects(state: &State, path: &str) -> (u16, Value) {
    match path {
        "/version" => {
            let minor = if state.drop_dynamic_config { 36 } else { 20 };
            (200, json!({"major": "1", "minor": minor.to_string(), "gitVersion": format!("v1.{minor}.2")}))
        }
        "/api/v1" => {
            let eviction = json!({"name": "pods/eviction", "namespaced": true, "group": "policy",
                "version": eviction_version(state), "kind": "Eviction", "verbs": ["create"]});
            (200, json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": [eviction]}))
        }
        // The CRD is there as soon as one of its kind is.
        "/apis/kubelet-supervisor.io" if state.list(|key, _| key.resource == Resource::Pool).next().is_some() => {
            let version = json!({"groupVersion": "kubelet-supervisor.io/v1alpha1", "version": "v1alpha1"});
            (200, json!({"kind": "APIGroup", "name": "kubelet-supervisor.io", "versions": [version]}))
        }
        "/healthz" | "/livez" | "/readyz" => (200, "ok".into()),
        _ => (404, status(404, "the server could not find the requested resource")),
    }
}

/// Kubernetes 1.22 brought `policy/v1`, 1.25 took `policy/v1beta1`.
fn eviction_version(state: &State) -> &'static str {
    if state.drop_dynamic_config { "v1" } else { "v1beta1" }
}

/// Has a Pod end, as the real server does with one that runs on a node: it is gone when its kubelet says so, which is
/// for the test to do. Disruption budgets are faults of the test.
fn evict(state: &mut State, target: &Target, body: &Value) -> (u16, Value) {
    let name = target.name.as_deref().unwrap_or_default();
    let key = target.key(name);
    let version = format!("policy/{}", eviction_version(state));
    if body["kind"] != "Eviction" || body["apiVersion"] != *version {
        let kind = format!("no kind {} is registered for version {}", body["kind"], body["apiVersion"]);
        return (400, status(400, &kind));
    }
    let Some(pod) = state.get(&key) else {
        return (404, status(404, &format!("pods \"{name}\" not found")));
    };
    let wanted = &body["deleteOptions"]["preconditions"]["uid"];
    if wanted.is_string() && pod["metadata"]["uid"] != *wanted {
        return (409, status(409, "the UID in the precondition does not match the UID in record"));
    }
    let ends = json!({"metadata": {"deletionTimestamp": format!("{:.0}", jiff::Timestamp::now())}});
    if pod["metadata"]["deletionTimestamp"].is_null() {
        state.patch(&key, &ends);
    }
    (201, json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}))
}

/// What a Node's kubelet answers through the API server, if it is there.
fn kubelet(state: &State, node: &str, path: &str) -> (u16, Value) {
    match (state.node(node), state.configz.get(node)) {
        (None, _) => (404, status(404, &format!("nodes \"{node}\" not found"))),
        (_, Some(configz)) if path == "configz" => (200, json!({ "kubeletconfig": configz })),
        (_, Some(_)) => (404, status(404, "the server could not find the requested resource")),
        _ => (503, status(503, "error trying to reach service: dial tcp 127.0.0.1:10250: connect: connection refused")),
    }
}

/// What a POST would come to.
fn dry_create(state: &State, target: &Target, body: Value) -> (u16, Value) {
    let name = body["metadata"]["name"].as_str().unwrap_or_default();
    match state.get(&target.key(name)) {
        Some(_) => (409, status(409, &format!("{} \"{name}\" already exists", target.resource.plural()))),
        None => (201, body),
    }
}

/// All pages are of the first one's version as far as its watch knows: what changed since, it says once more.
fn list(state: &State, selection: &Selection, query: &Query) -> (u16, Value) {
    let limit = query.get("limit").and_then(|value| value.parse().ok()).filter(|limit| *limit > 0);
    let mut parts = query.get("continue").unwrap_or_default().splitn(3, '/');
    let version = parts.next().and_then(|version| version.parse().ok());
    let last = Key::new(selection.resource, parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    if version.is_some_and(|version| state.since(version).is_none()) {
        let message = "The provided continue parameter is too old to display a consistent list result.";
        return (410, status(410, message));
    }
    let version = version.unwrap_or_else(|| state.version()).to_string();
    let all = |key: &Key, object: &Value| *key > last && selection.has(key, object);
    let mut rest = state.list(all);
    let items: Vec<&Value> = rest.by_ref().take(limit.unwrap_or(usize::MAX)).collect();
    let mut metadata = json!({"resourceVersion": version});
    if let (Some(_), Some(last)) = (rest.next(), items.last()) {
        let field = |name: &str| last["metadata"][name].as_str().unwrap_or_default();
        metadata["continue"] = format!("{version}/{}/{}", field("namespace"), field("name")).into();
    }
    let answer = json!({"kind": format!("{}List", selection.resource.kind()), "apiVersion": selection.resource.api_version(),
        "metadata": metadata, "items": items});
    (200, answer)
}

/// A ConfigMap's data may have 1 MiB (ValidateConfigMap, pkg/apis/core/validation/validation.go, v1.20.2).
fn too_large(key: &Key, object: &Value) -> Option<(u16, Value)> {
    let data = object["data"].as_object().filter(|_| key.resource == Resource::ConfigMap)?;
    let bytes: usize = data.values().filter_map(Value::as_str).map(str::len).sum();
    let message = format!("ConfigMap \"{}\" is invalid: data: Too long: must have at most 1048576 bytes", key.name);
    (bytes > 1 << 20).then(|| (422, status(422, &message)))
}

fn write_or_get(
    state: &mut State,
    verb: Verb,
    target: &Target,
    content_type: &str,
    body: Value,
    dry_run: bool,
) -> (u16, Value) {
    let name = target.name.as_deref().or(body["metadata"]["name"].as_str()).unwrap_or_default().to_owned();
    let key = target.key(&name);
    let plural = target.resource.plural();
    let old = state.get(&key).cloned();
    if verb == Verb::Post {
        return match old {
            _ if name.is_empty() || !body.is_object() => (400, status(400, "name must be provided")),
            Some(_) => (409, status(409, &format!("{plural} \"{name}\" already exists"))),
            None => too_large(&key, &body).unwrap_or_else(|| (201, state.put(&key, body))),
        };
    }
    let Some(old) = old else {
        return (404, status(404, &format!("{plural} \"{name}\" not found")));
    };
    let wanted = match verb {
        Verb::Get => return (200, old),
        Verb::Delete => return (200, state.delete(&key).unwrap_or_default()),
        _ if !body.is_object() => return (400, status(400, "the body is not an object")),
        Verb::Put => body,
        _ => {
            let mut object = old.clone();
            match content_type {
                "application/merge-patch+json" => merge::merge(&mut object, &body),
                "application/strategic-merge-patch+json" => merge::strategic_merge(&mut object, &body),
                // Of one manager, who says all of the status each time.
                "application/apply-patch+yaml" if target.status => {
                    merge::merge(&mut object["metadata"], &body["metadata"]);
                    object["status"] = body["status"].clone();
                }
                other => return (415, status(415, &format!("{other:?} is not supported here"))),
            }
            object
        }
    };
    // A patch that does not name a version merges the current one in, so this never refuses it.
    if wanted["metadata"]["resourceVersion"].is_string() && version_of(&wanted) != version_of(&old) {
        let message = format!(
            "Operation cannot be fulfilled on {plural} \"{name}\": the object has been modified; please apply your changes to the latest version and try again"
        );
        return (409, status(409, &message));
    }
    if let Some(message) = dynamic_config_error(&wanted["status"]["config"]).filter(|_| target.status) {
        return (422, status(422, &format!("Node \"{name}\" is invalid: {message}")));
    }
    if let Some(refusal) = too_large(&key, &wanted) {
        return refusal;
    }
    // The subresource keeps to the status and the metadata, the main resource keeps off the status.
    let mut object = wanted;
    if target.status {
        object["spec"] = old["spec"].clone();
    } else if matches!(target.resource, Resource::Node | Resource::Pool) {
        object["status"] = old["status"].clone();
    }
    if dry_run {
        state.shape(&key, &mut object);
        return (200, object);
    }
    (200, state.put(&key, object))
}

/// The API's own rule for `status.config`, which a careless patch breaks by leaving out what the spec must not have.
fn dynamic_config_error(config: &Value) -> Option<String> {
    ["assigned", "active", "lastKnownGood"].into_iter().find_map(|which| {
        let source = config[which].as_object()?.get("configMap")?;
        ["namespace", "name", "kubeletConfigKey", "uid", "resourceVersion"]
            .into_iter()
            .find(|field| source[field].as_str().is_none_or(str::is_empty))
            .map(|field| {
                format!("status.config.{which}.configMap.{field}: Required value: {field} must be set in status")
            })
    })
}

fn json_response(code: u16, body: &Value) -> Response {
    // A string stands for a body that is not JSON.
    let text = body.as_str().map_or_else(|| body.to_string(), str::to_owned);
    response(code, Full::from(text).map_err(|never| match never {}).boxed())
}

pub(super) fn response(code: u16, body: Body) -> Response {
    let mut response = hyper::Response::new(body);
    *response.status_mut() = hyper::StatusCode::from_u16(code).expect("a status code");
    response.headers_mut().insert(CONTENT_TYPE, "application/json".parse().expect("a header value"));
    response
}

fn with_retry_after(mut response: Response, seconds: u32) -> Response {
    if response.status() == 429 {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

/// Announces the whole body and breaks the connection after half of it.
fn cut(code: u16, body: &Value) -> Response {
    let text = body.to_string();
    let frames =
        stream::iter([Ok(Frame::data(faults::half(&text))), Err(std::io::ErrorKind::ConnectionAborted.into())]);
    let mut response = response(code, BodyExt::boxed(StreamBody::new(frames)));
    response.headers_mut().insert(CONTENT_LENGTH, text.len().into());
    response
}
