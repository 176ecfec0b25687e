//! `reset`: nodes run their own configuration again.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Args;

use crate::api::nodes::Targets;
use crate::api::write::{self, Writer};
use crate::commands::wait;
use crate::fleet::wait::{Goal, Wish};
use crate::{Context, Failure};

/// Options of `reset`.
#[derive(Debug, Args)]
#[command(override_usage = "kubectl kubelet-config reset <NODE...|-l SELECTOR> [OPTIONS]")]
pub struct Options {
    #[command(flatten)]
    targets: Targets,
    #[command(flatten)]
    wait: wait::Options,
    #[command(flatten)]
    writing: write::Options,
}

impl Options {
    pub(crate) async fn run(self, context: &Context) -> Result<ExitCode, Failure> {
        let mut writer = Writer::new(context, None, self.writing);
        let (choice, rows) = self.targets.read(context, &mut writer).await?;
        for row in rows {
            writer.assign(row, None, "reset").await?;
        }
        let wish = Wish::of(None, None, Goal::Active);
        let wishes: BTreeMap<String, Wish> = writer.done.iter().map(|name| (name.clone(), wish.clone())).collect();
        self.wait.run(context, choice.selector, wishes, &writer).await
    }
}
