//! A version of a configuration.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::model::LoadTarget;
use kubelet_config::digest::Digest;
use kubelet_config::source::Source;
use kubelet_config::status;

/// A version of a configuration: its name, and the content the name stood for when it was rendered.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Version {
    /// The ConfigMap and its resourceVersion.
    #[serde(flatten)]
    pub source: Source,
    /// The content; `None` if it could not be rendered, or was recorded by native.
    pub digest: Option<Digest>,
}

impl Version {
    /// A name without a known content.
    #[must_use]
    pub fn named(source: Source) -> Self {
        Self { source, digest: None }
    }

    /// What is loaded for a version; none is the local configuration.
    pub(super) fn load_target(version: Option<&Self>) -> LoadTarget {
        match version {
            None => LoadTarget::Local,
            Some(Self { source, digest: Some(digest) }) => LoadTarget::Content(digest.clone(), source.clone()),
            Some(Self { source, digest: None }) => LoadTarget::Source(source.clone()),
        }
    }

    /// What people are told; without a version, that it is the local configuration.
    #[must_use]
    pub(super) fn name(version: Option<&Self>) -> String {
        status::name(version.map(|version| &version.source))
    }

    /// True if both are known to have one content.
    #[must_use]
    pub fn has_content(&self, digest: &Digest) -> bool {
        self.digest.as_ref() == Some(digest)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}
