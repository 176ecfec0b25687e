//! An API server of a few lines behind a paused clock: which questions are asked, and when.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use futures_util::future::{BoxFuture, ready};
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Bytes;
use hyper::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

/// What may be done, what there is, what was asked.
#[derive(Debug, Default)]
struct World {
    may_watch: bool,
    may_get: bool,
    version: Option<u64>,
    /// Laid over what the next lists give, the last first.
    lies: Vec<Value>,
    asked: Vec<&'static str>,
}

#[derive(Clone, Default)]
struct Server(Arc<Mutex<World>>);

impl Server {
    fn set(&self, change: impl FnOnce(&mut World)) {
        change(&mut self.0.lock().unwrap());
    }

    /// What was asked since the last time.
    fn asked(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.lock().unwrap().asked)
    }

    fn watch(&self) -> ConfigMapWatch {
        ConfigMapWatch::new(Api::namespaced(kube::Client::new(self.clone(), "n"), "n"), "m")
    }
}

fn refusal(code: u16) -> (u16, Value) {
    (code, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "scripted", "code": code}))
}

impl tower::Service<Request<Body>> for Server {
    type Response = Response<UnsyncBoxBody<Bytes, Infallible>>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let mut world = self.0.lock().unwrap();
        let query = request.uri().query().unwrap_or_default().to_owned();
        let accept = request.headers().get("accept").and_then(|it| it.to_str().ok()).unwrap_or_default().to_owned();
        let what = match request.uri().path() {
            path if path.ends_with("/configmaps/m") && accept.contains("PartialObjectMetadata") => "metadata",
            path if path.ends_with("/configmaps/m") => "get",
            _ if query.contains("watch=true") => "watch",
            _ => "list",
        };
        world.asked.push(what);
        let object = world.version.map(|version| {
            json!({"metadata": {"name": "m", "namespace": "n", "uid": "u", "resourceVersion": version.to_string()}})
        });
        let (code, body) = match (what, object) {
            ("list", object) if world.may_watch => {
                let mut items: Vec<Value> = object.into_iter().collect();
                if let (Some(item), Some(lie)) = (items.first_mut(), world.lies.pop()) {
                    testkit::api_server::merge(item, &lie);
                }
                (200, json!({"metadata": {"resourceVersion": "9"}, "items": items}))
            }
            ("metadata" | "get", _) if !world.may_get => refusal(403),
            ("metadata" | "get", Some(object)) => (200, object),
            ("metadata" | "get", None) => refusal(404),
            ("watch", _) if world.may_watch => {
                let silence = StreamBody::new(stream::pending()).boxed_unsync();
                return Box::pin(ready(Ok(Response::new(silence))));
            }
            _ => refusal(403),
        };
        let body = Full::new(Bytes::from(body.to_string())).boxed_unsync();
        Box::pin(ready(Ok(Response::builder().status(code).body(body).unwrap())))
    }
}

async fn version(watch: &mut ConfigMapWatch) -> String {
    match watch.next().await {
        WatchEvent::Object(map) => map.metadata.resource_version.unwrap(),
        WatchEvent::Absent => "absent".to_owned(),
        WatchEvent::Failed { code, .. } => format!("{code:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn where_watching_is_forbidden_it_asks_for_the_metadata() {
    let server = Server::default();
    server.set(|world| (world.may_get, world.version) = (true, Some(1)));
    let mut watch = server.watch();
    let begin = Instant::now();
    assert_eq!(version(&mut watch).await, "1");
    assert_eq!((server.asked(), begin.elapsed()), (vec!["list", "get"], Duration::ZERO), "at once");

    // An hour in which nothing changes: nothing is told, and little is asked.
    let event = tokio::time::timeout(Duration::from_secs(3600), watch.next()).await;
    assert!(event.is_err());
    let asked = server.asked();
    let count = |what: &str| asked.iter().filter(|it| **it == what).count();
    assert!((25..=80).contains(&count("metadata")), "{asked:?}");
    assert!((5..=16).contains(&count("list")), "the watch is tried again, ever more seldom: {asked:?}");
    assert_eq!(count("get"), 0, "{asked:?}");

    server.set(|world| world.version = Some(2));
    let begin = Instant::now();
    assert_eq!(version(&mut watch).await, "2");
    assert!(begin.elapsed() <= Duration::from_secs(121), "{:?}", begin.elapsed());

    server.set(|world| world.version = None);
    assert_eq!(version(&mut watch).await, "absent");
    server.set(|world| world.version = Some(3));
    assert_eq!(version(&mut watch).await, "3");
}

#[tokio::test(start_paused = true)]
async fn the_right_to_watch_is_found() {
    let server = Server::default();
    server.set(|world| (world.may_get, world.version) = (true, Some(1)));
    let mut watch = server.watch();
    assert_eq!(version(&mut watch).await, "1");
    server.set(|world| world.may_watch = true);
    let begin = Instant::now();
    assert_eq!(version(&mut watch).await, "1", "as any new list");
    assert!(begin.elapsed() <= Duration::from_secs(3), "right after an assignment it may be a matter of milliseconds");
    let event = tokio::time::timeout(Duration::from_secs(600), watch.next()).await;
    assert!(event.is_err());
    assert_eq!(server.asked().last(), Some(&"watch"));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_both_is_reported_and_tried_again() {
    let server = Server::default();
    let mut watch = server.watch();
    for _ in 0..5 {
        assert_eq!(version(&mut watch).await, "Some(403)");
    }
    server.set(|world| (world.may_watch, world.version) = (true, Some(7)));
    assert_eq!(version(&mut watch).await, "7");
}

#[tokio::test(start_paused = true)]
async fn a_question_that_others_interrupt_is_asked_once() {
    let server = Server::default();
    server.set(|world| (world.may_get, world.version) = (true, Some(1)));
    let mut watch = server.watch();
    assert_eq!(version(&mut watch).await, "1");
    server.asked();
    // The session's loop drops and takes up `next` with every input it gets.
    for _ in 0..10_000 {
        let _ = tokio::time::timeout(Duration::from_millis(10), watch.next()).await;
    }
    let asked = server.asked();
    assert!(asked.len() < 20, "100 s: {asked:?}");
}

/// The stream that gave it says nothing more: the object does not change.
#[tokio::test(start_paused = true)]
async fn after_a_wrong_object_the_true_one_is_asked_for() {
    let server = Server::default();
    let other = json!({"metadata": {"name": "x"}});
    server.set(|world| (world.may_watch, world.version, world.lies) = (true, Some(1), vec![other]));
    let mut watch = server.watch();
    assert_eq!(version(&mut watch).await, "None", "a failure");
    assert_eq!(version(&mut watch).await, "1");

    let nowhere = json!({"metadata": {"uid": null}});
    server.set(|world| world.lies = vec![nowhere; 8]);
    let mut watch = server.watch();
    server.asked();
    let begin = Instant::now();
    for _ in 0..8 {
        assert!(matches!(watch.next().await, WatchEvent::Object(map) if fault_of(&map).is_some()));
    }
    let pauses = begin.elapsed();
    assert!(pauses >= Duration::from_secs(100), "ever more seldom: {pauses:?}");
    assert!(matches!(watch.next().await, WatchEvent::Object(map) if fault_of(&map).is_none()));
    let event = tokio::time::timeout(Duration::from_secs(3600), watch.next()).await;
    assert!(event.is_err(), "and once is enough");
    assert_eq!(server.asked().iter().filter(|it| **it == "list").count(), 9);
}
