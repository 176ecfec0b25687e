//! healthz, asked over plain HTTP.
//!
//! Its port is free while the kubelet restarts, and any user may take one above 1023. So an answer counts if whoever listens
//! there is of the same user as this process, of which the kubelet is a child.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::Empty;
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use nix::unistd::geteuid;
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;

use super::tcp_table;
use crate::machine::{Answer, Input, Ticket, limits};
use crate::ports;
use kubelet_config::rendering::HealthzTarget;

/// The adapter: one question at a time.
#[derive(Debug)]
pub(crate) struct HealthzProbe {
    inputs: UnboundedSender<Input>,
    asking: Option<JoinHandle<()>>,
    /// It was said that another user has the port.
    is_told: Arc<AtomicBool>,
}

impl HealthzProbe {
    /// A probe that answers into `inputs`.
    pub(crate) fn new(inputs: UnboundedSender<Input>) -> Self {
        Self { inputs, asking: None, is_told: Arc::default() }
    }
}

impl ports::Probe for HealthzProbe {
    fn probe(&mut self, ticket: Ticket, target: &HealthzTarget) {
        if let Some(asking) = self.asking.take() {
            asking.abort();
        }
        let (inputs, target, is_told) = (self.inputs.clone(), target.clone(), Arc::clone(&self.is_told));
        self.asking = Some(tokio::spawn(async move {
            let _ =
                inputs.send(Input::Answer(ticket, Answer::Probed(ask(&target, limits::PROBE_TIMEOUT, &is_told).await)));
        }));
    }
}

async fn ask(target: &HealthzTarget, limit: Duration, is_told: &AtomicBool) -> bool {
    let question = async {
        let stream = TcpStream::connect((target.host.as_str(), target.port)).await.ok()?;
        let server = stream.peer_addr().ok()?;
        // Before it is asked: whoever took the port can hardly leave it to the kubelet and answer all the same.
        let listening = move || tcp_table::listening_user(Path::new("/proc"), server);
        if !is_own(server, &tokio::task::spawn_blocking(listening).await.ok()?, is_told) {
            return Some(false);
        }
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
        let request = Request::get("/healthz").header("host", "localhost").body(Empty::<Bytes>::new()).ok()?;
        let mut answer = std::pin::pin!(sender.send_request(request));
        let answer = tokio::select! {
            answer = &mut answer => answer,
            // A server that closes after its answer ends the connection with the answer delivered.
            _ = connection => answer.await,
        };
        Some(answer.ok()?.status().is_success())
    };
    matches!(tokio::time::timeout(limit, question).await, Ok(Some(true)))
}

/// True if whoever listens there is of this process' own user. Where the kernel does not say, too: a kubelet that answers is not
/// taken for a sick one.
fn is_own(server: SocketAddr, listening: &io::Result<Option<u32>>, is_told: &AtomicBool) -> bool {
    let stranger = match listening {
        Ok(Some(user)) if *user == geteuid().as_raw() => None,
        Ok(Some(user)) => Some(format!("user {user}")),
        Ok(None) => Some("nobody whom the kernel lists".to_owned()), // or it has just ended
        Err(_) => None,
    };
    let was_told = is_told.swap(stranger.is_some(), Ordering::Relaxed);
    if let Some(stranger) = &stranger
        && !was_told
    {
        tracing::warn!(
            "{server}, the kubelet's healthz, is held by {stranger}: no answer from there counts. `ss -ltnp 'sport = :{}'` names \
             the process; once it is gone the kubelet takes the port within 5 s",
            server.port()
        );
    }
    stranger.is_none()
}

#[cfg(test)]
mod tests {
    use nix::unistd::{Uid, setfsuid};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// A server that says 200 to each question, of this user; none: of this process'.
    fn healthy(user: Option<u32>) -> HealthzTarget {
        // A socket is the user's by whom its thread makes files.
        let own = user.map(|user| setfsuid(Uid::from_raw(user)));
        let listener = std::net::TcpListener::bind("127.0.0.1:0");
        own.map(setfsuid);
        let listener = listener.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            listener.set_nonblocking(true).unwrap();
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 512]).await;
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
            }
        });
        HealthzTarget { host: address.ip().to_string(), port: address.port() }
    }

    #[tokio::test]
    async fn only_the_kubelets_user_speaks_for_it() {
        let limit = Duration::from_secs(30);
        assert!(ask(&healthy(None), limit, &AtomicBool::default()).await);
        if !geteuid().is_root() {
            println!("SKIPPED: only root can be two users");
            return;
        }
        let is_told = AtomicBool::default();
        assert!(!ask(&healthy(Some(65534)), limit, &is_told).await);
        assert!(is_told.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn nobody_answers() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let target = HealthzTarget { host: free.ip().to_string(), port: free.port() };
        assert!(!ask(&target, Duration::from_secs(30), &AtomicBool::default()).await);
        let listening = tcp_table::listening_user(Path::new("/proc"), free);
        assert!(matches!(listening, Ok(None)) && !is_own(free, &listening, &AtomicBool::default()));
        assert!(is_own(free, &Err(io::ErrorKind::NotFound.into()), &AtomicBool::default()), "nobody knows");
    }
}
