//! The store: moving from native and back, bad disks, local files that cannot be read.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::assignment::STATUS;
use crate::cluster::{pause, run, until};
use crate::supervisor::{Case, Native, Supervisor};

const LOCAL: Value = Value::Null;

/// A store that native wrote is used as it is, and native uses ours.
pub fn native_and_back(case: &Case) {
    let first = case.good(&case.id("a"), "maxPods: 71");
    let mut native = Native::start(case);
    until("a Node", || case.api("GET", &case.node_path(), None));
    case.assign(&first);
    let source = first.source();
    until("native to use the assignment", || {
        native.keep_up();
        let node = case.api("GET", &case.node_path(), None)?;
        let config = &node["status"]["config"];
        if config["active"] == source && native.starts == 2 { Ok(()) } else { Err(config.to_string()) }
    });
    drop(native);
    let assigned = case.dir().join("store/meta/assigned");
    let natives_text = std::fs::read_to_string(&assigned).unwrap();

    // The kubelet's own flag says where the store is, and is not passed on.
    let mut args = case.kubelet_args();
    args.push(format!("--dynamic-config-dir={}", case.dir().display()));
    let supervisor = case.launch("4s", &case.dir(), args);
    supervisor.await_status(&[("/active", source.clone()), ("/kubelet/ready", json!(true))]);
    case.await_config(&source, &source, &source, "");
    supervisor.await_status(&[("/kubelet/restarts", json!(0)), ("/error", json!(""))]);
    supervisor.assert_steady(2);
    assert_eq!(std::fs::read_to_string(&assigned).unwrap(), natives_text, "byte for byte");
    let second = case.assign_new(&case.id("b"), "maxPods: 72");
    let source = second.source();
    case.await_config(&source, &source, &source, "");
    supervisor.await_status(&[("/kubelet/restarts", json!(1))]);
    assert!(supervisor.stop().success());

    // What native says now is its own word, and nobody writes the annotation.
    case.ask("PATCH", &format!("{}/status", case.node_path()), Some(&json!({ "status": { "config": null } })));
    case.ask("PATCH", &case.node_path(), Some(&json!({ "metadata": { "annotations": { STATUS: null } } })));
    case.await_config(&LOCAL, &LOCAL, &LOCAL, "");
    let mut native = Native::start(case);
    until("native to use our store", || {
        native.keep_up();
        let node = case.api("GET", &case.node_path(), None)?;
        let config = &node["status"]["config"];
        let roles = ["assigned", "active", "lastKnownGood"];
        let all = roles.iter().all(|role| config[role] == source);
        if all && config["error"].is_null() { Ok(()) } else { Err(config.to_string()) }
    });
    case.await_configz("maxPods", &json!(72));
    assert_eq!(native.starts, 1);
}

/// The local file, put back as it was.
struct LocalFile<'a>(&'a Path, Vec<u8>);

impl<'a> LocalFile<'a> {
    fn of(case: &'a Case) -> Self {
        let path = Path::new(case.var("KUBELET_CONFIG"));
        Self(path, std::fs::read(path).unwrap())
    }
}

impl Drop for LocalFile<'_> {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0, &self.1);
    }
}

/// A supervisor with a proven overlay on the local file.
fn proven_overlay<'a>(case: &'a Case<'a>) -> (Supervisor<'a>, Value) {
    let supervisor = case.supervisor();
    let body = json!({
        "metadata": { "annotations": { "kubelet-supervisor.io/merge": "overlay" } }, "data": { "kubelet": "maxPods: 33\n" },
    });
    let map = case.map(&case.id("map"), &body);
    case.assign(&map);
    let source = map.source();
    case.await_config(&source, &source, &source, "");
    (supervisor, source)
}

/// As after a reboot; it runs these bytes, which were proven, at its first start.
fn boots_into_the_proven<'a>(case: &'a Case<'a>, mut before: Supervisor<'a>, source: &Value) -> Supervisor<'a> {
    before.signal("KILL");
    before.ended();
    let supervisor = case.supervisor();
    case.await_configz("maxPods", &json!(33));
    supervisor.await_status(&[
        ("/active", source.clone()),
        ("/lastKnownGood", source.clone()),
        ("/kubelet/restarts", json!(0)),
        ("/badVersions", json!([])),
    ]);
    supervisor
}

/// What was proven is an overlay on the local file, which is torn then, or cannot be read: the proven bytes run.
pub fn torn_local_file(case: &Case) {
    let (mut supervisor, source) = proven_overlay(case);
    let whole = LocalFile::of(case);
    let path = whole.0;
    let half = &whole.1[..whole.1.len() / 2];
    // In the middle of a line, whatever that is.
    let torn = [half, b"\n  : [\n"].concat();
    for (what, bytes) in [("torn", torn), ("garbage", b"\0\0\xff\xfe\0".to_vec()), ("empty", Vec::new())] {
        case.say(what);
        std::fs::write(path, &bytes).unwrap();
        supervisor = boots_into_the_proven(case, supervisor, &source);
    }
    case.say("unreadable: EIO");
    // Nothing is mapped where this process' memory begins.
    let memory = format!("/proc/{}/mem", std::process::id());
    run(Command::new("mount").args(["--bind", &memory]).arg(path)).unwrap();
    let mount = Mount(path);
    assert_eq!(std::fs::read(path).unwrap_err().raw_os_error(), Some(5));
    supervisor = boots_into_the_proven(case, supervisor, &source);
    drop(mount);
    // Whole again, and with nothing new in it.
    drop(whole);
    supervisor.assert_steady(2);
    let supervisor = boots_into_the_proven(case, supervisor, &source);
    assert!(supervisor.stop().success());
}

/// What was proven is an overlay on the local file, which is changed then, and the disk is full: there is no room for
/// what would come of it, and the proven bytes run.
pub fn full_disk_at_boot(case: &Case) {
    let dir = case.dir();
    let mount = Mount::small_disk(&dir);
    let (supervisor, source) = proven_overlay(case);
    let whole = LocalFile::of(case);
    std::fs::write(whole.0, [&whole.1[..], b"\neventBurst: 11\n"].concat()).unwrap();
    let filler = mount.filled();
    let supervisor = boots_into_the_proven(case, supervisor, &source);
    std::fs::remove_file(&filler).unwrap();
    // With room, what came of the change is tried.
    case.await_configz("eventBurst", &json!(11));
    case.await_config(&source, &source, &source, "");
    assert!(supervisor.stop().success());
    drop(mount);
}

struct Mount<'a>(&'a Path);

impl Mount<'_> {
    fn small_disk(dir: &Path) -> Mount<'_> {
        std::fs::create_dir_all(dir).unwrap();
        // 1777 is its default, and a store is root's alone.
        run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=256k,mode=755", "tmpfs"]).arg(dir)).unwrap();
        Mount(dir)
    }

    /// Leaves no room; gives the file that took it.
    fn filled(&self) -> PathBuf {
        let filler = self.0.join("filler");
        let _ = run(Command::new("dd").args(["if=/dev/zero", "bs=1k", &format!("of={}", filler.display())]));
        filler
    }

    /// Read-only for whoever comes by its path: a mount with files open for writing cannot be made so itself.
    fn forbid_writing(&self) {
        run(Command::new("mount").args(["-o", "bind,ro"]).args([self.0, self.0])).unwrap();
    }

    fn off(&self) -> Result<String, String> {
        run(Command::new("umount").arg("-l").arg(self.0))
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        while self.off().is_ok() {}
    }
}

/// A full disk, and one that is read-only.
pub fn bad_disk(case: &Case) {
    const ERROR: &str = "failed to sync: internal failure, see Kubelet log for details";
    let dir = case.dir();
    let mount = Mount::small_disk(&dir);
    let filler = mount.filled();

    let supervisor = case.supervisor();
    let before = supervisor.process();
    let map = case.assign_new(&case.id("a"), "maxPods: 81");
    case.await_config(&LOCAL, &LOCAL, &LOCAL, ERROR);
    supervisor.await_status(&[("/active", LOCAL), ("/error", json!(ERROR))]);
    assert!(supervisor.metric("kubelet_supervisor_store_errors_total", "") >= 1.0);
    pause(1500); // and another try
    assert_eq!(supervisor.process(), before);
    std::fs::remove_file(&filler).unwrap();
    let source = map.source();
    case.await_config(&source, &source, &source, "");
    supervisor.await_ready();

    // The disk is well again, and so is the judge.
    let bad = case.assign_new(&case.id("bad"), "kubeAPIQPS: -1");
    case.await_config(&bad.source(), &source, &source, "failed to validate config, see Kubelet log for details");
    case.assign(&map);
    case.await_config(&source, &source, &source, "");

    mount.forbid_writing();
    let before = supervisor.process();
    let other = case.assign_new(&case.id("b"), "maxPods: 82");
    case.await_config(&source, &source, &source, ERROR);
    assert_eq!(supervisor.process(), before);
    assert!(supervisor.stop().success());
    // What is saved is used; the control socket cannot be made, so only the API tells.
    let supervisor = case.launch("4s", &dir, case.kubelet_args());
    case.await_configz("maxPods", &json!(81));
    case.await_config(&source, &source, &source, ERROR);
    mount.off().unwrap();
    case.await_proven(&other);
    case.await_configz("maxPods", &json!(82));
    assert!(supervisor.stop().success());
    drop(mount);
}
