//! Command lines as they are found on nodes, and what becomes of them.

use super::*;
use serde_json::json;

/// One node's command line, without the program.
struct Found {
    name: &'static str,
    line: &'static str,
    config: Option<&'static str>,
    kubeconfig: Option<&'static str>,
    hostname: Option<&'static str>,
    root_dir: Option<&'static str>,
    config_dir: Option<&'static str>,
    /// The arguments of a real run with `--config=/r`, apart by spaces.
    run: &'static str,
    /// Those of a run with the node's own configuration, if they are not the ones given.
    bare: Option<&'static str>,
    /// What of [`payload`] has no effect.
    shadowed: &'static [&'static str],
}

const NOTHING: Found = Found {
    name: "",
    line: "",
    config: None,
    kubeconfig: None,
    hostname: None,
    root_dir: None,
    config_dir: None,
    run: "",
    bare: None,
    shadowed: &[],
};

/// Fields that people like to set by flag as well.
/// With no value that any of the command lines has.
fn payload() -> serde_json::Value {
    json!({
        "maxPods": 3, "systemReserved": {"cpu": "1"}, "clusterDNS": ["10.0.0.10"], "address": "0.0.0.0",
        "staticPodPath": "/x", "authentication": {"anonymous": {"enabled": true}, "x509": {"clientCAFile": "/ca"}},
        "logging": {"verbosity": 7}, "featureGates": {"RotateKubeletServerCertificate": true, "DynamicKubeletConfig": true},
        "containerRuntimeEndpoint": "unix:///x", "registerWithTaints": [], "cgroupDriver": "other",
        "podInfraContainerImage": "x", "volumePluginDir": "/v", "healthzPort": 1,
    })
}

const TABLE: &[Found] = &[
    Found {
        name: "kubeadm 1.20: the drop-in, its environment file and KUBELET_EXTRA_ARGS",
        line: "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf \
               --config=/var/lib/kubelet/config.yaml --cgroup-driver=systemd --network-plugin=cni \
               --pod-infra-container-image=k8s.gcr.io/pause:3.2 --dynamic-config-dir=/var/lib/kubelet/dynamic-config \
               --feature-gates=DynamicKubeletConfig=true",
        config: Some("/var/lib/kubelet/config.yaml"),
        kubeconfig: Some("/etc/kubernetes/kubelet.conf"),
        run: "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf \
              --cgroup-driver=systemd --network-plugin=cni --pod-infra-container-image=k8s.gcr.io/pause:3.2 --config=/r",
        bare: Some(
            "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf \
             --config=/var/lib/kubelet/config.yaml --cgroup-driver=systemd --network-plugin=cni \
             --pod-infra-container-image=k8s.gcr.io/pause:3.2",
        ),
        shadowed: &["cgroupDriver"],
        ..NOTHING
    },
    Found {
        name: "kubeadm 1.36: a node registered under another name, with drop-ins",
        line: "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf \
               --config=/var/lib/kubelet/config.yaml --hostname-override=Node-7.example --config-dir=/etc/kubernetes/kubelet.conf.d \
               --register-with-taints=node-role.kubernetes.io/control-plane:NoSchedule",
        config: Some("/var/lib/kubelet/config.yaml"),
        kubeconfig: Some("/etc/kubernetes/kubelet.conf"),
        hostname: Some("Node-7.example"),
        config_dir: Some("/etc/kubernetes/kubelet.conf.d"),
        run: "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf \
              --hostname-override=Node-7.example --config-dir=/etc/kubernetes/kubelet.conf.d \
              --register-with-taints=node-role.kubernetes.io/control-plane:NoSchedule --config=/r",
        shadowed: &["registerWithTaints"],
        ..NOTHING
    },
    Found { name: "the package's unit alone", line: "", run: "--config=/r", ..NOTHING },
    Found {
        name: "OpenShift 4.x, hyperkube",
        line: "kubelet --config=/etc/kubernetes/kubelet.conf --bootstrap-kubeconfig=/etc/kubernetes/kubeconfig \
               --kubeconfig=/var/lib/kubelet/kubeconfig --container-runtime=remote \
               --container-runtime-endpoint=/var/run/crio/crio.sock --runtime-cgroups=/system.slice/crio.service \
               --node-labels=node-role.kubernetes.io/worker,node.openshift.io/os_id=rhcos --node-ip= \
               --minimum-container-ttl-duration=6m0s --volume-plugin-dir=/etc/kubernetes/kubelet-plugins/volume/exec \
               --cloud-provider=aws --hostname-override= --provider-id= --system-reserved=cpu=500m,memory=1Gi --v=2",
        config: Some("/etc/kubernetes/kubelet.conf"),
        kubeconfig: Some("/var/lib/kubelet/kubeconfig"),
        run: "kubelet --bootstrap-kubeconfig=/etc/kubernetes/kubeconfig \
              --kubeconfig=/var/lib/kubelet/kubeconfig --container-runtime=remote \
              --container-runtime-endpoint=/var/run/crio/crio.sock --runtime-cgroups=/system.slice/crio.service \
              --node-labels=node-role.kubernetes.io/worker,node.openshift.io/os_id=rhcos --node-ip= \
              --minimum-container-ttl-duration=6m0s --volume-plugin-dir=/etc/kubernetes/kubelet-plugins/volume/exec \
              --cloud-provider=aws --hostname-override= --provider-id= --system-reserved=cpu=500m,memory=1Gi --v=2 \
              --config=/r",
        shadowed: &["containerRuntimeEndpoint", "systemReserved", "logging.verbosity", "volumePluginDir"],
        ..NOTHING
    },
    Found {
        // Design seeds, 003: as `ps` shows it.
        name: "OpenShift 4.x, a node with static addresses",
        line: "--config=/etc/kubernetes/kubelet.conf --bootstrap-kubeconfig=/etc/kubernetes/kubeconfig \
               --kubeconfig=/var/lib/kubelet/kubeconfig --container-runtime=remote \
               --container-runtime-endpoint=/var/run/crio/crio.sock --runtime-cgroups=/system.slice/crio.service \
               --node-labels=node-role.kubernetes.io/master,node.openshift.io/os_id=rhcos --node-ip=192.168.7.143 \
               --address=192.168.7.143 --minimum-container-ttl-duration=6m0s --cloud-provider= \
               --volume-plugin-dir=/etc/kubernetes/kubelet-plugins/volume/exec --hostname-override= \
               --register-with-taints=node-role.kubernetes.io/master=:NoSchedule \
               --pod-infra-container-image=quay.io/openshift-release-dev/ocp-v4.0-art-dev@sha256:4b6376a0a30fd543e43ed46f53722300e58271fe9d615329334c703cd46dbf94 \
               --system-reserved=cpu=500m,memory=1Gi --v=2",
        config: Some("/etc/kubernetes/kubelet.conf"),
        kubeconfig: Some("/var/lib/kubelet/kubeconfig"),
        run: "--bootstrap-kubeconfig=/etc/kubernetes/kubeconfig \
              --kubeconfig=/var/lib/kubelet/kubeconfig --container-runtime=remote \
              --container-runtime-endpoint=/var/run/crio/crio.sock --runtime-cgroups=/system.slice/crio.service \
              --node-labels=node-role.kubernetes.io/master,node.openshift.io/os_id=rhcos --node-ip=192.168.7.143 \
              --address=192.168.7.143 --minimum-container-ttl-duration=6m0s --cloud-provider= \
              --volume-plugin-dir=/etc/kubernetes/kubelet-plugins/volume/exec --hostname-override= \
              --register-with-taints=node-role.kubernetes.io/master=:NoSchedule \
              --pod-infra-container-image=quay.io/openshift-release-dev/ocp-v4.0-art-dev@sha256:4b6376a0a30fd543e43ed46f53722300e58271fe9d615329334c703cd46dbf94 \
              --system-reserved=cpu=500m,memory=1Gi --v=2 --config=/r",
        shadowed: &[
            "address",
            "containerRuntimeEndpoint",
            "registerWithTaints",
            "systemReserved",
            "logging.verbosity",
            "volumePluginDir",
        ],
        ..NOTHING
    },
    Found {
        name: "EKS, Amazon Linux 2: flags from bootstrap.sh, values in words of their own",
        line: "--cloud-provider aws --config /etc/kubernetes/kubelet/kubelet-config.json --kubeconfig /var/lib/kubelet/kubeconfig \
               --container-runtime remote --container-runtime-endpoint unix:///run/containerd/containerd.sock \
               --node-ip=10.0.1.2 --pod-infra-container-image=602401143452.dkr.ecr.eu-west-1.amazonaws.com/eks/pause:3.5 \
               --v=2 --node-labels=eks.amazonaws.com/nodegroup=a --max-pods=29",
        config: Some("/etc/kubernetes/kubelet/kubelet-config.json"),
        kubeconfig: Some("/var/lib/kubelet/kubeconfig"),
        run: "--cloud-provider aws --kubeconfig /var/lib/kubelet/kubeconfig \
              --container-runtime remote --container-runtime-endpoint unix:///run/containerd/containerd.sock \
              --node-ip=10.0.1.2 --pod-infra-container-image=602401143452.dkr.ecr.eu-west-1.amazonaws.com/eks/pause:3.5 \
              --v=2 --node-labels=eks.amazonaws.com/nodegroup=a --max-pods=29 --config=/r",
        shadowed: &["containerRuntimeEndpoint", "maxPods", "logging.verbosity"],
        ..NOTHING
    },
    Found {
        name: "EKS, Amazon Linux 2023: nodeadm's flags and drop-ins",
        line: "--cloud-provider=external --hostname-override=i-0123456789abcdef0 --config=/etc/kubernetes/kubelet/config.json \
               --config-dir=/etc/kubernetes/kubelet/config.json.d --kubeconfig=/var/lib/kubelet/kubeconfig \
               --image-credential-provider-bin-dir=/etc/eks/image-credential-provider \
               --image-credential-provider-config=/etc/eks/image-credential-provider/config.json --node-ip=10.0.1.2 --v=2",
        config: Some("/etc/kubernetes/kubelet/config.json"),
        kubeconfig: Some("/var/lib/kubelet/kubeconfig"),
        hostname: Some("i-0123456789abcdef0"),
        config_dir: Some("/etc/kubernetes/kubelet/config.json.d"),
        run: "--cloud-provider=external --hostname-override=i-0123456789abcdef0 \
              --config-dir=/etc/kubernetes/kubelet/config.json.d --kubeconfig=/var/lib/kubelet/kubeconfig \
              --image-credential-provider-bin-dir=/etc/eks/image-credential-provider \
              --image-credential-provider-config=/etc/eks/image-credential-provider/config.json --node-ip=10.0.1.2 --v=2 \
              --config=/r",
        shadowed: &["logging.verbosity"],
        ..NOTHING
    },
    Found {
        name: "RKE2 and k3s: everything by flag, underscores in names",
        line: "--anonymous_auth=false --client_ca_file=/var/lib/rancher/rke2/agent/client-ca.crt --cluster_dns 10.43.0.10 \
               --feature_gates=CloudDualStackNodeIPs=true,DynamicKubeletConfig=false --kubeconfig=/var/lib/rancher/rke2/agent/kubelet.kubeconfig \
               --pod_manifest_path=/var/lib/rancher/rke2/agent/pod-manifests --root_dir /data/kubelet --fail_swap_on=false \
               --healthz_bind_address=127.0.0.1 --dynamic_config_dir /dyn --hostname_override=a",
        kubeconfig: Some("/var/lib/rancher/rke2/agent/kubelet.kubeconfig"),
        hostname: Some("a"),
        root_dir: Some("/data/kubelet"),
        run: "--anonymous_auth=false --client_ca_file=/var/lib/rancher/rke2/agent/client-ca.crt --cluster_dns 10.43.0.10 \
              --feature_gates=CloudDualStackNodeIPs=true --kubeconfig=/var/lib/rancher/rke2/agent/kubelet.kubeconfig \
              --pod_manifest_path=/var/lib/rancher/rke2/agent/pod-manifests --root_dir /data/kubelet --fail_swap_on=false \
              --healthz_bind_address=127.0.0.1 --hostname_override=a --config=/r",
        bare: Some(
            "--anonymous_auth=false --client_ca_file=/var/lib/rancher/rke2/agent/client-ca.crt --cluster_dns 10.43.0.10 \
             --feature_gates=CloudDualStackNodeIPs=true --kubeconfig=/var/lib/rancher/rke2/agent/kubelet.kubeconfig \
             --pod_manifest_path=/var/lib/rancher/rke2/agent/pod-manifests --root_dir /data/kubelet --fail_swap_on=false \
             --healthz_bind_address=127.0.0.1 --hostname_override=a",
        ),
        shadowed: &[
            "authentication.anonymous.enabled",
            "authentication.x509.clientCAFile",
            "clusterDNS",
            "staticPodPath",
        ],
        ..NOTHING
    },
    Found {
        name: "minikube",
        line: "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --config=/var/lib/kubelet/config.yaml \
               --hostname-override=minikube --kubeconfig=/etc/kubernetes/kubelet.conf --node-ip=192.168.49.2",
        config: Some("/var/lib/kubelet/config.yaml"),
        kubeconfig: Some("/etc/kubernetes/kubelet.conf"),
        hostname: Some("minikube"),
        run: "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \
              --hostname-override=minikube --kubeconfig=/etc/kubernetes/kubelet.conf --node-ip=192.168.49.2 --config=/r",
        ..NOTHING
    },
    Found {
        name: "standalone, static pods from a directory",
        line: "--pod-manifest-path=/etc/kubernetes/manifests --fail-swap-on=false --cgroup-driver systemd --max-pods=5 -v2",
        run: "--pod-manifest-path=/etc/kubernetes/manifests --fail-swap-on=false --cgroup-driver systemd --max-pods=5 -v2 --config=/r",
        shadowed: &["cgroupDriver", "maxPods", "staticPodPath", "logging.verbosity"],
        ..NOTHING
    },
    Found {
        name: "an empty kubeconfig is none, an empty config neither",
        line: "--kubeconfig= --config= -v 4 --root-dir=/a --root-dir=/b",
        root_dir: Some("/b"),
        run: "--kubeconfig= -v 4 --root-dir=/a --root-dir=/b --config=/r",
        shadowed: &["logging.verbosity"],
        ..NOTHING
    },
    Found {
        name: "repeated flags: the last one wins, and all --config go",
        line: "--config=/a --fail-swap-on --config /b --hostname-override=x --hostname-override=y --config /c",
        config: Some("/c"),
        hostname: Some("y"),
        run: "--fail-swap-on --hostname-override=x --hostname-override=y --config=/r",
        ..NOTHING
    },
];

fn parse(line: &str) -> KubeletArgs {
    KubeletArgs::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
}

#[test]
fn command_lines_as_found() {
    for found in TABLE {
        let (name, args) = (found.name, parse(found.line));
        assert_eq!(args.last("config"), found.config, "{name}");
        assert_eq!(args.last("kubeconfig"), found.kubeconfig, "{name}");
        assert_eq!(args.last("hostname-override"), found.hostname, "{name}");
        assert_eq!(args.last("root-dir"), found.root_dir, "{name}");
        assert_eq!(args.last("config-dir"), found.config_dir, "{name}");
        let split = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(args.for_run(Some("/r"), &ConfigDir::Unit), split(found.run), "{name}");
        let bare = split(found.bare.unwrap_or(found.line));
        assert_eq!(args.for_run(None, &ConfigDir::Unit), bare, "{name}");

        let leave = ["--cert-dir=/p", "--exit-on-lock-contention=true", "--lock-file=", "--v=0"].map(str::to_owned);
        assert_eq!(
            args.for_preflight(Some("/r"), &ConfigDir::Unit, "/p"),
            [split(found.run), leave.to_vec()].concat(),
            "{name}"
        );
        assert_eq!(args.for_preflight(None, &ConfigDir::Unit, "/p"), [bare, leave.to_vec()].concat(), "{name}");

        let mut shadowed: Vec<String> = args.shadowed(&payload()).into_iter().map(|shadow| shadow.field).collect();
        let mut expected = found.shadowed.to_vec();
        shadowed.sort();
        expected.sort_unstable();
        assert_eq!(shadowed, expected, "{name}");
    }
}

#[test]
fn the_native_gate_goes_in_every_spelling() {
    for (line, left) in [
        (vec!["--feature-gates=A=true,DynamicKubeletConfig=true"], vec!["--feature-gates=A=true"]),
        (vec!["--feature-gates=DynamicKubeletConfig=true,A=true"], vec!["--feature-gates=A=true"]),
        (vec!["--feature-gates=A=true, DynamicKubeletConfig = true ,B=false"], vec!["--feature-gates=A=true,B=false"]),
        (vec!["--feature-gates", "A=true,DynamicKubeletConfig=false"], vec!["--feature-gates", "A=true"]),
        (vec!["--feature_gates=DynamicKubeletConfig=1,A=true"], vec!["--feature_gates=A=true"]),
        (vec!["--feature-gates=DynamicKubeletConfig=true"], vec![]),
        (vec!["--feature-gates=DynamicKubeletConfig=true,"], vec![]),
        (vec!["--feature-gates", "DynamicKubeletConfig=true", "--v=2"], vec!["--v=2"]),
        (
            vec![
                "--feature-gates=DynamicKubeletConfig=true",
                "--feature-gates=A=true",
                "--feature_gates",
                "DynamicKubeletConfig=true",
            ],
            vec!["--feature-gates=A=true"],
        ),
        // Other gates are handed on as they are.
        (vec!["--feature-gates=A=true,,B=true, C=nonsense"], vec!["--feature-gates=A=true,,B=true, C=nonsense"]),
        (vec!["--feature-gates="], vec!["--feature-gates="]),
        (vec!["--feature-gates"], vec!["--feature-gates"]),
        (vec!["--feature-gates=MyDynamicKubeletConfig=true"], vec!["--feature-gates=MyDynamicKubeletConfig=true"]),
        (vec!["--node-labels=DynamicKubeletConfig=true"], vec!["--node-labels=DynamicKubeletConfig=true"]),
        (
            vec!["--v=2", "--", "--feature-gates=DynamicKubeletConfig=true"],
            vec!["--v=2", "--", "--feature-gates=DynamicKubeletConfig=true"],
        ),
    ] {
        let line_args: Vec<String> = line.iter().map(|arg| (*arg).to_owned()).collect();
        let args = KubeletArgs::parse(&line_args);
        assert_eq!(args.for_run(None, &ConfigDir::Unit), left, "{line:?}");
        assert!(args.overlay(&json!({}))["featureGates"].get(NATIVE_GATE).is_none(), "{line:?}");
    }
}
