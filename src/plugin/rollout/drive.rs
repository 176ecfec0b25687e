//! Driving a rollout: news in, one step at a time out.

use std::future::Future;
use std::time::Duration;

use kube::api::{GetParams, Patch, PatchParams};
use kube::core::request::Request as Path;
use serde_json::Value;
use tokio::time::Instant;

use super::api::{ANSWER, Answer, Api};
use super::drain::Drains;
use super::feed::{Choice, Feed, News};
use super::fleet::Fleet;
use super::records::Lock;
use super::show::Show;
use super::write::{self, Writer};
use crate::core::fleet::rollout::decide::{Step, decide};
use crate::core::fleet::rollout::drain::Cordon;
use crate::core::fleet::rollout::plan::Member;
use crate::core::fleet::rollout::record::{decode, map_name};
use crate::core::fleet::rollout::{Bad, LABEL, Phase, Record};
use crate::core::model::ConfigMapRef;
use crate::plugin::Failure;

/// An hour; for waits without an end.
const LONG: Duration = Duration::from_secs(3600);
/// After an answer that was lost.
const PAUSE: Duration = Duration::from_millis(500);

/// How a client came to its end.
pub(super) enum Outcome {
    /// The rollout is where this client can do nothing more; nodes that it leaves cordoned.
    Ended(Record, Vec<String>),
    /// This client was told to stop.
    Interrupted,
}

pub(super) struct Drive {
    pub(super) api: Api,
    pub(super) lock: Lock,
    pub(super) fleet: Fleet,
    pub(super) writer: Box<dyn Writer>,
    pub(super) show: Show,
    /// What other rollouts say of the same version, until it is in the record.
    pub(super) heard: Vec<Bad>,
    /// All of them were heard once.
    pub(super) heard_all: bool,
    pub(super) drains: Drains,
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
        let _ = tokio::time::timeout(ANSWER, self.lock.release()).await;
        result
    }

    async fn until_end(&mut self) -> Result<Outcome, Failure> {
        // Not by its selector: what is sent may itself take a node out of that, and a node that loses the labels on
        // its way is on its way all the same.
        let choice = Choice { labels: None, fields: None };
        let mut nodes = Feed::new(&self.api, Path::new("/api/v1/nodes"), "nodes", choice);
        // Others' too: what a node of theirs calls bad is not sent to ours.
        let choice = Choice { labels: Some(LABEL.to_owned()), fields: None };
        let mut record = Feed::new(&self.api, self.api.config_maps(), "ConfigMaps", choice);
        loop {
            self.fleet.follow(&self.lock.kept.name, &self.lock.kept.record);
            while let Ok(news) = nodes.news.try_recv() {
                self.fleet.hear(news)?;
            }
            while let Ok(news) = record.news.try_recv() {
                self.hear(news)?;
            }
            if self.lock.due() <= Instant::now() {
                self.lock.beat().await?;
            }
            while let Ok(news) = self.drains.news.try_recv() {
                self.drains.hear(news)?;
            }
            self.fleet.tick();
            self.drains.refresh(&self.lock.kept.record, &mut self.fleet);
            let kept = &self.lock.kept;
            self.show.progress(&kept.name, &kept.record, &self.fleet);
            let next = if let Some(marked) = marked(&kept.record, &mut self.heard) {
                Step::Record(Box::new(marked))
            } else if self.fleet.is_known && self.heard_all {
                decide(&kept.record, &self.fleet.members, &self.fleet.sights)
            } else if kept.record.options.drain.is_some()
                || matches!(kept.record.phase, Phase::Running | Phase::Paused | Phase::Reverting)
            {
                Step::Wait(None)
            } else {
                Step::End
            };
            match next {
                Step::Record(record) => self.lock.save(*record).await?,
                Step::Look(place) => self.drains.look(place, &mut self.fleet),
                Step::Send(_) | Step::Restore(_) | Step::Cordon(_) | Step::Uncordon(_) | Step::Evict(_) => {
                    if self.lock.is_fresh() {
                        self.write(next).await?;
                    } else {
                        self.lock.beat().await?;
                    }
                }
                Step::End => return Ok(Outcome::Ended(self.lock.kept.record.clone(), self.fleet.cordoned())),
                Step::Wait(time) => {
                    let time = time.into_iter().chain(self.show.redraw()).min();
                    let until =
                        self.lock.due().min(Instant::now() + time.unwrap_or(LONG).max(Duration::from_millis(1)));
                    tokio::select! {
                        Some(news) = nodes.news.recv() => self.fleet.hear(news)?,
                        Some(news) = record.news.recv() => self.hear(news)?,
                        Some(news) = self.drains.news.recv() => self.drains.hear(news)?,
                        () = tokio::time::sleep_until(until) => {}
                    }
                }
            }
        }
    }

    fn hear(&mut self, news: News) -> Result<(), Failure> {
        let own = map_name(&self.lock.kept.name);
        let is_own = |map: &Value| map.pointer("/metadata/name").and_then(Value::as_str) == Some(&own);
        match news {
            News::Object(map) if is_own(&map) => self.lock.hear(&map),
            News::Object(map) => {
                // One that another version of this program wrote is none of our business.
                if let Ok((name, other, _)) = decode(&map) {
                    self.heard.extend(other.own_marks(&name, &self.lock.kept.record.target));
                }
                Ok(())
            }
            News::Gone(map) if is_own(&map) => {
                let name = &self.lock.kept.name;
                Err(Failure::new(format!("the ConfigMap {own} was deleted: rollout {name} is no more")))
            }
            News::Failed(failure) => Err(failure),
            News::Listed => {
                self.heard_all = true;
                Ok(())
            }
            News::Gone(_) | News::Begins => Ok(()),
        }
    }

    /// Assigns, gives back, cordons, if the Node is still the one that was seen; or evicts one of its Pods.
    async fn write(&mut self, step: Step) -> Result<(), Failure> {
        let (Step::Send(place)
        | Step::Restore(place)
        | Step::Cordon(place)
        | Step::Uncordon(place)
        | Step::Evict(place)) = step
        else {
            return Ok(());
        };
        let Some(member) = self.fleet.members.get(place).cloned() else { return Ok(()) };
        let kept = &self.lock.kept;
        let patch = match step {
            Step::Send(_) => self.writer.assign(&kept.record.target.reference),
            Step::Restore(_) => self.writer.restore(&member.before),
            Step::Cordon(_) => Cordon::on(&kept.name),
            Step::Uncordon(_) => Cordon::off(),
            _ => {
                if let Some(pod) = self.drains.evict(place).await? {
                    self.show.did(&format!("pod/{pod} evicted from {}", member.name));
                }
                return Ok(());
            }
        };
        let patch = write::only_of(patch, self.fleet.version(place));
        if matches!(step, Step::Send(_) | Step::Restore(_)) {
            self.fleet.before_write(place);
        }
        let nodes = Path::new("/api/v1/nodes");
        let what = format!("patch node {}", member.name);
        let request = nodes.patch(&member.name, &PatchParams::default(), &Patch::Merge(&patch));
        match self.api.try_once(&what, request).await? {
            Some(Answer::Object(node)) => {
                self.fleet.see(&node);
                match step {
                    Step::Cordon(_) => self.show.did(&format!("node/{} cordoned", member.name)),
                    Step::Uncordon(_) => self.show.did(&format!("node/{} uncordoned", member.name)),
                    _ => self.show.wrote(&self.lock.kept, &member.name, matches!(step, Step::Send(_))),
                }
            }
            Some(Answer::Absent) => self.fleet.lose(place),
            answer => {
                if answer.is_none() {
                    tokio::time::sleep(PAUSE).await;
                }
                self.look(place, &member.name).await?;
            }
        }
        Ok(())
    }

    /// Reads one Node anew.
    async fn look(&mut self, place: usize, name: &str) -> Result<(), Failure> {
        let request = Path::new("/api/v1/nodes").get(name, &GetParams::default());
        match self.api.ask(&format!("get node {name}"), request).await? {
            Answer::Object(node) => self.fleet.see(&node),
            _ => self.fleet.lose(place),
        }
        Ok(())
    }
}

/// The record with what other rollouts say, if that is news; what is in it already goes.
fn marked(record: &Record, heard: &mut Vec<Bad>) -> Option<Record> {
    if heard.is_empty() {
        return None;
    }
    let mut marked = record.clone();
    heard.retain(|bad| marked.mark(bad.clone()));
    (!heard.is_empty()).then_some(marked)
}

/// The writer for what this API server keeps: asked of it by a patch that it only tries.
///
/// # Errors
/// The right to patch nodes is missing.
pub(super) async fn writer(api: &Api, members: &[Member]) -> Result<Box<dyn Writer>, Failure> {
    let source = ConfigMapRef {
        namespace: "default".to_owned(),
        name: "probe".to_owned(),
        kubelet_config_key: "kubelet".to_owned(),
    };
    let params = PatchParams { dry_run: true, ..PatchParams::default() };
    // The first one that is still there.
    for Member { name, .. } in members {
        let request = Path::new("/api/v1/nodes").patch(name, &params, &Patch::Merge(write::Native.assign(&source)));
        let what = format!("patch node {name} (a dry run, to see whether this API server keeps spec.configSource)");
        if let Answer::Object(tried) = api.ask(&what, request).await? {
            let keeps = tried.pointer("/spec/configSource/configMap/name").is_some();
            return Ok(if keeps { Box::new(write::Native) } else { Box::new(write::Labels) });
        }
    }
    Ok(Box::new(write::Labels))
}
