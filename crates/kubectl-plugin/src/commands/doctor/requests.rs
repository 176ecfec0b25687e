//! What `doctor` asks the API server.

use std::collections::BTreeSet;

use hyper::Request;
use hyper::header::{CONTENT_TYPE, HeaderName};
use kube::api::{ListParams, PostParams};
use kube::core::request::Error::BuildRequest;
use kube::core::request::Request as Path;
use serde_json::{Value, json};

use crate::api::client::{ApiError, Client, RequestResult, config_maps};
use crate::api::pools::{lease, list_objects};
use crate::context::NAMESPACE;
use crate::fleet::doctor::rights::{self, Right};
use kubelet_config::assignment::LABELS;
use kubelet_config::reported::plain;

/// A name that no ConfigMap and no label has.
pub(crate) const NOBODY: &str = "kubectl-kubelet-config-doctor";

/// ConfigMaps whose rights are asked for one by one: a kube-system has about twenty.
const SOME: u32 = 50;

/// An access review's verdict.
async fn review(client: &Client, resource: &str, kind: &str, spec: &Value) -> Result<bool, ApiError> {
    let body = json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "metadata": {}, "spec": spec});
    let path = Path::new(format!("/apis/authorization.k8s.io/v1/{resource}"));
    let request = path.create(&PostParams::default(), body.to_string().into_bytes());
    let answer = client.request(&format!("create {resource}"), request).await?;
    Ok(answer.pointer("/status/allowed").and_then(Value::as_bool).unwrap_or_default())
}

/// Whether the user has this right.
pub(crate) async fn allows(client: &Client, right: &Right) -> Result<bool, ApiError> {
    let spec = json!({"resourceAttributes": right.attributes(&client.namespace)});
    review(client, "selfsubjectaccessreviews", "SelfSubjectAccessReview", &spec).await
}

/// The user's name; servers before 1.28 do not tell.
pub(crate) async fn who(client: &Client) -> Option<String> {
    let (kind, api) = ("SelfSubjectReview", "authentication.k8s.io/v1");
    let body = json!({"apiVersion": api, "kind": kind, "metadata": {}});
    let path = Path::new(format!("/apis/{api}/selfsubjectreviews"));
    let request = path.create(&PostParams::default(), body.to_string().into_bytes());
    let answer = client.request("create selfsubjectreviews", request).await.ok()?;
    answer.pointer("/status/userInfo/username").and_then(Value::as_str).map(str::to_owned)
}

/// Which of get, list and watch this node may not.
pub(crate) async fn cannot(
    client: &Client,
    node: &str,
    namespace: &str,
    name: Option<&str>,
) -> Result<Vec<&'static str>, ApiError> {
    let mut verbs = Vec::new();
    for verb in ["get", "list", "watch"] {
        let spec = rights::node_reads(node, verb, namespace, name);
        if !review(client, "subjectaccessreviews", "SubjectAccessReview", &spec).await? {
            verbs.push(verb);
        }
    }
    Ok(verbs)
}

/// Whether this node may read one of the namespace's ConfigMaps: rights may be by name, as `packaging/manifests/narrow`
/// gives them. A user who may not list them is told so elsewhere.
pub(crate) async fn may_read_some(client: &Client, node: &str, namespace: &str) -> Result<bool, ApiError> {
    let first = ListParams { limit: Some(SOME), ..ListParams::default() };
    let request = config_maps(namespace).and_then(|maps| maps.list_metadata(&first));
    let list = match client.request("list ConfigMaps", request).await {
        Err(error) if error.code() == 403 => return Ok(false),
        result => result?,
    };
    let items = list.get("items").and_then(Value::as_array).into_iter().flatten();
    for name in items.filter_map(|item| item.pointer("/metadata/name")?.as_str()) {
        let spec = rights::node_reads(node, "get", namespace, Some(name));
        if review(client, "subjectaccessreviews", "SubjectAccessReview", &spec).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The keys of a ConfigMap; `None`: there is none.
pub(crate) async fn keys(client: &Client, namespace: &str, name: &str) -> Result<Option<BTreeSet<String>>, ApiError> {
    let answer = match client.config_map(namespace, name).await {
        Err(error) if error.is_absent() => return Ok(None),
        result => result?,
    };
    let data = answer.get("data").and_then(Value::as_object).into_iter().flatten();
    Ok(Some(data.map(|(key, _)| key.clone()).collect()))
}

/// What is served of pools; `None`: there is no CRD.
pub(crate) async fn pools_group(client: &Client) -> Result<Option<Value>, ApiError> {
    let request = Request::get("/apis/kubelet-supervisor.io").body(Vec::new()).map_err(BuildRequest);
    client.optional("ask which versions of pools are served", request).await
}

/// All pools, and the Lease of who carries them out: `Null`, if there is none.
pub(crate) async fn pools(client: &Client) -> Result<(Vec<Value>, Value), ApiError> {
    Ok((list_objects(client).await?, lease(client).await?))
}

/// The image of the controller's Pod, if who holds the Lease is one: its identity begins with the Pod's name.
pub(crate) async fn image(client: &Client, holder: &str) -> Result<Option<String>, ApiError> {
    let pod = holder.split(' ').next().unwrap_or_default();
    let params = ListParams::default().fields(&format!("metadata.name={pod}"));
    let request = Path::new(format!("/api/v1/namespaces/{NAMESPACE}/pods")).list(&params);
    let answer = client.request(&format!("list pods in namespace {NAMESPACE}"), request).await?;
    let image = answer.pointer("/items/0/spec/containers/0/image").and_then(Value::as_str);
    Ok(image.map(plain))
}

/// A dry run, in nobody's name: fields that it would set are nobody's.
fn patch(node: &str, body: &Value) -> RequestResult {
    let request = Request::patch(format!("/api/v1/nodes/{node}?dryRun=All"));
    let request = request.header(CONTENT_TYPE, "application/merge-patch+json");
    request.body(body.to_string().into_bytes()).map_err(BuildRequest)
}

/// Whether a Node's `spec.configSource` stays when it is written.
pub(crate) async fn keeps_source(client: &Client, node: &str) -> Result<bool, ApiError> {
    let map = json!({"namespace": client.namespace, "name": NOBODY, "kubeletConfigKey": "kubelet"});
    let body = json!({"spec": {"configSource": {"configMap": map}}});
    let answer = client.request("patch node", patch(node, &body)).await?;
    Ok(answer.pointer("/spec/configSource/configMap/name").and_then(Value::as_str) == Some(NOBODY))
}

/// Whether the node itself, whom the user impersonates, is refused a label of ours.
pub(crate) async fn guards_labels(client: &Client, node: &str) -> Result<bool, ApiError> {
    let body = json!({"metadata": {"labels": {format!("{LABELS}{NOBODY}"): "asks"}}});
    let user = format!("system:node:{node}");
    let mut request = patch(node, &body);
    if let Ok(request) = &mut request {
        for (name, value) in [("impersonate-user", user.as_str()), ("impersonate-group", rights::NODES)] {
            let value = value.parse().map_err(|_| ApiError::new("impersonate", format!("{value:?} is no header")))?;
            request.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    match client.request("patch node", request).await {
        Ok(_) => Ok(false),
        // NodeRestriction's words (plugin/pkg/admission/noderestriction/admission.go, v1.20.2 and v1.36.2), and those of
        // an authorizer that lets nodes patch nothing.
        Err(error)
            if error.status().is_some_and(|status| {
                status.code == 403
                    && (status.message.contains("is not allowed to modify labels")
                        || status.message.contains(&format!("User \"{user}\" cannot patch")))
            }) =>
        {
            Ok(true)
        }
        Err(error) => Err(error),
    }
}
