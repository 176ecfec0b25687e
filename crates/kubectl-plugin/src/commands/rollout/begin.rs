//! Beginning a rollout: everything that can be refused is refused before anything is written.

use serde_json::{Map, Value};

use super::args::BeginArgs;
use super::follow;
use super::progress_reporter::ProgressReporter;
use crate::api::client::Client;
use crate::api::nodes::{self, NodeSelection};
use crate::api::pools::{self, StoredPool};
use crate::api::write::DryRun;
use crate::commands::assign::reference;
use crate::commands::targets::readable_config_map;
use crate::fleet::pool::edit;
use crate::fleet::pool::revision::{Revision, check_stored};
use crate::fleet::pool::types::KubeletConfigPool;
use crate::output::{self, Format};
use crate::{Context, Failure};
use kubelet_config::source::ConfigMapRef;

impl BeginArgs {
    pub(crate) async fn run(self, context: &Context, strategy: &Map<String, Value>) -> Result<(), Failure> {
        let api = context.api();
        let target = reference(context, &self.config_map, &self.key)?;
        let all = pools::list(&api).await?;
        if let Some(map) = readable_config_map(&api, &target).await? {
            check_stored(&map, &Revision::Named(target.clone())).map_err(Failure::new)?;
        }
        let (name, old) = self.pool(&all, &target)?;
        let spec = old.map_or(&Value::Null, StoredPool::spec);
        let spec = edit::roll_out(spec, &self.selector.selector, &target, strategy);
        let written = pools::with_spec(&name, old, &spec);
        let failure = |why: String| Failure::new(format!("pool {name}: {why}"));
        let wanted: KubeletConfigPool =
            serde_json::from_value(written.clone()).map_err(|error| failure(error.to_string()))?;
        // The controller would take it.
        edit::revision_of(&name, &wanted.spec, &api.namespace).map_err(failure)?;
        self.nodes_are_its_own(&api, &name, &all).await?;
        if self.dry_run != DryRun::None {
            let object = match self.dry_run {
                DryRun::Server => pools::put(&api, &name, old, &spec, true).await?.0.object,
                _ => written,
            };
            // As it may be kept in git.
            let object = pools::with_spec(&name, None, object.get("spec").unwrap_or(&spec));
            return output::document(Format::Yaml, &object);
        }
        let (_, done) = pools::put(&api, &name, old, &spec, false).await?;
        let reporter = ProgressReporter::new(self.quiet);
        reporter.note(&format!("pool/{name} {done}: {} for nodes with {}", target.name, self.selector.text));
        Box::pin(follow::run(context, &name, reporter)).await
    }

    /// Which pool: its name, and how it is, if it is there.
    fn pool<'a>(
        &self,
        pools: &'a [StoredPool],
        target: &ConfigMapRef,
    ) -> Result<(String, Option<&'a StoredPool>), Failure> {
        let selector = &self.selector.selector;
        let is_of_them = |it: &&StoredPool| it.pool.spec.node_selector.is_same(selector);
        let same: Vec<&StoredPool> = pools.iter().filter(is_of_them).collect();
        let name = match (&self.name, same.as_slice()) {
            (Some(name), _) => name.clone(),
            (None, [one]) => one.name.clone(),
            (None, []) => target.name.clone(),
            (None, several) => {
                let names: Vec<&str> = several.iter().map(|pool| pool.name.as_str()).collect();
                return Err(Failure::new(format!(
                    "the pools {} select the same nodes: name one by --name, and delete the others",
                    names.join(", ")
                )));
            }
        };
        let old = pools.iter().find(|pool| pool.name == name);
        match old.filter(|old| !is_of_them(old)) {
            None => Ok((name, old)),
            Some(_) => Err(Failure::new(format!(
                "pool {name} is there and selects other nodes than -l {}: choose another --name, or change its spec.nodeSelector by \
                 `kubectl edit kcpool {name}`",
                self.selector.text
            ))),
        }
    }

    /// There are nodes, and no other pool has one of them.
    async fn nodes_are_its_own(&self, api: &Client, name: &str, pools: &[StoredPool]) -> Result<(), Failure> {
        let selection = NodeSelection { names: Vec::new(), labels: Some(self.selector.text.clone()) };
        let (rows, _) = nodes::read_each(api, &selection).await?;
        if rows.is_empty() {
            return Err(selection.nothing());
        }
        let others = || pools.iter().filter(|pool| pool.name != name);
        let shared = rows.iter().find_map(|row| {
            let other = others().find(|pool| pool.pool.spec.node_selector.selects(&row.labels));
            Some((row, other?))
        });
        match shared {
            None => Ok(()),
            Some((row, other)) => Err(Failure::new(format!(
                "node {} is in pool {} already, and two pools of one node stop each other: choose nodes that no other pool has, or \
                 delete that pool (nodes keep what they have)",
                row.name, other.name
            ))),
        }
    }
}
