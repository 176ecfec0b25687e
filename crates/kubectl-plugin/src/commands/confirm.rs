//! `confirm`: somebody has looked, and what runs may stay.

use std::process::ExitCode;

use clap::Args;

use crate::commands::targets::{self, Targets};
use crate::fleet::assign::version_value;
use crate::fleet::node::{CONFIRM, Stage};
use crate::fleet::view::View;
use crate::{Context, Failure};

/// Options of `confirm`.
#[derive(Debug, Args)]
#[command(override_usage = "kubectl kubelet-config confirm <NODE...|-l SELECTOR> [OPTIONS]")]
pub(crate) struct Options {
    #[command(flatten)]
    targets: Targets,
    #[command(flatten)]
    writing: targets::Options,
}

impl Options {
    pub(crate) async fn run(self, context: &Context) -> Result<ExitCode, Failure> {
        let (mut writer, selection, rows) = self.targets.open(context, None, self.writing).await?;
        for row in rows {
            match &row.assigned {
                Some(source) if row.stage() == Stage::AwaitsConfirmation => {
                    writer.annotate(&row.name, CONFIRM, &version_value(source, None), "confirmed").await?;
                }
                _ => {
                    let why = format!("nothing waits for a confirmation, it is {}", View::new(&row, 0).state().1);
                    writer.skipped(&row.name, &why, &selection)?;
                }
            }
        }
        Ok(writer.code())
    }
}
