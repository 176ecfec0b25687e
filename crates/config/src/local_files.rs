//! The local files in the place of a ConfigMap, where nothing else is assigned (`--follow-local`).

use crate::rendering::{self, DropIn, Text};
use crate::source::{ConfigAnnotations, ConfigMapRef, LOCAL_FILES, Payload};
use crate::source_dir;

/// The `--config` file as a payload. The drop-ins are in it to tell versions apart; what is rendered has them anyway.
#[must_use]
pub fn payload(config: Text<'_>, drop_ins: &[DropIn]) -> Payload {
    let ConfigMapRef { namespace, name, kubelet_config_key } = ConfigMapRef::local_files();
    let copies = drop_ins.iter().zip(0..).map(|(drop_in, number)| (drop_in.stored_name(number), drop_in.text.clone()));
    let data = copies.chain([(kubelet_config_key, rendering::with_absolute_paths(config))]).collect();
    let annotations = ConfigAnnotations { merge: Some("replace".to_owned()), ..ConfigAnnotations::default() };
    Payload { namespace, name, uid: LOCAL_FILES.to_owned(), ..source_dir::payload(data, annotations) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_of_the_files_is_a_version() {
        let config = |text: &'static str| Text { text, dir: "/etc/kubernetes" };
        let drop_in = |text: &str| DropIn { path: "/etc/conf.d/10 a.conf".to_owned(), text: text.to_owned() };
        let one = payload(config("maxPods: 1 # few\n"), &[]);
        let source = one.resolve(&ConfigMapRef::local_files());
        assert!(source.is_local_files() && source.is_on_node() && !source.is_source_dir());
        assert!(source.to_string().starts_with("the local files, UID: local-files, "), "{source}");
        assert_eq!(one.data["kubelet"], "maxPods: 1 # few\n", "as it is written");
        assert_eq!(payload(config("maxPods: 1 # few\n"), &[]), one);
        let others = [payload(config("maxPods: 2\n"), &[]), payload(config("maxPods: 1 # few\n"), &[drop_in("a: 1")])];
        assert!(others.iter().all(|other| other.resource_version != one.resource_version));
        assert_eq!(others[1].data["0000-10_a.conf"], "a: 1");
        // A checkpoint lies elsewhere, and what the file names does not.
        let relative = payload(config("{authentication: {x509: {clientCAFile: ./pki/ca.crt}}}"), &[]);
        assert!(relative.data["kubelet"].contains("/etc/kubernetes/pki/ca.crt"), "{:?}", relative.data);
        assert_eq!(payload(config("{torn"), &[]).data["kubelet"], "{torn", "the kubelet judges it");
    }
}
