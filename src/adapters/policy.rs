//! The node's policy: a file of root's, read when it is asked for.

use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::os::ownership;
use crate::ports::LocalPolicy;
use kubelet_config::policy::NodePolicy;
use kubelet_config::yaml;

/// Where the policy is, and what of the supervisor's options it is read with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyFile {
    /// `--policy`; empty: there is none.
    pub path: PathBuf,
    /// Namespaces of `--config-namespace` and `--default-source`.
    pub label_namespaces: BTreeSet<String>,
}

impl PolicyFile {
    /// Reads it.
    ///
    /// # Errors
    /// Who else may write it, why it cannot be read, or what in it is wrong; with its path.
    pub fn read(&self) -> Result<LocalPolicy, String> {
        let is_wanted = !self.path.as_os_str().is_empty();
        let policy = if is_wanted { read(&self.path)? } else { None };
        let unguarded = if is_wanted && policy.is_none() { ownership::check(&self.path).err() } else { None };
        Ok(LocalPolicy {
            policy,
            unguarded: unguarded.map(|error| error.to_string()),
            label_namespaces: self.label_namespaces.clone(),
        })
    }
}

/// A file that is not there is no policy, whoever may write in its directory: what somebody puts there is not used either.
pub(crate) fn read(path: &Path) -> Result<Option<NodePolicy>, String> {
    let fail = |error: io::Error| format!("{}: {error}", path.display());
    match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && std::fs::symlink_metadata(path).is_err() => {
            return Ok(None);
        }
        // A link that leads nowhere: what it led to is not mounted, say.
        Err(error) => return Err(fail(error)),
        Ok(found) if !found.is_file() => return Err(format!("{}: it is no file", path.display())),
        Ok(_) => {}
    }
    ownership::check(path).map_err(|error| error.to_string())?;
    let file = std::fs::File::open(path).map_err(fail)?;
    let mut text = String::new();
    file.take(yaml::MAX_BYTES as u64 + 1).read_to_string(&mut text).map_err(fail)?;
    NodePolicy::parse(&text).map(Some).map_err(|why| format!("{}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_leads_nowhere_is_not_no_policy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policy.yaml");
        assert_eq!(read(&path).unwrap(), None);
        std::os::unix::fs::symlink("/not/mounted/policy.yaml", &path).unwrap();
        let why = read(&path).unwrap_err();
        assert!(why.starts_with(&path.display().to_string()), "{why}");
    }
}
