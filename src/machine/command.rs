//! What an operator on the node can ask of a running supervisor.

use std::fmt;
use std::str::FromStr;

use kubelet_config::hazard::HazardClass;
use serde::{Deserialize, Serialize};

/// A configuration to go to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// The local files.
    Local,
    /// Last known good.
    #[default]
    Lkg,
    /// A version whose checkpoint is kept: assigned, last known good, proven before, or pinned.
    Version {
        /// The ConfigMap's uid.
        uid: String,
        /// Its resourceVersion.
        resource_version: String,
    },
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "local" => Ok(Self::Local),
            "lkg" => Ok(Self::Lkg),
            _ => match text.split_once('/') {
                Some((uid, version)) if !uid.is_empty() && !version.is_empty() && !version.contains('/') => {
                    Ok(Self::Version { uid: uid.to_owned(), resource_version: version.to_owned() })
                }
                _ => Err(format!("{text:?} is not local, lkg or UID/RESOURCEVERSION")),
            },
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Lkg => f.write_str("lkg"),
            Self::Version { uid, resource_version } => write!(f, "{uid}/{resource_version}"),
        }
    }
}

/// A command; it works without the API server, and its effect outlives restarts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "verb")]
pub enum Command {
    /// Forget that the assigned version failed, and try it again.
    Retry,
    /// Leave what runs: to last known good (and remember it as bad), or to another version (and
    /// stay there, as with [`Command::Pin`]).
    Rollback {
        /// The version to run instead.
        to: Target,
    },
    /// Run this version, and no other that is assigned; without one, the version that runs.
    Pin {
        /// The version to stay with; `None`: the one that runs.
        to: Option<Target>,
    },
    /// Follow the assignment again.
    Unpin,
    /// Take up no change; a trial under way goes on.
    Freeze,
    /// Take up changes again.
    Thaw,
    /// Confirm the configuration that waits for it.
    Confirm {
        /// Only move the deadline: so many seconds from now.
        extend_seconds: Option<u64>,
    },
    /// Accept hazards of this class for the local files as they are.
    Acknowledge {
        /// What they are refused for.
        class: HazardClass,
    },
}
