//! Which kubelet and API server this run is about.

use std::process::Command;
use std::sync::LazyLock;

use crate::cluster::run;

/// What `prepare.sh` builds.
pub const DEFAULT: &str = "v1.20.2";

/// Cases about the fields, defaults, texts and losses of kubelet 1.20.
const OF_THE_DEFAULT: [&str; 5] = ["effective_view", "losses", "plugin_snapshots", "plugin_tutorial", "tutorial"];

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

/// True if the API server has the gate `DynamicKubeletConfig`, which 1.26 took out.
pub fn keeps_config_source() -> bool {
    minor(&API_SERVER) < 26
}

/// Whether a case means something with this kubelet.
pub fn includes(case: &str) -> bool {
    kubelet() == DEFAULT || !OF_THE_DEFAULT.contains(&case)
}

/// Says what is run, and what is left out for it.
pub fn tell() {
    println!("kubelet {}, kube-apiserver {}", *KUBELET, *API_SERVER);
    if kubelet() != DEFAULT {
        println!("SKIPPED: {}: they are about kubelet {DEFAULT}", OF_THE_DEFAULT.join(", "));
    }
    if !keeps_config_source() {
        println!("SKIPPED: all cases [native]: kube-apiserver {} has no spec.configSource", *API_SERVER);
    }
}
