//! Sysctls that the configuration no longer allows (`Admit`, pkg/kubelet/sysctl/allowlist.go, v1.36; whitelist.go,
//! v1.20.2). All containers of a pod keep the sysctls that they have; at the restart the pod is refused for them.

use serde_json::Value;

use super::gates::NEWEST;
use super::kubelet::Kubelet;
use super::refusal::Certainty;
use crate::hazard::effective;
use crate::pods::PodSummary;

/// What every kubelet allows, and the first minor version that does (safe_sysctls.go and whitelist.go in
/// pkg/kubelet/sysctl, v1.20 to v1.36). Some ask for a kernel; a pod that runs has it.
const SAFE: [(&str, u64); 12] = [
    ("kernel.shm_rmid_forced", 0),
    ("net.ipv4.ip_local_port_range", 0),
    ("net.ipv4.tcp_syncookies", 0),
    ("net.ipv4.ping_group_range", 18),
    ("net.ipv4.ip_unprivileged_port_start", 22),
    ("net.ipv4.ip_local_reserved_ports", 27),
    ("net.ipv4.tcp_keepalive_time", 29),
    ("net.ipv4.tcp_fin_timeout", 29),
    ("net.ipv4.tcp_keepalive_intvl", 29),
    ("net.ipv4.tcp_keepalive_probes", 29),
    ("net.ipv4.tcp_rmem", 32),
    ("net.ipv4.tcp_wmem", 32),
];

/// Whether the pod is refused as `SysctlForbidden`.
pub(super) fn refuses(pod: &PodSummary, kubelet: &Kubelet<'_>) -> Option<Certainty> {
    let allowed = effective(kubelet.config, "allowedUnsafeSysctls");
    let allowed: Vec<String> =
        allowed.as_array().into_iter().flatten().filter_map(Value::as_str).map(with_dots).collect();
    let judged = pod.sysctls.iter().filter_map(|sysctl| refusal(&with_dots(sysctl), &allowed, kubelet.minor));
    judged.min()
}

fn refusal(sysctl: &str, allowed: &[String], minor: Option<u64>) -> Option<Certainty> {
    let matches = |pattern: &String| match pattern.strip_suffix('*') {
        Some(prefix) => sysctl.starts_with(prefix),
        None => sysctl == pattern,
    };
    if allowed.iter().any(matches) {
        return None;
    }
    let since = SAFE.iter().find(|(name, _)| *name == sysctl).map(|(_, since)| *since);
    match (since, minor.filter(|minor| *minor <= NEWEST)) {
        (Some(since), Some(minor)) if since <= minor => None,
        (Some(0), _) => None,
        (_, Some(_)) => Some(Certainty::Refused),
        // A version that is not known may allow it.
        (_, None) => Some(Certainty::Unknown),
    }
}

/// Kubelets from 1.23 on take slashes for dots, and dots for slashes then
/// (ConvertSysctlVariableToDotsSeparator, staging/src/k8s.io/component-helpers/node/util/sysctl/sysctl.go, v1.36).
fn with_dots(name: &str) -> String {
    if name.find(['.', '/']).is_none_or(|at| name.get(at..=at) == Some(".")) {
        return name.to_owned();
    }
    let swap = |c: char| match c {
        '/' => '.',
        '.' => '/',
        other => other,
    };
    name.chars().map(swap).collect()
}
