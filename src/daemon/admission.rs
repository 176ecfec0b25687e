//! What the node's policy says of what is loaded.

use super::render::{Payload, configuration};
use crate::machine::model::RenderError;
use crate::ports::{Checkpoint, Local, LocalPolicy};
use kubelet_config::flags::{FlagOverrides, KubeletArgs};
use kubelet_config::policy::{Admission, Candidate, NodePolicy, PolicyState, Signable, Signatures, Signed};
use kubelet_config::source::{ConfigAnnotations, Merge, Source};
use serde_json::Value;

/// The policy as it was read for one load.
pub(crate) struct Policy(Result<LocalPolicy, String>);

impl Policy {
    pub(crate) fn read(local: &dyn Local) -> Self {
        Self(local.policy())
    }

    /// What is rendered by it.
    pub(crate) fn payload<'a>(&'a self, checkpoint: &'a Checkpoint, source: &'a Source) -> Payload<'a> {
        Payload { checkpoint, source, policy: &self.0 }
    }

    /// There is one, and it can be read.
    pub(crate) fn in_force(&self) -> Option<&NodePolicy> {
        self.0.as_ref().ok()?.policy.as_ref()
    }

    /// What it says of the local files: that it is there, and what an operator may acknowledge.
    pub(crate) fn of_local(&self) -> Admission {
        let policy = match &self.0 {
            Err(why) => PolicyState::Unreadable(why.clone()),
            Ok(LocalPolicy { policy: None, unguarded: Some(why), .. }) => PolicyState::AbsentUnguarded(why.clone()),
            Ok(LocalPolicy { policy: None, .. }) => PolicyState::Absent,
            Ok(_) => PolicyState::InForce,
        };
        let acknowledgeable = self.in_force().and_then(NodePolicy::acknowledgeable);
        Admission { policy, acknowledgeable, ..Admission::default() }
    }

    /// What the policy says of every ConfigMap in this namespace.
    pub(crate) fn of_namespace(&self, namespace: &str) -> Admission {
        let refused = match &self.0 {
            Ok(LocalPolicy { policy: Some(policy), label_namespaces, .. }) => {
                Admission::of_namespace(policy, namespace, label_namespaces)
            }
            _ => Admission::default(),
        };
        Admission { refused: refused.refused, refused_by_label: refused.refused_by_label, ..self.of_local() }
    }

    /// Whose signatures count for this source, if that is asked.
    pub(crate) fn signatures_of(&self, source: &Source) -> Option<&Signatures> {
        self.in_force()?.signatures.as_ref().filter(|_| !source.is_local_files())
    }

    /// The signature beside a payload, verified; what has none need not be signed.
    pub(crate) fn signed(
        &self,
        checkpoint: &Checkpoint,
        source: &Source,
        default_merge: Merge,
    ) -> Result<Option<Signed>, String> {
        let Some(signatures) = self.signatures_of(source) else { return Ok(None) };
        let merge = if default_merge == Merge::Overlay { "overlay" } else { "replace" };
        signatures.verify(&Signable {
            key: &source.reference.kubelet_config_key,
            data: &checkpoint.files,
            merge: checkpoint.annotations.merge.as_deref().unwrap_or(merge),
            acknowledge: checkpoint.annotations.acknowledge.as_deref(),
            courtesy: checkpoint.annotations.courtesy.as_deref(),
            confirm_within: checkpoint.annotations.confirm_within.as_deref(),
        })
    }

    /// The same, before anything of the payload is parsed.
    pub(crate) fn signed_unread(
        &self,
        checkpoint: &Checkpoint,
        source: &Source,
        default_merge: Merge,
    ) -> Result<Option<Signed>, RenderError> {
        self.signed(checkpoint, source, default_merge)
            .map_err(|why| RenderError::Policy(format!("the node's policy: signature: {why}")))
    }

    /// What it says of what the kubelet would go by; of a file by hand, without a source.
    pub(crate) fn admission(
        &self,
        source: Option<&Source>,
        (effective, overrides): (&Value, &FlagOverrides),
        signed: Result<Option<Signed>, String>,
        args: &KubeletArgs,
        local: &dyn Local,
    ) -> Admission {
        let Ok(found @ LocalPolicy { policy: Some(policy), .. }) = &self.0 else { return self.of_local() };
        if source.is_some_and(Source::is_local_files) {
            return self.of_local(); // root's own
        }
        let own = if policy.denied_fields.is_empty() {
            Ok(Value::Null) // nobody asks
        } else {
            configuration(None, None, args, local).map(|own| own.effective)
        };
        // It may pass: nothing new until then, and nothing refused for good.
        let (own, unknown) = match own {
            Ok(own) => (own, None),
            Err(error) => (Value::Null, Some(format!("deniedFields cannot be held against {error}"))),
        };
        let candidate = Candidate {
            namespace: source.map(|source| source.reference.namespace.as_str()),
            effective,
            local: &own,
            overrides,
            minor: local.kubelet_minor(),
        };
        let admission = Admission::by(policy, &candidate, &found.label_namespaces, signed);
        match unknown {
            // What starts is asked for all that does not depend on the local files.
            Some(why) => Admission { denied: None, policy: PolicyState::Unreadable(why), ..admission },
            None => admission,
        }
    }

    /// The annotations as far as the policy lets them count.
    pub(crate) fn limited(&self, annotations: ConfigAnnotations) -> ConfigAnnotations {
        let Some(policy) = self.in_force() else { return annotations };
        ConfigAnnotations { acknowledge: policy.acknowledged(annotations.acknowledge.as_deref()), ..annotations }
    }
}
