//! Which class a Node is, and that the table of classes is the same wherever it stands.

use serde_json::json;

use super::super::class::{Class, Measure, class};
use super::super::node::request;
use super::super::renderings::RevisionTarget;
use super::*;

#[test]
fn classes_come_in_their_order() {
    let mut world = World::new(1, json!({}));
    world.settle();
    let (name, target) = ("n000", RevisionTarget::plain(world.update()));
    let drains = BTreeMap::new();
    let revision = Measure {
        target: &target,
        proof: Proof::Proven,
        node_timeout: Duration::from_secs(3600),
        started_at: world.now,
        asks: true,
        request: request(&target.reference),
        asked_at: None,
        pool: "pool-a",
        had: Vec::new(),
        drains: &drains,
    };
    let now = world.now + Duration::from_secs(3600);
    let of = |node: &PoolNode| class(node, &revision, now);
    let mut node = world.nodes[name].clone();
    assert_eq!(of(&node), Class::InFlight);
    node.progress = Progress::Proven;
    assert_eq!(of(&node), Class::Done);
    (node.ready, node.lasts.unready, node.lasts.updating) = (false, Duration::from_secs(60), Duration::from_secs(60));
    assert_eq!(of(&node), Class::Lost);
    node.progress = Progress::Bad("no".to_owned());
    assert_eq!(of(&node), Class::Bad);
    node.held = true;
    assert_eq!(of(&node), Class::Held);
    node.is_managed = false;
    assert_eq!(of(&node), Class::Unsupervised);
    node.leaving = true;
    assert_eq!(of(&node), Class::Leaving);
    let mut node = super::node("n", OLD, json!({}));
    assert_eq!(of(&node), Class::Behind);
    node.has_supervisor = true;
    assert_eq!(of(&node), Class::Asked);
    (node.unschedulable, node.cordoned_by) = (true, Some("pool/pool-a".to_owned()));
    assert_eq!(of(&node), Class::Draining);
    let answer = Some(super::super::node::PreflightAnswer::Refused("no".to_owned()));
    node.preflight = Some(super::super::node::NodePreflight { request: request(&target.reference), answer });
    assert_eq!(of(&node), Class::Refusing);
    node.unwritable = true;
    assert_eq!(of(&node), Class::Unwritable);
}

/// The table is the same for those who read the code and for those who do not.
#[test]
fn the_table_of_classes_is_the_documented_one() {
    let rows = |text: &str, prefix: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(prefix));
        lines
            .skip_while(|line| !line.starts_with("| class "))
            .take_while(|line| line.starts_with('|'))
            .map(str::to_owned)
            .collect()
    };
    let code = rows(include_str!("../class.rs"), "//! ");
    assert_eq!(code.len(), 14);
    assert_eq!(code, rows(include_str!("../../../../../../docs/usage/pools.md"), ""));
}
