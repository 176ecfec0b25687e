//! A small HTTP server: `/metrics`, `/healthz`, `/readyz`, for whoever can reach it.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;

use crate::slots::Slots;

/// What is sent back.
pub type Answer = Response<Full<Bytes>>;

/// How long a client may take to say what it wants.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection may live, which is for one request: whoever does not read its answer keeps no slot. An operator's command
/// takes 20 s at the most.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Whether probes are to find it ready, and a line that says why.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    /// 200, or 503.
    pub is_ready: bool,
    /// One line.
    pub summary: String,
}

/// The address of a listener; empty turns it off.
///
/// # Errors
/// What an address looks like.
pub fn address(text: &str) -> Result<Option<SocketAddr>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| format!("{text:?} is not ADDRESS:PORT, such as 127.0.0.1:10246 or [::1]:10246"))
}

/// An answer of this type of content.
#[must_use]
pub fn response(code: StatusCode, kind: &str, body: String) -> Answer {
    let response = Response::builder().status(code).header("content-type", kind);
    response.body(Full::from(body)).unwrap_or_default()
}

/// What everybody may ask for. `open_metrics`: the metrics in that format.
pub fn answer(request: &Request<Incoming>, readiness: &Readiness, open_metrics: impl FnOnce() -> String) -> Answer {
    let text = |code, text: String| response(code, "text/plain", text);
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => {
            let accept = request.headers().get_all("accept").iter().filter_map(|value| value.to_str().ok());
            if crate::text::prefers_open_metrics(&accept.collect::<Vec<_>>().join(",")) {
                let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                response(StatusCode::OK, kind, open_metrics())
            } else {
                let body = crate::text::older(&open_metrics());
                response(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", body)
            }
        }
        // What is asked about runs on the same thread: an answer is the proof.
        (&Method::GET, "/healthz") => text(StatusCode::OK, "ok\n".to_owned()),
        (&Method::GET, "/readyz") => {
            let code = if readiness.is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            text(code, format!("{}\n", readiness.summary))
        }
        (&Method::GET, _) => text(StatusCode::NOT_FOUND, "try /metrics, /healthz or /readyz\n".to_owned()),
        _ => text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n".to_owned()),
    }
}

/// Serves a connection, if there is a slot for one more; a peer's has one.
pub fn serve<F>(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static + Send,
    peer: Option<IpAddr>,
    slots: &Slots,
    answer: impl Fn(Request<Incoming>) -> F + Send + 'static,
) where
    F: Future<Output = Answer> + Send + 'static,
{
    let Some(slot) = slots.take(peer) else { return };
    let number = slot.number();
    let task = tokio::spawn(async move {
        let _slot = slot;
        let service = service_fn(move |request: Request<Incoming>| {
            let answer = answer(request);
            async move { Ok::<_, Infallible>(answer.await) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), service);
        // A client that goes away is its own affair.
        let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
    });
    slots.served_by(number, task.abort_handle());
}

/// Each connection, for ever.
pub async fn accept(listener: TcpListener, serve: impl Fn(tokio::net::TcpStream, IpAddr)) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => serve(stream, peer.ip()),
            // Out of descriptors, mostly: give others time to close theirs.
            Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
        }
    }
}
