//! Random worlds: administrators, API servers, kubelets, disks and power all misbehave, and the
//! laws hold after every step.
//!
//! `SIM_SEED=n` replays one seed, `SIM_SEEDS` and `SIM_STEPS` run more than the default.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::unchecked_time_subtraction,
    clippy::needless_for_each,
    clippy::needless_pass_by_value,
    reason = "test code: a panic is a failing test, and brevity wins"
)]

#[path = "support/sim/mod.rs"]
mod sim;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use kubelet_supervisor::core::machine::{Settings, Wanted};
use sim::Rng;
use sim::disk::{Fault, Plan};
use sim::harness::Node;
use sim::world::{Behaviour, Outside, ROOT};

/// Short, because every probe of a trial is simulated; longer than the patience with healthz.
const TRIAL: Duration = Duration::from_secs(90);

const NAMES: [&str; 3] = ["blue", "green", "red"];

/// Good ones more often: a world of failures never gets to last known good.
const BEHAVIOURS: [Behaviour; 16] = [
    Behaviour::Good,
    Behaviour::Good,
    Behaviour::Good,
    Behaviour::Good,
    Behaviour::Good,
    Behaviour::Good,
    Behaviour::Mute,
    Behaviour::Hiccup,
    Behaviour::Stubborn,
    Behaviour::Unloadable,
    Behaviour::Invalid,
    Behaviour::DiesAtOnce,
    Behaviour::DiesAfter(5),
    Behaviour::DiesAfter(40),
    Behaviour::NeverReady,
    Behaviour::SickAfter(30),
];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// What somebody does to the API server's objects.
fn administer(outside: &mut Outside, rng: &mut Rng) -> String {
    let name = rng.pick(&NAMES);
    match rng.below(12) {
        0..=2 => {
            outside.assign(name);
            format!("assign {name}")
        }
        3..=5 => {
            let behaviour = rng.pick(&BEHAVIOURS);
            // Few salts, so that equal contents meet again under other names.
            outside.put(name, &behaviour.text(rng.below(3)));
            format!("{name} becomes {behaviour:?}")
        }
        6 | 7 => {
            outside.touch(name);
            format!("label {name}")
        }
        8 => {
            outside.delete(name);
            format!("delete {name}")
        }
        9 => {
            outside.want(Wanted::Map(Outside::reference(name, if rng.one_in(2) { "other" } else { "absent" })));
            format!("assign another key of {name}")
        }
        10 => {
            outside.want(Wanted::Local);
            "reset".to_owned()
        }
        _ => {
            let wanted = if rng.one_in(2) { Wanted::AllNil } else { Wanted::Unknown };
            outside.want(wanted.clone());
            format!("the Node says {wanted:?}")
        }
    }
}

/// What goes wrong with disk and power. True if the supervisor's life ends with it.
fn spoil(node: &mut Node, rng: &mut Rng) -> (String, bool) {
    let disk = node.outside.borrow().disk.clone();
    let at = disk.operations() + rng.below(60);
    match rng.below(10) {
        0 | 1 => {
            disk.plan(Plan { fault: Fault::PowerOff, at, once: true });
            (format!("power off at operation {at}"), false)
        }
        2 => {
            node.power_cycle();
            ("power off now".to_owned(), true)
        }
        3 => {
            node.kill_supervisor();
            ("kill the supervisor".to_owned(), true)
        }
        4..=7 => {
            let (fault, once) = (rng.pick(&[Fault::Full, Fault::Io, Fault::ReadOnly]), rng.one_in(2));
            disk.plan(Plan { fault, at, once });
            (format!("{fault:?} at operation {at}, once: {once}"), false)
        }
        8 => {
            disk.heal();
            ("the disk works again".to_owned(), false)
        }
        _ => {
            // A bit flips in the assigned checkpoint, or in one that is kept.
            let stored = node.stored();
            let records = [stored.assigned, stored.last_known_good];
            if let Some(source) = records[usize::from(rng.one_in(2))].as_ref().ok().and_then(Option::as_ref) {
                let path = format!("{ROOT}/store/checkpoints/{}/{}/other", source.uid, source.resource_version);
                if disk.rot(Path::new(&path)) {
                    let id = (source.uid.clone(), source.resource_version.clone());
                    node.outside.borrow_mut().rotten.insert(id);
                }
            }
            ("a checkpoint rots".to_owned(), false)
        }
    }
}

/// What happens to the node and its kubelet.
fn disturb(outside: &mut Outside, rng: &mut Rng) -> String {
    match rng.below(6) {
        0 | 1 => {
            let up = rng.below(3) > 0;
            outside.set_api(up);
            format!("API server up: {up}")
        }
        2 => {
            outside.kill_kubelet();
            "the kubelet is killed".to_owned()
        }
        3 => {
            outside.wall_skew = rng.next();
            "the wall clock jumps".to_owned()
        }
        4 => {
            outside.kubelet_id = format!("kubelet {}", rng.below(3));
            format!("upgrade to {}", outside.kubelet_id)
        }
        _ => {
            outside.spawn_failures = 1;
            "the next start fails".to_owned()
        }
    }
}

fn step(node: &mut Node, rng: &mut Rng) -> String {
    let what = match rng.below(10) {
        0..=4 => administer(&mut node.outside.borrow_mut(), rng),
        5 | 6 => disturb(&mut node.outside.borrow_mut(), rng),
        7 => {
            let (what, dead) = spoil(node, rng);
            if dead {
                node.boot();
            }
            what
        }
        _ => "nothing".to_owned(),
    };
    let pause = match rng.below(8) {
        0..=2 => Duration::from_millis(rng.below(500)),
        3 | 4 => Duration::from_secs(rng.below(10)),
        5 | 6 => Duration::from_secs(rng.below(60)),
        _ => TRIAL + Duration::from_secs(rng.below(60)),
    };
    // Power may go in the next life's first breath again, but each plan only once.
    while !node.advance(pause) {
        node.power_cycle();
        node.boot();
    }
    what
}

/// Everything works again, and the last wish is fulfilled.
fn finish(node: &mut Node, rng: &mut Rng) {
    {
        let mut outside = node.outside.borrow_mut();
        outside.disk.heal();
        outside.spawn_failures = 0;
        if rng.one_in(3) {
            outside.want(Wanted::Local);
        } else {
            let name = rng.pick(&NAMES);
            if rng.one_in(2) {
                outside.put(name, &rng.pick(&BEHAVIOURS).text(rng.below(3)));
            }
            outside.assign(name);
        }
        outside.set_api(true);
    }
    // Start timeouts, and retries that had backed off for long.
    assert!(node.advance(Duration::from_secs(600)));
    node.check_converged();
}

fn run(seed: u64, steps: u64, log: &mut Vec<String>) {
    let mut rng = Rng::new(seed ^ 0x5EED);
    let local = if rng.one_in(4) { rng.pick(&BEHAVIOURS[10..]) } else { Behaviour::Good };
    // A local file that cannot be read at all is another matter: nothing is rendered beside it.
    let mut node = Node::new(seed, local, Settings { trial_duration: TRIAL, ..Settings::default() });
    node.boot();
    node.outside.borrow_mut().put("blue", &Behaviour::Good.text(0));
    for number in 0..steps {
        node.context = format!("step {number}");
        let now = node.outside.borrow().now;
        log.push(format!("{number} at {now:?}"));
        let what = step(&mut node, &mut rng);
        log.push(format!("  {what}"));
    }
    "the end".clone_into(&mut node.context);
    finish(&mut node, &mut rng);
}

#[test]
fn random_worlds() {
    let steps = number("SIM_STEPS").unwrap_or(200);
    let first = number("SIM_SEED");
    let seeds = first.map_or(0..number("SIM_SEEDS").unwrap_or(120), |seed| seed..seed + 1);
    for seed in seeds {
        let mut log = Vec::new();
        let result = catch_unwind(AssertUnwindSafe(|| run(seed, steps, &mut log)));
        if let Err(cause) = result {
            let words = cause.downcast_ref::<String>().map_or("?", String::as_str);
            let tail = log[log.len().saturating_sub(30)..].join("\n");
            panic!("SIM_SEED={seed} SIM_STEPS={steps} fails: {words}\nthe last steps:\n{tail}");
        }
    }
}
