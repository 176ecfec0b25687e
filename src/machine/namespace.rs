//! The policy judges the namespace of a ConfigMap before the ConfigMap is fetched, saved, parsed or told. The store's thread reads
//! the policy each time, as it does before a load.

use std::collections::VecDeque;

use super::asks::Asker;
use super::io::{Effect, StoreRequest};
use super::pause::Pause;
use super::sync::Resolution;
use super::{Counter, State, events, limits};
use kubelet_config::policy::Admission;
use kubelet_config::source::ConfigMapRef;
use kubelet_config::status::SyncError;

/// What the policy says of the assigned ConfigMap's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Namespace {
    permit: Permit,
    /// When the policy is asked next.
    next: Pause,
    told: Told,
}

/// The refusals that were told, by ConfigMap, the latest last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Told(VecDeque<(ConfigMapRef, String)>);

impl Told {
    /// True if this one was not.
    fn adds(&mut self, reference: &ConfigMapRef, why: &str) -> bool {
        let is_known = self.0.iter().any(|(of, told)| is_of(of, reference) && told == why);
        if !is_known {
            self.0.drain(..self.0.len().saturating_sub(limits::REFUSALS_KEPT - 1));
            self.0.push_back((reference.clone(), why.to_owned()));
        }
        !is_known
    }

    fn forget(&mut self, reference: &ConfigMapRef) {
        self.0.retain(|(of, _)| !is_of(of, reference));
    }
}

/// True for the same ConfigMap, whichever key of it.
fn is_of(one: &ConfigMapRef, other: &ConfigMapRef) -> bool {
    (&one.namespace, &one.name) == (&other.namespace, &other.name)
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Permit {
    /// Nobody said so far.
    #[default]
    Unknown,
    Granted,
    Refused(String),
}

impl Namespace {
    /// True if what comes of the assigned ConfigMap may be looked at.
    pub(super) fn is_granted(&self) -> bool {
        self.permit == Permit::Granted
    }

    /// Root wrote the policy: a refusal by it is told, whatever was told before.
    pub(super) fn forget_told(&mut self) {
        self.told = Told::default();
    }

    pub(super) fn refusal(&self) -> Option<&str> {
        match &self.permit {
            Permit::Refused(why) => Some(why),
            Permit::Unknown | Permit::Granted => None,
        }
    }
}

impl State {
    /// Another object is assigned, or none: it is watched once the policy lets it be.
    pub(super) fn seek_config_map(&mut self, reference: Option<ConfigMapRef>) {
        let told = std::mem::take(&mut self.namespace.told);
        self.namespace = Namespace { told, ..Namespace::default() };
        self.asks.forget(Asker::Namespace);
        match reference {
            Some(reference) if !self.is_own(&reference) => self.namespace.next.set(self.clock.now),
            reference => {
                self.namespace.permit = Permit::Granted;
                self.effects.push(Effect::Watch(reference));
            }
        }
    }

    /// It is asked for once more.
    pub(super) fn seek_again(&mut self) {
        if self.namespace.is_granted() {
            self.effects.push(Effect::Watch(self.sync.assigned_map().cloned()));
        }
    }

    /// The policy may be another one, or who assigned it.
    pub(super) fn ask_namespace(&mut self) {
        if self.sync.assigned_map().is_some_and(|reference| !self.is_own(reference)) {
            self.namespace.next.set(self.clock.now);
        }
    }

    /// The node's own files are in no namespace.
    fn is_own(&self, reference: &ConfigMapRef) -> bool {
        self.settings.follow_local && reference.is_local_files()
    }

    pub(super) fn tick_namespace(&mut self) {
        if !self.is_time_to_ask(Asker::Namespace, &self.namespace.next) {
            return;
        }
        self.namespace.next.begin();
        if let Some(reference) = self.sync.assigned_map() {
            let namespace = reference.namespace.clone();
            self.ask(Asker::Namespace, limits::STORE_DEADLINE, |ticket| {
                Effect::Store(StoreRequest::JudgeNamespace(ticket, namespace))
            });
        }
    }

    /// The policy's word on the assigned ConfigMap's namespace.
    pub(super) fn namespace_judged(&mut self, result: Result<Admission, String>) {
        let Some(reference) = self.sync.assigned_map().cloned() else { return };
        let told = result.and_then(|admission| match self.unreadable_policy(&admission) {
            Some(why) => Err(why),
            None => Ok(Self::namespace_refusal(admission, self.sync.is_by_labels())),
        });
        match told {
            // A watch that runs goes on: while the policy cannot be read, each load is refused.
            Err(why) => {
                self.namespace.next.grow(limits::RETRY, &self.clock);
                if !self.namespace.is_granted() {
                    self.sync.note_failed(SyncError::Internal, why);
                }
            }
            Ok(Some(why)) => self.refuse_namespace(&reference, why),
            Ok(None) => {
                self.namespace.next.settle();
                self.namespace.told.forget(&reference);
                if !self.namespace.is_granted() {
                    self.namespace.permit = Permit::Granted;
                    self.sync.forget_error();
                    self.effects.push(Effect::Watch(Some(reference)));
                }
            }
        }
    }

    /// Why the policy says nothing, if it cannot be read.
    pub(super) fn unreadable_policy(&mut self, admission: &Admission) -> Option<String> {
        self.note_policy(&admission.policy);
        admission.policy.admits_nothing()
    }

    /// Why a namespace is refused, if it is. `by_label`: the namespace was named by somebody who may assign by a label only.
    pub(super) fn namespace_refusal(admission: Admission, by_label: bool) -> Option<String> {
        let by_label = admission.refused_by_label.filter(|_| by_label);
        admission.refused.or(by_label)
    }

    fn refuse_namespace(&mut self, reference: &ConfigMapRef, why: String) {
        self.namespace.next.settle();
        if self.namespace.told.adds(reference, &why) {
            self.emit(events::rejected_unseen(&format!("{}/{}: {why}", reference.namespace, reference.name)));
            self.count(Counter::PolicyRefused);
        }
        self.namespace.permit = Permit::Refused(why);
        self.sync.forget_error();
        self.sync.forget_config_map();
        self.effects.push(Effect::Watch(None));
    }

    /// What a refused namespace comes to. What was taken up from there before goes on, and is told as forbidden.
    pub(super) fn refused_resolution(&self) -> Option<Resolution> {
        let why = self.namespace.refusal()?;
        let assigned = self.sync.assigned_map();
        let records = self.records();
        let tried = records.phase.trial().map(|attempt| &attempt.version);
        let mut taken_up = records.last_known_good.iter().chain(tried);
        if taken_up.any(|version| Some(&version.source.reference) == assigned) {
            return Some(Resolution::Nothing);
        }
        Some(Resolution::Failed(SyncError::Download, why.to_owned()))
    }
}
