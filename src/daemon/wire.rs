//! The only place that names concrete adapters and hands them to the loop.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::sys::signal::Signal;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::exec::Executor;
use super::failopen::{self, KubeletControl, run_guarded};
use super::settings::Settings;
use super::store_worker::StoreWorker;
use super::{Signals, Start};
use crate::adapters::clock::{self, BootClock};
use crate::adapters::file_watch;
use crate::adapters::fsx::GuardedDisk;
use crate::adapters::host::NodeHost;
use crate::adapters::http::{self, CommandQueue, Endpoints};
use crate::adapters::kube::{self, KubeCluster, Standalone};
use crate::adapters::kubelet_process::{KubeletProcess, ReadySignal, RunCommand, StandbyKubelet};
use crate::adapters::local_files::LocalFiles;
use crate::adapters::local_files::source::LocalSource;
use crate::adapters::lock::{self, NotLocked, SharedLock};
use crate::adapters::metrics::Metrics;
use crate::adapters::notify_socket::NotifySocket;
use crate::adapters::policy::PolicyFile;
use crate::adapters::preflight::{KubeletPreflight, PreflightCommand};
use crate::adapters::probe::HealthzProbe;
use crate::adapters::process::{self, ChildPid};
use crate::adapters::reexec::{InheritedState, SelfExec, ServiceState, SharedListener, StartMode};
use crate::adapters::source_dir::{self, SourceDir};
use crate::adapters::stderr_relay::StderrRelay;
use crate::adapters::store::FsStore;
use crate::adapters::store_thread::StoreThread;
use crate::adapters::systemd::Systemd;
use crate::machine::status as node_status;
use crate::machine::{Counter, Input, Level, State, StoreRequest, Ticket, limits};
use crate::ports;
use kubelet_config::assignment::Assignment;
use kubelet_config::source::ConfigMapRef;

/// Between attempts to have the control socket: each costs some system calls.
const SOCKET_RETRY: Duration = Duration::from_secs(5);

/// The supervisor's ports, all real.
struct RealPorts {
    store: StoreThread,
    kubelet: KubeletProcess,
    preflight: KubeletPreflight,
    probe: HealthzProbe,
    host: NodeHost,
    cluster: Box<dyn ports::Cluster>,
    notifier: NodeNotifier,
    self_exec: SelfExec,
}

impl ports::Ports for RealPorts {
    fn store(&mut self) -> &mut dyn ports::Store {
        &mut self.store
    }
    fn kubelet(&mut self) -> &mut dyn ports::Kubelet {
        &mut self.kubelet
    }
    fn preflight(&mut self) -> &mut dyn ports::Preflight {
        &mut self.preflight
    }
    fn probe(&mut self) -> &mut dyn ports::Probe {
        &mut self.probe
    }
    fn host(&mut self) -> &mut dyn ports::Host {
        &mut self.host
    }
    fn cluster(&mut self) -> &mut dyn ports::Cluster {
        self.cluster.as_mut()
    }
    fn notifier(&mut self) -> &mut dyn ports::Notifier {
        &mut self.notifier
    }
    fn reexec(&mut self) -> &mut dyn ports::Reexec {
        self
    }
}

impl ports::Reexec for RealPorts {
    fn prove(&mut self, ticket: Ticket, document: &str) {
        self.self_exec.prove(ticket, document, self.kubelet.pid.get());
    }
    fn replace(&mut self, document: &str) -> Result<(), ports::ReexecError> {
        let systemd = &self.notifier.systemd;
        let version = self.notifier.version.lock().ok().and_then(|version| version.clone());
        let service = ServiceState { ready: systemd.is_ready(), version };
        self.self_exec.replace(document, &self.kubelet, service, |begins| systemd.reloading(begins))
    }
}

/// Journal, systemd, metrics and status document.
struct NodeNotifier {
    systemd: Systemd,
    metrics: Metrics,
    endpoints: Endpoints,
    commands: CommandQueue,
    version: Arc<Mutex<Option<String>>>,
}

impl ports::Notifier for NodeNotifier {
    fn publish(&mut self, state: &State) {
        let summary = node_status::summary(state);
        self.metrics.observe(state);
        let version = self.version.lock().ok().and_then(|version| version.clone());
        if let Ok(mut page) = self.endpoints.page.write() {
            page.ready = state.is_ready();
            page.status = node_status::status_document(state, version.as_deref());
            page.counting = state.is_counting().then(Instant::now);
            page.summary.clone_from(&summary);
        }
        self.systemd.update(state.is_ready(), state.is_leaving(), summary);
    }

    fn count(&mut self, counter: &Counter) {
        self.metrics.count(counter);
    }

    fn answer(&mut self, ticket: u64, result: &Result<String, String>) {
        self.commands.answer(ticket, result);
    }

    fn ping_watchdog(&mut self) {
        Systemd::ping_watchdog();
    }

    fn log(&mut self, level: Level, line: &str) {
        match level {
            Level::Info => tracing::info!("{line}"),
            Level::Warn => tracing::warn!("{line}"),
        }
    }
}

/// Runs the supervisor; gives its exit code.
pub(crate) async fn supervise(settings: Settings, start_mode: StartMode) -> anyhow::Result<u8> {
    let mut inherited = match start_mode {
        StartMode::Reexec(inherited) => Some(*inherited),
        StartMode::Fresh => None,
        StartMode::ReexecFailed(why) => {
            tracing::error!("the reload failed ({why}): the kubelet was stopped, and is started again");
            None
        }
    };
    let lock = SharedLock::default();
    match inherited.as_mut().and_then(|inherited| inherited.lock.take()) {
        Some(file) => drop(lock.set(file)),
        None => locked(&settings, &lock, inherited.is_some()).await?,
    }
    let (program, args) = (settings.program.clone(), settings.args.clone());
    let kubelet = inherited.as_ref().map(|inherited| inherited.pid);
    let why = match catch_unwind(AssertUnwindSafe(|| assemble(settings, inherited, lock))) {
        Ok(Ok(mut all)) => {
            let Daemon { executor, start, queue, signals, child } = &mut all;
            let start = std::mem::replace(start, Start::Boot);
            return Ok(
                run_guarded(executor, start, queue, signals, &BootClock, &SupervisedKubelet(child.clone())).await
            );
        }
        Ok(Err(error)) => format!("{error:#}"),
        Err(panic) => failopen::panic_message(panic.as_ref()),
    };
    tracing::error!("the supervisor cannot begin: {why}; the kubelet runs without it, with its own arguments");
    if let Some(pid) = kubelet {
        process::end_child(pid, limits::STOP_GRACE); // never two of them
    }
    let error = process::exec_kubelet(&program, &args);
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}

/// With a kubelet in hand it goes on whoever has the lock: that kubelet is not given up.
async fn locked(settings: &Settings, lock: &SharedLock, has_kubelet: bool) -> anyhow::Result<()> {
    match lock::hold_within(settings.dir.clone(), limits::LOAD_DEADLINE, lock.clone()).await {
        Ok(()) => {}
        Err(NotLocked::Taken(pid)) if !has_kubelet => anyhow::bail!(
            "{} is in use by another kubelet-supervisor, pid {pid}; stop that one or give --dynamic-config-dir",
            settings.dir.display()
        ),
        Err(why) => tracing::warn!("cannot lock the store, going on without for now: {why}"),
    }
    Ok(())
}

/// All that the loop needs.
struct Daemon {
    executor: Executor<RealPorts>,
    start: Start,
    queue: UnboundedReceiver<Input>,
    signals: Signals,
    child: ChildPid,
}

fn assemble(settings: Settings, inherited: Option<InheritedState>, lock: SharedLock) -> anyhow::Result<Daemon> {
    let (inputs, queue) = unbounded_channel();
    let child = ChildPid::default();
    let signals = Signals::register().context("cannot register signal handlers")?;
    let (mut inherited, mut notify) = (inherited, None);
    if let Some(inherited) = &mut inherited {
        notify = inherited.notify.take();
    }
    let (notify, ready) = notify_socket(&settings, notify, inherited.is_some(), &child, &inputs);
    let self_exec =
        SelfExec { notify, lock: lock.clone(), listener: SharedListener::default(), inputs: inputs.clone() };

    let metrics = Metrics::new();
    let endpoints = Endpoints::new(metrics.clone());
    let commands = CommandQueue::new(inputs.clone());
    if let Some(address) = settings.metrics {
        let before = inherited.as_mut().and_then(|inherited| inherited.listener.take());
        http::serve_tcp(address, before, endpoints.clone(), self_exec.listener.clone());
    }
    serve_commands(&settings, &endpoints, &commands, lock);
    file_watch::store(&settings.dir, inputs.clone());
    file_watch::local_files(&settings.args, inputs.clone());
    file_watch::policy(&settings.policy, inputs.clone());
    clock::watch(inputs.clone());

    let known = inherited.as_ref().and_then(|inherited| inherited.service.version.clone());
    let version = Arc::new(Mutex::new(known));
    let preflight = PreflightCommand {
        program: settings.program.clone(),
        args: settings.args.clone(),
        dir: settings.dir.join("supervisor/preflight"),
    };
    let run = RunCommand {
        program: settings.program.clone(),
        args: settings.args.clone(),
        ready,
        watchdog: settings.machine.watchdog.unwrap_or(limits::WATCHDOG_INTERVAL),
    };
    let standby = settings.standby.then(|| StandbyKubelet::new(run.clone()));
    let mut ports = RealPorts {
        store: store(&settings, inputs.clone(), metrics.clone())?,
        kubelet: KubeletProcess {
            run,
            standby: standby.clone(),
            pid: child.clone(),
            inputs: inputs.clone(),
            relays: Vec::new(),
        },
        preflight: KubeletPreflight::new(
            preflight,
            inputs.clone(),
            metrics.clone(),
            version.clone(),
            settings.kubelet_versions_dir.clone(),
            standby,
        ),
        probe: HealthzProbe::new(inputs.clone()),
        host: NodeHost::new(root_dir(&settings), settings.dir.clone(), inputs.clone()),
        cluster: cluster(&settings, inputs, &metrics),
        notifier: NodeNotifier { systemd: Systemd::default(), metrics, endpoints, commands, version },
        self_exec,
    };
    let start = match inherited {
        Some(inherited) => ports.take_over(inherited)?,
        None => Start::Boot,
    };
    let executor = Executor::new(State::new(settings.machine), ports);
    Ok(Daemon { executor, start, queue, signals, child })
}

/// Listens for the kubelet's READY=1, on the socket of the supervisor before us if it had one: that is the one its kubelet
/// knows. Gives what a reload hands over, and how a kubelet is known to be up.
fn notify_socket(
    settings: &Settings,
    inherited: Option<(OwnedFd, String)>,
    reloaded: bool,
    child: &ChildPid,
    inputs: &UnboundedSender<Input>,
) -> (Option<(OwnedFd, String)>, ReadySignal) {
    let socket = match inherited {
        Some((fd, name)) => NotifySocket::adopt(fd, name),
        None if reloaded => Err(std::io::Error::other("the supervisor before had none")),
        None => NotifySocket::bind(),
    };
    match socket {
        Ok(socket) => {
            let name = socket.name.clone();
            let shared = socket.share().ok().map(|fd| (fd, name.clone()));
            tokio::spawn(socket.listen(child.clone(), inputs.clone()));
            (shared, ReadySignal::Socket(name))
        }
        Err(error) => {
            let time = READY_AFTER.min(settings.machine.start_timeout / 2);
            tracing::warn!(
                "no socket for the kubelet's READY=1 and WATCHDOG=1 until the supervisor starts anew: it counts as ready \
                 after {} s: {error}",
                time.as_secs()
            );
            (None, ReadySignal::RunsFor(time))
        }
    }
}

/// Where no READY=1 can come. A kubelet needs 6 s at the most (v1.20.2, on a node without Docker); one that is not well by
/// then is told from one that is by the other signals.
const READY_AFTER: Duration = Duration::from_secs(30);

fn local_files(settings: &Settings) -> LocalFiles {
    LocalFiles {
        program: settings.program.clone(),
        args: settings.args.clone(),
        merge: settings.merge,
        policy: policy_file(settings),
    }
}

/// The store and the local files, on a thread of their own.
fn store(settings: &Settings, inputs: UnboundedSender<Input>, metrics: Metrics) -> anyhow::Result<StoreThread> {
    let local = local_files(settings);
    let files = FsStore::new(GuardedDisk::new(&settings.dir), &settings.dir);
    let mut worker = StoreWorker::new(files, local, settings.args.clone()).standalone(settings.machine.standalone);
    let serve = move |request: StoreRequest| {
        let (operation, begun) = (request.operation(), Instant::now());
        let answers = worker.serve(request);
        if let Some(operation) = operation {
            metrics.store_took(operation, begun.elapsed());
        }
        answers
    };
    StoreThread::start(serve, inputs).context("cannot start the store's thread")
}

impl RealPorts {
    /// Takes over the kubelet of the supervisor before us.
    fn take_over(&mut self, inherited: InheritedState) -> anyhow::Result<Start> {
        let mut last_lines = None;
        for (fd, log_tail) in inherited.relays {
            match StderrRelay::adopt(fd, &log_tail) {
                Ok((relay, ended)) => {
                    self.kubelet.relays.push(relay);
                    last_lines = Some(ended);
                }
                // Without a reader it would stand still sooner or later.
                Err(error) => anyhow::bail!("the kubelet's output cannot be read: {error}"),
            }
        }
        self.kubelet.adopt(inherited.pid, last_lines).context("the kubelet's end could not be noticed")?;
        self.notifier.systemd = Systemd::resumed(inherited.service.ready);
        if inherited.service.version.is_none() {
            ports::Preflight::self_test(&mut self.preflight); // its answer was on its way
        }
        Ok(Start::Resume(Box::new(inherited.handover)))
    }
}

/// The kubelet process and systemd, past all ports.
struct SupervisedKubelet(ChildPid);

impl KubeletControl for SupervisedKubelet {
    fn is_alive(&self) -> bool {
        self.0.get().is_some()
    }
    fn is_stopping(&self) -> bool {
        self.0.is_stopping()
    }
    fn signal(&self, signal: Signal) {
        self.0.signal(signal);
    }
    fn ready(&self) {
        Systemd::notify_ready();
    }
    fn status(&self, text: &str) {
        Systemd::notify_status(text);
    }
    fn ping_watchdog(&self) {
        if Systemd::watchdog().is_some() {
            Systemd::ping_watchdog();
        }
    }
}

/// Labels may name what an option names, unless the policy says which.
fn policy_file(settings: &Settings) -> PolicyFile {
    let default_source = settings.machine.default_source.as_ref().map(|source| source.namespace.clone());
    PolicyFile {
        path: settings.policy.clone(),
        label_namespaces: [settings.config_namespace.clone()].into_iter().chain(default_source).collect(),
        source_dir: settings.source.is_some(),
    }
}

/// The kubelet's.
fn root_dir(settings: &Settings) -> std::path::PathBuf {
    settings.args.last("root-dir").unwrap_or("/var/lib/kubelet").into()
}

/// Takes operators' commands, and has the store locked: a verb that finds no socket writes to a store that nobody has locked. What
/// is not to be had now, such as on a disk that is full or read-only, is tried again.
fn serve_commands(settings: &Settings, endpoints: &Endpoints, commands: &CommandQueue, lock: SharedLock) {
    let (dir, endpoints, commands) = (settings.dir.clone(), endpoints.clone(), commands.clone());
    let socket = dir.join("supervisor/control.sock");
    // They lie on a disk that may stall; the kubelet does not wait for it.
    tokio::spawn(async move {
        let (mut is_served, mut told) = (false, String::new());
        loop {
            let locked = lock::hold(dir.clone(), lock.clone()).await;
            // A socket there may be that of whoever has the store.
            let served = match &locked {
                Err(NotLocked::Taken(_)) => Ok(()),
                _ if is_served => Ok(()),
                _ => http::serve_unix(socket.clone(), endpoints.clone(), commands.clone())
                    .await
                    .map(|()| is_served = true),
            };
            let why = match (served, locked) {
                (Ok(()), Ok(())) => break,
                (Err(error), _) => format!("{}: {error}", socket.display()),
                (_, Err(why)) => format!("{}: {why}", dir.display()),
            };
            if why != told {
                let lacks = if is_served { "the store is not locked" } else { "operators' commands cannot be taken" };
                tracing::warn!("{lacks}: {why}; it is tried again");
                told = why;
            }
            tokio::time::sleep(SOCKET_RETRY).await;
        }
        if !told.is_empty() {
            tracing::info!("operators' commands are taken on {}", socket.display());
        }
    });
}

fn cluster(settings: &Settings, inputs: UnboundedSender<Input>, metrics: &Metrics) -> Box<dyn ports::Cluster> {
    let follows = settings.machine.default_source.as_ref().is_some_and(ConfigMapRef::is_local_files);
    let all = inputs.clone();
    let cluster: Box<dyn ports::Cluster> = match &settings.source {
        None => api_server(settings, inputs, metrics),
        Some((dir, key)) => {
            let cluster = api_server(settings, source_dir::without_assignments(inputs.clone()), metrics);
            Box::new(SourceDir::start(dir.clone(), key, inputs, cluster))
        }
    };
    if !follows {
        return cluster;
    }
    if settings.args.last("kubeconfig").is_none() && settings.source.is_none() {
        let _ = all.send(Input::Node(Assignment::Local)); // there is nobody to say so
    }
    Box::new(LocalSource::new(local_files(settings), all, cluster))
}

fn api_server(settings: &Settings, inputs: UnboundedSender<Input>, metrics: &Metrics) -> Box<dyn ports::Cluster> {
    let Some(kubeconfig) = settings.args.last("kubeconfig") else {
        if settings.machine.standalone {
            tracing::info!(
                "the kubelet has no --kubeconfig: it is standalone and supervised as it is, without dynamic configuration; --source-dir or --follow-local would give it one"
            );
        }
        return Box::new(Standalone::new(inputs));
    };
    let kube = kube::Settings {
        kubeconfig: std::path::absolute(kubeconfig).unwrap_or_else(|_| kubeconfig.into()),
        node_name: settings.node_name.clone(),
        hostname_override: settings.args.last("hostname-override").map(str::to_owned),
    };
    Box::new(KubeCluster::start(kube, settings.config_namespace.clone(), inputs, metrics.clone()))
}
