//! Flags that no source may change. Whether a kubelet knows a flag is for itself to say, so one table serves all versions.
//!
//! Names from cmd/kubelet/app/options/{options,container_runtime,globalflags}.go of v1.20.2 and options.go of v1.36.

crate::named! {
    /// Why a flag is the node's.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Why by words {
        Identity = "it makes the node what it is to the cluster; change it in the unit",
        Supervised = "the supervisor itself goes by it; change it in the unit",
        Directory = "the kubelet keeps its pods' volumes and state there; change it in the unit, with the node drained",
        Runtime = "it is the container runtime's; change it in the unit, with the node drained",
        Output = "the supervisor reads the log, which must go to standard error as it does",
        Ends = "the kubelet would not go on with it",
        Testing = "it makes the kubelet fail, for tests",
        Programs = "the kubelet runs programs as root by it; change it in the unit",
    }
}

use Why::{Directory, Ends, Identity, Output, Programs, Runtime, Supervised, Testing};

#[rustfmt::skip]
static REFUSED: &[(&str, Why)] = &[
    ("add-dir-header", Output),
    ("alsologtostderr", Output),
    ("azure-container-registry-config", Programs),
    ("boot-id-file", Identity),
    ("bootstrap-kubeconfig", Identity),
    ("cert-dir", Identity),
    ("chaos-chance", Testing),                    // to 1.23
    ("cloud-config", Identity),                   // to 1.30
    ("cloud-provider", Identity),
    ("cni-bin-dir", Runtime),                     // to 1.23, as all of dockershim
    ("cni-cache-dir", Runtime),
    ("cni-conf-dir", Runtime),
    ("config", Supervised),
    ("config-dir", Supervised),                   // from 1.28
    ("container-runtime", Runtime),               // to 1.26
    ("container-runtime-endpoint", Runtime),
    ("containerd", Runtime),
    ("containerd-namespace", Runtime),
    ("docker", Runtime),
    ("docker-endpoint", Runtime),
    ("docker-env-metadata-whitelist", Runtime),
    ("docker-only", Runtime),
    ("docker-root", Runtime),
    ("docker-tls", Runtime),
    ("docker-tls-ca", Runtime),
    ("docker-tls-cert", Runtime),
    ("docker-tls-key", Runtime),
    ("dynamic-config-dir", Supervised),           // to 1.23
    ("exit-on-lock-contention", Supervised),
    ("experimental-bootstrap-kubeconfig", Identity),
    ("experimental-dockershim-root-directory", Directory),
    ("experimental-mounter-path", Programs),
    ("help", Ends),
    ("hostname-override", Identity),
    ("image-credential-provider-bin-dir", Programs),
    ("image-credential-provider-config", Programs),
    ("image-pull-progress-deadline", Runtime),
    ("image-service-endpoint", Runtime),
    ("kubeconfig", Identity),
    ("lock-file", Supervised),
    ("log-backtrace-at", Output),
    ("log-dir", Output),                          // this and the next two to 1.25
    ("log-file", Output),
    ("log-file-max-size", Output),
    ("log-json-split-stream", Output),
    ("log-text-split-stream", Output),
    ("logtostderr", Output),
    ("machine-id-file", Identity),
    ("network-plugin", Runtime),
    ("network-plugin-mtu", Runtime),
    ("node-ip", Identity),
    ("one-output", Output),
    ("really-crash-for-testing", Testing),        // to 1.22
    ("root-dir", Directory),
    ("runonce", Ends),
    ("runtime-cgroups", Runtime),
    ("seccomp-profile-root", Directory),
    ("skip-headers", Output),
    ("skip-log-headers", Output),
    ("stderrthreshold", Output),
    ("version", Ends),
];

/// Labels by which a Node is known to schedulers and volumes; the kubelet sets them anew at each start
/// (updateDefaultLabels, pkg/kubelet/kubelet_node_status.go, v1.20.2 and v1.36).
pub(crate) const IDENTITY_LABELS: [&str; 9] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
];

/// The label in `--node-labels` that no source may set, if there is one.
pub(super) fn identity_label(labels: &str) -> Option<&'static str> {
    let given: Vec<&str> = labels.split(',').filter_map(|pair| pair.split('=').next()).map(str::trim).collect();
    IDENTITY_LABELS.into_iter().find(|label| given.contains(label))
}

/// The one flag of these that a node's policy may leave to a source: which of the node's addresses counts is an administrator's
/// business where many nodes are moved to another network.
pub const LEFT_TO_POLICY: &str = "node-ip";

/// Why no policy can leave this flag to a source, if none can.
#[must_use]
pub fn refused_for_good(flag: &str) -> Option<&'static str> {
    reason(flag).filter(|_| flag != LEFT_TO_POLICY)
}

/// Why a source may not change this flag, if it may not.
pub(super) fn reason(flag: &str) -> Option<&'static str> {
    REFUSED.iter().find(|(name, _)| *name == flag).map(|(_, why)| why.words())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stands_once_in_order() {
        assert!(REFUSED.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(reason("max-pods"), None);
    }

    #[test]
    fn each_is_in_the_reference() {
        let reference = include_str!("../../../../docs/usage/reference.md");
        let table = reference.split("| refused flags |").nth(1).and_then(|rest| rest.split("\n\n").next());
        let listed = table.expect("a table").matches("`--").count();
        assert_eq!(listed, REFUSED.len());
        for (name, _) in REFUSED {
            assert!(table.is_some_and(|table| table.contains(&format!("`--{name}`"))), "{name}");
        }
    }
}
