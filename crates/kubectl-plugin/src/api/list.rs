//! Lists, by pages. The pages of one list show one version; when the API server no longer has that, the list begins anew.

use std::time::Duration;

use kube::api::ListParams;
use kube::core::request::Request as Path;
use serde_json::Value;
use tokio::time::Instant;

use crate::Failure;
use crate::api::client::{Answer, Api, PATIENCE};
use crate::api::watch::Choice;

/// Objects of one answer; a Node of a busy cluster takes about 20 KB.
const PAGE: u32 = 250;
/// Pauses before a list begins anew.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// A list that is being read.
pub(crate) struct Pages<'a> {
    api: &'a Api,
    path: &'a Path,
    what: String,
    first: ListParams,
    /// Where the next page begins; none: at the first object.
    token: Option<String>,
    begun: Instant,
    pause: Duration,
}

/// A part of it.
pub(crate) struct Page {
    /// What was read before is of a version that is gone, and does not count.
    pub(crate) is_first: bool,
    pub(crate) items: Vec<Value>,
    /// Of the last one: the version from which a watch goes on.
    pub(crate) version: Option<String>,
}

impl<'a> Pages<'a> {
    /// `what`: such as "list nodes".
    pub(crate) fn new(api: &'a Api, path: &'a Path, what: &str, choice: &Choice) -> Self {
        let Choice { labels, fields } = choice.clone();
        let first =
            ListParams { label_selector: labels, field_selector: fields, limit: Some(PAGE), ..ListParams::default() };
        Self { api, path, what: what.to_owned(), first, token: None, begun: Instant::now(), pause: PAUSE_FIRST }
    }

    /// The next page; not to be asked for after the last one.
    ///
    /// # Errors
    /// The API server's refusal, that it is away, or that it never comes to the end of a list.
    pub(crate) async fn next(&mut self) -> Result<Page, Failure> {
        let what = &self.what;
        loop {
            let params = ListParams { continue_token: self.token.clone(), ..self.first.clone() };
            let mut page = match self.api.ask(what, self.path.list(&params)).await? {
                Answer::Object(page) => page,
                Answer::Expired if self.begun.elapsed() < PATIENCE => {
                    tokio::time::sleep(self.pause).await;
                    (self.token, self.pause) = (None, (self.pause * 2).min(PAUSE_MAX));
                    continue;
                }
                Answer::Expired => {
                    return Err(Failure::new(format!(
                        "{what}: the API server forgets each list (410) before its last page; etcd may be compacted too often, or \
                         the API server overloaded"
                    )));
                }
                _ => {
                    return Err(Failure::new(format!("{what}: there is no such list")));
                }
            };
            let items = page.get_mut("items").map(Value::take).unwrap_or_default();
            let Value::Array(items) = items else {
                return Err(Failure::new(format!("{what}: what answers is no Kubernetes API server")));
            };
            let text = |field: &str| page.get("metadata")?.get(field)?.as_str().filter(|it| !it.is_empty());
            let is_first = self.token.is_none();
            self.token = text("continue").map(str::to_owned);
            let version = self.token.is_none().then(|| text("resourceVersion").unwrap_or_default().to_owned());
            return Ok(Page { is_first, items, version });
        }
    }

    /// All of it, each object as `read` has it, and the version from which a watch goes on.
    ///
    /// # Errors
    /// See [`Pages::next`], and those of `read`.
    pub(crate) async fn all<T>(
        mut self,
        mut read: impl FnMut(&Value) -> Result<T, Failure>,
    ) -> Result<(Vec<T>, String), Failure> {
        let mut found = Vec::new();
        loop {
            let page = self.next().await?;
            if page.is_first {
                found.clear();
            }
            for item in &page.items {
                found.push(read(item)?);
            }
            if let Some(version) = page.version {
                return Ok((found, version));
            }
        }
    }
}
