//! The node around the kubelet: its container runtime, its disks, its way down, and the streams through the kubelet.
//!
//! Every query is answered once, within [`LIMIT`]: what has no answer by then counts as silent
//! (runtime), as unknown (streams), or as nothing out of the ordinary (all else).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::statvfs::{Statvfs, statvfs};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::mpsc::UnboundedSender;

use super::process::{self, Confinement};
use crate::machine::evidence::Environment;
use crate::machine::model::Exit;
use crate::machine::{Answer, Input, Ticket};
use crate::ports;
use kubelet_config::readmission::Supplies;

mod streams;
mod supplies;

/// A runtime under load answers in milliseconds; one that is stopped, never.
const LIMIT: Duration = Duration::from_secs(2);

/// HTTP/2's opening by a client (RFC 9113, 3.4) with an empty SETTINGS frame. A gRPC server answers
/// it with its own SETTINGS: it takes a living process to do so, where the kernel alone accepts
/// connections for a stopped one.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Less than this is nothing: a record of ours with its directory needs some blocks.
const FULL_BELOW: u64 = 1 << 20;

#[derive(Debug)]
pub(crate) struct NodeHost {
    root_dir: PathBuf,
    store_dir: PathBuf,
    inputs: UnboundedSender<Input>,
    /// The disks are being measured. A measurement that hangs (a dead network file system) keeps a thread.
    measuring: Arc<AtomicBool>,
    /// The tables of the kernel are being read.
    counting: Arc<AtomicBool>,
}

impl NodeHost {
    /// Measures the file systems of these directories: the kubelet's `--root-dir`, and the store.
    pub(crate) fn new(root_dir: PathBuf, store_dir: PathBuf, inputs: UnboundedSender<Input>) -> Self {
        Self { root_dir, store_dir, inputs, measuring: Arc::default(), counting: Arc::default() }
    }
}

impl ports::Host for NodeHost {
    fn observe(&mut self, ticket: Ticket, runtime: Option<&str>) {
        let (inputs, socket) = (self.inputs.clone(), runtime.and_then(socket_path));
        let (root, store, busy) = (self.root_dir.clone(), self.store_dir.clone(), self.measuring.clone());
        tokio::spawn(async move {
            let disks = on_thread(&busy, move || measure(&root, &store));
            let (runtime, disks, shutting_down) =
                tokio::join!(async { Some(answers(&socket?, LIMIT).await) }, disks, is_shutting_down());
            let (disk_full, supplies) = disks.unwrap_or_default();
            let environment = Environment { runtime, disk_full, shutting_down, supplies };
            let _ = inputs.send(Input::Answer(ticket, Answer::EnvironmentObserved(environment)));
        });
    }

    fn observe_streams(&mut self, ticket: Ticket, pid: u32, runtime: Option<&str>) {
        let (inputs, socket, busy) = (self.inputs.clone(), runtime.and_then(socket_path), self.counting.clone());
        tokio::spawn(async move {
            let runtime = match socket {
                Some(socket) => server_of(&socket, LIMIT).await,
                None => None,
            };
            let work = on_thread(&busy, move || streams::count(Path::new("/proc"), pid, runtime));
            let _ = inputs.send(Input::Answer(ticket, Answer::StreamsObserved(work.await.flatten())));
        });
    }
}

/// On a thread of the runtime's pool, since a file system may take its time; not while the same work is still being done.
async fn on_thread<T: Send + 'static>(busy: &Arc<AtomicBool>, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    if busy.swap(true, Ordering::SeqCst) {
        return None;
    }
    let busy = busy.clone();
    let work = tokio::task::spawn_blocking(move || {
        let done = work();
        busy.store(false, Ordering::SeqCst);
        done
    });
    tokio::time::timeout(LIMIT, work).await.ok().and_then(Result::ok)
}

/// The process that listens on this socket. `None` also for process 1: systemd listens in the stead of a service that it
/// starts at the first connection, and nobody tells then who serves it.
async fn server_of(socket: &Path, limit: Duration) -> Option<u32> {
    let stream = tokio::time::timeout(limit, UnixStream::connect(socket)).await.ok()?.ok()?;
    stream.peer_cred().ok()?.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 1)
}

/// The path in a runtime endpoint; `None` for what is not a Unix socket.
fn socket_path(endpoint: &str) -> Option<PathBuf> {
    let path = endpoint.strip_prefix("unix://").or_else(|| endpoint.strip_prefix("unix:")).unwrap_or(endpoint);
    path.starts_with('/').then(|| path.into())
}

/// True if the server of this socket sends anything at all. A Docker socket, which is not HTTP/2,
/// answers with a 400.
async fn answers(socket: &Path, limit: Duration) -> bool {
    let question = async {
        let mut stream = UnixStream::connect(socket).await?;
        stream.write_all(PREFACE).await?;
        stream.read(&mut [0; 9]).await
    };
    matches!(tokio::time::timeout(limit, question).await, Ok(Ok(1..)))
}

/// Asks systemd, where there is one.
async fn is_shutting_down() -> bool {
    let Some(systemctl) = process::systemctl().filter(|_| process::is_booted_with_systemd()) else { return false };
    let args = ["is-system-running".to_owned()];
    // The outer limit is for a process that even SIGKILL does not end soon.
    let run = tokio::time::timeout(LIMIT, process::run_to_end(&systemctl, &args, LIMIT, Confinement::Helper)).await;
    matches!(run, Ok(Ok(run)) if matches!(run.exit, Some(Exit::Code(_))) && run.output.trim_ascii() == b"stopping")
}

fn measure(root: &Path, store: &Path) -> (bool, Supplies) {
    let full = [root, store].into_iter().filter_map(|path| statvfs(path).ok()).any(|fs| is_full(&fs));
    (full, supplies::measure(root))
}

fn is_full(fs: &Statvfs) -> bool {
    let (space, inodes) = (supplies::space(fs), supplies::inodes(fs));
    // A small file system is not full because it is small.
    space.available < FULL_BELOW.min(space.capacity / 64) || inodes.capacity > 0 && inodes.available == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::Host as _;
    use tokio::net::UnixListener;
    use tokio::sync::mpsc::unbounded_channel;

    async fn observe(dir: &Path, runtime: Option<&str>) -> Environment {
        let (inputs, mut queue) = unbounded_channel();
        NodeHost::new(dir.to_owned(), dir.to_owned(), inputs).observe(7, runtime);
        let Some(Input::Answer(7, Answer::EnvironmentObserved(observed))) = queue.recv().await else {
            panic!("no answer")
        };
        assert!(queue.recv().await.is_none(), "one answer");
        observed
    }

    #[tokio::test]
    async fn a_runtime_answers_is_silent_or_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("runtime.sock");
        let endpoint = format!("unix://{}", socket.display());
        assert_eq!(observe(dir.path(), Some(&endpoint)).await.runtime, Some(false), "nothing there");

        let listener = UnixListener::bind(&socket).unwrap();
        // The kernel accepts; nobody speaks.
        assert!(!answers(&socket, Duration::from_millis(50)).await);

        let server = tokio::spawn(async move {
            let _silent = listener.accept().await.unwrap();
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let mut opening = vec![0; PREFACE.len()];
                client.read_exact(&mut opening).await.unwrap();
                assert_eq!(opening, PREFACE);
                client.write_all(b"\0\0\0\x04\0\0\0\0\0").await.unwrap();
            }
        });
        assert_eq!(observe(dir.path(), Some(&endpoint)).await.runtime, Some(true));
        assert_eq!(observe(dir.path(), Some(&socket.display().to_string())).await.runtime, Some(true));
        server.abort();
        let _ = server.await;
        assert_eq!(observe(dir.path(), Some(&endpoint)).await.runtime, Some(false), "it refuses");
        assert_eq!(observe(dir.path(), Some("tcp://127.0.0.1:1")).await.runtime, None);
        assert_eq!(observe(dir.path(), None).await.runtime, None);
    }

    #[tokio::test]
    async fn a_node_as_it_is_here() {
        let dir = tempfile::tempdir().unwrap();
        let observed = observe(dir.path(), None).await;
        assert!(!observed.disk_full && !observed.shutting_down);
        assert!(observed.supplies.contains_key("nodefs.available"), "{:?}", observed.supplies);
        assert!(!observe(&dir.path().join("absent"), None).await.disk_full, "what cannot be read is not full");
    }

    #[test]
    fn endpoints() {
        for (endpoint, path) in [
            ("unix:///run/c.sock", Some("/run/c.sock")),
            ("unix:/run/c.sock", Some("/run/c.sock")),
            ("/run/c.sock", Some("/run/c.sock")),
            ("tcp://h:1", None),
            ("npipe:////./pipe/c", None),
            ("", None),
        ] {
            assert_eq!(socket_path(endpoint), path.map(PathBuf::from), "{endpoint}");
        }
    }
}
