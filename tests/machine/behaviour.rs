//! What an administrator sees, case by case: which kubelets were started, and what the status says.

use std::time::Duration;

use kubelet_config::assignment::Assignment;
use kubelet_supervisor::machine::Settings;
use testkit::sim::disk::{Fault, Plan};
use testkit::sim::harness::Node;
use testkit::sim::world::{Behaviour, Outside};

const TRIAL: Duration = Duration::from_secs(600);

/// What is done, and how many seconds the node is left alone after it.
type Act = (fn(&mut Outside), u64);

struct Case {
    name: &'static str,
    acts: &'static [Act],
    /// ConfigMaps the kubelet was started with.
    starts: &'static [&'static str],
    /// What is active, last known good, and how the error begins.
    end: (&'static str, &'static str, &'static str),
}

fn put_and_assign(outside: &mut Outside, name: &str, behaviour: Behaviour, salt: u64) {
    outside.put(name, &behaviour.text(salt));
    outside.assign(name);
}

/// `a` is assigned and earns last known good.
const A_PROVEN: Act = (|it| put_and_assign(it, "a", Behaviour::Good, 1), 610);
/// `b` is assigned and is on trial.
const B_ON_TRIAL: Act = (|it| put_and_assign(it, "b", Behaviour::Good, 2), 30);

const LOAD: &str = "failed to load config";
const VALIDATE: &str = "failed to validate config";
const DOWNLOAD: &str = "failed to sync: failed to download config";
const ALL_NIL: &str = "failed to sync: invalid NodeConfigSource";

const CASES: &[Case] = &[
    Case {
        name: "equal content is adopted, and its trial goes on where it was",
        acts: &[(|it| put_and_assign(it, "a", Behaviour::Good, 1), 500), (|it| it.touch("a"), 110)],
        starts: &["local", "a"],
        end: ("a", "a", ""),
    },
    Case {
        name: "refused beside last known good: no restart",
        acts: &[A_PROVEN, (|it| put_and_assign(it, "c", Behaviour::Invalid, 3), 30)],
        starts: &["local", "a"],
        end: ("a", "a", VALIDATE),
    },
    Case {
        name: "refused while an unproven one runs: back to last known good",
        acts: &[A_PROVEN, B_ON_TRIAL, (|it| put_and_assign(it, "c", Behaviour::Unloadable, 3), 30)],
        starts: &["local", "a", "b", "a"],
        end: ("a", "a", LOAD),
    },
    Case {
        name: "an exit before it is ready: back at once",
        acts: &[A_PROVEN, (|it| put_and_assign(it, "c", Behaviour::DiesAtOnce, 3), 30)],
        starts: &["local", "a", "c", "a"],
        end: ("a", "a", LOAD),
    },
    Case {
        name: "the second exit of a trial: back",
        acts: &[A_PROVEN, (|it| put_and_assign(it, "c", Behaviour::DiesAfter(60), 3), 200)],
        starts: &["local", "a", "c", "c", "a"],
        end: ("a", "a", LOAD),
    },
    Case {
        name: "a single exit is an accident, but its clock starts afresh",
        acts: &[(|it| put_and_assign(it, "a", Behaviour::Good, 1), 500), (Outside::kill_kubelet, 590)],
        starts: &["local", "a", "a"],
        end: ("a", "local", ""),
    },
    Case {
        name: "never ready: back after the start timeout",
        acts: &[A_PROVEN, (|it| put_and_assign(it, "c", Behaviour::NeverReady, 3), 130)],
        starts: &["local", "a", "c", "a"],
        end: ("a", "a", LOAD),
    },
    Case {
        name: "healthz fails for good: back after 30 s",
        acts: &[A_PROVEN, (|it| put_and_assign(it, "c", Behaviour::SickAfter(60), 3), 110)],
        starts: &["local", "a", "c", "a"],
        end: ("a", "a", LOAD),
    },
    Case {
        name: "healthz fails for a moment: only the clock starts afresh",
        acts: &[(|it| put_and_assign(it, "a", Behaviour::Hiccup, 1), 610)],
        starts: &["local", "a"],
        end: ("a", "local", ""),
    },
    Case {
        name: "and it is proven 10 minutes after that moment",
        acts: &[(|it| put_and_assign(it, "a", Behaviour::Hiccup, 1), 640)],
        starts: &["local", "a"],
        end: ("a", "a", ""),
    },
    Case {
        name: "of a burst the last one wins",
        acts: &[
            (|it| put_and_assign(it, "a", Behaviour::Good, 1), 0),
            (|it| it.put("a", &Behaviour::Good.text(2)), 0),
            (|it| put_and_assign(it, "b", Behaviour::Good, 3), 60),
        ],
        starts: &["local", "b"],
        end: ("b", "local", ""),
    },
    Case {
        name: "reset",
        acts: &[A_PROVEN, (|it| it.set_desired(Assignment::Local), 30)],
        starts: &["local", "a", "local"],
        end: ("local", "local", ""),
    },
    Case {
        name: "deleted: said, and kept running",
        acts: &[A_PROVEN, (|it| it.delete("a"), 30)],
        starts: &["local", "a"],
        end: ("a", "a", DOWNLOAD),
    },
    Case {
        name: "deleted and made anew: adopted under its new uid",
        acts: &[A_PROVEN, (|it| it.delete("a"), 30), (|it| it.put("a", &Behaviour::Good.text(1)), 610)],
        starts: &["local", "a"],
        end: ("a", "a", ""),
    },
    Case {
        name: "a key that is not there",
        acts: &[A_PROVEN, (|it| it.set_desired(Assignment::Map(Outside::reference("a", "absent"))), 30)],
        starts: &["local", "a"],
        end: ("a", "a", LOAD),
    },
    Case {
        name: "a Node that is gone asks for nothing",
        acts: &[A_PROVEN, (|it| it.set_desired(Assignment::Unknown), 30)],
        starts: &["local", "a"],
        end: ("a", "a", ""),
    },
    Case {
        name: "a configSource that names nothing",
        acts: &[A_PROVEN, (|it| it.set_desired(Assignment::AllNil), 30)],
        starts: &["local", "a"],
        end: ("a", "a", ALL_NIL),
    },
    Case {
        name: "a bad version is not tried again, not even under a new label",
        acts: &[
            A_PROVEN,
            (|it| put_and_assign(it, "c", Behaviour::DiesAtOnce, 3), 30),
            (|it| it.assign("a"), 30),
            (|it| it.assign("c"), 30),
            (|it| it.touch("c"), 30),
        ],
        starts: &["local", "a", "c", "a"],
        end: ("a", "a", LOAD),
    },
    Case {
        name: "its new content is",
        acts: &[
            A_PROVEN,
            (|it| put_and_assign(it, "c", Behaviour::DiesAtOnce, 3), 30),
            (|it| it.put("c", &Behaviour::Good.text(4)), 30),
        ],
        starts: &["local", "a", "c", "a", "c"],
        end: ("c", "a", ""),
    },
];

fn name(source: Option<&kubelet_config::source::Source>) -> &str {
    source.map_or("local", |source| &source.reference.name)
}

fn node(local: Behaviour) -> Node {
    let mut node = Node::new(1, local, Settings { trial_duration: TRIAL, ..Settings::default() });
    node.boot();
    assert!(node.advance(Duration::from_secs(10)));
    node
}

fn act(node: &mut Node, (act, rest): Act) {
    act(&mut node.outside.borrow_mut());
    assert!(node.advance(Duration::from_secs(rest)));
}

fn starts(node: &Node) -> Vec<String> {
    node.outside.borrow().starts.clone()
}

#[test]
fn what_an_administrator_sees() {
    for case in CASES {
        let mut node = node(Behaviour::Good);
        case.name.clone_into(&mut node.context);
        case.acts.iter().for_each(|it| act(&mut node, *it));
        assert_eq!(starts(&node), case.starts, "{}", case.name);
        let status = node.outside.borrow().status.clone();
        let seen = (name(status.active.as_ref()), name(status.last_known_good.as_ref()));
        let (active, last_known_good, begins) = case.end;
        assert_eq!(seen, (active, last_known_good), "{}", case.name);
        let error = status.error.unwrap_or_default();
        assert!(error.starts_with(begins) && error.is_empty() == begins.is_empty(), "{}: {error}", case.name);
    }
}

#[test]
fn a_disk_that_refuses_keeps_what_runs_and_is_tried_again() {
    let mut node = node(Behaviour::Good);
    act(&mut node, A_PROVEN);
    let disk = node.outside.borrow().disk.clone();
    disk.plan(Plan { fault: Fault::Full, at: disk.operations(), once: false });
    act(&mut node, B_ON_TRIAL);
    assert_eq!(starts(&node), ["local", "a"]);
    assert_eq!(node.outside.borrow().status.error.as_deref().map(|it| it.starts_with("failed to sync")), Some(true));
    disk.heal();
    act(&mut node, (|_| {}, 40));
    assert_eq!(starts(&node), ["local", "a", "b"]);
}

/// Boots on a disk where these files are spoiled, with the API server away.
fn boot_with_spoiled(files: &[&str]) -> Node {
    let mut node = node(Behaviour::Good);
    act(&mut node, A_PROVEN);
    act(&mut node, B_ON_TRIAL);
    for file in files {
        let path = format!("{}/{file}", testkit::sim::world::ROOT);
        assert!(node.outside.borrow().disk.rot(std::path::Path::new(&path)), "{path}");
    }
    node.outside.borrow_mut().api_up = false;
    node.boot();
    assert!(node.advance(Duration::from_secs(30)));
    node
}

#[test]
fn an_unreadable_native_record_changes_nothing() {
    let mut node = boot_with_spoiled(&["store/meta/assigned"]);
    assert_eq!(starts(&node), ["local", "a", "b", "b"]);
    act(&mut node, (|it| it.set_api(true), 700));
    node.check_converged();
    assert_eq!(starts(&node), ["local", "a", "b", "b"]);
}

#[test]
fn what_was_rendered_runs_without_its_checkpoint() {
    let both = ["store/checkpoints/uid-101/101/kubelet", "store/checkpoints/uid-102/102/kubelet"];
    let mut node = boot_with_spoiled(&both);
    assert_eq!(starts(&node), ["local", "a", "b", "b"]);
    act(&mut node, (|it| it.set_api(true), 700));
    node.check_converged();
    assert_eq!(starts(&node), ["local", "a", "b", "b"]);
}
