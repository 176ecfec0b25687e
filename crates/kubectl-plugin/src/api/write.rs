//! Writes: a Node's assignment on either carrier.

use clap::ValueEnum;
use kube::api::{Patch, PatchParams};
use kube::core::request::Request as Path;
use serde_json::Value;

use super::client::{ApiError, Client, segment};
use super::nodes::NODES;
use crate::failure::Failure;
use crate::fleet::assign::{self, Step, WrittenAssignment};
use crate::fleet::node::Carrier;
use kubelet_config::source::ConfigMapRef;

kubelet_config::named! {
    /// `--dry-run`, as kubectl has it: how far a write goes. The suffix stands behind each line.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
    pub(crate) enum DryRun by suffix {
        /// Do it.
        #[default]
        None = "",
        /// Ask nobody; only say what would be written.
        Client = " (dry run)",
        /// Have the API server check it, and keep nothing.
        Server = " (server dry run)",
    }
}

/// Writes assignments: by which carrier, and how far a write goes.
#[derive(Clone, Debug)]
pub(crate) struct AssignmentWriter {
    /// The only carrier to write; none: the one that the API server keeps.
    pub(crate) only: Option<Carrier>,
    /// Whether this API server keeps `spec.configSource`, once that is known.
    pub(crate) keeps_source: Option<bool>,
    pub(crate) dry_run: DryRun,
    /// Labels and annotations that go with each write.
    pub(crate) metadata: Value,
}

/// A Node that is written to, as its writer knows it.
pub(crate) trait Target {
    /// What it is assigned and the resourceVersion of that; none: it is not to be written to any more.
    fn current(&self) -> Option<(WrittenAssignment, String)>;

    /// The Node as the API server answered; what it is assigned by that.
    fn answered(&mut self, node: &Value, dry_run: DryRun) -> WrittenAssignment;

    /// Nobody is asked: this would be written.
    fn planned(&mut self, patch: &Value);

    /// The Node changed meanwhile, or the answer was lost. False: what is to be done has to be decided anew.
    async fn failed(&mut self, error: ApiError) -> Result<bool, Failure>;
}

/// Why an assignment was not written.
pub(crate) enum WriteError {
    /// It cannot be written, or is not kept; why.
    Refused(String),
    Failed(Failure),
}

/// The API server wants no `spec.configSource`, and nothing else would do.
const NO_SOURCE: &str = "this API server refuses spec.configSource: use --carrier labels, or auto";
const NOT_KEPT: &str = "the API server does not keep what is written into this Node; an admission webhook may undo it";

impl AssignmentWriter {
    pub(crate) fn new(only: Option<Carrier>, dry_run: DryRun) -> Self {
        Self { only, keeps_source: None, dry_run, metadata: Value::Null }
    }

    /// Writes until the Node asks for this ConfigMap, or without one for its own configuration, with at most so many patches. Each patch holds for the
    /// version of the Node that was read, and its answer is looked at.
    pub(crate) async fn write(
        &mut self,
        client: &Client,
        node: &str,
        map: Option<&ConfigMapRef>,
        target: &mut impl Target,
        patches: u32,
    ) -> Result<(), WriteError> {
        for _ in 0..patches {
            let Some((now, version)) = target.current() else { return Ok(()) };
            let mut patch = match assign::next_step(&now, &version, map, self.only, self.keeps_source) {
                Step::Done => return Ok(()),
                Step::Refuse(why) => return Err(WriteError::Refused(why)),
                Step::Write(patch) => patch,
            };
            assign::add_metadata(&mut patch, &self.metadata);
            if self.dry_run == DryRun::Client {
                target.planned(&patch);
                return Ok(());
            }
            match patch_node(client, node, &patch, self.dry_run == DryRun::Server).await {
                Ok(answer) => {
                    let kept = assign::source_kept(&patch, &target.answered(&answer, self.dry_run));
                    self.keeps_source = kept.or(self.keeps_source);
                    // What a dry run answers was not kept; of what it would not keep there is more to try.
                    if self.dry_run == DryRun::Server && kept != Some(false) {
                        return Ok(());
                    }
                }
                Err(error) if error.refuses_source() => {
                    let sets_source = patch.pointer("/spec/configSource/configMap").is_some();
                    if !sets_source || self.only.is_some() || self.keeps_source == Some(false) {
                        return Err(WriteError::Refused(NO_SOURCE.to_owned()));
                    }
                    self.keeps_source = Some(false);
                }
                Err(error) => {
                    if !target.failed(error).await.map_err(WriteError::Failed)? {
                        return Ok(());
                    }
                }
            }
        }
        Err(WriteError::Refused(NOT_KEPT.to_owned()))
    }
}

/// A merge patch of a Node.
///
/// # Errors
/// As the API server has them.
pub(crate) async fn patch_node(client: &Client, name: &str, patch: &Value, dry_run: bool) -> Result<Value, ApiError> {
    let params = PatchParams { dry_run, field_manager: Some(client.manager.to_owned()), ..PatchParams::default() };
    let request = segment(name, "node").and_then(|name| Path::new(NODES).patch(name, &params, &Patch::Merge(patch)));
    client.request(&format!("patch node {name}"), request).await
}
