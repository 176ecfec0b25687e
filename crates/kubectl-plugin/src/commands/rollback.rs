//! `rollback`: nodes are assigned what was pushed before, or what is named.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use crate::api::client::Client;
use crate::commands::assign::reference;
use crate::commands::targets::{Writing, readable_config_map};
use crate::commands::wait;
use crate::fleet::configmap_name;
use crate::fleet::node::NodeRow;
use crate::fleet::wait::{Expectation, Goal};
use crate::fleet::way_back::{is_other_version, way_back};
use crate::{Context, Failure};
use kubelet_config::assignment::DEFAULT_KEY;
use kubelet_config::pods::texts;
use kubelet_config::source::ConfigMapRef;

/// Options of `rollback`.
#[derive(Debug, Args)]
#[command(override_usage = "kubectl kubelet-config rollback <NODE...|-l SELECTOR> [OPTIONS]")]
pub(crate) struct Options {
    #[command(flatten)]
    writing: Writing,
    /// The ConfigMap to go back to, in the namespace of -n; default: an earlier push of the same name, if that is last known
    /// good on the node.
    #[arg(long, value_name = "CONFIGMAP")]
    to: Option<String>,
    /// The key of its data that holds the KubeletConfiguration.
    #[arg(long, value_name = "KEY", default_value = DEFAULT_KEY, requires = "to")]
    key: String,
    #[command(flatten)]
    wait: wait::Options,
}

/// ConfigMaps that were read, which many nodes share.
struct History {
    client: Client,
    seen: BTreeMap<ConfigMapRef, Result<Value, String>>,
    goal: Goal,
}

impl History {
    /// The ConfigMap as it is; going back needs to know that it is the old version.
    async fn get(&mut self, target: &ConfigMapRef) -> Result<Value, String> {
        if let Some(seen) = self.seen.get(target) {
            return seen.clone();
        }
        let result = readable_config_map(&self.client, target).await.map_err(|failure| failure.message);
        let unseen = || {
            let ConfigMapRef { namespace, name, .. } = target;
            format!(
                "whether ConfigMap {namespace}/{name} is still the version that was good cannot be seen without the right to get it"
            )
        };
        let result = result.and_then(|map| map.ok_or_else(unseen));
        self.seen.insert(target.clone(), result.clone());
        result
    }

    /// Where a node goes back to, if that still is what it was.
    async fn back(&mut self, row: &NodeRow) -> Result<Expectation, String> {
        let (version, base) = way_back(row)?;
        let target = version.reference.clone();
        let map = self.get(&target).await?;
        let field = |name: &str| map.pointer(&format!("/metadata/{name}")).and_then(Value::as_str).unwrap_or_default();
        if let Some(why) = is_other_version(version, field("uid"), field("resourceVersion")) {
            return Err(why);
        }
        if configmap_name::name(base, &texts(map.get("data"))) != target.name {
            return Err(format!(
                "the node calls {target} last known good, and that was not made by `kubectl kubelet-config push`: if it is right, \
                 say it by --to"
            ));
        }
        Ok(Expectation::new(Some(target), Some(&map), self.goal))
    }
}

impl Options {
    pub(crate) async fn run(self, context: &Context) -> Result<ExitCode, Failure> {
        let api = context.api();
        let named = match &self.to {
            Some(to) => {
                let target = reference(context, to, &self.key)?;
                let map = readable_config_map(&api, &target).await?;
                Some(Expectation::new(Some(target), map.as_ref(), self.wait.goal()))
            }
            None => None,
        };
        let (mut writer, rows) = self.writing.open(context, None).await?;
        let mut history = History { client: api, seen: BTreeMap::new(), goal: self.wait.goal() };
        for row in rows {
            let expected = match &named {
                Some(expected) => Ok(expected.clone()),
                None => history.back(&row).await,
            };
            match expected {
                Ok(expected) => writer.assign(row, &expected, "rolled back").await?,
                Err(why) => writer.failed(&format!("node/{}: {why}", row.name)),
            }
        }
        self.wait.run(writer).await
    }
}
