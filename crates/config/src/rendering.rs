//! Rendering: payload + local file → the configuration the kubelet is given.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::merge::merge;
use super::yaml;
use crate::digest::{Digest, sha256};
use crate::effective::{self, Sources};
use crate::flags::{FlagOverrides, KubeletArgs, NATIVE_GATE};
use crate::hazard;
use crate::own_files::{self, DropIn, check_kind};
use crate::schema::{self, FieldProblem};
use crate::source::Merge;

/// Fields that are paths; relative ones are against the directory of the file they stand in.
/// Upstream: `KubeletConfigurationPathRefs` (pkg/kubelet/apis/config/helpers.go, v1.20.2, and
/// `podLogsDir` of v1.36).
pub const PATH_FIELDS: [&[&str]; 7] = [
    &["staticPodPath"],
    &["authentication", "x509", "clientCAFile"],
    &["tlsCertFile"],
    &["tlsPrivateKeyFile"],
    &["resolvConf"],
    &["volumePluginDir"],
    &["podLogsDir"],
];

/// A configuration text and the directory its relative paths refer to.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    /// One YAML or JSON document.
    pub text: &'a str,
    /// The directory, absolute.
    pub dir: &'a str,
}

/// What a rendering starts from.
#[derive(Clone, Copy)]
pub struct RenderInput<'a> {
    /// The payload's kubelet key; `None` renders the local configuration.
    pub payload: Option<Text<'a>>,
    /// The file of the kubelet's own `--config`, if it has one.
    pub local: Option<Text<'a>>,
    /// How the two are put together.
    pub merge: Merge,
    /// Content of the payload's other keys, by name: a path field may name one of them.
    pub keys: &'a dyn Fn(&str) -> Option<String>,
    /// Where configurations lie by their digest, absolute: a path field that names a key of the payload then points
    /// below it, see [`Configuration::files`], and a relative one that names none is refused. Without it both are paths in
    /// the payload's directory.
    pub configs: Option<&'a str>,
    /// The `--config-dir` drop-ins in the kubelet's order. The kubelet is given them as they are, and merges them itself.
    pub drop_ins: &'a [DropIn],
    /// The kubelet's command line.
    pub args: &'a KubeletArgs,
    /// What the payload's source changes of it.
    pub overrides: &'a FlagOverrides,
    /// The kubelet's minor version, if it is known.
    pub minor: Option<u64>,
}

/// The outcome of a rendering.
#[derive(Clone, Debug, Default)]
pub struct Configuration {
    /// The configuration, paths absolute.
    pub value: Value,
    /// Identifies it: equal digests mean that a restart would change nothing.
    pub digest: Digest,
    /// What the payload itself says; none for the local configuration.
    pub payload: Option<Value>,
    /// What becomes of the kubelet's command line. It is part of the digest.
    pub overrides: FlagOverrides,
    /// The drop-ins that the kubelet merges over the value. They are part of the digest.
    pub drop_ins: Vec<DropIn>,
    /// The payload's keys that path fields name, and their content. Of a digest `d` they belong into `d/files/<key>`.
    pub files: BTreeMap<String, String>,
    /// Where healthz will be, flags and drop-ins considered.
    pub healthz: Option<HealthzTarget>,
    /// What the kubelet will go by ([`effective::value`]).
    pub effective: Value,
    /// Remarks for the journal and `render`.
    pub notes: Vec<String>,
    /// Payload fields that a command-line flag overrides, with the flag.
    pub shadowed: Vec<String>,
    /// Fields of the payload that stand twice, or that some kubelet does not know.
    pub problems: Vec<FieldProblem>,
}

/// Which text was at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderFault {
    /// The payload is no KubeletConfiguration.
    #[error("{0}")]
    Payload(String),
    /// The local file is none.
    #[error("{0}")]
    Local(String),
    /// A drop-in is none; it is named.
    #[error("{0}")]
    DropIn(String),
}

/// Renders a configuration.
///
/// # Errors
/// [`RenderFault`] when a text is not a KubeletConfiguration.
pub fn render(from: &RenderInput<'_>) -> Result<Configuration, RenderFault> {
    let mut notes = Vec::new();
    let drop_ins = from.drop_ins.to_vec();
    let local = from.local.map(|local| read(local, &mut notes)).transpose().map_err(RenderFault::Local)?;
    notes.extend(drop_ins.iter().filter_map(DropIn::note));
    // No kubelet starts with such a drop-in, whatever else it is given.
    let fault = drop_ins.iter().find_map(|drop_in| drop_in.fault(from.minor));
    let sound = || fault.map_or(Ok(()), |why| Err(RenderFault::DropIn(why)));
    let Some(payload) = from.payload else {
        sound()?;
        let value = local.unwrap_or(Value::Null);
        // The file is the node's; but for comparison the gate is none, as in what we render.
        let mut portable = value.clone();
        if drop_native_gate(&mut portable) {
            notes.push(format!(
                "the local file sets featureGates.{NATIVE_GATE}, which kubelets from v1.24 on refuse: take it out of that file"
            ));
        }
        let merges = !from.drop_ins.is_empty() || from.args.has("config-dir");
        let Effective { value: effective, healthz } = effective(&value, from.drop_ins, (from.args, merges), from.minor);
        let digest = digest(&portable, &FlagOverrides::default(), &drop_ins);
        return Ok(Configuration { value, digest, drop_ins, healthz, effective, notes, ..Configuration::default() });
    };

    let mut parsed = yaml::parse(payload.text).map_err(RenderFault::Payload)?;
    let mut problems: Vec<FieldProblem> = parsed.duplicate.map(FieldProblem::Duplicate).into_iter().collect();
    problems.extend(schema::problems(&parsed.value));
    let overlay = from.merge == Merge::Overlay;
    check_kind(&mut parsed.value, overlay && local.is_some()).map_err(RenderFault::Payload)?;
    let overrides = from.overrides.clone();
    notes.extend(from.args.remarks(&overrides));
    let args = from.args.with(&overrides);
    let shadowed =
        args.shadowed(&parsed.value).iter().map(|it| format!("{} (--{})", it.path.join("."), it.flag)).collect();

    // `portable` keeps the payload's relative paths and the hash of what they point at, so that
    // the same content under a new resourceVersion has the same digest.
    let mut portable = parsed.value.clone();
    let files = fingerprint_files(&mut portable, from.keys);
    if let Some(why) = unresolved(&mut parsed.value, &files, from.configs.is_some()) {
        return Err(RenderFault::Payload(why));
    }
    sound()?;
    let mut portable = combine(local.as_ref(), portable, overlay);
    drop_native_gate(&mut portable);
    let digest = digest(&portable, &overrides, &drop_ins);

    let payload_value = parsed.value.clone();
    let mut value = parsed.value;
    if let Some(configs) = from.configs {
        point_to_files(&mut value, &files, &format!("{}/{}/files", configs.trim_end_matches('/'), digest.0));
    }
    absolute_paths(&mut value, payload.dir);
    let mut value = combine(local.as_ref(), value, overlay);
    if drop_native_gate(&mut value) {
        notes.push(format!("featureGates.{NATIVE_GATE} is left out: kubelets from v1.24 on refuse it, to earlier ones it means nothing here"));
    }
    let Effective { value: effective, healthz } =
        effective(&value, from.drop_ins, (&args, !from.drop_ins.is_empty()), from.minor);
    Ok(Configuration {
        value,
        digest,
        payload: Some(payload_value),
        overrides,
        drop_ins,
        files,
        healthz,
        effective,
        notes,
        shadowed,
        problems,
    })
}

/// Takes the gate `DynamicKubeletConfig` out; true if it was there.
pub fn drop_native_gate(value: &mut Value) -> bool {
    let Some(Value::Object(gates)) = value.get_mut("featureGates") else { return false };
    let found = gates.remove(NATIVE_GATE).is_some();
    if found
        && gates.is_empty()
        && let Value::Object(fields) = value
    {
        fields.remove("featureGates");
    }
    found
}

/// What a kubelet goes by.
#[derive(Clone, Debug)]
pub struct Effective {
    /// As [`effective::value`] has it.
    pub value: Value,
    /// Where healthz will be.
    pub healthz: Option<HealthzTarget>,
}

/// What a kubelet of this minor version goes by that is given this configuration (null: none), with these drop-ins and flags.
/// `merges`: it is given a directory of drop-ins, though there may be none in it.
#[must_use]
pub fn effective(
    configuration: &Value,
    drop_ins: &[DropIn],
    (args, merges): (&KubeletArgs, bool),
    minor: Option<u64>,
) -> Effective {
    let from = Sources { merges, ..Sources::of(configuration, drop_ins, args) };
    let value = effective::value(&effective::layers(&from), minor);
    Effective { healthz: healthz(&value), value }
}

fn read(text: Text<'_>, notes: &mut Vec<String>) -> Result<Value, String> {
    let parsed = own_files::local(text.text)?;
    notes.extend(parsed.notes);
    let mut value = parsed.value;
    check_kind(&mut value, false)?;
    absolute_paths(&mut value, text.dir);
    Ok(value)
}

/// A file of the node as a text that means the same in another directory, and to a reader of one document. What cannot be
/// parsed stays as it is.
pub(crate) fn with_absolute_paths(text: Text<'_>) -> String {
    let Ok(parsed) = own_files::local(text.text) else { return text.text.to_owned() };
    let mut value = parsed.value;
    absolute_paths(&mut value, text.dir);
    // What a reader of one document finds in it.
    let as_written = yaml::parse(text.text).is_ok_and(|found| found.value == value);
    if as_written { text.text.to_owned() } else { value.to_string() }
}

fn combine(local: Option<&Value>, payload: Value, overlay: bool) -> Value {
    let Some(local) = local else { return payload };
    if overlay {
        let mut base = local.clone();
        merge(&mut base, &payload);
        return base;
    }
    let mut value = payload;
    // Native sums the gates of flags, local file and payload (featuregate SetFromMap only adds).
    if let (Some(Value::Object(gates)), Value::Object(fields)) = (local.get("featureGates"), &mut value)
        && !gates.is_empty()
    {
        let entry = fields.entry("featureGates").or_insert_with(|| Value::Object(Map::new()));
        let mut sum = Value::Object(gates.clone());
        merge(&mut sum, entry);
        *entry = sum;
    }
    value
}

fn path_field<'a>(value: &'a mut Value, path: &[&str]) -> Option<&'a mut String> {
    let mut at = value;
    for name in path {
        at = at.get_mut(*name)?;
    }
    match at {
        Value::String(text) if !text.is_empty() && !text.starts_with('/') => Some(text),
        _ => None,
    }
}

fn absolute_paths(value: &mut Value, dir: &str) {
    for field in PATH_FIELDS {
        if let Some(path) = path_field(value, field) {
            *path = format!("/{}", parts(&format!("{dir}/{path}")).0.join("/"));
        }
    }
}

/// The parts of a path, cleaned as the kubelet does (filepath.Join): by its letters, whatever is there. And whether it
/// leads out of where it starts.
fn parts(path: &str) -> (Vec<&str>, bool) {
    let (mut parts, mut leads_out) = (Vec::new(), false);
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => leads_out |= parts.pop().is_none(),
            name => parts.push(name),
        }
    }
    (parts, leads_out)
}

/// The name that a relative path has once it is cleaned; `None` if it leads out of its directory.
fn cleaned(path: &str) -> Option<String> {
    let (parts, leads_out) = parts(path);
    (!leads_out).then(|| parts.join("/"))
}

/// Puts the key's name and the hash of its content where a path names a key; gives these keys.
fn fingerprint_files(value: &mut Value, keys: &dyn Fn(&str) -> Option<String>) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for field in PATH_FIELDS {
        if let Some(path) = path_field(value, field)
            && let Some(key) = cleaned(path)
            && let Some(content) = keys(&key)
        {
            *path = format!("{key}#{}", sha256(content.as_bytes()));
            files.insert(key, content);
        }
    }
    files
}

/// Why the digest would not cover what a relative path of the payload names: it leads out of the payload, or, where all of
/// that is known, names no key.
fn unresolved(value: &mut Value, files: &BTreeMap<String, String>, complete: bool) -> Option<String> {
    PATH_FIELDS.into_iter().find_map(|field| {
        let path = path_field(value, field)?;
        let key = cleaned(path);
        if key.as_ref().is_some_and(|key| !complete || files.contains_key(key)) {
            return None;
        }
        let what = if key.is_none() { "leads out of the payload" } else { "names no key in the payload's data" };
        let field = field.join(".");
        Some(format!(
            "{field}: {path:?} is relative and {what}: name a key, or a file of the node by its absolute path"
        ))
    })
}

fn point_to_files(value: &mut Value, files: &BTreeMap<String, String>, dir: &str) {
    for field in PATH_FIELDS {
        if let Some(path) = path_field(value, field)
            && let Some(key) = cleaned(path).filter(|key| files.contains_key(key))
        {
            *path = format!("{dir}/{key}");
        }
    }
}

fn digest(value: &Value, overrides: &FlagOverrides, drop_ins: &[DropIn]) -> Digest {
    // serde_json without `preserve_order` sorts keys: the text is canonical, and one line.
    let mut lines = [vec![spelt_once(value).to_string()], overrides.lines()].concat();
    lines.extend(drop_ins.iter().map(DropIn::identity));
    Digest(sha256(lines.join("\n").as_bytes()))
}

/// Each field in one spelling of its type: who writes `1m` for `60s` has the same content, and needs no restart.
fn spelt_once(value: &Value) -> Value {
    let Value::Object(fields) = value else { return value.clone() };
    let spelt = |(name, value): (&String, &Value)| {
        let of = hazard::table::find(name).map(|hazard| hazard.of);
        (name.clone(), of.map_or_else(|| value.clone(), |of| of.spelt_once(value)))
    };
    Value::Object(fields.iter().map(spelt).collect())
}

/// Port 0 is off.
fn healthz(effective: &Value) -> Option<HealthzTarget> {
    let port = hazard::effective(effective, "healthzPort").as_u64()?;
    let host = hazard::effective(effective, "healthzBindAddress");
    let host = match host.as_str()? {
        "" | "0.0.0.0" => "127.0.0.1",
        "::" => "::1",
        host => host,
    };
    let port = u16::try_from(port).ok().filter(|port| *port != 0)?;
    Some(HealthzTarget { host: host.to_owned(), port })
}

/// Address of the kubelet's plain healthz listener.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct HealthzTarget {
    /// IP address to connect to.
    pub host: String,
    /// TCP port, never 0.
    pub port: u16,
}

#[cfg(test)]
mod node_files;
#[cfg(test)]
mod tests;
