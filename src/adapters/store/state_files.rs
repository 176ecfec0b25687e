//! The kubelet's state files, kept apart by resource manager policy.
//!
//! A kubelet whose policy differs from the one in `cpu_manager_state` or `memory_manager_state`
//! dies. So each policy has its own files: those of the owner lie in the kubelet's root directory,
//! those of others in a stash. They are copied, not renamed, as the root directory may be on
//! another file system.
//!
//! ```text
//! supervisor/state-files/owner.json   whose files lie in the root directory
//! supervisor/state-files/<policy>/    the files of a policy that was left
//! ```
//! While the owner's record says dirty, the root directory is being changed, and the owner's stash
//! is the truth about its files. So whatever is interrupted can be finished, or taken back.

use kubelet_config::source;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{FsStore, checksum};
use crate::adapters::fsx::{self, Disk};
use crate::machine::model::{StateFiles, StateFilesFound};
use crate::ports::StoreError;
use kubelet_config::hazard;

/// Upstream: pkg/kubelet/cm/container_manager_linux.go and the managers' checkpoint names.
const NAMES: [&str; 2] = ["cpu_manager_state", "memory_manager_state"];
/// They are some KiB even on large nodes.
const LIMIT: u64 = 1 << 20;
/// So many policies that were left keep their files.
const STASHES: usize = 4;

/// `owner.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Ownership {
    /// The policy whose files the root directory holds.
    owner: String,
    /// They are on their way out: the truth is in its stash.
    dirty: bool,
    /// Policies with a stash, the one left last at the end.
    #[serde(default)]
    stashed: Vec<String>,
}

/// The name of a policy's stash: the word itself where that is a safe name.
fn stash_name(policy: &str) -> String {
    let plain = policy.replace(['=', ',', ':', '+'], "-");
    let ours = policy.starts_with("sha256-") || policy.starts_with("tmp_") || policy == "owner.json";
    if source::is_safe_component(&plain) && plain.len() <= 128 && !ours {
        policy.to_owned()
    } else {
        format!("sha256-{}", checksum(policy.as_bytes()))
    }
}

fn at(path: &Path, error: io::Error) -> StoreError {
    match error.kind() {
        io::ErrorKind::FileTooLarge => {
            let advice = "so this is no state file of a kubelet; remove it if the kubelet does not start";
            StoreError::disk(path, format_args!("{error}, {advice}"))
        }
        _ => StoreError::disk(path, error),
    }
}

impl<D: Disk> FsStore<D> {
    /// Puts the kubelet's `--root-dir` in order for a start with these policies. Nothing happens if it is in order; what is
    /// interrupted is taken up again by the next one. Files that say another policy than they should are put aside as that one's.
    ///
    /// # Errors
    /// What could not be moved.
    pub fn swap_state_files(&mut self, files: &StateFiles, root_dir: &str) -> Result<StateFilesFound, StoreError> {
        let swapped = self.swap(files, root_dir);
        self.checked(swapped)
    }

    fn swap(&mut self, files: &StateFiles, root_dir: &str) -> Result<StateFilesFound, StoreError> {
        let home = self.own("state-files");
        let root = std::path::absolute(root_dir)
            .map_err(|error| StoreError::new(format!("the kubelet's --root-dir {root_dir:?}: {error}")))?;
        let mut was = self.owner(&home)?;
        let mut found = StateFilesFound::InOrder;
        if was.as_ref().is_none_or(|was| !was.dirty) {
            // Somebody may have written them, or the store be another one: a kubelet goes by what they say.
            let known = was.as_ref().map_or(&files.policy, |was| &was.owner);
            if let Some(owner) = self.stranger(&root, known) {
                let stash = home.join(stash_name(&owner));
                found = StateFilesFound::PutAside(format!(
                    "{} are of {owner}, and go to {}",
                    NAMES.join(", "),
                    stash.display()
                ));
                was = Some(Ownership { owner, ..was.unwrap_or_default() });
            }
        }
        match &was {
            Some(was) if was.owner == files.policy && !was.dirty => return Ok(found),
            Some(_) if files.look => return Ok(StateFilesFound::OfAnother),
            _ => {}
        }
        let own = |dir: &Path| (dir.to_owned(), 0o700);
        self.make_dirs(&[(self.root.clone(), 0o755), own(&self.root.join("supervisor")), own(&home)])?;
        let Some(mut record) = was else {
            // Nobody knows whose files these are: most likely they go with what is to run.
            let owner = Ownership { owner: files.policy.clone(), dirty: false, stashed: Vec::new() };
            return self.write_owner(&home, &owner).map(|()| found);
        };
        let left = home.join(stash_name(&record.owner));
        if !record.dirty {
            self.make_dirs(&[own(&left)])?;
            self.stash(&root, &left)?;
            record.stashed.retain(|policy| *policy != record.owner);
            record.stashed.push(record.owner.clone());
            record.dirty = true;
            self.write_owner(&home, &record)?;
        }
        let restore = files.restore || record.owner == files.policy;
        let stash = home.join(stash_name(&files.policy));
        self.restore(&root, restore.then_some(stash.as_path()))?;

        record.stashed.retain(|policy| *policy != files.policy);
        let surplus = record.stashed.len().saturating_sub(STASHES);
        record.stashed.drain(..surplus);
        record = Ownership { owner: files.policy.clone(), dirty: false, ..record };
        self.write_owner(&home, &record)?;
        self.prune(&home, &record);
        Ok(found)
    }

    /// The policy that the files in the root directory say, if a kubelet of this one would refuse them. One that cannot be read
    /// says nothing: it holds no start up that crosses no policy.
    fn stranger(&self, root: &Path, policy: &str) -> Option<String> {
        /// Of both files, as the managers write them (pkg/kubelet/cm/cpumanager/state/checkpoint.go, v1.20.2).
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct State {
            policy_name: String,
        }
        let mut said = [None, None];
        for (name, said) in NAMES.iter().zip(&mut said) {
            let bytes = self.state_file(&root.join(name)).ok().flatten();
            let state = bytes.and_then(|bytes| serde_json::from_slice::<State>(&bytes).ok());
            *said = state.map(|state| state.policy_name);
        }
        let [cpu, memory] = [&said[0], &said[1]].map(Option::as_deref);
        let fits = hazard::fits_policy(policy, cpu, memory);
        (!fits).then(|| hazard::key_of_found(cpu, memory))
    }

    fn owner(&self, home: &Path) -> Result<Option<Ownership>, StoreError> {
        let path = home.join("owner.json");
        match self.read_if_there(&path, LIMIT) {
            // Garbage is the doing of a bad disk: it is replaced whole. It says as little as none.
            Ok(bytes) => Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok())),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Ok(None),
            Err(error) => Err(at(&path, error)),
        }
    }

    fn write_owner(&self, home: &Path, owner: &Ownership) -> Result<(), StoreError> {
        let text = serde_json::to_string(owner).map_err(|error| StoreError::new(error.to_string()))?;
        self.replace(&home.join("owner.json"), text.as_bytes())
    }

    fn state_file(&self, path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
        self.read_if_there(path, LIMIT).map_err(|error| at(path, error))
    }

    /// Copies the owner's files to its stash, so that it holds them and nothing else.
    fn stash(&self, root: &Path, stash: &Path) -> Result<(), StoreError> {
        // Both are read before anything is written: a file that cannot be kept is not given up.
        let files = [self.state_file(&root.join(NAMES[0]))?, self.state_file(&root.join(NAMES[1]))?];
        for (name, bytes) in NAMES.iter().zip(files) {
            self.set(&stash.join(name), bytes.as_deref())?;
        }
        self.sync_dir(stash)
    }

    /// Gives the root directory the files of a stash; without one, none.
    fn restore(&self, root: &Path, stash: Option<&Path>) -> Result<(), StoreError> {
        for name in NAMES {
            let bytes = match stash {
                Some(stash) => self.state_file(&stash.join(name))?,
                None => None,
            };
            if bytes.is_some() {
                self.disk.make_dir(root, 0o750).map_err(|error| at(root, error))?; // as the kubelet does
            }
            let path = root.join(name);
            self.set(&path, bytes.as_deref())?;
            // What a crash left of an earlier try; the directory is not ours to litter.
            let temporary = fsx::temporary_beside(&path);
            self.disk.remove(&temporary).map_err(|error| at(&temporary, error))?;
        }
        self.sync_dir(root)
    }

    /// Replaces a file, or removes it, the latter without syncing its directory.
    fn set(&self, path: &Path, bytes: Option<&[u8]>) -> Result<(), StoreError> {
        match bytes {
            Some(bytes) => self.replace(path, bytes),
            None => self.disk.remove(path).map_err(|error| at(path, error)),
        }
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), StoreError> {
        match self.disk.sync(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()), // nothing was in it
            result => result.map_err(|error| at(dir, error)),
        }
    }

    /// Removes what no policy that was left lately has. A failure costs some room until the next
    /// swap, no more.
    fn prune(&mut self, home: &Path, record: &Ownership) {
        let kept: Vec<String> = record.stashed.iter().map(|policy| stash_name(policy)).collect();
        let names = self.disk.list(home).unwrap_or_default().into_iter();
        let doomed: Vec<PathBuf> =
            names.filter(|name| name != "owner.json" && !kept.contains(name)).map(|name| home.join(name)).collect();
        for path in doomed {
            self.durable.remove(&path);
            let _ = self.disk.remove(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_become_safe_and_different_names() {
        let policy = "cpu=static,full-pcpus-only=true+memory=Static";
        assert_eq!(stash_name(policy), policy);
        let odd = ["", "..", "../x", "a/b", "owner.json", "tmp_owner.json", "sha256-1", "a b", &"x".repeat(200)];
        let mut names: Vec<String> = odd.iter().map(|word| stash_name(word)).collect();
        assert!(names.iter().all(|name| name.len() == 71 && source::is_safe_component(name)), "{names:?}");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), odd.len());
    }
}
