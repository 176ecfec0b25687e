//! The nodes of a rollout as they were last seen, and since when. A few hundred bytes each: Node
//! objects are read and dropped.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::client::RolloutClient;
use crate::Failure;
use crate::api::client::ApiError;
use crate::api::list::Selector;
use crate::api::nodes::{NODES, get_request};
use crate::api::watch::{Event, Watcher, older};
use crate::fleet::assign::WrittenAssignment;
use crate::fleet::node::NodeRow;
use crate::fleet::rollout::drain::{Cordon, Drain};
use crate::fleet::rollout::member::Member;
use crate::fleet::rollout::observed::{Assigned, NodeTimers, ObservedNode, Progress};
use crate::fleet::rollout::{Record, Target, WaitFor};
use kubelet_config::reported::ReportedCondition;

/// After an answer that was lost.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Default)]
struct FollowedMember {
    /// The Node's resourceVersion.
    version: String,
    /// The assignment as it is written.
    written: WrittenAssignment,
    condition: Option<ReportedCondition>,
    /// Its condition when it was assigned the target.
    prior: Option<ReportedCondition>,
    unready: Option<Instant>,
    updating: Option<Instant>,
    away: Option<Instant>,
    draining: Option<Instant>,
    /// The list it was last in.
    listed: u64,
    /// Somebody else took the target from it: theirs, not to be sent once more.
    withdrawn: bool,
}

pub(crate) struct Fleet {
    pub(crate) members: Vec<Member>,
    pub(crate) observed: Vec<ObservedNode>,
    followed: Vec<FollowedMember>,
    index_of: HashMap<String, usize>,
    target: Target,
    wait_for: WaitFor,
    namespace: String,
    /// The labels by which nodes are listed and watched; none: all nodes are.
    selector: Option<String>,
    /// Members that are not in that selection any more, and the `uid` that left it, if it is known: gone, or a Node
    /// that lost its labels and is the rollout's own all the same.
    unsure: BTreeMap<usize, Option<String>>,
    list: u64,
    /// All nodes were seen once.
    pub(crate) is_known: bool,
    /// Nodes get back what they had.
    reverting: bool,
    /// So many names of the record are taken up.
    withdrawn: usize,
    /// The rollout's name, which its cordons bear.
    rollout: String,
}

impl Fleet {
    /// Nothing is known of its nodes.
    pub(crate) fn new(members: Vec<Member>, record: &Record) -> Self {
        let count = members.len();
        let index_of = members.iter().enumerate().map(|(index, member)| (member.name.clone(), index)).collect();
        Self {
            members,
            observed: vec![ObservedNode::gone(); count],
            followed: std::iter::repeat_with(FollowedMember::default).take(count).collect(),
            index_of,
            target: record.target.clone(),
            wait_for: record.options.wait_for,
            namespace: record.namespace.clone(),
            selector: Some(record.selector.clone()),
            unsure: BTreeMap::new(),
            list: 0,
            is_known: false,
            reverting: false,
            withdrawn: 0,
            rollout: String::new(),
        }
    }

    /// All of its nodes, as a list by its selector has them.
    pub(crate) fn set_listed(&mut self, rows: Vec<NodeRow>) {
        for row in rows {
            self.observe_row(row);
        }
        self.is_known = true;
    }

    /// What is to be followed: the selection, and all nodes once one of them lost its labels. `from`: see [`Watcher::new`].
    pub(crate) fn feed(&self, api: &RolloutClient, from: Option<String>) -> Watcher {
        let selector = Selector { labels: self.selector.clone(), fields: None };
        Watcher::new(&api.api, NODES, "nodes", selector, from)
    }

    pub(crate) fn on_event(&mut self, news: Event) -> Result<(), Failure> {
        match news {
            Event::Init => self.list += 1,
            Event::InitDone(version) => self.on_list_done(&version),
            Event::Apply(node) => {
                if let Some(index) = self.member_index(&node) {
                    if self.unsure.remove(&index).flatten().is_some_and(|left| left != text(&node, "uid")) {
                        self.set_gone(index); // another Node of this name
                    }
                    if let Some(entry) = self.followed.get_mut(index) {
                        entry.listed = self.list;
                    }
                    self.observe(&node);
                }
            }
            Event::Delete(node) => {
                if let Some(index) = self.member_index(&node) {
                    if self.selector.is_some() {
                        self.unsure.insert(index, Some(text(&node, "uid").to_owned()));
                    } else if !older(text(&node, "resourceVersion"), self.version(index)) {
                        self.set_gone(index);
                    }
                }
            }
            Event::Interrupted(_) => {}
            Event::Failed(failure) => return Err(failure),
        }
        Ok(())
    }

    /// What was not in a list of this version.
    fn on_list_done(&mut self, version: &str) {
        for index in 0..self.followed.len() {
            if self.followed.get(index).is_none_or(|entry| entry.listed == self.list) {
                continue;
            }
            if self.selector.is_some() {
                self.unsure.entry(index).or_default();
            } else if !older(version, self.version(index)) {
                self.set_gone(index);
            }
        }
        self.is_known = true;
    }

    /// A member that has to be looked at, as the selection says no more of it.
    pub(crate) fn unsure(&self) -> Option<usize> {
        self.unsure.first_key_value().map(|(index, _)| *index)
    }

    /// Reads one Node anew.
    pub(crate) async fn refetch(&mut self, api: &RolloutClient, index: usize) -> Result<(), Failure> {
        match self.get(api, index).await? {
            Some(node) => self.observe(&node),
            None => self.set_gone(index),
        }
        Ok(())
    }

    /// The same after a write of it that failed.
    ///
    /// # Errors
    /// A refusal that has nothing to do with what the Node is now.
    pub(crate) async fn after_failed_write(
        &mut self,
        api: &RolloutClient,
        index: usize,
        error: ApiError,
    ) -> Result<(), Failure> {
        match error.code() {
            404 => {
                self.set_gone(index);
                return Ok(());
            }
            409 | 410 => {}
            _ if error.may_pass() => tokio::time::sleep(PAUSE).await,
            _ => return Err(error.into()),
        }
        self.refetch(api, index).await
    }

    /// Looks at a member that is out of the selection. Some: it lives, and all nodes have to be followed from now on,
    /// by this feed; nothing is known until that has listed them.
    pub(crate) async fn find_unselected(
        &mut self,
        api: &RolloutClient,
        index: usize,
    ) -> Result<Option<Watcher>, Failure> {
        let answer = self.get(api, index).await?;
        let left = self.unsure.remove(&index).flatten();
        match answer {
            Some(node) if left.is_none_or(|uid| uid == text(&node, "uid")) => {
                self.observe(&node);
                self.selector = None;
                self.unsure.clear();
                self.is_known = false;
                Ok(Some(self.feed(api, None)))
            }
            // There is none, or another one of this name: if that has the labels, the watch tells of it.
            _ => {
                self.set_gone(index);
                Ok(None)
            }
        }
    }

    async fn get(&self, api: &RolloutClient, index: usize) -> Result<Option<Value>, ApiError> {
        let name = self.name(index);
        api.api.optional(&format!("get node {name}"), get_request(name)).await
    }

    /// Takes up what the record says: where it is going, and from which nodes somebody took the target.
    pub(crate) fn follow_record(&mut self, rollout: &str, record: &Record) {
        if self.rollout != rollout {
            rollout.clone_into(&mut self.rollout);
        }
        let reverting = !record.is_forward();
        let turned = reverting != self.reverting;
        self.reverting = reverting;
        for name in record.withdrawn.iter().skip(std::mem::replace(&mut self.withdrawn, record.withdrawn.len())) {
            let Some(index) = self.index_of.get(name).copied() else { continue };
            if let (Some(entry), Some(node)) = (self.followed.get_mut(index), self.observed.get_mut(index)) {
                entry.withdrawn = true;
                withdraw(node, !reverting);
            }
        }
        if turned {
            self.observed.iter_mut().filter(|node| node.taken_back).for_each(|node| withdraw(node, !reverting));
        }
    }

    fn member_index(&self, node: &Value) -> Option<usize> {
        self.index_of.get(text(node, "name")).copied()
    }

    pub(crate) fn set_gone(&mut self, index: usize) {
        if let (Some(entry), Some(node)) = (self.followed.get_mut(index), self.observed.get_mut(index)) {
            let (prior, withdrawn) = (entry.prior.take(), entry.withdrawn);
            (*entry, *node) = (FollowedMember { prior, withdrawn, ..FollowedMember::default() }, ObservedNode::gone());
        }
    }

    /// A Node as it is now, or was: an older one than the one that is known is passed over.
    pub(crate) fn observe(&mut self, node: &Value) {
        // Of all nodes of a cluster few may be its own: the others are not read.
        if self.member_index(node).is_some_and(|index| !older(text(node, "resourceVersion"), self.version(index))) {
            self.observe_row(NodeRow::from_node(node, &self.namespace));
        }
    }

    fn observe_row(&mut self, row: NodeRow) {
        let Some(index) = self.index_of.get(&row.name).copied() else { return };
        let (Some(entry), Some(member), Some(node)) =
            (self.followed.get_mut(index), self.members.get(index), self.observed.get_mut(index))
        else {
            return;
        };
        entry.written = WrittenAssignment::from_row(&row);
        let mut seen = ObservedNode::from_row(&row, member, &self.target, entry.prior.as_ref());
        entry.withdrawn |= !self.reverting && node.assigned == Assigned::Target && seen.assigned == Assigned::Previous;
        if entry.withdrawn {
            withdraw(&mut seen, !self.reverting);
        }
        seen.cordon = Cordon::new(row.cordoned, row.cordoned_by.as_deref(), &self.rollout);
        seen.drain = std::mem::take(&mut node.drain);
        // One that moves from one thing to another begins to move.
        if seen.assigned != node.assigned {
            entry.updating = None;
        }
        *node = seen;
        (entry.version, entry.condition) = (row.version, row.condition);
        let moves = match node.assigned {
            Assigned::Target => !node.is_settled(self.wait_for),
            Assigned::Previous | Assigned::Other => node.progress == Progress::Updating,
            Assigned::Gone => false,
        };
        let now = Instant::now();
        let keep = |since: &mut Option<Instant>, holds: bool| *since = holds.then(|| since.unwrap_or(now));
        keep(&mut entry.unready, !node.ready);
        keep(&mut entry.updating, moves);
        keep(&mut entry.away, node.is_away());
    }

    /// What the node says now is old news once it is assigned something new.
    pub(crate) fn before_write(&mut self, index: usize) {
        if let Some(entry) = self.followed.get_mut(index) {
            entry.prior.clone_from(&entry.condition);
        }
    }

    /// How far a node's drain is.
    pub(crate) fn drained(&mut self, index: usize, drain: Drain) {
        if let (Some(entry), Some(node)) = (self.followed.get_mut(index), self.observed.get_mut(index)) {
            // Before its cordon it only waits for room; and that it is empty is something new.
            let on = drain.is_on() && node.cordon.holds();
            let same = (drain == Drain::Empty) == (node.drain == Drain::Empty);
            entry.draining = on.then(|| entry.draining.filter(|_| same).unwrap_or_else(Instant::now));
            node.drain = drain;
        }
    }

    /// Nodes that this rollout cordoned, and that are so still.
    pub(crate) fn cordoned(&self) -> Vec<String> {
        let cordoned = self.members.iter().zip(&self.observed).filter(|(_, node)| node.cordon == Cordon::Ours);
        cordoned.map(|(member, _)| member.name.clone()).collect()
    }

    pub(crate) fn name(&self, index: usize) -> &str {
        self.members.get(index).map_or("", |member| &member.name)
    }

    pub(crate) fn version(&self, index: usize) -> &str {
        self.followed.get(index).map_or("", |entry| &entry.version)
    }

    pub(crate) fn assigned(&self, index: usize) -> Option<Assigned> {
        self.observed.get(index).map(|node| node.assigned)
    }

    /// What a Node is assigned, of that version.
    pub(crate) fn written(&self, index: usize) -> WrittenAssignment {
        self.followed.get(index).map(|entry| entry.written.clone()).unwrap_or_default()
    }

    /// Brings the timers to now.
    pub(crate) fn update_clocks(&mut self) {
        // Never zero for something that holds: zero is "not at all".
        let of = |since: Option<Instant>| since.map_or(Duration::ZERO, |it| it.elapsed().max(Duration::from_nanos(1)));
        for (entry, node) in self.followed.iter().zip(&mut self.observed) {
            node.timers = NodeTimers {
                unready: of(entry.unready),
                updating: of(entry.updating),
                away: of(entry.away),
                draining: of(entry.draining),
            };
        }
    }
}

/// One from which somebody took the target has, as long as nodes are given it, what is none of ours.
fn withdraw(node: &mut ObservedNode, forward: bool) {
    if forward && node.assigned == Assigned::Previous {
        (node.assigned, node.taken_back) = (Assigned::Other, true);
    } else if !forward && node.taken_back {
        (node.assigned, node.taken_back) = (Assigned::Previous, false);
    }
}

/// A field of an object's metadata.
fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get("metadata").and_then(|it| it.get(field)).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use kubelet_config::assignment::LABELS;

    fn node(uid: &str, version: &str, map: &str) -> Value {
        json!({"metadata": {"name": "n1", "uid": uid, "resourceVersion": version,
            "labels": {format!("{LABELS}name"): map}}})
    }

    fn object(uid: &str, version: &str, map: &str) -> Event {
        Event::Apply(Box::new(node(uid, version, map)))
    }

    fn gone(uid: &str, version: &str, map: &str) -> Event {
        Event::Delete(Box::new(node(uid, version, map)))
    }

    /// One node, which was assigned "old", as a list of version 10 has it.
    fn fleet() -> Fleet {
        let record = json!({
            "target": {"namespace": "n", "name": "new", "kubeletConfigKey": "kubelet", "uid": "u", "resourceVersion": "1", "immutable": true},
            "options": {"canaries": 0, "maxUnavailable": 1, "waitFor": "proven", "pauseAfterCanaries": false, "onFailure": "stop",
                "timeoutSeconds": 60},
            "selector": "a=b", "nodes": 1, "parts": 1, "namespace": "n", "phase": "Running", "wave": 1,
        });
        let row = NodeRow::from_node(&node("u1", "10", "old"), "n");
        let members = crate::fleet::rollout::plan::order(std::slice::from_ref(&row), None);
        let mut fleet = Fleet::new(members, &serde_json::from_value(record).unwrap());
        fleet.set_listed(vec![row]);
        fleet
    }

    fn after(fleet: &mut Fleet, news: Event) -> Assigned {
        fleet.on_event(news).unwrap();
        fleet.observed[0].assigned
    }

    #[test]
    fn what_leaves_the_selection_is_not_gone_for_that() {
        let mut fleet = fleet();
        assert_eq!(after(&mut fleet, gone("u1", "11", "old")), Assigned::Previous);
        assert_eq!(fleet.unsure(), Some(0), "somebody has to look");
        assert_eq!(after(&mut fleet, object("u1", "12", "new")), Assigned::Target);
        assert_eq!(fleet.unsure(), None, "it came back");
        fleet.on_event(Event::Init).unwrap();
        fleet.observe(&node("u1", "13", "new"));
        assert_eq!(after(&mut fleet, Event::InitDone("20".into())), Assigned::Target);
        assert_eq!(fleet.unsure(), Some(0), "what was read beside a list is not in it");
    }

    #[test]
    fn another_node_of_a_name_begins_anew() {
        for (uid, assigned) in [("u1", Assigned::Other), ("u2", Assigned::Previous)] {
            let mut fleet = fleet();
            fleet.observe(&node("u1", "11", "new"));
            fleet.on_event(gone("u1", "12", "new")).unwrap();
            assert_eq!(after(&mut fleet, object(uid, "13", "old")), assigned, "{uid}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_has_its_time_from_the_cordon_on_and_anew_once_it_is_empty() {
        let mut fleet = fleet();
        let going = || Drain::Going { left: 1, next: None, such: "Pod n/p".into() };
        let draining = |fleet: &mut Fleet, drain: Drain| {
            fleet.drained(0, drain);
            fleet.update_clocks();
            fleet.observed[0].timers.draining.as_secs()
        };
        let second = || tokio::time::advance(Duration::from_secs(1));
        draining(&mut fleet, going());
        second().await;
        assert_eq!(fleet.observed[0].timers.draining, Duration::ZERO, "it is not cordoned");
        fleet.observed[0].cordon = Cordon::Ours;
        draining(&mut fleet, Drain::Listing);
        second().await;
        second().await;
        assert_eq!(draining(&mut fleet, going()), 2);
        assert_eq!(draining(&mut fleet, Drain::Empty), 0);
        second().await;
        assert_eq!(draining(&mut fleet, Drain::Empty), 1);
    }

    #[test]
    fn without_a_selection_what_is_newer_wins() {
        let mut fleet = fleet();
        fleet.selector = None;
        fleet.observe(&node("u2", "30", "old"));
        assert_eq!(after(&mut fleet, gone("u1", "20", "old")), Assigned::Previous, "the one before was deleted");
        assert_eq!(after(&mut fleet, object("u1", "20", "new")), Assigned::Previous);
        fleet.on_event(Event::Init).unwrap();
        assert_eq!(after(&mut fleet, Event::InitDone("29".into())), Assigned::Previous);
        assert_eq!(after(&mut fleet, Event::InitDone("31".into())), Assigned::Gone);
        assert_eq!(fleet.unsure(), None);
        fleet.observe(&node("u3", "32", "new"));
        assert_eq!(after(&mut fleet, gone("u3", "33", "new")), Assigned::Gone);
    }
}
