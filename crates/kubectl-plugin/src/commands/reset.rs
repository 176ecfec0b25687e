//! `reset`: nodes run their own configuration again.

use std::process::ExitCode;

use clap::Args;

use crate::commands::targets::Writing;
use crate::commands::wait;
use crate::fleet::wait::{Expectation, Goal};
use crate::{Context, Failure};

/// Options of `reset`.
#[derive(Debug, Args)]
#[command(override_usage = "kubectl kubelet-config reset <NODE...|-l SELECTOR> [OPTIONS]")]
pub(crate) struct Options {
    #[command(flatten)]
    writing: Writing,
    #[command(flatten)]
    wait: wait::Options,
}

impl Options {
    pub(crate) async fn run(self, context: &Context) -> Result<ExitCode, Failure> {
        if self.wait.goal() == Goal::Proven {
            let message =
                "--wait=proven: a node's own configuration is not proven anew; `--wait` waits until it is back";
            return Err(Failure { code: 2, message: message.to_owned() });
        }
        let (mut writer, rows) = self.writing.open(context, None).await?;
        let expected = Expectation::new(None, None, Goal::Active);
        for row in rows {
            writer.assign(row, &expected, "reset").await?;
        }
        self.wait.run(writer).await
    }
}
