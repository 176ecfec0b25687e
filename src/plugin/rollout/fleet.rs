//! The nodes of a rollout as they were last seen, and since when. A few hundred bytes each: Node
//! objects are read and dropped.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::feed::News;
use super::records::older;
use crate::core::fleet::node::{Condition, NodeRow};
use crate::core::fleet::rollout::drain::{Cordon, Drain};
use crate::core::fleet::rollout::plan::Member;
use crate::core::fleet::rollout::sight::{Clocks, Doing, Has, Sight};
use crate::core::fleet::rollout::{Record, Target, WaitFor};
use crate::plugin::Failure;

#[derive(Default)]
struct Slot {
    /// The Node's resourceVersion.
    version: String,
    condition: Option<Condition>,
    /// Its condition when it was assigned the target.
    prior: Option<Condition>,
    unready: Option<Instant>,
    moving: Option<Instant>,
    away: Option<Instant>,
    draining: Option<Instant>,
    /// The list it was last in.
    listed: u64,
    /// Somebody else took the target from it: theirs, not to be sent once more.
    withdrawn: bool,
}

pub(super) struct Fleet {
    pub(super) members: Vec<Member>,
    pub(super) sights: Vec<Sight>,
    slots: Vec<Slot>,
    places: HashMap<String, usize>,
    target: Target,
    wait_for: WaitFor,
    namespace: String,
    list: u64,
    /// All nodes were seen once.
    pub(super) is_known: bool,
    /// Nodes get back what they had.
    reverting: bool,
    /// So many names of the record are taken up.
    withdrawn: usize,
    /// The rollout's name, which its cordons bear.
    rollout: String,
}

impl Fleet {
    pub(super) fn new(members: Vec<Member>, target: Target, wait_for: WaitFor, namespace: String) -> Self {
        let count = members.len();
        let places = members.iter().enumerate().map(|(place, member)| (member.name.clone(), place)).collect();
        Self {
            members,
            sights: vec![Sight::gone(); count],
            slots: std::iter::repeat_with(Slot::default).take(count).collect(),
            places,
            target,
            wait_for,
            namespace,
            list: 0,
            is_known: false,
            reverting: false,
            withdrawn: 0,
            rollout: String::new(),
        }
    }

    pub(super) fn hear(&mut self, news: News) -> Result<(), Failure> {
        match news {
            News::Begins => self.list += 1,
            News::Listed => {
                for place in 0..self.slots.len() {
                    if self.slots.get(place).is_some_and(|slot| slot.listed != self.list) {
                        self.lose(place);
                    }
                }
                self.is_known = true;
            }
            News::Object(node) => self.see(&node),
            News::Gone(node) => {
                if let Some(place) = self.place(&node) {
                    self.lose(place);
                }
            }
            News::Failed(failure) => return Err(failure),
        }
        Ok(())
    }

    /// Takes up what the record says: where it is going, and from which nodes somebody took the target.
    pub(super) fn follow(&mut self, rollout: &str, record: &Record) {
        if self.rollout != rollout {
            rollout.clone_into(&mut self.rollout);
        }
        let reverting = !record.is_forward();
        let turned = reverting != self.reverting;
        self.reverting = reverting;
        for name in record.withdrawn.iter().skip(std::mem::replace(&mut self.withdrawn, record.withdrawn.len())) {
            let Some(place) = self.places.get(name).copied() else { continue };
            if let (Some(slot), Some(sight)) = (self.slots.get_mut(place), self.sights.get_mut(place)) {
                slot.withdrawn = true;
                withdraw(sight, !reverting);
            }
        }
        if turned {
            self.sights.iter_mut().filter(|sight| sight.taken_back).for_each(|sight| withdraw(sight, !reverting));
        }
    }

    fn place(&self, node: &Value) -> Option<usize> {
        self.places.get(node.pointer("/metadata/name").and_then(Value::as_str)?).copied()
    }

    pub(super) fn lose(&mut self, place: usize) {
        if let (Some(slot), Some(sight)) = (self.slots.get_mut(place), self.sights.get_mut(place)) {
            let (prior, withdrawn) = (slot.prior.take(), slot.withdrawn);
            (*slot, *sight) = (Slot { prior, withdrawn, ..Slot::default() }, Sight::gone());
        }
    }

    /// A Node as it is now, or was: an older one than the one that is known is passed over.
    pub(super) fn see(&mut self, node: &Value) {
        let Some(place) = self.place(node) else { return };
        let (Some(slot), Some(member), Some(sight)) =
            (self.slots.get_mut(place), self.members.get(place), self.sights.get_mut(place))
        else {
            return;
        };
        slot.listed = self.list;
        let version = node.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default();
        if older(version, &slot.version) {
            return;
        }
        version.clone_into(&mut slot.version);
        let row = NodeRow::of(node, &self.namespace);
        let mut seen = Sight::of(&row, member, &self.target, slot.prior.as_ref());
        slot.withdrawn |= !self.reverting && sight.has == Has::Target && seen.has == Has::Before;
        if slot.withdrawn {
            withdraw(&mut seen, !self.reverting);
        }
        seen.cordon = Cordon::of(row.cordoned, row.cordoned_by.as_deref(), &self.rollout);
        seen.drain = std::mem::take(&mut sight.drain);
        // One that moves from one thing to another begins to move.
        if seen.has != sight.has {
            slot.moving = None;
        }
        *sight = seen;
        slot.condition = row.condition;
        let moves = match sight.has {
            Has::Target => !sight.is_settled(self.wait_for),
            Has::Before | Has::Other => sight.doing == Doing::Moving,
            Has::Gone => false,
        };
        let now = Instant::now();
        let keep = |since: &mut Option<Instant>, holds: bool| *since = holds.then(|| since.unwrap_or(now));
        keep(&mut slot.unready, !sight.ready);
        keep(&mut slot.moving, moves);
        keep(&mut slot.away, sight.is_away());
    }

    /// What the node says now is old news once it is assigned something new.
    pub(super) fn before_write(&mut self, place: usize) {
        if let Some(slot) = self.slots.get_mut(place) {
            slot.prior.clone_from(&slot.condition);
        }
    }

    /// How far a node's drain is.
    pub(super) fn drained(&mut self, place: usize, drain: Drain) {
        if let (Some(slot), Some(sight)) = (self.slots.get_mut(place), self.sights.get_mut(place)) {
            let on = drain.is_on() && drain != Drain::Empty;
            slot.draining = on.then(|| slot.draining.unwrap_or_else(Instant::now));
            sight.drain = drain;
        }
    }

    /// Nodes that this rollout cordoned, and that are so still.
    pub(super) fn cordoned(&self) -> Vec<String> {
        let cordoned = self.members.iter().zip(&self.sights).filter(|(_, sight)| sight.cordon == Cordon::Ours);
        cordoned.map(|(member, _)| member.name.clone()).collect()
    }

    pub(super) fn version(&self, place: usize) -> &str {
        self.slots.get(place).map_or("", |slot| &slot.version)
    }

    /// Brings the clocks to now.
    pub(super) fn tick(&mut self) {
        // Never zero for something that holds: zero is "not at all".
        let of = |since: Option<Instant>| since.map_or(Duration::ZERO, |it| it.elapsed().max(Duration::from_nanos(1)));
        for (slot, sight) in self.slots.iter().zip(&mut self.sights) {
            sight.clocks = Clocks {
                unready: of(slot.unready),
                moving: of(slot.moving),
                away: of(slot.away),
                draining: of(slot.draining),
            };
        }
    }
}

/// One from which somebody took the target has, as long as nodes are given it, what is none of ours.
fn withdraw(sight: &mut Sight, forward: bool) {
    if forward && sight.has == Has::Before {
        (sight.has, sight.taken_back) = (Has::Other, true);
    } else if !forward && sight.taken_back {
        (sight.has, sight.taken_back) = (Has::Before, false);
    }
}
