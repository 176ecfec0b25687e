//! What a pool says of the comparison of its canaries with Nodes that have not changed. What is empty is left out: as built here,
//! API server 1.20.2 takes an empty string for null.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::signals::Signal;

/// Canaries are compared with Nodes that have not changed.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CompareStrategy {
    /// For how long.
    #[schemars(with = "i32", range(min = 5, max = 1440))]
    pub minutes: u32,
    /// How often a revision that does no harm may be found harmful by chance, in percent, all signals together.
    #[schemars(with = "i32", range(min = 1, max = 20))]
    pub max_error_percent: u32,
}

impl Default for CompareStrategy {
    fn default() -> Self {
        Self { minutes: 30, max_error_percent: 5 }
    }
}

/// What became of the comparison of canaries with Nodes that have not changed.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CanaryComparison {
    /// The revision that the canaries have.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// What happened from then on is compared, RFC 3339.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub started: String,
    /// How it stands.
    pub outcome: ComparisonOutcome,
    /// Canaries that are compared; at most 100.
    #[schemars(with = "i32")]
    pub canaries: u32,
    /// Nodes that have not changed and are compared; at most 100.
    #[schemars(with = "i32")]
    pub controls: u32,
    /// What is compared.
    pub signals: Vec<ComparedSignal>,
    /// The Nodes; when it is over, at most 20 of those that had a signal.
    pub nodes: Vec<ComparedNode>,
    /// All of this, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// How a comparison stands.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum ComparisonOutcome {
    /// It goes on.
    #[default]
    Comparing,
    /// Canaries were not found to be worse; the signals say what would have been found.
    NoHarmFound,
    /// Canaries are worse.
    HarmFound,
    /// So few Nodes cannot show any harm.
    TooFewNodes,
}

/// One kind of trouble; a Node counts once.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ComparedSignal {
    /// PodRestarts, OOMKills, Evictions or NotReady.
    #[serde(rename = "type")]
    pub type_: Signal,
    /// Canaries that had it.
    #[schemars(with = "i32")]
    pub canaries: u32,
    /// Unchanged Nodes that had it.
    #[schemars(with = "i32")]
    pub controls: u32,
    /// Who had it, in that order: c for a canary, o for another Node. Those seen at one time: others first.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sequence: String,
    /// The probability, at most, of ever seeing so much in any of the signals if the revision does no harm, in percent.
    #[schemars(with = "i32")]
    pub chance_percent: u32,
    /// The share of canaries, in percent, from which on harm would be found in four cases of five; none: no share would do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32")]
    pub smallest_harm_percent: Option<u32>,
}

/// A Node that is compared.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ComparedNode {
    /// The Node's name.
    pub name: String,
    /// It has the revision.
    pub canary: bool,
    /// What it had so far.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signals: Vec<Signal>,
}
