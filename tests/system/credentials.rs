//! The binary with credentials that come late, change and are refused: token files, plugins, certificates.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use testkit::built::write_script;
use testkit::rig::{NODE, Rig, configuration, eventually};

/// A rig whose kubeconfig has this user and cluster.
fn with(cluster: &Value, user: &Value) -> Rig {
    let rig = Rig::new();
    write(&rig, cluster, user);
    rig
}

/// Replaces the kubeconfig as kubeadm does: written in place.
fn write(rig: &Rig, cluster: &Value, user: &Value) {
    let mut cluster = cluster.clone();
    if cluster["server"].is_null() {
        cluster["server"] = json!(rig.server.url());
    }
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "c", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}]});
    std::fs::write(rig.at("kubeconfig"), format!("{config:#}\n")).unwrap();
}

/// The API server wants this token from now on, and has no connection any more that was begun with another.
fn want(rig: &mut Rig, token: &str) {
    rig.server.require_token(Some(token));
    rig.server.end_watches();
}

/// Watches by this token, of those that were answered.
fn wait_token(rig: &Rig, token: &str) {
    let watch = rig.server.wait_request(testkit::rig::SOON, |request| {
        request.is_watch() && request.token == token && request.status == 200
    });
    watch.unwrap_or_else(|error| panic!("{token}: {error}\n{}", rig.log()));
}

/// None of the old ones is left.
fn two_watches(rig: &Rig) {
    let two = rig.server.wait_until(testkit::rig::SOON, |state| (state.watches() == 2).then_some(()));
    two.unwrap_or_else(|error| panic!("{} watches: {error}", rig.server.watches()));
}

/// A plugin: a shell script that counts its runs, one line each in the file `runs`.
struct Plugin {
    path: PathBuf,
    runs: PathBuf,
}

impl Plugin {
    fn new(rig: &Rig, script: &str) -> Plugin {
        let plugin = Plugin { path: rig.at("plugin.sh"), runs: rig.at("runs") };
        plugin.does(script);
        plugin
    }

    /// What it does from now on.
    fn does(&self, script: &str) {
        write_script(&self.path, &format!("echo run >>{}\n{script}", self.runs.display()));
    }

    fn runs(&self) -> usize {
        std::fs::read_to_string(&self.runs).unwrap_or_default().lines().count()
    }

    /// In the kubeconfig; the path is relative to it.
    fn user() -> Value {
        json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin.sh", "args": ["a"],
            "env": [{"name": "FROM_KUBECONFIG", "value": "yes"}], "interactiveMode": "IfAvailable", "provideClusterInfo": true}})
    }
}

/// Prints a token that stands in a file.
fn prints_token(rig: &Rig) -> String {
    format!(
        r#"printf '{{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {{"token": "%s"}}}}' "$(cat {})""#,
        rig.at("plugin-token").display()
    )
}

#[test]
fn a_token_file_that_is_rotated() {
    let mut rig = with(&json!({}), &json!({"tokenFile": "token"}));
    std::fs::write(rig.at("token"), "one\n").unwrap();
    rig.server.require_token(Some("one"));
    rig.up();
    rig.apply("a", &configuration("maxPods: 41"));
    wait_token(&rig, "one");
    // Refused before there is another, and then there is.
    want(&mut rig, "two");
    rig.wait_log("does not accept the credentials of ");
    std::fs::write(rig.at("token"), "two\n").unwrap();
    wait_token(&rig, "two");
    // There is another, and then the old one is refused.
    std::fs::write(rig.at("token"), "three\n").unwrap();
    want(&mut rig, "three");
    wait_token(&rig, "three");
    rig.prove("b", &configuration("maxPods: 42"));
    assert_eq!((rig.starts(), rig.status()["error"].as_str()), (3, Some("")));
    two_watches(&rig);
}

#[test]
fn a_token_in_the_kubeconfig_that_is_replaced_and_a_server_that_moves() {
    let mut rig = with(&json!({}), &json!({"token": "one"}));
    rig.server.require_token(Some("one"));
    rig.up();
    rig.apply("a", &configuration("maxPods: 41"));
    // Half of it first: the session that is there goes on.
    let half = "apiVersion: v1\nusers:\n- name: c\n  user: {token: tw";
    std::fs::write(rig.at("kubeconfig"), half).unwrap();
    rig.server.end_watches();
    rig.apply("b", &configuration("maxPods: 42"));
    // A new address, where the old one no longer answers.
    let other = testkit::api_server::ApiServer::start();
    other.create_node(NODE);
    other.require_token(Some("two"));
    rig.server.stop();
    write(&rig, &json!({"server": other.url()}), &json!({"token": "two"}));
    let seen = other.wait_request(testkit::rig::SOON, |request| request.is_watch() && request.token == "two");
    seen.unwrap_or_else(|error| panic!("{error}\n{}", rig.log()));
}

#[test]
fn a_plugin_is_run_once_for_each_client() {
    let mut rig = with(&json!({}), &Plugin::user());
    let plugin = Plugin::new(&rig, &format!("env >{}; {}", rig.at("plugin-env").display(), prints_token(&rig)));
    std::fs::write(rig.at("plugin-token"), "one").unwrap();
    rig.server.require_token(Some("one"));
    rig.env.push(("FROM_UNIT".to_owned(), "yes".to_owned()));
    rig.up();
    rig.apply("a", &configuration("maxPods: 41"));
    assert_eq!(plugin.runs(), 1);
    let env = std::fs::read_to_string(rig.at("plugin-env")).unwrap();
    let info = env.lines().find_map(|line| line.strip_prefix("KUBERNETES_EXEC_INFO=")).expect("what it is asked for");
    let info: Value = serde_json::from_str(info).unwrap();
    assert_eq!(
        (&info["spec"]["interactive"], &info["spec"]["cluster"]["server"]),
        (&json!(false), &json!(rig.server.url()))
    );
    assert!(env.contains("FROM_KUBECONFIG=yes") && env.contains("FROM_UNIT=yes"), "{env}");
    assert!(!env.contains("NOTIFY_SOCKET") && !env.contains("WATCHDOG"), "{env}");

    // No file of the kubelet's changes: a refusal alone makes it be asked again, at once, and once.
    std::fs::write(rig.at("plugin-token"), "two").unwrap();
    want(&mut rig, "two");
    wait_token(&rig, "two");
    assert_eq!(plugin.runs(), 2);
    two_watches(&rig);
    // It gives what is refused, again within a minute: with a pause.
    want(&mut rig, "three");
    rig.wait_log("does not accept the credentials of ");
    let runs = plugin.runs();
    assert!((2..=3).contains(&runs), "{runs}");
    std::thread::sleep(Duration::from_secs(3)); // that nothing happens cannot be awaited
    assert_eq!(plugin.runs(), runs);
    std::fs::write(rig.at("plugin-token"), "three").unwrap();
    plugin.does(&prints_token(&rig)); // another binary is looked at within seconds
    wait_token(&rig, "three");
    assert_eq!(plugin.runs(), runs + 1);
    rig.prove("b", &configuration("maxPods: 42"));
    assert_eq!(plugin.runs(), runs + 1);
    assert!(!rig.log().contains("three"), "tokens are not for the journal");
}

#[test]
fn a_plugin_that_fails() {
    let mut rig = with(&json!({}), &Plugin::user());
    let version = rig.offer("a", &configuration("maxPods: 41"));
    rig.up();
    let named =
        format!("{}: the credential plugin {} ", rig.at("kubeconfig").display(), rig.at("./plugin.sh").display());
    rig.wait_log(&format!("{named}cannot be run: No such file or directory"));
    let plugin = Plugin::new(&rig, "echo SECRET; echo the metadata service is away >&2; exit 3");
    rig.wait_log(&format!("{named}failed with exit code 3: the metadata service is away"));
    plugin.does("echo SECRET");
    rig.wait_log(&format!("{named}printed 7 bytes that are no ExecCredential"));
    plugin.does("kill -9 $$");
    rig.wait_log(&format!("{named}was ended by signal 9"));
    assert!(plugin.runs() < 12, "{} runs", plugin.runs());
    std::fs::write(rig.at("plugin-token"), "t").unwrap();
    plugin.does(&prints_token(&rig));
    rig.wait_active(&version);
    assert!(!rig.log().contains("SECRET"));
}

#[test]
fn a_plugin_that_hangs_keeps_nobody_waiting_and_leaves_nothing_behind() {
    let mut rig = with(&json!({}), &Plugin::user());
    let plugin = Plugin::new(&rig, &format!("sleep 1000 & echo $! >{}; wait", rig.at("sleeper").display()));
    rig.up();
    let sleeper =
        eventually("the plugin hangs", || std::fs::read_to_string(rig.at("sleeper")).ok()?.trim().parse::<u64>().ok());
    // The kubelet is minded all the while.
    crate::kill_kubelet(&rig);
    rig.wait_ready(2);
    testkit::rig::eventually_within(Duration::from_secs(60), "its end", || {
        rig.log().contains("did not end within 30 s").then_some(())
    });
    eventually("nothing is left of it", || testkit::rig::is_gone(sleeper).then_some(()));
    assert!(plugin.runs() <= 2);
}
