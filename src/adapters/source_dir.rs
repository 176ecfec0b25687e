//! A directory of this node as the source of configuration: `--source-dir`.
//!
//! It sends the inputs that the cluster's adapter would send for a ConfigMap. Status, events and queries go on to that
//! adapter.

mod read;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

use self::read::{DirContent, DirId};
use self::watch::{Change, DirWatcher};
use crate::machine::history::HistoryEntry;
use crate::machine::{Input, Ticket};
use crate::ports;
use kubelet_config::assignment::Assignment;
use kubelet_config::source::ConfigMapRef;
use kubelet_config::source_dir;
use kubelet_config::status::NodeConfigStatus;

/// The directory is read when it has been at rest for so long: `cp` and `kubectl cp` write the
/// files of a directory milliseconds apart, and nobody notices a fifth of a second.
const SETTLE: Duration = Duration::from_millis(200);

/// It is read after this long even if it does not come to rest.
const SETTLE_MOST: Duration = Duration::from_secs(2);

/// A file that is written for longer, or a directory that changes for longer, is mentioned.
const PATIENCE: Duration = Duration::from_secs(30);

/// Without inotify the directory is read so often; a change counts when two readings agree. So is one that others can change,
/// to see that it was mended.
const SLOW: Duration = Duration::from_secs(10);

pub(crate) struct SourceDir {
    commands: UnboundedSender<()>,
    cluster: Box<dyn ports::Cluster>,
}

impl std::fmt::Debug for SourceDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SourceDir")
    }
}

impl SourceDir {
    /// Begins to watch `dir`, absolute; `key` is the file with the KubeletConfiguration.
    pub(crate) fn start(
        dir: PathBuf,
        key: &str,
        inputs: UnboundedSender<Input>,
        cluster: Box<dyn ports::Cluster>,
    ) -> Self {
        let (commands, queue) = unbounded_channel();
        tracing::info!(
            "{} says what this kubelet runs, in its file {key}; a Node's assignment is ignored",
            dir.display()
        );
        let task = DirWatchTask {
            dir,
            key: key.to_owned(),
            inputs,
            last_sent: LastSent::Nothing,
            last_logged: String::new(),
            unwatched: None,
            since: None,
        };
        tokio::spawn(task.run(queue));
        Self { commands, cluster }
    }
}

impl ports::Cluster for SourceDir {
    fn watch(&mut self, map: Option<&ConfigMapRef>) {
        if map.is_some() && self.commands.send(()).is_err() {
            // Only after a panic in the task; the kubelet is none the worse for it.
            tracing::error!("the source directory is no longer watched; restart the supervisor when convenient");
        }
    }

    fn publish(&mut self, status: &NodeConfigStatus) {
        self.cluster.publish(status);
    }

    fn emit(&mut self, entry: &HistoryEntry) {
        self.cluster.emit(entry);
    }

    fn observe_lease(&mut self, ticket: Ticket) {
        self.cluster.observe_lease(ticket);
    }

    fn observe_pods(&mut self, ticket: Ticket) {
        self.cluster.observe_pods(ticket);
    }

    fn fetch(&mut self, ticket: Ticket, map: &ConfigMapRef) {
        self.cluster.fetch(ticket, map);
    }
}

/// A sender for the cluster behind a source directory: what that says of assignments is dropped.
pub(crate) fn without_assignments(inputs: UnboundedSender<Input>) -> UnboundedSender<Input> {
    let (sender, mut queue) = unbounded_channel();
    tokio::spawn(async move {
        let mut last_logged = false;
        while let Some(input) = queue.recv().await {
            match input {
                Input::Node(assignment) => {
                    if matches!(assignment, Assignment::Map(_) | Assignment::AllNil | Assignment::Invalid(_))
                        && !last_logged
                    {
                        tracing::warn!("the Node is assigned a ConfigMap, which is ignored: --source-dir is in force");
                        last_logged = true;
                    }
                }
                Input::ConfigMap(_) | Input::ConfigMapFailed { .. } => {}
                other => {
                    if inputs.send(other).is_err() {
                        return;
                    }
                }
            }
        }
    });
    sender
}

/// What the machine was sent last.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LastSent {
    Nothing,
    Local,
    Version(String),
    Failed(String),
}

/// When the directory is to be read.
#[derive(Clone, Copy, Debug)]
struct NextRead {
    at: Instant,
    /// It is read at this moment at the latest.
    latest: Instant,
    /// Only if another directory is there than before.
    mounts_only: bool,
}

impl NextRead {
    fn after(now: Instant, pause: Duration, before: Option<Self>, mounts_only: bool) -> Self {
        let latest = now + pause.max(SETTLE_MOST);
        let latest = before.map_or(latest, |before| before.latest.min(latest));
        Self {
            at: (now + pause).min(latest),
            latest,
            mounts_only: mounts_only && before.is_none_or(|before| before.mounts_only),
        }
    }
}

struct DirWatchTask {
    dir: PathBuf,
    key: String,
    inputs: UnboundedSender<Input>,
    last_sent: LastSent,
    /// The last line in the journal, so that it is logged once.
    last_logged: String,
    /// Without inotify: what the reading before gave.
    unwatched: Option<DirContent>,
    /// It has been changing since then.
    since: Option<Instant>,
}

impl DirWatchTask {
    async fn run(mut self, mut commands: UnboundedReceiver<()>) {
        let mut watcher = DirWatcher::open();
        let mut dir_id = None;
        let mut asked = false;
        // Watched at once, read at rest: what is begun meanwhile is known to be unfinished.
        self.watch(&mut watcher).await;
        let mut due = Some(NextRead::after(Instant::now(), SETTLE, None, false));
        loop {
            let at = due.map(|due| due.at);
            tokio::select! {
                // Cancel-safe, all three.
                command = commands.recv() => match command {
                    Some(()) => {
                        asked = true;
                        due = Some(NextRead::after(Instant::now(), Duration::ZERO, due, false));
                    }
                    None => return,
                },
                change = watcher.change() => match change {
                    Change::Nothing => {}
                    change => due = Some(NextRead::after(Instant::now(), SETTLE, due, change == Change::Mounts)),
                },
                () = until(at) => {
                    let now = due.take();
                    let only_if = dir_id.filter(|_| now.is_some_and(|due| due.mounts_only));
                    let Some(reading) = self.observe(&mut watcher, only_if).await else { continue };
                    dir_id = Some(reading.dir_id);
                    let again = self.report(reading, &mut asked);
                    due = again.map(|pause| NextRead::after(Instant::now(), pause, None, false));
                }
            }
        }
    }

    async fn watch(&self, watcher: &mut DirWatcher) {
        let (dir, Some(descriptor)) = (self.dir.clone(), watcher.descriptor()) else { return };
        let found = tokio::task::spawn_blocking(move || watch::watch(&descriptor, &dir, &watch::WatchedDirs::new()));
        if let Ok(Ok(dirs)) = found.await {
            watcher.dirs = dirs;
        }
    }

    /// Watches and reads, on the blocking pool. `None` if `only_if` still holds, or if that failed.
    async fn observe(&mut self, watcher: &mut DirWatcher, only_if: Option<DirId>) -> Option<DirReading> {
        let no_inotify = watcher.reopen();
        let (dir, descriptor) = (self.dir.clone(), watcher.descriptor());
        let (dirs, mut writing) = (std::mem::take(&mut watcher.dirs), std::mem::take(&mut watcher.writing));
        let done = tokio::task::spawn_blocking(move || {
            let mut reading = DirReading { dir_id: read::dir_id(&dir), unwatched: no_inotify, seen: DirContent::Empty };
            if only_if == Some(reading.dir_id) {
                return (None, dirs, writing);
            }
            let found = descriptor.as_ref().map(|descriptor| watch::watch(descriptor, &dir, &dirs));
            let dirs = match found {
                Some(Ok(found)) => found,
                Some(Err(error)) => {
                    reading.unwatched = Some(error);
                    dirs
                }
                None => dirs,
            };
            writing.retain(|(wd, _), _| dirs.contains_key(wd));
            reading.seen = match watch::being_written(&dirs, &mut writing) {
                Some(path) => DirContent::BeingWritten(format!("{} is being written", path.display())),
                None => read::read(&dir),
            };
            (Some(reading), dirs, writing)
        });
        let (reading, dirs, writing) = done.await.ok()?;
        watcher.dirs = dirs;
        // Nobody reads events meanwhile, so nothing is overwritten.
        watcher.writing = writing;
        reading
    }

    /// Sends the machine what is new; gives the pause until the next reading, if there is to be one anyway.
    fn report(&mut self, reading: DirReading, asked: &mut bool) -> Option<Duration> {
        let again = reading.unwatched.as_ref().map(|_| SLOW);
        if let Some(error) = reading.unwatched {
            let seen = Some(reading.seen.clone());
            if self.unwatched.is_none() {
                tracing::warn!(
                    "{} cannot be watched ({error}; fs.inotify.max_user_instances and max_user_watches limit it): \
                     it is looked at every {} s",
                    self.dir.display(),
                    SLOW.as_secs()
                );
            }
            let agrees = self.unwatched == seen;
            self.unwatched = seen;
            if !agrees {
                return again;
            }
        } else {
            self.unwatched = None;
        }
        if !matches!(reading.seen, DirContent::Changing(_) | DirContent::BeingWritten(_)) {
            self.since = None;
        }
        let again = again.or(matches!(reading.seen, DirContent::Unsafe(_)).then_some(SLOW));
        let map = || Input::Node(Assignment::Map(source_dir::reference(&self.key)));
        let (sent, inputs) = match reading.seen {
            DirContent::Missing(why) => {
                self.log_once(format!("{why}; what runs is kept until it is there"));
                return again;
            }
            DirContent::Undecided(why) => {
                self.log_once(format!("{why}; what runs is kept. For the local configuration empty the directory"));
                return again;
            }
            DirContent::Changing(why) => {
                self.log_if_long(&why);
                return again.or(Some(SETTLE));
            }
            DirContent::BeingWritten(why) => {
                self.log_if_long(&why);
                return again.or(Some(PATIENCE));
            }
            DirContent::Empty => (LastSent::Local, vec![Input::Node(Assignment::Local)]),
            DirContent::Payload(payload) => {
                (LastSent::Version(payload.resource_version.clone()), vec![map(), Input::ConfigMap(payload)])
            }
            DirContent::Unusable(why) | DirContent::Unsafe(why) => {
                (LastSent::Failed(why.clone()), vec![map(), Input::ConfigMapFailed { why, definite: true }])
            }
        };
        self.last_logged.clear();
        if std::mem::take(asked) || sent != self.last_sent {
            self.last_sent = sent;
            for input in inputs {
                let _ = self.inputs.send(input);
            }
        }
        again
    }

    fn log_if_long(&mut self, why: &str) {
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= PATIENCE {
            self.log_once(format!("{why}; it is taken when that has ended"));
        }
    }

    fn log_once(&mut self, line: String) {
        if self.last_logged != line {
            tracing::warn!("{line}");
            self.last_logged = line;
        }
    }
}

struct DirReading {
    /// Of the directory that was there.
    dir_id: DirId,
    /// Why it is not watched.
    unwatched: Option<std::io::Error>,
    seen: DirContent,
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
