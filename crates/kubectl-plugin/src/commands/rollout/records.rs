//! The ConfigMaps of rollouts, and the lock in them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use kube::api::{DeleteParams, GetParams, PostParams};
use serde_json::Value;
use tokio::time::Instant;

use super::client::RolloutClient;
use crate::Failure;
use crate::api::list::{Pager, Selector};
use crate::fleet::rollout::drain::CORDONED_BY;
use crate::fleet::rollout::member::Member;
use crate::fleet::rollout::record::{decode, decode_nodes, encode, encode_nodes, map_name, part_name};
use crate::fleet::rollout::{Holder, LABEL, Record};

/// One record, and the resourceVersion it was read at.
#[derive(Clone)]
pub(crate) struct Kept {
    pub(crate) name: String,
    pub(crate) record: Record,
    version: String,
}

impl Kept {
    /// Written before the other one was.
    pub(crate) fn is_older(&self, other: &Self) -> bool {
        older(&self.version, &other.version)
    }
}

fn kept(map: &Value) -> Result<Kept, Failure> {
    let (name, record, version) = decode(map).map_err(Failure::new)?;
    Ok(Kept { name, record, version })
}

impl RolloutClient {
    /// A rollout's record.
    pub(crate) async fn record(&self, name: &str) -> Result<Option<Kept>, Failure> {
        let request = self.config_maps().get(&map_name(name), &GetParams::default());
        let what = format!("get the ConfigMap {} in {}", map_name(name), self.api.namespace);
        self.api.optional(&what, request).await?.as_ref().map(kept).transpose()
    }

    /// The same, if it must be there.
    pub(crate) async fn known(&self, name: &str) -> Result<Kept, Failure> {
        let found = self.record(name).await?;
        let namespace = &self.api.namespace;
        found.ok_or_else(|| {
            Failure::new(format!(
                "there is no rollout {name:?} in namespace {namespace}; `kubectl kubelet-config rollout status` lists them, \
                 -n chooses another namespace"
            ))
        })
    }

    /// All records.
    pub(crate) async fn records(&self) -> Result<Vec<Kept>, Failure> {
        let what = format!("list ConfigMaps in {}", self.api.namespace);
        let selector = Selector::labels(LABEL.to_owned());
        Ok(Pager::new(&self.api, &self.config_maps().url_path, &what, &selector)
            .all(|map| kept(map).map(Some))
            .await?
            .0)
    }

    /// The nodes that are recorded, and whether these are all.
    pub(crate) async fn members(&self, kept: &Kept) -> Result<(Vec<Member>, bool), Failure> {
        let mut members = Vec::with_capacity(kept.record.nodes);
        for part in 0..kept.record.parts {
            let name = part_name(&kept.name, kept.record.second, part);
            let request = self.config_maps().get(&name, &GetParams::default());
            let what = format!("get the ConfigMap {name} in {}", self.api.namespace);
            let Some(map) = self.api.optional(&what, request).await? else { return Ok((members, false)) };
            members.extend(decode_nodes(&map).map_err(Failure::new)?);
        }
        let whole = members.len() == kept.record.nodes;
        Ok((members, whole))
    }

    /// The nodes that are recorded.
    pub(crate) async fn all_members(&self, kept: &Kept) -> Result<Vec<Member>, Failure> {
        let (members, whole) = self.members(kept).await?;
        let name = &kept.name;
        if whole {
            return Ok(members);
        }
        let Record { phase, options, nodes, .. } = &kept.record;
        let helps = match (phase.is_over(), options.drain) {
            (false, _) => format!("; `kubectl kubelet-config rollout abort {name}` gives it up"),
            (true, Some(_)) => {
                format!(
                    "; nodes that it cordoned have the annotation {CORDONED_BY}: {name}, and `kubectl uncordon` frees them"
                )
            }
            (true, None) => String::new(),
        };
        Err(Failure::new(format!(
            "the ConfigMaps with the nodes of rollout {name} are not all there ({} of {nodes} nodes): what its nodes had before \
             is lost{helps}",
            members.len()
        )))
    }

    /// Writes a new record; none if there is one of that name.
    pub(crate) async fn create(&self, name: &str, record: &Record) -> Result<Option<Kept>, Failure> {
        let what = format!("create the ConfigMap {} in {}", map_name(name), self.api.namespace);
        let request = self.config_maps().create(&PostParams::default(), bytes(&encode(name, record, None)));
        match self.api.request(&what, request).await {
            Ok(map) => kept(&map).map(Some),
            Err(error) if error.is_conflict() => {
                // An answer that was lost may have been ours.
                let there = self.record(name).await?;
                Ok(there.filter(|there| there.record.holder == record.holder))
            }
            Err(error) if error.code() == 404 => Err(no_namespace(&self.api.namespace)),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the nodes; what is left of a rollout that never began is replaced. `second`: see [`Record::second`].
    pub(crate) async fn create_nodes(&self, name: &str, second: bool, members: &[Member]) -> Result<(), Failure> {
        for map in encode_nodes(name, second, members) {
            let part = map.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
            let what = format!("write the ConfigMap {part} in {}", self.api.namespace);
            let create = || self.config_maps().create(&PostParams::default(), bytes(&map));
            match self.api.request(&what, create()).await {
                Err(error) if error.is_conflict() => {
                    self.delete(&part).await?;
                    self.api.request(&what, create()).await?;
                }
                result => drop(result?),
            }
        }
        Ok(())
    }

    /// Removes a rollout's ConfigMaps; those of its nodes first, as they are found through the record.
    pub(crate) async fn forget(&self, kept: &Kept) -> Result<(), Failure> {
        self.forget_nodes(&kept.name, &kept.record).await?;
        self.delete(&map_name(&kept.name)).await.map(drop)
    }

    /// Removes the nodes of a record, and what older ones of that name may have left behind them.
    pub(crate) async fn forget_nodes(&self, name: &str, record: &Record) -> Result<(), Failure> {
        for part in 0.. {
            if !self.delete(&part_name(name, record.second, part)).await? && part >= record.parts {
                break;
            }
        }
        Ok(())
    }

    /// Whether there was one.
    async fn delete(&self, name: &str) -> Result<bool, Failure> {
        let what = format!("delete the ConfigMap {name} in {}", self.api.namespace);
        let request = self.config_maps().delete(name, &DeleteParams::default());
        Ok(self.api.optional(&what, request).await?.is_some())
    }

    /// Changes a record that somebody else may drive, whatever happens to it meanwhile.
    pub(crate) async fn change(
        &self,
        name: &str,
        change: impl Fn(&mut Record) -> Result<(), Failure>,
    ) -> Result<Kept, Failure> {
        loop {
            let mut kept = self.known(name).await?;
            let before = kept.record.clone();
            change(&mut kept.record)?;
            if kept.record == before {
                return Ok(kept);
            }
            if let Some(kept) = self.replace(&kept).await? {
                return Ok(kept);
            }
        }
    }

    /// None if the record is another one by now.
    async fn replace(&self, kept: &Kept) -> Result<Option<Kept>, Failure> {
        let name = map_name(&kept.name);
        let what = format!("update the ConfigMap {name} in {}", self.api.namespace);
        let body = bytes(&encode(&kept.name, &kept.record, Some(&kept.version)));
        match self.api.request(&what, self.config_maps().replace(&name, &PostParams::default(), body)).await {
            Ok(map) => self::kept(&map).map(Some),
            Err(error) if error.is_conflict() => Ok(None),
            Err(error) if error.code() != 404 => Err(error.into()),
            Err(_) => Err(Failure::new(format!("the ConfigMap {name} was deleted: rollout {} is no more", kept.name))),
        }
    }
}

/// Refuses nodes that another rollout has.
pub(crate) async fn no_overlap(api: &RolloutClient, name: &str, members: &[Member]) -> Result<(), Failure> {
    let ours: BTreeSet<&str> = members.iter().map(|member| member.name.as_str()).collect();
    let others = api.records().await?;
    for other in others.iter().filter(|other| other.name != name && !other.record.phase.is_over()) {
        let (theirs, _) = api.members(other).await?;
        let both: Vec<&str> =
            theirs.iter().map(|member| member.name.as_str()).filter(|name| ours.contains(name)).collect();
        if let Some(first) = both.first() {
            let (other, phase) = (&other.name, other.record.phase.words());
            return Err(Failure::new(format!(
                "{} nodes, such as {first}, are in rollout {other}, which is {phase}: wait for its end, or `kubectl kubelet-config \
                 rollout abort {other}`",
                both.len()
            )));
        }
    }
    Ok(())
}

fn bytes(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn no_namespace(namespace: &str) -> Failure {
    Failure::new(format!(
        "there is no namespace {namespace}: choose another by -n, or make it with `kubectl apply -k packaging/manifests/base`"
    ))
}

/// Who this client is.
pub(crate) fn identity() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    // The time keeps two containers apart, which have the same process id and may have the same name.
    let now = jiff::Timestamp::now().as_microsecond();
    format!("{host} ({}, {now:x}.{number})", std::process::id())
}

/// The right to drive a rollout.
pub(crate) struct Lock {
    api: RolloutClient,
    id: String,
    pub(crate) kept: Kept,
    beaten: Instant,
    beaten_wall: jiff::Timestamp,
}

/// What became of an attempt to get it.
pub(crate) enum Taken {
    Lock(Lock),
    /// This client has it, and lives.
    Alive(String),
}

impl Lock {
    /// Of a record that was just written with this holder.
    pub(crate) fn of_new(api: &RolloutClient, id: String, kept: Kept) -> Self {
        Self { api: api.clone(), id, kept, beaten: Instant::now(), beaten_wall: jiff::Timestamp::now() }
    }

    /// Takes it from a client that is dead, which takes as long as to be sure of that.
    pub(crate) async fn take(api: &RolloutClient, name: &str, tell: impl Fn(&str)) -> Result<Taken, Failure> {
        let id = identity();
        let mut seen: Option<(Holder, Instant)> = None;
        loop {
            let mut kept = api.known(name).await?;
            match (&kept.record.holder, &seen) {
                (Some(now), Some((then, _))) if now != then => return Ok(Taken::Alive(now.id.clone())),
                (Some(_), Some((_, since))) if since.elapsed() < api.pace.lock => {}
                (Some(now), None) => {
                    let seconds = api.pace.lock.as_secs();
                    tell(&format!("waiting for up to {seconds} s to see whether {} still drives it", now.id));
                    seen = Some((now.clone(), Instant::now()));
                }
                (None | Some(_), _) => {
                    kept.record.holder = Some(Holder { id: id.clone(), beat: 0 });
                    let (beaten, beaten_wall) = (Instant::now(), jiff::Timestamp::now());
                    if let Some(kept) = api.replace(&kept).await? {
                        return Ok(Taken::Lock(Self { api: api.clone(), id, kept, beaten, beaten_wall }));
                    }
                    continue; // somebody was quicker, or changed it
                }
            }
            tokio::time::sleep(api.pace.look).await;
        }
    }

    /// When the next beat is due.
    pub(crate) fn due(&self) -> Instant {
        self.beaten + self.api.pace.beat
    }

    /// Nobody can have taken it. A machine that slept knows that by its wall clock alone.
    pub(crate) fn is_fresh(&self) -> bool {
        let wall = jiff::Timestamp::now().as_millisecond().abs_diff(self.beaten_wall.as_millisecond());
        let stale = self.api.pace.stale;
        self.beaten.elapsed() < stale && u128::from(wall) < stale.as_millis()
    }

    /// Says that this client lives.
    pub(crate) async fn renew(&mut self) -> Result<(), Failure> {
        let record = self.kept.record.clone();
        self.save(record).await
    }

    /// Writes the record. If somebody else changed it meanwhile (paused, say) that change is taken
    /// up instead, and the caller has to decide anew.
    ///
    /// # Errors
    /// The lock is somebody else's by now.
    pub(crate) async fn save(&mut self, mut record: Record) -> Result<(), Failure> {
        let beat = self.kept.record.holder.as_ref().map_or(0, |holder| holder.beat) + 1;
        record.holder = Some(Holder { id: self.id.clone(), beat });
        let (beaten, beaten_wall) = (Instant::now(), jiff::Timestamp::now());
        let wanted = Kept { record, ..self.kept.clone() };
        if let Some(kept) = self.api.replace(&wanted).await? {
            self.kept = kept;
            (self.beaten, self.beaten_wall) = (beaten, beaten_wall);
            return Ok(());
        }
        let now = self.api.known(&self.kept.name).await?;
        self.learn(now)
    }

    /// Takes up what the cluster says.
    pub(crate) fn learn(&mut self, now: Kept) -> Result<(), Failure> {
        match &now.record.holder {
            Some(holder) if holder.id == self.id => {
                self.kept = now;
                Ok(())
            }
            other => {
                let other = other.as_ref().map_or("nobody", |holder| &holder.id);
                Err(Failure::new(format!("rollout {} is driven by {other} now; this client does no more", now.name)))
            }
        }
    }

    /// What a watch says of the record. What is older than what is known is not news.
    pub(crate) fn hear(&mut self, map: &Value) -> Result<(), Failure> {
        let now = kept(map)?;
        if now.version == self.kept.version || older(&now.version, &self.kept.version) {
            Ok(())
        } else {
            self.learn(now)
        }
    }

    /// Lets others drive.
    pub(crate) async fn release(mut self) {
        let api = self.api.clone();
        for _ in 0..3 {
            self.kept.record.holder = None;
            match api.replace(&self.kept).await {
                Ok(None) => {}
                _ => return,
            }
            match api.record(&self.kept.name).await {
                Ok(Some(now)) if now.record.holder.as_ref().is_some_and(|holder| holder.id == self.id) => {
                    self.kept = now;
                }
                _ => return,
            }
        }
    }
}

/// Whether a resourceVersion is before another one. They are numbers on every server that is built on etcd.
pub(crate) fn older(one: &str, other: &str) -> bool {
    matches!((one.parse::<u64>(), other.parse::<u64>()), (Ok(one), Ok(other)) if one < other)
}
