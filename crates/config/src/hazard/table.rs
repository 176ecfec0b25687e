//! What changing a field of a live kubelet takes.
//!
//! From the hazard notes beside the fields in staging/src/k8s.io/kubelet/config/v1beta1/types.go
//! of v1.20.2 (gone since 1.24), from the kubelet's source where they are silent, and for later
//! fields from v1.36. Defaults: `SetDefaults_KubeletConfiguration`
//! (pkg/kubelet/apis/config/v1beta1/defaults.go of both).

use std::fmt;

/// The worst a change of a field can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HazardClass {
    /// Pods and the kubelet disagree about the node until it is drained and rebooted.
    Reboot,
    /// What makes a kubelet a node, or stops it from being one; not a thing to set from afar.
    Forbidden,
    /// Running pods keep the old setting, or stumble over the new one.
    Drain,
    /// Running pods may be killed, restarted, evicted or turned away.
    Pods,
    /// The kubelet may start and die.
    CrashLoop,
    /// The kubelet may lose the API server, or the cluster the Node.
    Contact,
    /// The kubelet's own API: who reaches it, and how.
    Serving,
    /// Another component has to agree.
    Coordinate,
    /// Tuning.
    Tuning,
    /// Not in this table.
    Unknown,
}

impl HazardClass {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Reboot,
        Self::Forbidden,
        Self::Drain,
        Self::Pods,
        Self::CrashLoop,
        Self::Contact,
        Self::Serving,
        Self::Coordinate,
        Self::Tuning,
        Self::Unknown,
    ];

    /// Its name, as it may stand in `kubelet-supervisor.io/acknowledge`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Reboot => "reboot",
            Self::Forbidden => "forbidden",
            Self::Drain => "drain",
            Self::Pods => "pods",
            Self::CrashLoop => "crash-loop",
            Self::Contact => "contact",
            Self::Serving => "serving",
            Self::Coordinate => "coordinate",
            Self::Tuning => "tuning",
            Self::Unknown => "unknown",
        }
    }

    /// True if such a change waits for an acknowledgement.
    #[must_use]
    pub fn is_refused(self) -> bool {
        matches!(self, Self::Reboot | Self::Forbidden)
    }
}

impl fmt::Display for HazardClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// What the kubelet takes a field for that is not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unset {
    /// Its zero value: absent, `""`, 0, false, `"0s"`, `[]` and `{}` are the same.
    Zero,
    /// This JSON; a zero value counts as not set (no pointer in Go).
    Zeros(&'static str),
    /// This JSON; a zero value is a value (a pointer, list or map in Go).
    Absent(&'static str),
    /// This JSON, field by field (a struct in Go).
    Struct(&'static str),
    /// What this other field is.
    Like(&'static str),
    /// Something that depends on the kubelet's version or on other fields.
    Varies,
}

/// A field and what changing it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hazard {
    /// Top-level name in KubeletConfiguration.
    pub field: &'static str,
    /// The worst it can do.
    pub class: HazardClass,
    /// Its default.
    pub unset: Unset,
    /// What an operator has to do, or to know.
    pub needs: &'static str,
}

/// What has to happen on a node for a change to take hold, beyond its being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// A restart of the kubelet, as every change.
    Restart,
    /// The same; containers that run keep what they have.
    NewContainers,
    /// The same; pods that run keep what they have, until they are drained.
    NewPods,
    /// The node is drained first.
    Drain,
    /// The same, and the resource managers' state files start afresh.
    StateFiles,
    /// The node is drained and rebooted.
    Reboot,
    /// It is not to be set from afar.
    OnTheNode,
}

impl Asks {
    /// For people.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::NewContainers => "restart; new containers only",
            Self::NewPods => "restart; new pods only",
            Self::Drain => "drain",
            Self::StateFiles => "drain; new state files",
            Self::Reboot => "drain and reboot",
            Self::OnTheNode => "set it on the node",
        }
    }
}

impl Hazard {
    /// What it asks for.
    #[must_use]
    pub fn asks(&self) -> Asks {
        match self.class {
            Reboot if self.needs == POLICY => Asks::StateFiles,
            Reboot => Asks::Reboot,
            Forbidden => Asks::OnTheNode,
            Drain if self.needs == NEW_PODS => Asks::NewPods,
            Drain => Asks::Drain,
            _ if self.needs == NEW_CONTAINERS => Asks::NewContainers,
            _ => Asks::Restart,
        }
    }
}

/// The entry of a top-level field.
#[must_use]
pub fn find(field: &str) -> Option<&'static Hazard> {
    HAZARDS.iter().find(|hazard| hazard.field == field)
}

const fn at(field: &'static str, class: HazardClass, unset: Unset, needs: &'static str) -> Hazard {
    Hazard { field, class, unset, needs }
}

use HazardClass::{Contact, Coordinate, CrashLoop, Drain, Forbidden, Pods, Reboot, Serving, Tuning};
use Unset::{Absent, Like, Struct, Varies, Zero, Zeros};

/// Hard eviction without `evictionHard`; a map that is given replaces it whole.
pub const EVICTION_HARD: &str =
    r#"{"memory.available":"100Mi","nodefs.available":"10%","nodefs.inodesFree":"5%","imagefs.available":"15%"}"#;

const REBOOT: &str = "cordon, drain and reboot the node";
const POLICY: &str = "drain the node; the kubelet's resource manager state starts afresh, a reboot is the safe way";
const RUNTIME: &str = "drain the node: the pods of the runtime it leaves are orphaned";
const IDENTITY: &str = "this is for the node's own configuration, not for one from the cluster";
const REGISTRATION: &str = "it only acts when a Node is registered: set it on the node, or edit the Node";
const STATIC: &str = "static pods that are no longer found are killed, those of a control plane too";
const HEALTHZ: &str = "whoever probes the kubelet has to follow";
const SERVE: &str = "logs, exec and metrics go through it; check who may reach the kubelet's API";
const ROTATION: &str =
    "without rotation the kubelet is locked out when its certificate expires; with it, someone must approve requests";
const BEAT: &str = "has to fit the controller manager's node-monitor-grace-period";
const NEW_PODS: &str = "drain the node: only new pods see it";
const NEW_CONTAINERS: &str = "only new containers see it";
const ADMISSION: &str = "lowered, the newest pods beyond it are turned away at the restart: move them away first";
const EVICTION: &str = "may evict pods at once";
const RESERVED: &str = "takes from what pods may use; pods that no longer fit are turned away at the restart";
const IPTABLES: &str = "kube-proxy uses the same bits and chains; the two bits must differ";
const SWAP: &str = "the kubelet does not start on a node with swap, cgroups or sysctls it refuses";
const NONE: &str = "";
const LOGIND: &str = "systemd-logind's InhibitDelayMaxSec is raised to it, and never lowered again";
const PULLS: &str = "pods may be denied images they run with today";

/// All fields, in the order of types.go of v1.20.2; later ones after them.
#[rustfmt::skip]
pub const HAZARDS: &[Hazard] = &[
    at("enableServer", Serving, Absent("true"), SERVE),
    at("staticPodPath", Pods, Zero, STATIC),
    at("syncFrequency", Tuning, Zeros("\"1m\""), NONE),
    at("fileCheckFrequency", Tuning, Zeros("\"20s\""), NONE),
    at("httpCheckFrequency", Tuning, Zeros("\"20s\""), NONE),
    at("staticPodURL", Pods, Zero, STATIC),
    at("staticPodURLHeader", Pods, Zero, STATIC),
    at("address", Serving, Zeros("\"0.0.0.0\""), SERVE),
    at("port", Serving, Zeros("10250"), SERVE),
    at("readOnlyPort", Serving, Zero, SERVE),
    at("tlsCertFile", Serving, Zero, SERVE),
    at("tlsPrivateKeyFile", Serving, Zero, SERVE),
    at("tlsCipherSuites", Serving, Zero, SERVE),
    at("tlsMinVersion", Serving, Zero, SERVE),
    at("rotateCertificates", Contact, Zero, ROTATION),
    at("serverTLSBootstrap", Contact, Zero, ROTATION),
    at("authentication", Serving, Struct(r#"{"anonymous":{"enabled":false},"webhook":{"enabled":true,"cacheTTL":"2m"},"x509":{"clientCAFile":""}}"#), SERVE),
    at("authorization", Serving, Struct(r#"{"mode":"Webhook","webhook":{"cacheAuthorizedTTL":"5m","cacheUnauthorizedTTL":"30s"}}"#), SERVE),
    at("registryPullQPS", Tuning, Absent("5"), NONE),
    at("registryBurst", Tuning, Zeros("10"), NONE),
    at("eventRecordQPS", Tuning, Varies, NONE), // 5, from 1.27 on 50; as the next and kubeAPI*
    at("eventBurst", Tuning, Varies, NONE),
    at("enableDebuggingHandlers", Serving, Absent("true"), SERVE),
    at("enableContentionProfiling", Tuning, Zero, NONE),
    at("healthzPort", Serving, Absent("10248"), HEALTHZ),
    at("healthzBindAddress", Serving, Zeros("\"127.0.0.1\""), HEALTHZ),
    at("oomScoreAdj", Tuning, Absent("-999"), NONE),
    at("clusterDomain", Drain, Zero, NEW_PODS),
    at("clusterDNS", Drain, Zero, NEW_PODS),
    at("streamingConnectionIdleTimeout", Tuning, Zeros("\"4h\""), NONE),
    at("nodeStatusUpdateFrequency", Contact, Zeros("\"10s\""), BEAT),
    at("nodeStatusReportFrequency", Contact, Varies, BEAT),
    at("nodeLeaseDurationSeconds", Contact, Zeros("40"), BEAT),
    at("imageMinimumGCAge", Tuning, Zeros("\"2m\""), NONE),
    at("imageGCHighThresholdPercent", Tuning, Absent("85"), NONE),
    at("imageGCLowThresholdPercent", Tuning, Absent("80"), NONE),
    at("volumeStatsAggPeriod", Tuning, Zeros("\"1m\""), NONE),
    at("kubeletCgroups", Reboot, Zero, REBOOT),
    at("systemCgroups", Reboot, Zero, REBOOT),
    at("cgroupRoot", Reboot, Zeros("\"/\""), REBOOT), // server.go, with cgroupsPerQOS
    at("cgroupsPerQOS", Reboot, Absent("true"), REBOOT),
    at("cgroupDriver", Reboot, Zeros("\"cgroupfs\""), REBOOT),
    at("cpuManagerPolicy", Reboot, Zeros("\"none\""), POLICY),
    at("cpuManagerReconcilePeriod", Tuning, Zeros("\"10s\""), NONE),
    at("topologyManagerPolicy", Reboot, Zeros("\"none\""), POLICY),
    at("topologyManagerScope", Reboot, Zeros("\"container\""), POLICY),
    at("qosReserved", Reboot, Zero, REBOOT),
    at("runtimeRequestTimeout", Tuning, Zeros("\"2m\""), NONE),
    at("hairpinMode", Reboot, Zeros("\"promiscuous-bridge\""), REBOOT),
    at("maxPods", Pods, Zeros("110"), ADMISSION),
    at("podCIDR", Forbidden, Zero, IDENTITY),
    at("podPidsLimit", Pods, Absent("-1"), "lowered, running pods may fail to fork"),
    at("resolvConf", Drain, Absent("\"/etc/resolv.conf\""), NEW_PODS),
    at("runOnce", Forbidden, Zero, IDENTITY),
    at("cpuCFSQuota", Tuning, Absent("true"), NEW_CONTAINERS),
    at("cpuCFSQuotaPeriod", Pods, Absent("\"100ms\""), "containers are restarted"),
    at("nodeStatusMaxImages", Tuning, Absent("50"), NONE),
    at("maxOpenFiles", Tuning, Zeros("1000000"), NONE),
    at("contentType", Contact, Zeros("\"application/vnd.kubernetes.protobuf\""), "the kubelet may lose the API server"),
    at("kubeAPIQPS", Tuning, Varies, NONE),
    at("kubeAPIBurst", Tuning, Varies, NONE),
    at("serializeImagePulls", Tuning, Varies, NONE),
    at("evictionHard", Pods, Absent(EVICTION_HARD), EVICTION),
    at("evictionSoft", Pods, Zero, EVICTION),
    at("evictionSoftGracePeriod", Pods, Zero, EVICTION),
    at("evictionPressureTransitionPeriod", Pods, Zeros("\"5m\""), EVICTION),
    at("evictionMaxPodGracePeriod", Pods, Zero, EVICTION),
    at("evictionMinimumReclaim", Pods, Zero, EVICTION),
    at("podsPerCore", Pods, Zero, ADMISSION),
    at("enableControllerAttachDetach", Drain, Absent("true"), "drain the node, and wait until its annotation volumes.kubernetes.io/controller-managed-attach-detach has followed"),
    at("protectKernelDefaults", CrashLoop, Zero, SWAP),
    at("makeIPTablesUtilChains", Coordinate, Absent("true"), IPTABLES),
    at("iptablesMasqueradeBit", Coordinate, Absent("14"), IPTABLES),
    at("iptablesDropBit", Coordinate, Absent("15"), IPTABLES),
    at("featureGates", CrashLoop, Zero, "a gate this kubelet does not know or has locked keeps it from starting"),
    at("failSwapOn", CrashLoop, Absent("true"), SWAP),
    at("containerLogMaxSize", Tuning, Zeros("\"10Mi\""), NONE),
    at("containerLogMaxFiles", Tuning, Absent("5"), NONE),
    at("configMapAndSecretChangeDetectionStrategy", Tuning, Zeros("\"Watch\""), NONE),
    at("systemReserved", Pods, Zero, RESERVED),
    at("kubeReserved", Pods, Zero, RESERVED),
    at("reservedSystemCPUs", Pods, Zero, "with the static CPU manager the state of the exclusive CPUs starts afresh"),
    at("showHiddenMetricsForVersion", Tuning, Zero, NONE),
    at("systemReservedCgroup", Reboot, Zero, REBOOT),
    at("kubeReservedCgroup", Reboot, Zero, REBOOT),
    at("enforceNodeAllocatable", Pods, Absent(r#"["pods"]"#), "the kubelet or system daemons may run out of memory; the cgroups named must exist"),
    at("allowedUnsafeSysctls", Tuning, Zero, NONE),
    at("volumePluginDir", Pods, Zeros("\"/usr/libexec/kubernetes/kubelet-plugins/volume/exec/\""), "pods with flexVolumes need the plugins there"),
    at("providerID", Drain, Zero, "the cloud provider knows the node by it"),
    at("kernelMemcgNotification", Tuning, Zero, NONE),
    at("logging", CrashLoop, Struct(r#"{"format":"text","flushFrequency":"5s","verbosity":0}"#), "the kubelet's words may become unreadable to this supervisor"),
    at("enableSystemLogHandler", Serving, Absent("true"), SERVE),
    at("shutdownGracePeriod", Coordinate, Zero, LOGIND),
    at("shutdownGracePeriodCriticalPods", Coordinate, Zero, LOGIND),
    // Later than 1.20.
    at("shutdownGracePeriodByPodPriority", Coordinate, Zero, LOGIND),
    at("memoryManagerPolicy", Reboot, Zeros("\"None\""), POLICY),
    at("reservedMemory", Reboot, Zero, POLICY),
    at("cpuManagerPolicyOptions", Reboot, Zero, POLICY),
    at("topologyManagerPolicyOptions", Reboot, Zero, POLICY),
    at("containerRuntimeEndpoint", Reboot, Zeros("\"unix:///run/containerd/containerd.sock\""), RUNTIME),
    at("imageServiceEndpoint", Reboot, Like("containerRuntimeEndpoint"), RUNTIME),
    at("podLogsDir", Reboot, Zeros("\"/var/log/pods\""), "drain the node: the logs of running pods stay behind"),
    at("memorySwap", CrashLoop, Zero, SWAP),
    at("userNamespaces", CrashLoop, Zero, "the kubelet does not start without the subordinate ids it asks for"),
    at("failCgroupV1", CrashLoop, Varies, SWAP),
    at("singleProcessOOMKill", CrashLoop, Varies, "the kubelet does not start with it on cgroup v1"),
    at("registerNode", Forbidden, Absent("true"), REGISTRATION),
    at("registerWithTaints", Forbidden, Zero, REGISTRATION),
    at("mergeDefaultEvictionSettings", Pods, Zero, EVICTION),
    at("localStorageCapacityIsolation", Drain, Absent("true"), NEW_PODS),
    at("imagePullCredentialsVerificationPolicy", Pods, Zeros("\"NeverVerifyPreloadedImages\""), PULLS),
    at("preloadedImagesVerificationAllowlist", Pods, Zero, PULLS),
    at("enableSystemLogQuery", Serving, Zero, SERVE),
    at("enableProfilingHandler", Serving, Absent("true"), SERVE),
    at("enableDebugFlagsHandler", Serving, Absent("true"), SERVE),
    at("tlsCurvePreferences", Serving, Zero, SERVE),
    at("tracing", Tuning, Zero, "needs its endpoint"),
    at("seccompDefault", Tuning, Absent("false"), NEW_CONTAINERS),
    at("memoryThrottlingFactor", Tuning, Varies, NEW_CONTAINERS), // 0.8, from 1.27 on 0.9
    at("memoryReservationPolicy", Tuning, Zero, NEW_CONTAINERS),
    at("maxParallelImagePulls", Tuning, Zero, NONE),
    at("containerLogMaxWorkers", Tuning, Absent("1"), NONE),
    at("containerLogMonitorInterval", Tuning, Absent("\"10s\""), NONE),
    at("imageMaximumGCAge", Tuning, Zero, NONE),
    at("crashLoopBackOff", Tuning, Zero, NEW_CONTAINERS),
    at("podHousekeepingPeriod", Tuning, Absent("\"2s\""), NONE),
];

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeSet;

    #[test]
    fn each_field_stands_once_with_a_default_that_can_be_read() {
        let mut seen = BTreeSet::new();
        for hazard in HAZARDS {
            assert!(seen.insert(hazard.field), "{} stands twice", hazard.field);
            if let Absent(text) | Zeros(text) | Struct(text) = hazard.unset {
                assert!(serde_json::from_str::<Value>(text).is_ok(), "{}: {text}", hazard.field);
            }
            if let Like(other) = hazard.unset {
                assert!(find(other).is_some(), "{other}");
            }
            assert!(!hazard.class.is_refused() || !hazard.needs.is_empty(), "{}", hazard.field);
        }
        // 94 in types.go of v1.20.2, the rest later.
        assert!(seen.len() >= 120, "{}", seen.len());
    }

    #[test]
    fn a_refused_field_has_a_known_default() {
        for hazard in HAZARDS.iter().filter(|hazard| hazard.class.is_refused()) {
            assert_ne!(hazard.unset, Varies, "{}: absent and default would be a change", hazard.field);
        }
    }

    #[test]
    fn what_a_change_asks_for() {
        for (field, asks) in [
            ("maxPods", Asks::Restart),
            ("cgroupDriver", Asks::Reboot),
            ("cpuManagerPolicy", Asks::StateFiles),
            ("clusterDNS", Asks::NewPods),
            ("enableControllerAttachDetach", Asks::Drain),
            ("cpuCFSQuota", Asks::NewContainers),
            ("podCIDR", Asks::OnTheNode),
        ] {
            assert_eq!(find(field).map(Hazard::asks), Some(asks), "{field}");
        }
    }

    #[test]
    fn words_are_told_apart() {
        let words: BTreeSet<_> = HazardClass::ALL.iter().map(|class| class.label()).collect();
        assert_eq!(words.len(), HazardClass::ALL.len());
    }
}
