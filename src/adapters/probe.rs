//! healthz, asked over plain HTTP.

use std::time::Duration;

use http_body_util::Empty;
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;

use crate::machine::{Input, Ticket, limits};
use crate::ports;
use kubelet_config::rendering::HealthzTarget;

/// The adapter: one question at a time.
#[derive(Debug)]
pub(crate) struct HealthzProbe {
    inputs: UnboundedSender<Input>,
    asking: Option<JoinHandle<()>>,
}

impl HealthzProbe {
    /// A probe that answers into `inputs`.
    pub(crate) fn new(inputs: UnboundedSender<Input>) -> Self {
        Self { inputs, asking: None }
    }
}

impl ports::Probe for HealthzProbe {
    fn probe(&mut self, ticket: Ticket, target: &HealthzTarget) {
        if let Some(asking) = self.asking.take() {
            asking.abort();
        }
        let (inputs, target) = (self.inputs.clone(), target.clone());
        self.asking = Some(tokio::spawn(async move {
            let _ = inputs.send(Input::Probed(ticket, ask(&target, limits::PROBE_TIMEOUT).await));
        }));
    }
}

async fn ask(target: &HealthzTarget, limit: Duration) -> bool {
    let question = async {
        let stream = TcpStream::connect((target.host.as_str(), target.port)).await.ok()?;
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
