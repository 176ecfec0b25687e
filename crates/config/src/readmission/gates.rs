//! Feature gates that admission goes by (pkg/features/kube_features.go, v1.36).

use serde_json::Value;

/// The newest version whose sources these defaults were read in; that is behind `schema::NEWEST` while its sources cannot be had.
pub(super) const NEWEST: u64 = 36;

/// How mature a gate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// `AllAlpha` switches it.
    Alpha,
    /// `AllBeta` switches it.
    Beta,
}

use Stage::{Alpha, Beta};

/// A gate.
pub(super) struct Gate {
    name: &'static str,
    /// From which minor version on it has this default and stage.
    since: &'static [(u64, bool, Stage)],
}

pub(super) const POD_LEVEL_RESOURCES: Gate =
    Gate { name: "PodLevelResources", since: &[(32, false, Alpha), (34, true, Beta)] };
pub(super) const NODE_DECLARED_FEATURES: Gate =
    Gate { name: "NodeDeclaredFeatures", since: &[(35, false, Alpha), (36, true, Beta)] };
pub(super) const RESTART_ALL_CONTAINERS: Gate =
    Gate { name: "RestartAllContainersOnContainerExits", since: &[(35, false, Alpha), (36, true, Beta)] };
pub(super) const USER_NAMESPACES_HOST_NETWORK: Gate =
    Gate { name: "UserNamespacesHostNetworkSupport", since: &[(35, false, Alpha)] };

impl Gate {
    /// Whether it is on; `None` if that depends on a version that is not known.
    pub(super) fn is_on(&self, config: &Value, minor: Option<u64>) -> Option<bool> {
        let given = |name: &str| config.get("featureGates")?.get(name)?.as_bool();
        if let Some(on) = given(self.name) {
            return Some(on);
        }
        let minor = minor.filter(|minor| *minor <= NEWEST)?;
        let Some((_, default, stage)) = self.since.iter().rev().find(|(since, ..)| *since <= minor) else {
            return Some(false);
        };
        let of_stage = match stage {
            Alpha => given("AllAlpha"),
            Beta => given("AllBeta"),
        };
        Some(of_stage.unwrap_or(*default))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Each gate, version by version: off before it came, its default and stage from each step on, and nobody knows after the last
    /// version that was read.
    #[test]
    fn every_gate_in_every_version() {
        for gate in
            [&POD_LEVEL_RESOURCES, &NODE_DECLARED_FEATURES, &RESTART_ALL_CONTAINERS, &USER_NAMESPACES_HOST_NETWORK]
        {
            assert!(gate.since.is_sorted_by(|(since, ..), (later, ..)| since < later), "{}", gate.name);
            let switch = |stages: &str| json!({ "featureGates": { stages: true } });
            for minor in 20..=NEWEST {
                let step = gate.since.iter().rev().find(|(since, ..)| *since <= minor);
                let is_on = |config: &Value| gate.is_on(config, Some(minor));
                assert_eq!(is_on(&json!({})), Some(step.is_some_and(|(_, on, _)| *on)), "{} in 1.{minor}", gate.name);
                let of = |asked: Stage| step.is_some_and(|(_, on, stage)| *on || *stage == asked);
                assert_eq!(is_on(&switch("AllAlpha")), Some(of(Alpha)), "{} in 1.{minor}", gate.name);
                assert_eq!(is_on(&switch("AllBeta")), Some(of(Beta)), "{} in 1.{minor}", gate.name);
            }
            for minor in [None, Some(NEWEST + 1)] {
                assert_eq!(gate.is_on(&switch("AllAlpha"), minor), None, "{}", gate.name);
                assert_eq!(gate.is_on(&switch(gate.name), minor), Some(true), "{}", gate.name);
            }
        }
    }
}
