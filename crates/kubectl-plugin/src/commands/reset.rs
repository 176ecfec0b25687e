//! `reset`: nodes run their own configuration again.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Args;

use crate::commands::targets::{self, Targets};
use crate::commands::wait;
use crate::fleet::wait::{Expectation, Goal};
use crate::{Context, Failure};

/// Options of `reset`.
#[derive(Debug, Args)]
#[command(override_usage = "kubectl kubelet-config reset <NODE...|-l SELECTOR> [OPTIONS]")]
pub(crate) struct Options {
    #[command(flatten)]
    targets: Targets,
    #[command(flatten)]
    wait: wait::Options,
    #[command(flatten)]
    writing: targets::Options,
}

impl Options {
    pub(crate) async fn run(self, context: &Context) -> Result<ExitCode, Failure> {
        let (mut writer, selection, rows) = self.targets.open(context, None, self.writing).await?;
        for row in rows {
            writer.assign(row, None, "reset").await?;
        }
        let expectation = Expectation::new(None, None, Goal::Active);
        let expectations: BTreeMap<String, Expectation> =
            writer.done.iter().map(|name| (name.clone(), expectation.clone())).collect();
        self.wait.run(&context.api(), selection.labels, expectations, &writer).await
    }
}
