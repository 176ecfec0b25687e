//! Which node comes when.

use std::collections::{BTreeMap, VecDeque};

use super::Target;
use super::member::{Member, is_same};
use crate::fleet::assign::WrittenAssignment;
use crate::fleet::node::{NodeRow, Stage};

/// All nodes in their order: round the zones, so that canaries and waves are of as many zones as
/// there are. What cannot take a change now (not Ready, held on the node) goes to the end.
///
/// `zone`: the label that says where a node is.
pub(crate) fn order(rows: &[NodeRow], zone: Option<&str>) -> Vec<Member> {
    let (fit, unfit): (Vec<&NodeRow>, Vec<&NodeRow>) =
        rows.iter().partition(|row| row.ready && row.stage() != Stage::Held);
    let members = [fit, unfit].into_iter().flat_map(|rows| round(&rows, zone));
    members.map(|row| Member { name: row.name.clone(), before: WrittenAssignment::from_row(row) }).collect()
}

/// Nodes that have the target from rollouts before this one get back what those remember, not the target itself.
/// `former`: their nodes, newest rollout first; with true for one that gave all back, and behind which no node is
/// left: after that it was somebody else who assigned it.
pub(crate) fn carry(members: &mut [Member], target: &Target, former: impl IntoIterator<Item = (bool, Vec<Member>)>) {
    let has_it = |member: &&mut Member| is_same(&member.before, target);
    let mut open: BTreeMap<String, &mut WrittenAssignment> =
        members.iter_mut().filter(has_it).map(|member| (member.name.clone(), &mut member.before)).collect();
    for (gave_back, theirs) in former {
        for Member { name, before } in theirs {
            // What the target itself is remembered for is no news; an older one may know more.
            if is_same(&before, target) {
                continue;
            }
            if let Some(ours) = open.remove(&name)
                && !gave_back
            {
                *ours = before;
            }
        }
    }
}

/// One of each zone in turn.
fn round<'a>(rows: &[&'a NodeRow], zone: Option<&str>) -> Vec<&'a NodeRow> {
    let mut zones: BTreeMap<&str, VecDeque<&NodeRow>> = BTreeMap::new();
    let mut sorted = rows.to_vec();
    sorted.sort_by(|one, other| one.name.cmp(&other.name));
    for row in sorted {
        zones.entry(zone_of(row, zone)).or_default().push_back(row);
    }
    let mut order = Vec::with_capacity(rows.len());
    while order.len() < rows.len() {
        order.extend(zones.values_mut().filter_map(VecDeque::pop_front));
    }
    order
}

/// Where a node is; empty if it does not say.
pub(crate) fn zone_of<'a>(row: &'a NodeRow, key: Option<&str>) -> &'a str {
    match key {
        Some(key) => row.labels.get(key).map_or("", String::as_str),
        None => &row.zone,
    }
}

/// `--max-unavailable`: a number, or a share of the nodes; at least one.
///
/// # Errors
/// What it should be.
pub(crate) fn unavailable(text: &str, nodes: usize) -> Result<usize, String> {
    let bad = || format!("--max-unavailable {text:?}: a number from 1, or a share such as 10%");
    if let Some(share) = text.strip_suffix('%') {
        let share: usize = share.parse().map_err(|_| bad())?;
        // Rounded down: what is asked for is a limit.
        return if (1..=100).contains(&share) { Ok((nodes * share / 100).max(1)) } else { Err(bad()) };
    }
    text.parse().ok().filter(|number| *number > 0).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubelet_config::assignment::LABELS;
    use kubelet_config::source::ConfigMapRef;

    fn row(name: &str, zone: &str, ready: bool) -> NodeRow {
        NodeRow { name: name.into(), zone: zone.into(), ready, ..NodeRow::default() }
    }

    #[test]
    fn canaries_are_of_different_zones_and_able() {
        let rows = [row("a1", "a", true), row("a2", "a", true), row("b0", "b", false), row("b1", "b", true)];
        let order: Vec<String> = order(&rows, None).into_iter().map(|member| member.name).collect();
        assert_eq!(order, ["a1", "b1", "a2", "b0"]);
    }

    #[test]
    fn another_key_may_say_where_nodes_are() {
        let mut rows = [row("n1", "a", true), row("n2", "a", true), row("n3", "a", true)];
        for (row, rack) in rows.iter_mut().zip(["r1", "r1", "r2"]) {
            row.labels.insert("rack".into(), rack.into());
        }
        let order: Vec<String> = order(&rows, Some("rack")).into_iter().map(|member| member.name).collect();
        assert_eq!(order, ["n1", "n3", "n2"]);
    }

    #[test]
    fn shares_are_rounded_down_to_one_at_least() {
        assert_eq!(unavailable("10%", 25), Ok(2));
        assert_eq!(unavailable("10%", 3), Ok(1));
        assert_eq!(unavailable("7", 3), Ok(7));
        for bad in ["0", "0%", "101%", "-1", "x", ""] {
            assert!(unavailable(bad, 10).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_nodes_had_before_an_older_rollout_is_not_forgotten() {
        let target = Target {
            reference: ConfigMapRef { namespace: "n".into(), name: "m".into(), kubelet_config_key: "kubelet".into() },
            uid: "u".into(),
            resource_version: "1".into(),
            immutable: true,
        };
        let before = |map: &str| WrittenAssignment {
            native: None,
            labels: BTreeMap::from([("name".to_owned(), map.to_owned())]),
        };
        let member = |name: &str, map: &str| Member { name: name.into(), before: before(map) };
        let now = || vec![member("a", "m"), member("b", "m"), member("c", "old"), member("d", "m"), member("e", "m")];
        let newest = vec![member("a", "m"), member("b", "x"), member("c", "y")];
        let gone_back = vec![member("d", "x")];
        let oldest = vec![member("a", "z"), member("b", "z"), member("d", "z")];
        let mut members = now();
        carry(&mut members, &target, [(false, newest), (true, gone_back), (false, oldest)]);
        let maps: Vec<&str> = members.iter().map(|member| member.before.labels["name"].as_str()).collect();
        assert_eq!(maps, ["z", "x", "old", "m", "m"]);
    }

    #[test]
    fn what_was_there_before_is_kept_as_it_was_written() {
        let mut row = row("n", "a", true);
        row.labels.insert(format!("{LABELS}name"), "pool".into());
        row.labels.insert("else".into(), "x".into());
        assert_eq!(WrittenAssignment::from_row(&row).labels, BTreeMap::from([("name".to_owned(), "pool".to_owned())]));
    }
}
