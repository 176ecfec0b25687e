//! `controller`: carries out what pools say.

use std::time::Duration;

use clap::Args;
use tokio::net::TcpListener;

use crate::api::client::Client;
use crate::commands::wait::interrupted;
use crate::controller;
use crate::{Context, Failure};

/// Less than what is left of a Lease when its holder stops acting.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(4);

/// Options of `controller`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Where to serve /metrics, /healthz and /readyz; default: nowhere.
    #[arg(long, default_value = "", value_name = "ADDRESS:PORT", hide_default_value = true)]
    metrics_bind_address: String,
}

impl Options {
    pub(crate) async fn run(self, context: &Context) -> Result<(), Failure> {
        let listener = self.listener().await?;
        let client = client(context);
        controller::run(&client, listener, interrupted()).await
    }

    async fn listener(&self) -> Result<Option<TcpListener>, Failure> {
        let fault = |why| format!("--metrics-bind-address: {why}");
        let address = exposition::http::address(&self.metrics_bind_address);
        let Some(address) = address.map_err(|why| Failure { code: 2, message: fault(why) })? else { return Ok(None) };
        let cannot = |error| fault(format!("cannot listen on {address}: {error}; choose another, or leave it out"));
        let listener = TcpListener::bind(address).await.map_err(|error| Failure::new(cannot(error)))?;
        if let Ok(address) = listener.local_addr() {
            eprintln!("metrics are served on {address}");
        }
        Ok(Some(listener))
    }
}

/// A write that is answered later could be that of a controller whose Lease is over.
fn client(context: &Context) -> Client {
    Client { answer: ANSWER_TIMEOUT, page: 100, manager: "kubelet-config-controller", ..context.api() }
}
