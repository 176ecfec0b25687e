//! A revision with expressions, and the ConfigMaps that are made of it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::expressions::Inputs;
use super::node::PoolNode;
use super::template::Template;
use super::types::MergeMode;
use crate::fleet::configmap_name;
use kubelet_config::assignment::DEFAULT_KEY;
use kubelet_config::hazard::ANNOTATION as ACKNOWLEDGE;
use kubelet_config::pods::texts;
use kubelet_config::source::ConfigMapRef;

/// The key of a configuration that is still to be evaluated. No Node is assigned it: no kubelet could read it.
pub(crate) const TEMPLATE_KEY: &str = "kubelet.template";
/// Label of a revision; the value is its pool.
pub(crate) const POOL_LABEL: &str = "kubelet-supervisor.io/pool";
/// The ConfigMap's annotation that says how it is merged.
pub(crate) const MERGE: &str = "kubelet-supervisor.io/merge";
/// Results that are remembered; what Nodes report changes, but not by that much.
const MAX_REMEMBERED: usize = 20_000;

/// A ConfigMap that the controller makes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RenderedRevision {
    pub(crate) reference: ConfigMapRef,
    /// The whole object.
    pub(crate) object: Value,
}

impl RenderedRevision {
    /// The immutable ConfigMap `BASE-HASH`, named by all that a Node would go by: annotations change what it makes of the data.
    pub(super) fn new(base: &str, pool: &str, namespace: &str, content: &Content) -> Self {
        let Content { data, annotations } = content;
        let name = content.name(base);
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "immutable": true, "data": data,
            "metadata": {"name": name, "namespace": namespace, "labels": {POOL_LABEL: pool}, "annotations": annotations},
        });
        let kubelet_config_key = DEFAULT_KEY.to_owned();
        Self { reference: ConfigMapRef { namespace: namespace.to_owned(), name, kubelet_config_key }, object }
    }
}

/// What a revision's name is made of.
#[derive(Default)]
pub(super) struct Content {
    pub(super) data: BTreeMap<String, String>,
    /// [`MERGE`] and [`ACKNOWLEDGE`].
    pub(super) annotations: BTreeMap<String, String>,
}

impl Content {
    fn of(object: &Value) -> Self {
        let mut annotations = texts(object.pointer("/metadata/annotations"));
        annotations.retain(|name, _| name == MERGE || name == ACKNOWLEDGE);
        Self { data: texts(object.pointer("/data")), annotations }
    }

    fn name(&self, base: &str) -> String {
        configmap_name::name(base, &self.data.clone().into_iter().chain(self.annotations.clone()).collect())
    }
}

/// A revision with expressions: an immutable ConfigMap that Nodes that join are evaluated from too.
#[derive(Debug)]
pub(crate) struct TemplateRevision {
    pub(crate) reference: ConfigMapRef,
    /// The whole ConfigMap.
    pub(crate) object: Value,
    template: Template,
    /// Each evaluated once.
    results: Mutex<HashMap<Inputs, Result<Arc<RenderedRevision>, String>>>,
}

impl TemplateRevision {
    /// # Errors
    /// What is wrong with an expression, for people.
    pub(crate) fn new(reference: ConfigMapRef, object: Value) -> Result<Self, String> {
        let text = object.pointer("/data").and_then(|data| data.get(TEMPLATE_KEY)?.as_str()).unwrap_or_default();
        let document: Value = serde_json::from_str(text).map_err(|error| format!("{TEMPLATE_KEY}: {error}"))?;
        let merge = object.pointer("/metadata/annotations").and_then(|all| all.get(MERGE)?.as_str());
        let merge = if merge == Some("overlay") { MergeMode::Overlay } else { MergeMode::Replace };
        let template = Template::parse(document, merge)?;
        Ok(Self { reference, object, template, results: Mutex::default() })
    }

    /// A revision that was stored: none if it has no expressions, and is for Nodes as it is.
    ///
    /// # Errors
    /// It is not what its name says.
    pub(crate) fn from_stored(object: &Value, pool: &str, reference: &ConfigMapRef) -> Result<Option<Self>, String> {
        let content = Content::of(object);
        if !content.data.contains_key(TEMPLATE_KEY) || content.data.contains_key(&reference.kubelet_config_key) {
            return Ok(None);
        }
        if content.name(pool) != reference.name {
            return Err(format!(
                "ConfigMap {} has another content than its name says, so somebody else made it",
                reference.name
            ));
        }
        Self::new(reference.clone(), object.clone()).map(Some)
    }

    /// What this Node gets; none before its kubelet has reported anything.
    ///
    /// # Errors
    /// Node, field, expression, and what is wrong with it.
    pub(crate) fn render(&self, node: &PoolNode) -> Option<Result<Arc<RenderedRevision>, String>> {
        if node.kubelet.is_empty() {
            return None;
        }
        let inputs = self.inputs(node);
        let mut results = self.results.lock();
        if results.len() > MAX_REMEMBERED {
            results.clear();
        }
        let known = results.get(&inputs).cloned();
        let result = known.unwrap_or_else(|| {
            let result = self.template.evaluate(&inputs).and_then(|document| self.rendered(&document));
            // Equal results are kept once.
            let same = result
                .as_ref()
                .ok()
                .and_then(|new| results.values().flatten().find(|old| old.reference == new.reference).map(Arc::clone));
            let result = result.map(|new| same.unwrap_or_else(|| Arc::new(new)));
            results.insert(inputs, result.clone());
            result
        });
        Some(result.map_err(|why| format!("Node {}: {why}", node.name)))
    }

    /// Only what expressions ask for: what else differs makes no other result.
    fn inputs(&self, node: &PoolNode) -> Inputs {
        let uses = &self.template.uses;
        let asks = |variable: &str| uses.variables.contains(variable);
        let labels = uses.labels.iter();
        Inputs {
            cpu: node.cpu.filter(|_| asks("cpu")),
            memory: node.memory.filter(|_| asks("memory")),
            pods: node.pods.filter(|_| self.template.asks_for_reported_pods()),
            kubelet: (asks("kubeletVersion") || asks("kubeletMinor")).then(|| node.kubelet.clone()),
            labels: labels.filter_map(|label| Some((label.clone(), node.labels.get(label)?.clone()))).collect(),
        }
    }

    /// The ConfigMap `POOL-HASH-HASH2`: as the revision, with the result in the template's place.
    fn rendered(&self, document: &Value) -> Result<RenderedRevision, String> {
        let text = serde_json::to_string_pretty(document).map_err(|error| error.to_string())?;
        let mut content = Content::of(&self.object);
        content.data.remove(TEMPLATE_KEY);
        content.data.insert(DEFAULT_KEY.to_owned(), text);
        let pool = self.object.pointer("/metadata/labels").and_then(|labels| labels.get(POOL_LABEL)?.as_str());
        let ConfigMapRef { name, namespace, .. } = &self.reference;
        Ok(RenderedRevision::new(name, pool.unwrap_or_default(), namespace, &content))
    }
}
