//! The disk of the bare machine: what is durable, and what is wrong with it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kubelet_config::digest::Digest;
use kubelet_config::policy::{Admission, PolicyState, Signed};
use kubelet_config::rendering::HealthzTarget;
use kubelet_config::schema;
use kubelet_config::source::{ConfigAnnotations, Source};
use kubelet_supervisor::machine::model::{
    Damage, KubeletId, LoadTarget, RenderError, Rendered, StateFiles, StateFilesFound, Verification,
};
use kubelet_supervisor::machine::records::{RecordFile, Records, Stored, Version};
use kubelet_supervisor::machine::{Answer, Input};
use kubelet_supervisor::ports::StoreRequest;
use serde_json::json;

use super::{Definition, Node, name_of};

/// The store and the local file.
#[derive(Default)]
pub struct Store {
    /// The record, as it is on disk.
    pub records: Records,
    written: bool,
    /// Native's `meta` files: assigned and last known good.
    meta: (Option<Source>, Option<Source>),
    /// The power is cut each time before these are written.
    pub meta_lost: bool,
    checkpoints: BTreeSet<Source>,
    /// Rendered configurations by content.
    configs: BTreeMap<Digest, Rendered>,
    /// Whose state files the kubelet's directory has.
    pub policy_files: String,
    /// Answered requests to put the kubelet's state files in order.
    pub swaps: Vec<StateFiles>,
    /// Tells one content of the local file from another.
    pub local: String,
    /// Why the local file cannot be read.
    pub local_fault: Option<RenderError>,
    /// Each request is served so much later.
    pub latency: Duration,
    slow: VecDeque<(Duration, StoreRequest)>,
    /// No request is answered.
    stalled: bool,
    waiting: VecDeque<StoreRequest>,
    /// After so many requests that are served ...
    pub fails_after: u32,
    /// ... so many fail with EIO, ...
    pub fails: u32,
    /// ... or are served, and never answered.
    pub loses_answers: bool,
    /// ENOSPC for whatever is written.
    pub full: bool,
    /// EIO for whatever has to be rendered.
    pub renders_fail: bool,
    /// EIO for these contents.
    pub unreadable: BTreeSet<String>,
    /// These contents have other bytes than they had.
    pub damaged: BTreeSet<String>,
    /// Checkpoints are saved, and are not there.
    pub loses_checkpoints: bool,
    /// Of these other bytes were saved, in another life.
    pub other_bytes: BTreeSet<String>,
    /// Namespaces that the policy refuses.
    pub foreign: BTreeSet<String>,
    /// Namespaces that a label may not name.
    pub unlisted: BTreeSet<String>,
    /// EIO for the record.
    pub record_unreadable: bool,
    /// Whether there is a policy.
    pub policy: PolicyState,
    /// It refuses these.
    pub forbidden: BTreeSet<String>,
    /// EIO for the kubelet's state files alone.
    pub swaps_fail: bool,
    /// They are put in order later than anybody waits for.
    pub slow_swaps: bool,
    /// What is to be started is read later than anybody waits for.
    pub slow_contents: bool,
    /// The policy denies fields of these.
    pub denied: BTreeSet<String>,
    /// The unit has the kubelet's hard eviction thresholds ignored for what pods may request.
    pub ignores_eviction: bool,
    /// These are signed.
    pub signed: BTreeMap<String, Signed>,
}

impl Store {
    pub(super) fn forget_requests(&mut self) {
        self.waiting.clear();
        self.slow.clear();
    }

    /// The checkpoint and the content of this version are gone.
    pub fn lose(&mut self, source: &Source) {
        self.checkpoints.remove(source);
        self.configs.remove(&Digest(name_of(source)));
    }

    /// The checkpoint of this version is gone.
    pub fn lose_checkpoint(&mut self, source: &Source) {
        self.checkpoints.remove(source);
    }

    pub fn has_checkpoint(&self, source: &Source) -> bool {
        self.checkpoints.contains(source)
    }

    pub(super) fn check_durable(&self, path: &str) {
        let digest = Digest(path.trim_start_matches('/').to_owned());
        assert!(self.configs.contains_key(&digest), "{path} is started, and is not on disk");
        assert!(!self.damaged.contains(&digest.0), "{path} is started, and is damaged");
    }

    fn record(&mut self, records: &Records) {
        (self.records, self.written) = (records.clone(), true);
        if !self.meta_lost {
            let source = |version: &Option<Version>| version.as_ref().map(|version| version.source.clone());
            self.meta = (source(&records.assigned), source(&records.last_known_good));
        }
    }

    fn fails_now(&mut self) -> bool {
        let now = self.fails > 0 && self.fails_after == 0;
        self.fails -= u32::from(now);
        self.fails_after = self.fails_after.saturating_sub(1);
        now
    }

    fn read(&self, fails: bool) -> Stored {
        let state = match (self.record_unreadable || fails, self.written) {
            (true, _) => RecordFile::Unreadable("input/output error".to_owned()),
            (false, true) => RecordFile::Read(Box::new(self.records.clone())),
            (false, false) => RecordFile::Absent,
        };
        Stored {
            state,
            assigned: Ok(self.meta.0.clone()),
            last_known_good: Ok(self.meta.1.clone()),
            meta_changed: false,
        }
    }
}

impl Node {
    /// From now on the disk answers nothing.
    pub fn stall(&mut self) -> &mut Self {
        self.store.stalled = true;
        self
    }

    /// Whatever waits for the disk is served now, in order.
    pub fn end_stall(&mut self) -> &mut Self {
        self.store.stalled = false;
        while !self.store.waiting.is_empty() {
            self.serve_next();
        }
        self
    }

    /// What a slow disk has done by now.
    pub(super) fn serve_slow(&mut self) {
        while self.store.slow.front().is_some_and(|(at, _)| self.now >= *at) {
            let request = self.store.slow.pop_front();
            if let Some(answer) = request.and_then(|(_, request)| self.serve(request)) {
                self.step(answer);
            }
        }
    }

    /// The request that waits longest is served.
    pub fn serve_next(&mut self) -> &mut Self {
        let request = self.store.waiting.pop_front();
        if let Some(answer) = request.and_then(|request| self.serve(request)) {
            self.step(answer);
        }
        self
    }

    pub(super) fn submit(&mut self, request: StoreRequest) -> Option<Input> {
        if self.store.stalled {
            self.store.waiting.push_back(request);
            return None;
        }
        if !self.store.latency.is_zero() {
            self.store.slow.push_back((self.now + self.store.latency, request));
            return None;
        }
        self.serve(request)
    }

    fn serve(&mut self, request: StoreRequest) -> Option<Input> {
        let late = self.store.slow_swaps && matches!(request, StoreRequest::SwapStateFiles(..))
            || self.store.slow_contents && matches!(request, StoreRequest::Load(_, LoadTarget::Content(..)));
        let fails = self.store.fails_now();
        let lost = fails && self.store.loses_answers;
        self.carry_out(request, fails && !lost).filter(|_| !lost && !late)
    }

    fn carry_out(&mut self, request: StoreRequest, fails: bool) -> Option<Input> {
        let written = if fails {
            Err("input/output error".to_owned())
        } else if self.store.full {
            Err("no space left on device".to_owned())
        } else {
            Ok(())
        };
        let id = KubeletId(self.kubelet.clone());
        match request {
            StoreRequest::ReadRecords(ticket) => {
                Some(Input::Answer(ticket, Answer::RecordsRead(Box::new(self.store.read(fails)), id)))
            }
            StoreRequest::Record(ticket, records) => {
                let result = written.map(|()| self.store.record(&records));
                Some(Input::Answer(ticket, Answer::Recorded(result)))
            }
            StoreRequest::Save(ticket, source, _) if self.store.other_bytes.contains(&source.reference.name) => {
                Some(Input::Answer(ticket, Answer::OtherBytesSaved))
            }
            StoreRequest::Save(ticket, source, _) | StoreRequest::SaveAnew(ticket, source, _) => {
                if written.is_ok() && !self.store.loses_checkpoints {
                    self.store.checkpoints.insert(source);
                }
                Some(Input::Answer(ticket, Answer::Saved(written)))
            }
            StoreRequest::JudgeNamespace(ticket, namespace) => {
                let refused =
                    self.store.foreign.contains(&namespace).then(|| format!("the node's policy: {namespace}"));
                let refused_by_label =
                    self.store.unlisted.contains(&namespace).then(|| "the node's policy: a label".to_owned());
                let policy = self.store.policy.clone();
                let admission = Admission { policy, refused, refused_by_label, ..Admission::default() };
                Some(Input::Answer(ticket, Answer::NamespaceJudged(Ok(admission))))
            }
            StoreRequest::Load(ticket, target) => {
                let result = if fails { Err(eio()) } else { self.load(&target) };
                Some(Input::Answer(ticket, Answer::Loaded(id, result)))
            }
            StoreRequest::SwapStateFiles(ticket, _) if self.store.swaps_fail => {
                Some(Input::Answer(ticket, Answer::StateFilesSwapped(Err("input/output error".to_owned()))))
            }
            StoreRequest::SwapStateFiles(ticket, files) => {
                if self.now >= files.until {
                    let why = "nobody waits for it any more".to_owned();
                    return Some(Input::Answer(ticket, Answer::StateFilesSwapped(Err(why))));
                }
                if files.look && self.store.policy_files != files.policy {
                    return Some(Input::Answer(ticket, Answer::StateFilesSwapped(Ok(StateFilesFound::OfAnother))));
                }
                if written.is_ok() {
                    assert!(files.look || self.process.is_none(), "a kubelet runs with the files that are swapped");
                    self.store.policy_files.clone_from(&files.policy);
                    self.store.swaps.push(files);
                }
                Some(Input::Answer(ticket, Answer::StateFilesSwapped(written.map(|()| StateFilesFound::InOrder))))
            }
            StoreRequest::Verify(ticket, _) if fails => Some(Input::Answer(
                ticket,
                Answer::Verified(Verification { is_partial: true, ..Verification::default() }),
            )),
            StoreRequest::Verify(ticket, versions) => {
                Some(Input::Answer(ticket, Answer::Verified(self.verify(versions))))
            }
            StoreRequest::Append(entry) => Some(Input::Appended(entry, written)),
            StoreRequest::Collect(sources, digests) => {
                self.store.checkpoints.retain(|source| sources.contains(source));
                self.store.configs.retain(|digest, _| digests.contains(digest));
                None
            }
            StoreRequest::Unreported | StoreRequest::Reported(_) | StoreRequest::ProbeDisk => None,
        }
    }

    fn verify(&mut self, versions: BTreeSet<Version>) -> Verification {
        let mut found = Verification::default();
        for Version { source, digest } in versions {
            let is_whole =
                |digest: &Digest| self.store.configs.contains_key(digest) && !self.store.damaged.contains(&digest.0);
            if let Some(digest) = digest.filter(|digest| !is_whole(digest)) {
                let what = format!("the content {}", digest.0);
                let mended = self.load(&LoadTarget::Content(digest.clone(), source.clone()));
                let mended = mended.map(drop).map_err(|error| error.to_string());
                found.damage.push(Damage { what, source: Some(source.clone()), content: Some(digest), mended });
            }
            if !self.store.checkpoints.contains(&source) {
                let (what, mended) =
                    (format!("the checkpoint of {source}"), Err("its source alone has these bytes".to_owned()));
                found.damage.push(Damage { what, source: Some(source), content: None, mended });
            }
        }
        found
    }

    fn load(&mut self, target: &LoadTarget) -> Result<Rendered, RenderError> {
        match target {
            LoadTarget::Local | LoadTarget::DryRun(None) if self.store.renders_fail => Err(eio()),
            LoadTarget::Local | LoadTarget::DryRun(None) => {
                self.store.local_fault.clone().map_or_else(|| Ok(self.render(None)), Err)
            }
            LoadTarget::Source(source) => self.load_source(source),
            LoadTarget::Unassigned(source, _) => {
                if self.store.renders_fail || self.store.full {
                    return Err(eio());
                }
                let rendered = self.render(Some(source));
                self.store.configs.insert(rendered.digest.clone(), rendered.clone());
                Ok(rendered)
            }
            LoadTarget::DryRun(Some(source)) => self.dry_run(source),
            LoadTarget::Content(digest, _) if self.store.unreadable.contains(&digest.0) => Err(eio()),
            LoadTarget::Content(digest, source) => {
                if let Some(config) = self.store.configs.get(digest).filter(|_| !self.store.damaged.contains(&digest.0))
                {
                    let annotations = self.definition(&name_of(source)).annotations;
                    let admission = self.admission(Some(source));
                    return Ok(Rendered { annotations, admission, ..config.clone() });
                }
                if self.render(Some(source)).digest != *digest {
                    return Err(RenderError::Checkpoint("the configuration is damaged".to_owned()));
                }
                self.load_source(source)
            }
        }
    }

    /// What comes of it now; nothing is stored.
    fn dry_run(&self, source: &Source) -> Result<Rendered, RenderError> {
        if self.store.renders_fail {
            return Err(eio());
        }
        if !self.store.checkpoints.contains(source) {
            return Err(RenderError::Checkpoint("there is no checkpoint".to_owned()));
        }
        if let Some(fault) = self.store.local_fault.clone().filter(|_| self.definition(&name_of(source)).overlay) {
            return Err(fault);
        }
        Ok(self.render(Some(source)))
    }

    fn load_source(&mut self, source: &Source) -> Result<Rendered, RenderError> {
        let rendered = self.dry_run(source)?;
        let digest = rendered.digest.clone();
        if self.store.unreadable.contains(&digest.0) {
            return Err(eio());
        }
        let there = self.store.configs.contains_key(&digest) && !self.store.damaged.contains(&digest.0);
        if !there && self.store.full {
            return Err(RenderError::Internal("no space left on device".to_owned()));
        }
        self.store.damaged.remove(&digest.0);
        self.store.configs.insert(digest, rendered.clone());
        Ok(rendered)
    }

    fn admission(&self, source: Option<&Source>) -> Admission {
        let policy = self.store.policy.clone();
        let Some(name) = source.map(name_of).filter(|_| policy == PolicyState::InForce) else {
            return Admission { policy, ..Admission::default() };
        };
        let refused = self.store.forbidden.contains(&name).then(|| format!("the node's policy: {name}"));
        let refused_by_label = name.starts_with("elsewhere").then(|| "the node's policy: namespace".to_owned());
        let signed = self.store.signed.get(&name).cloned();
        let denied = self.store.denied.contains(&name).then(|| format!("the node's policy: denied {name}"));
        Admission { policy, refused, denied, refused_by_label, signed, ..Admission::default() }
    }

    fn definition(&self, name: &str) -> Definition {
        let nothing = Definition { fields: json!({}), annotations: ConfigAnnotations::default(), overlay: false };
        self.configurations.get(name).cloned().unwrap_or(nothing)
    }

    pub(super) fn local_digest(&self) -> String {
        self.render(None).digest.0
    }

    fn render(&self, source: Option<&Source>) -> Rendered {
        let name = source.map_or_else(|| "local".to_owned(), name_of);
        let Definition { mut fields, annotations, overlay } = self.definition(&name);
        let mut content = self.same_content.get(&name).unwrap_or(&name).clone();
        if (overlay || source.is_none()) && !self.store.local.is_empty() {
            content = format!("{content}+{}", self.store.local);
        }
        let problems = source.map(|_| schema::problems(&fields)).unwrap_or_default();
        // Differs, and nobody minds.
        fields["syncFrequency"] = json!(content);
        Rendered {
            path: source.map(|_| format!("/{content}")).unwrap_or_default(),
            digest: Digest(content),
            healthz: self.healthz.map(|_| HealthzTarget { host: "127.0.0.1".into(), port: 10248 }),
            effective: Arc::new(fields),
            ignores_eviction: self.store.ignores_eviction,
            problems,
            annotations,
            admission: self.admission(source),
            runtime: Some("unix:///run/runtime.sock".into()),
            ..Rendered::default()
        }
    }
}

fn eio() -> RenderError {
    RenderError::Internal("input/output error".to_owned())
}

/// What is said of a file that is no YAML.
#[must_use]
pub fn torn() -> RenderError {
    RenderError::Internal("the local file cannot be parsed".to_owned())
}
