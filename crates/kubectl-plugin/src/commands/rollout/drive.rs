//! Driving a rollout: news in, one step at a time out.

use std::future::Future;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::client::RolloutClient;
use super::drain::Drains;
use super::fleet::Fleet;
use super::lock::Lock;
use super::progress_reporter::ProgressReporter;
use crate::Failure;
use crate::api::client::ApiError;
use crate::api::list::Selector;
use crate::api::watch::{Event, Watcher};
use crate::api::write::{AssignmentWriter, Goal, Mode, Target, patch_node};
use crate::fleet::assign::{self, WrittenAssignment};
use crate::fleet::node::NodeRow;
use crate::fleet::rollout::decide::{Step, decide};
use crate::fleet::rollout::drain::Cordon;
use crate::fleet::rollout::member::Member;
use crate::fleet::rollout::observed::Assigned;
use crate::fleet::rollout::record::{decode, map_name};
use crate::fleet::rollout::{BadVersion, LABEL, Phase, Record};
use kubelet_config::source::ConfigMapRef;

/// An hour; for waits without an end.
const LONG: Duration = Duration::from_secs(3600);
/// Two carriers, a contradiction to remove, and as many troubles.
const PATCHES: u32 = 6;
/// After a write that somebody undid.
const PAUSE: Duration = Duration::from_millis(500);

/// How a client came to its end.
pub(crate) enum Outcome {
    /// The rollout is where this client can do nothing more; nodes that it leaves cordoned.
    Ended(Record, Vec<String>),
    /// This client was told to stop.
    Interrupted,
}

pub(crate) struct Drive {
    pub(crate) api: RolloutClient,
    pub(crate) lock: Lock,
    pub(crate) fleet: Fleet,
    /// The version of the list by which the fleet is known, if it is.
    pub(crate) from: Option<String>,
    pub(crate) writer: AssignmentWriter,
    pub(crate) reporter: ProgressReporter,
    /// What other rollouts say of the same version, until it is in the record.
    pub(crate) others_bad: Vec<BadVersion>,
    /// All of them were heard once.
    pub(crate) others_listed: bool,
    pub(crate) drains: Drains,
}

impl Drive {
    /// Until the rollout, or this client, has come to an end. The lock is given back.
    ///
    /// # Errors
    /// A right that is missing, an API server that stays away, or a lock that is lost. The rollout
    /// stands where it is.
    pub(crate) async fn run(mut self, stop: impl Future<Output = ()>) -> Result<Outcome, Failure> {
        // Wherever it is interrupted, the next client goes on from there.
        let result = tokio::select! {
            result = self.until_end() => result,
            () = stop => Ok(Outcome::Interrupted),
        };
        self.reporter.end();
        // If it is not ours any more, this does nothing; if nobody answers, others have to wait for the lock.
        let _ = self.api.clone().in_time(self.lock.release()).await;
        result
    }

    async fn until_end(&mut self) -> Result<Outcome, Failure> {
        let mut nodes = self.fleet.feed(&self.api, self.from.take());
        // Others' too: what a node of theirs calls bad is not sent to ours.
        let selector = Selector::labels(LABEL.to_owned());
        let mut record = Watcher::new(&self.api.api, &self.api.config_maps().url_path, "ConfigMaps", selector, None);
        loop {
            self.fleet.follow_record(&self.lock.stored.name, &self.lock.stored.record);
            while let Ok(news) = nodes.events.try_recv() {
                self.fleet.on_event(news)?;
            }
            while let Ok(news) = record.events.try_recv() {
                self.on_record_event(news)?;
            }
            if self.lock.due() <= Instant::now() {
                self.lock.renew().await?;
            }
            if let Some(index) = self.fleet.unsure() {
                if let Some(feed) = self.fleet.find_unselected(&self.api, index).await? {
                    nodes = feed;
                    self.reporter.note(&outside(&self.fleet, index, &self.lock.stored.record));
                }
                continue;
            }
            while let Ok(news) = self.drains.news.try_recv() {
                self.drains.on_event(news)?;
            }
            self.fleet.update_clocks();
            self.drains.refresh(&self.lock.stored.record, &mut self.fleet);
            let stored = &self.lock.stored;
            self.reporter.progress(&stored.name, &stored.record, &self.fleet);
            let next = if let Some(with_bad) = with_bad(&stored.record, &mut self.others_bad) {
                Step::Record(Box::new(with_bad))
            } else if self.fleet.is_known && self.others_listed {
                decide(&stored.record, &self.fleet.members, &self.fleet.observed)
            } else if stored.record.options.drain.is_some()
                || matches!(stored.record.phase, Phase::Running | Phase::Paused | Phase::Reverting)
            {
                Step::Wait(None)
            } else {
                Step::End
            };
            match next {
                Step::Record(record) => self.lock.save(*record).await?,
                Step::FollowPods(index) => self.drains.follow(index, &mut self.fleet),
                Step::Send(_) | Step::Restore(_) | Step::Cordon(_) | Step::Uncordon(_) | Step::Evict(_) => {
                    if self.lock.is_fresh() {
                        self.act(next).await?;
                    } else {
                        self.lock.renew().await?;
                    }
                }
                Step::End => return Ok(Outcome::Ended(self.lock.stored.record.clone(), self.fleet.cordoned())),
                Step::Wait(time) => {
                    let time = time.into_iter().chain(self.reporter.redraw()).min();
                    let until =
                        self.lock.due().min(Instant::now() + time.unwrap_or(LONG).max(Duration::from_millis(1)));
                    tokio::select! {
                        Some(news) = nodes.events.recv() => self.fleet.on_event(news)?,
                        Some(news) = record.events.recv() => self.on_record_event(news)?,
                        Some(news) = self.drains.news.recv() => self.drains.on_event(news)?,
                        () = tokio::time::sleep_until(until) => {}
                    }
                }
            }
        }
    }

    fn on_record_event(&mut self, news: Event) -> Result<(), Failure> {
        let own = map_name(&self.lock.stored.name);
        let is_own = |map: &Value| map.pointer("/metadata/name").and_then(Value::as_str) == Some(&own);
        match news {
            Event::Apply(map) if is_own(&map) => self.lock.on_event(&map),
            Event::Apply(map) => {
                // One that another version of this program wrote is none of our business.
                if let Ok((name, other, _)) = decode(&map) {
                    self.others_bad.extend(other.own_bad_versions(&name, &self.lock.stored.record.target));
                }
                Ok(())
            }
            Event::Delete(map) if is_own(&map) => {
                let name = &self.lock.stored.name;
                Err(Failure::new(format!("the ConfigMap {own} was deleted: rollout {name} is no more")))
            }
            Event::Failed(failure) => Err(failure),
            Event::InitDone(_) => {
                self.others_listed = true;
                Ok(())
            }
            Event::Delete(_) | Event::Init | Event::Interrupted(_) => Ok(()),
        }
    }

    /// Does to a node, or to one of its Pods, what was decided.
    async fn act(&mut self, step: Step) -> Result<(), Failure> {
        match step {
            Step::Send(index) => self.assign(index, true).await,
            Step::Restore(index) => self.assign(index, false).await,
            Step::Cordon(index) => self.cordon(index, true).await,
            Step::Uncordon(index) => self.cordon(index, false).await,
            Step::Evict(index) => {
                if let Some(pod) = self.drains.evict(index).await? {
                    self.reporter.action(&format!("pod/{pod} evicted from {}", self.fleet.name(index)));
                }
                Ok(())
            }
            Step::Record(_) | Step::FollowPods(_) | Step::Wait(_) | Step::End => Ok(()),
        }
    }

    /// Cordons a node, or takes the cordon away, if the Node is still the one that was seen.
    async fn cordon(&mut self, index: usize, on: bool) -> Result<(), Failure> {
        let name = self.fleet.name(index).to_owned();
        let patch = Cordon::patch(on.then_some(&self.lock.stored.name), self.fleet.version(index));
        match self.api.api.once(&format!("patch node {name}"), patch_node(&name, &patch, false)).await {
            Ok(node) => {
                self.fleet.observe(&node);
                let cordon = self.fleet.observed.get(index).map(|node| node.cordon);
                if cordon.is_some_and(|it| if on { it.holds() } else { !matches!(it, Cordon::Ours | Cordon::Stale) }) {
                    self.reporter.action(&format!("node/{name} {}", if on { "cordoned" } else { "uncordoned" }));
                } else {
                    // Somebody, a webhook say, undoes it: not to be fought as fast as the API server answers.
                    tokio::time::sleep(PAUSE).await;
                }
            }
            Err(error) => self.fleet.after_failed_write(&self.api, index, error).await?,
        }
        Ok(())
    }

    /// Assigns, or gives back, if the Node is still the one that was seen.
    async fn assign(&mut self, index: usize, forward: bool) -> Result<(), Failure> {
        let Some(member) = self.fleet.members.get(index).cloned() else { return Ok(()) };
        let reference = self.lock.stored.record.target.reference.clone();
        let goal = if forward { Goal::Assign(Some(&reference)) } else { Goal::Restore(&member.before) };
        self.fleet.before_write(index);
        let Self { api, lock, fleet, reporter, writer, .. } = self;
        let name = &member.name;
        let mut node = FollowedNode { api, lock, fleet, reporter, index, forward, is_written: false };
        writer.write(&api.api, name, goal, &mut node, PATCHES).await.map_err(|error| error.into_failure(name))
    }
}

/// A Node of the rollout while it is written to. What is written holds for the Node as it was seen.
struct FollowedNode<'a> {
    api: &'a RolloutClient,
    lock: &'a Lock,
    fleet: &'a mut Fleet,
    reporter: &'a ProgressReporter,
    index: usize,
    forward: bool,
    is_written: bool,
}

impl Target for FollowedNode<'_> {
    fn current(&self) -> Option<(WrittenAssignment, String)> {
        let now = || (self.fleet.written(self.index), self.fleet.version(self.index).to_owned());
        self.lock.is_fresh().then(now)
    }

    fn answered(&mut self, node: &Value, _: Mode) -> WrittenAssignment {
        self.fleet.observe(node);
        if !self.is_written {
            self.reporter.assigned(&self.lock.stored, self.fleet.name(self.index), self.forward);
        }
        self.is_written = true;
        self.fleet.written(self.index)
    }

    fn planned(&mut self, _: &Value) {}

    async fn failed(&mut self, error: ApiError) -> Result<bool, Failure> {
        self.fleet.after_failed_write(self.api, self.index, error).await?;
        // What is left to do is to take away what says the same; but not from what somebody else wrote.
        Ok(self.is_written && self.fleet.assigned(self.index) == Some(Assigned::Target))
    }
}

/// Said once: from then on there is no selection.
fn outside(fleet: &Fleet, index: usize, record: &Record) -> String {
    let name = fleet.name(index);
    format!(
        "note: node {name} no longer has the labels {:?}, and is this rollout's own all the same: all nodes of the cluster are \
         followed from now on",
        record.selector
    )
}

/// The record with what other rollouts say, if that is news; what is in it already goes.
fn with_bad(record: &Record, others_bad: &mut Vec<BadVersion>) -> Option<Record> {
    if others_bad.is_empty() {
        return None;
    }
    let mut with_bad = record.clone();
    others_bad.retain(|bad| with_bad.add_bad(bad.clone()));
    (!others_bad.is_empty()).then_some(with_bad)
}

/// Whether this API server keeps `spec.configSource`: asked of it by a patch that it only tries. None: no node is left.
///
/// # Errors
/// The right to patch nodes is missing.
pub(crate) async fn keeps_source(
    api: &RolloutClient,
    members: &[Member],
    target: &ConfigMapRef,
) -> Result<Option<bool>, Failure> {
    let patch = assign::source_probe(target);
    // The first one that is still there.
    for Member { name, .. } in members {
        let what = format!("patch node {name} (a dry run, to see whether this API server keeps spec.configSource)");
        match api.api.request(&what, patch_node(name, &patch, true)).await {
            Ok(tried) => {
                return Ok(assign::source_kept(
                    &patch,
                    &WrittenAssignment::from_row(&NodeRow::from_node(&tried, &api.api.namespace)),
                ));
            }
            Err(error) if error.refuses_source() => return Ok(Some(false)),
            Err(error) if matches!(error.code(), 404 | 409) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}
