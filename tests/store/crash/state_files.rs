//! The kubelet's state files under faults at every disk operation of a change of policies and back.

use std::collections::BTreeMap;
use std::path::Path;

use kubelet_supervisor::adapters::store::FsStore;
use kubelet_supervisor::machine::model::{StateFiles, StateFilesFound};

use testkit::sim::Rng;
use testkit::sim::disk::{Fault, Plan, SimDisk};
use testkit::sim::world::ROOT;

const KUBELET: &str = "/var/lib/kubelet";
const NAMES: [&str; 2] = ["cpu_manager_state", "memory_manager_state"];
const NONE: &str = "cpu=none,memory=None";
const STATIC: &str = "cpu=static,memory=None";
const OTHER: &str = "cpu=static/distribute cpus=true"; // no safe name

/// What lies in the root directory.
type Files = [Option<String>; 2];
/// A policy, and whether its files shall come back.
type Goal = (&'static str, bool);

/// Forward, rolled back, forward again, and back by the administrator.
const STORY: [Goal; 5] = [(NONE, true), (STATIC, false), (NONE, true), (STATIC, false), (NONE, true)];

fn swap(disk: &SimDisk, (policy, restore): Goal) -> Result<(), String> {
    let files = StateFiles { policy: policy.to_owned(), restore, ..StateFiles::default() };
    let swapped = FsStore::new(disk.clone(), Path::new(ROOT)).swap_state_files(&files, KUBELET);
    swapped.map(drop).map_err(|error| error.to_string())
}

/// A node that has run with its own policy: whose files they are is on record from then on.
fn fresh() -> SimDisk {
    let disk = SimDisk::default();
    run(&disk, NONE, 100);
    swap(&disk, (NONE, false)).unwrap();
    disk
}

fn files(disk: &SimDisk) -> Files {
    NAMES.map(|name| disk.peek(&Path::new(KUBELET).join(name)))
}

/// A kubelet with this policy runs and writes its state.
fn run(disk: &SimDisk, policy: &str, generation: usize) -> Files {
    for (name, present) in NAMES.iter().zip(files(disk)) {
        // The static one has no memory manager state of its own.
        if policy == NONE || *name == NAMES[0] || present.is_some() {
            disk.poke(&Path::new(KUBELET).join(name), format!("{policy} {name} {generation}").as_bytes());
        }
    }
    files(disk)
}

/// Tells the story until something fails. What each policy's kubelet wrote last.
fn run_story(disk: &SimDisk) -> (BTreeMap<&'static str, Files>, Result<(), String>) {
    let mut own = BTreeMap::from([(NONE, files(disk))]);
    for (generation, (policy, restore)) in STORY.into_iter().enumerate() {
        if let Err(why) = swap(disk, (policy, restore)) {
            return (own, Err(why));
        }
        check(disk, &own, (policy, restore), "the story");
        if disk.is_off() {
            return (own, Err("power is off".to_owned())); // it went while old stashes were dropped
        }
        own.insert(policy, run(disk, policy, generation));
    }
    (own, Ok(()))
}

/// After a swap that was done: its policy's own files or none, and what was to come back is there.
fn check(disk: &SimDisk, own: &BTreeMap<&'static str, Files>, (policy, restore): Goal, context: &str) {
    let (found, mine) = (files(disk), own.get(policy).cloned().unwrap_or_default());
    let all = found == mine || (found == Files::default() && !(policy == NONE && restore));
    assert!(all, "{context}: {policy} has {found:?}, its own are {mine:?}");
    let tmp = |name: &str| disk.peek(&Path::new(KUBELET).join(format!("tmp_{name}"))).is_some();
    assert!(!NAMES.iter().any(|name| tmp(name)), "{context}: litter");
}

/// The operations of the story, as [`Plan`] counts them.
fn operations() -> std::ops::Range<u64> {
    let disk = fresh();
    let first = disk.operations();
    run_story(&disk).1.unwrap();
    first..disk.operations()
}

#[test]
fn state_files_follow_their_policy() {
    let disk = fresh();
    let (own, done) = run_story(&disk);
    done.unwrap();
    assert_eq!(own[STATIC], [Some(format!("{STATIC} cpu_manager_state 3")), None]);
    assert_eq!(own[NONE], NAMES.map(|name| Some(format!("{NONE} {name} 4"))));
    let before = disk.operations();
    swap(&disk, (NONE, false)).unwrap();
    assert_eq!(disk.operations() - before, 3, "the common case is three reads");
}

#[test]
fn old_stashes_are_dropped() {
    let disk = SimDisk::default();
    let policies = ["p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7"];
    for policy in policies {
        swap(&disk, (policy, true)).unwrap();
        run(&disk, policy, 0);
    }
    let kept = policies.map(|policy| {
        let copy = disk.copy();
        swap(&copy, (policy, true)).unwrap();
        files(&copy) != Files::default()
    });
    assert_eq!(kept, [false, false, false, true, true, true, true, true]);
}

#[test]
fn a_file_too_large_is_left_alone() {
    let disk = fresh();
    let path = Path::new(KUBELET).join(NAMES[1]);
    disk.poke(&path, &vec![b'x'; (1 << 20) + 1]);
    let before = files(&disk);
    let why = swap(&disk, (STATIC, false)).unwrap_err();
    assert!(why.starts_with("/var/lib/kubelet/memory_manager_state: "), "{why}");
    assert_eq!(files(&disk), before);
}

#[test]
fn power_off_before_the_owner_is_on_record() {
    for at in 0..fresh().operations() {
        let disk = SimDisk::default();
        let own = run(&disk, NONE, 100);
        disk.plan(Plan { fault: Fault::PowerOff, at, once: true });
        let _ = swap(&disk, (NONE, false));
        disk.crash(&mut Rng::new(at));
        swap(&disk, (NONE, false)).unwrap();
        assert_eq!(files(&disk), own);
    }
}

#[test]
fn power_off_at_every_operation_of_swaps() {
    for at in operations() {
        let disk = fresh();
        disk.plan(Plan { fault: Fault::PowerOff, at, once: true });
        let (own, _) = run_story(&disk);
        disk.crash(&mut Rng::new(at));
        // The next start is for either policy, or a third; the power may go again meanwhile.
        for middle in [(NONE, true), (STATIC, false), (OTHER, false)] {
            for again in 0..40 {
                let disk = disk.copy();
                disk.plan(Plan { fault: Fault::PowerOff, at: again, once: true });
                let done = swap(&disk, middle);
                if done.is_ok() {
                    check(&disk, &own, middle, &format!("cut at {at}, then {middle:?}"));
                }
                disk.crash(&mut Rng::new(at ^ again));
                for goal in [(NONE, true), (STATIC, false), (STATIC, true), (OTHER, true)] {
                    let disk = disk.copy();
                    let context = format!("cut at {at}, then {middle:?} cut at {again}, then {goal:?}");
                    swap(&disk, goal).unwrap();
                    check(&disk, &own, goal, &context);
                    disk.crash(&mut Rng::new(at));
                    check(&disk, &own, goal, &format!("{context}, and a cut after it"));
                }
                if done.is_ok() {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_change_of_policy_that_was_cut_is_taken_back_whole() {
    let mut taken_back = 0;
    for at in 0..40 {
        let disk = fresh();
        let own = files(&disk);
        disk.plan(Plan { fault: Fault::PowerOff, at: disk.operations() + at, once: true });
        let _ = swap(&disk, (STATIC, false));
        disk.crash(&mut Rng::new(at));
        let owner = disk.peek(&Path::new(ROOT).join("supervisor/state-files/owner.json")).unwrap();
        if owner.contains(&format!("\"owner\":\"{NONE}\"")) {
            taken_back += 1;
            // Nobody asked for them to come back; but they were never given up either.
            swap(&disk, (NONE, false)).unwrap();
            assert_eq!(files(&disk), own, "cut at {at}: {owner}");
        }
    }
    assert!((10..40).contains(&taken_back), "{taken_back}");
}

#[test]
fn a_failure_at_any_operation_of_swaps_is_made_good_by_the_next() {
    for fault in [Fault::Io, Fault::Full, Fault::ReadOnly] {
        for at in operations() {
            let disk = fresh();
            disk.plan(Plan { fault, at, once: true });
            let (own, _) = run_story(&disk);
            for goal in [(NONE, true), (STATIC, false), (OTHER, false)] {
                let disk = disk.copy();
                swap(&disk, goal).unwrap();
                check(&disk, &own, goal, &format!("{fault:?} at {at}, then {goal:?}"));
            }
        }
    }
}

/// As a kubelet of this policy writes it.
fn state_of(policy: &str) -> String {
    format!(r#"{{"policyName":"{policy}","defaultCpuSet":"","checksum":1353318690}}"#)
}

fn put(disk: &SimDisk, policy: &str) {
    disk.poke(&Path::new(KUBELET).join(NAMES[0]), state_of(policy).as_bytes());
}

/// Edited by hand, or the store is another one: a kubelet refuses the files, whatever is on record of them.
#[test]
fn files_that_say_another_policy_are_put_aside_before_a_start() {
    let none = "cpu=none_memory=None";
    for is_known in [true, false] {
        let disk = SimDisk::default();
        if is_known {
            put(&disk, "none");
            assert_eq!(start(&disk, none, false), Ok(StateFilesFound::InOrder));
        }
        put(&disk, "static");
        assert_eq!(start(&disk, none, true), Ok(StateFilesFound::OfAnother), "nothing is changed while a kubelet runs");
        assert_eq!(disk.peek(&Path::new(KUBELET).join(NAMES[0])), Some(state_of("static")));
        let Ok(StateFilesFound::PutAside(what)) = start(&disk, none, false) else { panic!("they stay") };
        assert!(what.contains("cpu=static_memory=None"), "{what}");
        assert_eq!(files(&disk), Files::default(), "the kubelet begins with none");
        assert_eq!(start(&disk, none, false), Ok(StateFilesFound::InOrder), "it is told once");
        put(&disk, "none");
        assert_eq!(start(&disk, "cpu=static_memory=None", false), Ok(StateFilesFound::InOrder));
        assert_eq!(files(&disk)[0], Some(state_of("static")), "they come back with their policy");
    }
}

fn start(disk: &SimDisk, policy: &str, look: bool) -> Result<StateFilesFound, String> {
    let files = StateFiles { policy: policy.to_owned(), restore: true, look, ..StateFiles::default() };
    let found = FsStore::new(disk.clone(), Path::new(ROOT)).swap_state_files(&files, KUBELET);
    found.map_err(|error| error.to_string())
}

/// Such as a `--root-dir` that is none: the kubelet says so, if it minds.
#[test]
fn what_cannot_be_read_holds_no_start_up_that_crosses_no_policy() {
    let disk = fresh();
    disk.plan(Plan { fault: Fault::Io, at: disk.operations() + 1, once: false });
    assert_eq!(start(&disk, NONE, false), Ok(StateFilesFound::InOrder));
    assert!(start(&disk, STATIC, false).is_err(), "and one that does is not made");
}
