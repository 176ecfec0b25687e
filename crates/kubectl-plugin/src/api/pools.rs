//! Pools as the API server has them, read and written, and the Lease of who carries them out.

use kube::Resource as _;
use kube::api::{GetParams, Patch, PatchParams, PostParams};
use kube::core::request::Request as Path;
use serde_json::{Map, Value, json};

use super::client::{ApiError, Client, RequestResult, segment};
use super::list::{self, Selector};
use crate::context::NAMESPACE;
use crate::failure::Failure;
use crate::fleet::leader_election::LEASE_NAME;
use crate::fleet::pool::types::{BadRevision, KubeletConfigPool};
use kubelet_config::merge::merge;

/// A write is tried again so often because the controller wrote the status meanwhile.
const TRIES: usize = 5;

/// Pools of the cluster.
pub(crate) const POOLS: &str = "/apis/kubelet-supervisor.io/v1alpha1/kubeletconfigpools";

/// A pool, and the object that it was read from, which may have fields that this version does not know.
pub(crate) struct StoredPool {
    pub(crate) name: String,
    pub(crate) object: Value,
    pub(crate) pool: KubeletConfigPool,
}

impl StoredPool {
    pub(crate) fn new(object: Value) -> Result<Self, Failure> {
        let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
        match serde_json::from_value(object.clone()) {
            Ok(pool) => Ok(Self { name, object, pool }),
            Err(error) => Err(Failure::new(format!("pool {name}: {error}: this version of the plugin cannot read it"))),
        }
    }

    pub(crate) fn version(&self) -> &str {
        self.pool.metadata.resource_version.as_deref().unwrap_or_default()
    }

    pub(crate) fn spec(&self) -> &Value {
        self.object.get("spec").unwrap_or(&Value::Null)
    }

    /// What a person goes by who writes it; counts and conditions change by themselves.
    fn decided(&self) -> (Option<&String>, Option<i64>, Option<&Vec<BadRevision>>) {
        let KubeletConfigPool { metadata, status, .. } = &self.pool;
        (metadata.uid.as_ref(), metadata.generation, status.as_ref().map(|status| &status.bad_revisions))
    }
}

/// All pools, by name.
///
/// # Errors
/// The API server's; how to make the resource, if there is none.
pub(crate) async fn list(client: &Client) -> Result<Vec<StoredPool>, Failure> {
    match list_objects(client).await {
        Ok(objects) => objects.into_iter().map(StoredPool::new).collect(),
        Err(error) if error.is_absent() => Err(Failure::new(
            "this API server has no KubeletConfigPool, which a rollout writes: \
             `kubectl create --validate=false -f packaging/manifests/pools/crd.yaml` makes it (with cluster-admin)",
        )),
        Err(error) => Err(error.into()),
    }
}

/// All pools as they are, be they ones that this version can read or not.
pub(crate) async fn list_objects(client: &Client) -> Result<Vec<Value>, ApiError> {
    list::list(client, POOLS, "list kubeletconfigpools", Selector::default(), Some).await
}

/// This pool.
///
/// # Errors
/// There is none; and those of [`list`].
pub(crate) async fn get(client: &Client, name: &str) -> Result<StoredPool, Failure> {
    let found = list(client).await?.into_iter().find(|pool| pool.name == name);
    found.ok_or_else(|| {
        Failure::new(format!(
            "there is no pool {name:?}: `kubectl kubelet-config rollout status` lists those there are"
        ))
    })
}

/// Creates a pool of this spec, or replaces that of the one that was read; the object as it is then, and what was done.
pub(crate) async fn put(
    client: &Client,
    name: &str,
    old: Option<&StoredPool>,
    spec: &Value,
    dry_run: bool,
) -> Result<(StoredPool, &'static str), Failure> {
    let params = PostParams { dry_run, field_manager: Some(client.manager.to_owned()) };
    let (pools, what) = (Path::new(POOLS), if old.is_some() { "update" } else { "create" });
    let body = |old: Option<&StoredPool>| with_spec(name, old, spec).to_string().into_bytes();
    let request =
        |now: &StoredPool| segment(name, "pool").and_then(|name| pools.replace(name, &params, body(Some(now))));
    let what = format!("{what} pool {name}");
    let written = if let Some(old) = old {
        written(client, old, &what, request).await?
    } else {
        let request = segment(name, "pool").and_then(|_| pools.create(&params, body(None)));
        client.request(&what, request).await.map_err(|error| changed(name, error))?
    };
    let written = StoredPool::new(written)?;
    let is_same = old.is_some_and(|old| old.pool.metadata.generation == written.pool.metadata.generation);
    let done = match old {
        None => "created",
        Some(_) if is_same => "unchanged",
        Some(_) => "configured",
    };
    Ok((written, done))
}

/// The whole object with another spec.
pub(crate) fn with_spec(name: &str, old: Option<&StoredPool>, spec: &Value) -> Value {
    let (api, kind) = (KubeletConfigPool::api_version(&()), KubeletConfigPool::kind(&()));
    let new = || Map::from_iter([("metadata".to_owned(), json!({ "name": name }))]);
    let mut object = old.and_then(|old| old.object.as_object().cloned()).unwrap_or_else(new);
    // Lists leave the first two out.
    let fields = [("apiVersion", Value::from(api)), ("kind", Value::from(kind)), ("spec", spec.clone())];
    object.extend(fields.map(|(name, value)| (name.to_owned(), value)));
    Value::Object(object)
}

/// The Lease of who carries out pools: `Null`, if there is none.
pub(crate) async fn lease(client: &Client) -> Result<Value, ApiError> {
    let lease = leases().get(LEASE_NAME, &GetParams::default());
    Ok(client.optional(&format!("get the Lease {LEASE_NAME}"), lease).await?.unwrap_or_default())
}

/// Requests about Leases where that one is.
pub(crate) fn leases() -> Path {
    Path::new(format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"))
}

/// Merges into a pool, if it is the one that was read. `subresource`: of which alone that is, such as `status`.
pub(crate) async fn patch(
    client: &Client,
    old: &StoredPool,
    subresource: Option<&str>,
    patch: &Value,
) -> Result<(), Failure> {
    let params = PatchParams { field_manager: Some(client.manager.to_owned()), ..PatchParams::default() };
    let pools = Path::new(POOLS);
    let request = |now: &StoredPool| {
        let mut patch = patch.clone();
        merge(&mut patch, &json!({"metadata": {"resourceVersion": now.version()}}));
        let patch = Patch::Merge(&patch);
        segment(&old.name, "pool").and_then(|name| match subresource {
            Some(part) => pools.patch_subresource(part, name, &params, &patch),
            None => pools.patch(name, &params, &patch),
        })
    };
    written(client, old, &format!("patch pool {}", old.name), request).await.map(drop)
}

/// The answer to a write of the pool that was read, or of what it is now, if nobody but the controller has written since.
async fn written(
    client: &Client,
    old: &StoredPool,
    what: &str,
    request: impl Fn(&StoredPool) -> RequestResult,
) -> Result<Value, Failure> {
    let mut answer = client.request(what, request(old)).await;
    for _ in 1..TRIES {
        if !answer.as_ref().is_err_and(ApiError::is_conflict) {
            break;
        }
        let now = get(client, &old.name).await?;
        if now.decided() != old.decided() {
            break;
        }
        answer = client.request(what, request(&now)).await;
    }
    answer.map_err(|error| changed(&old.name, error))
}

fn changed(name: &str, error: ApiError) -> Failure {
    if error.is_conflict() {
        return Failure::new(format!("somebody else has changed pool {name} meanwhile: look, and try again"));
    }
    error.into()
}
