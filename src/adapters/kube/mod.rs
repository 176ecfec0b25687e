//! The API server: watches in, status and events out, looks at Lease and pods.

mod access;
mod client_layer;
mod credentials;
mod decode;
mod feed;
mod identity;
mod outbox;
mod plugin;
mod proxy;
mod requests;
mod session;
mod types;

use kubelet_config::duration;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

use crate::adapters::metrics::Metrics;
use crate::machine::Input;
use crate::machine::evidence::LeaseObservation;
use crate::machine::record::Entry;
use crate::ports;
pub use access::{Access, Connected, KubeconfigAccess};
pub use client_layer::{AuthFailureSignal, ClientLayer};
pub use credentials::Fingerprint;
use kubelet_config::source::ConfigMapRef;
use kubelet_config::status::NodeConfigStatus;
use outbox::Outbox;
use session::{End, Session};

/// How often the credential files are looked at while all is well; at once when a request fails. Five small files; no
/// request leaves the node.
const LOOK_INTERVAL: Duration = Duration::from_secs(15);

/// And while there are none that can be used.
const LOOK_SOON: Duration = Duration::from_secs(2);

/// After a second refusal in a row; doubled each time.
const REFUSAL_PAUSE: Duration = Duration::from_secs(15);

/// The longest wait for credentials that are refused, or for a plugin that fails, to become better by themselves.
const PAUSE_MAX: Duration = Duration::from_secs(120);

/// A session that lasted this long was accepted: a refusal after it is a first one.
const REFUSAL_FORGOTTEN: Duration = Duration::from_secs(60);

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
            Self::Lease => Input::LeaseObserved(LeaseObservation::Unreachable(why.to_owned())),
            Self::Pods => Input::PodsObserved(None),
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
        let namespace = settings.config_namespace.clone();
        Self::start_with(KubeconfigAccess::new(settings, metrics.clone()), namespace, inputs, metrics)
    }

    /// The same with clients from elsewhere; `namespace` is that of labels which name none.
    #[must_use]
    pub fn start_with(
        access: impl Access,
        namespace: String,
        inputs: UnboundedSender<Input>,
        metrics: Metrics,
    ) -> Self {
        let (commands, queue) = unbounded_channel();
        tokio::spawn(run(access, namespace, queue, inputs, metrics));
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

    fn observe_lease(&mut self) {
        self.send(Command::Look(Look::Lease));
    }

    fn observe_pods(&mut self) {
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
    fn observe_lease(&mut self) {
        self.answer(Look::Lease.in_vain("the kubelet is standalone"));
    }
    fn observe_pods(&mut self) {
        self.answer(Look::Pods.in_vain("the kubelet is standalone"));
    }
}

/// One session after the other, for as long as the supervisor runs.
async fn run(
    access: impl Access,
    namespace: String,
    mut commands: UnboundedReceiver<Command>,
    inputs: UnboundedSender<Input>,
    metrics: Metrics,
) {
    let mut outbox = Outbox::default();
    let mut search = Search { access, metrics, said: String::new(), noticed: Vec::new() };
    let mut refusals = Refusals::default();
    let mut next = None;
    loop {
        let (connected, alarm) = match next.take() {
            Some(next) => next,
            None => match meanwhile(
                search.find("no credentials yet"),
                &mut commands,
                &inputs,
                &mut outbox,
                "no credentials",
            )
            .await
            {
                Some(found) => found,
                None => return,
            },
        };
        tracing::info!("reading {}, this is node {}", connected.origin, connected.node_name);
        let Connected { client, print, origin, node_name, renew_at, .. } = connected;
        let began = Instant::now();
        let mut session = Session::new(client, node_name, namespace.clone(), inputs.clone(), &mut outbox);
        // A session that is dropped takes its watches and its connections along; what was not answered yet is still in
        // the outbox.
        let replaced = tokio::select! {
            end = session.run(&mut commands) => match end {
                None => return,
                Some(End::Credentials) => None,
            },
            replaced = search.successor(print, renew_at, &alarm) => replaced,
        };
        drop(session);
        let changed = match &replaced {
            Some(_) => true,
            None => match meanwhile(search.access.print(), &mut commands, &inputs, &mut outbox, REFUSED).await {
                Some(found) => found != print,
                None => return,
            },
        };
        if changed {
            tracing::info!("the credentials have changed, connecting anew");
            next = replaced;
            continue;
        }
        let pause = refusals.pause(began.elapsed());
        if !pause.is_zero() {
            search.say(format!("the API server does not accept the credentials of {origin} (401); waiting for others"));
            let wait = search.other(print, feed::jittered(pause));
            if meanwhile(wait, &mut commands, &inputs, &mut outbox, REFUSED).await.is_none() {
                return;
            }
        }
    }
}

/// The answer to a look meanwhile.
const REFUSED: &str = "the credentials were refused";

/// How long to wait with credentials that were refused: not at all at first, as a plugin may have others, and the
/// refusal may have been the API server's own fault; then longer and longer, unless the files change.
#[derive(Debug, Default)]
struct Refusals(u32);

impl Refusals {
    fn pause(&mut self, lasted: Duration) -> Duration {
        if lasted >= REFUSAL_FORGOTTEN {
            self.0 = 0;
        }
        self.0 = self.0.saturating_add(1);
        match self.0 {
            1 => Duration::ZERO,
            count => duration::backoff(REFUSAL_PAUSE, PAUSE_MAX, count - 2),
        }
    }
}

/// Looks for credentials.
struct Search<A> {
    access: A,
    metrics: Metrics,
    /// What was said last of why there are none.
    said: String,
    /// What was said last of those there are.
    noticed: Vec<String>,
}

impl<A: Access> Search<A> {
    /// Tries until there is a client. `without` is how things stand until then.
    async fn find(&mut self, without: &str) -> (Connected, Arc<AuthFailureSignal>) {
        let mut failures = 0;
        loop {
            let print = self.access.print().await;
            let layer = ClientLayer::new(self.metrics.clone());
            let alarm = layer.alarm();
            match self.access.connect(layer).await {
                Ok(connected) => {
                    for notice in connected.notices.iter().filter(|notice| !self.noticed.contains(notice)) {
                        tracing::warn!("{notice}");
                    }
                    self.noticed.clone_from(&connected.notices);
                    return (connected, alarm);
                }
                Err(why) => {
                    self.say(format!("{without} ({why}); the kubelet runs, its configuration is kept"));
                    let changed = self.other(print, duration::backoff(LOOK_SOON, PAUSE_MAX, failures)).await;
                    failures = if changed { 0 } else { failures.saturating_add(1) };
                }
            }
        }
    }

    /// Waits for the end of these credentials: others are there and usable, or these are refused (`None`). What cannot
    /// be used, because it is half-written for instance, ends nothing.
    async fn successor(
        &mut self,
        print: Fingerprint,
        renew_at: Option<Instant>,
        alarm: &AuthFailureSignal,
    ) -> Option<(Connected, Arc<AuthFailureSignal>)> {
        loop {
            let renewal = async {
                match renew_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let due = tokio::select! {
                () = tokio::time::sleep(LOOK_INTERVAL) => {
                    self.said.clear(); // this is another story now
                    false
                }
                () = alarm.rung() => false,
                () = renewal => true,
            };
            if due || self.access.print().await != print {
                return Some(self.find("the new credentials cannot be used yet, those before are kept").await);
            }
            if alarm.is_refused() {
                return None;
            }
        }
    }

    /// Waits for other credentials than these, but not for ever. True if they are there.
    async fn other(&self, print: Fingerprint, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        while Instant::now() < end {
            tokio::time::sleep_until(end.min(Instant::now() + LOOK_SOON)).await;
            if self.access.print().await != print {
                return true;
            }
        }
        false
    }

    fn say(&mut self, why: String) {
        if why != self.said {
            tracing::info!("{why}");
            self.said = why;
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
