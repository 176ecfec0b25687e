//! The node's policy, which root changes, tears and removes.

use std::time::Duration;

use kubelet_config::policy::NodePolicy;
use kubelet_supervisor::machine::Input;
use kubelet_supervisor::ports::LocalPolicy;
use serde_json::json;

use super::kubelet::Process;
use super::laws::Law;
use super::records::content_dir;
use super::world::{Behaviour, Coming, Content, NAMESPACE, Outside, ms};

/// What was decided by a policy is carried out within this time: a kubelet that ignores SIGTERM, a judge, a slow disk.
const DECIDED: Duration = Duration::from_secs(120);

/// What the policy says of what runs is known within this time.
const TOLD: Duration = Duration::from_secs(150);

/// What root may write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// What [`Behaviour::Forbidden`] has otherwise is pinned.
    #[default]
    Pins,
    /// So is the salt, at that of the local file.
    PinsSalt,
    /// What differs from the local file is no change's to make.
    Denies,
    /// The ConfigMaps' namespace is not among those that are allowed.
    Namespaces,
    Gone,
    /// It cannot be read.
    Torn,
}

/// After an error of the disk it is read again within this time.
const READ_AGAIN: Duration = Duration::from_secs(750);

impl Policy {
    pub const ALL: [Self; 6] = [Self::Pins, Self::PinsSalt, Self::Denies, Self::Namespaces, Self::Gone, Self::Torn];

    pub(super) fn read(self) -> Result<LocalPolicy, String> {
        let salt = "staticPodURLHeader.salt";
        let mut policy =
            NodePolicy { pinned_fields: [("readOnlyPort".to_owned(), 0.into())].into(), ..NodePolicy::default() };
        match self {
            Self::Torn => return Err("it is torn".to_owned()),
            Self::PinsSalt => drop(policy.pinned_fields.insert(salt.to_owned(), json!(0))),
            Self::Denies => drop(policy.denied_fields.insert("staticPodURLHeader".to_owned())),
            Self::Namespaces => policy.allowed_namespaces = Some(["another".to_owned()].into()),
            Self::Pins | Self::Gone => {}
        }
        let policy = Some(policy).filter(|_| self != Self::Gone);
        Ok(LocalPolicy { policy, label_namespaces: [NAMESPACE.to_owned()].into(), ..LocalPolicy::default() })
    }

    /// It keeps what the cluster assigns from being started. Fields that are pinned or denied bind changes alone.
    fn forbids(self) -> bool {
        self == Self::Namespaces
    }

    /// It keeps this from being taken up anew.
    pub(super) fn refuses(self, content: Content, own: Content) -> bool {
        let pinned = match self {
            Self::Torn | Self::Namespaces => return true,
            Self::Gone => return false,
            Self::Denies => content != own,
            Self::PinsSalt => content.salt > 0,
            Self::Pins => false,
        };
        pinned || content.behaviour == Behaviour::Forbidden
    }
}

/// The policy, and those that were there before it until these moments.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    pub now: Policy,
    before: Vec<(Policy, Duration)>,
}

impl Policies {
    /// The policy, and those by which something may just have been decided.
    pub(super) fn lately(&self, now: Duration) -> impl Iterator<Item = Policy> {
        let lately = self.before.iter().filter(move |(_, until)| now.saturating_sub(*until) <= DECIDED);
        lately.map(|(policy, _)| *policy).chain([self.now])
    }
}

impl Outside {
    /// Root writes another policy, and the supervisor hears of it.
    pub(super) fn set_policy(&mut self, policy: Policy) {
        let (now, before) = (self.now, std::mem::replace(&mut self.policies.now, policy));
        self.policies.before.retain(|(_, until)| now.saturating_sub(*until) <= Duration::from_secs(900));
        self.policies.before.push((before, now));
        self.schedule(ms(300), Coming::Policy);
        self.changed_last = now;
    }

    pub(super) fn hear_policy(&mut self) -> Option<Input> {
        (!self.workers.absent).then(|| {
            self.account.told_last = Some(self.now);
            Input::PolicyChanged
        })
    }

    /// A policy of a moment ago keeps this from being taken up, or from being started.
    pub(super) fn is_refused_lately(&self, content: Content) -> bool {
        self.policies.lately(self.now).any(|policy| policy.refuses(content, self.own()))
    }

    pub(super) fn is_forbidden_lately(&self) -> bool {
        self.policies.lately(self.now).any(Policy::forbids)
    }

    /// Law 7: the policy binds what is started; what it denies is taken up by no change.
    pub(super) fn check_policy(&mut self, content: Content) {
        let lately = || self.policies.lately(self.now);
        let is_own = content == self.own();
        let starts = lately().any(|policy| !policy.forbids());
        self.account.check(Law::PolicyHolds, is_own, starts, || {
            format!("{content:?} was started, and the node's policy forbids it")
        });
        let taken_up = lately().any(|policy| !policy.refuses(content, self.own()));
        let account = &self.account;
        // What was taken up before is on record, and starts again.
        let excused =
            is_own || account.tried.contains(&content) || account.was_proven(content) || account.pinned.is_some();
        self.account.check(Law::PolicyHolds, excused, taken_up, || {
            format!("{content:?} was taken up, and the node's policy refuses it")
        });
    }

    /// What runs and would not be taken up now is told of.
    pub(super) fn check_policy_is_told(&mut self) {
        let Some(Process { path: Some(path), content, started, .. }) = &self.process else { return };
        let (content, started) = (*content, *started);
        let quiet = self.policies.before.last().is_none_or(|(_, until)| self.now > *until + TOLD);
        let lately = |at: Duration| self.now <= at + TOLD;
        // Where what runs or the local file cannot be read, nothing is known of it.
        let unread = self.disk.is_rotten(content_dir(path))
            || self.torn_local.is_some()
            || self.local_edited.is_some_and(lately);
        let excused = !quiet
            || unread
            || lately(started.max(self.account.began))
            || self.woke().is_some_and(lately)
            || self.account.failed_last.1.max(self.account.read_failed_last.1.unwrap_or_default()) + READ_AGAIN
                >= self.now
            || self.silence.waited_within(TOLD, self.now);
        let said = match self.policies.now {
            Policy::Torn => "unreadable",
            Policy::Gone => "absent",
            // The local configuration is in no namespace, whatever path the same content has.
            policy if policy.forbids() && self.status.active.is_none() => "in-force",
            policy if policy.refuses(content, self.own()) => "violated",
            _ => "in-force",
        };
        let told = self.status.policy;
        self.account.check(Law::PolicyIsTold, excused, told == said, || {
            format!("{content:?} runs, {said:?} is there, and told is {told:?}")
        });
    }
}
