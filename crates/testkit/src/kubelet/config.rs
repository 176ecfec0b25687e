//! The configuration: decoding with the kubelet's complaints, flags over file, and a handful of its validations.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use serde_yaml::{DuplicateKeyPolicy, Options};

use super::flags::Flags;
use super::style::{Style, go_error};

const INTS: &str = "port readOnlyPort registryPullQPS registryBurst eventRecordQPS eventBurst healthzPort oomScoreAdj \
    nodeLeaseDurationSeconds imageGCHighThresholdPercent imageGCLowThresholdPercent maxPods podPidsLimit \
    nodeStatusMaxImages maxOpenFiles kubeAPIQPS kubeAPIBurst evictionMaxPodGracePeriod podsPerCore \
    iptablesMasqueradeBit iptablesDropBit containerLogMaxFiles";
const INTS_1_36: &str = "maxParallelImagePulls containerLogMaxWorkers";
const BOOLS: &str = "enableServer rotateCertificates serverTLSBootstrap enableDebuggingHandlers \
    enableContentionProfiling cgroupsPerQOS runOnce cpuCFSQuota serializeImagePulls enableControllerAttachDetach \
    protectKernelDefaults makeIPTablesUtilChains failSwapOn kernelMemcgNotification enableSystemLogHandler";
const BOOLS_1_36: &str = "enableProfilingHandler enableDebugFlagsHandler enableSystemLogQuery seccompDefault \
    registerNode localStorageCapacityIsolation failCgroupV1 singleProcessOOMKill";
/// Durations are strings as well.
const STRINGS: &str = "staticPodPath syncFrequency fileCheckFrequency httpCheckFrequency staticPodURL address \
    tlsCertFile tlsPrivateKeyFile tlsMinVersion healthzBindAddress clusterDomain streamingConnectionIdleTimeout \
    nodeStatusUpdateFrequency nodeStatusReportFrequency imageMinimumGCAge volumeStatsAggPeriod kubeletCgroups \
    systemCgroups cgroupRoot cgroupDriver cpuManagerPolicy cpuManagerReconcilePeriod topologyManagerPolicy \
    topologyManagerScope runtimeRequestTimeout hairpinMode podCIDR resolvConf cpuCFSQuotaPeriod contentType \
    evictionPressureTransitionPeriod containerLogMaxSize configMapAndSecretChangeDetectionStrategy \
    reservedSystemCPUs showHiddenMetricsForVersion systemReservedCgroup kubeReservedCgroup volumePluginDir \
    providerID shutdownGracePeriod shutdownGracePeriodCriticalPods";
const STRINGS_1_36: &str = "memoryManagerPolicy containerRuntimeEndpoint imageServiceEndpoint podLogsDir \
    containerLogMonitorInterval imageMaximumGCAge imagePullCredentialsVerificationPolicy memoryReservationPolicy";
const OTHERS: &str = "kind apiVersion staticPodURLHeader tlsCipherSuites authentication authorization clusterDNS \
    qosReserved evictionHard evictionSoft evictionSoftGracePeriod evictionMinimumReclaim featureGates systemReserved \
    kubeReserved enforceNodeAllocatable allowedUnsafeSysctls logging";
const OTHERS_1_36: &str = "cpuManagerPolicyOptions topologyManagerPolicyOptions reservedMemory memorySwap tracing \
    crashLoopBackOff registerWithTaints shutdownGracePeriodByPodPriority memoryThrottlingFactor \
    preloadedImagesVerificationAllowlist userNamespaces tlsCurvePreferences mergeDefaultEvictionSettings";

const GATES: &str = "AllAlpha AllBeta AppArmor CPUManager CPUManagerPolicyOptions ExecProbeTimeout \
    GracefulNodeShutdown KubeletPodResources LocalStorageCapacityIsolation MemoryManager NodeSwap \
    RotateKubeletServerCertificate SizeMemoryBackedVolumes TopologyManager WindowsHostNetwork";
const GATES_1_20: &str = "APIPriorityAndFairness BalanceAttachedNodeVolumes CSIMigration CSIMigrationAWS \
    CSIMigrationAzureDisk CSIMigrationAzureFile CSIMigrationGCE CSIMigrationOpenStack CSIMigrationvSphere \
    DevicePlugins DownwardAPIHugePages DynamicKubeletConfig EndpointSlice HPAScaleToZero HugePageStorageMediumSize \
    IPv6DualStack LegacyNodeRoleBehavior NodeDisruptionExclusion PodSecurity ServiceNodeExclusion \
    SupportNodePidsLimit SupportPodPidsLimit TTLAfterFinished";
const GATES_1_36: &str = "DynamicResourceAllocation InPlacePodVerticalScaling KubeletCrashLoopBackOffMax \
    KubeletFineGrainedAuthz MemoryQoS SidecarContainers SystemdWatchdog UserNamespacesSupport";

pub fn is_gate(name: &str, style: Style) -> bool {
    has(GATES, name) || has(if style == Style::V1_20 { GATES_1_20 } else { GATES_1_36 }, name)
}

fn has(list: &str, name: &str) -> bool {
    list.split_whitespace().any(|known| known == name)
}

/// A file that decodes.
#[derive(Default)]
pub struct Loaded {
    /// As it was in the file.
    pub original: Value,
    /// The `standIn` field, which the kubelet is not to see.
    pub knobs: Value,
    /// What the strict decoder had against it.
    pub lenient: Option<String>,
    fields: Map<String, Value>,
}

impl Loaded {
    /// What the kubelet goes by but for flags.
    pub fn merged(&self) -> Value {
        Value::Object(self.fields.clone())
    }

    /// Merges the drop-ins of `--config-dir` over the file (mergeKubeletConfigurations, cmd/kubelet/app/server.go, v1.36).
    pub fn merge_drop_ins(&mut self, dir: &Path) -> Result<(), String> {
        let walk = |why: String| format!("failed to walk through kubelet dropin directory {:?}: {why}", dir.display());
        let is_link = std::fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_symlink());
        for path in if is_link { Vec::new() } else { drop_ins(dir).map_err(walk)? } {
            let load =
                |why: String| walk(format!("failed to load kubelet dropin file, path: {}, {why}", path.display()));
            let text = std::fs::read_to_string(&path).map_err(|error| load(format!("error: {}", go_error(&error))))?;
            let (patch, twice) = parse_yaml(first_document(&text)).map_err(|why| load(format!("error: {why}")))?;
            if let Some(why) = twice {
                return Err(load(format!("error: strict decoding error: {why}")));
            }
            let is = |key: &str, expected: &str| patch.get(key).and_then(Value::as_str) == Some(expected);
            if !is("kind", "KubeletConfiguration") || !is("apiVersion", "kubelet.config.k8s.io/v1beta1") {
                return Err(load("error: no apiVersion/kind".to_owned()));
            }
            merge_patch(&mut self.fields, &patch);
        }
        Ok(())
    }
}

/// Files `*.conf` in the order of filepath.WalkDir.
fn drop_ins(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let told = |error: std::io::Error| format!("lstat {}: {}", dir.display(), go_error(&error));
    let mut entries: Vec<_> = std::fs::read_dir(dir).map_err(told)?.filter_map(Result::ok).collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    let mut found = Vec::new();
    for entry in entries {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(drop_ins(&entry.path())?);
        } else if entry.file_name().to_string_lossy().ends_with(".conf") {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// RFC 7386.
fn merge_patch(into: &mut Map<String, Value>, patch: &Value) {
    for (name, value) in patch.as_object().into_iter().flatten() {
        match (into.get_mut(name), value) {
            (_, Value::Null) => drop(into.remove(name)),
            (Some(Value::Object(inner)), Value::Object(_)) => merge_patch(inner, value),
            _ => drop(into.insert(name.clone(), value.clone())),
        }
    }
}

/// Reads and decodes, or says why not, in the words that are the same in all versions.
pub fn load(path: &Path, style: Style) -> Result<Loaded, String> {
    decode_file(path, style)
        .map_err(|error| format!("failed to load Kubelet config file {}, error {error}", path.display()))
}

fn decode_file(path: &Path, style: Style) -> Result<Loaded, String> {
    let shown = path.display();
    let bytes = std::fs::read(path).map_err(|error| {
        format!("failed to read kubelet config file \"{shown}\", error: open {shown}: {}", go_error(&error))
    })?;
    if bytes.is_empty() {
        return Err(format!("kubelet config file \"{shown}\" was empty"));
    }
    decode(&String::from_utf8_lossy(&bytes), style).map_err(|error| format!("failed to decode: {error}"))
}

fn decode(text: &str, style: Style) -> Result<Loaded, String> {
    let (original, duplicate) = parse_yaml(first_document(text))?;
    // A scalar or a list has no kind either, and the real one says so in more words.
    let mut fields = match &original {
        Value::Object(fields) => fields.clone(),
        Value::Null => Map::new(),
        other => {
            return Err(format!(
                "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go value of type struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}",
                go_type(other)
            ));
        }
    };
    let name = |key: &str| fields.get(key).and_then(Value::as_str).unwrap_or_default();
    let (kind, version) = (name("kind"), name("apiVersion"));
    for (value, label) in [(kind, "Kind"), (version, "apiVersion")] {
        if value.is_empty() {
            return Err(format!("Object '{label}' is missing in '{}'", text.trim_end()));
        }
    }
    match (kind, version) {
        ("KubeletConfiguration", "kubelet.config.k8s.io/v1beta1") => {}
        ("SerializedNodeConfigSource", "kubelet.config.k8s.io/v1beta1") => {
            return Err(format!(
                "failed to cast object to KubeletConfiguration, unexpected type: {version}, Kind={kind}"
            ));
        }
        _ => {
            return Err(format!(
                "no kind \"{kind}\" is registered for version \"{version}\" in scheme \"k8s.io/kubernetes/pkg/kubelet/apis/config/scheme/scheme.go:31\""
            ));
        }
    }
    let knobs = fields.remove("standIn").unwrap_or_default();
    let mut unknown = Vec::new();
    for (field, value) in &fields {
        match expected(field, style) {
            None => unknown.push(field.as_str()),
            Some(_) if value.is_null() => {}
            Some(expected) if expected.fits(value) => {}
            Some(expected) => return Err(expected.complaint(field, value, style)),
        }
    }
    if let Some(gates) = fields.get("featureGates").and_then(Value::as_object)
        && let Some((_, value)) = gates.iter().find(|(_, value)| !value.is_boolean())
    {
        return Err(Expected::Bool.complaint("featureGates", value, style));
    }
    let mut complaints: Vec<String> = duplicate.into_iter().collect();
    complaints.extend(unknown.iter().map(|field| match style {
        Style::V1_20 => format!(
            "v1beta1.KubeletConfiguration.ReadObject: found unknown field: {field}, error found in #10 byte of ...|{field}|..."
        ),
        Style::V1_36 => format!("unknown field {field:?}"),
    }));
    let lenient = (!complaints.is_empty()).then(|| match style {
        // 1.20 stops at the first one, and shows the whole file, secrets and all.
        Style::V1_20 => format!("strict decoder error for {original}: {}", complaints[0]),
        Style::V1_36 => format!("strict decoding error: {}", complaints.join(", ")),
    });
    Ok(Loaded { original, knobs, lenient, fields })
}

/// The value, and what is wrong with it if a key is there twice: the strict decoder refuses that, the lenient one
/// takes the last.
fn parse_yaml(text: &str) -> Result<(Value, Option<String>), String> {
    let parse = |duplicate_keys| {
        let mut options = Options::default();
        options.duplicate_keys = duplicate_keys;
        options.legacy_octal_numbers = true;
        serde_yaml::from_str_with_options::<Value>(text, options)
    };
    let first_line = |error: &serde_yaml::Error| error.to_string().lines().next().unwrap_or_default().to_owned();
    match parse(DuplicateKeyPolicy::Error) {
        Ok(value) => Ok((value, None)),
        Err(strict) => match parse(DuplicateKeyPolicy::LastWins) {
            Ok(value) => Ok((value, Some(first_line(&strict)))),
            Err(error) => Err(format!("couldn't get version/kind; json parse error: {}", first_line(&error))),
        },
    }
}

/// Of several YAML documents the kubelet reads the first, and says nothing.
fn first_document(text: &str) -> &str {
    let mut seen_content = false;
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        if line.trim_end() == "---" && seen_content {
            return &text[..offset];
        }
        seen_content |= !line.trim().is_empty() && line.trim_end() != "---" && !line.starts_with('#');
        offset += line.len();
    }
    text
}

#[derive(Clone, Copy)]
enum Expected {
    Int,
    Bool,
    Text,
    Other,
}

fn expected(field: &str, style: Style) -> Option<Expected> {
    let among = |old, new| has(old, field) || (style == Style::V1_36 && has(new, field));
    if among(INTS, INTS_1_36) {
        Some(Expected::Int)
    } else if among(BOOLS, BOOLS_1_36) {
        Some(Expected::Bool)
    } else if among(STRINGS, STRINGS_1_36) {
        Some(Expected::Text)
    } else if among(OTHERS, OTHERS_1_36) {
        Some(Expected::Other)
    } else {
        None
    }
}

impl Expected {
    fn fits(self, value: &Value) -> bool {
        match self {
            // The parser has no integer for 0644 and 1_000, Go has.
            Expected::Int => value.as_f64().is_some_and(|number| number.fract() == 0.0),
            Expected::Bool => value.is_boolean(),
            Expected::Text => value.is_string(),
            Expected::Other => true,
        }
    }

    fn complaint(self, field: &str, value: &Value, style: Style) -> String {
        let mut go_field = field.to_owned();
        go_field[..1].make_ascii_uppercase();
        let (what, wanted) = match self {
            Expected::Int => ("readUint32: unexpected character: \u{fffd}", "int32"),
            Expected::Bool => ("ReadBool: expect t or f, but found \"", "bool"),
            Expected::Text | Expected::Other => ("ReadString: expects \" or n, but found 1", "string"),
        };
        // The real one shows some bytes of the text.
        let excerpt: String = format!("\"{field}\":{value}").chars().take(60).collect();
        match style {
            Style::V1_20 => format!(
                "v1beta1.KubeletConfiguration.{go_field}: {what}, error found in #10 byte of ...|{excerpt}|..., bigger context ...|{excerpt}|..."
            ),
            Style::V1_36 => format!(
                "json: cannot unmarshal {} into Go struct field KubeletConfiguration.{field} of type {wanted}",
                go_type(value)
            ),
        }
    }
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The file with the flags over it, as far as this kubelet looks at either.
pub struct Effective {
    config: Value,
    /// What relative paths in the file are relative to.
    base: PathBuf,
}

impl Effective {
    pub fn new(loaded: Loaded, flags: &Flags, base: PathBuf) -> Effective {
        let mut config = Value::Object(loaded.fields);
        for (flag, field) in [
            ("kube-api-qps", "kubeAPIQPS"),
            ("max-pods", "maxPods"),
            ("event-qps", "eventRecordQPS"),
            ("healthz-port", "healthzPort"),
        ] {
            if let Some(number) = flags.get(flag).and_then(|value| value.parse::<i64>().ok()) {
                config[field] = number.into();
            }
        }
        for (flag, field) in [
            ("healthz-bind-address", "healthzBindAddress"),
            ("system-reserved-cgroup", "systemReservedCgroup"),
            ("kube-reserved-cgroup", "kubeReservedCgroup"),
        ] {
            if let Some(value) = flags.get(flag) {
                config[field] = value.into();
            }
        }
        if let Some(list) = flags.get("enforce-node-allocatable") {
            config["enforceNodeAllocatable"] = list.split(',').map(str::to_owned).collect();
        }
        if let Some(format) = flags.get("logging-format") {
            set(&mut config, &["logging", "format"], format);
        }
        if let Some(path) = flags.get("client-ca-file") {
            set(&mut config, &["authentication", "x509", "clientCAFile"], &super::shown(Some(&super::absolute(path))));
        }
        Effective { config, base }
    }

    pub fn string(&self, pointer: &str) -> Option<&str> {
        self.config.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty())
    }

    pub fn number(&self, pointer: &str) -> Option<i64> {
        self.config.pointer(pointer).and_then(Value::as_i64)
    }

    pub fn gates(&self) -> impl Iterator<Item = &str> {
        self.config["featureGates"].as_object().into_iter().flatten().map(|(gate, _)| gate.as_str())
    }

    pub fn enforces(&self, what: &str) -> bool {
        self.config["enforceNodeAllocatable"].as_array().is_some_and(|list| list.iter().any(|item| item == what))
    }

    pub fn bad_log_format(&self) -> Option<&str> {
        self.string("/logging/format").filter(|format| !matches!(*format, "text" | "json"))
    }

    /// Everything that is wrong with it, as Go prints an aggregate: a single error bare, several in brackets.
    pub fn validate(&self, style: Style) -> Option<String> {
        let mut errors = Vec::new();
        for (field, flag) in [("eventRecordQPS", "event-qps"), ("kubeAPIQPS", "kube-api-qps"), ("maxPods", "max-pods")]
        {
            let Some(number @ ..0) = self.number(&format!("/{field}")) else { continue };
            let mut shown = field.to_owned();
            if style == Style::V1_20 {
                shown[..1].make_ascii_uppercase();
            }
            errors.push(format!("invalid configuration: {shown} (--{flag}) {number} must not be a negative number"));
        }
        for (key, field, flag) in [
            ("system-reserved", "systemReservedCgroup", "system-reserved-cgroup"),
            ("kube-reserved", "kubeReservedCgroup", "kube-reserved-cgroup"),
        ] {
            if self.enforces(key) && self.string(&format!("/{field}")).is_none() {
                errors.push(format!("invalid configuration: {field} (--{flag}) must be specified when {key:?} contained in enforceNodeAllocatable (--enforce-node-allocatable)"));
            }
        }
        if let Some(format) = self.bad_log_format() {
            errors.push(format!("unsupported log format: {format}"));
        }
        match errors.len() {
            0 => None,
            1 => errors.pop(),
            _ => Some(format!("[{}]", errors.join(", "))),
        }
    }

    pub fn client_ca_error(&self) -> Option<String> {
        let path = self.base.join(self.string("/authentication/x509/clientCAFile")?);
        let shown = path.display();
        match std::fs::read_to_string(&path) {
            Err(error) => Some(format!("unable to load client CA file {shown}: open {shown}: {}", go_error(&error))),
            Ok(text) if text.contains("-----BEGIN CERTIFICATE-----") => None,
            Ok(_) => Some(format!(
                "unable to load client CA file {shown}: error reading {shown}: data does not contain any valid RSA or ECDSA certificates"
            )),
        }
    }
}

fn set(config: &mut Value, path: &[&str], value: &str) {
    let mut place = config;
    for part in path {
        place = &mut place[*part];
    }
    *place = value.into();
}
