//! Driving a rollout: news in, one step at a time out.

use std::future::Future;
use std::time::Duration;

use kube::api::{Patch, PatchParams};
use kube::core::request::Request as Path;
use tokio::time::Instant;

use super::api::{Answer, Api};
use super::feed::{Choice, Feed, News};
use super::fleet::Fleet;
use super::records::Lock;
use super::show::Show;
use crate::core::fleet::assign::{self, Written};
use crate::core::fleet::node::NodeRow;
use crate::core::fleet::rollout::decide::{Step, decide};
use crate::core::fleet::rollout::plan::Member;
use crate::core::fleet::rollout::record::map_name;
use crate::core::fleet::rollout::sight::Has;
use crate::core::fleet::rollout::{Phase, Record};
use crate::core::model::ConfigMapRef;
use crate::plugin::Failure;
use crate::plugin::nodes::NODES;
use crate::plugin::write::MANAGER;

/// An hour; for waits without an end.
const LONG: Duration = Duration::from_secs(3600);
/// Two carriers, a contradiction to remove, and as many troubles.
const STEPS: u32 = 6;
/// After an answer that was lost.
const PAUSE: Duration = Duration::from_millis(500);

/// How a client came to its end.
pub(super) enum Outcome {
    /// The rollout is where this client can do nothing more.
    Ended(Record),
    /// This client was told to stop.
    Interrupted,
}

pub(super) struct Drive {
    pub(super) api: Api,
    pub(super) lock: Lock,
    pub(super) fleet: Fleet,
    /// The version of the list by which the fleet is known, if it is.
    pub(super) from: Option<String>,
    /// Whether this API server keeps `spec.configSource`, once that is known.
    pub(super) keeps: Option<bool>,
    pub(super) show: Show,
}

impl Drive {
    /// Until the rollout, or this client, has come to an end. The lock is given back.
    ///
    /// # Errors
    /// A right that is missing, an API server that stays away, or a lock that is lost. The rollout
    /// stands where it is.
    pub(super) async fn run(mut self, stop: impl Future<Output = ()>) -> Result<Outcome, Failure> {
        // Wherever it is interrupted, the next client goes on from there.
        let result = tokio::select! {
            result = self.until_end() => result,
            () = stop => Ok(Outcome::Interrupted),
        };
        self.show.end();
        // If it is not ours any more, this does nothing; if nobody answers, others have to wait for the lock.
        let _ = self.api.clone().in_time(self.lock.release()).await;
        result
    }

    async fn until_end(&mut self) -> Result<Outcome, Failure> {
        let field = format!("metadata.name={}", map_name(&self.lock.kept.name));
        let mut nodes = self.fleet.feed(&self.api, self.from.take());
        let choice = Choice { labels: None, fields: Some(field) };
        let mut record = Feed::new(&self.api, self.api.config_maps(), "ConfigMaps", choice, None);
        loop {
            self.fleet.reverting = self.lock.kept.record.phase == Phase::Reverting;
            while let Ok(news) = nodes.news.try_recv() {
                self.fleet.hear(news)?;
            }
            while let Ok(news) = record.news.try_recv() {
                self.hear(news)?;
            }
            if self.lock.due() <= Instant::now() {
                self.lock.beat().await?;
            }
            if let Some(place) = self.fleet.unsure() {
                if let Some(feed) = self.fleet.find(&self.api, place).await? {
                    nodes = feed;
                    self.show.say(&outside(&self.fleet, place, &self.lock.kept.record));
                }
                continue;
            }
            self.fleet.tick();
            let kept = &self.lock.kept;
            self.show.progress(&kept.name, &kept.record, &self.fleet);
            let next = if self.fleet.is_known {
                decide(&kept.record, &self.fleet.members, &self.fleet.sights)
            } else if matches!(kept.record.phase, Phase::Running | Phase::Paused | Phase::Reverting) {
                Step::Wait(None)
            } else {
                Step::End
            };
            match next {
                Step::Record(record) => self.lock.save(*record).await?,
                Step::Send(place) | Step::Restore(place) => {
                    if self.lock.is_fresh() {
                        self.write(place, matches!(next, Step::Send(_))).await?;
                    } else {
                        self.lock.beat().await?;
                    }
                }
                Step::End => return Ok(Outcome::Ended(self.lock.kept.record.clone())),
                Step::Wait(time) => {
                    let time = time.into_iter().chain(self.show.redraw()).min();
                    let until =
                        self.lock.due().min(Instant::now() + time.unwrap_or(LONG).max(Duration::from_millis(1)));
                    tokio::select! {
                        Some(news) = nodes.news.recv() => self.fleet.hear(news)?,
                        Some(news) = record.news.recv() => self.hear(news)?,
                        () = tokio::time::sleep_until(until) => {}
                    }
                }
            }
        }
    }

    fn hear(&mut self, news: News) -> Result<(), Failure> {
        match news {
            News::Object(map) => self.lock.hear(&map),
            News::Gone(_) => {
                let name = &self.lock.kept.name;
                Err(Failure::new(format!("the ConfigMap {} was deleted: rollout {name} is no more", map_name(name))))
            }
            News::Failed(failure) => Err(failure),
            News::Begins | News::Listed(_) => Ok(()),
        }
    }

    /// Assigns, or gives back, if the Node is still the one that was seen.
    async fn write(&mut self, place: usize, forward: bool) -> Result<(), Failure> {
        let Some(member) = self.fleet.members.get(place).cloned() else { return Ok(()) };
        let what = format!("patch node {}", member.name);
        let target = self.lock.kept.record.target.reference.clone();
        self.fleet.before_write(place);
        let mut written = false;
        for _ in 0..STEPS {
            let (now, version) = (self.fleet.written(place), self.fleet.version(place));
            let step = if forward {
                assign::next(&now, version, Some(&target), None, self.keeps)
            } else {
                assign::back(&now, version, &member.before, self.keeps)
            };
            let patch = match step {
                assign::Step::Done => return Ok(()),
                assign::Step::Refuse(why) => return Err(Failure::new(format!("node {}: {why}", member.name))),
                assign::Step::Write(patch) => patch,
            };
            let request = Path::new(NODES).patch(&member.name, &params(false), &Patch::Merge(&patch));
            match self.api.try_once(&what, request).await? {
                Some(Answer::Object(node)) => {
                    self.fleet.see(&node);
                    self.keeps = assign::is_kept(&patch, &self.fleet.written(place)).or(self.keeps);
                    if !written {
                        self.show.wrote(&self.lock.kept, &member.name, forward);
                    }
                    written = true;
                }
                Some(Answer::NoSource) if self.keeps != Some(false) => self.keeps = Some(false),
                Some(Answer::NoSource) => {
                    return Err(Failure::new(format!("{what}: the API server refuses its spec.configSource")));
                }
                Some(Answer::Absent) => {
                    self.fleet.lose(place);
                    return Ok(());
                }
                answer => {
                    if answer.is_none() {
                        tokio::time::sleep(PAUSE).await;
                    }
                    self.fleet.look(&self.api, place).await?;
                    // What is left to do is to take away what says the same; but not from what somebody else wrote.
                    if !(written && self.fleet.has(place) == Some(Has::Target)) {
                        return Ok(());
                    }
                }
            }
            if !self.lock.is_fresh() {
                return Ok(());
            }
        }
        Err(Failure::new(format!(
            "{what}: the API server does not keep what is written into this Node; an admission webhook may undo it"
        )))
    }
}

/// Said once: from then on there is no selection.
fn outside(fleet: &Fleet, place: usize, record: &Record) -> String {
    let name = fleet.members.get(place).map_or("", |member| member.name.as_str());
    format!(
        "note: node {name} no longer has the labels {:?}, and is this rollout's own all the same: all nodes of the cluster are \
         followed from now on",
        record.selector
    )
}

/// Whether this API server keeps `spec.configSource`: asked of it by a patch that it only tries. None: no node is left.
///
/// # Errors
/// The right to patch nodes is missing.
pub(super) async fn keeps_source(
    api: &Api,
    members: &[Member],
    target: &ConfigMapRef,
) -> Result<Option<bool>, Failure> {
    let patch = assign::trial(target);
    // The first one that is still there.
    for Member { name, .. } in members {
        let request = Path::new(NODES).patch(name, &params(true), &Patch::Merge(&patch));
        let what = format!("patch node {name} (a dry run, to see whether this API server keeps spec.configSource)");
        match api.ask(&what, request).await? {
            Answer::Object(tried) => {
                return Ok(assign::is_kept(&patch, &Written::of(&NodeRow::of(&tried, &api.namespace))));
            }
            Answer::NoSource => return Ok(Some(false)),
            _ => {}
        }
    }
    Ok(None)
}

fn params(dry_run: bool) -> PatchParams {
    PatchParams { dry_run, field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() }
}
