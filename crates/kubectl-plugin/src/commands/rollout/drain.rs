//! Pods of nodes that are drained: followed, and evicted one by one, by whoever holds the lock.

use std::collections::HashMap;

use hyper::Request;
use kube::api::PostParams;
use kube::core::request::Request as Path;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::client::RolloutClient;
use super::fleet::Fleet;
use crate::Failure;
use crate::api::client::ApiError;
use crate::api::list::Selector;
use crate::api::watch::{Event, Watcher};
use crate::fleet::rollout::Record;
use crate::fleet::rollout::decide::{gives_up, is_drained};
use crate::fleet::rollout::drain::{Drain, Draining, Pod, Pods};

/// What is not yet read of all nodes' Pods; more makes their watches wait.
const QUEUE: usize = 64;

/// A node's Pods. Dropping it ends their watch.
struct DrainedNode {
    number: u64,
    pods: Pods,
    task: JoinHandle<()>,
}

impl Drop for DrainedNode {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What is new, of which place's Pods, and of which look at them.
pub(crate) struct PodEvent {
    index: usize,
    number: u64,
    news: Event,
}

/// The nodes that are drained now: never more than may be unavailable.
pub(crate) struct Drains {
    api: RolloutClient,
    draining: Option<Draining>,
    all: HashMap<usize, DrainedNode>,
    begun: Instant,
    number: u64,
    /// `policy/v1`, or what came before it.
    version: Option<String>,
    sender: mpsc::Sender<PodEvent>,
    pub(crate) news: mpsc::Receiver<PodEvent>,
}

impl Drains {
    pub(crate) fn new(api: &RolloutClient, draining: Option<Draining>) -> Self {
        let (sender, news) = mpsc::channel(QUEUE);
        let (all, begun) = (HashMap::new(), Instant::now());
        Self { api: api.clone(), draining, all, begun, number: 0, version: None, sender, news }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.draining.is_some()
    }

    /// Follows a node's Pods from now on.
    pub(crate) fn follow(&mut self, index: usize, fleet: &mut Fleet) {
        let (Some(draining), Some(member)) = (self.draining, fleet.members.get(index)) else { return };
        let selector = Selector::fields(format!("spec.nodeName={}", member.name));
        let mut feed = Watcher::new(&self.api.api, "/api/v1/pods", "pods of all namespaces", selector, None);
        self.number += 1;
        let (sender, number) = (self.sender.clone(), self.number);
        let task = tokio::spawn(async move {
            while let Some(news) = feed.events.recv().await {
                if sender.send(PodEvent { index, number, news }).await.is_err() {
                    return;
                }
            }
        });
        let cordoned = fleet.observed.get(index).is_some_and(|node| node.cordon.holds());
        self.all.insert(index, DrainedNode { number, pods: Pods::new(draining, cordoned), task });
        fleet.drained(index, Drain::Listing);
    }

    pub(crate) fn on_event(&mut self, PodEvent { index, number, news }: PodEvent) -> Result<(), Failure> {
        let Some(one) = self.all.get_mut(&index).filter(|one| one.number == number) else { return Ok(()) };
        match news {
            Event::Init => one.pods.begin(),
            Event::InitDone(_) => one.pods.listed(),
            Event::Apply(pod) => one.pods.observe(&pod),
            Event::Delete(pod) => one.pods.remove(&pod),
            Event::Interrupted(_) => {}
            Event::Failed(failure) => return Err(failure),
        }
        Ok(())
    }

    /// Tells the fleet how far each is, and follows no longer what nobody has to know.
    pub(crate) fn refresh(&mut self, record: &Record, fleet: &mut Fleet) {
        let now = self.begun.elapsed();
        self.all.retain(|index, one| {
            let node = fleet.observed.get(*index).filter(|node| is_drained(record, node));
            // Once it is cordoned its Pods are listed anew; until then nothing is known of them.
            if node.is_none_or(|node| one.pods.is_outdated(node.cordon.holds())) {
                fleet.drained(*index, Drain::Idle);
                return false;
            }
            fleet.drained(*index, one.pods.state(now));
            if let Some(why) = fleet.observed.get(*index).and_then(|node| gives_up(record, node)) {
                fleet.drained(*index, Drain::GaveUp(why));
                return false;
            }
            true
        });
    }

    /// Evicts the next Pod of a node. Its name, if that was granted.
    pub(crate) async fn evict(&mut self, index: usize) -> Result<Option<String>, Failure> {
        let now = self.begun.elapsed();
        let Some(pod) = self.all.get(&index).and_then(|one| one.pods.due(now)).cloned() else { return Ok(None) };
        let version = self.version().await?;
        let result = self.ask(&pod, &version).await;
        let now = self.begun.elapsed();
        let Some(DrainedNode { pods, .. }) = self.all.get_mut(&index) else { return Ok(None) };
        Ok(match result {
            EvictionResult::Granted => {
                pods.granted(&pod, now);
                Some(format!("{}/{}", pod.namespace, pod.name))
            }
            EvictionResult::Later(why) => {
                pods.denied(&pod, &why, now);
                None
            }
            EvictionResult::Never(why) => {
                pods.refused(&pod, &why);
                None
            }
        })
    }

    /// As the API server says it: v1 came with Kubernetes 1.22, and v1beta1 went with 1.25.
    async fn version(&mut self) -> Result<String, Failure> {
        if let Some(version) = &self.version {
            return Ok(version.clone());
        }
        let request = Request::get("/api/v1").body(Vec::new()).map_err(kube::core::request::Error::BuildRequest);
        let what = "see whether Pods can be evicted";
        let Some(all) = self.api.api.optional(what, request).await? else {
            return Err(Failure::new(format!("{what}: what answers is no Kubernetes API server")));
        };
        let list = all.get("resources").and_then(Value::as_array).into_iter().flatten();
        let text = |resource: &Value, field: &str| {
            Some(resource.get(field).and_then(Value::as_str).filter(|text| !text.is_empty())?.to_owned())
        };
        let eviction = list
            .filter(|resource| text(resource, "name").as_deref() == Some("pods/eviction"))
            .find_map(|resource| Some(format!("{}/{}", text(resource, "group")?, text(resource, "version")?)));
        let version = eviction.ok_or_else(|| {
            Failure::new("this API server evicts no Pods (it has no pods/eviction): --drain is not possible")
        })?;
        Ok(self.version.insert(version).clone())
    }

    async fn ask(&self, pod: &Pod, version: &str) -> EvictionResult {
        let Pod { namespace, name, uid } = pod;
        // Of a StatefulSet, the next Pod has the same name, on another node.
        let body = json!({
            "apiVersion": version, "kind": "Eviction", "metadata": {"namespace": namespace, "name": name},
            "deleteOptions": {"preconditions": {"uid": uid}},
        });
        let pods = Path::new(format!("/api/v1/namespaces/{namespace}/pods"));
        let body = body.to_string().into_bytes();
        let what = format!("create pods/eviction in namespace {namespace}");
        let request = pods.create_subresource("eviction", name, &PostParams::default(), body);
        match self.api.api.once(&what, request).await {
            Ok(_) => EvictionResult::Granted,
            // Gone, or another one by now: the watch says which.
            Err(error) if matches!(error.code(), 404 | 409) || is_ending(&error) => EvictionResult::Granted,
            Err(error) => match error.status().filter(|status| status.code == 429) {
                Some(status) => EvictionResult::Later(status.message.clone()),
                None if error.may_pass() => EvictionResult::Later(error.cause()),
                None => EvictionResult::Never(format!("cannot be evicted: {}", Failure::from(error).message)),
            },
        }
    }
}

/// Its namespace is being deleted, and so is it.
fn is_ending(error: &ApiError) -> bool {
    let details = error.status().and_then(|status| status.details.as_ref());
    let causes = details.map(|details| details.causes.as_slice()).unwrap_or_default();
    error.code() == 403 && causes.iter().any(|cause| cause.reason == "NamespaceTerminating")
}

enum EvictionResult {
    Granted,
    Later(String),
    Never(String),
}
