//! The node's own files, read as its kubelet reads them: the file of `--config`, and the drop-ins of `--config-dir`.

use serde_json::Value;

use crate::reported::bounded;
use crate::yaml;

/// `kind` of what a kubelet reads.
pub const KIND: &str = "KubeletConfiguration";
/// Its `apiVersion`.
pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";

/// Directories below `--config-dir` that are entered, one in the other.
pub const DROP_IN_DEPTH: u32 = 16;

/// How drop-ins are laid over a configuration (`mergeKubeletConfigurations`, cmd/kubelet/app/server.go).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropInMerge {
    /// Each is read with its defaults, and laid over. What is zero in Go is not.
    Defaulted,
    /// As JSON of Go's own type, of any kind and version. No default is filled in.
    Internal,
    /// As JSON of the file's version. Defaults are filled in once more.
    Versioned,
}

impl DropInMerge {
    /// By a kubelet of this minor version; of one that is not known, by the newest.
    #[must_use]
    pub fn of(minor: Option<u64>) -> Self {
        match minor {
            Some(28) => Self::Defaulted,
            Some(29..=31) => Self::Internal,
            _ => Self::Versioned,
        }
    }
}

/// A file of `--config-dir`: read once, as the kubelet reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropIn {
    /// Its path, for people.
    pub path: String,
    /// Its content.
    pub text: String,
    /// What it says, or why no kubelet starts with it.
    content: Result<Value, String>,
    /// The line from which on it is not read.
    ignored_from: Option<usize>,
}

impl DropIn {
    /// One that was found at this path.
    #[must_use]
    pub fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        let text = text.into();
        let (content, ignored_from) = match drop_in(&text) {
            Ok(found) => (Ok(found.value), found.ignored_from),
            Err(why) => (Err(why), None),
        };
        Self { path: path.into(), text, content, ignored_from }
    }

    /// What it says, if it can be read.
    pub(crate) fn value(&self) -> Option<&Value> {
        self.content.as_ref().ok()
    }

    /// A name for a copy. The number keeps the order, the name is for people: messages of the kubelet show it.
    #[must_use]
    pub fn stored_name(&self, number: usize) -> String {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        let safe = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' };
        let name: String = name.trim_end_matches(".conf").chars().take(100).map(safe).collect();
        format!("{number:04}-{name}.conf")
    }

    /// Its path, and why no kubelet of this minor version starts with it, as far as is known here.
    #[must_use]
    pub fn fault(&self, minor: Option<u64>) -> Option<String> {
        let kind = |value: &Value| match DropInMerge::of(minor) {
            DropInMerge::Internal => any_kind(value),
            DropInMerge::Defaulted | DropInMerge::Versioned => check_kind(&mut value.clone(), false),
        };
        let why = self.content.as_ref().map_err(Clone::clone).and_then(kind).err()?;
        Some(format!("{}: {why}", self.path))
    }

    pub(crate) fn note(&self) -> Option<String> {
        self.ignored_from.map(|line| ignored(&self.path, line))
    }

    /// What makes it another one: what it says, not how it is written. What has a fault counts as it is written.
    pub(crate) fn identity(&self) -> String {
        format!("drop-in {}", self.content.clone().unwrap_or_else(|_| Value::from(self.text.as_str())))
    }
}

/// A drop-in's content. Its decoder is strict, and not followed by a lenient one, so a field that stands twice is no remark
/// here; and what a mapping does not have cannot be unknown (mergeKubeletConfigurations, cmd/kubelet/app/server.go, and
/// `DecodeKubeletConfigurationIntoJSON`, pkg/kubelet/kubeletconfig/util/codec/codec.go, v1.30 to v1.36).
fn drop_in(text: &str) -> Result<yaml::Document, String> {
    let document = yaml::parse_own(text)?;
    match &document.duplicate {
        Some(field) => Err(format!("a field stands twice, which is refused in a drop-in: {field}")),
        None => Ok(document),
    }
}

fn ignored(file: &str, line: usize) -> String {
    format!("{file}: a kubelet reads the first YAML document of it, and ignores what begins in line {line}")
}

/// The file of `--config`.
pub(crate) struct Local {
    /// Its content, without a look at its kind.
    pub(crate) value: Value,
    /// What its kubelet only warns of, or says nothing of.
    pub(crate) notes: Vec<String>,
}

/// The file of `--config`. Its strict decoder's complaints are remarks: the lenient one follows
/// (`DecodeKubeletConfiguration`, pkg/kubelet/kubeletconfig/util/codec/codec.go, v1.20.2 to v1.36).
pub(crate) fn local(text: &str) -> Result<Local, String> {
    let yaml::Document { mut value, duplicate, ignored_from } = yaml::parse_own(text)?;
    any_case(&mut value);
    let twice = duplicate.map(|field| format!("duplicate field in the local file, the last one wins: {field}"));
    let notes = twice.into_iter().chain(ignored_from.map(|line| ignored("the local file", line))).collect();
    Ok(Local { value, notes })
}

/// Kind and version of the file are looked for by a decoder that takes names in any case (`Interpret`, k8s.io/apimachinery,
/// serializer/json/meta.go, v1.20.2 to v1.36).
fn any_case(value: &mut Value) {
    let Value::Object(fields) = value else { return };
    for name in ["kind", "apiVersion"] {
        let spelt = fields.keys().rfind(|field| field.eq_ignore_ascii_case(name)).cloned();
        if !fields.contains_key(name)
            && let Some(found) = spelt.and_then(|spelt| fields.remove(&spelt))
        {
            fields.insert(name.to_owned(), found);
        }
    }
}

/// What 1.29 to 1.31 ask of a drop-in.
fn any_kind(value: &Value) -> Result<(), String> {
    let is_there = value.get("kind").and_then(Value::as_str).is_some_and(|kind| !kind.is_empty());
    is_there.then_some(()).ok_or_else(|| "kind is missing".to_owned())
}

/// The kubelet refuses any other kind or version at load; what may lack them (an overlay) is given them.
///
/// # Errors
/// Which of the two is wrong, and what it must be.
pub fn check_kind(value: &mut Value, may_lack: bool) -> Result<(), String> {
    for (field, expected) in [("kind", KIND), ("apiVersion", API_VERSION)] {
        match value.get(field) {
            Some(Value::String(found)) if found == expected => {}
            None if may_lack => {
                if let Value::Object(fields) = value {
                    fields.insert(field.to_owned(), expected.into());
                }
            }
            None => return Err(format!("{field} is missing: it must be {expected}")),
            Some(found) => {
                let found = bounded(&found.to_string(), 80);
                return Err(format!("{field} is {found}: it must be {expected}"));
            }
        }
    }
    Ok(())
}
