//! A layer round every request: counts it, and bounds the wait for an answer's head. Bodies may
//! take their time: a watch is one.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::{Request, Response};
use tower::{BoxError, Layer, Service};

use crate::adapters::metrics::Metrics;

/// An API server that has not begun to answer by then is treated as gone.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);

/// Makes [`Meter`]s.
#[derive(Clone, Debug)]
pub struct MeterLayer(pub Metrics);

impl<S> Layer<S> for MeterLayer {
    type Service = Meter<S>;

    fn layer(&self, inner: S) -> Meter<S> {
        Meter { inner, metrics: self.0.clone() }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Meter<S> {
    inner: S,
    metrics: Metrics,
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
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let verb = verb(&request);
        let metrics = self.metrics.clone();
        let answer = tokio::time::timeout(HEAD_TIMEOUT, self.inner.call(request));
        Box::pin(async move {
            let answer =
                answer.await.unwrap_or_else(|_| Err(format!("no answer within {} s", HEAD_TIMEOUT.as_secs()).into()));
            let code = answer
                .as_ref()
                .map_or_else(|_| "<error>".to_owned(), |response| response.status().as_u16().to_string());
            metrics.request(verb, &code);
            answer
        })
    }
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
