//! What a pool says, for a Node.

use kube::api::GetParams;
use kube::core::request::Request as Path;

use super::configuration::{KubeletConfigMap, map};
use crate::Failure;
use crate::api::client::{Client, segment};
use crate::api::nodes;
use crate::api::pools::POOLS;
use crate::fleet::pool::node::PoolNode;
use crate::fleet::pool::revision::Revision;
use crate::fleet::pool::types::KubeletConfigPool;
use kubelet_config::source::ConfigMapRef;

/// The ConfigMap that a Node gets by what the pool's spec says now, be it there or not.
///
/// # Errors
/// The API server's; what is wrong with the pool, or with an expression for this Node; expressions, and no Node.
pub(crate) async fn read(
    client: &Client,
    pool: &str,
    node: Option<&str>,
) -> Result<(ConfigMapRef, KubeletConfigMap), Failure> {
    let request = segment(pool, "pool").and_then(|name| Path::new(POOLS).get(name, &GetParams::default()));
    let failure = |why: String| Failure::new(format!("pool {pool}: {why}"));
    let object = client.request(&format!("get pool {pool}"), request).await?;
    let object: KubeletConfigPool = serde_json::from_value(object).map_err(|error| failure(error.to_string()))?;
    let revision = Revision::of_spec(pool, &object.spec, &client.namespace);
    let (reference, object) = match revision.map_err(|fault| failure(fault.message))? {
        Revision::Named(reference) => {
            let key = Some(reference.kubelet_config_key.as_str());
            let map = map(client, &reference.namespace, &reference.name, key).await?;
            return Ok((reference, map));
        }
        Revision::Rendered(rendered) => (rendered.reference, rendered.object),
        Revision::Template(template) => {
            let node = node.ok_or_else(|| {
                failure(format!("it has expressions, and so says something for a Node only: diff NODE pool/{pool}"))
            })?;
            let object = nodes::get(client, node).await?;
            let rendered = template.render(&PoolNode::from_node(&object, &client.namespace));
            let rendered =
                rendered.ok_or_else(|| failure(format!("the kubelet of Node {node} has not reported yet")))?;
            let rendered = rendered.map_err(failure)?;
            (rendered.reference.clone(), rendered.object.clone())
        }
    };
    let title = format!("pool {pool} (ConfigMap {})", reference.name);
    let map = KubeletConfigMap::from_object(&object, &title, Some(&reference.kubelet_config_key))?;
    Ok((reference, map))
}
