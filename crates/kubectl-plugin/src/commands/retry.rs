//! `retry` and `confirm`: what somebody says of a version that is on a node already, as an annotation that names it.

use std::process::ExitCode;

use clap::Args;

use crate::commands::targets::Writing;
use crate::fleet::assign::version_value;
use crate::fleet::node::{CONFIRM, NodeRow, RETRY, Stage};
use crate::fleet::view::View;
use crate::{Context, Failure};

/// Options of `retry` and of `confirm`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    writing: Writing,
}

/// What failed there and is held against the version is forgotten: the annotation's value.
fn retry(row: &NodeRow) -> Result<String, String> {
    match (row.stage(), &row.assigned) {
        (Stage::Failed, _) if row.reason() == "SyncFailed" => {
            Err("nothing is held against a version, the node tries on by itself".to_owned())
        }
        (Stage::Failed, Some(source)) if row.invalid.is_none() => Ok(version_value(source, row.retry.as_deref())),
        _ => Err(format!("nothing to try again, it is {}", View::new(row, 0).state().1)),
    }
}

/// Somebody has looked, and what runs may stay: the annotation's value.
fn confirm(row: &NodeRow) -> Result<String, String> {
    match &row.assigned {
        Some(source) if row.stage() == Stage::AwaitsConfirmation => Ok(version_value(source, None)),
        _ => Err(format!("nothing waits for a confirmation, it is {}", View::new(row, 0).state().1)),
    }
}

impl Options {
    pub(crate) async fn retry(self, context: &Context) -> Result<ExitCode, Failure> {
        self.annotate(context, RETRY, "tries again", retry).await
    }

    pub(crate) async fn confirm(self, context: &Context) -> Result<ExitCode, Failure> {
        self.annotate(context, CONFIRM, "confirmed", confirm).await
    }

    async fn annotate(
        self,
        context: &Context,
        annotation: &str,
        done: &str,
        value: fn(&NodeRow) -> Result<String, String>,
    ) -> Result<ExitCode, Failure> {
        let (mut writer, rows) = self.writing.open(context, None).await?;
        for row in rows {
            match value(&row) {
                Ok(value) => writer.annotate(&row.name, annotation, &value, done).await?,
                Err(why) => writer.skipped(&row.name, &why)?,
            }
        }
        Ok(writer.code())
    }
}
