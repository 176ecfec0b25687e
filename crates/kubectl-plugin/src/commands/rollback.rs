//! `rollback`: nodes are assigned what they had before: last known good, or what is named.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use crate::api::client::Client;
use crate::commands::assign::reference;
use crate::commands::targets::{self, Targets, readable_config_map};
use crate::commands::wait;
use crate::fleet::assign::{is_other_version, rollback_source};
use crate::fleet::node::NodeRow;
use crate::fleet::wait::{Expectation, Goal};
use crate::{Context, Failure};
use kubelet_config::assignment::DEFAULT_KEY;
use kubelet_config::source::ConfigMapRef;

/// Options of `rollback`.
#[derive(Debug, Args)]
#[command(override_usage = "kubectl kubelet-config rollback <NODE...|-l SELECTOR> [OPTIONS]")]
pub(crate) struct Options {
    #[command(flatten)]
    targets: Targets,
    /// To this ConfigMap, in the namespace of -n; else to each node's own last known good.
    #[arg(long, value_name = "CONFIGMAP")]
    to: Option<String>,
    /// The key of its data that holds the KubeletConfiguration.
    #[arg(long, value_name = "KEY", default_value = DEFAULT_KEY, requires = "to")]
    key: String,
    #[command(flatten)]
    wait: wait::Options,
    #[command(flatten)]
    writing: targets::Options,
}

/// ConfigMaps that were read: many nodes share few.
struct ConfigMapCache {
    client: Client,
    seen: BTreeMap<ConfigMapRef, Result<Value, String>>,
}

impl ConfigMapCache {
    /// The ConfigMap as it is; going back needs to know that it is the old version.
    async fn get(&mut self, target: &ConfigMapRef) -> Result<Value, String> {
        if let Some(seen) = self.seen.get(target) {
            return seen.clone();
        }
        let result = match readable_config_map(&self.client, target).await {
            Ok(Some(map)) => Ok(map),
            Ok(None) => Err(format!(
                "whether ConfigMap {}/{} is still the version that was good cannot be seen without the right to get it",
                target.namespace, target.name
            )),
            Err(failure) => Err(failure.message),
        };
        self.seen.insert(target.clone(), result.clone());
        result
    }

    /// Where a node goes back to: its last known good, if the ConfigMap still is that.
    async fn back(&mut self, row: &NodeRow) -> Result<Expectation, String> {
        let Some(back) = rollback_source(row)? else { return Ok(Expectation::new(None, None, Goal::Active)) };
        let map = self.get(&back.reference).await?;
        let field = |name: &str| map.pointer(&format!("/metadata/{name}")).and_then(Value::as_str).unwrap_or_default();
        match is_other_version(back, field("uid"), field("resourceVersion")) {
            Some(why) => Err(why),
            None => Ok(Expectation::new(Some(back.reference.clone()), Some(&map), Goal::Active)),
        }
    }
}

impl Options {
    pub(crate) async fn run(self, context: &Context) -> Result<ExitCode, Failure> {
        let api = context.api();
        let named = match &self.to {
            Some(to) => {
                let target = reference(context, to, &self.key)?;
                let map = readable_config_map(&api, &target).await?;
                Some(Expectation::new(Some(target), map.as_ref(), Goal::Active))
            }
            None => None,
        };
        let (mut writer, selection, rows) = self.targets.open(context, None, self.writing).await?;
        let mut maps = ConfigMapCache { client: api.clone(), seen: BTreeMap::new() };
        let mut expectations = BTreeMap::new();
        for row in rows {
            let expectation = match &named {
                Some(expectation) => Ok(expectation.clone()),
                None => maps.back(&row).await,
            };
            match expectation {
                Ok(expectation) => {
                    let name = row.name.clone();
                    writer.assign(row, expectation.target.as_ref(), "rolled back").await?;
                    let goal = self.wait.goal().unwrap_or(Goal::Active);
                    expectations.insert(name, Expectation { goal, ..expectation });
                }
                Err(why) => writer.failed(&format!("node/{}: {why}", row.name)),
            }
        }
        expectations.retain(|name, _| writer.done.contains(name));
        self.wait.run(&api, selection.labels, expectations, &writer).await
    }
}
