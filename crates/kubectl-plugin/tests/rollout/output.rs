//! What people and programs see.

use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use testkit::api_server::Request;
use testkit::rollout::{NAMESPACE, Outcome, TARGET, World};

/// The built plugin, not on a terminal: standard output, standard error, and how it ended.
pub fn plugin(world: &World, args: &[&str]) -> (String, String, Option<i32>) {
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    world.server.write_kubeconfig(&kubeconfig);
    let output = Command::new(env!("CARGO_BIN_EXE_kubectl-kubelet_config"))
        .args(["--kubeconfig", kubeconfig.to_str().unwrap(), "rollout"])
        .args(args)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr), output.status.code())
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_shows_who_comes_when_and_writes_nothing() {
    let world = World::new(5);
    world.unready(0, 1000);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let expected = "\
WAVE     NODE        ZONE   READY   BEFORE
canary   node-0003   z0     yes     pool-a
1        node-0001   z1     yes     pool-a
1        node-0002   z2     yes     pool-a
2        node-0004   z1     yes     pool-a
2        node-0000   z0     no      pool-a
";
    for dry in ["--dry-run", "--dry-run=client", "--dry-run=server"] {
        let (shown, said, code) = plugin(&world, &[TARGET, "-l", "all=yes", "--max-unavailable", "50%", dry]);
        assert_eq!((said.as_str(), code, shown.as_str()), ("", Some(0), expected));
    }
    assert!(world.server.requests().iter().all(|request| request.method == "GET"));
}

#[tokio::test(start_paused = true)]
async fn status_tells_what_is_open_and_why() {
    let world = World::new(5);
    assert_eq!(plugin(&world, &["status"]).1, "No rollouts found in kubelet-config namespace.\n");
    world.set_outcome(1, Outcome::Rejects);
    world.bad(&[TARGET, "-l", "all=yes", "--canary", "2", "--max-unavailable", "2", "--quiet"]).await;
    let (shown, _, code) = plugin(&world, &["status", TARGET]);
    let expected = "\
pool-b: stopped, 0 done, 1 in flight, 3 waiting, 1 bad; nobody drives it
node node-0001 called it bad: in my words
NODE        STATE       MESSAGE
node-0000   in flight   -
node-0001   bad         in my words
";
    assert_eq!((shown.as_str(), code), (expected, Some(0)));
    let (listed, ..) = plugin(&world, &["status"]);
    let lines: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "CONFIGMAP", "NODES", "STATE", "AGE", "WHY"]);
    assert_eq!(lines[1][..4], ["pool-b", "pool-b", "5", "stopped"]);
    let (document, ..) = plugin(&world, &["status", TARGET, "-o", "json"]);
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!((&document["phase"], &document["counts"]["bad"]), (&"stopped".into(), &1.into()));
    assert_eq!(document["bad"][0]["node"], "node-0001");
}

#[tokio::test(start_paused = true)]
async fn refusals_say_what_to_do() {
    let world = World::new(3);
    let said = |args: &[&str]| {
        let (_, said, code) = plugin(&world, args);
        assert_ne!(code, Some(0), "{args:?}");
        said
    };
    let all = ["-l", "all=yes"];
    let with = |first: &[&'static str]| [first, &all].concat();
    assert!(said(&with(&["nothing"])).contains("error: there is no ConfigMap nothing in namespace kubelet-config"));
    assert!(said(&with(&[TARGET, "--key", "x"])).contains("has no key x, but: kubelet"));
    assert!(said(&[TARGET, "-l", "no=such"]).contains("no node has the labels \"no=such\""));
    assert!(said(&with(&[TARGET, "--max-unavailable", "0"])).contains("a number from 1, or a share such as 10%"));
    assert!(said(&[TARGET]).contains("--selector"));
    assert!(said(&["status", "x"]).contains("there is no rollout \"x\" in namespace kubelet-config"));
    assert!(said(&with(&[TARGET, "--name", "No"])).contains("cannot be the name of a rollout"));
    world.server.put_config_map(NAMESPACE, "empty", &[]);
    assert!(said(&with(&["empty"])).contains("has no key kubelet, but: none"));
    assert!(world.server.requests().iter().all(|request| request.method == "GET"), "nothing was written");
}

#[tokio::test]
async fn an_interrupted_client_lets_others_drive_at_once() {
    let world = World::new(5);
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    world.server.write_kubeconfig(&kubeconfig);
    let client = Command::new(env!("CARGO_BIN_EXE_kubectl-kubelet_config"))
        .args(["--kubeconfig", kubeconfig.to_str().unwrap(), "rollout", TARGET, "-l", "all=yes"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let sent =
        |request: &Request| request.method == "PATCH" && request.status == 200 && !request.query.contains("dryRun");
    world.server.wait_request(Duration::from_secs(60), sent).unwrap();
    let pid = Pid::from_raw(i32::try_from(client.id()).unwrap());
    kill(pid, Signal::SIGINT).unwrap();
    let output = client.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(75), "{said}");
    assert!(said.contains("Go on with `kubectl kubelet-config rollout resume pool-b`"), "{said}");
    let (document, ..) = plugin(&world, &["status", TARGET, "-o", "json"]);
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!((&document["phase"], &document["holder"]), (&"running".into(), &Value::Null));
    assert_eq!(document["counts"]["inFlight"], 1);
}
