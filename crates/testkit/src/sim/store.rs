//! The real store on the simulated disk, which may take its time.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use kubelet_config::flags::KubeletArgs;
use kubelet_supervisor::adapters::store::FsStore;
use kubelet_supervisor::daemon::store_worker::StoreWorker;
use kubelet_supervisor::machine::model::LoadTarget;
use kubelet_supervisor::machine::records::RecordFile;
use kubelet_supervisor::machine::{Answer, Input, StoreOperation};
use kubelet_supervisor::ports::{self, StoreRequest};

use super::disk::SimDisk;
use super::ports::{Call, Handle};
use super::records::checkpoint;
use super::world::{Content, ROOT};

/// The store and the requests that wait for it.
#[derive(Debug)]
pub struct SimStore {
    worker: StoreWorker<SimDisk, Handle>,
    outside: Handle,
    waiting: VecDeque<StoreRequest>,
    /// The first of them is the next in line since then.
    next_since: Duration,
}

impl SimStore {
    pub(super) fn new(outside: Handle, args: KubeletArgs) -> Self {
        let disk = outside.0.borrow().disk.clone();
        let store = FsStore::new(disk, Path::new(ROOT));
        let worker = StoreWorker::new(store, outside.clone(), args);
        Self { worker, outside, waiting: VecDeque::new(), next_since: Duration::ZERO }
    }

    /// When the next request is served.
    pub fn next_at(&self) -> Option<Duration> {
        let outside = self.outside.0.borrow();
        self.waiting.front().map(|_| outside.silence.serves_at(self.next_since))
    }

    /// Serves the request that has waited longest.
    pub fn serve_next(&mut self) -> Vec<Input> {
        let Some(request) = self.waiting.pop_front() else { return Vec::new() };
        let answers = self.serve(request);
        let mut outside = self.outside.0.borrow_mut();
        self.next_since = outside.now;
        let now = outside.now;
        outside.silence.note_waiting(!self.waiting.is_empty(), now);
        outside.account.steps = outside.account.steps.saturating_sub(answers.len() as u64);
        answers
    }

    fn serve(&mut self, request: StoreRequest) -> Vec<Input> {
        let saved = match &request {
            StoreRequest::Save(_, source, _) | StoreRequest::SaveAnew(_, source, _) => Some(source.clone()),
            _ => None,
        };
        let rendered = match &request {
            StoreRequest::Load(_, LoadTarget::Source(source) | LoadTarget::Content(_, source)) => Some(source.clone()),
            _ => None,
        };
        let on_request = matches!(&request, StoreRequest::Load(_, LoadTarget::Unassigned(..)));
        let answers = self.worker.serve(request);
        let mut outside = self.outside.0.borrow_mut();
        outside.account.steps += answers.len() as u64;
        for answer in &answers {
            match answer {
                Input::Answer(_, Answer::RecordsRead(stored, _)) => {
                    outside.account.unread = matches!(stored.state, RecordFile::Unreadable(_));
                }
                // Whatever had rotted is written anew.
                Input::Answer(_, Answer::Saved(Ok(()))) => {
                    saved.iter().for_each(|source| outside.disk.mend(&checkpoint(source)));
                }
                Input::Answer(_, Answer::Loaded(_, Ok(found))) if on_request => {
                    outside.asked.note_candidate(&found.path);
                }
                Input::Answer(_, Answer::Loaded(_, Ok(found))) => {
                    let Some(source) = &rendered else { continue };
                    let text = outside.disk.peek(Path::new(&found.path)).unwrap_or_default();
                    let content = Content::of(&text);
                    outside.account.rendered.insert(found.digest.clone(), content);
                    let contents = outside.account.versions.entry(source.clone()).or_default();
                    contents.retain(|of| *of != content);
                    contents.push(content);
                }
                Input::Answer(_, Answer::Verified(..)) => outside.disk.note_mended(),
                _ => {}
            }
        }
        answers
    }

    fn note(&self, request: &StoreRequest) {
        match request {
            StoreRequest::Save(_, source, payload) | StoreRequest::SaveAnew(_, source, payload) => {
                self.outside.note(Call::Save);
                self.outside.0.borrow_mut().check_save(source, payload);
            }
            StoreRequest::Record(..) => self.outside.note(Call::Record),
            StoreRequest::Load(..) => self.outside.note(Call::Load),
            StoreRequest::Append(entry) => self.outside.0.borrow_mut().check_event(entry),
            _ => {}
        }
    }
}

impl ports::Store for SimStore {
    fn submit(&mut self, request: StoreRequest) -> Vec<Input> {
        self.note(&request);
        let writes = request.operation() == StoreOperation::Write;
        self.outside.did(if writes { "writes" } else { "reads" });
        {
            let mut outside = self.outside.0.borrow_mut();
            let now = outside.now;
            outside.account.note_request();
            if !self.waiting.is_empty() || outside.silence.serves_at(now) > now {
                if self.waiting.is_empty() {
                    self.next_since = now;
                }
                outside.silence.note_waiting(true, now);
                outside.asked.hinder(now);
                self.waiting.push_back(request);
                return Vec::new();
            }
        }
        self.serve(request)
    }
}
