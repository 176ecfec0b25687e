//! What Pods show of trouble on their Nodes, without a record of how they were before.

use std::collections::BTreeSet;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A kind of trouble that a Node can have.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, Ord, PartialEq, PartialOrd, Serialize)]
pub enum Signal {
    /// A container was started again.
    PodRestarts,
    /// A container was killed for its memory.
    #[serde(rename = "OOMKills")]
    OomKills,
    /// The kubelet evicted a Pod.
    Evictions,
    /// The Node was not Ready.
    NotReady,
}

impl Signal {
    pub(crate) const ALL: [Self; 4] = [Self::PodRestarts, Self::OomKills, Self::Evictions, Self::NotReady];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::PodRestarts => "PodRestarts",
            Self::OomKills => "OOMKills",
            Self::Evictions => "Evictions",
            Self::NotReady => "NotReady",
        }
    }
}

/// What happened to a Pod since then. Of a container the API has its last end alone.
pub(crate) fn of_pod(pod: &Value, since: Timestamp) -> BTreeSet<Signal> {
    let is_new = |time: &&str| time.parse::<Timestamp>().is_ok_and(|at| at >= since);
    let mut signals = BTreeSet::new();
    let mut times: Vec<&str> = text(pod, "/status/startTime").into_iter().collect();
    let lists = ["/status/containerStatuses", "/status/initContainerStatuses"];
    for container in lists.iter().filter_map(|list| pod.pointer(list)?.as_array()).flatten() {
        for (state, is_restart) in [("/lastState/terminated", true), ("/state/terminated", false)] {
            let Some(end) = container.pointer(state) else { continue };
            let Some(at) = text(end, "/finishedAt") else { continue };
            times.push(at);
            if is_new(&at) {
                signals.extend(is_restart.then_some(Signal::PodRestarts));
                signals.extend((text(end, "/reason") == Some("OOMKilled")).then_some(Signal::OomKills));
            }
        }
    }
    if text(pod, "/status/reason") == Some("Evicted") {
        // Since 1.26 a condition has the time; before, its containers' ends do, or its start if it had none.
        let conditions = pod.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
        let disruption = conditions.filter(|it| text(it, "/type") == Some("DisruptionTarget"));
        times.extend(disruption.filter_map(|it| text(it, "/lastTransitionTime")));
        if times.iter().any(is_new) {
            signals.insert(Signal::Evictions);
        }
    }
    signals
}

fn text<'a>(of: &'a Value, pointer: &str) -> Option<&'a str> {
    of.pointer(pointer)?.as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const BEFORE: &str = "2026-01-01T00:00:00Z";
    const AFTER: &str = "2026-01-01T00:10:00Z";

    fn signals(status: &Value) -> Vec<&'static str> {
        let found = of_pod(&json!({"status": status}), "2026-01-01T00:05:00Z".parse().unwrap());
        found.into_iter().map(Signal::as_str).collect()
    }

    fn ended(state: &str, reason: &str, at: &str) -> Value {
        json!({state: {"terminated": {"reason": reason, "finishedAt": at}}})
    }

    #[test]
    fn what_happened_since_counts_and_nothing_before() {
        let container = |status: Value| json!({"containerStatuses": [{}, status]});
        let cases = [
            (container(ended("lastState", "Error", AFTER)), vec!["PodRestarts"]),
            (container(ended("lastState", "Error", BEFORE)), vec![]),
            (container(ended("lastState", "OOMKilled", AFTER)), vec!["PodRestarts", "OOMKills"]),
            (container(ended("state", "OOMKilled", AFTER)), vec!["OOMKills"]),
            (container(ended("state", "Completed", AFTER)), vec![]),
            (json!({"initContainerStatuses": [ended("lastState", "Error", AFTER)]}), vec!["PodRestarts"]),
            (json!({"reason": "Evicted", "startTime": BEFORE}), vec![]),
            (json!({"reason": "Evicted", "startTime": AFTER}), vec!["Evictions"]),
            (json!({"reason": "Evicted", "containerStatuses": [ended("state", "Error", AFTER)]}), vec!["Evictions"]),
            (
                json!({"reason": "Evicted", "conditions": [{"type": "DisruptionTarget", "lastTransitionTime": AFTER}]}),
                vec!["Evictions"],
            ),
            (json!({"reason": "Evicted", "conditions": [{"type": "Ready", "lastTransitionTime": AFTER}]}), vec![]),
        ];
        for (status, expected) in cases {
            assert_eq!(signals(&status), expected, "{status}");
        }
    }

    #[test]
    fn odd_pods_are_read() {
        for status in [json!(null), json!(7), json!({"containerStatuses": {}, "conditions": 1, "reason": "Evicted"})] {
            assert!(signals(&status).is_empty());
        }
        assert!(signals(&json!({"containerStatuses": [ended("lastState", "Error", "yesterday")]})).is_empty());
    }
}
