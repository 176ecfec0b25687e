//! A policy's text, read strictly: a field that is misspelt must not be taken for freedom.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::judge::with_field;
use super::signature::{pool, seconds};
use super::{API_VERSION, KIND, NodePolicy, Signatures, TrustedKey};
use crate::assignment::is_namespace;
use crate::flags;
use crate::schema::{self, FieldProblem, UnknownFields};
use crate::yaml;

impl NodePolicy {
    /// Reads a policy.
    ///
    /// # Errors
    /// The path of the field that is wrong, why, and what can stand there.
    pub fn parse(text: &str) -> Result<Self, String> {
        let document = yaml::parse(text)?;
        if let Some(duplicate) = document.duplicate {
            return Err(format!("a field stands twice: {duplicate}"));
        }
        let mut fields = Fields::of("", document.value)?;
        fields.must_be("apiVersion", API_VERSION)?;
        fields.must_be("kind", KIND)?;
        let policy = Self {
            allowed_namespaces: fields.list("allowedNamespaces", namespace)?,
            denied_fields: fields.list("deniedFields", field_path)?.unwrap_or_default(),
            pinned_fields: fields
                .take("pinnedFields")
                .map_or(Ok(BTreeMap::new()), |(path, value)| pinned(&path, value))?,
            acknowledgeable: fields.list("acknowledgeable", str::parse)?,
            overridable_flags: fields.list("overridableFlags", flag)?,
            unknown_fields: fields.word("unknownFields")?.map_or(Ok(UnknownFields::default()), |(path, word)| {
                word.parse().map_err(|why| format!("{path}: {why}"))
            })?,
            signatures: fields.take("signatures").map(|(path, value)| signatures(&path, value)).transpose()?,
        };
        fields.end()?;
        Ok(policy)
    }
}

/// A mapping that is taken apart field by field.
struct Fields {
    path: String,
    left: Map<String, Value>,
    known: Vec<&'static str>,
}

impl Fields {
    fn of(path: &str, value: Value) -> Result<Self, String> {
        match value {
            Value::Object(left) => Ok(Self { path: path.to_owned(), left, known: Vec::new() }),
            _ => Err(format!("{path}: it must be a mapping of fields")),
        }
    }

    fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    fn take(&mut self, name: &'static str) -> Option<(String, Value)> {
        self.known.push(name);
        self.left.remove(name).map(|value| (self.path(name), value))
    }

    fn word(&mut self, name: &'static str) -> Result<Option<(String, String)>, String> {
        let Some((path, value)) = self.take(name) else { return Ok(None) };
        text(&path, value).map(|word| Some((path, word)))
    }

    fn must_be(&mut self, name: &'static str, wanted: &str) -> Result<(), String> {
        match self.word(name)? {
            Some((_, word)) if word == wanted => Ok(()),
            Some((path, word)) => Err(format!("{path}: {word:?} must be {wanted}")),
            None => Err(format!("{}: it must be there and be {wanted}", self.path(name))),
        }
    }

    fn list<T: Ord>(
        &mut self,
        name: &'static str,
        read: fn(&str) -> Result<T, String>,
    ) -> Result<Option<BTreeSet<T>>, String> {
        let Some((path, value)) = self.take(name) else { return Ok(None) };
        let Value::Array(items) = value else { return Err(format!("{path}: it must be a list")) };
        let mut set = BTreeSet::new();
        for (index, item) in items.into_iter().enumerate() {
            let path = format!("{path}[{index}]");
            let word = text(&path, item)?;
            if !set.insert(read(&word).map_err(|why| format!("{path}: {why}"))?) {
                return Err(format!("{path}: {word:?} stands there before"));
            }
        }
        Ok(Some(set))
    }

    fn end(self) -> Result<(), String> {
        let Some(name) = self.left.keys().next() else { return Ok(()) };
        let name: String = name.chars().take(60).flat_map(char::escape_debug).collect();
        Err(format!("{}: there is no such field; here can stand: {}", self.path(&name), self.known.join(", ")))
    }
}

fn text(path: &str, value: Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err(format!("{path}: it must be a text")),
    }
}

fn namespace(word: &str) -> Result<String, String> {
    if !is_namespace(word) {
        return Err(format!("{word:?} cannot be a namespace: a-z, 0-9 and -, at most 63"));
    }
    Ok(word.to_owned())
}

/// A path of a field that some kubelet knows: a misspelt one would deny nothing.
fn field_path(path: &str) -> Result<String, String> {
    if path.is_empty() || path.split('.').any(str::is_empty) {
        return Err(format!("{path:?} is not the path of a field, such as authentication.anonymous.enabled"));
    }
    match schema::problems(&with_field(&Value::Object(Map::new()), path, Value::Null)).first() {
        Some(problem @ FieldProblem::Unknown { .. }) => Err(problem.message(None).unwrap_or_default()),
        _ => Ok(path.to_owned()),
    }
}

fn pinned(path: &str, value: Value) -> Result<BTreeMap<String, Value>, String> {
    let Value::Object(fields) = value else {
        return Err(format!("{path}: it must be a mapping of field paths to values, such as readOnlyPort: 0"));
    };
    fields
        .into_iter()
        .map(|(field, value)| {
            field_path(&field).map_err(|why| format!("{path}: {why}"))?;
            if value.is_null() {
                return Err(format!("{path}.{field}: it has no value; deniedFields keeps a field as the node has it"));
            }
            Ok((field, value))
        })
        .collect()
}

fn flag(word: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if word.is_empty() || word.starts_with('-') || !word.chars().all(is_plain) {
        return Err(format!("{word:?} is no flag's name: without --, such as node-labels"));
    }
    match flags::refused_for_good(word) {
        Some(why) => Err(format!("no policy can allow --{word}: {why}")),
        None => Ok(word.to_owned()),
    }
}

fn signatures(path: &str, value: Value) -> Result<Signatures, String> {
    let mut fields = Fields::of(path, value)?;
    let required = match fields.take("required") {
        None => true,
        Some((_, Value::Bool(required))) => required,
        Some((path, _)) => return Err(format!("{path}: it must be true or false")),
    };
    let pools = fields.list("pools", pool)?;
    if pools.as_ref().is_some_and(BTreeSet::is_empty) {
        return Err(format!("{path}.pools: it names no pool; leave it out for any"));
    }
    let Some((keys_path, Value::Array(items))) = fields.take("keys") else {
        return Err(format!("{path}.keys: a list of public keys must be there"));
    };
    fields.end()?;
    let mut keys: Vec<TrustedKey> = Vec::new();
    for (index, item) in items.into_iter().enumerate() {
        let path = format!("{keys_path}[{index}]");
        let mut fields = Fields::of(&path, item)?;
        let Some((_, name)) = fields.word("name")? else {
            return Err(format!("{path}.name: it must be there: status shows it"));
        };
        let Some((key_path, text)) = fields.word("key")? else {
            return Err(format!("{path}.key: it must be there: the second line of minisign's public key file"));
        };
        let not_after = fields.word("notAfter")?.map(|(path, word)| {
            let wrong = || format!("{path}: {word:?} must be a time in RFC 3339, such as 2027-06-30T00:00:00Z");
            seconds(&word).ok_or_else(wrong)
        });
        fields.end()?;
        let mut key = TrustedKey::new(name, &text).map_err(|why| format!("{key_path}: {why}"))?;
        key.not_after = not_after.transpose()?;
        if keys.iter().any(|other| other.id == key.id || other.name == key.name) {
            return Err(format!("{path}: a key of this name or id stands there before"));
        }
        keys.push(key);
    }
    if keys.is_empty() {
        return Err(format!("{keys_path}: it has no key, so nobody could sign"));
    }
    Ok(Signatures { required, pools, keys })
}
