//! The node's own `--config` file changes under a real kubelet.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::cluster::until;
use crate::supervisor::{Case, Supervisor};

const VALIDATE: &str = "failed to validate config, see Kubelet log for details";
const LOAD: &str = "failed to load config, see Kubelet log for details";

/// A configuration that is valid, and fatal.
const KILLER: &str = "enforceNodeAllocatable: [pods, system-reserved]\nsystemReservedCgroup: /no-such-cgroup";

/// A supervisor whose kubelet has a file of this case alone.
fn supervisor<'a>(case: &Case<'a>, options: &[&str], text: &str) -> (Supervisor<'a>, PathBuf) {
    let file = case.cluster.dir.join(format!("{}.yaml", case.name));
    std::fs::write(&file, text).unwrap();
    let mut args = case.kubelet_args();
    args.retain(|arg| !arg.starts_with("--config="));
    args.push(format!("--config={}", file.display()));
    (case.launch_with("4s", options, &case.dir(), args), file)
}

/// What differs is said in status, metric and event; nothing is restarted for it.
pub fn told(case: &Case) {
    let (supervisor, file) = supervisor(case, &[], &case.payload("maxPods: 60"));
    case.await_node_ready();
    case.await_configz("maxPods", &json!(60));
    let before = supervisor.process();
    std::fs::write(&file, case.payload("maxPods: 61")).unwrap();
    let difference = "the local files differ from what the kubelet runs: maxPods";
    supervisor.await_status(&[("/localFiles", json!(difference))]);
    supervisor.await_metric("kubelet_supervisor_local_files_differ", "", 1.0);
    case.await_event("KubeletConfigLocalFiles", &[difference]);
    std::fs::write(&file, "{torn").unwrap();
    until("it cannot be used", || {
        let status = supervisor.status()?;
        let told = status["localFiles"].as_str().unwrap_or_default();
        if told.contains(&file.display().to_string()) || told.contains("cannot be used") {
            Ok(())
        } else {
            Err(format!("{status:#}"))
        }
    });
    std::fs::write(&file, case.payload("maxPods: 60")).unwrap();
    supervisor.await_status(&[("/localFiles", Value::Null)]);
    supervisor.await_metric("kubelet_supervisor_local_files_differ", "", 0.0);
    assert_eq!(supervisor.process(), before);
    assert!(supervisor.stop().success());
}

/// Waits until this is active and last known good; gives it.
fn proven(supervisor: &Supervisor, before: &Value) -> Value {
    until("it is proven", || {
        let status = supervisor.status()?;
        let seen = &status["assigned"];
        let good = seen["configMap"]["uid"] == "local-files" && seen != before && *seen == status["lastKnownGood"];
        if good && status["active"] == *seen { Ok(seen.clone()) } else { Err(format!("{status:#}")) }
    })
}

/// Followed, it is what is assigned where nothing else is: proven as it runs, rejected, changed; and it is rolled back under
/// a ConfigMap that is laid over it.
pub fn followed(case: &Case) {
    let (first, file) = supervisor(case, &["--follow-local"], &case.payload("maxPods: 60"));
    case.await_node_ready();
    let version = proven(&first, &Value::Null);
    assert_eq!(first.restarts(), 0, "what runs is what is proven");
    std::fs::write(&file, case.payload("maxPods: -1")).unwrap();
    first.await_status(&[("/error", json!(VALIDATE)), ("/active", version.clone())]);
    assert_eq!(first.restarts(), 0, "a rejection costs no restart");
    std::fs::write(&file, case.payload("maxPods: 61")).unwrap();
    let version = proven(&first, &version);
    case.await_configz("maxPods", &json!(61));
    assert_eq!(first.restarts(), 1);
    // Without the supervisor this node would have no kubelet now.
    assert!(first.stop().success());
    let (second, file) = supervisor(case, &["--follow-local"], "{torn");
    second.await_status(&[("/active", version.clone()), ("/lastKnownGood", version), ("/kubelet/ready", json!(true))]);
    case.await_configz("maxPods", &json!(61));
    std::fs::write(&file, case.payload("maxPods: 61")).unwrap();

    let annotations = json!({"kubelet-supervisor.io/merge": "overlay", "kubelet-supervisor.io/acknowledge": "all"});
    let map = case.map(
        &case.id("over"),
        &json!({"metadata": {"annotations": annotations}, "data": {"kubelet": case.payload("podsPerCore: 7")}}),
    );
    case.assign(&map);
    second.await_status(&[("/active", map.source()), ("/lastKnownGood", map.source())]);
    let restarts = second.restarts();
    std::fs::write(&file, case.payload(&format!("maxPods: 61\n{KILLER}"))).unwrap();
    second.await_status(&[
        ("/error", json!(LOAD)),
        ("/trial/state", json!("failed")),
        ("/lastKnownGood", map.source()),
        ("/kubelet/ready", json!(true)),
    ]);
    assert!(second.restarts() > restarts, "it was tried");
    case.await_configz("podsPerCore", &json!(7));
    assert!(second.stop().success());
}

/// Static pods, and a file that is edited by hand: no API server, and nobody else who could mend it.
pub fn standalone(case: &Case) {
    // Without an API server nobody can be asked who a client is.
    let alone = |more: &str| {
        let text = case.payload(more).replace("webhook: {enabled: true}", "webhook: {enabled: false}");
        text.replace("mode: Webhook", "mode: AlwaysAllow")
    };
    let dir = case.cluster.dir.join(case.name);
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("kubelet.yaml");
    let edit = |more: &str| std::fs::write(&file, alone(more)).unwrap();
    edit("maxPods: 60");
    let mut args = case.kubelet_args();
    args.retain(|arg| !arg.starts_with("--kubeconfig=") && !arg.starts_with("--config="));
    args.push(format!("--config={}", file.display()));
    let launch = || case.launch_with("4s", &["--follow-local"], &case.dir(), args.clone());
    let supervisor = launch();
    let first = proven(&supervisor, &Value::Null);
    assert_eq!(supervisor.restarts(), 0, "what runs is what is proven");

    edit("maxPods: -1");
    supervisor.await_status(&[
        ("/error", json!(VALIDATE)),
        ("/active", first.clone()),
        ("/kubelet/restarts", json!(0)),
    ]);
    edit("maxPods: 61");
    let second = proven(&supervisor, &first);
    assert_eq!(supervisor.restarts(), 1);

    // Half of it is a configuration, too.
    let mut writer = std::fs::File::create(&file).unwrap();
    writer.write_all(alone("maxPods: 62").as_bytes()).unwrap();
    assert!(supervisor.stop().success());
    let supervisor = launch();
    supervisor.await_log("kubelet.yaml is being written; it is taken up when that has ended");
    supervisor.await_status(&[("/active", second.clone()), ("/kubelet/ready", json!(true))]);
    writer.write_all(b"\npodPidsLimit: 700\n").unwrap();
    drop(writer);
    let third = proven(&supervisor, &second);
    assert_eq!(supervisor.restarts(), 1);

    let mode = |mode| std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o777);
    edit("maxPods: 63");
    await_detail(&supervisor, &format!("chmod go-w {}", dir.display()));
    supervisor.await_status(&[("/active", third.clone())]);
    mode(0o755);
    let fourth = proven(&supervisor, &third);

    edit(KILLER);
    await_detail(&supervisor, "run kubelet-supervisor acknowledge reboot on the node");
    supervisor.verb(&["acknowledge", "reboot"]).unwrap();
    supervisor.await_status(&[
        ("/error", json!(LOAD)),
        ("/active", fourth.clone()),
        ("/lastKnownGood", fourth),
        ("/trial/state", json!("failed")),
        ("/kubelet/ready", json!(true)),
    ]);
    await_detail(&supervisor, "Failed to enforce System Reserved Cgroup Limits");
    assert!(supervisor.stop().success());
}

fn await_detail(supervisor: &Supervisor, words: &str) {
    until(words, || {
        let status = supervisor.status()?;
        let is_there = status["errorDetail"].as_str().unwrap_or_default().contains(words);
        if is_there { Ok(()) } else { Err(format!("{status:#}")) }
    });
}
