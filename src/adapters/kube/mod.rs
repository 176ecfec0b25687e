//! The API server: watches in, status and events out, looks at Lease and pods.

pub mod credentials;
mod feed;
mod meter;
mod outbox;
mod requests;
mod session;
mod sight;
mod types;

use std::path::PathBuf;
use std::time::Duration;

use kube::client::ClientBuilder;
use kube::config::KubeConfigOptions;
use kube::{Client, Config};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::adapters::metrics::Metrics;
use crate::core::evidence::LeaseSight;
use crate::core::machine::Input;
use crate::core::model::ConfigMapRef;
use crate::core::record::Entry;
use crate::core::report::NodeConfigStatus;
use crate::ports;
use outbox::Outbox;
use session::Session;

/// How often the credential files are looked at. Five small files; no request leaves the node.
const CREDENTIALS_INTERVAL: Duration = Duration::from_secs(15);

/// Where to find the API server and ourselves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The kubelet's `--kubeconfig`.
    pub kubeconfig: PathBuf,
    /// `--node-name`.
    pub node_name: Option<String>,
    /// `--config-namespace`.
    pub config_namespace: String,
    /// The kubelet's `--hostname-override`.
    pub hostname_override: Option<String>,
}

enum Command {
    Watch(Option<ConfigMapRef>),
    Publish(Box<NodeConfigStatus>),
    Emit(Box<Entry>),
    Look(Look),
}

/// A question that has exactly one answer.
#[derive(Clone, Copy, Debug)]
enum Look {
    Lease,
    Pods,
}

impl Look {
    /// The answer without a connection.
    fn in_vain(self, why: &str) -> Input {
        match self {
            Self::Lease => Input::LeaseSeen(LeaseSight::Unreachable(why.to_owned())),
            Self::Pods => Input::PodsSeen(None),
        }
    }
}

/// The port. Commands are taken up by a task of its own, connected or not.
#[derive(Debug)]
pub struct KubeCluster {
    commands: UnboundedSender<Command>,
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Command")
    }
}

impl KubeCluster {
    /// Starts the task.
    #[must_use]
    pub fn start(settings: Settings, inputs: UnboundedSender<Input>, metrics: Metrics) -> Self {
        let (commands, queue) = unbounded_channel();
        tokio::spawn(run(settings, queue, inputs, metrics));
        Self { commands }
    }

    fn send(&self, command: Command) {
        if self.commands.send(command).is_err() {
            // Only after a panic in the task; the kubelet is none the worse for it.
            tracing::error!("the API server task has ended; restart the supervisor when convenient");
        }
    }
}

impl ports::Cluster for KubeCluster {
    fn watch(&mut self, map: Option<&ConfigMapRef>) {
        self.send(Command::Watch(map.cloned()));
    }

    fn publish(&mut self, status: &NodeConfigStatus) {
        self.send(Command::Publish(Box::new(status.clone())));
    }

    fn emit(&mut self, entry: &Entry) {
        self.send(Command::Emit(Box::new(entry.clone())));
    }

    fn look_lease(&mut self) {
        self.send(Command::Look(Look::Lease));
    }

    fn look_pods(&mut self) {
        self.send(Command::Look(Look::Pods));
    }
}

/// A kubelet without an API server: nothing is assigned to it from there, nobody waits for its
/// events, and looks are answered at once.
#[derive(Clone, Debug)]
pub struct Standalone {
    inputs: UnboundedSender<Input>,
}

impl Standalone {
    /// Answers go into the daemon's queue.
    #[must_use]
    pub fn new(inputs: UnboundedSender<Input>) -> Self {
        Self { inputs }
    }

    fn answer(&self, input: Input) {
        let _ = self.inputs.send(input);
    }
}

impl ports::Cluster for Standalone {
    fn watch(&mut self, _: Option<&ConfigMapRef>) {}
    fn publish(&mut self, _: &NodeConfigStatus) {}
    fn emit(&mut self, entry: &Entry) {
        // Nobody is owed it: should the node join a cluster one day, that is not to hear old tales.
        self.answer(Input::Reported(entry.number));
    }
    fn look_lease(&mut self) {
        self.answer(Look::Lease.in_vain("the kubelet is standalone"));
    }
    fn look_pods(&mut self) {
        self.answer(Look::Pods.in_vain("the kubelet is standalone"));
    }
}

async fn run(
    settings: Settings,
    mut commands: UnboundedReceiver<Command>,
    inputs: UnboundedSender<Input>,
    metrics: Metrics,
) {
    let mut outbox = Outbox::default();
    let mut said = String::new();
    let mut rejected = None;
    loop {
        let print = credentials::fingerprint(&settings.kubeconfig);
        // The same credentials are not tried at once after a 401.
        let connecting = async {
            if rejected == Some(print) { Err(None) } else { connect(&settings, &metrics).await.map_err(Some) }
        };
        let Some(connected) = meanwhile(connecting, &mut commands, &inputs, &mut outbox, "connecting").await else {
            return;
        };
        match connected {
            Ok((client, node_name)) => {
                said.clear();
                tracing::info!("reading {}, this is node {node_name}", settings.kubeconfig.display());
                let namespace = settings.config_namespace.clone();
                let mut session = Session::new(client, node_name, namespace, inputs.clone(), &mut outbox);
                if session
                    .run(&mut commands, || credentials::fingerprint(&settings.kubeconfig) != print)
                    .await
                    .is_none()
                {
                    return;
                }
                if credentials::fingerprint(&settings.kubeconfig) == print {
                    rejected = Some(print);
                    tracing::warn!(
                        "the API server does not accept the credentials of {}; waiting for others",
                        settings.kubeconfig.display()
                    );
                }
            }
            Err(why) => {
                if let Some(why) = why.filter(|why| *why != said) {
                    tracing::info!("no credentials yet ({why}); the kubelet runs, its configuration is kept");
                    said = why;
                }
                let (pause, what) = if rejected.is_some() {
                    (CREDENTIALS_INTERVAL, "the credentials were refused")
                } else {
                    (Duration::from_secs(2), "no credentials")
                };
                let pause = tokio::time::sleep(pause);
                if meanwhile(pause, &mut commands, &inputs, &mut outbox, what).await.is_none() {
                    return;
                }
                // A rejection is not for ever: the API server may have been the one in error.
                rejected = None;
            }
        }
    }
}

/// Does something else than a session: commands are noted, looks answered at once. `None` when the
/// supervisor ends.
async fn meanwhile<T>(
    work: impl Future<Output = T>,
    commands: &mut UnboundedReceiver<Command>,
    inputs: &UnboundedSender<Input>,
    outbox: &mut Outbox,
    why: &str,
) -> Option<T> {
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Some(done),
            command = commands.recv() => if let Some(look) = outbox.take(command?) {
                let _ = inputs.send(look.in_vain(why));
            },
        }
    }
}

async fn connect(settings: &Settings, metrics: &Metrics) -> Result<(Client, String), String> {
    let kubeconfig = credentials::read(&settings.kubeconfig)?;
    let identity = credentials::identity(&kubeconfig)?;
    if let Some(not_after) = identity.not_after {
        metrics.certificate_expires(not_after);
        if jiff::Timestamp::now().as_second().cast_unsigned() > not_after {
            tracing::warn!("the client certificate of {} has expired", settings.kubeconfig.display());
        }
    }
    let fallback = || credentials::host_name(settings.hostname_override.as_deref());
    let certified = identity.node_name;
    let node_name = settings.node_name.clone().or_else(|| certified.clone()).unwrap_or_else(fallback);
    if certified.as_ref().is_some_and(|certified| *certified != node_name) {
        tracing::warn!("--node-name {node_name} is not the name in the client certificate");
    }
    let path = settings.kubeconfig.display();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(|error| format!("{path}: {}", credentials::chain(&error)))?;
    config.read_timeout = Some(feed::READ_TIMEOUT);
    config.connect_timeout = Some(Duration::from_secs(10));
    config.default_retry = false; // it hangs a call for minutes; the session retries, and says so
    // An exec plugin is run while the client is built: not on the thread that minds the kubelet.
    let builder = tokio::task::spawn_blocking(move || ClientBuilder::try_from(config))
        .await
        .map_err(|error| error.to_string())?
        .map_err(|error| format!("{path}: {}", credentials::chain(&error)))?;
    Ok((builder.with_layer(&meter::MeterLayer(metrics.clone())).build(), node_name))
}
