//! The client of every command: how often it asks, and what it says when the API server refuses.

use std::time::Duration;

use hyper::Request;
use kube::api::GetParams;
use kube::core::Status;
use kube::core::request::Request as Path;
use serde_json::Value;
use tokio::time::Instant;

use crate::failure::Failure;
use kubelet_config::assignment::is_object_name;
use kubelet_config::reported::with_causes;

/// Pauses between two tries.
const PAUSE_FIRST: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(15);

/// A request as `kube::core::request::Request` builds it.
pub(crate) type RequestResult = Result<Request<Vec<u8>>, kube::core::request::Error>;

/// A name, if it can be one.
pub(crate) fn segment<'a>(name: &'a str, what: &str) -> Result<&'a str, kube::core::request::Error> {
    is_object_name(name).then_some(name).ok_or_else(|| {
        kube::core::request::Error::Validation(format!(
            "{name:?} cannot be the name of a {what}: a-z, 0-9, - and ., at most 253"
        ))
    })
}

/// The path of a namespace's ConfigMaps, if that can be a namespace.
pub(crate) fn config_maps(namespace: &str) -> Result<Path, kube::core::request::Error> {
    segment(namespace, "namespace").map(|namespace| Path::new(format!("/api/v1/namespaces/{namespace}/configmaps")))
}

/// How long a command tries a request again, and waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryPolicy {
    /// For so long a request is tried again while the API server, or the way to it, may recover; zero: it is sent once.
    pub(crate) total: Duration,
    /// One answer takes no longer.
    pub(crate) answer: Duration,
    /// Objects of one page of a list; a Node of a busy cluster takes about 20 KB.
    pub(crate) page: u32,
}

impl RetryPolicy {
    /// Of a command that somebody waits for: each request is sent once.
    pub(crate) const ONCE: Self = Self { total: Duration::ZERO, answer: Duration::MAX, page: 500 };

    /// Of a command that goes on for hours.
    pub(crate) fn long(answer: Duration) -> Self {
        Self { total: Duration::from_secs(600), answer, page: 100 }
    }
}

/// A connection to the API server.
#[derive(Clone)]
pub(crate) struct Client {
    kube: kube::Client,
    /// Of ConfigMaps, and of labels that name none.
    pub(crate) namespace: String,
    pub(crate) retry_policy: RetryPolicy,
}

/// Why a request was not done.
#[derive(Debug)]
pub(crate) struct ApiError {
    /// What was tried, such as "list nodes".
    what: String,
    cause: Cause,
}

#[derive(Debug)]
enum Cause {
    Kube(kube::Error),
    NoAnswer,
    Other(String),
}

impl Client {
    pub(crate) fn new(kube: kube::Client, namespace: &str, retry_policy: RetryPolicy) -> Self {
        Self { kube, namespace: namespace.to_owned(), retry_policy }
    }

    /// The same, for what is read: that is tried again for as long as an API server takes to recover.
    pub(crate) fn for_reading(&self) -> Self {
        Self { retry_policy: RetryPolicy::long(self.retry_policy.answer), ..self.clone() }
    }

    /// Sends a request once, whatever comes of it. `what`: such as "list nodes".
    pub(crate) async fn once(&self, what: &str, request: RequestResult) -> Result<Value, ApiError> {
        let request = request.map_err(|error| ApiError::new(what, error.to_string()))?;
        self.send(what, request).await
    }

    /// Sends a request until there is an answer, or the time of the policy is over.
    pub(crate) async fn request(&self, what: &str, request: RequestResult) -> Result<Value, ApiError> {
        let request = request.map_err(|error| ApiError::new(what, error.to_string()))?;
        let RetryPolicy { total, .. } = self.retry_policy;
        let begun = Instant::now();
        let mut pause = PAUSE_FIRST;
        loop {
            match self.send(what, request.clone()).await {
                Err(error) if error.may_pass() && !total.is_zero() && begun.elapsed() <= total => {
                    tokio::time::sleep(pause.max(error.retry_after())).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                result => return result,
            }
        }
    }

    /// The same for what need not be there.
    pub(crate) async fn optional(&self, what: &str, request: RequestResult) -> Result<Option<Value>, ApiError> {
        match self.request(what, request).await {
            Err(error) if error.is_absent() => Ok(None),
            result => result.map(Some),
        }
    }

    /// A ConfigMap as it is; there may be none (404).
    pub(crate) async fn config_map(&self, namespace: &str, name: &str) -> Result<Value, ApiError> {
        let name_of_it = segment(name, "ConfigMap");
        let request = name_of_it.and_then(|name| config_maps(namespace)?.get(name, &GetParams::default()));
        self.request(&format!("get ConfigMap {namespace}/{name}"), request).await
    }

    async fn send(&self, what: &str, request: Request<Vec<u8>>) -> Result<Value, ApiError> {
        let what = what.to_owned();
        match tokio::time::timeout(self.retry_policy.answer, self.kube.request(request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(ApiError { what, cause: Cause::Kube(error) }),
            Err(_) => Err(ApiError { what, cause: Cause::NoAnswer }),
        }
    }

    /// For a watch, which has no end of its own.
    pub(crate) fn streaming(&self) -> &kube::Client {
        &self.kube
    }
}

impl ApiError {
    /// One that the API server did not say itself.
    pub(crate) fn new(what: &str, message: impl Into<String>) -> Self {
        Self { what: what.to_owned(), cause: Cause::Other(message.into()) }
    }

    /// Nobody answered in time.
    pub(crate) fn no_answer(what: &str) -> Self {
        Self { what: what.to_owned(), cause: Cause::NoAnswer }
    }

    pub(crate) fn from_kube(what: &str, error: kube::Error) -> Self {
        Self { what: what.to_owned(), cause: Cause::Kube(error) }
    }

    /// What the API server says, if it says anything.
    pub(crate) fn status(&self) -> Option<&Status> {
        match &self.cause {
            Cause::Kube(kube::Error::Api(status)) => Some(status),
            _ => None,
        }
    }

    /// The HTTP status; 0: there is none.
    pub(crate) fn code(&self) -> u16 {
        self.status().map_or(0, |status| status.code)
    }

    /// There is no such object.
    pub(crate) fn is_absent(&self) -> bool {
        self.code() == 404
    }

    /// The object is another one by now.
    pub(crate) fn is_conflict(&self) -> bool {
        self.code() == 409
    }

    /// This API server wants no `spec.configSource`.
    pub(crate) fn refuses_source(&self) -> bool {
        self.status().is_some_and(|status| status.code == 422 && status.message.contains("configSource"))
    }

    /// The API server, or the way to it, may recover from this. What was asked for may or may not have been done.
    pub(crate) fn may_pass(&self) -> bool {
        match &self.cause {
            Cause::Kube(kube::Error::Api(status)) => status.code == 429 || status.code >= 500,
            Cause::Kube(kube::Error::Auth(_) | kube::Error::BuildRequest(_)) | Cause::Other(_) => false,
            Cause::Kube(_) | Cause::NoAnswer => true,
        }
    }

    /// No request was sent: the credentials cannot be had.
    pub(crate) fn is_auth(&self) -> bool {
        matches!(&self.cause, Cause::Kube(kube::Error::Auth(_)))
    }

    /// The pause that the API server asks for.
    fn retry_after(&self) -> Duration {
        let details = self.status().and_then(|status| status.details.as_ref());
        Duration::from_secs(u64::from(details.map_or(0, |details| details.retry_after_seconds).min(60)))
    }

    /// Why, without what was tried.
    pub(crate) fn cause(&self) -> String {
        match &self.cause {
            Cause::Kube(kube::Error::Api(status)) if status.code == 401 => LOG_IN.to_owned(),
            Cause::Kube(kube::Error::Api(status)) => format!("{} ({})", status.message, status.code),
            Cause::Kube(error) => unanswered(error),
            Cause::NoAnswer => NO_ANSWER.to_owned(),
            Cause::Other(message) => message.clone(),
        }
    }
}

impl From<ApiError> for Failure {
    fn from(ApiError { what, cause }: ApiError) -> Self {
        match cause {
            Cause::Kube(error) => Self::api(&what, &error),
            Cause::NoAnswer => Self::new(format!("{what}: {NO_ANSWER}")),
            Cause::Other(message) => Self::new(format!("{what}: {message}")),
        }
    }
}

const NO_ANSWER: &str = "the API server does not answer";
const LOG_IN: &str = "the API server does not know your credential: log in again, or choose another --context";

impl Failure {
    /// What the API server answered to an attempt to do `what`, such as "list nodes".
    fn api(what: &str, error: &kube::Error) -> Self {
        let message = match error {
            kube::Error::Api(status) if status.code == 403 => format!(
                "you have no right to {what} ({}); somebody with cluster-admin can grant it, \
                 `kubectl kubelet-config doctor` says which rules are missing",
                status.message
            ),
            kube::Error::Api(status) if status.code == 401 => LOG_IN.replacen(':', &format!(" ({what}):"), 1),
            kube::Error::Api(status) if status.code == 404 => format!("{what}: {}", status.message),
            kube::Error::Api(status) => format!("{what}: {} ({})", status.message, status.code),
            other => format!("{what}: {}", unanswered(other)),
        };
        Self::new(message)
    }
}

/// Why the API server said nothing at all.
fn unanswered(error: &kube::Error) -> String {
    let why = with_causes(error);
    if !matches!(error, kube::Error::Service(_) | kube::Error::HyperError(_)) {
        return why;
    }
    // The layers that it went through mean nothing to who reads it.
    let layers = ["ServiceError: ", "HyperError: "];
    let why = layers.iter().fold(why.as_str(), |why, layer| why.strip_prefix(layer).unwrap_or(why));
    // Others are of the log-in, or of the connection in its midst.
    let Some(why) = why.strip_prefix("client error (Connect): ") else { return why.to_owned() };
    format!(
        "the API server cannot be reached: {why}; `kubectl config view --minify` shows which one it is, --context chooses another"
    )
}
