//! Flags that no source may change. Whether a kubelet knows a flag is for itself to say, so one table serves all versions.
//!
//! Names from cmd/kubelet/app/options/{options,container_runtime,globalflags}.go of v1.20.2 and options.go of v1.36.

/// Why a flag is the node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Identity,
    Supervised,
    Directory,
    Runtime,
    Output,
    Ends,
    Testing,
}

use Why::{Directory, Ends, Identity, Output, Runtime, Supervised, Testing};

#[rustfmt::skip]
const REFUSED: &[(&str, Why)] = &[
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
    ("docker", Runtime),
    ("docker-endpoint", Runtime),
    ("docker-tls", Runtime),
    ("docker-tls-ca", Runtime),
    ("docker-tls-cert", Runtime),
    ("docker-tls-key", Runtime),
    ("dynamic-config-dir", Supervised),           // to 1.23
    ("exit-on-lock-contention", Supervised),
    ("experimental-dockershim-root-directory", Directory),
    ("help", Ends),
    ("hostname-override", Identity),
    ("image-service-endpoint", Runtime),
    ("kubeconfig", Identity),
    ("lock-file", Supervised),
    ("log-dir", Output),                          // this and the next two to 1.25
    ("log-file", Output),
    ("logtostderr", Output),
    ("network-plugin", Runtime),
    ("network-plugin-mtu", Runtime),
    ("node-ip", Identity),
    ("really-crash-for-testing", Testing),        // to 1.22
    ("root-dir", Directory),
    ("runonce", Ends),
    ("version", Ends),
];

/// Why a source may not change this flag, if it may not.
pub(super) fn reason(flag: &str) -> Option<&'static str> {
    let (_, why) = REFUSED.iter().find(|(name, _)| *name == flag)?;
    Some(match why {
        Identity => "it makes the node what it is to the cluster; change it in the unit",
        Supervised => "the supervisor itself goes by it; change it in the unit",
        Directory => {
            "the kubelet keeps its pods' volumes and state there; change it in the unit, with the node drained"
        }
        Runtime => "it is the container runtime's; change it in the unit, with the node drained",
        Output => "the supervisor reads the kubelet's standard error, and the log must go there",
        Ends => "the kubelet would not go on with it",
        Testing => "it makes the kubelet fail, for tests",
    })
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
