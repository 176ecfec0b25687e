//! Lists, page by page. The pages of one list show one version; when the API server no longer has that, the list begins
//! anew.

use std::time::Duration;

use kube::api::ListParams;
use kube::core::request::Request as Path;
use serde_json::Value;
use tokio::time::Instant;

use super::client::{ApiError, Client};

/// A list that expired begins anew so often, however little patience there is.
const RESTARTS: u32 = 3;
/// Pauses before a list begins anew.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Which objects; all, if nothing is said.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selector {
    pub(crate) labels: Option<String>,
    pub(crate) fields: Option<String>,
}

impl Selector {
    pub(crate) fn labels(labels: impl Into<String>) -> Self {
        Self { labels: Some(labels.into()), fields: None }
    }

    pub(crate) fn fields(fields: impl Into<String>) -> Self {
        Self { labels: None, fields: Some(fields.into()) }
    }
}

/// A list that is being read.
pub(crate) struct Pager<'a> {
    client: &'a Client,
    path: Path,
    what: String,
    first: ListParams,
    /// Where the next page begins; none: at the first object.
    token: Option<String>,
    begun: Instant,
    restarts: u32,
    pause: Duration,
}

/// The objects of one page.
pub(crate) struct Page {
    /// What was read before is of a version that is gone, and does not count.
    pub(crate) is_first: bool,
    pub(crate) items: Vec<Value>,
    /// Of the last one: the version from which a watch goes on.
    pub(crate) version: Option<String>,
}

impl<'a> Pager<'a> {
    /// `path`: of the collection. `what`: such as "list nodes".
    pub(crate) fn new(client: &'a Client, path: &str, what: &str, selector: &Selector) -> Self {
        let Selector { labels, fields } = selector.clone();
        let limit = Some(client.retry_policy.page);
        let first = ListParams { label_selector: labels, field_selector: fields, limit, ..ListParams::default() };
        let (path, what) = (Path::new(path), what.to_owned());
        Self { client, path, what, first, token: None, begun: Instant::now(), restarts: 0, pause: PAUSE_FIRST }
    }

    /// The next page; not to be asked for after the last one.
    pub(crate) async fn next(&mut self) -> Result<Page, ApiError> {
        let what = &self.what;
        loop {
            let params = ListParams { continue_token: self.token.clone(), ..self.first.clone() };
            let mut page = match self.client.request(what, self.path.list(&params)).await {
                Err(error) if error.code() == 410 => {
                    if self.restarts >= RESTARTS && self.begun.elapsed() >= self.client.retry_policy.total {
                        return Err(ApiError::new(
                            what,
                            "the API server forgets each list (410) before its last page; etcd may be compacted too \
                             often, or the API server overloaded",
                        ));
                    }
                    tokio::time::sleep(self.pause).await;
                    (self.token, self.pause) = (None, (self.pause * 2).min(PAUSE_MAX));
                    self.restarts += 1;
                    continue;
                }
                result => result?,
            };
            let items = match page.get_mut("items").map(Value::take) {
                Some(Value::Array(items)) => items,
                Some(Value::Null) => Vec::new(), // what Go makes of a list that was never filled
                _ => return Err(ApiError::new(what, "what answers is no Kubernetes API server")),
            };
            let text = |field: &str| page.get("metadata")?.get(field)?.as_str().filter(|it| !it.is_empty());
            let is_first = self.token.is_none();
            self.token = text("continue").map(str::to_owned);
            let version = self.token.is_none().then(|| text("resourceVersion").unwrap_or_default().to_owned());
            return Ok(Page { is_first, items, version });
        }
    }

    /// What `read` takes of each object, and the version from which a watch goes on.
    pub(crate) async fn all<T, E: From<ApiError>>(
        mut self,
        mut read: impl FnMut(&Value) -> Result<Option<T>, E>,
    ) -> Result<(Vec<T>, String), E> {
        let mut found = Vec::new();
        loop {
            let page = self.next().await?;
            if page.is_first {
                found.clear();
            }
            for item in &page.items {
                found.extend(read(item)?);
            }
            if let Some(version) = page.version {
                return Ok((found, version));
            }
        }
    }
}
