//! Lists, page by page. The pages of one list show one version. When the API server no longer has that, the list begins
//! anew.

use backon::{ExponentialBuilder, Retryable as _};
use kube::api::ListParams;
use kube::core::ObjectList;
use kube::core::request::Request as Path;
use serde_json::Value;

use super::client::{ApiError, Client};

/// Which objects; all, if nothing is said.
pub(crate) use kube::runtime::watcher::Config as Selector;

/// What `read` takes of each object of the collection at `path`. `what`: such as "list nodes".
pub(crate) async fn list<T>(
    client: &Client,
    path: &str,
    what: &str,
    selector: Selector,
    read: impl Fn(Value) -> Option<T>,
) -> Result<Vec<T>, ApiError> {
    let Selector { label_selector, field_selector, .. } = selector;
    let first = ListParams { label_selector, field_selector, limit: Some(client.page), ..ListParams::default() };
    let (path, read) = (Path::new(path), &read);
    let all = || async {
        let (mut params, mut found) = (first.clone(), Vec::new());
        loop {
            let page = serde_json::from_value(client.request(what, path.list(&params)).await?);
            let page: ObjectList<Value> =
                page.map_err(|_| ApiError::new(what, "what answers is no Kubernetes API server"))?;
            found.extend(page.items.into_iter().filter_map(read));
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok(found);
            }
        }
    };
    all.retry(ExponentialBuilder::default()).when(|error: &ApiError| error.code() == 410).await
}
