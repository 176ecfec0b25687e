//! Preflight on request: what a Node is asked to judge, and the laws of the answer.

use std::collections::BTreeSet;
use std::time::Duration;

use kubelet_config::preflight::{PreflightResult, PreflightStatus};
use kubelet_config::source::Source;
use kubelet_config::status::{NodeConfigStatus, PreflightAnswer};
use kubelet_supervisor::machine::Input;

use super::Rng;
use super::kubelet::Process;
use super::laws::Law;
use super::policy::Policy;
use super::promised;
use super::world::{Behaviour, Coming, NAMESPACE, Outside, ms};

/// A node with nothing else to do answers within this time: each thing that fails is tried five times, a minute in all.
const ANSWERED: Duration = Duration::from_secs(180);

/// What the Node is asked, and what it answers.
#[derive(Debug, Default)]
pub struct Asked {
    /// The annotation.
    request: Option<String>,
    /// The same, as the supervisor knows it, and the answer that the Node shows.
    heard: Option<String>,
    shown: Option<PreflightStatus>,
    /// It could have been answered since then.
    free_since: Duration,
    /// Something that it takes was not to be had since it was asked.
    is_hindered: bool,
    /// The content that is judged for it.
    candidate: Option<String>,
    /// Uid and resourceVersion of all that was ever delivered as assigned.
    told: BTreeSet<(String, String)>,
}

impl Asked {
    /// Somebody does not answer.
    pub(super) fn hinder(&mut self, now: Duration) {
        (self.is_hindered, self.free_since) = (true, now);
    }

    /// Another worker knows nothing of it.
    pub(super) fn forget_life(&mut self) {
        (self.heard, self.candidate) = (None, None);
    }

    pub(super) fn is_candidate(&self, path: &str) -> bool {
        self.candidate.as_deref() == Some(path)
    }

    pub(super) fn note_candidate(&mut self, path: &str) {
        self.candidate = Some(path.to_owned());
    }

    /// It may be a change's from now on.
    pub(super) fn forget_candidate(&mut self) {
        self.candidate = None;
    }

    pub(super) fn note_told(&mut self, uid: &str, version: &str) {
        self.told.insert((uid.to_owned(), version.to_owned()));
    }
}

impl Outside {
    /// Somebody asks what would become of a ConfigMap, or no more.
    pub(super) fn ask_to_judge(&mut self, names: &[&str], rng: &mut Rng) -> Option<String> {
        let name = rng.pick(names);
        let key = rng.pick(&["/kubelet", "/kubelet", "/other", "/absent", ""]);
        let version = self.maps.get(name).filter(|_| rng.one_in(3));
        let version = version.map(|map| format!("@{}/{}", map.uid, map.resource_version)).unwrap_or_default();
        let plain = format!("{NAMESPACE}/{name}{key}{version}#{}", rng.below(1 << 20));
        self.asked.request = match rng.below(10) {
            0 => None,
            1 => Some("../../etc/passwd".to_owned()),
            _ => Some(plain),
        };
        self.hear_requests();
        self.asked.request.clone()
    }

    /// The Node is shown with what it is asked.
    pub(super) fn hear_requests(&mut self) {
        if self.asked.request.is_some() || self.asked.shown.is_some() || self.asked.heard.is_some() {
            self.schedule(ms(30), Coming::Request);
        }
    }

    pub(super) fn hear_request(&mut self) -> Option<Input> {
        self.hears_api().then(|| {
            let (now, asked) = (self.now, &mut self.asked);
            if asked.heard != asked.request {
                (asked.is_hindered, asked.free_since, asked.candidate) = (false, now, None);
            }
            asked.heard.clone_from(&asked.request);
            let answer = asked.shown.as_ref().map(PreflightStatus::annotation);
            Input::PreflightRequested { request: asked.request.clone(), answer }
        })
    }

    /// A status is published: what it answers is so.
    pub(super) fn check_answer(&mut self, status: &NodeConfigStatus) {
        match &status.preflight {
            PreflightAnswer::Said(said) if self.asked.shown.as_ref() != Some(&**said) => self.check_said(said),
            PreflightAnswer::None => self.asked.shown = None,
            _ => {}
        }
    }

    fn check_said(&mut self, said: &PreflightStatus) {
        self.note_failures();
        let what = self.what_would_become(said);
        // Beside a file that cannot be read nothing is rendered.
        let torn = self.torn_local.is_some() || self.local_edited.is_some_and(|at| self.now <= at + ANSWERED);
        self.asked.is_hindered |= torn;
        let fine = self.asked.heard.as_ref().is_some_and(|request| said.answers(request))
            && (what.contains(&said.result) || said.result == PreflightResult::Inconclusive && self.asked.is_hindered);
        let (heard, hindered) = (self.asked.heard.clone(), self.asked.is_hindered);
        self.account
            .check(Law::Asked, false, fine, || format!("{heard:?}, hindered: {hindered}: {said:?} and not {what:?}"));
        (self.asked.shown, self.asked.candidate) = (Some(said.clone()), None);
    }

    /// By what the API server gave, and by what a kubelet makes of it.
    fn what_would_become(&self, said: &PreflightStatus) -> Vec<PreflightResult> {
        use PreflightResult::{Inconclusive, Invalid, PolicyRefused, Valid};
        let version = said.version.split_once('/').and_then(|(uid, version)| self.history.get(uid)?.get(version));
        let unread = if self.is_forbidden_lately() { vec![PolicyRefused, Inconclusive] } else { vec![Inconclusive] };
        let Some(version) = version else { return unread };
        if said.request.contains("/absent") {
            return vec![Invalid];
        }
        let content = if version.overlay { version.content.over(self.own()) } else { version.content };
        let failed = self.account.failed.iter().any(|failed| failed.content == content);
        let by_kubelet = match content.behaviour {
            _ if version.is_unclear() => vec![Invalid],
            Behaviour::Unloadable | Behaviour::Invalid | Behaviour::Misspelt => vec![Invalid],
            // What failed here before is refused as long as that is known.
            _ if failed || self.account.unlucky.contains(&content) => vec![Valid, Invalid, Inconclusive],
            Behaviour::Mute => vec![Inconclusive],
            _ => vec![Valid],
        };
        // What cannot be loaded is held against no policy.
        let is_read = content.behaviour != Behaviour::Unloadable;
        let by_policy = |policy: Policy| match policy {
            Policy::Torn if is_read => Some(vec![Inconclusive]),
            policy => (is_read && policy.refuses(content, self.own())).then(|| vec![PolicyRefused]),
        };
        self.policies.lately(self.now).flat_map(|it| by_policy(it).unwrap_or_else(|| by_kubelet.clone())).collect()
    }

    /// It is answered in time, where nothing is more urgent.
    pub(super) fn check_answered(&mut self) {
        let Some(request) = &self.asked.heard else { return };
        if self.asked.shown.as_ref().is_some_and(|shown| shown.answers(request)) {
            return;
        }
        // The node's own content may have been assigned, and is on trial then.
        let judged =
            |it: &Process| !self.account.is_lkg(it.content) && (it.path.is_some() || self.status.active.is_some());
        let busy = |it: &Process| it.stopping.is_some() || it.well_since.is_none() || judged(it) || it.unread;
        let is_held = self.process.as_ref().is_none_or(busy)
            || self.account.testing
            || self.account.unsaved_since.is_some()
            || self.account.withheld.is_some()
            || self.account.leaving
            || self.workers.absent
            || self.silence.waits_for(self.now).is_some()
            || self.now <= self.changed_last.max(self.account.began) + promised::VERDICT;
        if is_held {
            self.asked.free_since = self.now;
        }
        let since = self.asked.free_since;
        let why = format!("{request} has no answer, and nothing is more urgent since {since:?}");
        self.account.check(Law::Asked, is_held, self.now <= since + ANSWERED, || why);
    }

    /// Nobody speaks of what was only asked about.
    pub(super) fn check_traces<'a>(&mut self, sources: impl Iterator<Item = &'a Source>) {
        if self.asked.heard.is_none() {
            return;
        }
        let told = |it: &&Source| self.asked.told.contains(&(it.uid.clone(), it.resource_version.clone()));
        let stray = sources.filter(|it| !told(it)).map(ToString::to_string).next();
        self.account.check(Law::LeavesNoTrace, false, stray.is_none(), || format!("{stray:?} was never assigned"));
    }
}
