//! The API server: watches in, status and events out, looks at Lease and pods.

mod access;
mod client_layer;
mod credentials;
mod decode;
mod identity;
mod outbox;
mod plugin;
mod proxy;
mod requests;
mod session;
mod types;
mod watch;

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
use session::{Session, SessionEnd};

/// How often the credential files are looked at while all is well; at once when a request fails. Five small files; no
/// request leaves the node.
const CHECK_INTERVAL: Duration = Duration::from_secs(15);

/// And while there are none that can be used.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

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
    Query(Query),
}

/// A question that has exactly one answer.
#[derive(Clone, Copy, Debug)]
enum Query {
    Lease,
    Pods,
}

impl Query {
    /// The answer without a connection.
    fn without_answer(self, why: &str) -> Input {
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
        self.send(Command::Query(Query::Lease));
    }

    fn observe_pods(&mut self) {
        self.send(Command::Query(Query::Pods));
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
        self.answer(Query::Lease.without_answer("the kubelet is standalone"));
    }
    fn observe_pods(&mut self) {
        self.answer(Query::Pods.without_answer("the kubelet is standalone"));
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
    let mut search = CredentialSearch { access, metrics, last_logged: String::new(), last_notices: Vec::new() };
    let mut refusals = Refusals::default();
    let mut next = None;
    loop {
        let (connected, auth_failure) = match next.take() {
            Some(next) => next,
            None => match without_session(
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
        let Connected { client, fingerprint, origin, node_name, renew_at, .. } = connected;
        let started = Instant::now();
        let mut session = Session::new(client, node_name, namespace.clone(), inputs.clone(), &mut outbox);
        // A session that is dropped takes its watches and its connections along; what was not answered yet is still in
        // the outbox.
        let replacement = tokio::select! {
            end = session.run(&mut commands) => match end {
                None => return,
                Some(SessionEnd::Credentials) => None,
            },
            replacement = search.replacement(fingerprint, renew_at, &auth_failure) => replacement,
        };
        drop(session);
        let changed = match &replacement {
            Some(_) => true,
            None => {
                match without_session(search.access.fingerprint(), &mut commands, &inputs, &mut outbox, REFUSED).await {
                    Some(found) => found != fingerprint,
                    None => return,
                }
            }
        };
        if changed {
            tracing::info!("the credentials have changed, connecting anew");
            next = replacement;
            continue;
        }
        let pause = refusals.pause(started.elapsed());
        if !pause.is_zero() {
            search.log_once(format!(
                "the API server does not accept the credentials of {origin} (401); waiting for others"
            ));
            let wait = search.wait_for_change(fingerprint, watch::jittered(pause));
            if without_session(wait, &mut commands, &inputs, &mut outbox, REFUSED).await.is_none() {
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
struct CredentialSearch<A> {
    access: A,
    metrics: Metrics,
    /// What was said last of why there are none.
    last_logged: String,
    /// What was said last of those there are.
    last_notices: Vec<String>,
}

impl<A: Access> CredentialSearch<A> {
    /// Tries until there is a client. `without` is how things stand until then.
    async fn find(&mut self, without: &str) -> (Connected, Arc<AuthFailureSignal>) {
        let mut failures = 0;
        loop {
            let fingerprint = self.access.fingerprint().await;
            let layer = ClientLayer::new(self.metrics.clone());
            let auth_failure = layer.auth_failure();
            match self.access.connect(layer).await {
                Ok(connected) => {
                    for notice in connected.notices.iter().filter(|notice| !self.last_notices.contains(notice)) {
                        tracing::warn!("{notice}");
                    }
                    self.last_notices.clone_from(&connected.notices);
                    return (connected, auth_failure);
                }
                Err(why) => {
                    self.log_once(format!("{without} ({why}); the kubelet runs, its configuration is kept"));
                    let changed =
                        self.wait_for_change(fingerprint, duration::backoff(RETRY_INTERVAL, PAUSE_MAX, failures)).await;
                    failures = if changed { 0 } else { failures.saturating_add(1) };
                }
            }
        }
    }

    /// Waits for the end of these credentials: others are there and usable, or these are refused (`None`). What cannot
    /// be used, because it is half-written for instance, ends nothing.
    async fn replacement(
        &mut self,
        fingerprint: Fingerprint,
        renew_at: Option<Instant>,
        auth_failure: &AuthFailureSignal,
    ) -> Option<(Connected, Arc<AuthFailureSignal>)> {
        loop {
            let renewal = async {
                match renew_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let due = tokio::select! {
                () = tokio::time::sleep(CHECK_INTERVAL) => {
                    self.last_logged.clear(); // this is another story now
                    false
                }
                () = auth_failure.raised() => false,
                () = renewal => true,
            };
            if due || self.access.fingerprint().await != fingerprint {
                return Some(self.find("the new credentials cannot be used yet, those before are kept").await);
            }
            if auth_failure.is_refused() {
                return None;
            }
        }
    }

    /// Waits for other credentials than these, but not for ever. True if they are there.
    async fn wait_for_change(&self, fingerprint: Fingerprint, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        while Instant::now() < end {
            tokio::time::sleep_until(end.min(Instant::now() + RETRY_INTERVAL)).await;
            if self.access.fingerprint().await != fingerprint {
                return true;
            }
        }
        false
    }

    fn log_once(&mut self, why: String) {
        if why != self.last_logged {
            tracing::info!("{why}");
            self.last_logged = why;
        }
    }
}

/// Does something else than a session: commands are noted, looks answered at once. `None` when the
/// supervisor ends.
async fn without_session<T>(
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
            command = commands.recv() => if let Some(query) = outbox.accept(command?) {
                let _ = inputs.send(query.without_answer(why));
            },
        }
    }
}
