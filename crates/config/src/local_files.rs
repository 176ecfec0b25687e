//! The local files in the place of a ConfigMap, where nothing else is assigned (`--follow-local`).

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest as _, Sha256};

use crate::digest::hex;
use crate::own_files::DropIn;
use crate::rendering::{self, Text};
use crate::source::{ConfigAnnotations, ConfigMapRef, LOCAL_FILES, Payload};

/// Digits of the version: 64 bits tell apart whatever one node will ever hold, and can be typed.
const VERSION_DIGITS: usize = 16;

/// The `--config` file and the drop-ins as a payload: all that a version of them is rendered from, whatever becomes of the
/// files.
#[must_use]
pub fn payload(config: Text<'_>, drop_ins: &[DropIn]) -> Payload {
    let ConfigMapRef { namespace, name, kubelet_config_key } = ConfigMapRef::local_files();
    let copies = drop_ins.iter().zip(0..).map(|(drop_in, number)| (drop_in.stored_name(number), drop_in.text.clone()));
    let data: BTreeMap<_, _> = copies.chain([(kubelet_config_key, rendering::with_absolute_paths(config))]).collect();
    Payload {
        namespace,
        name,
        uid: LOCAL_FILES.to_owned(),
        resource_version: version(&data),
        data,
        binary_keys: BTreeSet::new(),
        annotations: ConfigAnnotations { merge: Some("replace".to_owned()), ..ConfigAnnotations::default() },
    }
}

/// The drop-ins of a payload, in their order.
#[must_use]
pub fn drop_ins(data: &BTreeMap<String, String>) -> Vec<DropIn> {
    let numbered = data.iter().filter_map(|(name, text)| Some((name.split_once('-')?.1, text)));
    numbered.map(|(name, text)| DropIn::new(name, text)).collect()
}

/// The same files are the same version, whenever they are read.
fn version(data: &BTreeMap<String, String>) -> String {
    let mut sum = Sha256::new();
    for part in data.iter().flat_map(|(name, text)| [name, text]) {
        sum.update((part.len() as u64).to_be_bytes());
        sum.update(part.as_bytes());
    }
    hex(&sum.finalize()).chars().take(VERSION_DIGITS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::is_safe_component;

    #[test]
    fn each_state_of_the_files_is_a_version() {
        let config = |text: &'static str| Text { text, dir: "/etc/kubernetes" };
        let drop_in = |text: &str| DropIn::new("/etc/conf.d/10 a.conf", text);
        let one = payload(config("maxPods: 1 # few\n"), &[]);
        let source = one.resolve(&ConfigMapRef::local_files());
        assert!(source.is_local_files());
        assert!(source.to_string().starts_with("the local files, UID: local-files, "), "{source}");
        assert!(one.resource_version.len() == VERSION_DIGITS && is_safe_component(&one.resource_version));
        assert_eq!(one.data["kubelet"], "maxPods: 1 # few\n", "as it is written");
        assert_eq!(payload(config("maxPods: 1 # few\n"), &[]), one);
        let others = [payload(config("maxPods: 2\n"), &[]), payload(config("maxPods: 1 # few\n"), &[drop_in("a: 1")])];
        assert!(others.iter().all(|other| other.resource_version != one.resource_version));
        assert_eq!(drop_ins(&others[1].data), [DropIn::new("10_a.conf", "a: 1")]);
        // A checkpoint lies elsewhere, and what the file names does not.
        let relative = payload(config("authentication: {x509: {clientCAFile: ./pki/ca.crt}}"), &[]);
        assert!(relative.data["kubelet"].contains("/etc/kubernetes/pki/ca.crt"), "{:?}", relative.data);
        let first = payload(config("Kind: a\n---\nkind: b\n"), &[]);
        assert_eq!(first.data["kubelet"], "{\"kind\":\"a\"}", "as its kubelet reads it");
        assert_eq!(payload(config("{torn"), &[]).data["kubelet"], "{torn", "the kubelet judges it");
    }

    #[test]
    fn no_two_contents_have_one_version() {
        let contents = [&[][..], &[("a", "bc")], &[("ab", "c")], &[("a", "b"), ("c", "d")], &[("a", "b"), ("c", "e")]];
        let of = |pairs: &[(&str, &str)]| version(&pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect());
        let versions: BTreeSet<String> = contents.into_iter().map(of).collect();
        assert_eq!(versions.len(), contents.len());
    }

    /// The uid is not a ConfigMap's, and the name alone makes nothing local.
    #[test]
    fn no_config_map_is_taken_for_them() {
        let source = payload(Text { text: "", dir: "/" }, &[]).resolve(&ConfigMapRef::local_files());
        let real = crate::source::Source { uid: "6a1f…".to_owned(), ..source };
        assert!(!real.is_local_files() && real.to_string().starts_with("/api/v1/namespaces/local/"), "{real}");
    }
}
