//! Reading Nodes: by pages, and no more kept of them than is shown.

use hyper::Request;
use kube::api::ListParams;
use kube::core::request::Request as Path;
use serde_json::Value;

use super::{Context, Failure};
use crate::core::fleet::node::NodeRow;

/// Nodes of one answer; one of a busy cluster takes about 20 KB.
const PAGE: u32 = 500;

/// Which nodes a command is about.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// These.
    pub names: Vec<String>,
    /// Those with these labels.
    pub selector: Option<String>,
}

/// Reads the nodes; all, if nothing is chosen. Sorted by name.
///
/// # Errors
/// The API server's, or a name that is no node's.
pub async fn read(context: &Context, choice: &Choice) -> Result<Vec<NodeRow>, Failure> {
    let mut rows = Vec::new();
    if choice.names.is_empty() {
        each(context, choice.selector.as_deref(), |node| rows.push(NodeRow::of(node, &context.namespace))).await?;
    } else {
        for name in &choice.names {
            rows.push(NodeRow::of(&get(context, name).await?, &context.namespace));
        }
    }
    rows.sort_by(|one, other| one.name.cmp(&other.name));
    rows.dedup_by(|one, other| one.name == other.name);
    Ok(rows)
}

/// One Node as it is.
///
/// # Errors
/// The API server's.
pub async fn get(context: &Context, name: &str) -> Result<Value, Failure> {
    let request = Path::new("/api/v1/nodes").get(name, &kube::api::GetParams::default());
    let request = request.map_err(|error| Failure::new(format!("node {name:?}: {error}")))?;
    ask(context, request, &format!("get node {name}")).await
}

/// Shows all Nodes of a selector, page by page.
pub(super) async fn each(
    context: &Context,
    selector: Option<&str>,
    mut show: impl FnMut(&Value),
) -> Result<(), Failure> {
    let mut params =
        ListParams { label_selector: selector.map(str::to_owned), limit: Some(PAGE), ..ListParams::default() };
    loop {
        let request = Path::new("/api/v1/nodes").list(&params);
        let request = request.map_err(|error| Failure::new(format!("list nodes: {error}")))?;
        let page: Value = ask(context, request, "list nodes").await?;
        page.get("items").and_then(Value::as_array).into_iter().flatten().for_each(&mut show);
        match page.pointer("/metadata/continue").and_then(Value::as_str).filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token.to_owned()),
            None => return Ok(()),
        }
    }
}

/// Sends a request; the answer as it is.
///
/// # Errors
/// What was to be done and why it was not.
pub async fn ask(context: &Context, request: Request<Vec<u8>>, what: &str) -> Result<Value, Failure> {
    context.client.request(request).await.map_err(|error| Failure::api(what, &error))
}
