//! The ports of one life of the supervisor: into the simulated world, by way of the mutants.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;

use kubelet_config::rendering::HealthzTarget;
use kubelet_config::source::{ConfigMapRef, Merge, Payload, Source};
use kubelet_config::status::NodeConfigStatus;
use kubelet_supervisor::adapters::store::FsStore;
use kubelet_supervisor::machine::model::{KubeletId, RenderError, Rendered, StateFiles, Verdict};
use kubelet_supervisor::machine::record::HistoryEntry;
use kubelet_supervisor::machine::{Counter, Level, Records, State, Stored};
use kubelet_supervisor::ports::{self, Checkpoint, LocalError, SpawnError, StoreError};

use super::checks::checkpoint;
use super::disk::SimDisk;
use super::laws::Law;
use super::tamper::{Call, Tamper};
use super::world::{Behaviour, Coming, Content, Outside, ROOT, ms};

/// The ports.
#[derive(Debug)]
pub struct World {
    outside: Handle,
    store: SimStore,
}

#[derive(Clone, Debug)]
struct Handle(Rc<RefCell<Outside>>);

/// The real store on the simulated disk.
#[derive(Debug)]
struct SimStore {
    inner: FsStore<SimDisk>,
    outside: Handle,
    tamper: &'static Tamper,
}

impl World {
    pub fn new(outside: &Rc<RefCell<Outside>>) -> Self {
        let (disk, tamper) = {
            let outside = outside.borrow();
            (outside.disk.clone(), outside.tamper)
        };
        let outside = Handle(outside.clone());
        let inner = FsStore::new(disk, Path::new(ROOT));
        Self { store: SimStore { inner, outside: outside.clone(), tamper }, outside }
    }
}

impl Handle {
    /// How often a call shall be made; it is noted in any case.
    fn times(&self, call: Call) -> u32 {
        let mut outside = self.0.borrow_mut();
        let now = outside.now;
        outside.account.trace(call as u64, now);
        (outside.tamper.times)(call)
    }
}

impl ports::Ports for World {
    fn store(&mut self) -> &mut dyn ports::Store {
        &mut self.store
    }
    fn local(&self) -> &dyn ports::Local {
        &self.outside
    }
    fn kubelet(&mut self) -> &mut dyn ports::Kubelet {
        &mut self.outside
    }
    fn preflight(&mut self) -> &mut dyn ports::Preflight {
        &mut self.outside
    }
    fn probe(&mut self) -> &mut dyn ports::Probe {
        &mut self.outside
    }
    fn cluster(&mut self) -> &mut dyn ports::Cluster {
        &mut self.outside
    }
    fn host(&mut self) -> &mut dyn ports::Host {
        &mut self.outside
    }
    fn notifier(&mut self) -> &mut dyn ports::Notifier {
        &mut self.outside
    }
    fn reexec(&mut self) -> &mut dyn ports::Reexec {
        &mut self.outside
    }
}

/// The harness plays a reload; nobody here asks for one.
impl ports::Reexec for Handle {
    fn prove(&mut self, _document: &str) {}
    fn replace(&mut self, _document: &str) -> Result<(), ports::ReexecError> {
        Err(ports::ReexecError::Busy)
    }
}

impl ports::Store for SimStore {
    fn load(&mut self) -> Stored {
        let mut stored = self.inner.load();
        (self.tamper.load)(&mut stored);
        stored
    }

    fn assume(&mut self, records: &Records) {
        self.inner.assume(records);
    }

    fn save(&mut self, source: &Source, payload: &Payload) -> Result<(), StoreError> {
        let times = self.outside.times(Call::Save);
        self.outside.0.borrow_mut().account.steps += 1;
        self.outside.0.borrow_mut().check_save(source, payload);
        if times == 0 {
            return Ok(());
        }
        self.inner.save(source, payload)?;
        // Whatever had rotted is written anew.
        self.outside.0.borrow().disk.mend(&checkpoint(source));
        Ok(())
    }

    fn open(&mut self, source: &Source) -> Result<Checkpoint, RenderError> {
        self.inner.open(source)
    }

    fn write_rendered(&mut self, source: &Source, text: &str) -> Result<String, StoreError> {
        self.inner.write_rendered(source, text)
    }

    fn record(&mut self, records: &Records) -> Result<(), StoreError> {
        let times = self.outside.times(Call::Record);
        self.outside.0.borrow_mut().account.steps += 1;
        self.outside.0.borrow_mut().check_record(records);
        if times == 0 {
            return Ok(());
        }
        let mut records = records.clone();
        (self.tamper.record)(&mut records);
        self.inner.record(&records)
    }

    fn collect(&mut self, keep: &BTreeSet<Source>) -> Result<(), StoreError> {
        if self.outside.times(Call::Collect) == 0 {
            return Ok(());
        }
        let mut keep = keep.clone();
        (self.tamper.keep)(&mut keep);
        self.inner.collect(&keep)
    }

    fn swap_state_files(&mut self, files: &StateFiles) -> Result<(), StoreError> {
        self.inner.swap_state_files(files)
    }

    fn append(&mut self, entry: &HistoryEntry) -> Result<u64, StoreError> {
        // What is emitted without that is sent again, after a boot or a reload; what is local never is.
        // What is emitted without that is sent again after a boot or a reload; what is local never is.
        self.outside.0.borrow_mut().account.is_new_event = !entry.local;
        self.inner.append(entry)
    }

    fn history(&mut self) -> Vec<HistoryEntry> {
        self.inner.history()
    }

    fn reported(&mut self, number: u64) {
        self.inner.reported(number);
    }

    fn unreported(&mut self) -> Vec<HistoryEntry> {
        self.inner.unreported()
    }
}

impl ports::Local for Handle {
    fn config(&self) -> Result<Option<(String, String)>, LocalError> {
        Ok(Some((self.0.borrow().local.clone(), "/etc/kubernetes".to_owned())))
    }
    fn drop_ins(&self) -> Vec<String> {
        Vec::new()
    }
    fn kubelet_id(&self) -> KubeletId {
        let mut outside = self.0.borrow_mut();
        // Asked once for each rendering (and at boot, which begins a life), and each is answered
        // by an input: a step.
        outside.account.steps += 1;
        let id = outside.kubelet_id.clone();
        outside.account.note_kubelet(&id);
        KubeletId(id)
    }
    fn default_merge(&self) -> Merge {
        Merge::Replace
    }
}

impl ports::Kubelet for Handle {
    fn start(&mut self, config: Option<&str>) -> Result<u32, SpawnError> {
        let times = self.times(Call::Start);
        let mut outside = self.0.borrow_mut();
        outside.account.steps += 1;
        if outside.disk.is_off() {
            return Err(not_started("power is off"));
        }
        if outside.spawn_failures > 0 {
            outside.spawn_failures -= 1;
            outside.down_since = outside.now; // not for want of trying
            outside.account.note_failed_start(config);
            return Err(not_started("out of memory"));
        }
        let mut pid = 0;
        for _ in 0..times {
            outside.account.tally.check(Law::OneKubelet);
            if outside.process.is_some() {
                outside.account.violate(Law::OneKubelet, "a second kubelet was started".to_owned());
            }
            let source = outside.check_start(config);
            let text = config.map(|path| outside.disk.peek(Path::new(path)).unwrap_or_default());
            let content = Content::of(text.as_ref().unwrap_or(&outside.local));
            pid = outside.begin_process(source, content);
        }
        Ok(pid)
    }

    fn stop(&mut self) {
        for _ in 0..self.times(Call::Stop) {
            let mut outside = self.0.borrow_mut();
            outside.check_stop();
            outside.terminate();
        }
    }

    fn kill(&mut self) {
        for _ in 0..self.times(Call::Kill) {
            self.0.borrow_mut().kill_kubelet();
        }
    }

    fn log_tail(&self) -> Vec<String> {
        self.0.borrow_mut().account.steps += 1;
        Vec::new()
    }
}

impl ports::Preflight for Handle {
    fn judge(&mut self, ticket: u64, candidate: &Rendered) {
        if self.times(Call::Judge) == 0 {
            return;
        }
        let mut outside = self.0.borrow_mut();
        let verdict = match Behaviour::of(&outside.disk.peek(Path::new(&candidate.path)).unwrap_or_default()) {
            Behaviour::Invalid => Verdict::Validate("invalid configuration: behaviour".to_owned()),
            Behaviour::Mute => Verdict::Inconclusive("no words".to_owned()),
            _ => Verdict::Valid(Vec::new()),
        };
        // An earlier run is dropped.
        outside.queue.retain(|_, coming| !matches!(coming, Coming::Verdict(..)));
        let delay = ms(100 + outside.rng.below(900));
        outside.schedule(delay, Coming::Verdict(ticket, verdict));
    }
    fn self_test(&mut self) {}
}

impl ports::Probe for Handle {
    fn probe(&mut self, _target: &HealthzTarget) {
        if self.times(Call::Probe) == 0 {
            return;
        }
        let mut outside = self.0.borrow_mut();
        if let Some(pid) = outside.process.as_ref().map(|process| process.pid) {
            outside.schedule(ms(5), Coming::Probe(pid));
        }
    }
}

impl ports::Cluster for Handle {
    fn watch(&mut self, map: Option<&ConfigMapRef>) {
        if self.times(Call::Watch) == 0 {
            return;
        }
        let mut outside = self.0.borrow_mut();
        outside.watched = map.cloned();
        let delay = ms(5 + outside.rng.below(20));
        outside.deliver(delay, Coming::Map);
    }
    fn publish(&mut self, status: &NodeConfigStatus) {
        if self.times(Call::Publish) > 0 {
            let mut outside = self.0.borrow_mut();
            outside.status = status.clone();
            outside.account.status_is_known = false;
        }
    }
    fn emit(&mut self, entry: &HistoryEntry) {
        self.0.borrow_mut().check_event(entry);
    }
    fn observe_lease(&mut self) {
        self.0.borrow_mut().schedule_answer(Coming::Lease);
    }
    fn observe_pods(&mut self) {
        self.0.borrow_mut().schedule_answer(Coming::Pods);
    }
}

impl Outside {
    /// One answer in forty never comes, and another takes its time.
    fn schedule_answer(&mut self, what: Coming) {
        let delay = match self.rng.below(40) {
            0 => return,
            1 => ms(5 + self.rng.below(4000)),
            _ => ms(5 + self.rng.below(200)),
        };
        self.schedule(delay, what);
    }
}

impl ports::Host for Handle {
    fn observe(&mut self, _runtime: Option<&str>) {
        if self.times(Call::Query) == 0 {
            return;
        }
        let mut outside = self.0.borrow_mut();
        outside.observations.asked = Some(outside.now);
        outside.schedule_answer(Coming::Environment);
    }
}

impl ports::Notifier for Handle {
    fn publish(&mut self, _state: &State) {}
    fn count(&mut self, _counter: &Counter) {}
    fn answer(&mut self, _ticket: u64, result: &Result<String, String>) {
        self.0.borrow_mut().answers.push(result.clone());
    }
    fn ping_watchdog(&mut self) {}
    fn log(&mut self, _level: Level, _line: &str) {}
}

fn not_started(cause: &str) -> SpawnError {
    SpawnError { program: "fork".into(), cause: cause.into() }
}
