//! `retry`: a version that failed is tried again.

use std::process::ExitCode;

use clap::Args;

use crate::commands::targets::{self, Targets};
use crate::fleet::assign::version_value;
use crate::fleet::node::{NodeRow, RETRY, Stage};
use crate::fleet::view::View;
use crate::{Context, Failure};
use kubelet_config::source::Source;

/// Options of `retry`.
#[derive(Debug, Args)]
#[command(override_usage = "kubectl kubelet-config retry <NODE...|-l SELECTOR> [OPTIONS]")]
pub(crate) struct Options {
    #[command(flatten)]
    targets: Targets,
    #[command(flatten)]
    writing: targets::Options,
}

/// What failed there and is held against the version.
fn failed_version(row: &NodeRow) -> Result<&Source, String> {
    let reason = row.condition.as_ref().map_or("", |condition| condition.reason.as_str());
    match (row.stage(), &row.assigned) {
        (Stage::Failed, _) if reason == "SyncFailed" => {
            Err("nothing is held against a version, the node tries on by itself".to_owned())
        }
        (Stage::Failed, Some(source)) if row.invalid.is_none() => Ok(source),
        _ => Err(format!("nothing to try again, it is {}", View::new(row, 0).state().1)),
    }
}

impl Options {
    pub(crate) async fn run(self, context: &Context) -> Result<ExitCode, Failure> {
        let (mut writer, selection, rows) = self.targets.open(context, None, self.writing).await?;
        for row in rows {
            match failed_version(&row) {
                Ok(source) => {
                    let value = version_value(source, row.retry.as_deref());
                    writer.annotate(&row.name, RETRY, &value, "tries again").await?;
                }
                Err(why) => writer.skipped(&row.name, &why, &selection)?,
            }
        }
        Ok(writer.code())
    }
}
