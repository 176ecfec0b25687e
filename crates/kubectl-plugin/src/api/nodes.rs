//! Reading Nodes: by pages, and no more kept of them than is shown.

use clap::Args;
use hyper::Request;
use kube::api::ListParams;
use kube::core::request::Request as Path;
use serde_json::Value;

use crate::api::write::Writer;
use crate::fleet::node::NodeRow;
use crate::{Context, Failure};

/// Objects of one answer; a Node of a busy cluster takes about 20 KB.
const PAGE: u32 = 500;

/// The collection.
pub(crate) const NODES: &str = "/api/v1/nodes";

/// Which nodes a command that changes something is about: all of them is nothing to say by leaving something out.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Targets {
    /// These, as NODE or node/NODE.
    #[arg(value_name = "NODE")]
    nodes: Vec<String>,
    /// Those with these labels.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
}

impl Targets {
    /// The nodes as they are. Names that cannot be read are said and counted; a selector of nothing is an error.
    pub(crate) async fn read(
        self,
        context: &Context,
        writer: &mut Writer<'_>,
    ) -> Result<(Choice, Vec<NodeRow>), Failure> {
        let choice = Choice::new(self.nodes, self.selector);
        let (rows, failed) = read_each(context, &choice).await?;
        for failure in &failed {
            writer.failed(&failure.message);
        }
        if rows.is_empty() && failed.is_empty() {
            let selector = choice.selector.as_deref().unwrap_or_default();
            return Err(Failure::new(format!("no node has the labels {selector:?}: kubectl get nodes --show-labels")));
        }
        Ok((choice, rows))
    }
}

/// Which nodes a command is about.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// These.
    pub names: Vec<String>,
    /// Those with these labels.
    pub selector: Option<String>,
}

impl Choice {
    /// As the user has them: `node/NAME` is `NAME`.
    #[must_use]
    pub fn new(names: Vec<String>, selector: Option<String>) -> Self {
        let bare = |name: String| match name.split_once('/') {
            Some(("node" | "nodes" | "no", bare)) => bare.to_owned(),
            _ => name,
        };
        Self { names: names.into_iter().map(bare).collect(), selector }
    }

    /// True if it is one of these.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|known| known == name)
    }

    /// For a list or a watch: a single name the API server can select.
    pub(crate) fn field_selector(&self) -> Option<String> {
        let [name] = self.names.as_slice() else { return None };
        Some(format!("metadata.name={name}"))
    }
}

/// Reads the nodes, all if nothing is chosen, sorted by name. A name that is no node's keeps no other from being read.
///
/// # Errors
/// The API server's for the list.
pub(crate) async fn read_each(context: &Context, choice: &Choice) -> Result<(Vec<NodeRow>, Vec<Failure>), Failure> {
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    if choice.names.is_empty() {
        rows = list(context, choice).await?.0;
    } else {
        for name in &choice.names {
            match get(context, name).await {
                Ok(node) => rows.push(NodeRow::of(&node, &context.namespace)),
                Err(failure) => failed.push(failure),
            }
        }
    }
    rows.sort_by(|one, other| one.name.cmp(&other.name));
    rows.dedup_by(|one, other| one.name == other.name);
    Ok((rows, failed))
}

/// One Node as it is.
///
/// # Errors
/// The API server's.
pub async fn get(context: &Context, name: &str) -> Result<Value, Failure> {
    let request = Path::new(NODES).get(name, &kube::api::GetParams::default());
    let request = request.map_err(|error| Failure::new(format!("node {name:?}: {error}")))?;
    ask(context, request, &format!("get node {name}")).await
}

/// Lists the nodes of a choice, page by page, with the version from which a watch goes on.
///
/// # Errors
/// The API server's.
pub(crate) async fn list(context: &Context, choice: &Choice) -> Result<(Vec<NodeRow>, String), Failure> {
    let params = ListParams {
        label_selector: choice.selector.clone(),
        field_selector: choice.field_selector(),
        ..ListParams::default()
    };
    let read = |node: &Value| Some(NodeRow::of(node, &context.namespace)).filter(|row| choice.has(&row.name));
    pages(context, NODES, params, "list nodes", read).await
}

/// What `read` has of each object of a list, page by page, and the version from which a watch goes on.
///
/// # Errors
/// The API server's.
pub(crate) async fn pages<T>(
    context: &Context,
    path: &str,
    first: ListParams,
    what: &str,
    mut read: impl FnMut(&Value) -> Option<T>,
) -> Result<(Vec<T>, String), Failure> {
    let first = ListParams { limit: Some(PAGE), ..first };
    let (mut params, mut found, mut expired) = (first.clone(), Vec::new(), 0);
    loop {
        let request = Path::new(path).list(&params).map_err(|error| Failure::new(format!("{what}: {error}")))?;
        let page: Value = match context.client.request(request).await {
            // The next page belongs to a version that is gone: the whole list once more.
            Err(kube::Error::Api(status)) if status.code == 410 && expired < 3 => {
                (params, expired) = (first.clone(), expired + 1);
                found.clear();
                continue;
            }
            result => result.map_err(|error| Failure::api(what, &error))?,
        };
        found.extend(page.get("items").and_then(Value::as_array).into_iter().flatten().filter_map(&mut read));
        let field = |name: &str| page.pointer(&format!("/metadata/{name}")).and_then(Value::as_str);
        match field("continue").filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token.to_owned()),
            None => return Ok((found, field("resourceVersion").unwrap_or_default().to_owned())),
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
