//! Requests of a rollout: counted, and tried again while the API server is away.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::Request;
use kube::core::request::Request as Path;
use serde_json::Value;
use tokio::time::Instant;

use crate::api::pace::Pace;
use crate::{Context, Failure};

/// An API server that does not answer for so long ends the client; the rollout stands where it is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);
/// Pauses between two tries.
const PAUSE_FIRST: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(15);

/// The API server, as one rollout uses it.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) client: kube::Client,
    pub(crate) namespace: String,
    pub(crate) pace: Pace,
    /// Requests so far.
    count: Arc<AtomicU64>,
}

/// What became of a write.
pub(crate) enum Answer {
    /// Done; the object as it is now.
    Object(Value),
    /// The object is another one by now.
    Conflict,
    /// There is none.
    Absent,
    /// What was asked for goes on from a version that the API server no longer has.
    Expired,
    /// This API server wants no `spec.configSource`.
    NoSource,
}

impl Answer {
    /// What the API server says on its own part; none if it may say something else later, or of other things.
    fn of(error: &kube::Error) -> Option<Self> {
        let kube::Error::Api(status) = error else { return None };
        match status.code {
            404 => Some(Self::Absent),
            409 => Some(Self::Conflict),
            410 => Some(Self::Expired),
            422 if status.message.contains("configSource") => Some(Self::NoSource),
            _ => None,
        }
    }
}

impl Api {
    pub(crate) fn new(context: &Context) -> Self {
        let (client, namespace) = (context.client.clone(), context.namespace.clone());
        Self { client, namespace, pace: context.pace, count: Arc::default() }
    }

    pub(crate) fn requests(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn config_maps(&self) -> Path {
        Path::new(format!("/api/v1/namespaces/{}/configmaps", self.namespace))
    }

    /// Asks until there is an answer. `what`: such as "list nodes".
    ///
    /// # Errors
    /// The API server's refusal, or that it is away.
    pub(crate) async fn ask(
        &self,
        what: &str,
        request: Result<Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<Answer, Failure> {
        let request = request.map_err(|error| Failure::new(format!("{what}: {error}")))?;
        let begun = Instant::now();
        let mut pause = PAUSE_FIRST;
        loop {
            self.count();
            let answer = self.in_time(self.client.request::<Value>(request.clone())).await;
            if let Some(answer) = answer.as_ref().and_then(|answer| Answer::of(answer.as_ref().err()?)) {
                return Ok(answer);
            }
            let error = match answer {
                Some(Ok(object)) => return Ok(Answer::Object(object)),
                Some(Err(error)) if !may_pass(&error) || begun.elapsed() > PATIENCE => {
                    return Err(Failure::api(what, &error));
                }
                None if begun.elapsed() > PATIENCE => {
                    return Err(Failure::new(format!("{what}: the API server does not answer")));
                }
                other => other.and_then(Result::err),
            };
            let asked = match &error {
                Some(kube::Error::Api(status)) => status.details.as_ref().map(|details| details.retry_after_seconds),
                _ => None,
            };
            let asked = Duration::from_secs(u64::from(asked.unwrap_or_default().min(60)));
            tokio::time::sleep(pause.max(asked)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Asks once. None: there was no answer, and it may or may not have been done.
    pub(crate) async fn try_once(
        &self,
        what: &str,
        request: Result<Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<Option<Answer>, Failure> {
        let request = request.map_err(|error| Failure::new(format!("{what}: {error}")))?;
        self.count();
        match self.in_time(self.client.request::<Value>(request)).await {
            Some(Ok(object)) => Ok(Some(Answer::Object(object))),
            Some(Err(error)) => match Answer::of(&error) {
                None if !may_pass(&error) => Err(Failure::api(what, &error)),
                answer => Ok(answer),
            },
            None => Ok(None),
        }
    }

    pub(crate) async fn in_time<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout(self.pace.answer, future).await.ok()
    }

    /// The same, where the object must be there and nobody else writes.
    pub(crate) async fn object(
        &self,
        what: &str,
        request: Result<Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<Value, Failure> {
        match self.ask(what, request).await? {
            Answer::Object(object) => Ok(object),
            Answer::Absent => Err(Failure::new(format!("{what}: it does not exist"))),
            Answer::Conflict | Answer::Expired | Answer::NoSource => {
                Err(Failure::new(format!("{what}: somebody else writes it now; try again")))
            }
        }
    }
}

/// The API server, or the way to it, may recover from this.
pub(crate) fn may_pass(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        kube::Error::Auth(_) | kube::Error::BuildRequest(_) => false,
        _ => true,
    }
}
