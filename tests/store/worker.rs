//! The worker: store, rendering and the local files together.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kubelet_config::digest::Digest;
use kubelet_config::flags::{ConfigDir, KubeletArgs};
use kubelet_config::own_files::DropIn;
use kubelet_config::policy::NodePolicy;
use kubelet_config::source::{Merge, Source};
use kubelet_supervisor::adapters::fsx::Disk;
use kubelet_supervisor::adapters::store::FsStore;
use kubelet_supervisor::daemon::store_worker::StoreWorker;
use kubelet_supervisor::machine::history::HistoryEntry;
use kubelet_supervisor::machine::model::{KubeletId, LoadTarget, RenderError, Rendered, StateFiles, StateFilesFound};
use kubelet_supervisor::machine::records::{Attempt, Phase, RecordFile, Records, Stored, Version};
use kubelet_supervisor::machine::{Answer, Input};
use kubelet_supervisor::ports::{Local, LocalError, LocalPolicy, StoreRequest};
use testkit::sim::disk::{Fault, Plan, SimDisk};
use testkit::sim::world::ROOT;

use crate::disk::{payload, source};

const HEAD: &str = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n";
const CA: &str = "authentication: {x509: {clientCAFile: ./ca.crt}}\n";

/// The local files.
#[derive(Clone, Debug)]
struct OwnFiles {
    config: Rc<RefCell<Result<String, String>>>,
    drop_ins: Rc<RefCell<Result<Vec<DropIn>, String>>>,
    policy: Rc<RefCell<Option<NodePolicy>>>,
}

impl Local for OwnFiles {
    fn config(&self) -> Result<Option<(String, String)>, LocalError> {
        let cause = |why| LocalError::disk(Path::new("/etc/kubelet.yaml"), why);
        self.config.borrow().clone().map(|text| Some((text, "/etc".to_owned()))).map_err(cause)
    }
    fn drop_ins(&self) -> Result<Vec<DropIn>, LocalError> {
        self.drop_ins.borrow().clone().map_err(|why| LocalError::disk(Path::new("/etc/conf.d"), why))
    }
    fn kubelet_id(&self) -> KubeletId {
        KubeletId("/usr/bin/kubelet:1".to_owned())
    }
    fn default_merge(&self) -> Merge {
        Merge::Overlay
    }
    fn policy(&self) -> Result<LocalPolicy, String> {
        Ok(LocalPolicy { policy: self.policy.borrow().clone(), ..LocalPolicy::default() })
    }
}

fn own_files() -> OwnFiles {
    OwnFiles {
        config: Rc::new(RefCell::new(Ok(format!("{HEAD}maxPods: 1\n")))),
        drop_ins: Rc::new(RefCell::new(Ok(Vec::new()))),
        policy: Rc::default(),
    }
}

fn worker<D: Disk>(disk: D, local: &OwnFiles, args: &[&str]) -> StoreWorker<D, OwnFiles> {
    let args: Vec<String> = [&["--kubeconfig=/k"], args].concat().iter().map(|arg| (*arg).to_owned()).collect();
    StoreWorker::new(FsStore::new(disk, Path::new(ROOT)), local.clone(), KubeletArgs::parse(&args))
}

fn one(answers: Vec<Input>) -> Input {
    let [answer] = <[Input; 1]>::try_from(answers).unwrap();
    answer
}

fn save<D: Disk>(worker: &mut StoreWorker<D, OwnFiles>, source: &Source, text: &str) {
    let request = StoreRequest::Save(1, source.clone(), Arc::new(payload(source, text)));
    assert_eq!(worker.serve(request), [Input::Answer(1, Answer::Saved(Ok(())))]);
}

fn load<D: Disk>(worker: &mut StoreWorker<D, OwnFiles>, target: LoadTarget) -> Result<Rendered, RenderError> {
    match one(worker.serve(StoreRequest::Load(7, target))) {
        Input::Answer(7, Answer::Loaded(kubelet, result)) if kubelet.0 == "/usr/bin/kubelet:1" => result,
        other => panic!("{other:?}"),
    }
}

/// A node that has saved and rendered this once.
fn rendered(text: &str) -> (SimDisk, OwnFiles, Rendered) {
    let (disk, local) = (SimDisk::default(), own_files());
    let mut worker = worker(disk.clone(), &local, &[]);
    save(&mut worker, &source(1), text);
    let rendered = load(&mut worker, LoadTarget::Source(source(1))).unwrap();
    (disk, local, rendered)
}

fn content(rendered: &Rendered) -> LoadTarget {
    LoadTarget::Content(rendered.digest.clone(), source(1))
}

fn file(digest: &Digest, name: &str) -> PathBuf {
    Path::new(ROOT).join("supervisor/configs").join(&digest.0).join(name)
}

/// What is denied is compared with the local files. What else a policy says of a start does not depend on them.
#[test]
fn torn_local_files_switch_off_no_policy() {
    let (disk, local, rendered) = rendered(&format!("{HEAD}maxPods: 5\n"));
    let refused = |fields: &str| {
        let text = format!("apiVersion: kubelet-supervisor.io/v1alpha1\nkind: NodePolicy\n{fields}");
        *local.policy.borrow_mut() = Some(NodePolicy::parse(&text).unwrap());
        let admission = load(&mut worker(disk.clone(), &local, &[]), content(&rendered)).unwrap().admission;
        (admission.refused.is_some(), admission.policy.admits_nothing().is_some())
    };
    let (namespaces, denied) = ("allowedNamespaces: [elsewhere]\n", "deniedFields: [staticPodPath]\n");
    assert_eq!(refused(&[namespaces, denied].concat()), (true, false));
    *local.config.borrow_mut() = Ok("torn: [".to_owned());
    assert_eq!(refused(&[namespaces, denied].concat()), (true, true), "it may not start, and nothing new is admitted");
    assert_eq!(refused(denied), (false, true), "what is proven starts");
}

#[test]
fn a_configuration_lies_under_its_digest_with_the_files_it_names() {
    let (disk, _, rendered) = rendered(&format!("{CA}maxPods: 5\n"));
    assert_eq!(rendered.path, file(&rendered.digest, "kubelet.json").display().to_string());
    let written: serde_json::Value = serde_json::from_str(&disk.peek(Path::new(&rendered.path)).unwrap()).unwrap();
    let ca = file(&rendered.digest, "files/ca.crt");
    assert_eq!(written["authentication"]["x509"]["clientCAFile"], ca.display().to_string());
    assert_eq!(disk.peek(&ca).as_deref(), Some("a certificate\n"));
    assert_eq!(
        (&rendered.effective["maxPods"], &rendered.annotations.confirm_within),
        (&5.into(), &Some("10m".into()))
    );

    // The same under another name is the same, and nothing more is written for it.
    let mut other = worker(disk.clone(), &own_files(), &[]);
    save(&mut other, &source(2), &format!("maxPods: 5\n{CA}"));
    let changes = disk.changes();
    let again = load(&mut other, LoadTarget::Source(source(2))).unwrap();
    assert_eq!((&again.digest, &again.path), (&rendered.digest, &rendered.path));
    let synced = disk.changes();
    assert_eq!(load(&mut other, LoadTarget::Source(source(2))).unwrap(), again);
    assert!(synced > changes && disk.changes() == synced, "once in a life its name is made durable");
}

#[test]
fn proven_bytes_outlive_the_files_they_were_made_of() {
    let (disk, local, rendered) = rendered("maxPods: 5\n");
    let bytes = disk.peek(Path::new(&rendered.path)).unwrap();
    let torn = [Ok("kind: Kube".to_owned()), Ok(format!("{HEAD}maxPods: 77\n")), Err("input/output error".to_owned())];
    for own in torn {
        *local.config.borrow_mut() = own;
        for fault in [None, Some(Fault::Full), Some(Fault::ReadOnly)] {
            disk.heal();
            disk.plan(Plan { fault: fault.unwrap_or(Fault::Full), at: fault.map_or(u64::MAX, |_| 0), once: false });
            let mut worker = worker(disk.clone(), &local, &[]);
            let found = load(&mut worker, content(&rendered)).unwrap();
            assert_eq!(found, rendered);
            assert_eq!(disk.peek(Path::new(&found.path)).as_ref(), Some(&bytes));
        }
    }
    disk.heal();
    let mut worker = worker(disk.clone(), &local, &[]);
    assert!(matches!(load(&mut worker, LoadTarget::Source(source(1))), Err(RenderError::Internal(_))));
    assert!(matches!(load(&mut worker, LoadTarget::Local), Err(RenderError::Internal(_))));
}

/// What each drop-in begins with.
const DROP_IN: &str = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n";

fn drop_ins(texts: &[&str]) -> Vec<DropIn> {
    let named = texts.iter().zip(0..);
    named.map(|(text, n)| DropIn::new(format!("/etc/conf.d/{n} a.conf"), format!("{DROP_IN}{text}"))).collect()
}

#[test]
fn drop_ins_are_part_of_the_content() {
    let (disk, local) = (SimDisk::default(), own_files());
    *local.drop_ins.borrow_mut() = Ok(drop_ins(&["healthzPort: 2000\n", "healthzPort: 3000 # b\n"]));
    let mut worker = worker(disk.clone(), &local, &["--config-dir=/etc/conf.d"]);
    save(&mut worker, &source(1), "maxPods: 5\nhealthzPort: 1000\n");
    let render = LoadTarget::Source(source(1));
    let first = load(&mut worker, render.clone()).unwrap();
    assert_eq!(first.healthz.as_ref().map(|target| target.port), Some(3000));
    let copies = file(&first.digest, "drop-ins");
    assert_eq!(first.config_dir, ConfigDir::Copied(copies.display().to_string()));
    for (name, text) in [("0000-0_a.conf", "healthzPort: 2000\n"), ("0001-1_a.conf", "healthzPort: 3000 # b\n")] {
        assert_eq!(disk.peek(&copies.join(name)), Some(format!("{DROP_IN}{text}")));
    }

    // A remark is no other content, and an order is.
    *local.drop_ins.borrow_mut() = Ok(drop_ins(&["healthzPort: 2000\n", "healthzPort: 3000\n"]));
    assert_eq!(load(&mut worker, render.clone()).unwrap().digest, first.digest);
    let others: [&[&str]; 3] = [&[], &["healthzPort: 3000", "healthzPort: 2000"], &["healthzPort: 3000"]];
    for texts in others {
        *local.drop_ins.borrow_mut() = Ok(drop_ins(texts));
        let other = load(&mut worker, render.clone()).unwrap();
        assert_ne!(other.digest, first.digest, "{texts:?}");
        assert_eq!(other.config_dir == ConfigDir::Removed, texts.is_empty());
        // What was rendered before is what it was.
        assert_eq!(load(&mut worker, content(&first)).as_ref(), Ok(&first), "{texts:?}");
    }
    // No kubelet starts with one that is torn, but what it was given before is whole.
    *local.drop_ins.borrow_mut() = Ok(drop_ins(&["healthzPort: 2000", "a: [torn"]));
    assert_eq!(load(&mut worker, content(&first)).as_ref(), Ok(&first));
    let why =
        "the kubelet's own --config-dir cannot be used: /etc/conf.d/1 a.conf: line 3, column 4: '[' is never closed";
    for target in [render.clone(), LoadTarget::Local] {
        assert_eq!(load(&mut worker, target), Err(RenderError::Internal(why.to_owned())));
    }
    *local.drop_ins.borrow_mut() = Err("input/output error".to_owned());
    assert_eq!(load(&mut worker, content(&first)).as_ref(), Ok(&first));
    let why = "the kubelet's own --config-dir cannot be used: /etc/conf.d: input/output error";
    for target in [render, LoadTarget::Local] {
        assert_eq!(load(&mut worker, target), Err(RenderError::Internal(why.to_owned())));
    }
    disk.rot(&copies.join("0001-1_a.conf"));
    let damage = format!("{}: the checksum is wrong", copies.join("0001-1_a.conf").display());
    assert_eq!(load(&mut worker, content(&first)), Err(RenderError::Checkpoint(damage)));
}

#[test]
fn flags_of_today_lie_over_yesterdays_bytes() {
    let (disk, local, rendered) = rendered("maxPods: 5\n");
    let mut worker = worker(disk, &local, &["--max-pods=9", "--container-runtime-endpoint=unix:///run/c.sock"]);
    let found = load(&mut worker, content(&rendered)).unwrap();
    assert_eq!(found.effective["maxPods"], 9);
    assert_eq!(found.runtime.as_deref(), Some("unix:///run/c.sock"));
    // As a rendering of the same says.
    let again = load(&mut worker, LoadTarget::Source(source(1))).unwrap();
    assert_eq!((&again.effective, &again.healthz), (&found.effective, &found.healthz));
    assert_eq!((&again.digest, again.shadowed), (&found.digest, vec!["maxPods (--max-pods)".to_owned()]));
    assert_eq!(load(&mut worker, content(&rendered)).unwrap().shadowed, ["maxPods (--max-pods)"]);
}

#[test]
fn a_flag_that_is_no_field_is_known_of_what_runs_and_of_what_comes() {
    const FLAG: &str = "--experimental-allocatable-ignore-eviction";
    let (disk, local, rendered) = rendered("maxPods: 5\n");
    assert!(!rendered.ignores_eviction);
    let mut worker = worker(disk, &local, &[FLAG]);
    for target in [LoadTarget::Local, LoadTarget::Source(source(1)), content(&rendered)] {
        assert!(load(&mut worker, target.clone()).unwrap().ignores_eviction, "{target:?}");
    }
    let mut other = payload(&source(2), "maxPods: 6\n");
    other.data.insert("kubelet.flags".to_owned(), format!("!{FLAG}\n"));
    worker.serve(StoreRequest::Save(1, source(2), Arc::new(other)));
    let without = load(&mut worker, LoadTarget::Source(source(2))).unwrap();
    assert!(!without.ignores_eviction && !load(&mut worker, content(&without)).unwrap().ignores_eviction);
}

#[test]
fn damaged_bytes_are_mended_from_the_checkpoint_if_it_renders_to_them() {
    let (disk, local, rendered) = rendered(&format!("{CA}maxPods: 5\n"));
    let bytes = disk.peek(Path::new(&rendered.path));
    let rot = |name: &str| assert!(disk.rot(&file(&rendered.digest, name)));
    for name in ["kubelet.json", "config.json", "files/ca.crt"] {
        rot(name);
        let mut worker = worker(disk.clone(), &local, &[]);
        assert_eq!(load(&mut worker, content(&rendered)).as_ref(), Ok(&rendered), "{name}");
        assert_eq!(disk.peek(Path::new(&rendered.path)), bytes);
    }
    // Not if the local file says something else now, or the checkpoint is gone: then the damage is what is told.
    rot("kubelet.json");
    let mut worker = worker(disk.clone(), &local, &[]);
    let damage = Err(RenderError::Checkpoint(format!("{}: the checksum is wrong", rendered.path)));
    *local.config.borrow_mut() = Ok(format!("{HEAD}maxPods: 1\nserializeImagePulls: false\n"));
    assert_eq!(load(&mut worker, content(&rendered)), damage);
    *local.config.borrow_mut() = own_files().config.borrow().clone();
    let gone = LoadTarget::Content(rendered.digest.clone(), source(8));
    assert_eq!(load(&mut worker, gone), damage);
    assert_eq!(load(&mut worker, content(&rendered)), Ok(rendered));
}

#[test]
fn errors_say_whose_trouble_it_is() {
    let (disk, local) = (SimDisk::default(), own_files());
    let mut worker = worker(disk.clone(), &local, &[]);
    let mut error = |text: Option<&str>, fault: Option<Fault>| {
        disk.heal();
        if let Some(text) = text {
            let payload = Arc::new(payload(&source(1), text));
            assert_eq!(
                worker.serve(StoreRequest::SaveAnew(1, source(1), payload)),
                [Input::Answer(1, Answer::Saved(Ok(())))]
            );
        }
        if let Some(fault) = fault {
            disk.plan(Plan { fault, at: disk.operations() + 10, once: false });
        }
        load(&mut worker, LoadTarget::Source(source(1))).unwrap_err()
    };
    assert!(matches!(error(None, None), RenderError::Checkpoint(_)));
    for fault in [Fault::Full, Fault::Io] {
        assert!(matches!(error(Some("maxPods: 5\n"), Some(fault)), RenderError::Internal(_)), "{fault:?}");
    }
    assert!(matches!(error(Some("kind: Pod\n"), None), RenderError::Load(why) if why.contains("Pod")));
    let keyless = Source { resource_version: "3".to_owned(), ..source(1) };
    let mut keyless_payload = payload(&keyless, "");
    keyless_payload.data.remove("kubelet");
    worker.serve(StoreRequest::Save(1, keyless.clone(), Arc::new(keyless_payload)));
    let error = load(&mut worker, LoadTarget::Source(keyless)).unwrap_err();
    assert!(matches!(&error, RenderError::Load(why) if why.contains("keys: ca.crt")), "{error:?}");
}

#[test]
fn the_local_configuration_needs_no_disk() {
    let (disk, local) = (SimDisk::default(), own_files());
    disk.plan(Plan { fault: Fault::Io, at: 0, once: false });
    let rendered = load(&mut worker(disk, &local, &[]), LoadTarget::Local).unwrap();
    assert_eq!((rendered.path.as_str(), &rendered.effective["maxPods"]), ("", &1.into()));
}

#[test]
fn records_are_answered_and_a_standalone_kubelet_has_none() {
    let (disk, local) = (SimDisk::default(), own_files());
    let records = Box::new(Records { frozen: true, ..Records::default() });
    let mut first = worker(disk.clone(), &local, &[]);
    assert_eq!(first.serve(StoreRequest::Record(3, records.clone())), [Input::Answer(3, Answer::Recorded(Ok(())))]);
    let read = |worker: &mut StoreWorker<SimDisk, OwnFiles>| match one(worker.serve(StoreRequest::ReadRecords(4))) {
        Input::Answer(4, Answer::RecordsRead(stored, kubelet)) if kubelet == local.kubelet_id() => *stored,
        other => panic!("{other:?}"),
    };
    let stored = Stored { state: RecordFile::Read(records), ..Stored::empty() };
    assert_eq!(read(&mut first), stored);
    let store = || FsStore::new(disk.clone(), Path::new(ROOT));
    let mut standalone = StoreWorker::new(store(), local.clone(), KubeletArgs::parse(&[]));
    standalone.standalone = true;
    assert_eq!(read(&mut standalone), Stored::empty());
    // Its command line may be a mistake: what is on the disk stays.
    assert_eq!(standalone.serve(StoreRequest::Record(6, Box::default())), [Input::Answer(6, Answer::Recorded(Ok(())))]);
    assert_eq!(standalone.serve(StoreRequest::Collect(BTreeSet::new(), BTreeSet::new())), []);
    // It may follow its local files.
    assert_eq!(read(&mut StoreWorker::new(store(), local.clone(), KubeletArgs::parse(&[]))), stored);

    disk.plan(Plan { fault: Fault::Full, at: 0, once: false });
    let answer = first.serve(StoreRequest::Record(5, Box::default()));
    assert!(matches!(answer[..], [Input::Answer(5, Answer::Recorded(Err(_)))]), "{answer:?}");
}

#[test]
fn the_history_numbers_entries_and_gives_them_again() {
    let (disk, local) = (SimDisk::default(), own_files());
    let mut worker = worker(disk.clone(), &local, &[]);
    let entry = |number| Box::new(HistoryEntry { number, reason: "Test".to_owned(), ..HistoryEntry::default() });
    for number in [1, 2] {
        assert_eq!(worker.serve(StoreRequest::Append(entry(0))), [Input::Appended(entry(number), Ok(()))]);
    }
    assert_eq!(worker.serve(StoreRequest::Reported(1)), []);
    assert_eq!(worker.serve(StoreRequest::Unreported), [Input::Appended(entry(2), Ok(()))]);
    disk.plan(Plan { fault: Fault::Full, at: 0, once: false });
    let answer = one(worker.serve(StoreRequest::Append(entry(0))));
    assert!(matches!(answer, Input::Appended(failed, Err(_)) if failed == entry(0)));
}

#[test]
fn state_files_and_collection() {
    let (disk, local, rendered) = rendered("maxPods: 5\n");
    let mut worker = worker(disk.clone(), &local, &["--root-dir=/var/lib/other"]);
    disk.make_dir(Path::new("/var/lib/other"), 0o755).unwrap();
    for (policy, found) in [("cpu=none", Some("its state")), ("cpu=static", None)] {
        if policy == "cpu=none" {
            disk.poke(Path::new("/var/lib/other/cpu_manager_state"), b"its state");
        }
        let (policy, until) = (policy.to_owned(), Duration::from_secs(1));
        let files = StateFiles { policy, until, ..StateFiles::default() };
        assert_eq!(
            worker.serve(StoreRequest::SwapStateFiles(9, files)),
            [Input::Answer(9, Answer::StateFilesSwapped(Ok(StateFilesFound::InOrder)))]
        );
        assert_eq!(disk.peek(Path::new("/var/lib/other/cpu_manager_state")).as_deref(), found);
    }
    assert_eq!(worker.serve(StoreRequest::Collect([].into(), [rendered.digest.clone()].into())), []);
    assert_eq!(load(&mut worker, content(&rendered)).unwrap().path, rendered.path);
    assert_eq!(worker.serve(StoreRequest::Collect([].into(), [].into())), []);
    assert!(matches!(load(&mut worker, content(&rendered)), Err(RenderError::Checkpoint(_))));
}

/// Counts what a change costs of the slowest thing on a node.
#[derive(Clone)]
struct Counted {
    disk: SimDisk,
    syncs: Rc<Cell<u32>>,
}

impl Disk for Counted {
    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        self.disk.read(path, limit)
    }
    fn write(&self, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
        self.disk.write(path, bytes, mode)
    }
    fn append(&self, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
        self.disk.append(path, bytes, mode)
    }
    fn sync(&self, path: &Path) -> io::Result<()> {
        self.syncs.set(self.syncs.get() + 1);
        self.disk.sync(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn make_dir(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.disk.make_dir(path, mode)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.disk.list(path)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }
}

/// What the machine asks for when a version is taken up: the records that it writes, and the event.
fn change(worker: &mut StoreWorker<Counted, OwnFiles>, n: u32, proven: Option<&Version>) -> Version {
    let source = source(n);
    let text = format!("maxPods: {n}\n");
    let mut payload = payload(&source, &text);
    payload.data.remove("ca.crt");
    worker.serve(StoreRequest::Save(1, source.clone(), Arc::new(payload)));
    let rendered = load(worker, LoadTarget::Source(source.clone())).unwrap();
    let version = Version { source: source.clone(), digest: Some(rendered.digest.clone()) };
    let records = Records {
        assigned: Some(version.clone()),
        last_known_good: proven.cloned(),
        phase: Phase::Trial(Attempt::new(version.clone())),
        ..Records::default()
    };
    assert_eq!(worker.serve(StoreRequest::Record(2, Box::new(records))), [Input::Answer(2, Answer::Recorded(Ok(())))]);
    load(worker, LoadTarget::Content(rendered.digest, source)).unwrap();
    event(worker);
    version
}

fn event(worker: &mut StoreWorker<Counted, OwnFiles>) {
    assert!(matches!(worker.serve(StoreRequest::Append(Box::default()))[..], [Input::Appended(_, Ok(()))]));
}

#[test]
fn a_change_syncs_so_often() {
    let disk = Counted { disk: SimDisk::default(), syncs: Rc::default() };
    let mut worker = worker(disk.clone(), &own_files(), &[]);
    let mut counts = Vec::new();
    let mut count = |what: &'static str| counts.push((what, disk.syncs.take()));
    let mut proven = None;
    for n in [1, 2] {
        let version = change(&mut worker, n, proven.as_ref());
        count("a change");
        let good = Some(version.clone());
        let records = Records { assigned: good.clone(), last_known_good: good.clone(), ..Records::default() };
        worker.serve(StoreRequest::Record(3, Box::new(records)));
        event(&mut worker);
        count("its proof");
        proven = good;
    }
    event(&mut worker);
    count("an event");
    let pin = Records { frozen: true, assigned: proven.clone(), last_known_good: proven, ..Records::default() };
    worker.serve(StoreRequest::Record(3, Box::new(pin)));
    count("a record of ours alone");
    println!("{counts:?}");
    // The first change of a life has its directories too.
    let expected = [24, 6, 15, 6, 1, 2];
    assert_eq!(counts.iter().map(|(_, syncs)| *syncs).collect::<Vec<_>>(), expected, "{counts:?}");
}

/// From memory a disk that stalls is read as well.
#[test]
fn a_probe_of_the_disk_is_a_write_that_leaves_nothing() {
    let disk = Counted { disk: SimDisk::default(), syncs: Rc::default() };
    let mut worker = worker(disk.clone(), &own_files(), &[]);
    change(&mut worker, 1, None);
    let before = disk.disk.list(&Path::new(ROOT).join("supervisor")).unwrap();
    disk.syncs.take();
    assert_eq!(worker.serve(StoreRequest::ProbeDisk), []);
    assert_eq!(disk.syncs.take(), 1);
    assert_eq!(disk.disk.list(&Path::new(ROOT).join("supervisor")).unwrap(), before);
    // One that is full, or refuses writes, answers.
    for fault in [Fault::Full, Fault::ReadOnly] {
        disk.disk.plan(Plan { fault, at: disk.disk.operations(), once: false });
        assert_eq!(worker.serve(StoreRequest::ProbeDisk), []);
    }
}

/// A version's bytes are what they were first, by their seal or as native left them. Damage is mended by the same bytes alone.
#[test]
fn other_bytes_under_a_known_version_are_not_saved() {
    let (disk, local, rendered) = rendered("maxPods: 5\n");
    let mut worker = worker(disk.clone(), &local, &[]);
    let seal = Path::new(ROOT).join("supervisor/seals").join(&source(1).uid).join("1.json");
    let checkpoint = Path::new(ROOT).join("store/checkpoints").join(&source(1).uid).join("1/kubelet");
    let mut request = |text: &str, annotation: Option<&str>| {
        let mut payload = payload(&source(1), text);
        payload.annotations.acknowledge = annotation.map(str::to_owned);
        one(worker.serve(StoreRequest::Save(1, source(1), Arc::new(payload))))
    };
    let (saved, refused) = (Input::Answer(1, Answer::Saved(Ok(()))), Input::Answer(1, Answer::OtherBytesSaved));
    assert_eq!(request("maxPods: 6\n", None), refused);
    assert_eq!(request("maxPods: 5\n", Some("all")), refused, "what an annotation decides is of it, too");
    assert!(disk.rot(&checkpoint));
    assert_eq!(request("maxPods: 6\n", None), refused);
    assert_eq!(request("maxPods: 5\n", None), saved);
    assert_eq!(disk.peek(&checkpoint).as_deref(), Some("maxPods: 5\n"));
    // As native left it.
    assert!(disk.clone().remove(&seal).is_ok());
    assert_eq!(request("maxPods: 6\n", None), refused);
    assert_eq!(request("maxPods: 5\n", None), saved);
    // A removal that was cut off.
    assert!(disk.clone().remove(&seal).is_ok() && disk.clone().remove(&checkpoint).is_ok());
    assert_eq!(request("maxPods: 5\n", None), saved);
    assert!(disk.rot(&seal));
    assert_eq!(request("maxPods: 5\n", None), saved, "a damaged seal says nothing");
    let mut worker = self::worker(disk, &local, &[]);
    assert_eq!(load(&mut worker, LoadTarget::Source(source(1))).unwrap().digest, rendered.digest);
}
