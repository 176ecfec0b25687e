//! `rollback`: nodes are assigned what they had before by what administrators wrote, or what is named.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use crate::api::client::Client;
use crate::commands::assign::reference;
use crate::commands::rollout::client::RolloutClient;
use crate::commands::targets::{self, Targets, readable_config_map};
use crate::commands::wait;
use crate::fleet::configmap_name;
use crate::fleet::node::NodeRow;
use crate::fleet::rollout::Phase;
use crate::fleet::wait::{Expectation, Goal};
use crate::fleet::way_back::{RecordedStep, WayBack, is_other_version, recorded, way_back};
use crate::output::plain;
use crate::{Context, Failure};
use kubelet_config::assignment::{DEFAULT_KEY, reference_fault};
use kubelet_config::source::ConfigMapRef;

/// Options of `rollback`.
#[derive(Debug, Args)]
#[command(override_usage = "kubectl kubelet-config rollback <NODE...|-l SELECTOR> [OPTIONS]")]
pub(crate) struct Options {
    #[command(flatten)]
    targets: Targets,
    /// To this ConfigMap, in the namespace of -n; else to what rollouts recorded or an earlier push of the same name, if it is
    /// last known good there.
    #[arg(long, value_name = "CONFIGMAP")]
    to: Option<String>,
    /// The key of its data that holds the KubeletConfiguration.
    #[arg(long, value_name = "KEY", default_value = DEFAULT_KEY, requires = "to")]
    key: String,
    /// The namespace of rollouts' records; else that of -n.
    #[arg(long, value_name = "NAMESPACE", value_parser = crate::context::namespace)]
    records_namespace: Option<String>,
    #[command(flatten)]
    wait: wait::Options,
    #[command(flatten)]
    writing: targets::Options,
}

/// ConfigMaps that were read, which many nodes share, and what rollouts recorded.
struct History {
    client: Client,
    seen: BTreeMap<ConfigMapRef, Result<Value, String>>,
    steps: BTreeMap<String, Vec<RecordedStep>>,
}

impl History {
    /// What the records of rollouts say of these nodes; where they cannot be read, that is said.
    async fn read(context: &Context, namespace: String, rows: &[NodeRow]) -> Self {
        let rollouts = RolloutClient { api: context.api(), namespace, lock_timing: context.lock_timing };
        let mut history = Self { client: context.api(), seen: BTreeMap::new(), steps: BTreeMap::new() };
        if let Err(failure) = history.read_records(&rollouts, rows).await {
            eprintln!("warning: what rollouts recorded is not known: {}", plain(&failure.message));
        }
        history
    }

    async fn read_records(&mut self, rollouts: &RolloutClient, rows: &[NodeRow]) -> Result<(), Failure> {
        for stored in rollouts.records().await?.into_iter().filter(|it| it.record.phase != Phase::Starting) {
            let record = &stored.record;
            let target = (record.phase == Phase::Done).then(|| record.target.reference.clone());
            let target = target.filter(|target| reference_fault(target).is_none());
            for member in rollouts.members(&stored).await?.0 {
                if rows.iter().any(|row| row.name == member.name) {
                    let target = target.clone().filter(|_| !record.withdrawn.contains(&member.name));
                    let before = recorded(&member.before, &record.namespace).ok();
                    let assigned = [before, target.map(Some)].into_iter().flatten().collect();
                    let step = RecordedStep { started: record.started.clone(), assigned };
                    self.steps.entry(member.name).or_default().push(step);
                }
            }
        }
        Ok(())
    }

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

    /// Where a node goes back to, if that still is what it was.
    async fn back(&mut self, row: &NodeRow) -> Result<Expectation, String> {
        let WayBack { target, version, pushed } = way_back(row, self.steps.get(&row.name).map_or(&[], Vec::as_slice))?;
        let Some(target) = target else { return Ok(Expectation::new(None, None, Goal::Active)) };
        let map = self.get(&target).await?;
        let field = |name: &str| map.pointer(&format!("/metadata/{name}")).and_then(Value::as_str).unwrap_or_default();
        if let Some(why) = version.and_then(|good| is_other_version(&good, field("uid"), field("resourceVersion"))) {
            return Err(why);
        }
        let data: BTreeMap<String, String> =
            map.get("data").and_then(|data| serde_json::from_value(data.clone()).ok()).unwrap_or_default();
        if pushed.is_some_and(|base| configmap_name::name(&base, &data) != target.name) {
            return Err(format!(
                "the node calls {target} last known good, and that was not made by `kubectl kubelet-config push`: if it is right, \
                 say it by --to"
            ));
        }
        Ok(Expectation::new(Some(target), Some(&map), Goal::Active))
    }
}

impl Options {
    pub(crate) async fn run(self, context: &Context) -> Result<ExitCode, Failure> {
        let api = context.api();
        let records = self.records_namespace.unwrap_or_else(|| context.namespace.clone());
        let named = match &self.to {
            Some(to) => {
                let target = reference(context, to, &self.key)?;
                let map = readable_config_map(&api, &target).await?;
                Some(Expectation::new(Some(target), map.as_ref(), Goal::Active))
            }
            None => None,
        };
        let (mut writer, selection, rows) = self.targets.open(context, None, self.writing).await?;
        let mut history = History::read(context, records, if named.is_none() { &rows } else { &[] }).await;
        let mut expectations = BTreeMap::new();
        for row in rows {
            let expectation = match &named {
                Some(expectation) => Ok(expectation.clone()),
                None => history.back(&row).await,
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
