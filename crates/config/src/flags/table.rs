//! Flags and the configuration fields they override.
//!
//! Facts from `AddKubeletConfigFlags` (cmd/kubelet/app/options/options.go of v1.20.2 and v1.36.2).

/// Flags that never take the next argument, and are no field.
#[rustfmt::skip]
static BOOLEANS: &[&str] = &[
    "add-dir-header",
    "allow-privileged",
    "alsologtostderr",
    "containerized",
    "docker-only",
    "docker-tls",
    "enable-cadvisor-json-endpoints",
    "enable-load-reader",
    "exit-on-lock-contention",
    "experimental-allocatable-ignore-eviction",
    "experimental-check-node-capabilities-before-mount",
    "help",
    "keep-terminated-pod-volumes",
    "log-cadvisor-usage",
    "logtostderr",
    "one-output",
    "really-crash-for-testing",
    "redirect-container-streaming",
    "register-schedulable",
    "skip-headers",
    "skip-log-headers",
    "storage-driver-secure",
    "version",
];

/// What a flag's value is; repetition as in pflag and component-base/cli/flag (v1.20.2, v1.36).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A boolean; nothing is true.
    Bool,
    /// A whole number, in any base that Go writes.
    Int,
    /// A whole number, in decimal (klog's `Level`).
    Decimal,
    /// Text; also addresses, durations and quantities, which are text in the field too.
    Text,
    /// A comma-separated list; repetitions append.
    List,
    /// Comma-separated pairs with this separator; repetitions add keys.
    Map(char),
    /// One `key=value`, whose value may hold commas; repetitions add keys.
    Pair,
    /// Comma-separated `key:value`, a key may come several times.
    Headers,
    /// `numa:resource=quantity,...`; nodes apart by `;` or repetition.
    Reservations,
    /// `key=value:effect,...`.
    Taints,
    /// `pattern=number,...`; what is given follows what the file has.
    Vmodule,
    /// An address; an empty one sets nothing (`IPVar`, pkg/util/flag).
    Ip,
    /// A boolean that the kubelet takes for true if either this or the field is (`run`, cmd/kubelet/app/server.go, v1.36).
    Or,
}

use Kind::{Bool, Decimal, Headers, Int, Ip, List, Map, Or, Pair, Reservations, Taints, Text, Vmodule};

/// The kind of a flag that is a field.
fn kind(flag: &str) -> Option<Kind> {
    FIELDS.iter().find(|(name, ..)| *name == flag).map(|(.., kind)| *kind)
}

/// True if the flag never takes the next argument.
pub(super) fn is_boolean(flag: &str) -> bool {
    matches!(kind(flag), Some(Bool | Or)) || BOOLEANS.contains(&flag)
}

/// True if the flag overrides a field.
pub(super) fn is_field(flag: &str) -> bool {
    flag == "feature-gates" || kind(flag).is_some()
}

/// True if a repeated flag's values follow one another.
pub(super) fn is_list(flag: &str) -> bool {
    matches!(kind(flag), Some(List | Headers))
}

/// True if a repeated flag adds to what stands before, if only by its keys; of others the last one counts.
pub(super) fn adds_up(flag: &str) -> bool {
    let adds_keys = || matches!(kind(flag), Some(Map(_) | Pair | Reservations | Vmodule));
    matches!(flag, "feature-gates" | "node-labels") || is_list(flag) || adds_keys()
}

/// Flag name, dotted path of the field it overrides, kind of value. `--feature-gates` is not
/// among them: gates add up instead of replacing each other.
#[rustfmt::skip]
pub(super) static FIELDS: &[(&str, &str, Kind)] = &[
    ("address", "address", Ip),
    ("allowed-unsafe-sysctls", "allowedUnsafeSysctls", List),
    ("anonymous-auth", "authentication.anonymous.enabled", Bool),
    ("authentication-token-webhook", "authentication.webhook.enabled", Bool),
    ("authentication-token-webhook-cache-ttl", "authentication.webhook.cacheTTL", Text),
    ("authorization-mode", "authorization.mode", Text),
    ("authorization-webhook-cache-authorized-ttl", "authorization.webhook.cacheAuthorizedTTL", Text),
    ("authorization-webhook-cache-unauthorized-ttl", "authorization.webhook.cacheUnauthorizedTTL", Text),
    ("cgroup-driver", "cgroupDriver", Text),
    ("cgroup-root", "cgroupRoot", Text),
    ("cgroups-per-qos", "cgroupsPerQOS", Bool),
    ("client-ca-file", "authentication.x509.clientCAFile", Text),
    ("cluster-dns", "clusterDNS", List),
    ("cluster-domain", "clusterDomain", Text),
    ("container-log-max-files", "containerLogMaxFiles", Int),
    ("container-log-max-size", "containerLogMaxSize", Text),
    ("container-runtime-endpoint", "containerRuntimeEndpoint", Text),
    ("contention-profiling", "enableContentionProfiling", Bool),
    ("cpu-cfs-quota", "cpuCFSQuota", Bool),
    ("cpu-cfs-quota-period", "cpuCFSQuotaPeriod", Text),
    ("cpu-manager-policy", "cpuManagerPolicy", Text),
    ("cpu-manager-policy-options", "cpuManagerPolicyOptions", Pair),
    ("cpu-manager-reconcile-period", "cpuManagerReconcilePeriod", Text),
    ("enable-controller-attach-detach", "enableControllerAttachDetach", Bool),
    ("enable-debugging-handlers", "enableDebuggingHandlers", Bool),
    ("enable-server", "enableServer", Bool),
    ("enforce-node-allocatable", "enforceNodeAllocatable", List),
    ("event-burst", "eventBurst", Int),
    ("event-qps", "eventRecordQPS", Int),
    ("eviction-hard", "evictionHard", Map('<')),
    ("eviction-max-pod-grace-period", "evictionMaxPodGracePeriod", Int),
    ("eviction-minimum-reclaim", "evictionMinimumReclaim", Map('=')),
    ("eviction-pressure-transition-period", "evictionPressureTransitionPeriod", Text),
    ("eviction-soft", "evictionSoft", Map('<')),
    ("eviction-soft-grace-period", "evictionSoftGracePeriod", Map('=')),
    ("experimental-kernel-memcg-notification", "kernelMemcgNotification", Bool),
    ("experimental-logging-sanitization", "logging.sanitization", Bool),
    ("fail-cgroupv1", "failCgroupV1", Bool),
    ("fail-swap-on", "failSwapOn", Bool),
    ("file-check-frequency", "fileCheckFrequency", Text),
    ("hairpin-mode", "hairpinMode", Text),
    ("healthz-bind-address", "healthzBindAddress", Ip),
    ("healthz-port", "healthzPort", Int),
    ("http-check-frequency", "httpCheckFrequency", Text),
    ("image-gc-high-threshold", "imageGCHighThresholdPercent", Int),
    ("image-gc-low-threshold", "imageGCLowThresholdPercent", Int),
    ("image-service-endpoint", "imageServiceEndpoint", Text),
    ("iptables-drop-bit", "iptablesDropBit", Int),
    ("iptables-masquerade-bit", "iptablesMasqueradeBit", Int),
    ("kernel-memcg-notification", "kernelMemcgNotification", Bool),
    ("kube-api-burst", "kubeAPIBurst", Int),
    ("kube-api-content-type", "contentType", Text),
    ("kube-api-qps", "kubeAPIQPS", Int),
    ("kube-reserved", "kubeReserved", Map('=')),
    ("kube-reserved-cgroup", "kubeReservedCgroup", Text),
    ("kubelet-cgroups", "kubeletCgroups", Text),
    ("local-storage-capacity-isolation", "localStorageCapacityIsolation", Bool),
    ("log-flush-frequency", "logging.flushFrequency", Text),
    ("log-json-info-buffer-size", "logging.options.json.infoBufferSize", Text),
    ("log-json-split-stream", "logging.options.json.splitStream", Bool),
    ("log-text-info-buffer-size", "logging.options.text.infoBufferSize", Text),
    ("log-text-split-stream", "logging.options.text.splitStream", Bool),
    ("logging-format", "logging.format", Text),
    ("make-iptables-util-chains", "makeIPTablesUtilChains", Bool),
    ("manifest-url", "staticPodURL", Text),
    ("manifest-url-header", "staticPodURLHeader", Headers),
    ("max-open-files", "maxOpenFiles", Int),
    ("max-pods", "maxPods", Int),
    ("memory-manager-policy", "memoryManagerPolicy", Text),
    ("minimum-image-ttl-duration", "imageMinimumGCAge", Text),
    ("node-status-max-images", "nodeStatusMaxImages", Int),
    ("node-status-update-frequency", "nodeStatusUpdateFrequency", Text),
    ("oom-score-adj", "oomScoreAdj", Int),
    ("pod-cidr", "podCIDR", Text),
    ("pod-manifest-path", "staticPodPath", Text),
    ("pod-max-pids", "podPidsLimit", Int),
    ("pods-per-core", "podsPerCore", Int),
    ("port", "port", Int),
    ("protect-kernel-defaults", "protectKernelDefaults", Bool),
    ("provider-id", "providerID", Text),
    ("qos-reserved", "qosReserved", Map('=')),
    ("read-only-port", "readOnlyPort", Int),
    ("register-node", "registerNode", Bool),
    ("register-with-taints", "registerWithTaints", Taints),
    ("registry-burst", "registryBurst", Int),
    ("registry-qps", "registryPullQPS", Int),
    ("reserved-cpus", "reservedSystemCPUs", Text),
    ("reserved-memory", "reservedMemory", Reservations),
    ("resolv-conf", "resolvConf", Text),
    ("rotate-certificates", "rotateCertificates", Bool),
    ("rotate-server-certificates", "serverTLSBootstrap", Bool),
    ("runonce", "runOnce", Bool),
    ("runtime-request-timeout", "runtimeRequestTimeout", Text),
    ("seccomp-default", "seccompDefault", Or),
    ("serialize-image-pulls", "serializeImagePulls", Bool),
    ("streaming-connection-idle-timeout", "streamingConnectionIdleTimeout", Text),
    ("sync-frequency", "syncFrequency", Text),
    ("system-cgroups", "systemCgroups", Text),
    ("system-reserved", "systemReserved", Map('=')),
    ("system-reserved-cgroup", "systemReservedCgroup", Text),
    ("tls-cert-file", "tlsCertFile", Text),
    ("tls-cipher-suites", "tlsCipherSuites", List),
    ("tls-min-version", "tlsMinVersion", Text),
    ("tls-private-key-file", "tlsPrivateKeyFile", Text),
    ("topology-manager-policy", "topologyManagerPolicy", Text),
    ("topology-manager-policy-options", "topologyManagerPolicyOptions", Pair),
    ("topology-manager-scope", "topologyManagerScope", Text),
    ("v", "logging.verbosity", Decimal),
    ("vmodule", "logging.vmodule", Vmodule),
    ("volume-plugin-dir", "volumePluginDir", Text),
    ("volume-stats-agg-period", "volumeStatsAggPeriod", Text),
];
