//! Revisions: immutable ConfigMaps whose names tell their content.

use serde_json::{Map, Value};

use super::template::has_expressions;
use super::template_revision::{Content, TEMPLATE_KEY, TemplateRevision};
pub(crate) use super::template_revision::{MERGE, POOL_LABEL, RenderedRevision};
use super::types::{KubeletConfigPoolSpec, MergeMode, max_unavailable};
use kubelet_config::assignment::DEFAULT_KEY;
use kubelet_config::flags::KEY_SUFFIX;
use kubelet_config::hazard::ANNOTATION as ACKNOWLEDGE;
use kubelet_config::source::ConfigMapRef;

/// Annotation of a pool: the revision whose canaries somebody looked at.
pub(crate) const APPROVED_REVISION: &str = "kubelet-supervisor.io/approved-revision";
/// A pool's name and what the hash takes must fit a label; with expressions, that of the result too.
const POOL_NAME_MAX: usize = 63 - 11;
pub(crate) const HASH: usize = 11;

/// What the spec says now, as a revision.
#[derive(Debug)]
pub(crate) enum Revision {
    /// A ConfigMap that the controller makes.
    Rendered(RenderedRevision),
    /// The same, with expressions: no Node gets it as it is.
    Template(Box<TemplateRevision>),
    /// One that is there: it must be immutable, and have the key.
    Named(ConfigMapRef),
}

/// Why no Node can get what the spec says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RevisionFault {
    pub(crate) reason: &'static str,
    /// For people.
    pub(crate) message: String,
}

impl RevisionFault {
    pub(crate) fn invalid(message: String) -> Self {
        Self { reason: "RevisionInvalid", message }
    }

    pub(crate) fn expression(message: String) -> Self {
        Self { reason: "ExpressionFailed", message }
    }
}

impl Revision {
    /// What `spec` says, in this namespace.
    ///
    /// # Errors
    /// What is wrong with the pool, for people.
    pub(crate) fn of_spec(pool: &str, spec: &KubeletConfigPoolSpec, namespace: &str) -> Result<Self, RevisionFault> {
        if let Some(fault) = spec_fault(spec) {
            return Err(RevisionFault::invalid(fault));
        }
        match (&spec.kubelet_configuration, &spec.config_map) {
            (Some(configuration), None) if configuration.values().any(has_expressions) => {
                let RenderedRevision { reference, object } =
                    render(pool, spec, configuration, namespace, TEMPLATE_KEY).map_err(RevisionFault::invalid)?;
                let template = TemplateRevision::new(reference, object).map_err(RevisionFault::expression)?;
                Ok(Self::Template(Box::new(template)))
            }
            _ => Self::without_expressions(pool, spec, namespace).map_err(RevisionFault::invalid),
        }
    }

    fn without_expressions(pool: &str, spec: &KubeletConfigPoolSpec, namespace: &str) -> Result<Self, String> {
        match (&spec.kubelet_configuration, &spec.config_map) {
            (Some(configuration), None) => {
                render(pool, spec, configuration, namespace, DEFAULT_KEY).map(Self::Rendered)
            }
            (None, Some(named)) => {
                if !spec.flags.is_empty() || !spec.acknowledge.is_empty() || spec.merge != MergeMode::Replace {
                    return Err(
                        "spec.configMap brings its own flags (KEY.flags), merge and acknowledge (annotations): \
                                take them out of the pool"
                            .to_owned(),
                    );
                }
                let reference = ConfigMapRef {
                    namespace: namespace.to_owned(),
                    name: named.name.clone(),
                    kubelet_config_key: named.key.clone(),
                };
                kubelet_config::assignment::reference_fault(&reference)
                    .map_or(Ok(Self::Named(reference)), |(part, why)| Err(format!("spec.configMap.{part}: {why}")))
            }
            _ => Err("set exactly one of spec.kubeletConfiguration and spec.configMap".to_owned()),
        }
    }

    /// The ConfigMap that the controller makes.
    pub(crate) fn object(&self) -> Option<&Value> {
        match self {
            Self::Rendered(rendered) => Some(&rendered.object),
            Self::Template(template) => Some(&template.object),
            Self::Named(_) => None,
        }
    }

    /// What the pool's status names.
    pub(crate) fn reference(&self) -> &ConfigMapRef {
        match self {
            Self::Rendered(rendered) => &rendered.reference,
            Self::Template(template) => &template.reference,
            Self::Named(reference) => reference,
        }
    }
}

/// What of a spec makes no sense beside its content; API servers know but a part of that.
fn spec_fault(spec: &KubeletConfigPoolSpec) -> Option<String> {
    let strategy = &spec.rollout;
    let selectors = [
        ("spec.nodeSelector", Some(&spec.node_selector)),
        ("spec.rollout.canarySelector", strategy.canary_selector.as_ref()),
    ];
    let fault = selectors.into_iter().find_map(|(field, selector)| selector?.fault(field));
    fault
        .or_else(|| max_unavailable(&strategy.max_unavailable, 1).err())
        .or_else(|| spec.startup_taint_fault())
        .or_else(|| spec.on_leave_fault())
}

/// A ConfigMap named by all that a Node would go by: data, merge and acknowledge.
fn render(
    pool: &str,
    spec: &KubeletConfigPoolSpec,
    configuration: &Map<String, Value>,
    namespace: &str,
    key: &str,
) -> Result<RenderedRevision, String> {
    let most = if key == TEMPLATE_KEY { POOL_NAME_MAX - HASH } else { POOL_NAME_MAX };
    if pool.len() > most {
        return Err(format!(
            "metadata.name {pool}: {} characters, at most {most} are allowed (revisions are named NAME-HASH, and a Node label \
             carries that name): create the pool under a shorter name",
            pool.len()
        ));
    }
    let mut document = Value::Object(configuration.clone());
    kubelet_config::own_files::check_kind(&mut document, true)
        .map_err(|why| format!("spec.kubeletConfiguration: {why}"))?;
    let text =
        serde_json::to_string_pretty(&document).map_err(|error| format!("spec.kubeletConfiguration: {error}"))?;
    let mut content = Content::default();
    content.data.insert(key.to_owned(), text);
    if !spec.flags.is_empty() {
        content.data.insert(format!("{DEFAULT_KEY}{KEY_SUFFIX}"), spec.flags.join("\n"));
    }
    let merge = if spec.merge == MergeMode::Overlay { "overlay" } else { "replace" };
    content.annotations.insert(MERGE.to_owned(), merge.to_owned());
    if !spec.acknowledge.is_empty() {
        content.annotations.insert(ACKNOWLEDGE.to_owned(), spec.acknowledge.join(","));
    }
    Ok(RenderedRevision::new(pool, pool, namespace, &content))
}

/// What is there under a revision's name is that revision.
///
/// # Errors
/// Why it is not, for people.
pub(crate) fn check_stored(stored: &Value, revision: &Revision) -> Result<(), String> {
    let ConfigMapRef { name, kubelet_config_key: key, .. } = revision.reference();
    if let Some(object) = revision.object() {
        return check_made(stored, name, object);
    }
    check_immutable(stored, name)?;
    if stored.get("data").and_then(Value::as_object).is_some_and(|data| data.contains_key(key)) {
        Ok(())
    } else {
        Err(format!("ConfigMap {name} has no key {key}: spec.configMap.key names one"))
    }
}

fn check_immutable(stored: &Value, name: &str) -> Result<(), String> {
    if stored.get("immutable").and_then(Value::as_bool) == Some(true) {
        return Ok(());
    }
    Err(format!(
        "ConfigMap {name} can be edited, and a revision must not: `kubectl kubelet-config push FILE` makes immutable ones"
    ))
}

/// What is there under the name of what the controller makes is that.
///
/// # Errors
/// Why it is not, for people.
pub(crate) fn check_made(stored: &Value, name: &str, object: &Value) -> Result<(), String> {
    check_immutable(stored, name)?;
    let annotations = |object: &Value| {
        let of = |name: &str| object.pointer("/metadata/annotations")?.get(name)?.as_str().map(str::to_owned);
        [of(MERGE), of(ACKNOWLEDGE)]
    };
    if stored.get("data") == object.get("data") && annotations(stored) == annotations(object) {
        return Ok(());
    }
    Err(format!(
        "ConfigMap {name} has another content than its name says, so somebody else made it: delete it, and it is made anew"
    ))
}

/// How a revision stands in a pool's status: its ConfigMap, and the key if it is not the usual one.
pub(crate) fn revision_name(reference: &ConfigMapRef) -> String {
    match reference.kubelet_config_key.as_str() {
        DEFAULT_KEY => reference.name.clone(),
        key => format!("{}/{key}", reference.name),
    }
}

/// What a pool's status names by [`revision_name`].
pub(crate) fn parse_revision_name(text: &str, namespace: &str) -> ConfigMapRef {
    let (name, key) = text.split_once('/').unwrap_or((text, DEFAULT_KEY));
    ConfigMapRef { namespace: namespace.to_owned(), name: name.to_owned(), kubelet_config_key: key.to_owned() }
}

/// Whether a Node that is assigned this has the revision of that name, or what expressions in it came to for the Node.
pub(crate) fn is_of_revision(reference: &ConfigMapRef, revision: &str, namespace: &str) -> bool {
    let named = parse_revision_name(revision, namespace);
    let is_result = || hash_after(&reference.name, &named.name).is_some();
    *reference == named || (is_result() && ConfigMapRef { name: named.name.clone(), ..reference.clone() } == named)
}

/// Whether the controller makes revisions of that name for the pool.
pub(crate) fn is_made_for(pool: &str, revision: &str) -> bool {
    hash_after(revision, pool).is_some()
}

/// The same, or whether it is the name of what expressions of such a revision came to.
pub(crate) fn is_made_of(pool: &str, name: &str) -> bool {
    is_made_for(pool, name.get(..name.len().min(pool.len() + HASH)).unwrap_or_default())
}

/// What follows BASE- in a name, if it is a hash.
fn hash_after<'a>(name: &'a str, base: &str) -> Option<&'a str> {
    let hash = name.strip_prefix(base)?.strip_prefix('-')?;
    let is_hash = hash.len() + 1 == HASH && hash.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    is_hash.then_some(hash)
}

#[cfg(test)]
mod tests;
