//! Which kubelet and API server this run is about, and what of the suite means nothing with them.

use std::process::Command;
use std::sync::LazyLock;

use kubelet_config::hazard::defaults;
use serde_json::{Value, json};

use crate::cluster::run;
use crate::plugin_pools::DEPLOYED;

/// What `prepare.sh` builds.
pub const DEFAULT: &str = "v1.20.2";

/// Cases about what kubelet 1.20 has, and no other.
const OF_THE_DEFAULT: [(&str, &str); 3] = [
    ("effective_view", "each field and flag of 1.20 is set in it"),
    ("losses", "what the admission of 1.20 turns away when it restarts"),
    ("plugin_snapshots", "what is printed has the fields and defaults of 1.20"),
];

/// Cases whose Pods this kubelet has to start.
const OF_RUNNING_PODS: [&str; 5] = [DEPLOYED, "containers_keep_running", "exec_and_changes", "losses", "max_pods"];

static KUBELET: LazyLock<String> = LazyLock::new(|| version("KUBELET_BINARY"));
static API_SERVER: LazyLock<String> = LazyLock::new(|| version("APISERVER_BINARY"));

/// As the binary that this variable names says it: `Kubernetes v1.36.2`.
fn version(variable: &str) -> String {
    let Some(binary) = std::env::var_os(variable) else { return DEFAULT.to_owned() };
    let said = run(Command::new(binary).arg("--version")).unwrap_or_else(|why| panic!("{variable}: {why}"));
    said.split_whitespace().last().unwrap_or_else(|| panic!("{variable}: it says no version")).to_owned()
}

fn minor(version: &str) -> u64 {
    let minor = version.split('.').nth(1).and_then(|minor| minor.parse().ok());
    minor.unwrap_or_else(|| panic!("{version} is no version"))
}

/// Such as `v1.20.2`.
pub fn kubelet() -> &'static str {
    &KUBELET
}

/// What a field is that no file has and no flag.
pub fn default_of(field: &str) -> Value {
    defaults::filled(&json!({}), Some(minor(&KUBELET)))[field].clone()
}

/// What is missed of a kubelet that hangs: since 1.32 it pings where it is given a watchdog (gate `SystemdWatchdog`).
pub fn sign_of_life() -> &'static str {
    if minor(&KUBELET) < 32 { "no healthz" } else { "no WATCHDOG=1" }
}

/// Whether the client CA is read with the other dependencies, before the lock file: so in 1.20 to 1.23, and no more in 1.36. The
/// versions between were not read.
pub fn reads_client_ca_first() -> bool {
    minor(&KUBELET) < 24
}

/// Disruption budgets and evictions: v1 has both since 1.22, v1beta1 went with 1.25.
pub fn policy() -> &'static str {
    if minor(&API_SERVER) < 22 { "policy/v1beta1" } else { "policy/v1" }
}

/// True if the API server has the gate `DynamicKubeletConfig`, which 1.26 took out.
pub fn keeps_config_source() -> bool {
    minor(&API_SERVER) < 26
}

/// Since 1.31 a kubelet asks for Services by `spec.clusterIP`, which API servers know since then, and starts no container
/// before it has the answer (kubernetes/kubernetes#123905, #127316).
fn starts_pods() -> bool {
    minor(&KUBELET) < 31 || minor(&API_SERVER) >= 31
}

/// Whether a case means something with these.
pub fn includes(case: &str) -> bool {
    let of_the_default = OF_THE_DEFAULT.iter().any(|(name, _)| *name == case);
    (kubelet() == DEFAULT || !of_the_default) && (starts_pods() || !OF_RUNNING_PODS.contains(&case))
}

/// The cases that are named here.
pub fn named() -> impl Iterator<Item = &'static str> {
    OF_THE_DEFAULT.iter().map(|(name, _)| *name).chain(OF_RUNNING_PODS)
}

/// Says what is run, and what is left out for it.
pub fn tell() {
    let (kubelet, api_server) = (kubelet(), API_SERVER.as_str());
    println!("kubelet {kubelet}, kube-apiserver {api_server}");
    if kubelet != DEFAULT {
        for (case, why) in OF_THE_DEFAULT {
            println!("SKIPPED: {case}: {why}, and this kubelet is {kubelet}");
        }
    }
    if !starts_pods() {
        for case in OF_RUNNING_PODS {
            println!(
                "SKIPPED: {case}: kubelet {kubelet} starts no Pod: kube-apiserver {api_server} selects no Services by spec.clusterIP"
            );
        }
    }
    if !keeps_config_source() {
        println!("SKIPPED: all cases [native]: kube-apiserver {api_server} has no spec.configSource");
    }
}
