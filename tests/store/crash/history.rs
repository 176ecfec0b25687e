//! The history under faults at every disk operation of its appends and rotations.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use kubelet_supervisor::adapters::store::FsStore;
use kubelet_supervisor::machine::Input;
use kubelet_supervisor::machine::history::HistoryEntry;

use testkit::sim::Rng;
use testkit::sim::disk::{Fault, Plan, SimDisk};
use testkit::sim::world::{Behaviour, ROOT};

/// Entries of 16 KiB fill a file of 256 KiB after so many; a rotation leaves at least these.
const KEPT: usize = 15;
/// Two rotations.
const LENGTH: u64 = 35;

fn store(disk: &SimDisk) -> FsStore<SimDisk> {
    FsStore::new(disk.clone(), Path::new(ROOT))
}

fn entry(name: &str) -> HistoryEntry {
    HistoryEntry {
        reason: "Test".to_owned(),
        message: name.to_owned(),
        log_tail: vec!["x".repeat(2 << 10); 8],
        ..HistoryEntry::default()
    }
}

/// What was attempted, what was acknowledged.
#[derive(Default)]
struct Appended {
    attempts: Vec<String>,
    acknowledged: BTreeMap<u64, String>,
}

impl Appended {
    fn append(&mut self, store: &mut FsStore<SimDisk>, name: String) {
        self.attempts.push(name.clone());
        if let Ok(number) = store.append(&entry(&name)) {
            let earlier = self.acknowledged.insert(number, name);
            assert_eq!(earlier, None, "number {number} was given twice");
        }
    }

    /// Nothing but what was attempted is there, in order, and what was acknowledged lately is.
    fn check(&self, found: &[HistoryEntry], context: &str) {
        assert!(found.windows(2).all(|pair| pair[0].number < pair[1].number), "{context}: {:?}", numbers(found));
        for seen in found {
            assert_eq!(*seen, HistoryEntry { number: seen.number, ..entry(&seen.message) }, "{context}");
            assert!(self.attempts.contains(&seen.message), "{context}: {}", seen.message);
            let known = self.acknowledged.get(&seen.number);
            assert!(known.is_none_or(|name| *name == seen.message), "{context}: {} is {known:?}", seen.message);
        }
        for (number, name) in self.acknowledged.iter().rev().take(KEPT) {
            assert!(
                found.iter().any(|seen| seen.number == *number),
                "{context}: {name} was lost: {:?}",
                numbers(found)
            );
        }
    }
}

fn numbers(found: &[HistoryEntry]) -> Vec<u64> {
    found.iter().map(|entry| entry.number).collect()
}

fn append_all(disk: &SimDisk, appended: &mut Appended) {
    let mut store = store(disk);
    for at in 0..LENGTH {
        appended.append(&mut store, format!("entry {at}"));
        if at % 5 == 4 {
            store.reported(appended.acknowledged.keys().last().copied().unwrap_or_default());
        }
    }
}

fn operations() -> u64 {
    let disk = SimDisk::default();
    append_all(&disk, &mut Appended::default());
    disk.operations()
}

#[test]
fn the_history_is_bounded_and_counts_on() {
    let (disk, mut appended) = (SimDisk::default(), Appended::default());
    append_all(&disk, &mut appended);
    assert_eq!(appended.acknowledged.keys().copied().collect::<Vec<_>>(), (1..=LENGTH).collect::<Vec<_>>());
    let found = store(&disk).history().0;
    appended.check(&found, "no fault");
    assert!(found.len() < 32, "rotated: {}", found.len());
    for name in ["history.jsonl", "history.1.jsonl"] {
        let text = disk.peek(&Path::new(ROOT).join("supervisor").join(name)).unwrap();
        assert!(text.len() < 300_000 && text.ends_with('\n'), "{name}");
    }
    assert_eq!(store(&disk).unreported(), [], "all were reported");
    let mut next = store(&disk);
    assert_eq!(next.append(&entry("one more")).unwrap(), LENGTH + 1);
    assert_eq!(next.append(&HistoryEntry { local: true, ..entry("ours alone") }).unwrap(), LENGTH + 2);
    assert_eq!(numbers(&store(&disk).unreported()), [LENGTH + 1]);
}

#[test]
fn at_most_32_are_sent_again() {
    let disk = SimDisk::default();
    let mut store = store(&disk);
    for at in 0..50 {
        store.append(&HistoryEntry { message: format!("{at}"), ..HistoryEntry::default() }).unwrap();
    }
    assert_eq!(numbers(&store.unreported()), (19..=50).collect::<Vec<_>>());
    store.reported(40);
    store.reported(7);
    assert_eq!(numbers(&store.unreported()), (41..=50).collect::<Vec<_>>());
}

#[test]
fn a_boot_sends_again_what_the_api_server_lacks() {
    let mut node = super::fresh(None);
    node.boot();
    {
        let mut outside = node.outside.borrow_mut();
        outside.put("a", &Behaviour::Good.text(1));
        outside.assign("a");
    }
    assert!(node.advance(Duration::from_secs(10)));
    let sent = ["KubeletConfigChanged"];
    assert_eq!(std::mem::take(&mut node.outside.borrow_mut().events), sent);
    for again in [&sent[..], &[]] {
        node.kill_supervisor();
        node.boot();
        assert_eq!(std::mem::take(&mut node.outside.borrow_mut().events), again);
        let moment = node.outside.borrow().moment();
        node.executor.handle(Input::Reported(1), moment);
    }
}

#[test]
fn the_history_outlives_a_power_cut_at_every_operation() {
    for at in 0..operations() {
        for seed in 0..3 {
            let context = format!("power off at operation {at}, seed {seed}");
            let (disk, mut appended) = (SimDisk::default(), Appended::default());
            disk.plan(Plan { fault: Fault::PowerOff, at, once: true });
            append_all(&disk, &mut appended);
            disk.crash(&mut Rng::new(seed));
            // Twice, because what the first crash left may be what the second one tears.
            for life in 0..2 {
                appended.check(&store(&disk).history().0, &context);
                let mut store = store(&disk);
                let before = numbers(&store.history().0);
                appended.append(&mut store, format!("after {life}"));
                let (number, _) = appended.acknowledged.last_key_value().unwrap();
                assert!(before.iter().all(|earlier| earlier < number), "{context}: {number} after {before:?}");
                appended.check(&store.history().0, &context);
                assert!(store.unreported().iter().any(|entry| entry.number == *number), "{context}");
                disk.crash(&mut Rng::new(seed + 100));
            }
            appended.check(&store(&disk).history().0, &context);
        }
    }
}

#[test]
fn the_history_goes_on_after_a_failure_at_any_operation() {
    for fault in [Fault::Io, Fault::Full, Fault::ReadOnly] {
        for at in 0..operations() {
            let context = format!("{fault:?} at operation {at}");
            let (disk, mut appended) = (SimDisk::default(), Appended::default());
            disk.plan(Plan { fault, at, once: true });
            append_all(&disk, &mut appended);
            assert!(appended.acknowledged.len() as u64 >= LENGTH - 1, "{context}");
            appended.check(&store(&disk).history().0, &context);
            disk.crash(&mut Rng::new(at));
            appended.check(&store(&disk).history().0, &context);
        }
    }
}
