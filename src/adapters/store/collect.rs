//! Removal of what nobody needs any more.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::FsStore;
use crate::adapters::fsx::Disk;
use crate::ports::StoreError;
use kubelet_config::digest::Digest;
use kubelet_config::source::Source;

impl<D: Disk> FsStore<D> {
    /// Removes what belongs to none of these: checkpoints and their checksums, configurations.
    ///
    /// # Errors
    /// What could not be removed; what comes after it is still there too.
    pub fn collect(&mut self, sources: &BTreeSet<Source>, digests: &BTreeSet<Digest>) -> Result<(), StoreError> {
        let kept = |uid: &str, version: Option<&str>| {
            sources
                .iter()
                .any(|source| source.uid == uid && version.is_none_or(|version| source.resource_version == version))
        };
        let list = |path: &Path| self.disk.list(path).map_err(|error| StoreError::disk(path, error));
        let mut unused: Vec<PathBuf> = Vec::new();
        for (tree, suffix) in [("store/checkpoints", ""), ("supervisor/seals", ".json")] {
            let tree = self.root.join(tree);
            for uid in list(&tree)? {
                let dir = tree.join(&uid);
                if kept(&uid, None) {
                    let versions = list(&dir)?.into_iter();
                    let versions = versions.filter(|name| !kept(&uid, Some(name.strip_suffix(suffix).unwrap_or(name))));
                    unused.extend(versions.map(|name| dir.join(name)));
                } else {
                    unused.push(dir);
                }
            }
        }
        let configs = self.own("configs");
        let others = list(&configs)?.into_iter().filter(|name| !digests.iter().any(|digest| digest.0 == *name));
        unused.extend(others.map(|name| configs.join(name)));
        for path in unused {
            self.durable.retain(|durable| !durable.starts_with(&path));
            self.disk.remove(&path).map_err(|error| StoreError::disk(&path, error))?;
        }
        Ok(())
    }
}
