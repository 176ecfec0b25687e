//! What the random world has: maps, versions, contents.

use std::sync::Arc;

use kubelet_config::digest::Digest;
use kubelet_config::rendering::HealthzTarget;
use kubelet_config::source::{ConfigAnnotations, ConfigMapRef, Payload, Source};
use kubelet_supervisor::machine::model::Rendered;
use kubelet_supervisor::machine::records::{Records, Version};
use serde_json::json;

pub fn reference(map: u8) -> ConfigMapRef {
    ConfigMapRef { namespace: "n".to_owned(), name: format!("m{map}"), kubelet_config_key: "kubelet".to_owned() }
}

pub fn payload(map: u8, version: u8) -> Arc<Payload> {
    Arc::new(Payload {
        namespace: "n".to_owned(),
        name: format!("m{map}"),
        uid: format!("u{map}"),
        resource_version: version.to_string(),
        data: [("kubelet".to_owned(), String::new())].into(),
        binary_keys: [].into(),
        annotations: ConfigAnnotations::default(),
    })
}

pub fn source(map: u8, version: u8) -> Source {
    payload(map, version).resolve(&reference(map))
}

/// Versions 2k and 2k+1 of a map have the same content, as after a label edit.
pub fn content(source: &Source) -> Digest {
    Digest(format!("{}-{}", source.uid, source.resource_version.parse::<u32>().unwrap() / 2))
}

fn map_of(source: Option<&Source>) -> &str {
    source.map_or("", |source| &source.reference.name)
}

pub fn rendered(source: Option<&Source>) -> Rendered {
    let digest = source.map_or_else(|| Digest("local".to_owned()), content);
    Rendered {
        path: source.map(|_| format!("/{}", digest.0)).unwrap_or_default(),
        digest,
        effective: Arc::new(json!({"cpuManagerPolicy": if map_of(source) == "m2" { "static" } else { "none" }})),
        healthz: Some(HealthzTarget { host: "127.0.0.1".to_owned(), port: 10248 }),
        ..Rendered::default()
    }
}

pub fn nth<T: Clone>(asked: &[T], which: u8) -> Option<T> {
    asked.iter().rev().nth(usize::from(which)).cloned()
}

pub fn versions(records: &Records) -> impl Iterator<Item = &Version> {
    let pinned = records.pin.as_ref().and_then(|pin| pin.version.as_ref());
    let tried = records.phase.attempt().map(|attempt| &attempt.version);
    let before = records.reset.as_ref().map(|reset| &reset.before);
    let named = [&records.assigned, &records.last_known_good].into_iter().flatten();
    named.chain(&records.proven).chain(pinned).chain(tried).chain(before)
}
