//! Beginning a rollout: everything that can be refused is refused before anything is written.

use std::cmp::Ordering;

use kube::api::GetParams;
use serde_json::Value;

use super::args::{BeginArgs, PauseAfterArg};
use super::bad_versions;
use super::client::RolloutClient;
use super::lock::{Lock, LockAttempt};
use super::progress_reporter::{ProgressReporter, clean};
use super::records::{StoredRecord, no_overlap};
use super::replace::{put_back, take_place};
use super::run::{Nodes, again, drive_on, drive_with};
use crate::Failure;
use crate::api::list::{Pager, Selector};
use crate::api::nodes::NODES;
use crate::api::write::{ConfigMapError, config_map};
use crate::commands::targets::DryRun;
use crate::context::identity;
use crate::fleet::assign::WrittenAssignment;
use crate::fleet::assign::label_fault;
use crate::fleet::node::NodeRow;
use crate::fleet::rollout::bad_versions::NodeVerdict;
use crate::fleet::rollout::member::Member;
use crate::fleet::rollout::observed::ObservedNode;
use crate::fleet::rollout::plan::{carry, order, unavailable, zone_of};
use crate::fleet::rollout::{BadVersion, Holder, Options, Phase, Record, Target, WaitFor};
use crate::output::{self, Out, Table, Tone};
use kubelet_config::assignment::DEFAULT_KEY;
use kubelet_config::source::ConfigMapRef;

/// A label's value holds so many characters.
const LABEL_ROOM: usize = 63;

impl BeginArgs {
    pub(crate) async fn run(self, api: &RolloutClient) -> Result<std::process::ExitCode, Failure> {
        let reporter = ProgressReporter::new(self.quiet);
        let target = self.target(api).await?;
        let name = self.name.clone().unwrap_or_else(|| target.reference.name.clone());
        if name.len() > LABEL_ROOM || !kubelet_config::assignment::is_object_name(&name) {
            return Err(Failure::new(format!(
                "{name:?} cannot be the name of a rollout: a-z, 0-9, - and ., at most {LABEL_ROOM}; give it one by --name"
            )));
        }
        let old = match api.record(&name).await? {
            Some(old) if !self.is_dry() => Some(put_back(api, old, &reporter).await?),
            old => old,
        };
        if let Some(old) = old.as_ref().filter(|old| !old.record.phase.is_over() && !self.is_dry()) {
            if old.record.target.reference != target.reference
                || old.record.target.uid != target.uid
                || old.record.selector != self.selector
            {
                return Err(busy(old));
            }
            if old.record.phase != Phase::Starting {
                if !self.excluded_nodes.is_empty() {
                    return Err(Failure::new(format!(
                        "rollout {name} has begun already; `kubectl kubelet-config rollout resume {name} --despite {}`",
                        self.excluded_nodes.join(",")
                    )));
                }
                reporter.note(&format!("rollout {name} has begun already; going on with it"));
                return drive_on(api, &name, reporter, "drives it").await;
            }
        }
        let records = api.records().await?;
        // A Job's next Pod must not begin again what somebody ended.
        if let Some(old) = old.as_ref().filter(|old| {
            matches!(old.record.phase, Phase::Aborted | Phase::Reverted)
                && old.record.target.uid == target.uid
                && old.record.selector == self.selector
                && !self.is_dry()
        }) {
            let phase = old.record.phase.label();
            return Err(Failure::new(format!("rollout {name} was {phase}; {}", new_name_advice(old, &records))));
        }
        let clearance = bad_versions::check(api, &target, &records, &self.excluded_nodes, "run this again").await?;
        if let Some(old) = old.as_ref().filter(|_| !self.is_dry()) {
            self.keeps_no_bad_version(api, old, &target, &records).await?;
        }
        let (rows, version) = self.rows(api, &target).await?;
        let mut members = order(&rows, self.zone_key.as_deref());
        carry(&mut members, &target, former(api, &target, &records, &rows).await?);
        let mut record = self.record(&target, &members)?;
        clearance.apply(&mut record, true);
        if self.is_dry() {
            return print_plan(&record, &members, &rows, self.zone_key.as_deref());
        }
        if old.as_ref().is_some_and(|old| old.record.phase.is_over()) && all_done(&record, &members, &rows) {
            reporter.note(&format!(
                "all {} nodes have {} already: there is nothing to do",
                members.len(),
                target.reference.name
            ));
            return Ok(std::process::ExitCode::SUCCESS);
        }
        let mut nodes = Nodes { members, listed: Some((rows, version)), keeps: None };
        let lock = self.start(api, &name, old, record, &mut nodes, &reporter).await?;
        // Not before it runs: what counts for nothing in a rollout that was refused still counts for others.
        if let Err(failure) = clearance.write(api, &name, &target, &records).await {
            lock.release().await;
            return Err(again(&name, Phase::Running, &failure.message, "\n"));
        }
        if let Some(message) = clearance.summary() {
            reporter.note(&message);
        }
        let Record { options, nodes: count, .. } = &lock.stored.record;
        reporter.note(&format!(
            "rollout {name}: {} to {count} node{}; canaries: {}, at a time: {}",
            target.reference.name,
            if *count == 1 { "" } else { "s" },
            options.canaries,
            options.max_unavailable
        ));
        drive_with(api, lock, nodes, reporter).await
    }

    /// Nothing is written, and so there is nothing that an API server could check.
    fn is_dry(&self) -> bool {
        self.dry_run != DryRun::None
    }

    /// The record that this one would take the place of must not be the only one that knows of a bad version.
    async fn keeps_no_bad_version(
        &self,
        api: &RolloutClient,
        old: &StoredRecord,
        target: &Target,
        records: &[StoredRecord],
    ) -> Result<(), Failure> {
        let theirs = &old.record.target;
        let Some(BadVersion { node, .. }) = old.record.bad.first().filter(|_| !theirs.is_same_content(target)) else {
            return Ok(());
        };
        let map = &theirs.reference.name;
        let request = api.config_maps().get(map, &GetParams::default());
        let there = api.api.optional(&format!("get the ConfigMap {map} in {}", api.api.namespace), request).await?;
        let there =
            there.is_some_and(|map| map.pointer("/metadata/uid").and_then(Value::as_str) == Some(theirs.uid.as_str()));
        if there {
            return Err(Failure::new(format!(
                "rollout {} remembers that node {node} called {map} bad, and is not to be forgotten while there is that ConfigMap: \
                 give this one another name, such as --name {}",
                old.name,
                free_name(&old.name, records)
            )));
        }
        Ok(())
    }

    /// The ConfigMap as it is now.
    async fn target(&self, api: &RolloutClient) -> Result<Target, Failure> {
        let (namespace, name, key) = (&api.api.namespace, &self.config_map, &self.key);
        let reference =
            ConfigMapRef { namespace: namespace.clone(), name: name.clone(), kubelet_config_key: key.clone() };
        let map = config_map(&api.api, &reference).await.map_err(|error| match error {
            ConfigMapError::Absent => Failure::new(format!(
                "there is no ConfigMap {name} in namespace {namespace}: `kubectl kubelet-config push FILE` makes one, -n chooses \
                 another namespace"
            )),
            ConfigMapError::NoKey(keys) => Failure::new(format!(
                "the ConfigMap {name} has no key {key}, but: {}; --key names another one",
                if keys.is_empty() { "none".to_owned() } else { keys.join(", ") }
            )),
            ConfigMapError::Api(error) => error.into(),
        })?;
        let text = |pointer: &str| map.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(Target {
            reference,
            uid: text("/metadata/uid"),
            resource_version: text("/metadata/resourceVersion"),
            immutable: map.get("immutable").and_then(Value::as_bool).unwrap_or_default(),
        })
    }

    /// The nodes, none of which may have called it bad, and the version of their list.
    async fn rows(&self, api: &RolloutClient, target: &Target) -> Result<(Vec<NodeRow>, String), Failure> {
        let read = |node: &Value| {
            let row = NodeRow::from_node(node, &api.api.namespace);
            let member = Member { name: row.name.clone(), before: WrittenAssignment::from_row(&row) };
            let node = ObservedNode::from_row(&row, &member, target, None);
            if let (NodeVerdict::Bad(why), false) =
                (NodeVerdict::from_observed(&node), self.excluded_nodes.contains(&row.name))
            {
                let bad = BadVersion { node: row.name, why, from: None };
                let verdict = NodeVerdict::Bad(String::new());
                return Err(Failure::new(bad_versions::refusal(
                    &target.reference.name,
                    &bad,
                    &verdict,
                    "run this again",
                )));
            }
            Ok(Some(row))
        };
        let selector = Selector::labels(self.selector.clone());
        let (rows, version) = Pager::new(&api.api, NODES, "list nodes", &selector).all(read).await?;
        if rows.is_empty() {
            return Err(Failure::new(format!(
                "no node has the labels {:?}: `kubectl get nodes --show-labels` shows those they have",
                self.selector
            )));
        }
        Ok((rows, version))
    }

    fn record(&self, target: &Target, members: &[Member]) -> Result<Record, Failure> {
        let usage = |message: String| Failure { code: 2, message };
        let max_unavailable = unavailable(&self.max_unavailable, members.len()).map_err(usage)?;
        let timeout_seconds = self.timeout_per_node.0.as_secs();
        if timeout_seconds == 0 {
            return Err(usage("--timeout-per-node: at least a second".to_owned()));
        }
        Ok(Record {
            target: target.clone(),
            selector: self.selector.clone(),
            options: Options {
                canaries: self.canary.min(members.len()),
                max_unavailable,
                wait_for: self.wait_for.into(),
                pause_after_canaries: self.pause_after == Some(PauseAfterArg::Canary),
                on_failure: self.on_failure.into(),
                timeout_seconds,
                drain: self.drain.map(Into::into),
            },
            nodes: members.len(),
            parts: 0,
            second: false,
            replaces: None,
            namespace: target.reference.namespace.clone(),
            phase: Phase::Starting,
            wave: usize::from(self.canary == 0),
            why: String::new(),
            bad: Vec::new(),
            cleared: Vec::new(),
            excluded_nodes: Vec::new(),
            withdrawn: Vec::new(),
            undone: false,
            behind: 0,
            holder: None,
            started: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        })
    }

    /// Writes the record and the nodes, then looks whether somebody else has one of them, and only
    /// then lets it run. Of two that begin at once at least one sees the other.
    async fn start(
        &self,
        api: &RolloutClient,
        name: &str,
        old: Option<StoredRecord>,
        mut record: Record,
        nodes: &mut Nodes,
        reporter: &ProgressReporter,
    ) -> Result<Lock, Failure> {
        let members = nodes.members.as_slice();
        no_overlap(api, name, members).await?;
        record.parts = crate::fleet::rollout::record::encode_nodes(name, false, members).len();
        let reference = &record.target.reference;
        if let Some(why) = label_fault(reference) {
            nodes.keeps = super::drive::keeps_source(api, members, reference).await?;
            if nodes.keeps != Some(true) {
                return Err(Failure::new(why));
            }
        }
        if !record.target.immutable {
            reporter.note(&format!(
                "note: ConfigMap {} can be edited while it is rolled out; `kubectl kubelet-config push` makes immutable ones",
                reference.name
            ));
        }
        if old.as_ref().is_some_and(|old| old.record.holder.is_some()) {
            nodes.listed = None; // half a minute ago, once it is sure that this client is dead
        }
        if let Some(old) = old.as_ref().filter(|old| old.record.phase.is_over()) {
            return take_place(api, old, record, members, reporter).await;
        }
        if let Some(old) = old {
            // Nothing was sent; but the client that began may be alive.
            if let LockAttempt::Held(other) = Lock::acquire(api, name, |text| reporter.note(text)).await? {
                return Err(Failure::new(format!("rollout {name} is just being begun by {other}")));
            }
            api.forget(&old).await?;
        }
        let id = identity();
        record.holder = Some(Holder { id: id.clone(), renewals: 0 });
        let Some(stored) = api.create(name, &record).await? else {
            return Err(Failure::new(format!("rollout {name} was begun by somebody else at this moment")));
        };
        let mut lock = Lock::of_new(api, id, stored);
        let begun = async {
            api.create_nodes(name, record.second, members).await?;
            no_overlap(api, name, members).await?;
            let running = Record { phase: Phase::Running, ..lock.stored.record.clone() };
            lock.save(running).await
        };
        match begun.await {
            Ok(()) => Ok(lock),
            Err(failure) => {
                api.forget(&lock.stored).await?;
                Err(failure)
            }
        }
    }
}

/// The nodes of rollouts of the same ConfigMap that are over, newest first, as far as any of them is needed: a node has
/// the target already, and what it had before is to be had nowhere else.
async fn former(
    api: &RolloutClient,
    target: &Target,
    records: &[StoredRecord],
    rows: &[NodeRow],
) -> Result<Vec<(bool, Vec<Member>)>, Failure> {
    if !rows.iter().any(|row| row.desired.as_ref() == Some(&target.reference)) {
        return Ok(Vec::new());
    }
    let over = |stored: &&StoredRecord| stored.record.phase.is_over() && stored.record.target.uid == target.uid;
    let mut over: Vec<&StoredRecord> = records.iter().filter(over).collect();
    over.sort_by(|one, other| if one.is_older(other) { Ordering::Greater } else { Ordering::Less });
    let mut former = Vec::new();
    for stored in over {
        let Record { phase, behind, .. } = stored.record;
        former.push((phase == Phase::Reverted && behind == 0, api.members(stored).await?.0));
    }
    Ok(former)
}

/// How to begin anew what is over.
pub(crate) fn new_name_advice(old: &StoredRecord, records: &[StoredRecord]) -> String {
    let Record { target, selector, .. } = &old.record;
    let map = &target.reference.name;
    let key = match target.reference.kubelet_config_key.as_str() {
        DEFAULT_KEY => String::new(),
        key => format!(" --key {key}"),
    };
    let name = free_name(&old.name, records);
    format!(
        "to begin it anew give it another name: `kubectl kubelet-config rollout {map} -l '{selector}'{key} --name {name}` and the \
         options it had"
    )
}

/// A name like this one that no rollout has.
fn free_name(name: &str, records: &[StoredRecord]) -> String {
    let base: String = name.chars().take(LABEL_ROOM - 4).collect();
    let base = base.trim_end_matches(['-', '.']);
    let free = |name: &String| records.iter().all(|stored| stored.name != *name);
    (2..=records.len() + 2).map(|number| format!("{base}-{number}")).find(free).unwrap_or_default()
}

fn busy(old: &StoredRecord) -> Failure {
    let (name, phase, map) = (&old.name, old.record.phase.label(), &old.record.target.reference.name);
    let selector = &old.record.selector;
    Failure::new(format!(
        "there is a rollout {name} already, of {map} to nodes {selector:?}, and it is {phase}: abort or undo it first, or give \
         this one another --name"
    ))
}

fn all_done(record: &Record, members: &[Member], rows: &[NodeRow]) -> bool {
    let rows: std::collections::HashMap<&str, &NodeRow> = rows.iter().map(|row| (row.name.as_str(), row)).collect();
    members.iter().all(|member| {
        let row = rows.get(member.name.as_str());
        row.is_some_and(|row| ObservedNode::from_row(row, member, &record.target, None).is_settled(WaitFor::Proven))
    })
}

/// `--dry-run`.
fn print_plan(
    record: &Record,
    members: &[Member],
    rows: &[NodeRow],
    zone: Option<&str>,
) -> Result<std::process::ExitCode, Failure> {
    let rows: std::collections::HashMap<&str, &NodeRow> = rows.iter().map(|row| (row.name.as_str(), row)).collect();
    let mut table = Table::new(&["WAVE", "NODE", "ZONE", "READY", "BEFORE"]);
    for (index, member) in members.iter().enumerate() {
        let Some(row) = rows.get(member.name.as_str()) else { continue };
        let wave = match record.options.wave(index) {
            0 => "canary".to_owned(),
            wave => wave.to_string(),
        };
        let WrittenAssignment { native, labels } = &member.before;
        let before = native.as_ref().map(|map| &map.name).or_else(|| labels.get("name")).cloned().unwrap_or_default();
        let ready = if row.ready { (Tone::Plain, "yes") } else { (Tone::Bad, "no") };
        let plain = |text: String| (Tone::Plain, clean(&text));
        table.row([
            plain(wave),
            plain(row.name.clone()),
            plain(zone_of(row, zone).to_owned()),
            (ready.0, ready.1.to_owned()),
            plain(before),
        ]);
    }
    output::write_stdout(&table.render(Out::stdout()))?;
    Ok(std::process::ExitCode::SUCCESS)
}
