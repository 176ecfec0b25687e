//! Effects to port calls, outcomes back to inputs. The only place that calls ports.

use crate::machine::status::node_status;
use kubelet_config::source::SOURCE_DIR_TITLE;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::machine::events::Event;
use crate::machine::evidence::Query;
use crate::machine::model::{Moment, RenderError, Rendered, StateFiles};
use crate::machine::record::{HistoryEntry, LocalState};
use crate::machine::{Effect, Handover, Input, Level, Purpose, State, Stored};
use crate::ports::{Checkpoint, Local, Ports, ReexecError, Store};
use kubelet_config::flags::KubeletArgs;
use kubelet_config::rendering::{self, Configuration, RenderFault, RenderInput, Text};
use kubelet_config::source::{Merge, Source};
use kubelet_config::status::NodeConfigStatus;

/// The kubelet's `--root-dir` if the command line has none (options.go, v1.20.2).
const DEFAULT_ROOT_DIR: &str = "/var/lib/kubelet";

/// The machine together with its ports.
#[derive(Debug)]
pub struct Executor<P> {
    /// The machine.
    pub state: State,
    /// Its ports.
    pub ports: P,
    args: KubeletArgs,
    dynamic: bool,
    published: Option<NodeConfigStatus>,
    /// The machine wants to be replaced, as soon as nothing is left in the queue.
    pub reexec_due: bool,
}

impl<P: Ports> Executor<P> {
    /// A machine that has not booted. A kubelet without `--kubeconfig` is standalone: native
    /// leaves such a one to its local configuration, and so do we, whatever the store holds.
    pub fn new(state: State, ports: P, args: KubeletArgs) -> Self {
        let dynamic = args.last("kubeconfig").is_some();
        Self { state, ports, args, dynamic, published: None, reexec_due: false }
    }

    /// A standalone kubelet too can have a configuration, from a source directory.
    #[must_use]
    pub fn with_source_dir(mut self, has_one: bool) -> Self {
        self.dynamic |= has_one;
        self
    }

    /// Loads the store and starts the kubelet.
    pub fn boot(&mut self, now: Moment) -> bool {
        let stored = if self.dynamic {
            self.ports.store().load()
        } else {
            Stored { assigned: Ok(None), last_known_good: Ok(None), local_state: Ok(LocalState::default()) }
        };
        let id = self.ports.local().kubelet_id();
        self.send_unreported();
        self.handle(Input::Boot(Box::new(stored), id), now)
    }

    /// Goes on where another supervisor stopped.
    pub fn resume(&mut self, handover: Handover, now: Moment) -> bool {
        if let Some(records) = handover.records() {
            self.ports.store().assume(records);
        }
        self.send_unreported();
        self.handle(Input::Resume(Box::new(handover)), now)
    }

    /// Before any event of ours: the API server's share of the history is a number up to which it
    /// has them all.
    fn send_unreported(&mut self) {
        for entry in self.ports.store().unreported() {
            self.ports.cluster().emit(&entry);
        }
    }

    /// Becomes the installed binary, if a reload is still wanted. Comes back with true only where that is played.
    pub fn reexec(&mut self, now: Moment) -> bool {
        self.reexec_due = false;
        let Some(handover) = self.state.hand_over() else { return false };
        match self.ports.reexec().replace(&handover.encode()) {
            Ok(()) => return true,
            Err(ReexecError::Busy) => {}
            Err(error) => {
                self.handle(Input::ReloadFailed(error.to_string()), now);
            }
        }
        false
    }

    /// Takes an input through to its last effect; false when the supervisor shall end.
    pub fn handle(&mut self, input: Input, now: Moment) -> bool {
        let mut inputs = VecDeque::from([input]);
        let mut go_on = true;
        while let Some(input) = inputs.pop_front() {
            for effect in self.state.step(input, now) {
                go_on &= effect != Effect::Quit;
                inputs.extend(self.run(effect));
            }
        }
        self.ports.notifier().publish(&self.state);
        let status = node_status(&self.state);
        if self.published.as_ref() != Some(&status) {
            self.ports.cluster().publish(&status);
            self.published = Some(status);
        }
        go_on
    }

    fn run(&mut self, effect: Effect) -> Option<Input> {
        match effect {
            Effect::Watch(map) => self.ports.cluster().watch(map.as_ref()),
            Effect::Save(source, payload) => {
                let result = self.ports.store().save(&source, &payload).map_err(|error| error.to_string());
                return Some(Input::Saved(source, result));
            }
            Effect::Render(purpose, source) => return Some(self.render(purpose, source)),
            Effect::Preflight(ticket, candidate) => self.ports.preflight().judge(ticket, &candidate),
            Effect::SelfTest => self.ports.preflight().self_test(),
            Effect::Record(because, records) => {
                let result = self.ports.store().record(&records);
                let result = result.map(|()| records).map_err(|error| error.to_string());
                return Some(Input::Recorded(because, result));
            }
            Effect::Start(config, files) => {
                let root_dir = self.args.last("root-dir").unwrap_or(DEFAULT_ROOT_DIR).to_owned();
                let files = files.map(|files| StateFiles { root_dir, ..files });
                if let Some(Err(why)) = files.map(|files| self.ports.store().swap_state_files(&files)) {
                    // The kubelet may refuse what is there; then the trial says so.
                    self.ports
                        .notifier()
                        .log(Level::Warn, &format!("the kubelet's state files stay as they are: {why}"));
                }
                let started = self.ports.kubelet().start(config.as_deref());
                return Some(Input::Started(started.map_err(|error| error.to_string())));
            }
            Effect::Stop => self.ports.kubelet().stop(),
            Effect::Kill => self.ports.kubelet().kill(),
            Effect::Probe(target) => self.ports.probe().probe(&target),
            Effect::Query(Query::Lease) => self.ports.cluster().observe_lease(),
            Effect::Query(Query::Pods) => self.ports.cluster().observe_pods(),
            Effect::Query(Query::Environment(runtime)) => self.ports.host().observe(runtime.as_deref()),
            Effect::ReadLogTail => return Some(Input::LogTail(self.ports.kubelet().log_tail())),
            Effect::Reported(number) => self.ports.store().reported(number),
            Effect::Answer(ticket, result) => self.ports.notifier().answer(ticket, &result),
            Effect::Collect(keep) => {
                if let Err(why) = self.ports.store().collect(&keep) {
                    self.ports.notifier().log(Level::Warn, &format!("old checkpoints cannot be removed: {why}"));
                }
            }
            Effect::Emit(event) => self.emit(event),
            Effect::Log(level, line) => self.ports.notifier().log(level, &line),
            Effect::Count(counter) => self.ports.notifier().count(&counter),
            Effect::ProveReload(handover) => self.ports.reexec().prove(&handover.encode()),
            Effect::PingWatchdog => self.ports.notifier().ping_watchdog(),
            Effect::Reexec => self.reexec_due = true,
            Effect::Quit => {}
        }
        None
    }

    fn emit(&mut self, event: Event) {
        let level = if event.warning { Level::Warn } else { Level::Info };
        self.ports.notifier().log(level, &format!("{}: {}", event.reason.as_str(), event.message));
        let mut entry = HistoryEntry {
            number: 0,
            nanos: self.state.now().wall_nanos,
            reason: event.reason.as_str().to_owned(),
            warning: event.warning,
            message: event.message,
            source: event.source,
            kubelet: self.state.version.clone().unwrap_or_default(),
            log_tail: event.log_tail,
            local: event.local,
        };
        match self.ports.store().append(&entry) {
            Ok(number) => entry.number = number,
            Err(why) => self.ports.notifier().log(Level::Warn, &format!("the history cannot be written: {why}")),
        }
        if !entry.local {
            self.ports.cluster().emit(&entry);
        }
    }

    fn render(&mut self, purpose: Purpose, source: Option<Source>) -> Input {
        let id = self.ports.local().kubelet_id();
        let result = self.rendered(source.as_ref());
        Input::Rendered(purpose, source, id, result)
    }

    fn rendered(&mut self, source: Option<&Source>) -> Result<Rendered, RenderError> {
        let Some(source) = source else {
            let out = configuration(None, &self.args, self.ports.local())?;
            return Ok(Rendered {
                digest: out.digest,
                path: String::new(),
                healthz: out.healthz,
                notes: out.notes,
                runtime: self.args.runtime_socket(&out.effective),
                effective: Arc::new(out.effective),
                ..Rendered::default()
            });
        };
        let checkpoint = self.ports.store().open(source)?;
        let out = configuration(Some((&checkpoint, source)), &self.args, self.ports.local())?;
        let path = write(self.ports.store(), source, &out)?;
        Ok(Rendered {
            digest: out.digest,
            path,
            healthz: out.healthz,
            notes: out.notes,
            shadowed: out.shadowed,
            runtime: self.args.runtime_socket(&out.effective),
            effective: Arc::new(out.effective),
            annotations: checkpoint.annotations,
        })
    }
}

fn write(store: &mut dyn Store, source: &Source, out: &Configuration) -> Result<String, RenderError> {
    // JSON is YAML to the kubelet, and cannot be misquoted.
    let text = serde_json::to_string_pretty(&out.value).map_err(|error| RenderError::Internal(error.to_string()))?;
    store.write_rendered(source, &text).map_err(|error| RenderError::Internal(error.to_string()))
}

/// Renders a checkpoint, or the local configuration, with the node's own files.
///
/// # Errors
/// [`RenderError`], naming the key or file at fault.
pub fn configuration(
    checkpoint: Option<(&Checkpoint, &Source)>,
    args: &KubeletArgs,
    local: &dyn Local,
) -> Result<Configuration, RenderError> {
    let drop_ins = local.drop_ins();
    let mut merge = local.default_merge();
    let mut payload = None;
    if let Some((checkpoint, source)) = checkpoint {
        let key = &source.reference.kubelet_config_key;
        let Some(text) = checkpoint.files.get(key) else {
            let keys: Vec<&str> = checkpoint.files.keys().map(String::as_str).collect();
            let others = if keys.is_empty() {
                "data is empty; binaryData is not read".to_owned()
            } else {
                format!("keys: {}", keys.join(", "))
            };
            let whose = if source.is_source_dir() {
                format!("{SOURCE_DIR_TITLE} has no file {key:?}")
            } else {
                format!("the ConfigMap has no key {key:?} in its data")
            };
            return Err(RenderError::Load(format!("{whose} ({others})")));
        };
        payload = Some(Text { text, dir: &checkpoint.dir });
        if let Some(mode) = &checkpoint.annotations.merge {
            merge = mode
                .parse::<Merge>()
                .map_err(|why| RenderError::Load(format!("annotation kubelet-supervisor.io/merge: {why}")))?;
        }
    }
    let keys = |key: &str| checkpoint.and_then(|(checkpoint, _)| checkpoint.files.get(key).cloned());
    let with = |local_file: Option<&(String, String)>| {
        let local = local_file.map(|(text, dir)| Text { text, dir });
        rendering::render(&RenderInput { payload, local, merge, keys: &keys, drop_ins: &drop_ins, args })
    };
    let local_file = local.config();
    let fault = match &local_file {
        Ok(local_file) => match with(local_file.as_ref()) {
            Ok(out) => return Ok(out),
            Err(RenderFault::Payload(why)) => return Err(RenderError::Load(why)),
            Err(RenderFault::Local(why)) => why,
        },
        Err(error) => error.to_string(),
    };
    let why = format!("the kubelet's own --config file cannot be used: {fault}");
    if payload.is_none() || merge == Merge::Overlay {
        return Err(RenderError::Internal(why));
    }
    // A payload that replaces the file anyway must not go down with it: that would leave the
    // kubelet with nothing but the broken file.
    let mut out = with(None).map_err(|fault| RenderError::Load(fault.to_string()))?;
    out.notes.push(format!("{why}; its feature gates are left out"));
    Ok(out)
}
