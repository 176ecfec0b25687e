//! What `doctor` asks the API server.

use std::collections::BTreeSet;

use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request};
use kube::api::ListParams;
use kube::core::request::Request as Path;
use serde_json::{Value, json};

use super::NOBODY;
use crate::Context;
use crate::fleet::doctor::rights;
use kubelet_config::assignment::LABELS;

/// Nodes of one answer.
const PAGE: u32 = 500;

/// ConfigMaps whose rights are asked for one by one: a kube-system has about twenty.
const SOME: u32 = 50;

/// An answer, or why there is none.
pub(crate) type Asked<T> = Result<T, kube::Error>;

/// Shows all Nodes of a selector, page by page: there may be thousands, and little of each is kept. If the list is
/// lost on the way (410) it begins again, after a `None`.
pub(crate) async fn each(context: &Context, selector: Option<&str>, mut show: impl FnMut(Option<&Value>)) -> Asked<()> {
    let first = ListParams { label_selector: selector.map(str::to_owned), limit: Some(PAGE), ..ListParams::default() };
    let (mut params, mut lost) = (first.clone(), 0);
    loop {
        let request = Path::new("/api/v1/nodes").list(&params).map_err(kube::Error::BuildRequest)?;
        let page: Value = match context.client.request(request).await {
            Err(kube::Error::Api(status)) if status.code == 410 && lost < 3 => {
                (params, lost) = (first.clone(), lost + 1);
                show(None);
                continue;
            }
            result => result?,
        };
        let items = page.get("items").and_then(Value::as_array);
        items.into_iter().flatten().for_each(|node| show(Some(node)));
        match page.pointer("/metadata/continue").and_then(Value::as_str).filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token.to_owned()),
            None => return Ok(()),
        }
    }
}

/// A request with a JSON body.
fn request(method: Method, path: &str, kind: &str, body: &Value) -> Result<Request<Vec<u8>>, kube::Error> {
    let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, kind);
    request.body(body.to_string().into_bytes()).map_err(kube::Error::HttpError)
}

/// An access review's verdict.
pub(crate) async fn review(context: &Context, resource: &str, kind: &str, spec: &Value) -> Asked<bool> {
    let body = json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "metadata": {}, "spec": spec});
    let path = format!("/apis/authorization.k8s.io/v1/{resource}");
    let answer: Value = context.client.request(request(Method::POST, &path, "application/json", &body)?).await?;
    Ok(answer.pointer("/status/allowed").and_then(Value::as_bool).unwrap_or_default())
}

/// The user's name; servers before 1.28 do not tell.
pub(crate) async fn who(context: &Context) -> Option<String> {
    let (kind, api) = ("SelfSubjectReview", "authentication.k8s.io/v1");
    let body = json!({"apiVersion": api, "kind": kind, "metadata": {}});
    let request = request(Method::POST, &format!("/apis/{api}/selfsubjectreviews"), "application/json", &body).ok()?;
    let answer: Value = context.client.request(request).await.ok()?;
    answer.pointer("/status/userInfo/username").and_then(Value::as_str).map(str::to_owned)
}

/// Which of get, list and watch this node may not.
pub(crate) async fn cannot(
    context: &Context,
    node: &str,
    namespace: &str,
    name: Option<&str>,
) -> Asked<Vec<&'static str>> {
    let mut verbs = Vec::new();
    for verb in ["get", "list", "watch"] {
        let spec = rights::node_reads(node, verb, namespace, name);
        if !review(context, "subjectaccessreviews", "SubjectAccessReview", &spec).await? {
            verbs.push(verb);
        }
    }
    Ok(verbs)
}

/// Whether this node may read one of the namespace's ConfigMaps: rights may be by name, as `packaging/manifests/narrow`
/// gives them. A user who may not list them is told so elsewhere.
pub(crate) async fn may_read_some(context: &Context, node: &str, namespace: &str) -> Asked<bool> {
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    let first = ListParams { limit: Some(SOME), ..ListParams::default() };
    let request = Path::new(path).list_metadata(&first).map_err(kube::Error::BuildRequest)?;
    let list: Value = match context.client.request(request).await {
        Err(kube::Error::Api(status)) if status.code == 403 => return Ok(false),
        result => result?,
    };
    let items = list.get("items").and_then(Value::as_array).into_iter().flatten();
    for name in items.filter_map(|item| item.pointer("/metadata/name")?.as_str()) {
        let spec = rights::node_reads(node, "get", namespace, Some(name));
        if review(context, "subjectaccessreviews", "SubjectAccessReview", &spec).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The keys of a ConfigMap; `None`: there is none.
pub(crate) async fn keys(context: &Context, namespace: &str, name: &str) -> Asked<Option<BTreeSet<String>>> {
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    let request = kube::core::request::Request::new(path).get(name, &kube::api::GetParams::default());
    let answer: Value = match context.client.request(request.map_err(kube::Error::BuildRequest)?).await {
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
        result => result?,
    };
    let data = answer.get("data").and_then(Value::as_object).into_iter().flatten();
    Ok(Some(data.map(|(key, _)| key.clone()).collect()))
}

fn patch(node: &str, body: &Value) -> Asked<Request<Vec<u8>>> {
    request(Method::PATCH, &format!("/api/v1/nodes/{node}?dryRun=All"), "application/merge-patch+json", body)
}

/// Whether a Node's `spec.configSource` stays when it is written.
pub(crate) async fn keeps_source(context: &Context, node: &str) -> Asked<bool> {
    let map = json!({"namespace": context.namespace, "name": NOBODY, "kubeletConfigKey": "kubelet"});
    let body = json!({"spec": {"configSource": {"configMap": map}}});
    let answer: Value = context.client.request(patch(node, &body)?).await?;
    Ok(answer.pointer("/spec/configSource/configMap/name").and_then(Value::as_str) == Some(NOBODY))
}

/// Whether the node itself, whom the user impersonates, is refused a label of ours.
pub(crate) async fn guards_labels(context: &Context, node: &str) -> Asked<bool> {
    let body = json!({"metadata": {"labels": {format!("{LABELS}{NOBODY}"): "asks"}}});
    let mut request = patch(node, &body)?;
    let user = format!("system:node:{node}");
    for (name, value) in [("impersonate-user", user.as_str()), ("impersonate-group", rights::NODES)] {
        let value =
            value.parse().map_err(|error: hyper::header::InvalidHeaderValue| kube::Error::HttpError(error.into()))?;
        request.headers_mut().insert(hyper::header::HeaderName::from_static(name), value);
    }
    match context.client.request::<Value>(request).await {
        Ok(_) => Ok(false),
        // NodeRestriction's words (plugin/pkg/admission/noderestriction/admission.go, v1.20.2 and v1.36.2), and those of
        // an authorizer that lets nodes patch nothing.
        Err(kube::Error::Api(status))
            if status.code == 403
                && (status.message.contains("is not allowed to modify labels")
                    || status.message.contains(&format!("User \"{user}\" cannot patch"))) =>
        {
            Ok(true)
        }
        Err(error) => Err(error),
    }
}
