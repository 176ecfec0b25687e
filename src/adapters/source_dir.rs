//! A directory of this node as the source of configuration: `--source-dir`.
//!
//! It says what the cluster's adapter would say of a ConfigMap, and stands before it: what else is
//! asked of a cluster, status, events, looks, goes on to the one behind.

mod read;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

use self::read::{Identity, Seen};
use self::watch::{Eye, Touched};
use crate::machine::Input;
use crate::machine::record::Entry;
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

/// Without inotify the directory is looked at so often; a change counts when two looks agree.
const SLOW: Duration = Duration::from_secs(10);

/// The port.
pub struct SourceDir {
    commands: UnboundedSender<()>,
    beside: Box<dyn ports::Cluster>,
}

impl std::fmt::Debug for SourceDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SourceDir")
    }
}

impl SourceDir {
    /// Begins to look at `dir`, absolute; `key` is the file with the KubeletConfiguration.
    #[must_use]
    pub fn start(dir: PathBuf, key: &str, inputs: UnboundedSender<Input>, beside: Box<dyn ports::Cluster>) -> Self {
        let (commands, queue) = unbounded_channel();
        tracing::info!(
            "{} says what this kubelet runs, in its file {key}; a Node's assignment is ignored",
            dir.display()
        );
        let task = Task {
            dir,
            key: key.to_owned(),
            inputs,
            told: Told::Nothing,
            said: String::new(),
            blind: None,
            since: None,
        };
        tokio::spawn(task.run(queue));
        Self { commands, beside }
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
        self.beside.publish(status);
    }

    fn emit(&mut self, entry: &Entry) {
        self.beside.emit(entry);
    }

    fn observe_lease(&mut self) {
        self.beside.observe_lease();
    }

    fn observe_pods(&mut self) {
        self.beside.observe_pods();
    }
}

/// A sender for the cluster behind a source directory: what that says of assignments is dropped.
#[must_use]
pub fn without_assignments(inputs: UnboundedSender<Input>) -> UnboundedSender<Input> {
    let (sender, mut queue) = unbounded_channel();
    tokio::spawn(async move {
        let mut said = false;
        while let Some(input) = queue.recv().await {
            match input {
                Input::Node(wanted) => {
                    if matches!(wanted, Assignment::Map(_) | Assignment::AllNil | Assignment::Invalid(_)) && !said {
                        tracing::warn!("the Node is assigned a ConfigMap, which is ignored: --source-dir is in force");
                        said = true;
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

/// What the machine was last told.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Local,
    Version(String),
    Failed(String),
}

/// Why the directory is to be looked at, and when.
#[derive(Clone, Copy, Debug)]
struct Due {
    at: Instant,
    /// It is read at this moment at the latest.
    most: Instant,
    /// Only if another directory is there than before.
    mounts_only: bool,
}

impl Due {
    fn after(now: Instant, pause: Duration, before: Option<Self>, mounts_only: bool) -> Self {
        let most = now + pause.max(SETTLE_MOST);
        let most = before.map_or(most, |before| before.most.min(most));
        Self {
            at: (now + pause).min(most),
            most,
            mounts_only: mounts_only && before.is_none_or(|before| before.mounts_only),
        }
    }
}

struct Task {
    dir: PathBuf,
    key: String,
    inputs: UnboundedSender<Input>,
    told: Told,
    /// What was last said in the journal, so that it is said once.
    said: String,
    /// Without inotify: what the look before saw.
    blind: Option<Seen>,
    /// It has been changing since then.
    since: Option<Instant>,
}

impl Task {
    async fn run(mut self, mut commands: UnboundedReceiver<()>) {
        let mut eye = Eye::open();
        let mut identity = None;
        let mut asked = false;
        // Watched at once, read at rest: what is begun meanwhile is known to be unfinished.
        self.watch(&mut eye).await;
        let mut due = Some(Due::after(Instant::now(), SETTLE, None, false));
        loop {
            let at = due.map(|due| due.at);
            tokio::select! {
                // Cancel-safe, all three.
                command = commands.recv() => match command {
                    Some(()) => {
                        asked = true;
                        due = Some(Due::after(Instant::now(), Duration::ZERO, due, false));
                    }
                    None => return,
                },
                touched = eye.touched() => match touched {
                    Touched::Nothing => {}
                    touched => due = Some(Due::after(Instant::now(), SETTLE, due, touched == Touched::Mounts)),
                },
                () = until(at) => {
                    let now = due.take();
                    let only_if = identity.filter(|_| now.is_some_and(|due| due.mounts_only));
                    let Some(look) = self.look(&mut eye, only_if).await else { continue };
                    identity = Some(look.identity);
                    let again = self.heed(look, &mut asked);
                    due = again.map(|pause| Due::after(Instant::now(), pause, None, false));
                }
            }
        }
    }

    async fn watch(&self, eye: &mut Eye) {
        let (dir, Some(descriptor)) = (self.dir.clone(), eye.descriptor()) else { return };
        let watched = tokio::task::spawn_blocking(move || watch::watch(&descriptor, &dir, &watch::Places::new()));
        if let Ok(Ok(places)) = watched.await {
            eye.places = places;
        }
    }

    /// Watches and reads, on the blocking pool. `None` if `only_if` still holds, or if that failed.
    async fn look(&mut self, eye: &mut Eye, only_if: Option<Identity>) -> Option<Look> {
        let no_inotify = eye.reopen();
        let (dir, descriptor) = (self.dir.clone(), eye.descriptor());
        let (places, mut writing) = (std::mem::take(&mut eye.places), std::mem::take(&mut eye.writing));
        let done = tokio::task::spawn_blocking(move || {
            let mut look = Look { identity: read::identity(&dir), blind: no_inotify, seen: Seen::Empty };
            if only_if == Some(look.identity) {
                return (None, places, writing);
            }
            let watched = descriptor.as_ref().map(|descriptor| watch::watch(descriptor, &dir, &places));
            let places = match watched {
                Some(Ok(watched)) => watched,
                Some(Err(error)) => {
                    look.blind = Some(error);
                    places
                }
                None => places,
            };
            writing.retain(|(wd, _), _| places.contains_key(wd));
            look.seen = match watch::being_written(&places, &mut writing) {
                Some(path) => Seen::BeingWritten(format!("{} is being written", path.display())),
                None => read::read(&dir),
            };
            (Some(look), places, writing)
        });
        let (look, places, writing) = done.await.ok()?;
        eye.places = places;
        // Nobody reads events meanwhile, so nothing is overwritten.
        eye.writing = writing;
        look
    }

    /// Tells the machine; gives the pause until the next look, if there is to be one anyway.
    fn heed(&mut self, look: Look, asked: &mut bool) -> Option<Duration> {
        let again = look.blind.as_ref().map(|_| SLOW);
        if let Some(error) = look.blind {
            let seen = Some(look.seen.clone());
            if self.blind.is_none() {
                tracing::warn!(
                    "{} cannot be watched ({error}; fs.inotify.max_user_instances and max_user_watches limit it): \
                     it is looked at every {} s",
                    self.dir.display(),
                    SLOW.as_secs()
                );
            }
            let agrees = self.blind == seen;
            self.blind = seen;
            if !agrees {
                return again;
            }
        } else {
            self.blind = None;
        }
        if !matches!(look.seen, Seen::Changing(_) | Seen::BeingWritten(_)) {
            self.since = None;
        }
        let map = || Input::Node(Assignment::Map(source_dir::reference(&self.key)));
        let (told, inputs) = match look.seen {
            Seen::Missing(why) => {
                self.say(format!("{why}; what runs is kept until it is there"));
                return again;
            }
            Seen::Undecided(why) => {
                self.say(format!("{why}; what runs is kept. For the local configuration empty the directory"));
                return again;
            }
            Seen::Changing(why) => {
                self.say_if_long(&why);
                return again.or(Some(SETTLE));
            }
            Seen::BeingWritten(why) => {
                self.say_if_long(&why);
                return again.or(Some(PATIENCE));
            }
            Seen::Empty => (Told::Local, vec![Input::Node(Assignment::Local)]),
            Seen::Payload(payload) => {
                (Told::Version(payload.resource_version.clone()), vec![map(), Input::ConfigMap(payload)])
            }
            Seen::Unusable(why) => {
                (Told::Failed(why.clone()), vec![map(), Input::ConfigMapFailed { why, definite: true }])
            }
        };
        self.said.clear();
        if std::mem::take(asked) || told != self.told {
            self.told = told;
            for input in inputs {
                let _ = self.inputs.send(input);
            }
        }
        again
    }

    fn say_if_long(&mut self, why: &str) {
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= PATIENCE {
            self.say(format!("{why}; it is taken when that has ended"));
        }
    }

    fn say(&mut self, line: String) {
        if self.said != line {
            tracing::warn!("{line}");
            self.said = line;
        }
    }
}

/// One look.
struct Look {
    /// Of the directory that was there.
    identity: Identity,
    /// Why it is not watched.
    blind: Option<std::io::Error>,
    seen: Seen,
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
