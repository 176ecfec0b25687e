//! Writes in the store, in the local files and of the node's policy while the supervisor runs, whoever makes them.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, WatchDescriptor};
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::UnboundedSender;

use super::inotify::{self, CONTENT, Inotify, Raw, WHOLE, events};
use crate::machine::Input;
use kubelet_config::flags::KubeletArgs;
use kubelet_config::own_files::DROP_IN_DEPTH;

/// What counts in `supervisor/`: the history grows by itself, and the lock and the socket come and go.
const SUPERVISOR_FILES: [&str; 3] = ["state.json", "configs", "seals"];

/// Directories below the store's that hold what is verified, and how deep they go.
const STORE_DIRS: [(&str, u32); 5] =
    [("", 0), ("store", 0), ("supervisor/configs", 2), ("supervisor/seals", 1), ("store/checkpoints", 2)];

/// Links that are followed in one path; the kernel follows as many (MAXSYMLINKS).
const LINKS: usize = 40;

/// Events of one write come together; directories that it made are watched after this long.
const GATHER: Duration = Duration::from_millis(500);

/// Without inotify the local files are looked at so often; a change counts when two looks agree.
const POLL: Duration = Duration::from_secs(10);

/// A policy is read so long after it was written: by then its writer is done.
const SETTLE: Duration = Duration::from_millis(300);

/// What is told, and of which changes.
struct Watch {
    /// What is watched, for people.
    what: String,
    mask: AddWatchFlags,
    /// It is told so long after the first event.
    settle: Duration,
    input: Input,
    /// It is polled where inotify cannot be had.
    polled: bool,
    found: Arc<dyn Fn() -> WatchPaths + Send + Sync>,
    inputs: UnboundedSender<Input>,
}

/// What is watched, as it is found at one moment.
#[derive(Debug, Default)]
struct WatchPaths {
    /// Directories of which all counts, and how deep they go.
    trees: Vec<(PathBuf, u32)>,
    /// Files, of whose directories nothing else counts.
    files: Vec<PathBuf>,
}

/// Begins to watch the store; each burst of writes is one [`Input::StoreTouched`]. Without inotify there are none, and what
/// a start needs is verified at the start.
pub(crate) fn store(root: &Path, inputs: UnboundedSender<Input>) {
    let (what, root) = (root.display().to_string(), root.to_owned());
    let found = move || WatchPaths {
        trees: STORE_DIRS.iter().map(|(tree, depth)| (root.join(tree), *depth)).collect(),
        files: SUPERVISOR_FILES.iter().map(|name| root.join("supervisor").join(name)).collect(),
    };
    let (settle, input, found) = (Duration::ZERO, Input::StoreTouched, Arc::new(found));
    Watch { what, mask: CONTENT, settle, input, polled: false, found, inputs }.start();
}

/// Begins to watch the policy; each burst of writes is one [`Input::PolicyChanged`]. Its mode counts too.
pub(crate) fn policy(path: &Path, inputs: UnboundedSender<Input>) {
    if !path.is_absolute() {
        return;
    }
    let (what, mask) = (path.display().to_string(), WHOLE.union(AddWatchFlags::IN_ATTRIB));
    let path = path.to_owned();
    let found = Arc::new(move || WatchPaths { files: vec![path.clone()], ..WatchPaths::default() });
    Watch { what, mask, settle: SETTLE, input: Input::PolicyChanged, polled: false, found, inputs }.start();
}

/// Begins to watch the local files; each burst of writes is one [`Input::LocalFilesTouched`], which comes when a file was
/// closed or renamed: a writer may pause.
pub(crate) fn local_files(args: &KubeletArgs, inputs: UnboundedSender<Input>) {
    let absolute = |flag| args.last(flag).and_then(|path| std::path::absolute(path).ok());
    let (config, drop_ins) = (absolute("config"), absolute("config-dir"));
    let named: Vec<String> =
        [&config, &drop_ins].into_iter().flatten().map(|path| path.display().to_string()).collect();
    if named.is_empty() {
        return;
    }
    let found = move || {
        let mut watched = WatchPaths::default();
        for path in config.iter().chain(&drop_ins) {
            watched.add_file(path);
        }
        if let Some(dir) = &drop_ins {
            watched.trees.push((dir.clone(), DROP_IN_DEPTH));
            watched.add_links(dir, DROP_IN_DEPTH);
        }
        watched
    };
    let (what, input, found) = (named.join(" and "), Input::LocalFilesTouched, Arc::new(found));
    Watch { what, mask: WHOLE, settle: Duration::ZERO, input, polled: true, found, inputs }.start();
}

impl WatchPaths {
    /// Of all that is there; a directory's changes with the names in it.
    fn fingerprints(&self) -> Vec<[u64; 7]> {
        fn add(path: &Path, depth: u32, found: &mut Vec<[u64; 7]>) {
            found.extend(std::fs::metadata(path).ok().as_ref().map(fingerprint));
            for entry in std::fs::read_dir(path).into_iter().flatten().filter_map(Result::ok).filter(|_| depth > 0) {
                add(&entry.path(), depth - 1, found);
            }
        }
        let mut found = Vec::new();
        self.files.iter().for_each(|file| add(file, 0, &mut found));
        self.trees.iter().for_each(|(tree, depth)| add(tree, depth + 1, &mut found));
        found
    }

    /// The file, each link on the way to it, and what that leads to.
    fn add_file(&mut self, path: &Path) {
        let mut path = path.to_owned();
        for _ in 0..=LINKS {
            self.files.push(path.clone());
            // As the kernel goes: a link behind another one may lead away from it.
            let mut parts: Vec<&Path> = path.ancestors().collect();
            parts.reverse();
            let link = parts.into_iter().find_map(|part| Some((part.to_owned(), std::fs::read_link(part).ok()?)));
            let Some((part, target)) = link else { return };
            let rest = path.strip_prefix(&part).map(Path::to_owned).unwrap_or_default();
            let target = part.parent().unwrap_or(Path::new("/")).join(target);
            path = if rest.as_os_str().is_empty() { target } else { target.join(rest) };
            self.files.push(part);
        }
    }

    /// What links in a directory lead to.
    fn add_links(&mut self, dir: &Path, depth: u32) {
        for entry in std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok) {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && depth > 0 => self.add_links(&entry.path(), depth - 1),
                Ok(kind) if kind.is_symlink() => self.add_file(&entry.path()),
                _ => {}
            }
        }
    }
}

/// What differs once a file is another, or was written.
pub(super) fn fingerprint(found: &Metadata) -> [u64; 7] {
    let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()].map(i64::cast_unsigned);
    let [modified, nanos, changed, changed_nanos] = times;
    [found.dev(), found.ino(), found.size(), modified, nanos, changed, changed_nanos]
}

/// Names that count, by directory; none: all do.
type RelevantNames = HashMap<WatchDescriptor, Option<Vec<OsString>>>;

impl Watch {
    fn start(self) {
        match inotify::open() {
            Ok(inotify) => drop(tokio::spawn(self.run(inotify))),
            Err(error) => {
                self.warn(&format!("inotify: {error}"));
                if self.polled {
                    tokio::spawn(self.poll());
                }
            }
        }
    }

    fn warn(&self, why: &str) {
        let what = &self.what;
        if self.polled {
            let seconds = POLL.as_secs();
            tracing::warn!("{what} cannot be watched, and is looked at every {seconds} s: {why}");
        } else {
            tracing::warn!("changes of {what} by others may be seen at starts of the kubelet alone: {why}");
        }
    }

    /// Until the supervisor starts anew.
    async fn poll(self) {
        let (mut before, mut known) = (None, None);
        loop {
            let find = self.found.clone();
            let Ok(now) = tokio::task::spawn_blocking(move || find().fingerprints()).await else { return };
            let now = Some(now);
            if now == before && now != known {
                known.clone_from(&now);
                if self.inputs.send(self.input.clone()).is_err() {
                    return;
                }
            }
            before = now;
            tokio::time::sleep(POLL).await;
        }
    }

    async fn run(self, inotify: AsyncFd<Raw<Arc<Inotify>>>) {
        let (mut last_logged, mut before) = (None, RelevantNames::new());
        loop {
            // What is written meanwhile is an event of the watches before these, or of these.
            let (instance, find, mask) = (inotify.get_ref().0.clone(), self.found.clone(), self.mask);
            let watched = tokio::task::spawn_blocking(move || watch_all(&instance, mask, &find())).await;
            let Ok((names, failed)) = watched else { return };
            // Such as the directory above one that was not there.
            for wd in before.keys().filter(|wd| !names.contains_key(wd)) {
                let _ = inotify.get_ref().0.rm_watch(*wd); // it may have gone by itself
            }
            if failed != last_logged {
                if let Some(why) = &failed {
                    self.warn(why);
                }
                if self.polled && failed.is_some() {
                    return self.poll().await;
                }
                last_logged = failed;
            }
            loop {
                let mut seen = events(&inotify).await;
                // That a watch is gone is no news of one that we took away.
                seen.retain(|event| names.contains_key(&event.wd) || !event.mask.contains(AddWatchFlags::IN_IGNORED));
                if seen.iter().any(|event| is_relevant(&names, event.wd, event.name.as_deref())) {
                    break;
                }
            }
            tokio::time::sleep(self.settle).await;
            if self.inputs.send(self.input.clone()).is_err() {
                return;
            }
            tokio::time::sleep(GATHER).await;
            before = names;
        }
    }
}

/// What concerns a directory itself, or one that is watched no more, counts.
fn is_relevant(relevant: &RelevantNames, wd: WatchDescriptor, name: Option<&OsStr>) -> bool {
    let names = relevant.get(&wd).and_then(Option::as_ref);
    names.zip(name).is_none_or(|(names, name)| names.iter().any(|relevant| relevant == name))
}

/// Watches all directories; gives what counts in them, and why one could not be watched.
fn watch_all(inotify: &Inotify, mask: AddWatchFlags, watched: &WatchPaths) -> (RelevantNames, Option<String>) {
    let (mut counts, mut failed) = (RelevantNames::new(), None);
    let mut watch_dir = |dir: &Path| {
        inotify::watch(inotify, dir, mask).unwrap_or_else(|error| {
            failed.get_or_insert(format!("inotify: {error}")); // such as all of fs.inotify.max_user_watches in use
            None
        })
    };
    for file in &watched.files {
        // Where its directory is not there yet, the one that it will be made in tells of it.
        let mut places = file.ancestors().filter_map(|place| Some((place.parent()?, place.file_name()?)));
        let found = places.find_map(|(dir, name)| Some((watch_dir(dir)?, name)));
        if let Some((wd, name)) = found
            && let Some(names) = counts.entry(wd).or_insert_with(|| Some(Vec::new()))
        {
            names.push(name.to_owned());
        }
    }
    for (tree, depth) in &watched.trees {
        watch_tree(&mut watch_dir, tree, *depth, &mut counts);
    }
    (counts, failed)
}

fn watch_tree(
    watch_dir: &mut impl FnMut(&Path) -> Option<WatchDescriptor>,
    dir: &Path,
    depth: u32,
    counts: &mut RelevantNames,
) {
    if let Some(wd) = watch_dir(dir) {
        counts.insert(wd, None);
    }
    let entries = std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    for entry in entries.filter(|entry| depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        watch_tree(watch_dir, &entry.path(), depth - 1, counts);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Whoever turns one of them gives another file.
    #[test]
    fn each_link_on_the_way_is_watched() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let at = |name: &str| root.join(name);
        std::fs::create_dir(at("one")).unwrap();
        std::fs::write(at("file"), "x").unwrap();
        symlink("one", at("current")).unwrap();
        symlink(at("file"), at("one/a.conf")).unwrap();
        let mut watched = WatchPaths::default();
        watched.add_file(&at("current/a.conf"));
        for name in ["current", "one/a.conf", "file"] {
            assert!(watched.files.contains(&at(name)), "{name}: {:?}", watched.files);
        }
    }
}
