//! Flags, parsed as pflag does it.

use std::collections::HashMap;

use super::style::{Stage, Style};

pub const USAGE: &str =
    "The kubelet is the primary \"node agent\" that runs on each node.\n\nUsage:\n  kubelet [flags]";

const BOOLS: &str = "anonymous-auth authentication-token-webhook cgroups-per-qos contention-profiling cpu-cfs-quota \
    enable-controller-attach-detach enable-debugging-handlers enable-server exit-on-lock-contention \
    experimental-allocatable-ignore-eviction fail-swap-on kernel-memcg-notification make-iptables-util-chains \
    protect-kernel-defaults register-node rotate-certificates rotate-server-certificates runonce seccomp-default \
    serialize-image-pulls help";
const BOOLS_1_20: &str = "alsologtostderr logtostderr register-schedulable keep-terminated-pod-volumes \
    redirect-container-streaming skip-headers skip-log-headers add-dir-header one-output \
    experimental-kernel-memcg-notification experimental-logging-sanitization really-crash-for-testing";
const BOOLS_1_36: &str = "fail-cgroupv1 local-storage-capacity-isolation";

const INTS: &str = "container-log-max-files event-burst event-qps eviction-max-pod-grace-period healthz-port \
    image-gc-high-threshold image-gc-low-threshold kube-api-burst kube-api-qps max-open-files max-pods \
    maximum-dead-containers maximum-dead-containers-per-container node-status-max-images oom-score-adj pod-max-pids \
    pods-per-core port read-only-port registry-burst registry-qps v";
const INTS_1_20: &str = "iptables-drop-bit iptables-masquerade-bit log-file-max-size stderrthreshold";

const STRINGS: &str = "address allowed-unsafe-sysctls authentication-token-webhook-cache-ttl authorization-mode \
    authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl bootstrap-kubeconfig \
    cert-dir cgroup-driver cgroup-root client-ca-file cloud-provider cluster-dns cluster-domain config \
    container-log-max-size container-runtime-endpoint cpu-cfs-quota-period cpu-manager-policy \
    cpu-manager-reconcile-period enforce-node-allocatable eviction-hard eviction-minimum-reclaim \
    eviction-pressure-transition-period eviction-soft eviction-soft-grace-period experimental-mounter-path \
    feature-gates file-check-frequency hairpin-mode healthz-bind-address hostname-override housekeeping-interval \
    http-check-frequency image-credential-provider-bin-dir image-credential-provider-config image-service-endpoint \
    kube-api-content-type kube-reserved kube-reserved-cgroup kubeconfig kubelet-cgroups lock-file \
    log-flush-frequency logging-format manifest-url manifest-url-header minimum-container-ttl-duration \
    minimum-image-ttl-duration node-ip node-labels node-status-update-frequency pod-cidr pod-manifest-path \
    provider-id qos-reserved register-with-taints reserved-cpus resolv-conf root-dir runtime-cgroups \
    runtime-request-timeout streaming-connection-idle-timeout sync-frequency system-cgroups system-reserved \
    system-reserved-cgroup tls-cert-file tls-cipher-suites tls-min-version tls-private-key-file \
    topology-manager-policy topology-manager-scope vmodule volume-plugin-dir volume-stats-agg-period";
const STRINGS_1_20: &str = "cloud-config cni-bin-dir cni-cache-dir cni-conf-dir container-runtime dynamic-config-dir \
    experimental-bootstrap-kubeconfig image-pull-progress-deadline log-dir log-file master-service-namespace \
    network-plugin network-plugin-mtu non-masquerade-cidr pod-infra-container-image seccomp-profile-root";
const STRINGS_1_36: &str = "config-dir cpu-manager-policy-options memory-manager-policy reserved-memory \
    topology-manager-policy-options";

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Bool,
    Int,
    Text,
    /// `--version` and `--version=raw`.
    Version,
}

fn kind(name: &str, style: Style) -> Option<Kind> {
    let has = |list: &str| list.split_whitespace().any(|flag| flag == name);
    let own = |old, new| has(if style == Style::V1_20 { old } else { new });
    if name == "version" {
        Some(Kind::Version)
    } else if has(BOOLS) || own(BOOLS_1_20, BOOLS_1_36) {
        Some(Kind::Bool)
    } else if has(INTS) || own(INTS_1_20, "") {
        Some(Kind::Int)
    } else if has(STRINGS) || own(STRINGS_1_20, STRINGS_1_36) {
        Some(Kind::Text)
    } else {
        None
    }
}

/// The last value of each flag, and all of `--feature-gates`.
#[derive(Default)]
pub struct Flags {
    last: HashMap<String, String>,
    gates: Vec<String>,
}

impl Flags {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.last.get(name).map(String::as_str)
    }

    pub fn bool(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| parse_bool(value) == Some(true))
    }

    pub fn gates(&self) -> impl Iterator<Item = &str> {
        self.gates.iter().map(String::as_str)
    }
}

pub enum Parsed {
    Run(Flags),
    Version,
    Help,
}

pub struct Error {
    pub stage: Stage,
    pub text: String,
}

fn bad(text: String) -> Error {
    Error { stage: Stage::FlagParse, text }
}

pub fn parse(args: &[String], style: Style) -> Result<Parsed, Error> {
    let mut flags = Flags::default();
    let mut positional: Vec<&str> = Vec::new();
    let mut rest = args.iter().map(String::as_str);
    while let Some(arg) = rest.next() {
        if arg == "--" {
            positional.extend(rest.by_ref());
        } else if let Some(long) = arg.strip_prefix("--") {
            let (raw, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            let name = raw.replace('_', "-");
            let kind = kind(&name, style).ok_or_else(|| bad(format!("unknown flag: --{name}")))?;
            let value = match (value, kind) {
                (Some(value), _) => value,
                (None, Kind::Bool | Kind::Version) => "true",
                (None, _) => rest.next().ok_or_else(|| bad(format!("flag needs an argument: --{name}")))?,
            };
            flags.set(&name, kind, value)?;
        } else if let Some(short) = arg.strip_prefix('-').filter(|short| !short.is_empty()) {
            // The only shorthands: -h, and -v2, -v 2, -v=2.
            match short.split_at(1) {
                ("h", _) => flags.set("help", Kind::Bool, "true")?,
                ("v", "") => {
                    let needs = || bad("flag needs an argument: 'v' in -v".into());
                    flags.set("v", Kind::Int, rest.next().ok_or_else(needs)?)?;
                }
                ("v", level) => flags.set("v", Kind::Int, level.trim_start_matches('='))?,
                (other, _) => return Err(bad(format!("unknown shorthand flag: '{other}' in -{short}"))),
            }
        } else {
            positional.push(arg);
        }
    }
    if let Some(first) = positional.first() {
        let text = match style {
            Style::V1_20 => format!("unknown command: {first}"),
            Style::V1_36 => format!("unknown command [{}]", positional.join(" ")),
        };
        return Err(Error { stage: Stage::Positional, text });
    }
    if flags.bool("help") {
        return Ok(Parsed::Help);
    }
    if flags.get("version").is_some_and(|value| value != "false") {
        return Ok(Parsed::Version);
    }
    Ok(Parsed::Run(flags))
}

impl Flags {
    fn set(&mut self, name: &str, kind: Kind, value: &str) -> Result<(), Error> {
        let wrong = |why: String| bad(format!("invalid argument {value:?} for {:?} flag: {why}", format!("--{name}")));
        match kind {
            Kind::Bool if parse_bool(value).is_none() => {
                return Err(wrong(format!("strconv.ParseBool: parsing {value:?}: invalid syntax")));
            }
            Kind::Int if value.parse::<i64>().is_err() => {
                return Err(wrong(format!("strconv.ParseInt: parsing {value:?}: invalid syntax")));
            }
            _ => {}
        }
        if name == "feature-gates" {
            for pair in value.split(',').filter(|pair| !pair.is_empty()) {
                let (gate, on) =
                    pair.split_once('=').ok_or_else(|| wrong(format!("missing bool value for {}", pair.trim())))?;
                if parse_bool(on.trim()).is_none() {
                    return Err(wrong(format!(
                        "invalid value of {gate}={on}, err: strconv.ParseBool: parsing {on:?}: invalid syntax"
                    )));
                }
                self.gates.push(gate.trim().to_owned());
            }
        }
        self.last.insert(name.to_owned(), value.to_owned());
        Ok(())
    }
}

/// Go's strconv.ParseBool.
fn parse_bool(value: &str) -> Option<bool> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}
