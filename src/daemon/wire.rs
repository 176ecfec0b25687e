//! The only place that names concrete adapters and hands them to the loop.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::exec::Executor;
use super::run;
use super::settings::Settings;
use super::store_worker::{StoreWorker, root_dir};
use crate::adapters::clock::{self, BootClock};
use crate::adapters::file_watch;
use crate::adapters::fsx::RealDisk;
use crate::adapters::host::NodeHost;
use crate::adapters::http::{self, CommandQueue, Endpoints, StatusPage};
use crate::adapters::kube::{KubeCluster, KubeconfigAccess, Standalone};
use crate::adapters::kubelet_process::{KubeletProcess, MonitorLink, StandbyKubelet};
use crate::adapters::local_files::LocalFiles;
use crate::adapters::local_files::source::LocalSource;
use crate::adapters::lock::{self, NotLocked, SharedLock};
use crate::adapters::metrics::Metrics;
use crate::adapters::policy::PolicyFile;
use crate::adapters::preflight::{KubeletPreflight, PreflightCommand};
use crate::adapters::probe::HealthzProbe;
use crate::adapters::store::{FsStore, StoredConfig};
use crate::adapters::store_thread::StoreThread;
use crate::machine::model::KubeletId;
use crate::machine::status as node_status;
use crate::machine::{Counter, Input, Level, State, StoreRequest, limits};
use crate::monitor::wire::{IN_USE, Request, Status};
use crate::ports::{self, KubeletVersion, Local as _};
use kubelet_config::assignment::Assignment;
use kubelet_config::source::ConfigMapRef;

/// Between two heartbeats, at the least.
const BEAT_PAUSE: Duration = Duration::from_secs(5);

/// A kubelet that does not say its version is started without that.
const VERSION_LIMIT: Duration = Duration::from_secs(2);

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

/// Journal, monitor, metrics and status document.
struct NodeNotifier {
    link: MonitorLink,
    /// When the monitor heard of us last.
    beaten: Option<Instant>,
    /// The status line that it was told last.
    shown: String,
    /// How long a ping of ours lasts: until the next one is due, and half as long again.
    lease: Option<Duration>,
    metrics: Metrics,
    endpoints: Endpoints,
    commands: CommandQueue,
    version: KubeletVersion,
}

impl ports::Notifier for NodeNotifier {
    fn publish(&mut self, state: &State) {
        let summary = node_status::summary(state);
        self.metrics.observe(state);
        let version = self.version.get();
        *self.endpoints.page.lock() = StatusPage {
            ready: state.is_ready(),
            status: node_status::status_document(state, version.as_deref()),
            counting: state.trial_ends().map(|_| Instant::now()),
            summary: summary.clone(),
        };
        if self.beaten.is_none_or(|at| at.elapsed() >= BEAT_PAUSE) {
            self.beaten = Some(Instant::now());
            self.link.send(&Request::Beat);
        }
        if self.shown != summary {
            self.link.send(&Request::Show(summary.clone()));
            self.shown = summary;
        }
    }

    fn count(&mut self, counter: &Counter) {
        self.metrics.count(counter);
    }

    fn answer(&mut self, ticket: u64, result: &Result<String, String>) {
        self.commands.answer(ticket, result);
    }

    fn ping_watchdog(&mut self) {
        if let Some(lease) = self.lease {
            self.link.send(&Request::Feed(lease));
        }
    }

    fn log(&mut self, level: Level, line: &str) {
        match level {
            Level::Info => tracing::info!("{line}"),
            Level::Warn => tracing::warn!("{line}"),
        }
    }
}

/// Works until it is told to end; gives the exit code, of which some tell the monitor that it is not to supervise here.
pub(crate) async fn work(settings: Settings) -> anyhow::Result<u8> {
    let link = MonitorLink::take_up().context("`worker` is started by `kubelet-supervisor run` alone")?;
    // Before that another worker has lock, sockets and record.
    let status =
        link.until(|status| status.turn || status.leaving || status.retire).await.context("the monitor has ended")?;
    if !status.turn {
        return Ok(0);
    }
    // This one keeps it until the worker ends.
    let lock = SharedLock::default();
    match lock::hold_within(settings.dir.clone(), limits::LOAD_DEADLINE, lock.clone()).await {
        Ok(()) => {}
        Err(NotLocked::Taken(pid)) => {
            let dir = settings.dir.display();
            tracing::error!(
                "{dir} is in use by another kubelet-supervisor, pid {pid}; stop that one or give --dynamic-config-dir"
            );
            return Ok(IN_USE);
        }
        Err(why) => tracing::warn!("cannot lock the store, going on without for now: {why}"),
    }
    let (mut executor, mut queue) = assemble(settings, lock.clone(), link, &status)?;
    run(&mut executor, &mut queue, &BootClock, status.beginning()).await;
    Ok(0)
}

/// The kubelet's arguments with what is last known good, verified by its checksums. For want of a worker.
pub(crate) fn last_known_good(settings: &Settings) -> Option<Vec<String>> {
    if settings.machine.standalone {
        return None;
    }
    let mut store = FsStore::new(RealDisk::guarded(&settings.dir), &settings.dir);
    let (records, _) = store.load().into_records();
    let version = records.pin.map_or(records.last_known_good, |pin| pin.version)?;
    let StoredConfig { given, overrides, .. } = store.open_config(version.digest.as_ref()?).ok()?;
    Some(settings.args.with(&overrides).for_run(Some(&given.config), &given.config_dir))
}

fn assemble(
    settings: Settings,
    lock: SharedLock,
    link: MonitorLink,
    status: &Status,
) -> anyhow::Result<(Executor<RealPorts>, UnboundedReceiver<Input>)> {
    let (inputs, queue) = unbounded_channel();
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

    let version = KubeletVersion::kept_in(&settings.dir.join("supervisor/preflight"));
    let preflight = PreflightCommand {
        program: settings.program.clone(),
        args: settings.args.clone(),
        dir: settings.dir.join("supervisor/preflight"),
    };
    let standby = StandbyKubelet::new(link.clone(), settings.program.clone(), settings.args.clone());
    let standby = settings.standby.then_some(standby);
    let ports = RealPorts {
        store: store(&settings, preflight.clone(), version.clone(), inputs.clone(), metrics.clone())?,
        kubelet: KubeletProcess::start(link.clone(), settings.args.clone(), standby.clone(), inputs.clone(), status),
        preflight: KubeletPreflight::new(preflight, inputs.clone(), metrics.clone(), version.clone(), standby),
        probe: HealthzProbe::new(inputs.clone()),
        host: NodeHost::new(root_dir(&settings.args).into(), settings.dir.clone(), inputs.clone()),
        cluster: cluster(&settings, inputs, &metrics),
        notifier: NodeNotifier {
            link,
            beaten: None,
            shown: String::new(),
            lease: settings.machine.watchdog.map(|interval| interval * 3 / 4),
            metrics,
            endpoints,
            commands,
            version,
        },
    };
    Ok((Executor::new(State::new(settings.machine), ports), queue))
}

fn local_files(settings: &Settings, version: KubeletVersion) -> LocalFiles {
    // Labels may name what an option names, unless the policy says which.
    let default_source = settings.machine.default_source.as_ref().filter(|source| !source.is_local_files());
    let default_source = default_source.map(|source| source.namespace.clone());
    let label_namespaces = [settings.config_namespace.clone()].into_iter().chain(default_source).collect();
    LocalFiles {
        program: settings.program.clone(),
        args: settings.args.clone(),
        merge: settings.merge,
        policy: PolicyFile { path: settings.policy.clone(), label_namespaces },
        followed: settings.machine.follow_local,
        version,
    }
}

/// The store and the local files, on a thread of their own.
fn store(
    settings: &Settings,
    command: PreflightCommand,
    version: KubeletVersion,
    inputs: UnboundedSender<Input>,
    metrics: Metrics,
) -> anyhow::Result<StoreThread> {
    let local = local_files(settings, version);
    let files = FsStore::new(RealDisk::guarded(&settings.dir), &settings.dir);
    let mut worker = StoreWorker::new(files, local.clone(), settings.args.clone());
    worker.standalone = settings.machine.standalone;
    let (runtime, mut asked) = (Handle::current(), None);
    let serve = move |request: StoreRequest| {
        if matches!(request, StoreRequest::Load(..)) {
            know_version(&local, &command, &mut asked, &runtime);
        }
        let (operation, begun) = (request.operation(), Instant::now());
        let answers = worker.serve(request);
        metrics.store_took(operation, begun.elapsed());
        answers
    };
    StoreThread::start(serve, inputs).context("cannot start the store's thread")
}

/// Has this kubelet binary asked for its version before a load; where it does not answer, once. The same
/// configuration means something else in another version, and two that were read for different versions cannot be compared.
fn know_version(local: &LocalFiles, command: &PreflightCommand, asked: &mut Option<KubeletId>, runtime: &Handle) {
    let id = local.kubelet_id();
    if asked.as_ref() == Some(&id) || local.kubelet_minor().is_some() {
        return;
    }
    let _timers = runtime.enter();
    let _ = runtime.block_on(tokio::time::timeout(VERSION_LIMIT, command.know_version(&local.version)));
    *asked = Some(id);
}

/// Takes operators' commands, and has the store locked: a verb that finds no socket writes to the store itself, if no supervisor
/// has it locked. A lock or socket that cannot be had now, as on a disk that is full or read-only, is tried again.
fn serve_commands(settings: &Settings, endpoints: &Endpoints, commands: &CommandQueue, lock: SharedLock) {
    let (dir, endpoints, commands) = (settings.dir.clone(), endpoints.clone(), commands.clone());
    let socket = dir.join("supervisor/control.sock");
    // They lie on a disk that may stall; the kubelet does not wait for it.
    tokio::spawn(async move {
        let (mut is_served, mut told) = (false, String::new());
        loop {
            let locked = lock::hold(dir.clone(), lock.clone()).await;
            // The socket that is there may be that of the supervisor that has the store.
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
    Box::new(LocalSource::new(local_files(settings, KubeletVersion::default()), inputs, cluster))
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
    let access = KubeconfigAccess {
        kubeconfig: std::path::absolute(kubeconfig).unwrap_or_else(|_| kubeconfig.into()),
        node_name: settings.node_name.clone(),
        hostname_override: settings.args.last("hostname-override").map(str::to_owned),
        metrics: metrics.clone(),
    };
    Box::new(KubeCluster::start(access, settings.config_namespace.clone(), inputs, metrics.clone()))
}
