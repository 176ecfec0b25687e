//! `controller`: carries out what pools say.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::api::client::{Client, RetryPolicy};
use crate::{Context, Failure, controller};

/// Less than what is left of a Lease when its holder stops acting.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(4);

/// Options of `controller`.
#[derive(Debug, Args)]
pub(crate) struct Options {}

impl Options {
    pub(crate) async fn run(self, context: &Context) -> Result<ExitCode, Failure> {
        // A write that is answered later could be that of a controller whose Lease is over.
        let policy = RetryPolicy { total: Duration::ZERO, ..RetryPolicy::long(ANSWER_TIMEOUT) };
        let client = Client::new(context.client.clone(), &context.namespace, policy);
        let listen = |kind| signal(kind).map_err(|error| Failure::new(format!("no signal handler: {error}")));
        let (mut term, mut int) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
        let stop = async {
            tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
        };
        controller::run(&client, stop).await?;
        Ok(ExitCode::SUCCESS)
    }
}
