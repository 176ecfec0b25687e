//! Two small servers: `/metrics`, `/healthz`, `/readyz` on loopback, `/status` on a socket.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;

use serde_json::Value;

use super::metrics::Metrics;

/// More than a scraper, a probe and a few people need.
const CONNECTIONS: usize = 16;
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// What the servers show. Written by the daemon, read by connections.
#[derive(Clone, Debug)]
pub struct Pages {
    /// The metrics.
    pub metrics: Metrics,
    /// The state, as of the latest step.
    pub shown: Arc<RwLock<Shown>>,
    /// Bounds the connections.
    pub slots: Arc<Semaphore>,
}

/// See [`Pages`].
#[derive(Clone, Debug, Default)]
pub struct Shown {
    /// The kubelet said READY=1 and runs.
    pub ready: bool,
    /// One line.
    pub summary: String,
    /// The document of `status -o json`.
    pub status: Value,
    /// Since when the trial's clock has been counting down in `status`, if it has.
    pub counting: Option<Instant>,
}

impl Shown {
    /// The status as of now: the document is made at each step, and a trial may pass without one.
    fn status_now(mut self) -> String {
        if let (Some(since), Some(left)) = (self.counting, self.status.pointer_mut("/trial/remainingSeconds"))
            && let Some(seconds) = left.as_u64()
        {
            *left = seconds.saturating_sub(since.elapsed().as_secs()).into();
        }
        self.status.to_string()
    }
}

impl Pages {
    /// Nothing shown yet.
    #[must_use]
    pub fn new(metrics: Metrics) -> Self {
        Self { metrics, shown: Arc::default(), slots: Arc::new(Semaphore::new(CONNECTIONS)) }
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let shown = self.shown.read().map(|shown| shown.clone()).unwrap_or_default();
        let (code, kind, body) = match (request.method(), request.uri().path()) {
            (&Method::GET, "/metrics") => {
                (StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", self.metrics.text())
            }
            // The loop runs on the same thread: an answer is the proof.
            (&Method::GET, "/healthz") => (StatusCode::OK, "text/plain", "ok\n".to_owned()),
            (&Method::GET, "/readyz") => {
                let code = if shown.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
                (code, "text/plain", format!("{}\n", shown.summary))
            }
            (&Method::GET, "/status") => (StatusCode::OK, "application/json", shown.status_now()),
            (&Method::GET, _) => {
                (StatusCode::NOT_FOUND, "text/plain", "try /metrics, /healthz or /readyz\n".to_owned())
            }
            _ => (StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET\n".to_owned()),
        };
        let response = Response::builder().status(code).header("content-type", kind);
        response.body(Full::from(body)).unwrap_or_default()
    }

    fn serve(&self, stream: impl AsyncRead + AsyncWrite + Unpin + 'static + Send) {
        let Ok(slot) = self.slots.clone().try_acquire_owned() else { return };
        let pages = self.clone();
        tokio::spawn(async move {
            let _slot = slot;
            let service = service_fn(move |request| {
                let response = pages.answer(&request);
                async move { Ok::<_, Infallible>(response) }
            });
            // A client that goes away is its own affair.
            let _ = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

/// Serves on TCP for ever.
///
/// # Errors
/// If the address cannot be bound.
pub async fn serve_tcp(address: SocketAddr, pages: Pages) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => pages.serve(stream),
                // Out of descriptors, mostly: give others time to close theirs.
                Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
            }
        }
    });
    Ok(())
}

/// Serves on a socket that only root can open, for ever.
///
/// # Errors
/// If it cannot be made.
pub fn serve_unix(path: &Path, pages: Pages) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => pages.serve(stream),
                Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
            }
        }
    });
    Ok(())
}
