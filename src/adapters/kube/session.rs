//! The work with one set of credentials: two watches, the status, the events, queries.

use std::convert::Infallible;
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _, OptionFuture};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use super::backoff::Backoff;
use super::client_layer::ClientSignals;
use super::outbox::Outbox;
use super::types::{ConfigMapView, NodeView};
use super::watch::{ConfigMapWatch, ObjectWatch, WatchEvent};
use super::{decode, requests};
use crate::machine::history::HistoryEntry;
use crate::machine::{Answer, FetchError, Input};
use crate::ports::{ClusterQuery, ClusterRequest};
use kubelet_config::assignment::Assignment;
use kubelet_config::pods::NodeSummary;
use kubelet_config::reported;
use kubelet_config::status::{CONDITION, NodeConfigStatus, PublishedStatus, STATUS_ANNOTATION};

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionEnd {
    /// The API server does not take the credentials any more (401).
    Unauthorized,
    /// The supervisor ends.
    Shutdown,
}

pub(crate) struct Session<'a> {
    pub(crate) client: Client,
    pub(crate) signals: Arc<ClientSignals>,
    pub(crate) node_name: String,
    /// The namespace of labels which name none.
    pub(crate) namespace: String,
    pub(crate) inputs: UnboundedSender<Input>,
    pub(crate) outbox: &'a mut Outbox,
    /// Nothing, before it has begun.
    pub(crate) seen: Seen,
}

/// What a session has seen.
#[derive(Default)]
pub(crate) struct Seen {
    /// What the Node says of us; `None` while there is no Node.
    shown: Option<PublishedStatus>,
    /// A status the server accepted and did not keep.
    dropped: Option<NodeConfigStatus>,
    watch_error: Option<String>,
    /// The condition Ready as it was last sent to the machine.
    ready: Option<Input>,
    /// What the admission of pods looks at, as last seen.
    node: NodeSummary,
}

impl Session<'_> {
    /// Works until the credentials are of no more use, or the supervisor ends.
    pub(crate) async fn run(
        &mut self,
        requests: &mut UnboundedReceiver<ClusterRequest>,
    ) -> Result<Infallible, SessionEnd> {
        let mut node = ObjectWatch::<NodeView>::new(Api::all(self.client.clone()), &self.node_name);
        let _ = self.inputs.send(Input::NodeName(self.node_name.clone()));
        let mut map = self.map_watch();
        let mut status_backoff = Backoff::default();
        let mut event_backoff = Backoff::default();
        let mut patch: InFlight<(NodeConfigStatus, kube::Result<NodeView>)> = None;
        let mut post: InFlight<(HistoryEntry, kube::Result<()>)> = None;
        loop {
            let status = self.due_status();
            let unsent = self.outbox.events.front().cloned();
            tokio::select! {
                // Cancel-safe: recv, next and pass keep their place, and requests in flight
                // are kept across turns.
                request = requests.recv() => {
                    let watch = matches!(request, Some(ClusterRequest::Watch(_)));
                    if let Some(query) = self.outbox.accept(request.ok_or(SessionEnd::Shutdown)?) {
                        self.query(query);
                    }
                    if watch {
                        map = self.map_watch();
                    }
                }
                event = node.next() => self.node_observed(event)?,
                Some(event) = OptionFuture::from(map.as_mut().map(ConfigMapWatch::next)) => self.map_observed(event)?,
                () = status_backoff.elapsed(), if patch.is_none() && status.is_some() => {
                    patch = status.zip(self.seen.shown.as_ref()).map(|(status, shown)| self.patch(status, shown));
                }
                Some((status, result)) = OptionFuture::from(patch.as_mut()) => {
                    patch = None;
                    self.patched(result, status, &mut status_backoff);
                }
                () = event_backoff.elapsed(), if post.is_none() && unsent.is_some() => post = unsent.map(|entry| self.post(entry)),
                Some((event, result)) = OptionFuture::from(post.as_mut()) => {
                    post = None;
                    self.posted(result, &event, &mut event_backoff);
                }
            }
        }
    }

    fn patch(
        &self,
        status: NodeConfigStatus,
        shown: &PublishedStatus,
    ) -> BoxFuture<'static, (NodeConfigStatus, kube::Result<NodeView>)> {
        let now = jiff::Timestamp::now().strftime("%FT%TZ").to_string();
        let request = requests::patch_status(self.client.clone(), self.node_name.clone(), status.patch(shown, &now));
        async move { (status, request.await) }.boxed()
    }

    fn post(&self, entry: HistoryEntry) -> BoxFuture<'static, (HistoryEntry, kube::Result<()>)> {
        let request = requests::post_event(self.client.clone(), self.node_name.clone(), entry.clone());
        async move { (entry, request.await) }.boxed()
    }

    /// Beside the loop, and to its end even if the session ends before: each query has an answer.
    fn query(&self, query: ClusterQuery) {
        let (client, name, inputs) = (self.client.clone(), self.node_name.clone(), self.inputs.clone());
        let (node, signals) = (self.seen.node.clone(), self.signals.clone());
        tokio::spawn(async move {
            let _ = inputs.send(match query {
                ClusterQuery::Lease(ticket) => {
                    Input::Answer(ticket, Answer::LeaseObserved(requests::observe_lease(client, &signals, name).await))
                }
                ClusterQuery::ConfigMap(ticket, map) => {
                    Input::Answer(ticket, Answer::ConfigMapFetched(requests::fetch(client, &signals, map).await))
                }
                ClusterQuery::Pods(ticket) => {
                    Input::Answer(ticket, Answer::PodsObserved(requests::observe_pods(client, name, node).await))
                }
            });
        });
    }

    fn map_watch(&self) -> Option<ConfigMapWatch> {
        let reference = self.outbox.map.as_ref()?;
        Some(ConfigMapWatch::new(Api::namespaced(self.client.clone(), &reference.namespace), &reference.name))
    }

    fn node_observed(&mut self, event: WatchEvent<NodeView>) -> Result<(), SessionEnd> {
        match event {
            WatchEvent::Object(node) => {
                self.recovered();
                self.seen.node = decode::node_summary(&node);
                if let Some(ready) = decode::node_readiness(&node) {
                    send_news(&self.inputs, &mut self.seen.ready, Input::NodeObserved(ready));
                }
                let _ = self.inputs.send(Input::AssignedByLabels(decode::is_by_labels(&node)));
                let _ = self.inputs.send(Input::Node(decode::assignment(&node, &self.namespace)));
                let annotations = decode::node_annotations(&node);
                // A confirmation may be there before the version it is for: it is sent as long as it stands.
                if matches!(annotations, Input::NodeAnnotations { confirm: Some(_), .. }) {
                    self.outbox.annotations = None;
                }
                send_news(&self.inputs, &mut self.outbox.annotations, annotations);
                let (request, answer) = decode::preflight(&node);
                send_news(&self.inputs, &mut self.outbox.preflight, Input::PreflightRequested { request, answer });
                self.seen.shown = Some(decode::published_status(node));
            }
            WatchEvent::Absent => {
                self.recovered();
                self.seen.shown = None;
                tracing::info!("there is no Node {} (yet); its configuration is kept", self.node_name);
                let _ = self.inputs.send(Input::Node(Assignment::Unknown));
            }
            WatchEvent::Failed { why, code } => {
                if code == Some(401) {
                    return Err(SessionEnd::Unauthorized);
                }
                if self.seen.watch_error.is_none() {
                    tracing::warn!("the Node cannot be watched: {why}");
                }
                self.seen.watch_error = Some(why);
            }
        }
        Ok(())
    }

    fn recovered(&mut self) {
        if self.seen.watch_error.take().is_some() {
            tracing::info!("the API server is back");
        }
    }

    fn map_observed(&mut self, event: WatchEvent<ConfigMapView>) -> Result<(), SessionEnd> {
        let input = match event {
            WatchEvent::Object(map) => match decode::fault_of(&map) {
                Some(why) => Input::ConfigMapFailed { why, definite: true },
                None => Input::ConfigMap(Arc::new(decode::payload(map))),
            },
            WatchEvent::Failed { code: Some(401), .. } => return Err(SessionEnd::Unauthorized),
            WatchEvent::Absent => self.map_failed(Some(404), String::new()),
            WatchEvent::Failed { why, code } => self.map_failed(code, why),
        };
        let _ = self.inputs.send(input);
        Ok(())
    }

    fn map_failed(&self, code: Option<u16>, why: String) -> Input {
        let error = self.outbox.map.as_ref().map(|map| decode::config_map_error(map, code, why.clone()));
        let FetchError { why, definite } = error.unwrap_or(FetchError { why, definite: false });
        Input::ConfigMapFailed { why, definite }
    }

    /// The status that the Node does not show yet.
    fn due_status(&self) -> Option<NodeConfigStatus> {
        let (shown, status) = (self.seen.shown.as_ref()?, self.outbox.status.as_ref()?);
        let dropped = self.seen.dropped.as_ref().is_some_and(|dropped| dropped.matches(&json!(status)));
        let published = (dropped || status.matches(&shown.config)) && status.is_annotated(shown);
        (!published || !status.condition.is_published(shown.condition.as_ref())).then(|| status.clone())
    }

    fn posted(&mut self, result: kube::Result<()>, posted: &HistoryEntry, backoff: &mut Backoff) {
        match result {
            Ok(()) => backoff.succeeded(),
            // Refused for good; 401 is about the credentials, which the watches have noticed too.
            Err(kube::Error::Api(refusal)) if refusal.code < 500 && !matches!(refusal.code, 401 | 429) => {
                tracing::warn!("an event was refused: {}", reported::text(&refusal.message));
            }
            Err(_) => return backoff.failed(None),
        }
        self.outbox.remove_sent(posted);
        if posted.number != 0 {
            let _ = self.inputs.send(Input::Reported(posted.number));
        }
    }

    fn patched(&mut self, result: kube::Result<NodeView>, status: NodeConfigStatus, backoff: &mut Backoff) {
        match result {
            Ok(node) => {
                let shown = decode::published_status(node);
                if !status.matches(&shown.config) {
                    if self.seen.dropped.is_none() {
                        tracing::info!(
                            "this API server does not keep Node.status.config (gone since Kubernetes 1.26, off since \
                             1.22): the annotation {STATUS_ANNOTATION} and the condition {CONDITION} have the status"
                        );
                    }
                    self.seen.dropped = Some(status);
                }
                self.seen.shown = Some(shown);
                if self.due_status().is_none() {
                    backoff.succeeded();
                } else {
                    backoff.failed(None); // somebody takes it away, or there is more to say
                }
            }
            Err(error) => {
                if backoff.failures == 2 {
                    tracing::warn!("the Node's status cannot be written, trying on: {}", reported::error_chain(&error));
                }
                backoff.failed(None);
            }
        }
    }
}

/// A request under way, if there is one.
type InFlight<T> = Option<BoxFuture<'static, T>>;

/// Sends what is not the same as it was sent last.
fn send_news(inputs: &UnboundedSender<Input>, last: &mut Option<Input>, input: Input) {
    if last.as_ref() != Some(&input) {
        *last = Some(input.clone());
        let _ = inputs.send(input);
    }
}
