//! What makes a document a KubeletConfiguration.

use serde_json::Value;

use crate::reported::bounded;

/// `kind` of what a kubelet reads.
pub const KIND: &str = "KubeletConfiguration";
/// Its `apiVersion`.
pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";

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
