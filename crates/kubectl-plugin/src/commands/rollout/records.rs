//! The ConfigMaps of rollouts.

use std::collections::BTreeSet;

use kube::api::{DeleteParams, GetParams, PostParams};
use serde_json::Value;

use super::client::RolloutClient;
use crate::Failure;
use crate::api::list::{Pager, Selector};
use crate::api::nodes::segment;
use crate::api::watch::older;
use crate::fleet::rollout::drain::CORDONED_BY;
use crate::fleet::rollout::member::Member;
use crate::fleet::rollout::record::{decode, decode_nodes, encode, encode_nodes, map_name, part_name};
use crate::fleet::rollout::{LABEL, Record};

/// One record, and the resourceVersion it was read at.
#[derive(Clone)]
pub(crate) struct StoredRecord {
    pub(crate) name: String,
    pub(crate) record: Record,
    pub(crate) version: String,
}

impl StoredRecord {
    /// Written before the other one was.
    pub(crate) fn is_older(&self, other: &Self) -> bool {
        older(&self.version, &other.version)
    }
}

/// What became of a record that was written.
pub(crate) enum Replaced {
    Stored(StoredRecord),
    /// The API server does not take it: no right, too large, or a policy. What was to be written, and why it was not.
    Refused(StoredRecord, Failure),
}

pub(crate) fn stored(map: &Value) -> Result<StoredRecord, Failure> {
    let (name, record, version) = decode(map).map_err(Failure::new)?;
    Ok(StoredRecord { name, record, version })
}

impl RolloutClient {
    /// A rollout's record.
    pub(crate) async fn record(&self, name: &str) -> Result<Option<StoredRecord>, Failure> {
        let request = segment(&map_name(name), "rollout's ConfigMap")
            .and_then(|map| self.config_maps().get(map, &GetParams::default()));
        let what = format!("get the ConfigMap {} in {}", map_name(name), self.namespace);
        self.api.optional(&what, request).await?.as_ref().map(stored).transpose()
    }

    /// The same, if it must be there.
    pub(crate) async fn known(&self, name: &str) -> Result<StoredRecord, Failure> {
        let found = self.record(name).await?;
        let namespace = &self.namespace;
        found.ok_or_else(|| {
            Failure::new(format!(
                "there is no rollout {name:?} in namespace {namespace}; `kubectl kubelet-config rollout status` lists them, \
                 -n chooses another namespace"
            ))
        })
    }

    /// All records.
    pub(crate) async fn records(&self) -> Result<Vec<StoredRecord>, Failure> {
        let what = format!("list ConfigMaps in {}", self.namespace);
        let selector = Selector::labels(LABEL.to_owned());
        Ok(Pager::new(&self.api, &self.config_maps().url_path, &what, &selector)
            .all(|map| stored(map).map(Some))
            .await?
            .0)
    }

    /// The nodes that are recorded, and whether these are all.
    pub(crate) async fn members(&self, stored: &StoredRecord) -> Result<(Vec<Member>, bool), Failure> {
        let mut members = Vec::with_capacity(stored.record.nodes);
        for part in 0..stored.record.parts {
            let name = part_name(&stored.name, stored.record.second, part);
            let request = self.config_maps().get(&name, &GetParams::default());
            let what = format!("get the ConfigMap {name} in {}", self.namespace);
            let Some(map) = self.api.optional(&what, request).await? else { return Ok((members, false)) };
            members.extend(decode_nodes(&map).map_err(Failure::new)?);
        }
        let whole = members.len() == stored.record.nodes;
        Ok((members, whole))
    }

    /// The nodes that are recorded.
    pub(crate) async fn all_members(&self, stored: &StoredRecord) -> Result<Vec<Member>, Failure> {
        let (members, whole) = self.members(stored).await?;
        let name = &stored.name;
        if whole {
            return Ok(members);
        }
        let Record { phase, options, nodes, .. } = &stored.record;
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
    pub(crate) async fn create(&self, name: &str, record: &Record) -> Result<Option<StoredRecord>, Failure> {
        let what = format!("create the ConfigMap {} in {}", map_name(name), self.namespace);
        let request = self.config_maps().create(&PostParams::default(), bytes(&encode(name, record, None)));
        match self.api.request(&what, request).await {
            Ok(map) => stored(&map).map(Some),
            Err(error) if error.is_conflict() => {
                // An answer that was lost may have been ours.
                let there = self.record(name).await?;
                Ok(there.filter(|there| there.record.holder == record.holder))
            }
            Err(error) if error.code() == 404 => Err(no_namespace(&self.namespace)),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the nodes; what is left of a rollout that never began is replaced. `second`: see [`Record::second`].
    pub(crate) async fn create_nodes(&self, name: &str, second: bool, members: &[Member]) -> Result<(), Failure> {
        for map in encode_nodes(name, second, members) {
            let part = map.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
            let what = format!("write the ConfigMap {part} in {}", self.namespace);
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
    pub(crate) async fn forget(&self, stored: &StoredRecord) -> Result<(), Failure> {
        self.forget_nodes(&stored.name, &stored.record).await?;
        self.delete(&map_name(&stored.name)).await.map(drop)
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
        let what = format!("delete the ConfigMap {name} in {}", self.namespace);
        let request = self.config_maps().delete(name, &DeleteParams::default());
        Ok(self.api.optional(&what, request).await?.is_some())
    }

    /// Changes a record that somebody else may drive, whatever happens to it meanwhile.
    pub(crate) async fn change(
        &self,
        name: &str,
        change: impl Fn(&mut Record) -> Result<(), Failure>,
    ) -> Result<StoredRecord, Failure> {
        match self.try_change(name, change).await? {
            Replaced::Stored(stored) => Ok(stored),
            Replaced::Refused(_, why) => Err(why),
        }
    }

    /// The same; what the API server does not take is no failure.
    pub(crate) async fn try_change(
        &self,
        name: &str,
        change: impl Fn(&mut Record) -> Result<(), Failure>,
    ) -> Result<Replaced, Failure> {
        loop {
            let mut stored = self.known(name).await?;
            let before = stored.record.clone();
            change(&mut stored.record)?;
            if stored.record == before {
                return Ok(Replaced::Stored(stored));
            }
            if let Some(replaced) = self.replace(&stored).await? {
                return Ok(replaced);
            }
        }
    }

    /// None if the record is another one by now.
    pub(crate) async fn replace(&self, stored: &StoredRecord) -> Result<Option<Replaced>, Failure> {
        let name = map_name(&stored.name);
        let what = format!("update the ConfigMap {name} in {}", self.namespace);
        let body = bytes(&encode(&stored.name, &stored.record, Some(&stored.version)));
        match self.api.request(&what, self.config_maps().replace(&name, &PostParams::default(), body)).await {
            Ok(map) => self::stored(&map).map(|stored| Some(Replaced::Stored(stored))),
            Err(error) if error.is_conflict() => Ok(None),
            Err(error) if error.code() == 404 => {
                Err(Failure::new(format!("the ConfigMap {name} was deleted: rollout {} is no more", stored.name)))
            }
            Err(error) if matches!(error.code(), 400 | 403 | 413 | 422) => {
                Ok(Some(Replaced::Refused(stored.clone(), error.into())))
            }
            Err(error) => Err(error.into()),
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
            let (other, phase) = (&other.name, other.record.phase.label());
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
        "there is no namespace {namespace}: choose another by -n (of records: by --records-namespace), or make it with `kubectl apply -k packaging/manifests/base`"
    ))
}
