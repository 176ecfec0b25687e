//! A layer round every request: counts it, bounds the wait for an answer's head, and keeps all of
//! them back for as long as the API server asks for (`Retry-After`). Bodies may take their time: a
//! watch is one.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::{Request, Response, StatusCode, header};
use tokio::time::{Instant, Sleep};
use tower::{BoxError, Layer, Service};

use crate::adapters::metrics::Metrics;

/// An API server that has not begun to answer by then is treated as gone.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);

/// A longer `Retry-After` is not believed.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// Makes [`Meter`]s.
#[derive(Clone, Debug)]
pub struct MeterLayer(pub Metrics);

impl<S> Layer<S> for MeterLayer {
    type Service = Meter<S>;

    fn layer(&self, inner: S) -> Meter<S> {
        Meter { inner, metrics: self.0.clone(), held_until: Arc::default(), pause: None }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Meter<S> {
    inner: S,
    metrics: Metrics,
    /// Set by an answer, taken up by the next request.
    held_until: Arc<Mutex<Option<Instant>>>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl<S, A, B> Service<Request<A>> for Meter<S>
where
    S: Service<Request<A>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if let Some(until) = self.held_until.lock().ok().and_then(|mut held| held.take()) {
            self.pause = Some(Box::pin(tokio::time::sleep_until(until)));
        }
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
            self.pause = None;
        }
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let verb = verb(&request);
        let metrics = self.metrics.clone();
        let held_until = Arc::clone(&self.held_until);
        let answer = tokio::time::timeout(HEAD_TIMEOUT, self.inner.call(request));
        Box::pin(async move {
            let answer =
                answer.await.unwrap_or_else(|_| Err(format!("no answer within {} s", HEAD_TIMEOUT.as_secs()).into()));
            let code = answer
                .as_ref()
                .map_or_else(|_| "<error>".to_owned(), |response| response.status().as_u16().to_string());
            metrics.request(verb, &code);
            if let Some(pause) = answer.as_ref().ok().and_then(retry_after)
                && let Ok(mut held) = held_until.lock()
            {
                *held = Some(Instant::now() + pause);
            }
            answer
        })
    }
}

/// What an overloaded server asks for. The real one's 429 has it in the header only, its body is
/// plain text.
fn retry_after<B>(response: &Response<B>) -> Option<Duration> {
    let overloaded = matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    let seconds = response.headers().get(header::RETRY_AFTER).filter(|_| overloaded)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
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
