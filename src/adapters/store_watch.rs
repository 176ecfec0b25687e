//! Writes in the store while the supervisor runs, whoever makes them.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::inotify::WatchDescriptor;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::UnboundedSender;

use super::inotify::{CONTENT, Inotify, events};
use crate::machine::Input;

/// What counts in `supervisor/`: the history grows by itself, and the lock and the socket come and go.
const OWN: [&str; 3] = ["state.json", "configs", "seals"];

/// Directories below the store's that hold what is verified, and how deep they go.
const TREES: [(&str, u32); 5] =
    [("", 0), ("store", 0), ("supervisor/configs", 2), ("supervisor/seals", 1), ("store/checkpoints", 2)];

/// Events of one write come together; directories that it made are watched after this long.
const GATHER: Duration = Duration::from_millis(500);

/// Begins to watch the store; each burst of writes is one [`Input::StoreTouched`]. Without inotify there are none, and what
/// a start needs is verified at the start.
pub(crate) fn start(root: PathBuf, inputs: UnboundedSender<Input>) {
    match Inotify::open() {
        Ok(inotify) => drop(tokio::spawn(run(inotify, root, inputs))),
        Err(error) => tracing::warn!(
            "changes of {} by others are seen at starts of the kubelet alone: inotify: {error}",
            root.display()
        ),
    }
}

async fn run(inotify: AsyncFd<Arc<Inotify>>, root: PathBuf, inputs: UnboundedSender<Input>) {
    let mut last_logged = None;
    loop {
        // Watches come before the look at what is there, so that nothing is missed in between.
        let (instance, dir) = (inotify.get_ref().clone(), root.clone());
        let Ok((own, failed)) = tokio::task::spawn_blocking(move || watch(&instance, &dir)).await else { return };
        if failed != last_logged {
            if let Some(why) = &failed {
                tracing::warn!(
                    "changes of {} by others may be seen at starts of the kubelet alone: {why}",
                    root.display()
                );
            }
            last_logged = failed;
        }
        loop {
            let seen = events(Some(&inotify)).await;
            let counts = |name: &OsStr| OWN.iter().any(|own| name == *own);
            let concerns = |wd: WatchDescriptor, name: Option<&OsStr>| Some(wd) != own || name.is_none_or(counts);
            if seen.iter().any(|event| concerns(event.wd, event.name.as_deref())) {
                break;
            }
        }
        if inputs.send(Input::StoreTouched).is_err() {
            return;
        }
        tokio::time::sleep(GATHER).await;
    }
}

/// Watches all directories; gives the watch of our own one, and why one could not be watched.
fn watch(inotify: &Inotify, root: &Path) -> (Option<WatchDescriptor>, Option<String>) {
    let mut failed = None;
    for (tree, depth) in TREES {
        watch_tree(inotify, &root.join(tree), depth, &mut failed);
    }
    let own = inotify.watch(&root.join("supervisor"), CONTENT).unwrap_or_else(|error| {
        failed.get_or_insert(format!("inotify: {error}"));
        None
    });
    (own, failed)
}

fn watch_tree(inotify: &Inotify, dir: &Path, depth: u32, failed: &mut Option<String>) {
    if let Err(error) = inotify.watch(dir, CONTENT) {
        failed.get_or_insert(format!("inotify: {error}")); // such as all of fs.inotify.max_user_watches in use
    }
    let entries = std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    for entry in entries.filter(|entry| depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        watch_tree(inotify, &entry.path(), depth - 1, failed);
    }
}
