//! A layer round every request: counts it, bounds the wait for response headers, and keeps all of
//! them back for as long as the API server asks for (`Retry-After`), or for as long as there were too many. Bodies may take
//! their time: a watch is one; what is read of them is limited. What may be the credentials' fault it signals, and errors name
//! the kubeconfig's fields.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Body, Bytes};
use hyper::{Request, Response, StatusCode, header};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};
use tower::{BoxError, Layer, Service};

use super::credentials::CredentialOrigin;
use super::rate_limiter::RateLimiter;
use crate::adapters::metrics::Metrics;
use kubelet_config::reported;

/// An API server whose response headers are not there by then is treated as gone.
const RESPONSE_HEADER_TIMEOUT: Duration = Duration::from_secs(15);

/// A longer `Retry-After` is not believed.
pub(super) const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// Requests have this pace (kubeAPIQPS 5 of kubelets before 1.27) after a burst of [`REQUEST_BURST`] (that of those since), which no node in its senses
/// uses up: an API server that ends each watch at once, or has one page more of each list, is not asked without end.
const REQUEST_INTERVAL: Duration = Duration::from_millis(200);
/// See [`REQUEST_INTERVAL`].
const REQUEST_BURST: u32 = 100;

/// Bytes of an answer with one object. etcd takes 1.5 MiB of it; JSON may spell a byte with six.
const OBJECT_BYTES: usize = 8 << 20;

/// Bytes of a list of pods.
const LIST_BYTES: usize = 64 << 20;

/// Bytes of all that one watch tells in its two minutes. It may be one line, which is kept whole, twice while it grows.
const WATCH_BYTES: usize = 32 << 20;

/// Goes round the requests of a client; one for each client.
#[derive(Clone, Debug)]
pub struct ClientLayer {
    metrics: Metrics,
    signals: Arc<ClientSignals>,
    origin: CredentialOrigin,
}

/// What answers say that is of no single request.
#[derive(Debug, Default)]
pub struct ClientSignals {
    refused: AtomicBool,
    failed: Notify,
    held_until: Mutex<Option<Instant>>,
}

impl ClientSignals {
    /// Waits for the next request that fails in a way that other credentials may mend. Cancel-safe; one that failed meanwhile
    /// counts.
    pub(crate) async fn auth_failure(&self) {
        self.failed.notified().await;
    }

    /// The API server has asked for no more requests until then.
    pub(crate) fn held_until(&self) -> Option<Instant> {
        self.held_until.lock().filter(|until| *until > Instant::now())
    }

    fn hold(&self, pause: Duration) {
        *self.held_until.lock() = Some(Instant::now() + pause);
    }

    /// True once the API server has answered 401.
    pub fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }
}

impl ClientLayer {
    /// Requests are counted in `metrics`.
    #[must_use]
    pub fn new(metrics: Metrics) -> Self {
        Self { metrics, signals: Arc::default(), origin: CredentialOrigin::default() }
    }

    /// Errors name this.
    pub(crate) fn with_origin(self, origin: CredentialOrigin) -> Self {
        Self { origin, ..self }
    }

    /// Of the requests of this layer's client.
    pub(crate) fn signals(&self) -> Arc<ClientSignals> {
        Arc::clone(&self.signals)
    }
}

impl<S> Layer<S> for ClientLayer {
    type Service = ClientService<S>;

    fn layer(&self, inner: S) -> ClientService<S> {
        let limiter = RateLimiter::new(REQUEST_INTERVAL, REQUEST_BURST);
        ClientService { inner, layer: self.clone(), limiter, pause: None }
    }
}

/// The service that [`ClientLayer`] makes.
#[derive(Debug)]
pub struct ClientService<S> {
    inner: S,
    layer: ClientLayer,
    limiter: RateLimiter,
    pause: Option<Pin<Box<Sleep>>>,
}

impl<S, A, B> Service<Request<A>> for ClientService<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<UnsyncBoxBody<Bytes, BoxError>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let held = self.layer.signals.held_until();
        let paced = Some(self.limiter.next_at()).filter(|at| self.pause.is_none() && *at > Instant::now());
        if let Some(until) = held.max(paced) {
            self.pause = Some(Box::pin(tokio::time::sleep_until(until)));
        }
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
            self.pause = None;
        }
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let verb = verb(&request);
        let limit = body_limit(&request);
        let what = format!("{} {}", request.method(), request.uri().path());
        self.limiter.consume();
        let ClientLayer { metrics, signals, origin } = self.layer.clone();
        let answer = tokio::time::timeout(RESPONSE_HEADER_TIMEOUT, self.inner.call(request));
        Box::pin(async move {
            let answer = match answer.await {
                Ok(answer) => answer.map_err(Into::into),
                Err(_) => Err(BoxError::from(format!("no answer within {} s", RESPONSE_HEADER_TIMEOUT.as_secs()))),
            };
            let code = answer
                .as_ref()
                .map_or_else(|_| "<error>".to_owned(), |response| response.status().as_u16().to_string());
            metrics.request(verb, &code);
            let refused = answer.as_ref().is_ok_and(|response| response.status() == StatusCode::UNAUTHORIZED);
            if refused {
                signals.refused.store(true, Ordering::Relaxed);
            }
            if refused || answer.is_err() {
                signals.failed.notify_one();
            }
            if let Some(pause) = answer.as_ref().ok().and_then(retry_after) {
                signals.hold(pause);
            }
            answer.map(|answer| answer.map(|body| limited(body, limit, what))).map_err(|error| explain(error, &origin))
        })
    }
}

/// TLS errors with the kubeconfig's fields. rustls' own (v0.23) have names for what happened, not for what to look at.
fn explain(error: BoxError, origin: &CredentialOrigin) -> BoxError {
    let message = reported::error_chain(error.as_ref());
    let CredentialOrigin { kubeconfig, server, authority, user, .. } = origin;
    let authority = if authority.is_empty() { "the system's certificate authorities" } else { authority };
    let about = |part: &str| message.contains(part);
    let meaning = if about("UnknownIssuer") || about("BadSignature") {
        format!("{authority} of {kubeconfig} did not issue the certificate that {server} shows")
    } else if about("not valid for name") || about("NotValidForName") {
        format!("the certificate of {server} is for other names; see server and tls-server-name in {kubeconfig}")
    } else if about("invalid peer certificate: certificate expired") || about("certificate not valid yet") {
        format!("the certificate of the API server {server} is out of date, or the clock of this node is wrong")
    } else if about("received fatal alert") && !user.is_empty() {
        format!("{server} does not accept {user} of {kubeconfig}")
    } else {
        return error;
    };
    format!("{meaning} ({message})").into()
}

/// What an overloaded server asks for. The real one's 429 has it in the header only, its body is
/// plain text.
fn retry_after<B>(response: &Response<B>) -> Option<Duration> {
    let overloaded = matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    let seconds = response.headers().get(header::RETRY_AFTER).filter(|_| overloaded)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

/// How many bytes are read of its answer.
fn body_limit<A>(request: &Request<A>) -> usize {
    match request.uri().path() {
        _ if verb(request) == "watch" => WATCH_BYTES,
        path if path.ends_with("/pods") => LIST_BYTES,
        _ => OBJECT_BYTES,
    }
}

fn limited<B>(body: B, limit: usize, request: String) -> UnsyncBoxBody<Bytes, BoxError>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let explained = move |error: BoxError| {
        if !error.is::<LengthLimitError>() {
            return error;
        }
        let limit = limit >> 20;
        let advice = "check what the API server or a proxy in front of it sends";
        format!("{request}: the answer exceeds {limit} MiB and was dropped; {advice}").into()
    };
    Limited::new(body, limit).map_err(explained).boxed_unsync()
}

fn verb<A>(request: &Request<A>) -> &'static str {
    let watch = request.uri().query().is_some_and(|query| query.split('&').any(|part| part == "watch=true"));
    match request.method().as_str() {
        "GET" if watch => "watch",
        "GET" => "get",
        "PATCH" => "patch",
        "POST" => "post",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    #[tokio::test]
    async fn no_more_is_read_than_an_answer_may_have() {
        let read = async |text: &'static str| limited(Full::from(text), 4, "GET /x".to_owned()).collect().await;
        assert_eq!(read("abcd").await.unwrap().to_bytes(), "abcd");
        let error = read("abcde").await.unwrap_err().to_string();
        assert!(error.starts_with("GET /x: the answer exceeds 0 MiB and was dropped"), "{error}");
    }

    #[test]
    fn tls_errors_name_field_and_file() {
        let origin = CredentialOrigin {
            kubeconfig: "/etc/k.conf".to_owned(),
            server: "https://api:6443".to_owned(),
            authority: "certificate-authority /etc/ca.crt".to_owned(),
            user: "client-certificate /var/c.pem".to_owned(),
            key: String::new(),
        };
        for (error, message) in [
            (
                "invalid peer certificate: UnknownIssuer",
                "certificate-authority /etc/ca.crt of /etc/k.conf did not issue",
            ),
            ("invalid peer certificate: BadSignature", "did not issue the certificate that https://api:6443 shows"),
            (
                "invalid peer certificate: certificate not valid for name \"x\"; certificate is only valid for y",
                "tls-server-name in /etc/k.conf",
            ),
            (
                "invalid peer certificate: certificate expired: verification time 9 (UNIX)",
                "https://api:6443 is out of date",
            ),
            ("received fatal alert: BadCertificate", "does not accept client-certificate /var/c.pem of /etc/k.conf"),
        ] {
            let said = explain(error.into(), &origin).to_string();
            assert!(said.contains(message) && said.ends_with(&format!("({error})")), "{said}");
        }
        assert_eq!(explain("connection refused".into(), &origin).to_string(), "connection refused");
    }
}
