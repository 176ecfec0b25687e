//! `controller`: carries out what pools say.

use std::process::ExitCode;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::api::client::{Client, RetryPolicy};
use crate::{Context, Failure, controller};

/// Options of `controller`.
#[derive(Debug, Args)]
pub(crate) struct Options {}

impl Options {
    pub(crate) async fn run(self, context: &Context) -> Result<ExitCode, Failure> {
        let policy =
            RetryPolicy { total: std::time::Duration::ZERO, ..RetryPolicy::long(context.lock_timing.answer_timeout) };
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
