//! The record, and native's records that follow it.

use std::path::Path;

use kubelet_config::source::Source;
use kubelet_supervisor::adapters::fsx::{Disk as _, RealDisk};
use kubelet_supervisor::adapters::store::{FsStore, meta};
use kubelet_supervisor::machine::records::{Attempt, Phase, RecordFile, Records, Stored, Version};
use testkit::sim::Rng;
use testkit::sim::disk::{Fault, Plan, SimDisk};
use testkit::sim::world::ROOT;

use crate::disk::{at_every_operation, source, store};

/// What a change, its proof and the next change write.
fn story() -> Vec<Records> {
    let version = |n| Version::named(source(n));
    let tried = |n, tries, before: &Records| Records {
        assigned: Some(version(n)),
        phase: Phase::Trial(Attempt { tries, ..Attempt::new(version(n)) }),
        ..before.clone()
    };
    let proven = |before: &Records| Records {
        last_known_good: before.assigned.clone(),
        phase: Phase::Settled,
        ..before.clone()
    };
    let mut story = vec![tried(1, 0, &Records::default())];
    for (n, frozen) in [(2, false), (3, true)] {
        story.push(Records { frozen, ..proven(&story[story.len() - 1]) });
        story.push(tried(n, 1, &story[story.len() - 1]));
    }
    let back = Records { assigned: Some(version(1)), ..story[1].clone() };
    story.push(back);
    story.push(Records::default());
    story
}

fn path(name: &str) -> std::path::PathBuf {
    Path::new(ROOT).join(name)
}

fn read(disk: &SimDisk) -> Stored {
    store(disk).load()
}

/// One life writes all of it; gives how much was acknowledged.
fn write(disk: &SimDisk, story: &[Records]) -> usize {
    let mut life = store(disk);
    life.load();
    let written = story.iter().map(|records| life.record(records).is_ok()).collect::<Vec<_>>();
    written.iter().rposition(|done| *done).map_or(0, |last| last + 1)
}

fn meta(disk: &SimDisk) -> [Option<String>; 2] {
    ["store/meta/assigned", "store/meta/last-known-good"].map(|name| disk.peek(&path(name)))
}

fn native(records: &Records) -> [Option<String>; 2] {
    [&records.assigned, &records.last_known_good]
        .map(|version| Some(meta::encode(version.as_ref().map(|version| &version.source))))
}

/// Somebody else, such as native, assigns this.
fn edit(disk: &SimDisk, assigned: Option<&Source>) {
    disk.poke(&path("store/meta/assigned"), meta::encode(assigned).as_bytes());
}

#[test]
fn records_are_whole_and_what_was_acknowledged_is_there() {
    let story = story();
    let written = |disk: &SimDisk| write(disk, &story);
    at_every_operation(SimDisk::default, written, |disk, acknowledged, context| {
        let stored = read(disk);
        assert!(!stored.meta_changed, "{context}: nobody else wrote: {stored:?}");
        let empty = stored.state == RecordFile::Absent;
        let (found, refused) = stored.into_records();
        assert_eq!(refused, None, "{context}");
        // What was tried after what was acknowledged may be there as well.
        let known = story[acknowledged.saturating_sub(1)..].contains(&found) || (empty && acknowledged == 0);
        assert!(known, "{context}: {acknowledged} were acknowledged, found {found:?}");

        // The next life goes on, and native's records follow.
        let mut next = store(disk);
        next.load();
        let more = Records { retried: Some("later".to_owned()), ..found };
        next.record(&more).unwrap();
        assert_eq!(meta(disk), native(&more), "{context}");
        assert_eq!(read(disk).state, RecordFile::Read(Box::new(more)), "{context}");

        edit(disk, Some(&source(99)));
        let stored = read(disk);
        assert!(stored.meta_changed && stored.assigned == Ok(Some(source(99))), "{context}: {stored:?}");
    });
}

/// A way back to native and to us again, with an assignment that we had before.
#[test]
fn an_edit_back_to_what_was_there_before_is_seen() {
    let (disk, story) = (SimDisk::default(), story());
    assert_eq!(write(&disk, &story[..3]), 3);
    let [before, last] = [1, 2].map(|at| story[at].assigned.clone().map(|version| version.source));
    assert_ne!(before, last);
    edit(&disk, before.as_ref());
    let stored = read(&disk);
    assert!(stored.meta_changed, "{stored:?}");
    assert_eq!(stored.assigned, Ok(before.clone()));
    assert_eq!(stored.last_known_good, Ok(story[2].last_known_good.clone().map(|version| version.source)));
    let (records, _) = stored.into_records();
    assert_eq!(records.assigned.map(|version| version.source), before);
}

#[test]
fn what_cannot_be_read_of_native_is_no_edit() {
    for garbage in [Some(""), Some("kind: Pod\n"), Some("\0\0\0"), None] {
        let (disk, story) = (SimDisk::default(), story());
        write(&disk, &story[..3]);
        let file = path("store/meta/last-known-good");
        match garbage {
            Some(garbage) => disk.poke(&file, garbage.as_bytes()),
            None => disk.remove(&file).unwrap(),
        }
        let stored = read(&disk);
        // An empty file is native's way to say local.
        assert_eq!(stored.meta_changed, garbage == Some(""), "{garbage:?}");
        edit(&disk, Some(&source(99)));
        let stored = read(&disk);
        let proven = story[2].last_known_good.clone().map(|version| version.source);
        assert_eq!((stored.meta_changed, stored.assigned), (true, Ok(Some(source(99)))));
        assert_eq!(stored.last_known_good, Ok(proven.filter(|_| garbage != Some(""))), "{garbage:?}");
        // The next record mends it.
        let mut next = store(&disk);
        next.load();
        next.record(&story[2]).unwrap();
        assert_eq!(meta(&disk), native(&story[2]), "{garbage:?}");
    }
}

#[test]
fn a_record_that_the_disk_does_not_give_is_not_overwritten_by_reading() {
    let (disk, story) = (SimDisk::default(), story());
    write(&disk, &story);
    let changes = disk.changes();
    let last = RecordFile::Read(Box::new(story[story.len() - 1].clone()));
    // A passing error costs nothing.
    disk.plan(Plan { fault: Fault::Io, at: disk.operations(), once: true });
    assert_eq!(read(&disk).state, last);
    disk.plan(Plan { fault: Fault::Io, at: disk.operations(), once: false });
    let stored = read(&disk);
    assert!(matches!(stored.state, RecordFile::Unreadable(_)), "{stored:?}");
    assert!(stored.into_records().1.is_some(), "nothing may be written");
    disk.heal();
    assert_eq!((read(&disk).state, disk.changes()), (last, changes));
}

#[test]
fn what_a_record_file_can_be() {
    let disk = SimDisk::default();
    assert_eq!(read(&disk), Stored::empty());
    write(&disk, &story());
    let state = path("supervisor/state.json");
    for (text, garbage) in
        [("", true), ("{", true), ("\u{0}\u{0}", true), ("{\"version\":1}", false), ("{\"version\":999}", false)]
    {
        disk.poke(&state, text.as_bytes());
        let found = read(&disk).state;
        assert_eq!(matches!(found, RecordFile::Garbage(_)), garbage, "{text:?}: {found:?}");
        assert_eq!(matches!(found, RecordFile::Unreadable(_)), !garbage, "{text:?}: {found:?}");
    }
    disk.poke(&state, &vec![b'x'; (1 << 20) + 1]);
    assert!(matches!(read(&disk).state, RecordFile::Garbage(_)));
}

/// After a failure the file may hold either text, so the next record is written whatever it says.
#[test]
fn a_failed_record_is_written_again() {
    let story = story();
    let length = {
        let disk = SimDisk::default();
        write(&disk, &story[..2]);
        disk.operations()
    };
    for at in 0..length {
        let disk = SimDisk::default();
        disk.plan(Plan { fault: Fault::Io, at, once: true });
        let mut life = store(&disk);
        life.load();
        for records in &story[..2] {
            if life.record(records).is_err() {
                life.record(records).unwrap();
            }
        }
        // Native's may have stayed behind: they follow with the next.
        life.record(&story[1]).unwrap();
        disk.crash(&mut Rng::new(at));
        let stored = read(&disk);
        assert_eq!((stored.meta_changed, stored.into_records().0), (false, story[1].clone()), "failure at {at}");
        assert_eq!(meta(&disk), native(&story[1]), "failure at {at}");
    }
}

#[test]
fn nothing_is_written_twice() {
    let (disk, story) = (SimDisk::default(), story());
    write(&disk, &story);
    let last = &story[story.len() - 1];
    let changes = disk.changes();
    assert_eq!(write(&disk, std::slice::from_ref(last)), 1);
    assert_eq!(disk.changes(), changes);
}

/// Our own record decides. Native's, which cannot be replaced, is replaced as soon as that is possible.
#[test]
fn native_records_that_cannot_be_replaced_cost_no_record() {
    let dir = tempfile::tempdir().unwrap();
    let (story, assigned) = (story(), dir.path().join("store/meta/assigned"));
    let mut life = FsStore::new(RealDisk::default(), dir.path());
    life.load();
    life.record(&story[0]).unwrap();
    std::fs::remove_file(&assigned).unwrap();
    std::fs::create_dir(&assigned).unwrap();
    for records in &story[1..4] {
        life.record(records).unwrap();
        let stored = FsStore::new(RealDisk::default(), dir.path()).load();
        assert!(!stored.meta_changed, "{stored:?}");
        assert_eq!(stored.into_records().0, *records);
    }
    std::fs::remove_dir(&assigned).unwrap();
    life.record(&story[4]).unwrap();
    let written =
        ["assigned", "last-known-good"].map(|name| std::fs::read_to_string(assigned.with_file_name(name)).ok());
    assert_eq!(written, native(&story[4]));
}
