//! Which configurations can share the kubelet's resource manager state files.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::effective::effective;
use super::table;
use crate::digest::sha256;

/// Node CPUs beyond this are not believed (the kernel's own limit is 8192).
const CPUS_MAX: u32 = 16_384;

/// A key for the resource manager policies of an effective configuration, such as
/// `cpu=none_memory=None`; it differs where a kubelet could refuse the other's state files, and is
/// fit for a file name.
///
/// A kubelet dies of a `cpu_manager_state` or `memory_manager_state` with another `policyName`; of
/// a static CPU policy's whose default set lacks a reserved CPU; and of a memory policy's whose
/// reserved memory is not what the configuration says (pkg/kubelet/cm/cpumanager/policy_static.go
/// v1.20.2, memorymanager/policy_static.go v1.36: validateState). Under a policy that allocates,
/// its options and the topology manager decided what stands in the file; upstream asks for a
/// fresh one with them too. `kubeReserved.cpu` is left out: without `reservedSystemCPUs` it is a
/// number of CPUs, and refused only where the ones it adds are taken. Policies that do not
/// allocate leave nothing but their name.
#[must_use]
pub fn policy_key(config: &Value) -> String {
    let text = |field: &str| match effective(config, field) {
        Value::String(text) => text,
        other => other.to_string(),
    };
    let (cpu, memory) = (text("cpuManagerPolicy"), text("memoryManagerPolicy"));
    let mut details = Map::new();
    let (pins_cpus, pins_memory) = (cpu != "none", memory != "None");
    let mut fields = Vec::new();
    if pins_cpus {
        fields.extend(["cpuManagerPolicyOptions", "reservedSystemCPUs"]);
    }
    if pins_memory {
        fields.push("reservedMemory");
    }
    if pins_cpus || pins_memory {
        fields.extend(["topologyManagerPolicy", "topologyManagerScope", "topologyManagerPolicyOptions"]);
    }
    for field in fields {
        let value = effective(config, field);
        let spelt_once = table::find(field).map(|hazard| hazard.of.canonical(&value));
        details.insert(field.to_owned(), spelt_once.filter(|value| !is_empty(value)).unwrap_or_default());
    }
    let key = format!("cpu={}_memory={}", plain(&cpu), plain(&memory));
    if !pins_cpus && !pins_memory {
        return key;
    }
    details.insert("cpu".to_owned(), cpu.into());
    details.insert("memory".to_owned(), memory.into());
    let hash = sha256(Value::Object(details).to_string().as_bytes());
    format!("{key}_{}", hash.get(..12).unwrap_or_default())
}

/// False if a state file says another policy than this key has: a kubelet refuses that. `None`: there is no such file, or it says
/// none.
#[must_use]
pub fn fits_policy(key: &str, cpu: Option<&str>, memory: Option<&str>) -> bool {
    let Some((of_cpu, of_memory)) = key.strip_prefix("cpu=").and_then(|key| key.split_once("_memory=")) else {
        return true;
    };
    let of_memory = of_memory.split('_').next().unwrap_or_default();
    cpu.is_none_or(|cpu| plain(cpu) == of_cpu) && memory.is_none_or(|memory| plain(memory) == of_memory)
}

/// The key of files that say these policies, of which nothing else is known.
#[must_use]
pub fn key_of_found(cpu: Option<&str>, memory: Option<&str>) -> String {
    format!("cpu={}_memory={}", plain(cpu.unwrap_or("none")), plain(memory.unwrap_or("None")))
}

/// An empty list or map is none.
fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty)
}

/// Only what a file name may hold; the hash tells apart what this makes equal.
fn plain(text: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' };
    text.chars().take(24).map(safe).collect()
}

/// A list of CPUs, `0-1,4`; `None` if it is none (`Parse`, k8s.io/utils/cpuset).
pub(crate) fn cpus(text: &str) -> Option<BTreeSet<u32>> {
    let mut cpus = BTreeSet::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last > CPUS_MAX || first > last {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn without_policies_there_is_one_key() {
        let plain = "cpu=none_memory=None";
        assert_eq!(policy_key(&Value::Null), plain);
        assert_eq!(policy_key(&json!({"cpuManagerPolicy": "none", "memoryManagerPolicy": "None"})), plain);
        let idle = json!({"reservedSystemCPUs": "0", "topologyManagerPolicy": "restricted", "reservedMemory": [{"numaNode": 0}],
            "cpuManagerPolicyOptions": {"full-pcpus-only": "true"}});
        assert_eq!(policy_key(&idle), plain, "managers that do nothing keep nothing");
    }

    #[test]
    fn a_policy_that_allocates_has_its_details_in_the_key() {
        let base = json!({"cpuManagerPolicy": "static", "reservedSystemCPUs": "0-1"});
        let key = policy_key(&base);
        assert!(key.starts_with("cpu=static_memory=None_") && key.len() < 48, "{key}");
        let with = |field: &str, value: Value| {
            let mut config = base.clone();
            config[field] = value;
            policy_key(&config)
        };
        assert_eq!(with("reservedSystemCPUs", json!("0,1")), key, "the same CPUs");
        assert_eq!(with("topologyManagerPolicy", json!("none")), key, "the default");
        assert_eq!(with("kubeReserved", json!({"cpu": "1"})), key);
        assert_eq!(with("reservedMemory", json!([])), key);
        assert_eq!(with("reservedMemory", json!([{"numaNode": 0}])), key, "no memory policy");
        assert_ne!(with("reservedSystemCPUs", json!("0-2")), key);
        assert_ne!(
            with("reservedSystemCPUs", json!("0")),
            with("reservedSystemCPUs", Value::Null),
            "CPU 0 is not none"
        );
        assert_ne!(with("topologyManagerPolicy", json!("restricted")), key);
        assert_ne!(with("cpuManagerPolicyOptions", json!({"full-pcpus-only": "true"})), key);
        assert_ne!(with("memoryManagerPolicy", json!("Static")), key);
        let memory = json!({"memoryManagerPolicy": "Static", "reservedMemory": [{"numaNode": 0}]});
        assert_ne!(policy_key(&memory), policy_key(&json!({"memoryManagerPolicy": "Static"})));
    }

    #[test]
    fn lists_of_cpus() {
        assert_eq!(cpus("0-2,5,7"), Some(BTreeSet::from([0, 1, 2, 5, 7])));
        assert_eq!(cpus(""), Some(BTreeSet::new()));
        assert_eq!((cpus("3-1"), cpus("0-2,"), cpus("0, 1"), cpus(",0")), (None, None, None, None));
        assert_eq!((cpus("a"), cpus("0-4294967295"), cpus("1-2-3")), (None, None, None));
    }

    proptest! {
        #[test]
        fn always_fit_for_a_file_name(cpu in "\\PC{0,40}", memory in "[a-zA-Z/.]{0,30}", reserved in "[0-9,-]{0,12}") {
            let config = json!({"cpuManagerPolicy": cpu, "memoryManagerPolicy": memory, "reservedSystemCPUs": reserved});
            let key = policy_key(&config);
            prop_assert!(key.len() <= 100);
            prop_assert!(key.chars().all(|c| c.is_ascii_alphanumeric() || "=._-".contains(c)), "{}", key);
        }
    }

    #[test]
    fn a_key_fits_the_files_of_its_own_policies_alone() {
        for (cpu, memory) in [("none", "None"), ("static", "None"), ("none", "Static"), ("static", "Static")] {
            let key = policy_key(&json!({"cpuManagerPolicy": cpu, "memoryManagerPolicy": memory}));
            assert!(fits_policy(&key, Some(cpu), Some(memory)) && fits_policy(&key, None, None), "{key}");
            assert!(fits_policy(&key_of_found(Some(cpu), Some(memory)), Some(cpu), Some(memory)));
            let (other_cpu, other_memory) =
                (if cpu == "none" { "static" } else { "none" }, if memory == "None" { "Static" } else { "None" });
            assert!(!fits_policy(&key, Some(other_cpu), Some(memory)), "{key}");
            assert!(!fits_policy(&key, None, Some(other_memory)), "{key}");
        }
    }
}
