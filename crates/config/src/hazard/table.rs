//! What changing a field of a live kubelet takes.
//!
//! From the hazard notes beside the fields in staging/src/k8s.io/kubelet/config/v1beta1/types.go
//! of v1.20.2 (gone since 1.24), from the kubelet's source where they are silent, and for later
//! fields from v1.36. Defaults: `SetDefaults_KubeletConfiguration`
//! (pkg/kubelet/apis/config/v1beta1/defaults.go of both).

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::types::{self, Type};

crate::named! {
    /// The worst a change of a field can do. The names may stand in `kubelet-supervisor.io/acknowledge`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum HazardClass by label {
        /// Pods and the kubelet disagree about the node until it is drained and rebooted.
        Reboot = "reboot",
        /// What makes a kubelet a node, or stops it from being one; not a thing to set from afar.
        Forbidden = "forbidden",
        /// Running pods keep the old setting, or stumble over the new one.
        Drain = "drain",
        /// Running pods may be killed, restarted, evicted or turned away.
        Pods = "pods",
        /// The kubelet may start and die.
        CrashLoop = "crash-loop",
        /// The kubelet may lose the API server, or the cluster the Node.
        Contact = "contact",
        /// The kubelet's own API: who reaches it, and how.
        Serving = "serving",
        /// Another component has to agree.
        Coordinate = "coordinate",
        /// Only how much, how often or how long.
        Tuning = "tuning",
        /// Not in this table.
        Unknown = "unknown",
    }
}

impl HazardClass {
    /// True if such a change waits for an acknowledgement.
    #[must_use]
    pub fn is_refused(self) -> bool {
        matches!(self, Self::Reboot | Self::Forbidden)
    }
}

impl FromStr for HazardClass {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|class| class.label() == word);
        found.ok_or_else(|| format!("{word:?} is no class of hazards: {}", list(&Self::ALL.into())))
    }
}

/// Their names.
#[must_use]
pub fn list(classes: &BTreeSet<HazardClass>) -> String {
    classes.iter().map(|class| class.label()).collect::<Vec<_>>().join(", ")
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
    /// What its value is.
    pub of: Type,
    /// The worst it can do.
    pub class: HazardClass,
    /// What it asks for on the node.
    pub asks: Asks,
    /// What the kubelet takes it for where it is not set.
    pub unset: Unset,
    /// What an operator has to do, or to know.
    pub needs: &'static str,
}

crate::named! {
    /// What has to happen on a node for a change to take hold, beyond its being written; named as `explain`, `diff` and the
    /// reference show it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Asks by label {
        /// A restart of the kubelet, as every change.
        Restart = "restart",
        /// The same; containers that run keep what they have.
        NewContainers = "restart; new containers only",
        /// The same; pods that run keep what they have, until they are drained.
        NewPods = "restart; new pods only",
        /// The node is drained first.
        Drain = "drain",
        /// The same, and the resource managers' state files start afresh.
        StateFiles = "drain; new state files",
        /// The node is drained and rebooted.
        Reboot = "drain and reboot",
        /// It is not to be set from afar.
        OnTheNode = "set it on the node",
    }
}

/// The entry of a top-level field.
#[must_use]
pub fn find(field: &str) -> Option<&'static Hazard> {
    HAZARDS.iter().find(|hazard| hazard.field == field)
}

const fn at(
    field: &'static str,
    of: Type,
    class: HazardClass,
    asks: Asks,
    unset: Unset,
    needs: &'static str,
) -> Hazard {
    Hazard { field, of, class, asks, unset, needs }
}

use HazardClass::{Contact, Coordinate, CrashLoop, Drain, Forbidden, Pods, Reboot, Serving, Tuning};
use Type::{Bool, Cgroup, Cpus, Duration, Endpoint, Float, Int, Quantity, Text, TlsVersion};
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
const GRACE_PERIOD: &str = "has to fit the controller manager's node-monitor-grace-period";
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

/// All fields, in the order of types.go of v1.20.2; later ones after them. As these tables are static, and not constants, they are
/// in the program once: a constant is copied to where it is used, and each copy is 8 kB that every process of ours has for itself.
#[rustfmt::skip]
pub static HAZARDS: &[Hazard] = &[
    at("enableServer", Bool, Serving, Asks::Restart, Absent("true"), SERVE),
    at("staticPodPath", Text, Pods, Asks::Restart, Zero, STATIC),
    at("syncFrequency", Duration, Tuning, Asks::Restart, Zeros("\"1m\""), NONE),
    at("fileCheckFrequency", Duration, Tuning, Asks::Restart, Zeros("\"20s\""), NONE),
    at("httpCheckFrequency", Duration, Tuning, Asks::Restart, Zeros("\"20s\""), NONE),
    at("staticPodURL", Text, Pods, Asks::Restart, Zero, STATIC),
    at("staticPodURLHeader", types::HEADERS, Pods, Asks::Restart, Zero, STATIC),
    at("address", Text, Serving, Asks::Restart, Zeros("\"0.0.0.0\""), SERVE),
    at("port", Int, Serving, Asks::Restart, Zeros("10250"), SERVE),
    at("readOnlyPort", Int, Serving, Asks::Restart, Zero, SERVE),
    at("tlsCertFile", Text, Serving, Asks::Restart, Zero, SERVE),
    at("tlsPrivateKeyFile", Text, Serving, Asks::Restart, Zero, SERVE),
    at("tlsCipherSuites", types::TEXT_SET, Serving, Asks::Restart, Zero, SERVE),
    at("tlsMinVersion", TlsVersion, Serving, Asks::Restart, Zero, SERVE),
    at("rotateCertificates", Bool, Contact, Asks::Restart, Zero, ROTATION),
    at("serverTLSBootstrap", Bool, Contact, Asks::Restart, Zero, ROTATION),
    at("authentication", types::AUTHENTICATION, Serving, Asks::Restart, Struct(r#"{"anonymous":{"enabled":false},"webhook":{"enabled":true,"cacheTTL":"2m"},"x509":{"clientCAFile":""}}"#), SERVE),
    at("authorization", types::AUTHORIZATION, Serving, Asks::Restart, Struct(r#"{"mode":"Webhook","webhook":{"cacheAuthorizedTTL":"5m","cacheUnauthorizedTTL":"30s"}}"#), SERVE),
    at("registryPullQPS", Int, Tuning, Asks::Restart, Absent("5"), NONE),
    at("registryBurst", Int, Tuning, Asks::Restart, Zeros("10"), NONE),
    at("eventRecordQPS", Int, Tuning, Asks::Restart, Varies, NONE), // 5, from 1.27 on 50; as the next and kubeAPI*
    at("eventBurst", Int, Tuning, Asks::Restart, Varies, NONE),
    at("enableDebuggingHandlers", Bool, Serving, Asks::Restart, Absent("true"), SERVE),
    at("enableContentionProfiling", Bool, Tuning, Asks::Restart, Zero, NONE),
    at("healthzPort", Int, Serving, Asks::Restart, Absent("10248"), HEALTHZ),
    at("healthzBindAddress", Text, Serving, Asks::Restart, Zeros("\"127.0.0.1\""), HEALTHZ),
    at("oomScoreAdj", Int, Tuning, Asks::Restart, Absent("-999"), NONE),
    at("clusterDomain", Text, Drain, Asks::NewPods, Zero, NEW_PODS),
    at("clusterDNS", types::TEXTS, Drain, Asks::NewPods, Zero, NEW_PODS),
    at("streamingConnectionIdleTimeout", Duration, Tuning, Asks::Restart, Zeros("\"4h\""), NONE),
    at("nodeStatusUpdateFrequency", Duration, Contact, Asks::Restart, Zeros("\"10s\""), GRACE_PERIOD),
    at("nodeStatusReportFrequency", Duration, Contact, Asks::Restart, Varies, GRACE_PERIOD),
    at("nodeLeaseDurationSeconds", Int, Contact, Asks::Restart, Zeros("40"), GRACE_PERIOD),
    at("imageMinimumGCAge", Duration, Tuning, Asks::Restart, Zeros("\"2m\""), NONE),
    at("imageGCHighThresholdPercent", Int, Tuning, Asks::Restart, Absent("85"), NONE),
    at("imageGCLowThresholdPercent", Int, Tuning, Asks::Restart, Absent("80"), NONE),
    at("volumeStatsAggPeriod", Duration, Tuning, Asks::Restart, Zeros("\"1m\""), NONE),
    at("kubeletCgroups", Text, Reboot, Asks::Reboot, Zero, REBOOT),
    at("systemCgroups", Text, Reboot, Asks::Reboot, Zero, REBOOT),
    at("cgroupRoot", Cgroup, Reboot, Asks::Reboot, Zeros("\"/\""), REBOOT), // server.go, with cgroupsPerQOS
    at("cgroupsPerQOS", Bool, Reboot, Asks::Reboot, Absent("true"), REBOOT),
    at("cgroupDriver", Text, Reboot, Asks::Reboot, Zeros("\"cgroupfs\""), REBOOT),
    at("cpuManagerPolicy", Text, Reboot, Asks::StateFiles, Zeros("\"none\""), POLICY),
    at("cpuManagerReconcilePeriod", Duration, Tuning, Asks::Restart, Zeros("\"10s\""), NONE),
    at("topologyManagerPolicy", Text, Reboot, Asks::StateFiles, Zeros("\"none\""), POLICY),
    at("topologyManagerScope", Text, Reboot, Asks::StateFiles, Zeros("\"container\""), POLICY),
    at("qosReserved", types::PERCENTS, Reboot, Asks::Reboot, Zero, REBOOT),
    at("runtimeRequestTimeout", Duration, Tuning, Asks::Restart, Zeros("\"2m\""), NONE),
    at("hairpinMode", Text, Reboot, Asks::Reboot, Zeros("\"promiscuous-bridge\""), REBOOT),
    at("maxPods", Int, Pods, Asks::Restart, Zeros("110"), ADMISSION),
    at("podCIDR", Text, Forbidden, Asks::OnTheNode, Zero, IDENTITY),
    at("podPidsLimit", Int, Pods, Asks::Restart, Absent("-1"), "lowered, running pods may fail to fork"),
    at("resolvConf", Text, Drain, Asks::NewPods, Absent("\"/etc/resolv.conf\""), NEW_PODS),
    at("runOnce", Bool, Forbidden, Asks::OnTheNode, Zero, IDENTITY),
    at("cpuCFSQuota", Bool, Tuning, Asks::NewContainers, Absent("true"), NEW_CONTAINERS),
    at("cpuCFSQuotaPeriod", Duration, Pods, Asks::Restart, Absent("\"100ms\""), "containers are restarted"),
    at("nodeStatusMaxImages", Int, Tuning, Asks::Restart, Absent("50"), NONE),
    at("maxOpenFiles", Int, Tuning, Asks::Restart, Zeros("1000000"), NONE),
    at("contentType", Text, Contact, Asks::Restart, Zeros("\"application/vnd.kubernetes.protobuf\""), "the kubelet may lose the API server"),
    at("kubeAPIQPS", Int, Tuning, Asks::Restart, Varies, NONE),
    at("kubeAPIBurst", Int, Tuning, Asks::Restart, Varies, NONE),
    at("serializeImagePulls", Bool, Tuning, Asks::Restart, Varies, NONE),
    at("evictionHard", types::THRESHOLDS, Pods, Asks::Restart, Absent(EVICTION_HARD), EVICTION),
    at("evictionSoft", types::THRESHOLDS, Pods, Asks::Restart, Zero, EVICTION),
    at("evictionSoftGracePeriod", types::DURATIONS, Pods, Asks::Restart, Zero, EVICTION),
    at("evictionPressureTransitionPeriod", Duration, Pods, Asks::Restart, Zeros("\"5m\""), EVICTION),
    at("evictionMaxPodGracePeriod", Int, Pods, Asks::Restart, Zero, EVICTION),
    at("evictionMinimumReclaim", types::SHARES, Pods, Asks::Restart, Zero, EVICTION),
    at("podsPerCore", Int, Pods, Asks::Restart, Zero, ADMISSION),
    at("enableControllerAttachDetach", Bool, Drain, Asks::Drain, Absent("true"), "drain the node, and wait until its annotation volumes.kubernetes.io/controller-managed-attach-detach has followed"),
    at("protectKernelDefaults", Bool, CrashLoop, Asks::Restart, Zero, SWAP),
    at("makeIPTablesUtilChains", Bool, Coordinate, Asks::Restart, Absent("true"), IPTABLES),
    at("iptablesMasqueradeBit", Int, Coordinate, Asks::Restart, Absent("14"), IPTABLES),
    at("iptablesDropBit", Int, Coordinate, Asks::Restart, Absent("15"), IPTABLES),
    at("featureGates", types::GATES, CrashLoop, Asks::Restart, Zero, "a gate this kubelet does not know or has locked keeps it from starting"),
    at("failSwapOn", Bool, CrashLoop, Asks::Restart, Absent("true"), SWAP),
    at("containerLogMaxSize", Quantity, Tuning, Asks::Restart, Zeros("\"10Mi\""), NONE),
    at("containerLogMaxFiles", Int, Tuning, Asks::Restart, Absent("5"), NONE),
    at("configMapAndSecretChangeDetectionStrategy", Text, Tuning, Asks::Restart, Zeros("\"Watch\""), NONE),
    at("systemReserved", types::QUANTITIES, Pods, Asks::Restart, Zero, RESERVED),
    at("kubeReserved", types::QUANTITIES, Pods, Asks::Restart, Zero, RESERVED),
    at("reservedSystemCPUs", Cpus, Pods, Asks::Restart, Zero, "with the static CPU manager the state of the exclusive CPUs starts afresh"),
    at("showHiddenMetricsForVersion", Text, Tuning, Asks::Restart, Zero, NONE),
    at("systemReservedCgroup", Cgroup, Reboot, Asks::Reboot, Zero, REBOOT),
    at("kubeReservedCgroup", Cgroup, Reboot, Asks::Reboot, Zero, REBOOT),
    at("enforceNodeAllocatable", types::TEXT_SET, Pods, Asks::Restart, Absent(r#"["pods"]"#), "the kubelet or system daemons may run out of memory; the cgroups named must exist"),
    at("allowedUnsafeSysctls", types::TEXT_SET, Tuning, Asks::Restart, Zero, NONE),
    at("volumePluginDir", Text, Pods, Asks::Restart, Zeros("\"/usr/libexec/kubernetes/kubelet-plugins/volume/exec/\""), "pods with flexVolumes need the plugins there"),
    at("providerID", Text, Drain, Asks::Drain, Zero, "the cloud provider knows the node by it"),
    at("kernelMemcgNotification", Bool, Tuning, Asks::Restart, Zero, NONE),
    at("logging", types::LOGGING, CrashLoop, Asks::Restart, Struct(r#"{"format":"text","flushFrequency":"5s","verbosity":0}"#), "the kubelet's words may become unreadable to this supervisor"),
    at("enableSystemLogHandler", Bool, Serving, Asks::Restart, Absent("true"), SERVE),
    at("shutdownGracePeriod", Duration, Coordinate, Asks::Restart, Zero, LOGIND),
    at("shutdownGracePeriodCriticalPods", Duration, Coordinate, Asks::Restart, Zero, LOGIND),
    // Later than 1.20.
    at("shutdownGracePeriodByPodPriority", types::GRACE_PERIODS, Coordinate, Asks::Restart, Zero, LOGIND),
    at("memoryManagerPolicy", Text, Reboot, Asks::StateFiles, Zeros("\"None\""), POLICY),
    at("reservedMemory", types::RESERVED_MEMORY, Reboot, Asks::StateFiles, Zero, POLICY),
    at("cpuManagerPolicyOptions", types::OPTIONS, Reboot, Asks::StateFiles, Zero, POLICY),
    at("topologyManagerPolicyOptions", types::OPTIONS, Reboot, Asks::StateFiles, Zero, POLICY),
    at("containerRuntimeEndpoint", Endpoint, Reboot, Asks::Reboot, Zeros("\"unix:///run/containerd/containerd.sock\""), RUNTIME),
    at("imageServiceEndpoint", Endpoint, Reboot, Asks::Reboot, Like("containerRuntimeEndpoint"), RUNTIME),
    at("podLogsDir", Text, Reboot, Asks::Reboot, Zeros("\"/var/log/pods\""), "drain the node: the logs of running pods stay behind"),
    at("memorySwap", types::MEMORY_SWAP, CrashLoop, Asks::Restart, Zero, SWAP),
    at("userNamespaces", types::USER_NAMESPACES, CrashLoop, Asks::Restart, Zero, "the kubelet does not start without the subordinate ids it asks for"),
    at("failCgroupV1", Bool, CrashLoop, Asks::Restart, Varies, SWAP),
    at("singleProcessOOMKill", Bool, CrashLoop, Asks::Restart, Varies, "the kubelet does not start with it on cgroup v1"),
    at("registerNode", Bool, Forbidden, Asks::OnTheNode, Absent("true"), REGISTRATION),
    at("registerWithTaints", types::TAINTS, Forbidden, Asks::OnTheNode, Zero, REGISTRATION),
    at("mergeDefaultEvictionSettings", Bool, Pods, Asks::Restart, Zero, EVICTION),
    at("localStorageCapacityIsolation", Bool, Drain, Asks::NewPods, Absent("true"), NEW_PODS),
    at("imagePullCredentialsVerificationPolicy", Text, Pods, Asks::Restart, Zero, PULLS), // by gate
    at("preloadedImagesVerificationAllowlist", types::TEXT_SET, Pods, Asks::Restart, Zero, PULLS),
    at("enableSystemLogQuery", Bool, Serving, Asks::Restart, Zero, SERVE),
    at("enableProfilingHandler", Bool, Serving, Asks::Restart, Absent("true"), SERVE),
    at("enableDebugFlagsHandler", Bool, Serving, Asks::Restart, Absent("true"), SERVE),
    at("tlsCurvePreferences", types::TEXT_SET, Serving, Asks::Restart, Zero, SERVE),
    at("tracing", types::TRACING, Tuning, Asks::Restart, Zero, "needs its endpoint"),
    at("seccompDefault", Bool, Tuning, Asks::NewContainers, Absent("false"), NEW_CONTAINERS),
    at("memoryThrottlingFactor", Float, Tuning, Asks::NewContainers, Varies, NEW_CONTAINERS), // 0.8, from 1.27 on 0.9
    at("memoryReservationPolicy", Text, Tuning, Asks::NewContainers, Zero, NEW_CONTAINERS),
    at("maxParallelImagePulls", Int, Tuning, Asks::Restart, Zero, NONE),
    at("containerLogMaxWorkers", Int, Tuning, Asks::Restart, Absent("1"), NONE),
    at("containerLogMonitorInterval", Duration, Tuning, Asks::Restart, Absent("\"10s\""), NONE),
    at("imageMaximumGCAge", Duration, Tuning, Asks::Restart, Zero, NONE),
    at("crashLoopBackOff", types::CRASH_LOOP_BACK_OFF, Tuning, Asks::NewContainers, Zero, NEW_CONTAINERS),
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
            assert_eq!(find(field).map(|hazard| hazard.asks), Some(asks), "{field}");
        }
    }

    #[test]
    fn labels_differ() {
        let labels: BTreeSet<_> = HazardClass::ALL.iter().map(|class| class.label()).collect();
        assert_eq!(labels.len(), HazardClass::ALL.len());
    }
}
