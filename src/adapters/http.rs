//! Two small servers: `/metrics`, `/healthz`, `/readyz` and nothing else on TCP, where everybody can ask; these, `/status`
//! and operators' commands on a socket that is root's alone.

mod command_queue;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use backon::{ExponentialBuilder, Retryable as _};
pub(crate) use command_queue::CommandQueue;
use exposition::http::{Answer, HEADER_TIMEOUT, Readiness, response};
use exposition::slots::Slots;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use serde_json::Value;

use super::metrics::Metrics;
use crate::machine::command::Command;
use crate::os::ownership;

/// More than a scraper, a probe and a few people need, even while as many commands wait as may.
const CONNECTIONS: usize = 32;
/// A command is a line; more is a mistake.
const COMMAND_LIMIT: usize = 4 << 10;

/// What the servers show. Written by the daemon, read by connections.
#[derive(Clone, Debug)]
pub(crate) struct Endpoints {
    /// The metrics.
    pub(crate) metrics: Metrics,
    /// The state, as of the latest step.
    pub(crate) page: Arc<Mutex<StatusPage>>,
    /// Bounds the connections to the listener, which every process of the node can open.
    pub(crate) slots: Slots,
    /// Bounds those to the control socket, which only root can.
    pub(crate) control_slots: Slots,
}

/// See [`Endpoints`].
#[derive(Clone, Debug, Default)]
pub(crate) struct StatusPage {
    /// The kubelet said READY=1 and runs.
    pub(crate) ready: bool,
    /// One line.
    pub(crate) summary: String,
    /// The document of `status -o json`.
    pub(crate) status: Value,
    /// Since when the trial's clock has been counting down in `status`, if it has.
    pub(crate) counting: Option<Instant>,
}

impl StatusPage {
    /// The status as of now: the document is made at each step, and a trial may pass without one.
    fn status_now(mut self) -> String {
        if let (Some(since), Some(left)) = (self.counting, self.status.pointer_mut("/trial/remainingSeconds"))
            && let Some(seconds) = left.as_u64()
        {
            *left = seconds.saturating_sub(since.elapsed().as_secs()).into();
        }
        self.status.to_string()
    }
}

impl Endpoints {
    /// Nothing shown yet.
    pub(crate) fn new(metrics: Metrics) -> Self {
        let slots = || Slots::new(CONNECTIONS);
        Self { metrics, page: Arc::default(), slots: slots(), control_slots: slots() }
    }

    /// `is_root`: whoever asks may see what the configuration says.
    fn answer(&self, request: &Request<Incoming>, is_root: bool) -> Answer {
        let page = self.page.lock().clone();
        if is_root && request.method() == Method::GET && request.uri().path() == "/status" {
            return response(StatusCode::OK, "application/json", page.status_now());
        }
        let readiness = Readiness { is_ready: page.ready, summary: page.summary };
        exposition::http::answer(request, &readiness, || self.metrics.open_metrics())
    }

    /// Serves a connection; commands are taken where there is a queue for them.
    fn serve(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + 'static + Send,
        peer: Option<IpAddr>,
        commands: Option<&CommandQueue>,
    ) {
        let slots = if commands.is_some() { &self.control_slots } else { &self.slots };
        let (endpoints, commands) = (self.clone(), commands.cloned());
        exposition::http::serve(stream, peer, slots, move |request| {
            let (endpoints, commands) = (endpoints.clone(), commands.clone());
            async move {
                match commands {
                    Some(commands) if request.method() == Method::POST => command(&commands, request).await,
                    commands => endpoints.answer(&request, commands.is_some()),
                }
            }
        });
    }
}

/// `POST /command`: the body is a [`Command`], the answer a line for people.
async fn command(commands: &CommandQueue, request: Request<Incoming>) -> Answer {
    let text_response = |code, text: &str| response(code, "text/plain; charset=utf-8", format!("{text}\n"));
    if request.uri().path() != "/command" {
        return text_response(StatusCode::NOT_FOUND, "POST goes to /command");
    }
    let body = Limited::new(request.into_body(), COMMAND_LIMIT).collect();
    let body = match tokio::time::timeout(HEADER_TIMEOUT, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            return text_response(
                StatusCode::PAYLOAD_TOO_LARGE,
                &format!("a command has at most {COMMAND_LIMIT} bytes"),
            );
        }
        Ok(Err(error)) => return text_response(StatusCode::BAD_REQUEST, &format!("the command was cut: {error}")),
        Err(_) => return text_response(StatusCode::REQUEST_TIMEOUT, "the command did not come"),
    };
    match serde_json::from_slice::<Command>(&body) {
        Err(error) => text_response(StatusCode::BAD_REQUEST, &format!("not a command this supervisor knows: {error}")),
        Ok(command) => {
            let (code, text) = commands.submit(command).await;
            text_response(code, &text)
        }
    }
}

/// Serves on TCP for ever. Whoever has the port may give it back: it is asked for again and again.
pub(crate) fn serve_tcp(address: SocketAddr, endpoints: Endpoints) {
    tokio::spawn(async move {
        let pauses =
            ExponentialBuilder::new().with_min_delay(FIRST_PAUSE).with_max_delay(LAST_PAUSE).without_max_times();
        let mut is_taken = false;
        let bound = (|| TcpListener::bind(address)).retry(pauses).sleep(tokio::time::sleep).notify(|error, _| {
            if !std::mem::replace(&mut is_taken, true) {
                tracing::warn!(
                    "no metrics: cannot listen on {address}: {error}; it is tried again; or choose another --metrics-bind-address"
                );
            }
        });
        let Ok(listener) = bound.await else { return };
        if is_taken {
            tracing::info!("metrics are served on {address}");
        }
        exposition::http::accept(listener, |stream, peer| endpoints.serve(stream, Some(peer), None)).await;
    });
}

/// Between attempts to have the port.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(30);

/// Serves on a socket that only root can open, for ever; commands are taken here alone.
pub(crate) async fn serve_unix(path: PathBuf, endpoints: Endpoints, commands: CommandQueue) -> std::io::Result<()> {
    let listener = tokio::task::spawn_blocking(move || bind(&path)).await??;
    let listener = UnixListener::from_std(listener)?;
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => endpoints.serve(stream, None, Some(&commands)),
                Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
            }
        }
    });
    Ok(())
}

fn bind(path: &Path) -> std::io::Result<std::os::unix::net::UnixListener> {
    use std::os::unix::fs::PermissionsExt as _;
    ownership::check(path).map_err(std::io::Error::other)?;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = std::os::unix::net::UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;
    use crate::machine::Input;
    use crate::machine::command::Target;

    struct Served {
        dir: tempfile::TempDir,
        commands: CommandQueue,
        inputs: UnboundedReceiver<Input>,
    }

    async fn serve() -> Served {
        let dir = tempfile::tempdir().unwrap();
        let (sender, inputs) = unbounded_channel();
        let commands = CommandQueue::new(sender);
        serve_unix(dir.path().join("sock"), Endpoints::new(Metrics::new()), commands.clone()).await.unwrap();
        Served { dir, commands, inputs }
    }

    /// Sends bytes as they are; gives code and body.
    async fn send(mut stream: impl std::io::Read + std::io::Write + Send + 'static, request: String) -> (u16, String) {
        let talk = tokio::task::spawn_blocking(move || {
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        });
        let answer = talk.await.unwrap();
        let code = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (code, answer.split_once("\r\n\r\n").unwrap().1.trim_end().to_owned())
    }

    fn post(path: &str, body: &str) -> String {
        let length = body.len();
        format!("POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
    }

    impl Served {
        fn connect(&self) -> std::os::unix::net::UnixStream {
            std::os::unix::net::UnixStream::connect(self.dir.path().join("sock")).unwrap()
        }

        async fn post(&self, path: &str, body: &str) -> (u16, String) {
            send(self.connect(), post(path, body)).await
        }
    }

    #[tokio::test]
    async fn a_command_goes_to_the_machine_and_its_answer_back() {
        let mut served = serve().await;
        let commands = served.commands.clone();
        let mut inputs = std::mem::replace(&mut served.inputs, unbounded_channel().1);
        // Stands in for the machine; it answers out of order, and tickets nobody holds.
        let machine = tokio::spawn(async move {
            let mut seen = Vec::new();
            while let Some(Input::Operator(ticket, command)) = inputs.recv().await {
                commands.answer(ticket + 1000, &Ok("for nobody".to_owned()));
                let result =
                    if command == Command::Freeze { Err("not now".to_owned()) } else { Ok(format!("did {ticket}")) };
                commands.answer(ticket, &result);
                commands.answer(ticket, &Ok("twice".to_owned()));
                seen.push(command);
                if seen.len() == 3 {
                    break;
                }
            }
            seen
        });
        assert_eq!(served.post("/command", r#"{"verb":"retry"}"#).await, (200, "did 1".to_owned()));
        assert_eq!(served.post("/command", r#"{"verb":"freeze"}"#).await, (409, "not now".to_owned()));
        let rollback =
            Command::Rollback { to: Target::Version { uid: "u".to_owned(), resource_version: "7".to_owned() } };
        let body = serde_json::to_string(&rollback).unwrap();
        assert_eq!(served.post("/command", &body).await, (200, "did 3".to_owned()));
        assert_eq!(machine.await.unwrap(), [Command::Retry, Command::Freeze, rollback]);
    }

    #[tokio::test]
    async fn what_is_no_command_never_reaches_the_machine() {
        let mut served = serve().await;
        let (code, why) = served.post("/command", r#"{"verb":"reboot"}"#).await;
        assert!(code == 400 && why.contains("not a command this supervisor knows"), "{why}");
        assert_eq!(served.post("/command", "").await.0, 400);
        assert_eq!(served.post("/status", r#"{"verb":"retry"}"#).await.0, 404);
        let large = format!(r#"{{"verb":"retry","x":"{}"}}"#, "x".repeat(COMMAND_LIMIT));
        assert_eq!(served.post("/command", &large).await.0, 413);
        let get = "GET /status HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".to_owned();
        assert_eq!(send(served.connect(), get).await.0, 200);
        assert!(served.inputs.try_recv().is_err());
    }

    #[tokio::test]
    async fn tcp_takes_no_commands_and_gives_no_status() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let endpoints = Endpoints::new(Metrics::new());
        tokio::spawn(exposition::http::accept(listener, move |stream, peer| {
            endpoints.serve(stream, Some(peer), None);
        }));
        let stream = std::net::TcpStream::connect(address).unwrap();
        assert_eq!(send(stream, post("/command", r#"{"verb":"retry"}"#)).await.0, 405);
        for path in ["/status", "/status/", "/status?x", "//status", "/%73tatus", "http://x/status"] {
            let get = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
            let stream = std::net::TcpStream::connect(address).unwrap();
            assert_eq!(send(stream, get).await.0, 404, "{path}");
        }
    }

    /// A small pipe stands for the kernel's buffers.
    #[tokio::test(start_paused = true)]
    async fn who_does_not_read_the_answer_keeps_no_slot() {
        use tokio::io::AsyncWriteExt as _;

        let slots = Slots::new(1);
        let (mut client, server) = tokio::io::duplex(64);
        let large = || response(StatusCode::OK, "text/plain", "x".repeat(1 << 20));
        exposition::http::serve(server, None, &slots, move |_| std::future::ready(large()));
        client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(slots.taken(), 1, "it may be slow");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(slots.taken(), 0);
        drop(client);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_and_crowds_have_an_end() {
        let (sender, mut inputs) = unbounded_channel();
        let commands = CommandQueue::new(sender);
        let asking: Vec<_> = (0..16)
            .map(|_| {
                let commands = commands.clone();
                tokio::spawn(async move { commands.submit(Command::Retry).await })
            })
            .collect();
        for _ in 0..16 {
            inputs.recv().await.unwrap();
        }
        assert_eq!(commands.submit(Command::Thaw).await.0, StatusCode::SERVICE_UNAVAILABLE);
        for answer in asking {
            assert_eq!(answer.await.unwrap().0, StatusCode::GATEWAY_TIMEOUT);
        }
        // Their places are free again, also of those who went away before the answer.
        for _ in 0..20 {
            let gone = tokio::time::timeout(Duration::from_secs(1), commands.submit(Command::Thaw)).await;
            assert!(gone.is_err());
        }
        drop(inputs);
        let (code, why) = commands.submit(Command::Thaw).await;
        assert!(code == StatusCode::SERVICE_UNAVAILABLE && why.contains("on its way out"), "{why}");
    }
}
