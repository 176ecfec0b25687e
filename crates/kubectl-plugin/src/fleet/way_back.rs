//! Where a node goes back to. What the node says of itself names nothing that administrators did not make for it, for it is
//! written with the rights of whoever runs the command: the name must be one that `push` gives, and tell the content.

use super::node::NodeRow;
use kubelet_config::source::{ConfigMapRef, Source};

/// Where the node goes back to: what is last known good there, and what the name of that begins with; the rest has to tell its
/// content.
///
/// # Errors
/// Why nobody can tell, and what to do.
pub(crate) fn way_back(row: &NodeRow) -> Result<(&Source, &str), String> {
    let Some(desired) = &row.desired else { return Err("nothing is assigned".to_owned()) };
    let good = row.last_known_good.as_ref();
    if good.is_some_and(|good| good.reference == *desired && row.assigned.as_ref() == Some(good)) {
        return Err("what is assigned is last known good already; --to names another ConfigMap".to_owned());
    }
    if let Some((good, base)) = good.and_then(|good| Some((good, same_push(&good.reference, desired)?))) {
        return Ok((good, base));
    }
    let Some(good) = good else {
        return Err("it calls no ConfigMap last known good: `kubectl kubelet-config reset` goes back to its own configuration, --to \
                    CONFIGMAP to one that you name"
            .to_owned());
    };
    // Not a command that could be pasted: the name is what the node says.
    Err(format!(
        "it was not pushed under the same name before, and what it says itself is not assigned unseen: it calls {} last known good. \
         If that is right, say it: --to CONFIGMAP -n NAMESPACE",
        good.reference
    ))
}

/// What both names begin with, if both were pushed under the same name into the same namespace.
fn same_push<'a>(one: &'a ConfigMapRef, other: &ConfigMapRef) -> Option<&'a str> {
    // The hash has ten characters (`configmap_name.rs`).
    fn base(map: &ConfigMapRef) -> Option<&str> {
        map.name.rsplit_once('-').filter(|(_, hash)| hash.len() == 10).map(|(base, _)| base)
    }
    let same = one.namespace == other.namespace && one.kubelet_config_key == other.kubelet_config_key;
    base(one).filter(|name| same && base(other) == Some(*name))
}

/// Why a ConfigMap as it is now is not the version to go back to, if it is not.
pub(crate) fn is_other_version(back: &Source, uid: &str, version: &str) -> Option<String> {
    (back.uid != uid || back.resource_version != version).then(|| {
        format!(
            "last known good is version {} of ConfigMap {}/{}, which has been edited since (now {version}): on the node, \
             `kubelet-supervisor rollback` goes back to what it keeps; or --to names a ConfigMap with the old content",
            back.resource_version, back.reference.namespace, back.reference.name
        )
    })
}
