//! Pods on the real node: their containers are not touched by what is done to the kubelet above them.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::built::{copy_program, write_script};
use testkit::rig::{HELLO, is_gone};

use crate::cluster::{run, until};
use crate::supervisor::{BINARY, Case, signal};
use crate::trial::accepted;

/// Makes a pod of one container on this node, with these fields of the container, and waits until it runs.
pub fn make(case: &Case, name: &str, fields: &Value) {
    make_with(case, name, fields, &json!({}));
}

/// The same with these fields of the Pod.
pub fn make_with(case: &Case, name: &str, fields: &Value, spec: &Value) {
    let mut container = json!({
        "name": "main", "image": case.var("IMAGE"), "imagePullPolicy": "Never", "command": ["sleep", "3600"],
    });
    container.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "nodeName": case.var("NODE_NAME"), "terminationGracePeriodSeconds": 1,
            "tolerations": [{ "operator": "Exists" }], "containers": [container],
        },
    });
    pod["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    case.ask("POST", "/api/v1/namespaces/default/pods", Some(&pod));
    until(&format!("{name} to run"), || {
        let pod = case.api("GET", &path(name), None)?;
        let phase = pod["status"]["phase"].as_str().unwrap_or_default().to_owned();
        if phase == "Running" { Ok(()) } else { Err(phase) }
    });
}

pub fn path(name: &str) -> String {
    format!("/api/v1/namespaces/default/pods/{name}")
}

pub fn delete(case: &Case, name: &str) {
    case.ask("DELETE", &format!("{}?gracePeriodSeconds=0", path(name)), None);
}

/// A container: its identity for the kubelet, and its process.
#[derive(Debug, PartialEq)]
pub struct Container {
    id: String,
    pub restarts: u64,
    pub pid: u32,
    /// In clock ticks since the boot, as /proc has it.
    started: String,
}

/// As the kubelet that runs now sees it, or the API server has it; and containerd.
pub fn container(case: &Case, pod: &Value) -> Result<Container, String> {
    let status = &pod["status"]["containerStatuses"][0];
    let why = || format!("{:#}", pod["status"]);
    let id = status["containerID"].as_str().and_then(|id| id.strip_prefix("containerd://")).ok_or_else(why)?;
    if status["state"]["running"].is_null() || status["ready"] != true {
        return Err(why());
    }
    let tasks =
        run(Command::new("ctr").args(["--address", case.var("CONTAINERD_SOCK"), "-n", "k8s.io", "tasks", "ls"]))?;
    let task = tasks.lines().find(|line| line.starts_with(id)).ok_or(&tasks)?;
    let [_, pid, "RUNNING"] = task.split_whitespace().collect::<Vec<_>>()[..] else { return Err(task.to_owned()) };
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).map_err(|error| error.to_string())?;
    let started = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(19)).ok_or(&stat)?.to_owned();
    let restarts = status["restartCount"].as_u64().ok_or_else(why)?;
    Ok(Container { id: id.to_owned(), restarts, pid: pid.parse().unwrap(), started })
}

/// What the kubelet itself answers, asked through the API server.
fn kubelet_page(case: &Case, page: &str) -> Result<String, String> {
    let mut kubectl = Command::new(case.var("KUBECTL"));
    kubectl.env("KUBECONFIG", case.var("KUBECONFIG"));
    run(kubectl.args(["get", "--raw", &format!("{}/proxy/{page}", case.node_path())]))
}

/// The sum of a metric's samples that contain this.
fn metric(page: &str, name: &str, labels: &str) -> f64 {
    let is_it =
        |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']) && rest.contains(labels));
    page.lines().filter(is_it).filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}

/// The containers of these pods, once the kubelet that runs now has looked after all of them: it has begun to sync each,
/// and probes the one that has a probe.
fn containers(case: &Case, names: &[String; 2]) -> Vec<Container> {
    until("the kubelet to look after its pods", || {
        let synced = metric(&kubelet_page(case, "metrics")?, "kubelet_pod_worker_start_duration_seconds_count", "");
        let probed = metric(&kubelet_page(case, "metrics/probes")?, "prober_probe_total", "result=\"successful\"");
        let done = synced >= 2.0 && probed >= 2.0;
        if done { Ok(()) } else { Err(format!("{synced} syncs, {probed} probes")) }
    });
    until("the containers", || {
        let list: Value = serde_json::from_str(&kubelet_page(case, "pods")?).map_err(|error| error.to_string())?;
        let pods = list["items"].as_array().ok_or("no pods")?;
        let of = |name: &String| {
            let pod = pods.iter().find(|pod| pod["metadata"]["name"] == **name).ok_or("no such pod")?;
            container(case, pod)
        };
        names.iter().map(of).collect()
    })
}

/// Through a switch, a rollback and the death of the supervisor, every container is the same process, and no
/// kubelet counts a restart.
pub fn containers_keep_running(case: &Case) {
    let (mut supervisor, lkg) = case.proven();
    case.await_node_ready();
    let names = ["plain", "probed"].map(|suffix| case.id(suffix));
    let probe = json!({ "exec": { "command": ["true"] }, "periodSeconds": 1, "failureThreshold": 1 });
    make(case, &names[0], &json!({}));
    make(case, &names[1], &json!({ "livenessProbe": probe }));
    let before = containers(case, &names);
    assert!(before.iter().all(|container| container.restarts == 0), "{before:?}");

    case.say("a switch");
    let map = case.assign_new(&case.id("map"), "maxPods: 42");
    let source = map.source();
    case.await_config(&source, &source, &source, "");
    case.await_configz("maxPods", &json!(42));
    assert_eq!(containers(case, &names), before);

    case.say("a rollback");
    let deadly = "enforceNodeAllocatable: [pods, system-reserved]\nsystemReservedCgroup: /nope";
    case.assign(&accepted(case, "deadly", deadly));
    case.await_event("KubeletConfigRolledBack", &[&case.id("deadly")]);
    supervisor.await_status(&[("/active", source.clone()), ("/kubelet/ready", json!(true))]);
    case.await_configz("maxPods", &json!(42));
    assert_eq!(containers(case, &names), before);
    case.prove(&lkg);
    assert_eq!(containers(case, &names), before);

    case.say("a supervisor that is killed");
    supervisor.signal("KILL");
    assert!(!supervisor.ended().success());
    let supervisor = case.supervisor();
    case.await_configz("maxPods", &json!(41));
    assert_eq!(containers(case, &names), before);

    // And for everybody else.
    for (name, before) in names.iter().zip(&before) {
        assert_eq!(container(case, &case.ask("GET", &path(name), None)).as_ref(), Ok(before));
        delete(case, name);
    }
    assert!(supervisor.stop().success());
}

/// The worker ends in a trial, while a confirmation is waited for, and in a control test: kubelet and container are the same
/// processes, and each comes to its end.
pub fn workers_end(case: &Case) {
    let installed = case.cluster.dir.join(case.id("installed"));
    copy_program(BINARY.as_ref(), &installed);
    let options = ["--confirm-within", "10m"];
    let supervisor = case.launch_installed(&installed, "20s", &options, &case.dir(), case.cluster.kubelet_args());
    supervisor.await_ready();
    case.await_node_ready();
    let name = case.id("pod");
    make(case, &name, &json!({}));
    let own = || until("the container", || container(case, &case.api("GET", &path(&name), None)?));
    let before = own();
    // One that stands still or loops is silent, and ended for that after half a minute.
    let end_worker = |how: &str, next: u64| {
        signal(supervisor.worker(), how);
        supervisor.await_status(&[("/worker", json!(next))]);
    };

    case.say("in a trial");
    let map = case.good(&case.id("map"), "maxPods: 42");
    let source = map.source();
    case.assign(&map);
    supervisor.await_status(&[
        ("/active", source.clone()),
        ("/trial/state", json!("running")),
        ("/kubelet/ready", json!(true)),
    ]);
    let kubelet = supervisor.kubelet();
    end_worker("KILL", 2);
    let (before_loop, renewed) = (supervisor.worker(), installed.with_extension("renewed"));
    write_script(&installed, &format!("{HELLO}; while :; do :; done"));
    supervisor.signal("HUP");
    // It retires for one that has said hello.
    until("it retires", || is_gone(u64::from(before_loop)).then_some(()).ok_or_else(|| "it lives".to_owned()));
    copy_program(BINARY.as_ref(), &renewed);
    std::fs::rename(&renewed, &installed).unwrap();
    supervisor.await_status(&[("/worker", json!(4))]);

    case.say("while it is to be confirmed");
    case.await_event("KubeletConfigAwaitsConfirmation", &[&case.id("map")]);
    end_worker("STOP", 5);
    supervisor.verb(&["confirm"]).unwrap();
    case.await_config(&source, &source, &source, "");
    assert_eq!((case.kubelets(), own()), (vec![kubelet], before));
    case.await_event("WorkerReplaced", &["signal 9"]);

    case.say("in a control test");
    let before = own();
    let deadly = "enforceNodeAllocatable: [pods, system-reserved]\nsystemReservedCgroup: /nope";
    case.assign(&accepted(case, "deadly", deadly));
    case.await_event("KubeletConfigRolledBack", &[&case.id("deadly")]);
    end_worker("KILL", 6);
    end_worker("STOP", 7);
    supervisor.await_status(&[("/active", source.clone()), ("/kubelet/ready", json!(true))]);
    supervisor.assert_steady(3);
    let bad = supervisor.status().unwrap()["badVersions"].clone();
    assert!(bad.to_string().contains(&case.id("deadly")), "{bad:#}");
    assert_eq!(own(), before);
    delete(case, &name);
    assert!(supervisor.stop().success());
}

/// `kubectl exec` of a script, once it runs; what it says afterwards can be read.
fn exec(case: &Case, name: &str, script: &str) -> (Child, BufReader<ChildStdout>) {
    let mut kubectl = Command::new(case.var("KUBECTL"));
    kubectl.env("KUBECONFIG", case.var("KUBECONFIG")).stdin(Stdio::null()).stdout(Stdio::piped());
    let script = format!("echo begun; {script}");
    let mut child = kubectl.args(["exec", name, "--", "sh", "-c", &script]).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "begun\n");
    (child, out)
}

/// An exec of a minute is not cut by a change that may wait so long; one without an end delays a change by the courtesy.
pub fn exec_and_changes(case: &Case) {
    let supervisor = case.supervisor_options("4s", &["--courtesy", "5m"]);
    case.await_node_ready();
    let name = case.id("worker");
    make(case, &name, &json!({}));
    let before = supervisor.process();

    case.say("a minute");
    let (mut child, mut out) = exec(case, &name, "sleep 60; echo whole");
    let map = case.assign_new(&case.id("patient"), "maxPods: 42");
    let stream = json!(["an exec, attach or port-forward stream runs"]);
    supervisor.await_status(&[("/waiting/source", map.source()), ("/waiting/for", stream.clone())]);
    case.await_event("KubeletConfigWaiting", &["an exec, attach or port-forward stream runs", &map.name]);
    supervisor.await_metric("kubelet_supervisor_change_held", "reason=\"streams\"", 1.0);
    assert_eq!(supervisor.process(), before);
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(rest, "whole\n");
    case.await_proven(&map);
    supervisor.await_status(&[("/waiting", Value::Null), ("/kubelet/restarts", json!(before.1 + 1))]);

    case.say("without an end");
    case.await_node_ready();
    let (mut child, mut out) = exec(case, &name, "sleep 3600; echo whole");
    let rest = json!({
        "metadata": { "annotations": { "kubelet-supervisor.io/courtesy": "10s" } },
        "data": { "kubelet": case.payload("maxPods: 43") },
    });
    let began = Instant::now();
    let map = case.map(&case.id("hasty"), &rest);
    case.assign(&map);
    supervisor.await_status(&[("/waiting/source", map.source()), ("/waiting/for", stream)]);
    let source = map.source();
    supervisor.await_status(&[("/active", source.clone()), ("/kubelet/ready", json!(true))]);
    assert!(began.elapsed() >= Duration::from_secs(10), "{:?}", began.elapsed());
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "it was cut");
    child.wait().unwrap();
    case.await_config(&source, &source, &source, "");
    delete(case, &name);
    assert!(supervisor.stop().success());
}
