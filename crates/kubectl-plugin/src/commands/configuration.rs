//! Reading configurations, wherever they are.

use std::collections::BTreeSet;
use std::io::Read as _;

use kube::api::GetParams;
use kube::core::request::Request as Path;
use serde_json::Value;

use crate::Failure;
use crate::api::client::{Client, segment};
use crate::api::list::{Selector, list};
use crate::api::nodes::{self, NODES};
use crate::fleet::compare::{Kind, Side};
use crate::fleet::config_ref::ConfigRef;
use crate::fleet::explain::{AppliedConfigMap, Origin, explain};
use crate::fleet::node::NodeRow;
use crate::fleet::wait::version_of;
use kubelet_config::assignment::DEFAULT_KEY;
use kubelet_config::flags::{self, FlagOverrides, KEY_SUFFIX, KubeletArgs};
use kubelet_config::pods::{NodeSummary, PodInventory, PodSummary};
use kubelet_config::reported::ReportedSupervisor;
use kubelet_config::schema::{self, FieldProblem};
use kubelet_config::source::Merge;
use kubelet_config::yaml;

/// Chooses how a payload is put together with the local file.
pub(crate) use crate::fleet::pool::revision::MERGE as MERGE_ANNOTATION;

/// A ConfigMap with a KubeletConfiguration.
#[derive(Clone, Debug)]
pub(crate) struct KubeletConfigMap {
    /// `metadata.resourceVersion`.
    pub(crate) version: String,
    /// `metadata.uid`.
    pub(crate) uid: String,
    /// Its KubeletConfiguration.
    pub(crate) value: Value,
    /// What a kubelet would ignore in it.
    pub(crate) problems: Vec<FieldProblem>,
    /// Its flag overrides.
    pub(crate) overrides: FlagOverrides,
    /// The merge that its annotation asks for.
    pub(crate) merge: Merge,
    /// True if it has no such annotation: then the supervisor's `--merge` decides.
    pub(crate) merge_unsaid: bool,
}

impl KubeletConfigMap {
    /// A ConfigMap as the API server has it.
    ///
    /// # Errors
    /// A missing key; what is no KubeletConfiguration.
    pub(crate) fn from_object(object: &Value, title: &str, key: Option<&str>) -> Result<Self, Failure> {
        let data = object.get("data").and_then(Value::as_object).cloned().unwrap_or_default();
        let key = key.map_or_else(|| only_key(&data), str::to_owned);
        let Some(text) = data.get(&key).and_then(Value::as_str) else {
            let keys: Vec<&str> = data.keys().map(String::as_str).collect();
            let there = if keys.is_empty() { "none".to_owned() } else { keys.join(", ") };
            return Err(Failure::new(format!("{title} has no key {key:?} in its data; there is: {there}")));
        };
        let (uid, version) = version_of(object).unwrap_or_default();
        let annotation = object.pointer("/metadata/annotations").and_then(|all| all.get(MERGE_ANNOTATION));
        let annotation = annotation.and_then(Value::as_str);
        let merge = annotation.map_or(Ok(Merge::Replace), str::parse);
        let merge =
            merge.map_err(|error: String| Failure::new(format!("{title}: annotation {MERGE_ANNOTATION}: {error}")))?;
        let (value, problems) = parse(text).map_err(|error| Failure::new(format!("{title}, key {key}: {error}")))?;
        let flags = format!("{key}{KEY_SUFFIX}");
        let overrides = FlagOverrides::parse(data.get(&flags).and_then(Value::as_str).unwrap_or_default());
        let overrides = overrides.map_err(|error| Failure::new(format!("{title}, key {flags}: {error}")))?;
        Ok(Self { version, uid, value, problems, overrides, merge, merge_unsaid: annotation.is_none() })
    }

    /// Its KubeletConfiguration, with its flags that are fields laid over it.
    pub(crate) fn fields(&self) -> Value {
        KubeletArgs::default().with(&self.overrides).overlay(&self.value)
    }

    /// Where the values come from that a kubelet of this minor version runs with under it.
    pub(crate) fn explain(&self, configz: &Value, supervisor: &ReportedSupervisor, minor: Option<u64>) -> Vec<Origin> {
        let (payload, overrides, merge) = (&self.fields(), &self.overrides, self.merge);
        explain(configz, Some(AppliedConfigMap { payload, overrides, merge, supervisor }), minor)
    }
}

/// What the kubelet says it runs with, kind and apiVersion put in.
///
/// # Errors
/// The API server's or the kubelet's.
pub(crate) async fn running(client: &Client, node: &str) -> Result<Value, Failure> {
    let request = segment(node, "node")
        .and_then(|node| Path::new(NODES).get(&format!("{node}/proxy/configz"), &GetParams::default()));
    let what = format!("read the /configz of node {node} (verb get on nodes/proxy)");
    let answer = client.request(&what, request).await?;
    let Some(Value::Object(mut fields)) = answer.get("kubeletconfig").cloned() else {
        return Err(Failure::new(format!("{what}: the kubelet's answer has no \"kubeletconfig\"")));
    };
    fields.insert("kind".to_owned(), kubelet_config::own_files::KIND.into());
    fields.insert("apiVersion".to_owned(), kubelet_config::own_files::API_VERSION.into());
    Ok(Value::Object(fields))
}

/// A ConfigMap and the configuration in it.
///
/// # Errors
/// The API server's; a missing key; what is no KubeletConfiguration.
pub(crate) async fn map(
    client: &Client,
    namespace: &str,
    name: &str,
    key: Option<&str>,
) -> Result<KubeletConfigMap, Failure> {
    let object = client.config_map(namespace, name).await?;
    KubeletConfigMap::from_object(&object, &format!("ConfigMap {namespace}/{name}"), key)
}

/// `kubelet`, unless there is one key alone, but for its flags.
fn only_key(data: &serde_json::Map<String, Value>) -> String {
    let is_flags = |name: &str| name.strip_suffix(KEY_SUFFIX).is_some_and(|key| data.contains_key(key));
    let mut keys = data.keys().filter(|name| !is_flags(name));
    match (keys.next(), keys.next()) {
        (Some(only), None) => only.clone(),
        _ => DEFAULT_KEY.to_owned(),
    }
}

/// A KubeletConfiguration's text, which may lack kind and apiVersion; with what a kubelet would ignore in it.
///
/// # Errors
/// A line on what is wrong.
fn parse(text: &str) -> Result<(Value, Vec<FieldProblem>), String> {
    let mut document = yaml::parse(text)?;
    kubelet_config::own_files::check_kind(&mut document.value, true)?;
    let mut problems = schema::problems(&document.value);
    problems.extend(document.duplicate.map(FieldProblem::Duplicate));
    Ok((document.value, problems))
}

/// The text of a file of flag overrides.
///
/// # Errors
/// It cannot be read, or a line is no flag, or one that no source may change.
pub(crate) fn read_flags(path: &str) -> Result<String, Failure> {
    let text = read_file(path)?;
    // What nodes' policies leave to a source is theirs to say.
    let left_to_policy = BTreeSet::from([flags::LEFT_TO_POLICY.to_owned()]);
    let checked = FlagOverrides::parse(&text).and_then(|overrides| overrides.check(&left_to_policy));
    checked.map_err(|why| Failure::new(format!("{path}: {why}")))?;
    Ok(text)
}

/// What a file is called in messages.
pub(crate) fn title(path: &str) -> &str {
    if path == "-" { "standard input" } else { path }
}

/// The text of a file, or of standard input (`-`).
///
/// # Errors
/// It cannot be read, is too large, or no text.
pub(crate) fn read_file(path: &str) -> Result<String, Failure> {
    let title = title(path);
    let limit = u64::try_from(yaml::MAX_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    let read = if path == "-" {
        std::io::stdin().take(limit).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes))
    };
    read.map_err(|error| Failure::new(format!("{title}: {error}")))?;
    if bytes.len() > yaml::MAX_BYTES {
        return Err(Failure::new(format!("{title}: more than 1 MiB, which is all that a ConfigMap holds")));
    }
    String::from_utf8(bytes).map_err(|error| Failure::new(format!("{title}: no text in UTF-8: {error}")))
}

/// A side of a comparison as it was read.
pub(crate) struct ReadSide {
    pub(crate) side: Side,
    /// The node whose it is.
    pub(crate) row: Option<NodeRow>,
    /// What people know it by.
    title: String,
    problems: Vec<FieldProblem>,
}

impl ReadSide {
    pub(crate) fn of_map(title: String, map: KubeletConfigMap) -> Self {
        let side = Side { value: map.fields(), flags: Some(map.overrides), kind: Kind::Written(map.merge) };
        Self { side, row: None, title, problems: map.problems }
    }

    /// Lines on what a kubelet of this version would ignore in it.
    pub(crate) fn messages(&self, minor: Option<u64>) -> impl Iterator<Item = String> {
        let lines = schema::messages(&self.problems, minor).into_iter();
        lines.map(|line| format!("{}: {line}", self.title))
    }
}

/// A side of a comparison. `files`: how they are to be put together with a node's own.
pub(crate) async fn side(client: Option<&Client>, place: &ConfigRef, files: Merge) -> Result<ReadSide, Failure> {
    match (place, client) {
        (ConfigRef::File(path), _) => {
            let text = read_file(path)?;
            let (value, problems) = parse(&text).map_err(|error| Failure::new(format!("{place}: {error}")))?;
            let side = Side { value, flags: Some(FlagOverrides::default()), kind: Kind::Written(files) };
            Ok(ReadSide { side, row: None, title: place.to_string(), problems })
        }
        (ConfigRef::ConfigMap { namespace, name, key }, Some(client)) => {
            let namespace = namespace.as_deref().unwrap_or(&client.namespace);
            let map = map(client, namespace, name, key.as_deref()).await?;
            Ok(ReadSide::of_map(format!("ConfigMap {namespace}/{name}"), map))
        }
        (ConfigRef::Node(name), Some(client)) => {
            let node = nodes::get(client, name).await?;
            let row = NodeRow::from_node(&node, &client.namespace);
            let minor = schema::minor(&row.kubelet).ok();
            let side = Side { value: running(client, name).await?, flags: None, kind: Kind::Running(minor) };
            // A kubelet tells the fields that it knows.
            Ok(ReadSide { side, row: Some(row), title: place.to_string(), problems: Vec::new() })
        }
        (ConfigRef::Pool(_), Some(_)) => Err(Failure::new(format!("{place}: no configuration without a node"))),
        (_, None) => Err(Failure::new(format!("{place}: no connection to a cluster"))),
    }
}

/// The pods of a node, page by page, and what the node has for them.
pub(crate) async fn inventory(client: &Client, node: &str) -> Result<PodInventory, Failure> {
    let object = nodes::get(client, node).await?;
    let selector = Selector::default().fields(&format!("spec.nodeName={node}"));
    let what = format!("list the pods of node {node}");
    let read = |pod| Some(PodSummary::from_object(&pod));
    let pods = list(client, "/api/v1/pods", &what, selector, read).await?;
    Ok(PodInventory { pods, node: NodeSummary::from_object(&object) })
}

/// The ConfigMap that a node runs.
#[derive(Clone, Debug)]
pub(crate) struct InForce {
    /// `NAMESPACE/NAME`.
    pub(crate) title: String,
    /// It, if it is to be had as the node has it.
    pub(crate) map: Option<KubeletConfigMap>,
    /// What keeps it from being had, or makes it uncertain.
    pub(crate) notes: Vec<String>,
}

/// The ConfigMap that a node runs; none: its own configuration, or nobody says.
pub(crate) async fn in_force(client: &Client, row: &NodeRow) -> Option<InForce> {
    let active = row.active.as_ref()?;
    let reference = &active.reference;
    let title = format!("{}/{}", reference.namespace, reference.name);
    let key = Some(reference.kubelet_config_key.as_str());
    let map = match map(client, &reference.namespace, &reference.name, key).await {
        Ok(map) if map.uid == active.uid && map.version == active.resource_version => Ok(map),
        Ok(map) => Err(format!(
            "ConfigMap {title} was edited after version {} that the node runs (it is at {}): what it said then is on \
             the node alone",
            active.resource_version, map.version
        )),
        Err(failure) => Err(format!("what the node's ConfigMap says is not known: {}", failure.message)),
    };
    let mut notes: Vec<String> = map.as_ref().err().cloned().into_iter().collect();
    let map = map.ok();
    let messages = map.iter().flat_map(|map| schema::messages(&map.problems, schema::minor(&row.kubelet).ok()));
    notes.extend(messages.map(|line| format!("ConfigMap {title}: {line}")));
    if map.as_ref().is_some_and(|map| map.merge_unsaid) {
        notes.push(format!(
            "ConfigMap {title} has no annotation {MERGE_ANNOTATION}: taken for replace, which the supervisor's --merge may change"
        ));
    }
    Some(InForce { title, map, notes })
}
