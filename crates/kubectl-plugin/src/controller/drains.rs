//! Pods of Nodes that are drained: followed by a watch of each Node's own, and evicted one by one.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use hyper::Request;
use k8s_openapi::api::core::v1 as api;
use kube::api::PostParams;
use kube::core::request::Request as Path;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, OnceCell};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::leader_elector::LeadershipGuard;
use super::nodes::{NodeStore, notified};
use crate::Failure;
use crate::api::client::{ApiError, Client};
use crate::api::list::Selector;
use crate::api::watch::{Event, Watcher};
use crate::fleet::pool::drain::{Drain, NodeDrain, Pod, Pods};
use crate::fleet::pool::draining::DrainDecision;
use crate::fleet::pool::node::PoolNode;
use crate::fleet::pool::types::DrainMode;

/// A drain that cannot be done is tried again after this. What keeps it (a right, a budget) is mended by people, within minutes at
/// best; each try is a list of the Node's Pods, of 50 Nodes of a pool at most. One that took its whole time is let be for as long
/// as it took, so that the Node is open at least half of the time.
const TRY_AGAIN: Duration = Duration::from_secs(300);

/// The Nodes that are drained, or cannot be.
pub(super) struct Drains(Arc<Shared>);

struct Shared {
    client: Client,
    nodes: NodeStore,
    guard: LeadershipGuard,
    changed: Arc<Notify>,
    began: Instant,
    /// By Node.
    drains: Mutex<HashMap<String, OneDrain>>,
    /// `policy/v1`, or what came before it.
    version: OnceCell<String>,
}

struct OneDrain {
    pool: String,
    mode: DrainMode,
    pods: Pods,
    /// Its Pods are evicted.
    evicts: bool,
    /// Since when nothing but its Pods, or its place, is waited for; none before it is cordoned.
    since: Option<Instant>,
    gave_up: Option<String>,
    /// As it was last told.
    told: Drain,
    /// Something was decided.
    wake: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Drop for OneDrain {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Drop for Drains {
    fn drop(&mut self) {
        self.0.drains.lock().clear();
    }
}

impl OneDrain {
    fn lasts(&self) -> Duration {
        self.since.map(|since| since.elapsed()).unwrap_or_default()
    }
}

impl Drains {
    pub(super) fn new(client: &Client, nodes: &NodeStore, guard: &LeadershipGuard) -> Self {
        Self(Arc::new(Shared {
            client: client.clone(),
            nodes: nodes.clone(),
            guard: guard.clone(),
            changed: Arc::default(),
            began: Instant::now(),
            drains: Mutex::default(),
            version: OnceCell::new(),
        }))
    }

    /// Whenever a drain is somewhere else.
    pub(super) fn changes(&self) -> impl Stream<Item = ()> + Send + 'static {
        notified(Arc::clone(&self.0.changed))
    }

    /// How far each is. Once a Node is cordoned its Pods are listed anew; until then nothing is known of them.
    pub(super) fn states(&self, nodes: &BTreeMap<String, PoolNode>) -> BTreeMap<String, NodeDrain> {
        let mut drains = self.0.drains.lock();
        drains.retain(|name, drain| {
            let Some(node) = nodes.get(name) else { return false };
            drain.gave_up.is_some() || !drain.pods.is_outdated(node.cordon(&drain.pool).holds())
        });
        let now = self.0.began.elapsed();
        let state = |drain: &OneDrain| match &drain.gave_up {
            Some(why) => Drain::GaveUp(why.clone()),
            None => drain.pods.state(now),
        };
        let row = |(name, drain): (&String, &OneDrain)| {
            (name.clone(), NodeDrain { state: state(drain), lasts: drain.lasts() })
        };
        drains.iter().map(row).collect()
    }

    /// What was decided for a pool's Nodes.
    pub(super) fn follow(&self, pool: &str, mode: DrainMode, decision: &DrainDecision) {
        // Whoever has both locks took that of the Nodes first.
        let holds = |name: &String| self.0.nodes.cordon_holds(name, pool);
        let wanted: Vec<_> = decision.follow.iter().map(|(name, evicts)| (name, *evicts, holds(name))).collect();
        let mut drains = self.0.drains.lock();
        drains.retain(|name, drain| {
            let is_wanted = decision.follow.contains_key(name) || drain.gave_up.is_some();
            let is_known = decision.give_up.contains_key(name) || is_wanted;
            drain.pool != pool || (drain.mode == mode && is_known)
        });
        for (name, why) in &decision.give_up {
            if let Some(drain) = drains.get_mut(name).filter(|drain| drain.gave_up.is_none()) {
                drain.gave_up = Some(why.clone());
                drain.wake.notify_one();
            }
        }
        for (name, evicts, holds) in wanted {
            let begin = || self.0.begin(name, pool, mode, holds);
            let drain = drains.entry(name.clone()).or_insert_with(begin);
            if drain.evicts != evicts {
                drain.evicts = evicts;
                drain.wake.notify_one();
            }
        }
    }

    /// Forgets those of pools that are no more.
    pub(super) fn retain_pools(&self, is_there: impl Fn(&str) -> bool) {
        self.0.drains.lock().retain(|_, drain| is_there(&drain.pool));
    }
}

enum Next {
    Evict(Pod),
    /// There is nothing to be done, until then at most.
    Wait(Option<Duration>),
    /// It was decided that it took too long.
    GiveUp,
}

impl Shared {
    fn begin(self: &Arc<Self>, name: &str, pool: &str, mode: DrainMode, cordoned: bool) -> OneDrain {
        let wake = Arc::new(Notify::new());
        let task = tokio::spawn(Arc::clone(self).run(name.to_owned(), Arc::clone(&wake)));
        let (pods, since) = (Pods::new(mode, cordoned), cordoned.then(Instant::now));
        let (evicts, gave_up) = (false, None);
        OneDrain { pool: pool.to_owned(), mode, pods, evicts, since, gave_up, told: Drain::Listing, wake, task }
    }

    /// Until it is aborted, or may be tried again.
    async fn run(self: Arc<Self>, name: String, wake: Arc<Notify>) {
        let why = self.drain(&name, &wake).await;
        let mut lasted = Duration::ZERO;
        if let Some(drain) = self.drains.lock().get_mut(&name) {
            lasted = drain.lasts();
            drain.gave_up = drain.gave_up.take().or(why);
        }
        self.changed.notify_one();
        tokio::time::sleep(TRY_AGAIN.max(lasted)).await;
        drop(self.drains.lock().remove(&name));
        self.changed.notify_one();
    }

    /// Why it cannot be done, if that was not decided.
    async fn drain(&self, name: &str, wake: &Notify) -> Option<String> {
        let selector = Selector::default().fields(&format!("spec.nodeName={name}"));
        // An API server in trouble keeps no Node from being drained for longer than that.
        let mut watcher = Watcher::new::<api::Pod>(&self.client.for_reading(), "pods of all namespaces", selector);
        loop {
            match self.next(name) {
                Next::GiveUp => return None,
                Next::Evict(pod) => {
                    if let Err(why) = self.evict(name, &pod).await {
                        return Some(why);
                    }
                }
                Next::Wait(pause) => tokio::select! {
                    event = watcher.next() => match event {
                        Ok(event) => self.observe(name, event),
                        Err(failure) => return Some(format!("{}; the controller's rights to Pods are in packaging/manifests/pools-drain", failure.message)),
                    },
                    () = wake.notified() => {}
                    () = tokio::time::sleep(pause.unwrap_or(TRY_AGAIN)) => {}
                },
            }
            self.tell(name);
        }
    }

    /// Evicts only while the Node has the cordon after which its Pods were listed, and we are the leader.
    fn next(&self, name: &str) -> Next {
        let Some(pool) = self.drains.lock().get(name).map(|drain| drain.pool.clone()) else { return Next::GiveUp };
        let holds = self.nodes.cordon_holds(name, &pool);
        let now = self.began.elapsed();
        let mut drains = self.drains.lock();
        let Some(drain) = drains.get_mut(name).filter(|drain| drain.gave_up.is_none()) else { return Next::GiveUp };
        if drain.pods.is_outdated(holds) || !holds || !drain.evicts || !self.guard.is_leader() {
            return Next::Wait(None);
        }
        match (drain.pods.due(now), drain.pods.state(now)) {
            (Some(pod), _) => Next::Evict(pod.clone()),
            (None, Drain::Going { next, .. }) => Next::Wait(next),
            _ => Next::Wait(None),
        }
    }

    fn observe(&self, name: &str, event: Event) {
        let mut drains = self.drains.lock();
        let Some(OneDrain { pods, .. }) = drains.get_mut(name) else { return };
        match event {
            Event::Init => pods.begin(),
            Event::InitDone => pods.listed(),
            Event::Apply(pod) => pods.observe(&pod),
            Event::Delete(pod) => pods.remove(&pod),
            Event::Interrupted(_) => {}
        }
    }

    /// What is decided by it may be new. When the next Pod is due is of interest here alone.
    fn tell(&self, name: &str) {
        let mut drains = self.drains.lock();
        let Some(drain) = drains.get_mut(name) else { return };
        let mut state = drain.pods.state(self.began.elapsed());
        if let Drain::Going { next, .. } = &mut state {
            *next = None;
        }
        if state != drain.told {
            // While one refused it was not drained, whoever cordoned it.
            if matches!(drain.told, Drain::Refused(_)) {
                drain.since = drain.since.map(|_| Instant::now());
            }
            drain.told = state;
            self.changed.notify_one();
        }
    }

    /// Asks for a Pod's end; why that will never be granted.
    async fn evict(&self, name: &str, pod: &Pod) -> Result<(), String> {
        let result = match self.version.get_or_try_init(|| self.eviction_version()).await {
            // That may have taken a while.
            Ok(_) if !self.guard.is_leader() => return Ok(()),
            Ok(version) => self.ask(pod, version).await,
            Err(error) => Err(error),
        };
        let now = self.began.elapsed();
        let mut drains = self.drains.lock();
        let Some(OneDrain { pods, .. }) = drains.get_mut(name) else { return Ok(()) };
        match result {
            Ok(()) => pods.granted(pod, now),
            // Gone, or another one by now: the watch says which.
            Err(error) if matches!(error.code(), 404 | 409) || is_ending(&error) => pods.granted(pod, now),
            // A disruption budget says no in its own words.
            Err(error) if error.may_pass() => {
                let why = error.status().filter(|status| status.code == 429).map(|status| status.message.clone());
                pods.denied(pod, &why.unwrap_or_else(|| error.cause()), now);
            }
            Err(error) => {
                let rights = "; the controller's rights to Pods are in packaging/manifests/pools-drain";
                let advice = if error.code() == 403 { rights } else { "" };
                let why = Failure::from(error).message;
                return Err(format!("Pod {}/{} cannot be evicted: {why}{advice}", pod.namespace, pod.name));
            }
        }
        Ok(())
    }

    /// As the API server says it: v1 came with Kubernetes 1.22, and v1beta1 went with 1.25.
    async fn eviction_version(&self) -> Result<String, ApiError> {
        let what = "see whether Pods can be evicted";
        let request = Request::get("/api/v1").body(Vec::new()).map_err(kube::core::request::Error::BuildRequest);
        let all = self.client.request(what, request).await?;
        let list = all.get("resources").and_then(Value::as_array).into_iter().flatten();
        let text = |resource: &Value, field: &str| {
            Some(resource.get(field).and_then(Value::as_str).filter(|text| !text.is_empty())?.to_owned())
        };
        let version = list
            .filter(|resource| text(resource, "name").as_deref() == Some("pods/eviction"))
            .find_map(|resource| Some(format!("{}/{}", text(resource, "group")?, text(resource, "version")?)));
        version.ok_or_else(|| ApiError::new(what, "this API server has no pods/eviction"))
    }

    async fn ask(&self, pod: &Pod, version: &str) -> Result<(), ApiError> {
        let Pod { namespace, name, uid } = pod;
        // Of a StatefulSet, the next Pod has the same name, on another node.
        let body = json!({
            "apiVersion": version, "kind": "Eviction", "metadata": {"namespace": namespace, "name": name},
            "deleteOptions": {"preconditions": {"uid": uid}},
        });
        let pods = Path::new(format!("/api/v1/namespaces/{namespace}/pods"));
        let what = format!("create pods/eviction in namespace {namespace}");
        let body = body.to_string().into_bytes();
        let request = pods.create_subresource("eviction", name, &PostParams::default(), body);
        self.client.request(&what, request).await.map(drop)
    }
}

/// Its namespace is being deleted, and so is it.
fn is_ending(error: &ApiError) -> bool {
    let details = error.status().and_then(|status| status.details.as_ref());
    let causes = details.map(|details| details.causes.as_slice()).unwrap_or_default();
    error.code() == 403 && causes.iter().any(|cause| cause.reason == "NamespaceTerminating")
}
