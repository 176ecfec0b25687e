//! The kubelet's kubeconfig: read twice it is the same, and what is told of it holds none of its secrets.

use std::fs;

use serde_json::Value;

use kubelet_config::yaml;
use kubelet_supervisor::adapters::kube::CredentialFiles;

pub(crate) fn check(data: &[u8]) {
    let path = super::directory().join("kubeconfig");
    fs::write(&path, data).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (files, again) = (CredentialFiles::load(&path), CredentialFiles::load(&path));
    assert_eq!(files.fingerprint(), again.fingerprint());
    let is_told = |text: &str| text.contains(SECRET) && !has_secret_elsewhere(data);
    match files.login() {
        Ok(login) => {
            assert!(!login.origin.server.is_empty(), "a client without a server");
            for text in [&login.origin.server, &login.origin.authority, &login.origin.user] {
                assert!(!is_told(text), "a secret is told: {text:?}");
            }
        }
        Err(why) => {
            super::assert_message(&why, 4096);
            assert!(!is_told(&why), "a secret is told: {why:?}");
        }
    }
}

/// What the seeds have for tokens, passwords and keys.
const SECRET: &str = "c2VjcmV0";

/// Fields that hold secrets; in lists of `args`, too.
const SECRET_FIELDS: [&str; 7] = [
    "token",
    "password",
    "client-key-data",
    "client-certificate-data",
    "certificate-authority-data",
    "proxy-url",
    "args",
];

/// A seed that is cut up may have a secret for its server's name, which is told.
fn has_secret_elsewhere(data: &[u8]) -> bool {
    fn is_in(value: &Value) -> bool {
        match value {
            Value::String(text) => text.contains(SECRET),
            Value::Array(items) => items.iter().any(is_in),
            Value::Object(fields) => fields
                .iter()
                .any(|(name, value)| name.contains(SECRET) || !SECRET_FIELDS.contains(&name.as_str()) && is_in(value)),
            _ => false,
        }
    }
    // With fields that stand twice, as the kubelet reads it.
    yaml::parse(&String::from_utf8_lossy(data)).is_ok_and(|document| is_in(&document.value))
}
