//! The client of every command, and what it says when the API server refuses.

use std::time::Duration;

use hyper::Request;
use kube::api::GetParams;
use kube::core::Status;
use kube::core::request::Request as Path;
use serde_json::Value;

use crate::failure::Failure;
use kubelet_config::assignment::is_object_name;
use kubelet_config::reported::with_causes;

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

/// A connection to the API server.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) kube: kube::Client,
    /// Of ConfigMaps, and of labels that name none.
    pub(crate) namespace: String,
    /// One answer takes no longer.
    pub(crate) answer: Duration,
    /// Objects of one page of a list; a Node of a busy cluster takes about 20 KB.
    pub(crate) page: u32,
    /// For so long the list that a watch begins with is tried again; zero: somebody waits for it.
    pub(crate) patience: Duration,
    /// Whose fields it writes, in `metadata.managedFields`.
    pub(crate) manager: &'static str,
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
    Other(String),
}

impl Client {
    /// Of a command that somebody waits for.
    pub(crate) fn new(kube: kube::Client, namespace: &str) -> Self {
        Self {
            kube,
            namespace: namespace.to_owned(),
            answer: Duration::MAX,
            page: 500,
            patience: Duration::ZERO,
            manager: "kubectl-kubelet_config",
        }
    }

    /// The same for a watch that goes on for hours.
    pub(crate) fn for_reading(&self) -> Self {
        Self { patience: Duration::from_secs(600), ..self.clone() }
    }

    /// Sends a request. `what`: such as "list nodes".
    pub(crate) async fn request(&self, what: &str, request: RequestResult) -> Result<Value, ApiError> {
        let request = request.map_err(|error| ApiError::new(what, error.to_string()))?;
        let answer = tokio::time::timeout(self.answer, self.kube.request(request)).await;
        let no_answer = |_| kube::Error::Service("the API server does not answer".into());
        answer.map_err(no_answer).flatten().map_err(|error| ApiError::from_kube(what, error))
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
}

impl ApiError {
    /// One that the API server did not say itself.
    pub(crate) fn new(what: &str, message: impl Into<String>) -> Self {
        Self { what: what.to_owned(), cause: Cause::Other(message.into()) }
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
            Cause::Kube(_) => true,
        }
    }

    /// No request was sent: the credentials cannot be had.
    pub(crate) fn is_auth(&self) -> bool {
        matches!(&self.cause, Cause::Kube(kube::Error::Auth(_)))
    }

    /// Why, without what was tried.
    pub(crate) fn cause(&self) -> String {
        match &self.cause {
            Cause::Kube(kube::Error::Api(status)) if status.code == 401 => LOG_IN.to_owned(),
            Cause::Kube(kube::Error::Api(status)) if status.code == 410 => FORGETS.to_owned(),
            Cause::Kube(kube::Error::Api(status)) => format!("{} ({})", status.message, status.code),
            Cause::Kube(error) => unanswered(error),
            Cause::Other(message) => message.clone(),
        }
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        let what = &error.what;
        Self::new(match error.status() {
            Some(status) if status.code == 403 => format!(
                "you have no right to {what} ({}); somebody with cluster-admin can grant it, \
                 `kubectl kubelet-config doctor` says which rules are missing",
                status.message
            ),
            Some(status) if status.code == 401 => LOG_IN.replacen(':', &format!(" ({what}):"), 1),
            Some(status) if status.code == 404 => format!("{what}: {}", status.message),
            _ => format!("{what}: {}", error.cause()),
        })
    }
}

const LOG_IN: &str = "the API server does not know your credential: log in again, or choose another --context";
const FORGETS: &str = "the API server forgets each list (410) before its last page; etcd may be compacted too often, or \
                       the API server overloaded";

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
