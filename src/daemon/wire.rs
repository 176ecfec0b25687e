//! The only place that names concrete adapters and hands them to the loop.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::sys::signal::Signal;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::Signals;
use super::exec::Executor;
use super::failopen::{self, KubeletControl, run_guarded};
use super::settings::Settings;
use super::store_worker::StoreWorker;
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
use crate::adapters::store::FsStore;
use crate::adapters::store_thread::StoreThread;
use crate::adapters::systemd::Systemd;
use crate::machine::status as node_status;
use crate::machine::{Counter, Input, Level, State, StoreRequest, limits};
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
pub(crate) async fn supervise(settings: Settings) -> anyhow::Result<u8> {
    // This one keeps it until the supervisor ends.
    let lock = SharedLock::default();
    locked(&settings, &lock).await?;
    let (program, args) = (settings.program.clone(), settings.args.clone());
    let why = match catch_unwind(AssertUnwindSafe(|| assemble(settings, lock.clone()))) {
        Ok(Ok(mut all)) => {
            let Daemon { executor, queue, signals, child } = &mut all;
            return Ok(run_guarded(executor, queue, signals, &BootClock, &SupervisedKubelet(child.clone())).await);
        }
        Ok(Err(error)) => format!("{error:#}"),
        Err(panic) => failopen::panic_message(panic.as_ref()),
    };
    tracing::error!("the supervisor cannot begin: {why}; the kubelet runs without it, with its own arguments");
    let error = process::exec_kubelet(&program, &args);
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}

async fn locked(settings: &Settings, lock: &SharedLock) -> anyhow::Result<()> {
    match lock::hold_within(settings.dir.clone(), limits::LOAD_DEADLINE, lock.clone()).await {
        Ok(()) => {}
        Err(NotLocked::Taken(pid)) => anyhow::bail!(
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
    queue: UnboundedReceiver<Input>,
    signals: Signals,
    child: ChildPid,
}

fn assemble(settings: Settings, lock: SharedLock) -> anyhow::Result<Daemon> {
    let (inputs, queue) = unbounded_channel();
    let child = ChildPid::default();
    let signals = Signals::register().context("cannot register signal handlers")?;
    let ready = notify_socket(&settings, &child, &inputs);

    let metrics = Metrics::new();
    let endpoints = Endpoints::new(metrics.clone());
    let commands = CommandQueue::new(inputs.clone());
    if let Some(address) = settings.metrics {
        http::serve_tcp(address, endpoints.clone());
    }
    serve_commands(&settings, &endpoints, &commands, lock);
    file_watch::store(&settings.dir, inputs.clone());
    file_watch::local_files(&settings.args, inputs.clone());
    file_watch::policy(&settings.policy, inputs.clone());
    clock::watch(inputs.clone());

    let version = Arc::new(Mutex::new(None));
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
    let ports = RealPorts {
        store: store(&settings, inputs.clone(), metrics.clone())?,
        kubelet: KubeletProcess {
            run,
            standby: standby.clone(),
            pid: child.clone(),
            inputs: inputs.clone(),
            relays: Vec::new(),
        },
        preflight: KubeletPreflight::new(preflight, inputs.clone(), metrics.clone(), version.clone(), standby),
        probe: HealthzProbe::new(inputs.clone()),
        host: NodeHost::new(root_dir(&settings), settings.dir.clone(), inputs.clone()),
        cluster: cluster(&settings, inputs, &metrics),
        notifier: NodeNotifier { systemd: Systemd::default(), metrics, endpoints, commands, version },
    };
    let executor = Executor::new(State::new(settings.machine), ports);
    Ok(Daemon { executor, queue, signals, child })
}

/// Listens for the kubelet's READY=1. Gives how a kubelet is known to be up.
fn notify_socket(settings: &Settings, child: &ChildPid, inputs: &UnboundedSender<Input>) -> ReadySignal {
    match NotifySocket::bind() {
        Ok(socket) => {
            let name = socket.name.clone();
            tokio::spawn(socket.listen(child.clone(), inputs.clone()));
            ReadySignal::Socket(name)
        }
        Err(error) => {
            let time = READY_AFTER.min(settings.machine.start_timeout / 2);
            tracing::warn!(
                "no socket for the kubelet's READY=1 and WATCHDOG=1 until the supervisor starts anew: it counts as ready \
                 after {} s: {error}",
                time.as_secs()
            );
            ReadySignal::RunsFor(time)
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
        followed: settings.machine.follow_local,
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
        metrics.store_took(operation, begun.elapsed());
        answers
    };
    StoreThread::start(serve, inputs).context("cannot start the store's thread")
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
    let default_source = settings.machine.default_source.as_ref().filter(|source| !source.is_local_files());
    let default_source = default_source.map(|source| source.namespace.clone());
    PolicyFile {
        path: settings.policy.clone(),
        label_namespaces: [settings.config_namespace.clone()].into_iter().chain(default_source).collect(),
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
    let cluster = api_server(settings, inputs.clone(), metrics);
    if !follows {
        return cluster;
    }
    if settings.args.last("kubeconfig").is_none() {
        let _ = inputs.send(Input::Node(Assignment::Local)); // there is nobody to say so
    }
    Box::new(LocalSource::new(local_files(settings), inputs, cluster))
}

fn api_server(settings: &Settings, inputs: UnboundedSender<Input>, metrics: &Metrics) -> Box<dyn ports::Cluster> {
    let Some(kubeconfig) = settings.args.last("kubeconfig") else {
        if settings.machine.standalone {
            tracing::info!(
                "the kubelet has no --kubeconfig: it is standalone and supervised as it is, without dynamic configuration; --follow-local would give it one"
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
