//! `assign`: points nodes at a ConfigMap.

use std::process::ExitCode;

use clap::Args;

use crate::commands::targets::{CarrierChoice, Writing, readable_config_map};
use crate::commands::wait;
use crate::fleet::wait::Expectation;
use crate::{Context, Failure};
use kubelet_config::assignment::{self, DEFAULT_KEY};
use kubelet_config::source::ConfigMapRef;

/// Options of `assign`.
#[derive(Debug, Args)]
#[command(override_usage = "kubectl kubelet-config assign CONFIGMAP <NODE...|-l SELECTOR> [OPTIONS]")]
pub(crate) struct Options {
    /// The ConfigMap, in the namespace of -n.
    #[arg(value_name = "CONFIGMAP")]
    map: String,
    #[command(flatten)]
    writing: Writing,
    /// The key of its data that holds the KubeletConfiguration.
    #[arg(long, value_name = "KEY", default_value = DEFAULT_KEY)]
    key: String,
    /// Where on the Node to write it: auto finds out what the API server keeps.
    #[arg(long, value_enum, default_value = "auto")]
    carrier: CarrierChoice,
    #[command(flatten)]
    wait: wait::Options,
}

/// A ConfigMap as the user has it: NAME, cm/NAME or configmap/NAME, in the namespace of -n.
pub(crate) fn reference(context: &Context, name: &str, key: &str) -> Result<ConfigMapRef, Failure> {
    let bare = match name.split_once('/') {
        Some(("cm" | "configmap" | "configmaps", bare)) => bare,
        _ => name,
    };
    assignment::parse_reference(&format!("{}/{bare}/{key}", context.namespace)).map_err(|why| {
        Failure::new(format!("ConfigMap {name:?} key {key:?} in namespace {:?}: {why}", context.namespace))
    })
}

impl Options {
    pub(crate) async fn run(self, context: &Context) -> Result<ExitCode, Failure> {
        let target = reference(context, &self.map, &self.key)?;
        let map = readable_config_map(&context.api(), &target).await?;
        let expected = Expectation::new(Some(target), map.as_ref(), self.wait.goal());
        let (mut writer, rows) = self.writing.open(context, self.carrier.into()).await?;
        for row in rows {
            writer.assign(row, &expected, "assigned").await?;
        }
        self.wait.run(writer).await
    }
}
