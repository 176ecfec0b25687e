//! What `kubectl kubelet-config rollout` writes into a pool. Specs are JSON as the API server has them, so that fields which
//! this version does not know stay.

use serde_json::{Map, Value, json};

use super::revision::{POOL_LABEL, Revision, check_stored, parse_revision_name, revision_name};
use super::template_revision::{MERGE, TEMPLATE_KEY};
use super::types::{KubeletConfigPoolSpec, KubeletConfigPoolStatus, NodeSelector};
use kubelet_config::assignment::DEFAULT_KEY;
use kubelet_config::flags::KEY_SUFFIX;
use kubelet_config::hazard::ANNOTATION as ACKNOWLEDGE;
use kubelet_config::source::ConfigMapRef;

/// What `spec.configMap` takes the place of.
const CONTENT: [&str; 5] = ["kubeletConfiguration", "configMap", "flags", "merge", "acknowledge"];

/// The spec that gives these nodes this ConfigMap. `strategy`: fields of `spec.rollout`, others stay.
pub(crate) fn roll_out(
    spec: &Value,
    selector: &NodeSelector,
    map: &ConfigMapRef,
    strategy: &Map<String, Value>,
) -> Value {
    let mut spec = with_content(spec, [("configMap", json!({"name": map.name, "key": map.kubelet_config_key}))]);
    if let Some(spec) = spec.as_object_mut() {
        spec.entry("nodeSelector").or_insert_with(|| json!(selector));
        if let Some(rollout) = spec.entry("rollout").or_insert_with(|| json!({})).as_object_mut() {
            rollout.extend(strategy.clone());
        }
    }
    spec
}

fn with_content<const N: usize>(spec: &Value, content: [(&str, Value); N]) -> Value {
    let mut spec = spec.as_object().cloned().unwrap_or_default();
    spec.retain(|field, _| !CONTENT.contains(&field.as_str()));
    spec.extend(content.map(|(field, value)| (field.to_owned(), value)));
    spec.insert("paused".to_owned(), false.into());
    Value::Object(spec)
}

/// Revisions that a pool had, the latest first, but for the one that its spec says.
pub(crate) fn former_revisions<'a>(status: &'a KubeletConfigPoolStatus, update: &str) -> Vec<&'a str> {
    let is_bad = |name: &str| status.bad_revisions.iter().any(|bad| bad.revision == name);
    let all = status.current_revision.iter().chain(status.history.iter().rev()).map(String::as_str);
    all.filter(|name| *name != update && !is_bad(name)).collect()
}

/// The spec that says what this revision was; `stored`: its ConfigMap. What the controller made of a spec becomes that spec
/// again, any other ConfigMap is named.
///
/// # Errors
/// Why it cannot be gone back to, for people.
pub(crate) fn go_back(pool: &str, spec: &Value, stored: &Value, to: &ConfigMapRef) -> Result<Value, String> {
    if let Some(content) = content_of(pool, stored) {
        let spec = with_content(spec, content);
        let typed: Option<KubeletConfigPoolSpec> = serde_json::from_value(spec.clone()).ok();
        let revision = typed.and_then(|typed| Revision::of_spec(pool, &typed, &to.namespace).ok());
        // Its name tells its content: somebody else's would have another.
        if revision.is_some_and(|revision| revision.reference() == to) {
            return Ok(spec);
        }
    }
    check_stored(stored, &Revision::Named(to.clone()))?;
    Ok(with_content(spec, [("configMap", json!({"name": to.name, "key": to.kubelet_config_key}))]))
}

/// The fields of a spec that this ConfigMap was made of.
fn content_of(pool: &str, stored: &Value) -> Option<[(&'static str, Value); 4]> {
    let text = |pointer: &str, name: &str| stored.pointer(pointer)?.get(name)?.as_str();
    if text("/metadata/labels", POOL_LABEL) != Some(pool) {
        return None;
    }
    let configuration = text("/data", TEMPLATE_KEY).or(text("/data", DEFAULT_KEY))?;
    let mut configuration: Map<String, Value> = serde_json::from_str(configuration).ok()?;
    configuration.retain(|field, _| field != "apiVersion" && field != "kind");
    let flags: Vec<&str> =
        text("/data", &format!("{DEFAULT_KEY}{KEY_SUFFIX}")).into_iter().flat_map(str::lines).collect();
    let acknowledge = text("/metadata/annotations", ACKNOWLEDGE).into_iter().flat_map(|list| list.split(','));
    Some([
        ("kubeletConfiguration", Value::Object(configuration)),
        ("flags", json!(flags)),
        ("merge", json!(text("/metadata/annotations", MERGE)?)),
        ("acknowledge", json!(acknowledge.collect::<Vec<_>>())),
    ])
}

/// The name of the revision that a spec says, as a status has it.
///
/// # Errors
/// What is wrong with the spec.
pub(crate) fn revision_of(pool: &str, spec: &KubeletConfigPoolSpec, namespace: &str) -> Result<String, String> {
    let revision = Revision::of_spec(pool, spec, namespace).map_err(|fault| fault.message)?;
    Ok(revision_name(revision.reference()))
}

/// A revision that a user names, if the pool had it.
///
/// # Errors
/// Which ones there are.
pub(crate) fn chosen(
    pool: &str,
    former: &[&str],
    wanted: Option<&str>,
    namespace: &str,
) -> Result<ConfigMapRef, String> {
    let found = match wanted {
        Some(wanted) => former.iter().find(|name| **name == wanted),
        None => former.first(),
    };
    found.map(|name| parse_revision_name(name, namespace)).ok_or_else(|| match wanted {
        _ if former.is_empty() => {
            format!(
                "pool {pool} has no revision to go back to: it never had another one that all its nodes came to have"
            )
        }
        Some(wanted) => {
            format!(
                "--to-revision {wanted}: pool {pool} did not have it, or it is bad; there are {}",
                former.join(", ")
            )
        }
        None => String::new(),
    })
}

#[cfg(test)]
mod tests;
