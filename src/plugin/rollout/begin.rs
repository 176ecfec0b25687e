//! Beginning a rollout: everything that can be refused is refused before anything is written.

use std::collections::BTreeSet;

use kube::api::GetParams;
use kube::core::request::Request as Path;
use serde_json::Value;

use super::api::{Answer, Api};
use super::feed::Choice;
use super::pages::Pages;
use super::records::{Kept, Lock, Taken, identity};
use super::show::Show;
use super::{Begin, Nodes, Pause, drive_on};
use crate::core::fleet::assign::label_fault;
use crate::core::fleet::node::NodeRow;
use crate::core::fleet::rollout::plan::{Before, Member, order, unavailable, zone_of};
use crate::core::fleet::rollout::sight::{Doing, Has, Sight};
use crate::core::fleet::rollout::{Holder, Options, Phase, Record, Target, WaitFor};
use crate::core::model::ConfigMapRef;
use crate::plugin::Failure;
use crate::plugin::nodes::NODES;
use crate::plugin::output::{self, Out, Table, Tone};

/// A label's value holds so many characters.
const LABEL_ROOM: usize = 63;

impl Begin {
    pub(super) async fn run(self, api: &Api) -> Result<std::process::ExitCode, Failure> {
        let show = Show::new(self.quiet);
        let target = self.target(api).await?;
        let name = self.name.clone().unwrap_or_else(|| target.reference.name.clone());
        if name.len() > LABEL_ROOM || !crate::core::carrier::is_object_name(&name) {
            return Err(Failure::new(format!(
                "{name:?} cannot be the name of a rollout: a-z, 0-9, - and ., at most {LABEL_ROOM}; give it one by --name"
            )));
        }
        let old = api.record(&name).await?;
        if let Some(old) = old.as_ref().filter(|old| !old.record.phase.is_over() && !self.dry_run) {
            if old.record.target.reference != target.reference
                || old.record.target.uid != target.uid
                || old.record.selector != self.selector
            {
                return Err(busy(old));
            }
            if old.record.phase != Phase::Starting {
                show.say(&format!("rollout {name} has begun already; going on with it"));
                return drive_on(api, &name, show, "drives it").await;
            }
        }
        // A Job's next Pod must not begin again what somebody ended.
        if let Some(old) = old.as_ref().filter(|old| {
            matches!(old.record.phase, Phase::Aborted | Phase::Reverted)
                && old.record.target.uid == target.uid
                && old.record.selector == self.selector
                && !self.dry_run
        }) {
            let (phase, namespace) = (old.record.phase.words(), &api.namespace);
            return Err(Failure::new(format!(
                "rollout {name} was {phase}; to begin it anew give it another --name, or forget it: \
                 kubectl -n {namespace} delete configmap rollout-{name}"
            )));
        }
        let others = api.records().await?;
        if let Some((other, bad)) = others.iter().find_map(|it| {
            let same = it.record.target.uid == target.uid
                && (target.immutable || it.record.target.resource_version == target.resource_version);
            let bad = it.record.bad.first().filter(|_| same)?;
            Some((it, bad))
        }) {
            let (map, other, namespace) = (&target.reference.name, &other.name, &api.namespace);
            return Err(Failure::new(format!(
                "node {} called {map} bad: {}; push a corrected one. If the node was to blame, mend it and `kubectl kubelet-config \
                 rollout resume {other}`, or forget it with `kubectl -n {namespace} delete configmap rollout-{other}`",
                bad.node, bad.why
            )));
        }
        let (rows, version) = self.rows(api, &target).await?;
        let members = order(&rows, self.zone_key.as_deref());
        let record = self.record(&target, &members)?;
        if self.dry_run {
            return print_plan(&record, &members, &rows, self.zone_key.as_deref());
        }
        if old.as_ref().is_some_and(|old| old.record.phase.is_over()) && all_done(&record, &members, &rows) {
            show.say(&format!(
                "all {} nodes have {} already: there is nothing to do",
                members.len(),
                target.reference.name
            ));
            return Ok(std::process::ExitCode::SUCCESS);
        }
        let nodes = Nodes { members, listed: Some((rows, version)), keeps: None };
        self.start(api, &name, old, record, nodes, show).await
    }

    /// The ConfigMap as it is now.
    async fn target(&self, api: &Api) -> Result<Target, Failure> {
        let (namespace, name, key) = (&api.namespace, &self.config_map, &self.key);
        let what = format!("get the ConfigMap {name} in {namespace}");
        let Answer::Object(map) = api.ask(&what, api.config_maps().get(name, &GetParams::default())).await? else {
            return Err(Failure::new(format!(
                "there is no ConfigMap {name} in namespace {namespace}: `kubectl kubelet-config push FILE` makes one, -n chooses \
                 another namespace"
            )));
        };
        let keys: BTreeSet<&str> =
            map.get("data").and_then(Value::as_object).into_iter().flatten().map(|(key, _)| key.as_str()).collect();
        if !keys.contains(key.as_str()) {
            let keys: Vec<&str> = keys.into_iter().collect();
            return Err(Failure::new(format!(
                "the ConfigMap {name} has no key {key}, but: {}; --key names another one",
                if keys.is_empty() { "none".to_owned() } else { keys.join(", ") }
            )));
        }
        let text = |pointer: &str| map.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(Target {
            reference: ConfigMapRef {
                namespace: namespace.clone(),
                name: name.clone(),
                kubelet_config_key: key.clone(),
            },
            uid: text("/metadata/uid"),
            resource_version: text("/metadata/resourceVersion"),
            immutable: map.get("immutable").and_then(Value::as_bool).unwrap_or_default(),
        })
    }

    /// The nodes, none of which may have called it bad, and the version of their list.
    async fn rows(&self, api: &Api, target: &Target) -> Result<(Vec<NodeRow>, String), Failure> {
        let read = |node: &Value| {
            let row = NodeRow::of(node, &api.namespace);
            let member = Member { name: row.name.clone(), before: Before::of(&row) };
            let sight = Sight::of(&row, &member, target, None);
            if let (Has::Target, Doing::Bad(why)) = (sight.has, &sight.doing) {
                return Err(Failure::new(format!(
                    "node {} calls {} bad: {why}; push a corrected one, or mend the node and `kubectl kubelet-config retry {}`",
                    row.name, target.reference.name, row.name
                )));
            }
            Ok(row)
        };
        let choice = Choice { labels: Some(self.selector.clone()), fields: None };
        let (rows, version) = Pages::new(api, &Path::new(NODES), "list nodes", &choice).all(read).await?;
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
                pause_after_canaries: self.pause_after == Some(Pause::Canary),
                on_failure: self.on_failure.into(),
                timeout_seconds,
            },
            nodes: members.len(),
            parts: 0,
            namespace: target.reference.namespace.clone(),
            phase: Phase::Starting,
            wave: usize::from(self.canary == 0),
            why: String::new(),
            bad: Vec::new(),
            holder: None,
            started: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        })
    }

    /// Writes the record and the nodes, then looks whether somebody else has one of them, and only
    /// then lets it run. Of two that begin at once at least one sees the other.
    async fn start(
        &self,
        api: &Api,
        name: &str,
        old: Option<Kept>,
        mut record: Record,
        mut nodes: Nodes,
        show: Show,
    ) -> Result<std::process::ExitCode, Failure> {
        if let Some(old) = old {
            if old.record.phase == Phase::Starting {
                // Nothing was sent; but the client that began may be alive.
                let tell = |text: &str| show.say(text);
                if let Taken::Alive(other) = Lock::take(api, name, tell).await? {
                    return Err(Failure::new(format!("rollout {name} is just being begun by {other}")));
                }
                nodes.listed = None; // half a minute ago
            }
            api.forget(&old).await?;
        }
        let members = nodes.members.as_slice();
        record.parts = crate::core::fleet::rollout::record::encode_nodes(name, members).len();
        let reference = &record.target.reference;
        if let Some(why) = label_fault(reference) {
            nodes.keeps = super::drive::keeps_source(api, members, reference).await?;
            if nodes.keeps != Some(true) {
                return Err(Failure::new(why));
            }
        }
        if !record.target.immutable {
            show.say(&format!(
                "note: ConfigMap {} can be edited while it is rolled out; `kubectl kubelet-config push` makes immutable ones",
                reference.name
            ));
        }
        let id = identity();
        record.holder = Some(Holder { id: id.clone(), beat: 0 });
        let Some(kept) = api.create(name, &record).await? else {
            return Err(Failure::new(format!("rollout {name} was begun by somebody else at this moment")));
        };
        let mut lock = Lock::of_new(api, id, kept);
        let begun = async {
            api.create_nodes(name, members).await?;
            no_overlap(api, name, members).await?;
            let running = Record { phase: Phase::Running, ..lock.kept.record.clone() };
            lock.save(running).await
        };
        if let Err(failure) = begun.await {
            api.forget(&lock.kept).await?;
            return Err(failure);
        }
        let map = &record.target.reference.name;
        show.say(&format!(
            "rollout {name}: {map} to {} node{}; canaries: {}, at a time: {}",
            members.len(),
            if members.len() == 1 { "" } else { "s" },
            record.options.canaries,
            record.options.max_unavailable
        ));
        super::drive_with(api, lock, nodes, show).await
    }
}

/// Refuses nodes that another rollout has.
pub(super) async fn no_overlap(api: &Api, name: &str, members: &[Member]) -> Result<(), Failure> {
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

fn busy(old: &Kept) -> Failure {
    let (name, phase, map) = (&old.name, old.record.phase.words(), &old.record.target.reference.name);
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
        row.is_some_and(|row| Sight::of(row, member, &record.target, None).is_settled(WaitFor::Proven))
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
    for (place, member) in members.iter().enumerate() {
        let Some(row) = rows.get(member.name.as_str()) else { continue };
        let wave = match record.options.wave(place) {
            0 => "canary".to_owned(),
            wave => wave.to_string(),
        };
        let before = row.wanted.as_ref().map(|map| map.name.clone()).unwrap_or_default();
        let ready = if row.ready { (Tone::Plain, "yes") } else { (Tone::Bad, "no") };
        let plain = |text: String| (Tone::Plain, super::show::clean(&text));
        table.row([
            plain(wave),
            plain(row.name.clone()),
            plain(zone_of(row, zone).to_owned()),
            (ready.0, ready.1.to_owned()),
            plain(before),
        ]);
    }
    output::print(&table.render(Out::stdout()))?;
    Ok(std::process::ExitCode::SUCCESS)
}
