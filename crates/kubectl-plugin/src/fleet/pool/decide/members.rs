//! The Nodes of a pool, and what concerns them whatever the pool is about to do.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::super::class::Class;
use super::super::drain::Cordon;
use super::super::leave::{Leavers, is_waited_for};
use super::super::node::{Given, PoolNode, Progress};
use super::super::renderings::{NodeAssignment, RevisionTarget};
use super::super::report::NAMES;
use super::super::revision::parse_revision_name;
use super::super::types::{KubeletConfigPoolStatus, NamedNodes, Proof};
use super::view::{Cluster, Pool};

/// The Nodes of a pool.
pub(super) struct Members<'a> {
    pub(super) pool: &'a Pool<'a>,
    pub(super) now: Timestamp,
    /// Control-plane Nodes of the cluster that are not Ready, or are cordoned for a pool, or have not proven what they are
    /// assigned, or whose static pods do not all run.
    pub(super) busy_control_plane: BTreeSet<&'a str>,
    /// Selected by this pool alone.
    pub(super) own: Vec<&'a PoolNode>,
    /// Selected by another pool too, whose name it is.
    pub(super) shared: Vec<(&'a PoolNode, &'a str)>,
    pub(super) leavers: Leavers<'a>,
}

impl<'a> Members<'a> {
    pub(super) fn new(pool: &'a Pool<'a>, cluster: &Cluster<'a>) -> Self {
        let is_busy = |node: &PoolNode| {
            let is_away = !node.ready || node.cordoned_for().is_some() || cluster.static_pods.contains_key(&node.name);
            is_away || node.is_on_its_way(Proof::Proven, cluster.now) || is_waited_for(node)
        };
        let is_selected = |node: &PoolNode| {
            let mut specs = cluster.pools.iter().map(|(_, spec)| spec).chain([pool.spec]);
            specs.any(|spec| spec.node_selector.selects(&node.labels))
        };
        let of_no_pool = cluster.nodes.values().filter(|node| !is_selected(node));
        let leavers = Leavers::new(pool.name, pool.spec, pool.status, pool.namespace, of_no_pool);
        let busy = cluster.nodes.values().filter(|node| node.is_control_plane() && is_busy(node));
        let busy_control_plane = busy.map(|node| node.name.as_str()).collect();
        let (mut own, mut shared) = (Vec::new(), Vec::new());
        let others: Vec<_> = cluster.pools.iter().filter(|(name, _)| name != pool.name).collect();
        for node in cluster.nodes.values().filter(|node| pool.spec.node_selector.selects(&node.labels)) {
            match others.iter().find(|(_, spec)| spec.node_selector.selects(&node.labels)) {
                None => own.push(node),
                Some((other, _)) => shared.push((node, other.as_str())),
            }
        }
        Self { pool, now: cluster.now, busy_control_plane, own, shared, leavers }
    }

    /// Counts the Nodes in a status. `classes`: what they are to `update`, if there is one.
    pub(super) fn count(
        &self,
        status: &mut KubeletConfigPoolStatus,
        classes: &[(&PoolNode, Class)],
        update: Option<&RevisionTarget<'_>>,
        proof: Proof,
    ) {
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let count = |is: &dyn Fn(&PoolNode) -> bool| number(self.own.iter().filter(|node| is(node)).count());
        let named = |is: &dyn Fn(Class) -> bool| {
            let names = || classes.iter().filter(|(_, class)| is(*class)).map(|(node, _)| node.name.clone());
            NamedNodes { count: number(names().count()), nodes: names().take(NAMES).collect() }
        };
        let has = |node: &PoolNode| update.is_some_and(|update| update.is_on(node));
        let is_cordoned = |node: &PoolNode| node.cordon(self.pool.name) == Cordon::Ours;
        status.nodes = number(self.own.len() + self.shared.len());
        status.updated = count(&has);
        status.proven = count(&|node| has(node) && node.is_done(Proof::Proven));
        status.failed = count(&|node| has(node) && matches!(node.progress, Progress::Bad(_)));
        status.updating = count(&|node| node.is_in_flight(proof));
        status.unavailable = count(&|node| !node.ready || is_cordoned(node) || node.is_in_flight(proof));
        status.stragglers = named(&Class::is_straggler);
        status.unsupervised = named(&|class| class == Class::Unsupervised);
        status.unwritable = named(&|class| class == Class::Unwritable);
    }

    /// It has just joined a pool whose Nodes have something, and is assigned nothing yet: it has no pods that a change could
    /// hurt. The Nodes of a pool that has had nothing yet do not join: they get its first revision as others do.
    pub(super) fn joins(&self, node: &PoolNode) -> bool {
        self.pool.status.current_revision.is_some() && node.desired.is_none() && node.is_young(self.now)
    }

    /// It joined, and is on its way to what it got then.
    pub(super) fn has_joined(&self, node: &PoolNode) -> bool {
        node.given == Some(Given::Joined) && node.is_young(self.now)
    }

    /// Nodes that another pool selects too, with that pool.
    pub(super) fn conflicts(&self) -> Vec<String> {
        self.shared.iter().map(|(node, other)| format!("{} ({other})", node.name)).collect()
    }

    /// Names of those that wait for as long as it takes.
    pub(super) fn waiting(&self) -> Vec<String> {
        self.own.iter().filter(|node| node.waits).map(|node| node.name.clone()).collect()
    }

    /// Nodes that have the startup taint, and run a revision of the pool by now.
    pub(super) fn with_startup_taint(&self, update: Option<&RevisionTarget<'_>>) -> Vec<String> {
        let Some(taint) = &self.pool.spec.startup_taint else { return Vec::new() };
        let current = self.current(self.pool.status);
        let is_configured = |node: &PoolNode| {
            update.into_iter().chain(&current).any(|target| target.is_on(node)) && node.is_done(Proof::Active)
        };
        let tainted = self.own.iter().filter(|node| node.taints.contains(taint) && is_configured(node));
        tainted.map(|node| node.name.clone()).collect()
    }

    /// Nodes that have just joined get `target`; without one, what all have.
    pub(super) fn joined(&self, target: Option<&RevisionTarget<'_>>) -> Vec<NodeAssignment> {
        let Some(target) = target.cloned().or_else(|| self.current(self.pool.status)) else { return Vec::new() };
        let is_free = |node: &PoolNode| !node.leaving && !node.held && !node.unwritable;
        let is_new = |node: &&PoolNode| self.joins(node) && is_free(node) && target.of(node).is_some();
        let new = self.one_control_plane_at_a_time(self.own.iter().copied().filter(is_new));
        new.filter_map(|node| NodeAssignment::of(&target, node, Given::Joined)).collect()
    }

    /// What all had last.
    pub(super) fn current(&self, status: &KubeletConfigPoolStatus) -> Option<RevisionTarget<'a>> {
        let reference = parse_revision_name(status.current_revision.as_deref()?, self.pool.namespace);
        let mut known = self.pool.current.into_iter().chain(self.pool.update.ok());
        let known = known.find(|target| target.reference == reference);
        Some(known.cloned().unwrap_or_else(|| RevisionTarget::plain(reference)))
    }

    /// Control-plane Nodes of all pools: the next one when all others are Ready and have proven what they have.
    pub(super) fn one_control_plane_at_a_time(
        &self,
        nodes: impl Iterator<Item = &'a PoolNode>,
    ) -> impl Iterator<Item = &'a PoolNode> {
        let mut busy = self.busy_control_plane.clone();
        nodes.filter(move |node| {
            let is_free = !node.is_control_plane() || busy.iter().all(|other| *other == node.name);
            if is_free && node.is_control_plane() {
                busy.insert(&node.name);
            }
            is_free
        })
    }
}
