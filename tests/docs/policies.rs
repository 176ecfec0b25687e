//! The policies that are shipped: each field of a KubeletConfiguration is decided, each line has a reason, and the documents show
//! the one that there is.

use std::collections::BTreeSet;

use kubelet_config::hazard::table::HAZARDS;
use kubelet_config::policy::NodePolicy;

use super::read;

/// What takes neither pods nor the node over. Hazards, preflight and trial are for what these can break.
const FREE: &[(&str, &[&str])] = &[
    (
        "how often, how much and how long",
        &[
            "syncFrequency",
            "fileCheckFrequency",
            "httpCheckFrequency",
            "registryPullQPS",
            "registryBurst",
            "eventRecordQPS",
            "eventBurst",
            "nodeStatusUpdateFrequency",
            "nodeStatusReportFrequency",
            "nodeLeaseDurationSeconds",
            "volumeStatsAggPeriod",
            "runtimeRequestTimeout",
            "nodeStatusMaxImages",
            "kubeAPIQPS",
            "kubeAPIBurst",
            "serializeImagePulls",
            "maxParallelImagePulls",
            "crashLoopBackOff",
            "containerLogMonitorInterval",
            "containerLogMaxWorkers",
            "containerLogMaxSize",
            "containerLogMaxFiles",
            "imageMinimumGCAge",
            "imageMaximumGCAge",
            "imageGCHighThresholdPercent",
            "imageGCLowThresholdPercent",
            "maxOpenFiles",
        ],
    ),
    (
        "how many pods, and what they get",
        &[
            "maxPods",
            "podsPerCore",
            "podPidsLimit",
            "cpuCFSQuota",
            "cpuCFSQuotaPeriod",
            "evictionHard",
            "evictionSoft",
            "evictionSoftGracePeriod",
            "evictionPressureTransitionPeriod",
            "evictionMaxPodGracePeriod",
            "evictionMinimumReclaim",
            "mergeDefaultEvictionSettings",
            "systemReserved",
            "kubeReserved",
            "reservedSystemCPUs",
            "reservedMemory",
            "enforceNodeAllocatable",
            "qosReserved",
            "memoryThrottlingFactor",
            "memoryReservationPolicy",
            "localStorageCapacityIsolation",
            "singleProcessOOMKill",
            "oomScoreAdj",
            "shutdownGracePeriod",
            "shutdownGracePeriodCriticalPods",
            "shutdownGracePeriodByPodPriority",
        ],
    ),
    (
        "how the node is divided",
        &[
            "kubeletCgroups",
            "systemCgroups",
            "cgroupsPerQOS",
            "cgroupDriver",
            "systemReservedCgroup",
            "kubeReservedCgroup",
            "cpuManagerPolicy",
            "cpuManagerPolicyOptions",
            "cpuManagerReconcilePeriod",
            "memoryManagerPolicy",
            "topologyManagerPolicy",
            "topologyManagerPolicyOptions",
            "topologyManagerScope",
            "kernelMemcgNotification",
            "failCgroupV1",
        ],
    ),
    (
        "how it talks to the API server, and what it counts",
        &[
            "contentType",
            "configMapAndSecretChangeDetectionStrategy",
            "enableControllerAttachDetach",
            "hairpinMode",
            "showHiddenMetricsForVersion",
            "healthzPort",
            "runOnce",
        ],
    ),
];

/// What `baseline` leaves to the cluster, and `strict` does not.
const STRICT_ALONE: &[&str] = &[
    "enableProfilingHandler",
    "enableContentionProfiling",
    "enableDebugFlagsHandler",
    "healthzBindAddress",
    "streamingConnectionIdleTimeout",
    "logging",
    "tlsCipherSuites",
    "tlsMinVersion",
    "tlsCurvePreferences",
    "rotateCertificates",
    "podCIDR",
    "registerWithTaints",
    "userNamespaces",
    "failSwapOn",
    "memorySwap",
    "featureGates",
];

fn kept(name: &str) -> BTreeSet<String> {
    let policy = NodePolicy::parse(&read(&format!("packaging/policy/{name}.yaml"))).unwrap();
    let pinned = policy.pinned_fields.into_keys();
    // A gate that switches a kept field off goes with that field.
    let fields = policy.denied_fields.into_iter().filter(|path| !path.starts_with("featureGates.")).chain(pinned);
    fields.map(|path| path.split('.').next().unwrap_or_default().to_owned()).collect()
}

/// A field that a later kubelet brings is decided when it comes into the tables.
#[test]
fn each_field_is_decided_in_the_shipped_policies() {
    let all: BTreeSet<String> = HAZARDS.iter().map(|hazard| hazard.field.to_owned()).collect();
    let free = || FREE.iter().flat_map(|(_, fields)| fields.iter()).map(|field| (*field).to_owned());
    let strict_alone = || STRICT_ALONE.iter().map(|field| (*field).to_owned());
    for (name, free) in
        [("strict", free().collect::<BTreeSet<_>>()), ("baseline", free().chain(strict_alone()).collect())]
    {
        let kept = kept(name);
        assert_eq!(kept.intersection(&free).next(), None, "{name} keeps what is free");
        let decided: BTreeSet<String> = kept.union(&free).cloned().collect();
        let open: Vec<&String> = all.symmetric_difference(&decided).collect();
        assert!(open.is_empty(), "{name}: decide whether these take pods or the node over: {open:?}");
    }
}

#[test]
fn each_line_of_the_shipped_policies_has_a_reason() {
    for name in ["baseline", "strict"] {
        let text = read(&format!("packaging/policy/{name}.yaml"));
        let heads = ["apiVersion:", "kind:", "deniedFields:", "pinnedFields:", "#"];
        for line in text.lines().filter(|line| !heads.iter().any(|head| line.starts_with(head))) {
            assert!(line.split_once("  # ").is_some_and(|(_, why)| why.len() > 5), "{name}: {line:?} has no reason");
        }
    }
}

#[test]
fn the_documents_show_a_shipped_policy() {
    let document = read("docs/security.md");
    let shown = document.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let shown: Vec<&str> = shown.filter(|text| text.contains("kind: NodePolicy")).collect();
    assert_eq!(shown, [read("packaging/policy/baseline.yaml")], "the example is packaging/policy/baseline.yaml");
}
