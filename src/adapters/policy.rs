//! The node's policy: a file of root's, read when it is asked for, and watched for writes.

use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::inotify::AddWatchFlags;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::UnboundedSender;

use super::inotify::{CONTENT, Inotify, events};
use super::ownership;
use crate::machine::Input;
use crate::ports::LocalPolicy;
use kubelet_config::policy::NodePolicy;
use kubelet_config::yaml;

/// What changes a file once its writer is done, or puts another in its place; its mode counts too.
const MASK: AddWatchFlags = CONTENT.difference(AddWatchFlags::IN_MODIFY).union(AddWatchFlags::IN_ATTRIB);

/// Events of one write come together.
const GATHER: Duration = Duration::from_millis(300);

/// Where the policy is, and what of the supervisor's options it is read with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyFile {
    /// `--policy`; empty: there is none.
    pub path: PathBuf,
    /// Namespaces of `--config-namespace` and `--default-source`.
    pub label_namespaces: BTreeSet<String>,
    /// There is a `--source-dir`.
    pub source_dir: bool,
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
            source_dir: self.source_dir,
        })
    }
}

/// A file that is not there is no policy, whoever may write in its directory: what somebody puts there is not used either.
pub(crate) fn read(path: &Path) -> Result<Option<NodePolicy>, String> {
    let fail = |error: io::Error| format!("{}: {error}", path.display());
    match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
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

/// Begins to watch it: each burst of writes in its directory is one [`Input::PolicyChanged`]. Without inotify there are none,
/// and the policy is read for the next candidate and the next start.
pub(crate) fn watch(path: &Path, inputs: UnboundedSender<Input>) {
    let Some(dir) = path.parent().map(Path::to_owned).filter(|dir| dir.is_absolute()) else { return };
    match Inotify::open() {
        Ok(inotify) => drop(tokio::spawn(run(inotify, dir, path.to_owned(), inputs))),
        Err(error) => tracing::warn!("changes of {} are seen when it is needed: inotify: {error}", path.display()),
    }
}

async fn run(inotify: AsyncFd<Arc<Inotify>>, dir: PathBuf, path: PathBuf, inputs: UnboundedSender<Input>) {
    loop {
        // Where the directory is not there yet, the one that it will be made in tells of it.
        let (instance, dir) = (inotify.get_ref().clone(), dir.clone());
        let watched = tokio::task::spawn_blocking(move || {
            let found =
                dir.ancestors().find_map(|dir| instance.watch(dir, MASK).transpose().map(|wd| (dir.to_owned(), wd)));
            found.map(|(place, wd)| wd.map(|wd| (place, wd)))
        });
        let (place, wd) = match watched.await {
            Ok(Some(Ok(found))) => found,
            Ok(Some(Err(error))) => {
                tracing::warn!("changes of {} are seen when it is needed: inotify: {error}", path.display());
                return;
            }
            Ok(None) | Err(_) => return,
        };
        loop {
            let seen = events(Some(&inotify)).await;
            let next = path.strip_prefix(&place).ok().and_then(|rest| rest.iter().next());
            let concerns = |name: Option<&std::ffi::OsStr>| name.is_none_or(|name| Some(name) == next);
            if seen.iter().any(|event| event.wd == wd && concerns(event.name.as_deref())) {
                break;
            }
        }
        tokio::time::sleep(GATHER).await;
        if inputs.send(Input::PolicyChanged).is_err() {
            return;
        }
        inotify.get_ref().forget(wd);
    }
}
