//! Every command of `kubectl kubelet-config`, called by kubectl on a node that lives, and all that it prints.

use std::os::unix::fs::symlink;
use testkit::built::program;

use std::process::{Command, Stdio};

use kubelet_config::flags::KubeletArgs;
use serde_json::{Value, json};

use crate::assignment::Carrier;
use crate::carriers;
use crate::cluster::until;
use crate::plugin_pools::{Controller, holder, install, uninstall};
use crate::snapshots::Snapshots;
use crate::supervisor::Case;

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
const NODE: &str = "node1";

/// Exit code, standard output, standard error.
type Ran = (i32, String, String);

/// These lines of a text.
fn only(text: &str, keep: impl Fn(&str) -> bool) -> String {
    text.split_inclusive('\n').filter(|line| keep(line.trim_end())).collect()
}

struct Plugin<'a> {
    case: &'a Case<'a>,
    dir: tempfile::TempDir,
    snapshots: Snapshots,
}

impl<'a> Plugin<'a> {
    fn new(case: &'a Case<'a>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        symlink(program("kubectl-kubelet_config"), dir.path().join("kubectl-kubelet_config")).unwrap();
        let var = |name: &str| case.var(name).to_owned();
        let own = vec![
            (dir.path().display().to_string(), "WORK"),
            (case.cluster.dir.display().to_string(), "DIR"),
            (var("NODE_IP"), "IP"),
            (var("CGROUP_ROOT"), "/CGROUP"),
            (var("KUBELET_PORT"), "PORT"),
            (var("KUBELET_HEALTHZ_PORT"), "HEALTHZ-PORT"),
        ];
        Self { case, dir, snapshots: Snapshots::new(case.carrier, own) }
    }

    /// A command of kubectl, which finds the plugin in the PATH.
    fn kubectl(&self, args: &[&str]) -> Command {
        let path = format!("{}:{}", self.dir.path().display(), std::env::var("PATH").unwrap());
        let mut command = Command::new(self.case.var("KUBECTL"));
        command.args(args).env("PATH", path).env("KUBECONFIG", self.case.var("KUBECONFIG"));
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    /// Runs the plugin; nothing is kept.
    fn call(&self, args: &[&str]) -> Ran {
        let output = self.kubectl(&[&["kubelet-config"], args].concat()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        // kubectl itself says of a plugin that failed how it ended.
        let err = only(&text(output.stderr), |line| !line.starts_with("exit status "));
        (output.status.code().unwrap(), text(output.stdout), err)
    }

    /// Runs it, and keeps what it says.
    fn shot(&mut self, args: &[&str]) -> Ran {
        self.shot_but(args, |_| true)
    }

    /// The same but for lines that may come or not.
    fn shot_but(&mut self, args: &[&str], keep: impl Fn(&str) -> bool) -> Ran {
        let ran = self.call(args);
        let kept = (ran.0, only(&ran.1, &keep), only(&ran.2, &keep));
        let call = args.iter().map(|arg| if arg.contains(' ') { format!("'{arg}'") } else { (*arg).to_owned() });
        let call = format!("kubectl kubelet-config {}", call.collect::<Vec<_>>().join(" "));
        let file = FILES.split(' ').find(|file| *file == args[0]).unwrap_or_else(|| panic!("no file for {args:?}"));
        self.snapshots.add(file, &call, &kept);
        ran
    }

    /// In each of these formats.
    fn shots(&mut self, args: &[&str], formats: &[&str]) {
        self.shot(args);
        for format in formats {
            self.shot(&[args, &["-o", format]].concat());
        }
    }

    /// Waits for what a node does; what it does on the way is not always seen.
    fn shot_wait(&mut self, args: &[&str]) -> Ran {
        let ends = [" active", " proven", " its own configuration"];
        let says = [" assigned: ", " unchanged: ", " reset: ", " rolled back: ", "error: "];
        self.shot_but(args, |line| {
            says.iter().any(|words| line.contains(words)) || ends.iter().any(|end| line.ends_with(end))
        })
    }

    fn file(&self, name: &str, lines: &str) {
        std::fs::write(self.dir.path().join(name), format!("{HEAD}{lines}\n")).unwrap();
    }

    /// An overlay, which is the same on every machine; the ConfigMap's name.
    fn push(&mut self, base: &str, lines: &str) -> String {
        let file = format!("{base}.yaml");
        self.file(&file, lines);
        let (code, out, err) = self.shot(&["push", &file, "--name", base, "--overlay"]);
        named(code, &out, &err)
    }

    /// With the node's own, which has paths and ports; the ConfigMap's name, whose hash is another each time.
    fn push_whole(&mut self, base: &str, lines: &str) -> String {
        let file = format!("{base}.yaml");
        std::fs::write(self.dir.path().join(&file), self.case.payload(lines)).unwrap();
        let args = ["push", &file, "--name", base];
        let (code, out, err) = self.call(&args);
        let name = named(code, &out, &err);
        self.snapshots.own.push((name.clone(), "asked-HASH"));
        self.shot(&args);
        name
    }

    /// The node's row of `status -o json`, once it is in this state.
    fn await_state(&self, state: &str) -> Value {
        until(&format!("state {state}"), || {
            let (_, out, err) = self.call(&["status", NODE, "-o", "json"]);
            let rows: Value = serde_json::from_str(&out).map_err(|error| format!("{error}: {out}{err}"))?;
            if rows[0]["state"] == state { Ok(rows[0].clone()) } else { Err(format!("{:#}", rows[0])) }
        })
    }
}

impl Plugin<'_> {
    /// The same, its Node Ready: a kubelet that has just started may say for some seconds that it is not.
    fn await_well(&self, state: &str) {
        until(&format!("a Ready node {state}"), || {
            let row = self.await_state(state);
            let promised = row["trial"]["ends"].is_string() || row["trial"]["confirmBy"].is_string();
            if promised && row["ready"] == true { Ok(()) } else { Err(format!("{row:#}")) }
        });
    }
}

/// Waits for the node's latest events to have these reasons: they are sent after the status.
fn await_events(plugin: &Plugin, reasons: &[&str]) {
    until(&format!("events {reasons:?}"), || {
        let (_, out, err) = plugin.call(&["history", NODE, "-o", "json"]);
        let events: Vec<Value> = serde_json::from_str(&out).map_err(|error| format!("{error}: {out}{err}"))?;
        let seen: Vec<&str> = events.iter().filter_map(|event| event["reason"].as_str()).collect();
        if seen.ends_with(reasons) { Ok(()) } else { Err(format!("{seen:?}")) }
    });
}

/// The name in `configmap/NAME created`.
fn named(code: i32, out: &str, err: &str) -> String {
    let name = out.strip_prefix("configmap/").filter(|_| code == 0).and_then(|out| out.split(' ').next());
    name.unwrap_or_else(|| panic!("{code}: {out}{err}")).to_owned()
}

/// A file for each command.
const FILES: &str = "status doctor capture push diff assign explain history rollout \
                     retry rollback confirm reset completion __complete";

pub fn every_command(case: &Case) {
    // What cases before it had, its status would tell: a Node that never had a configuration, and no rollouts.
    case.kubectl(&["delete", "nodes", "--all"]);
    case.kubectl(&["-n", "kubelet-config", "delete", "configmaps", "--all"]);
    let supervisor = case.supervisor_with("25s");
    case.await_node_ready();
    let mut plugin = Plugin::new(case);
    local(&mut plugin);
    let map = trial(&mut plugin);
    proven(&mut plugin, &map);
    rollout(&mut plugin, &map);
    refused(&mut plugin, &map);
    confirmed(&mut plugin);
    doctor(&mut plugin);
    back(&mut plugin);
    plugin.snapshots.compare();
    assert!(supervisor.stop().success());
}

/// Without an assignment.
fn local(plugin: &mut Plugin) {
    plugin.case.say("local");
    plugin.await_state("local");
    plugin.shots(&["status"], &["wide", "json", "yaml"]);
    plugin.shot(&["status", "node2"]);
    plugin.shot(&["status", "-l", "pool=none"]);
    plugin.shots(&["doctor"], &["json"]);
    plugin.shot(&["capture", NODE, "-o", "now.yaml"]);
    plugin.shot(&["capture", NODE, "-o", "now.yaml"]);
    plugin.shot(&["capture", NODE]);
    plugin.shot(&["diff", NODE, "now.yaml"]);
    plugin.shot(&["history", "node2"]);
}

/// Pushed, compared, assigned, and on trial; the ConfigMap.
fn trial(plugin: &mut Plugin) -> String {
    plugin.case.say("push, diff and assign");
    let map = plugin.push("pool-a", "maxPods: 42\neventRecordQPS: 9");
    plugin.shot(&["push", "pool-a.yaml", "--name", "pool-a", "--overlay"]);
    let kubectl = "create configmap pool-a --from-file=kubelet=pool-a.yaml --append-hash --dry-run=client -o name";
    let kubectl: Vec<&str> = kubectl.split(' ').collect();
    let named = plugin.kubectl(&kubectl).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&named.stdout).trim(), format!("configmap/{map}"));
    plugin.file("odd.yaml", "maxPodz: 1");
    plugin.shot(&["push", "odd.yaml", "--kubelet", "1.20", "--dry-run=client"]);
    plugin.shot(&["diff", NODE, &format!("cm/{map}")]);
    plugin.shot(&["diff", NODE, &format!("cm/{map}"), "-o", "json"]);
    plugin.shot(&["diff", NODE, "cm/none"]);
    plugin.shot(&["assign", "none", NODE]);
    plugin.shot(&["assign", &map, NODE, "--dry-run=client"]);
    plugin.shot(&["assign", &map, NODE, "--dry-run=server"]);
    plugin.shot_wait(&["assign", &map, NODE, "--wait"]);
    plugin.case.say("on trial");
    plugin.await_well("on trial");
    plugin.shots(&["status"], &["wide", "json"]);
    plugin.shot_wait(&["assign", &map, NODE, "--wait=proven"]);
    map
}

fn proven(plugin: &mut Plugin, map: &str) {
    plugin.case.say("proven");
    plugin.shots(&["status", NODE], &["wide"]);
    plugin.shot(&["diff", NODE, &format!("cm/{map}")]);
    plugin.shot(&["explain", NODE]);
    plugin.shots(&["explain", NODE, "maxPods"], &["wide", "json"]);
    plugin.shot(&["explain", NODE, "maxpods"]);
    await_events(plugin, &["KubeletConfigChanged", "KubeletConfigProven"]);
    plugin.shots(&["history", NODE], &["wide", "json"]);
    plugin.shot(&["completion", "bash"]);
    plugin.shot(&["__complete", "assign", map, ""]);
}

/// Without the CRD of pools, and with it. What it says on its way is not always seen.
fn rollout(plugin: &mut Plugin, map: &str) {
    plugin.case.say("rollout");
    let of = ["-l", "kubernetes.io/hostname=node1"];
    plugin.shot(&["rollout", "status"]);
    install(plugin.case);
    let controller = Controller::start(plugin.case);
    holder(plugin.case, "");
    plugin.shot(&["rollout", "status"]);
    plugin.shot(&[&["rollout", map], of.as_slice(), &["--name", "first", "--dry-run"]].concat());
    let begin = [&["rollout", map], of.as_slice(), &["--name", "first", "--canaries", "0", "-q"]].concat();
    let (code, out, err) = plugin.shot(&begin);
    assert_eq!(code, 0, "{out}{err}");
    plugin.shot(&["rollout", "status"]);
    plugin.shot(&["rollout", "status", "first"]);
    plugin.shot(&["rollout", "pause", "pool/first"]);
    plugin.shot(&["rollout", "resume", "first", "-q"]);
    plugin.shot(&["rollout", "undo", "first", "-q"]);
    plugin.shot(&["rollout", "retry", "first", "-q"]);
    plugin.shot(&["rollout", "resume", "second"]);
    plugin.shot(&["assign", map, NODE, "--dry-run=client"]);
    drop(controller);
    uninstall(plugin.case);
}

/// The kubelet refuses it.
fn refused(plugin: &mut Plugin, map: &str) {
    plugin.case.say("refused");
    // Under the same name, so that `rollback` knows where to go.
    let bad = plugin.push("pool-a", "maxPods: -1");
    plugin.shot_wait(&["assign", &bad, NODE, "--wait=proven"]);
    plugin.shots(&["status"], &["json"]);
    plugin.shot(&["doctor"]);
    plugin.shot(&["retry", NODE]);
    await_events(plugin, &["KubeletConfigRetried", "KubeletConfigRejected"]);
    plugin.await_state("failed");
    let (code, out, err) = plugin.shot_wait(&["rollback", NODE, "--wait=proven"]);
    assert!(code == 0 && out.contains(map), "{out}{err}");
}

/// One that somebody must confirm, and that leaves nothing of the node's own.
fn confirmed(plugin: &mut Plugin) {
    plugin.case.say("confirmed");
    plugin.shot(&["confirm", NODE]);
    let asked = plugin.push_whole("asked", "maxPods: 43");
    let annotate =
        ["annotate", "configmap", &asked, "kubelet-supervisor.io/confirm-within=10m", "-n", "kubelet-config"];
    assert!(plugin.kubectl(&annotate).output().unwrap().status.success());
    plugin.shot_wait(&["assign", &asked, NODE, "--wait"]);
    plugin.await_well("to confirm");
    plugin.shots(&["status"], &["wide"]);
    plugin.shot(&["confirm", NODE]);
    plugin.await_state("proven");
    await_events(plugin, &["KubeletConfigConfirmed", "KubeletConfigProven"]);
    plugin.shot(&["history", NODE]);
    // What runs is what was pushed but for what flags hold, and nothing is laid at a flag's door that is no flag's.
    plugin.shot(&["explain", NODE]);
    let flags = KubeletArgs::parse(&plugin.case.kubelet_args()).overlay(&json!({}));
    let (_, out, err) = plugin.call(&["explain", NODE, "-o", "json"]);
    let explained: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    for origin in explained["fields"].as_array().unwrap().iter().filter(|origin| origin["from"] == "flagOrDropIn") {
        let field = origin["field"].as_str().unwrap().split('.').next().unwrap();
        assert!(flags.get(field).is_some(), "{origin:#}; flags {flags:#}");
    }
}

/// What is missing; what it says mends it does, and until then nothing is changed.
fn doctor(plugin: &mut Plugin) {
    plugin.case.say("doctor");
    let case = plugin.case;
    let before = case.ask("GET", &case.node_path(), None);
    plugin.shot(&["doctor", NODE]);
    if case.carrier == Carrier::Labels {
        case.kubectl(&["-n", "kubelet-config", "delete", "roles,rolebindings", "--all"]);
        plugin.shots(&["doctor"], &["json"]);
        let (_, out, _) = plugin.call(&["doctor", "-o", "json"]);
        let report: Value = serde_json::from_str(&out).unwrap();
        for mend in report["findings"][0]["mend"].as_array().unwrap() {
            let words: Vec<&str> = mend.as_str().unwrap().split(' ').skip(1).collect();
            assert!(plugin.kubectl(&words).output().unwrap().status.success(), "{mend}");
        }
        plugin.shot(&["doctor"]);
        case.kubectl(&["-n", "kubelet-config", "delete", "roles,rolebindings", "--all"]);
        carriers::grant(case.cluster);
    }
    let after = case.ask("GET", &case.node_path(), None);
    assert_eq!((&before["spec"], &before["metadata"]["labels"]), (&after["spec"], &after["metadata"]["labels"]));
    case.kubectl(&["-n", "kubelet-config", "delete", "configmaps", "--all"]);
    // Its supervisor says so too, in its own time.
    let keep = |line: &str| !line.contains("finding") && !line.contains("does not run") && !line.contains(" history ");
    plugin.shot_but(&["doctor"], keep);
}

/// What `doctor` finds with the ConfigMaps in this namespace.
pub fn doctor_finds(case: &Case, namespace: &str) -> Vec<String> {
    let (_, out, err) = Plugin::new(case).call(&["doctor", "-n", namespace, "-o", "json"]);
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    let findings = report["findings"].as_array().unwrap().iter();
    findings.map(|finding| finding["check"].as_str().unwrap().to_owned()).collect()
}

fn back(plugin: &mut Plugin) {
    plugin.case.say("reset");
    let case = plugin.case;
    plugin.shot_wait(&["reset", NODE, "--wait"]);
    plugin.shot(&["reset", NODE]);
    case.await_config(&Value::Null, &Value::Null, &Value::Null, "");
    // What was asked of this node is not to be asked of the next case's supervisor, which has another store.
    let nothing = json!({"metadata": {"annotations": {"kubelet-supervisor.io/retry": null, "kubelet-supervisor.io/confirm": null}}});
    case.ask("PATCH", &case.node_path(), Some(&nothing));
}
