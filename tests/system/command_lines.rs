//! Command lines as they are found, with the binary itself: every flag stays in force, and what wins over a
//! configuration is said.

use std::fs;

use serde_json::{Value, json};

use crate::kill_kubelet;
use testkit::kubelet::Style;
use testkit::rig::{NODE, Rig, STANDBY_LOCK, configuration, eventually, exit_and_output, is, supervisor};

/// Command lines of nodes, among them that of an OpenShift node as `ps` shows it.
const FOUND: &str = include_str!("../../crates/config/src/flags/fixtures/node_command_lines.yaml");
const OPENSHIFT: &str = "OpenShift 4.x, a node with static addresses";

/// Its configuration file.
const KUBELET_CONF: &str = include_str!("../fixtures/openshift/kubelet.conf");

/// The node of [`OPENSHIFT`], its paths moved into the test's directory. What the seed leaves to defaults of the
/// machine (certificates, root directory, the healthz port) has flags or a field here, for tests run side by side.
fn openshift(hyperkube: bool) -> Rig {
    let mut rig = Rig::new();
    let at = |name: &str| rig.at(name).display().to_string();
    let moved = |text: &str| {
        text.replace("/etc/kubernetes", &at("etc")).replace("/var/lib/kubelet/kubeconfig", &at("kubeconfig"))
    };
    let healthz = rig.args.iter().find_map(|arg| arg.strip_prefix("--healthz-port=")).unwrap().to_owned();
    let own: Vec<String> =
        rig.args.iter().filter(|arg| arg.starts_with("--cert-dir") || arg.starts_with("--root-dir")).cloned().collect();
    fs::create_dir_all(at("etc/manifests")).unwrap();
    fs::write(at("etc/kubelet.conf"), format!("{}healthzPort: {healthz}\n", moved(KUBELET_CONF))).unwrap();
    fs::write(at("etc/kubelet-ca.crt"), "-----BEGIN CERTIFICATE-----\nc3RhbmQtaW4=\n-----END CERTIFICATE-----\n")
        .unwrap();
    let found: Vec<Value> = serde_yaml::from_str(FOUND).unwrap();
    let found = found.iter().find(|found| found["name"] == OPENSHIFT).unwrap();
    let mut args: Vec<String> = moved(found["line"].as_str().unwrap()).split_whitespace().map(str::to_owned).collect();
    args.extend(own);
    if hyperkube {
        std::os::unix::fs::symlink(&rig.program, at("hyperkube")).unwrap();
        rig.program = rig.at("hyperkube");
        args.insert(0, "kubelet".to_owned());
    }
    rig.args = args;
    // The seed's node has its name from its certificate; the tests' server knows no certificates.
    rig.option("--node-name", NODE);
    rig
}

/// The arguments of the latest start, without the sub-command.
fn last_args(rig: &Rig) -> Vec<String> {
    let args = rig.kubelet.starts().last().unwrap()["args"].clone();
    let args: Vec<String> = serde_json::from_value(args).unwrap();
    args.into_iter().filter(|arg| arg != STANDBY_LOCK).collect()
}

/// What is given, with the rendered `--config` in the place of its own.
fn without_config(args: &[String]) -> Vec<String> {
    args.iter().filter(|arg| *arg != "kubelet" && !arg.starts_with("--config=")).cloned().collect()
}

fn an_openshift_node(hyperkube: bool) {
    let mut rig = openshift(hyperkube);
    rig.up();
    let given: Vec<String> = rig.args.iter().filter(|arg| *arg != "kubelet").cloned().collect();
    assert_eq!(last_args(&rig), given, "its own configuration: the command line as it was given");

    // Replace: the payload alone, but for the local gates.
    let local: Value = serde_json::from_value(rig.last_config()).unwrap();
    let payload = fs::read_to_string(rig.at("etc/kubelet.conf")).unwrap();
    let gates = payload.find("featureGates:").unwrap()..payload.find("serverTLSBootstrap").unwrap();
    let payload = payload
        .replace(payload.get(gates).unwrap(), "featureGates: {CSIMigrationAWS: true}\n")
        .replace("maxPods: 250", "maxPods: 42");
    let version = rig.offer_with("pool", &payload, ("acknowledge", "all"));
    rig.wait_active(&version);
    rig.wait_ready(2);
    let config = rig.last_config();
    assert_eq!(config["maxPods"], 42);
    assert_eq!(config["staticPodPath"], rig.at("etc/manifests").display().to_string());
    let mut expected = local["featureGates"].clone();
    expected["CSIMigrationAWS"] = true.into();
    assert_eq!(config["featureGates"], expected, "the local gates under the payload's");
    let args = last_args(&rig);
    let (last, rest) = args.split_last().unwrap();
    assert_eq!(rest, without_config(&rig.args), "all flags in force, in their order");
    assert!(last.starts_with(&format!("--config={}", rig.at("dynamic/supervisor/configs").display())), "{last}");
    let status = rig.wait_status("what flags shadow", |status| status["shadowedByFlags"] != json!([]));
    assert_eq!(status["shadowedByFlags"], json!(["systemReserved (--system-reserved)"]));
    let (_, text, _) = rig.verb(&["status"]);
    assert!(text.contains("systemReserved (--system-reserved), the command line wins"), "{text}");

    // Overlay: a line is enough, all else is the local file's.
    let version = rig.offer_with("line", "maxPods: 55\nsystemReserved: null\n", ("merge", "overlay"));
    rig.wait_active(&version);
    rig.wait_ready(3);
    let mut expected = local.clone();
    expected["maxPods"] = 55.into();
    expected.as_object_mut().unwrap().remove("systemReserved");
    assert_eq!(rig.last_config(), expected);
    assert_eq!(rig.wait_config("proven", |config| is(config, "lastKnownGood", &version))["error"], Value::Null);

    // By hand, with the same command line.
    let file = rig.at("candidate.yaml");
    fs::write(&file, configuration("maxPods: -1")).unwrap();
    let run = |verb: &str, more: &[&str]| {
        let mut command = supervisor();
        command.arg(verb).arg(&file).args(more).arg("--").arg(&rig.program).args(&rig.args);
        exit_and_output(&command.output().unwrap())
    };
    let (code, stdout, _) = run("check", &[]);
    assert_eq!((code, stdout.contains("MaxPods (--max-pods) -1 must not be a negative number")), (1, true), "{stdout}");
    fs::write(&file, "maxPods: 7\nsystemReserved: {cpu: 1}\n").unwrap();
    let (code, stdout, stderr) = run("check", &["--merge=overlay"]);
    assert_eq!((code, stdout.as_str()), (0, "valid\n"), "{stderr}");
    let (code, stdout, stderr) = run("render", &["--merge=overlay"]);
    let rendered: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &rendered["maxPods"], &rendered["tlsMinVersion"]), (0, &json!(7), &json!("VersionTLS12")));
    assert!(stderr.contains("systemReserved (--system-reserved) has no effect"), "{stderr}");
}

#[test]
fn openshift_as_ps_shows_it() {
    an_openshift_node(false);
}

#[test]
fn openshift_through_hyperkube() {
    an_openshift_node(true);
}

/// A cluster that used native dynamic configuration, and has a new kubelet now.
#[test]
fn a_new_kubelet_with_the_flags_of_an_old_one() {
    let mut rig = Rig::with(Style::V1_36, "1s");
    rig.args.push(format!("--dynamic-config-dir={}", rig.at("dynamic").display()));
    rig.options.retain(|option| !option.starts_with("--dynamic-config-dir"));
    rig.args.extend(["--feature_gates", "DynamicKubeletConfig=true,NodeSwap=false"].map(str::to_owned));
    rig.up();
    let args = last_args(&rig);
    assert!(args.ends_with(&["--feature_gates".to_owned(), "NodeSwap=false".to_owned()]), "{args:?}");
    assert!(!args.iter().any(|arg| arg.contains("dynamic")), "{args:?}");
    // The payload of those days.
    let version =
        rig.prove("a", &configuration("maxPods: 42\nfeatureGates: {DynamicKubeletConfig: true, NodeSwap: true}"));
    assert_eq!(rig.last_config()["featureGates"], json!({"NodeSwap": true}));
    rig.wait_log("featureGates.DynamicKubeletConfig is left out");
    assert!(rig.at("dynamic/store/checkpoints").join(version.0).join(version.1).join("kubelet").is_file());
}

/// The local file is nobody else's to change: it is said what is wrong with it, and a payload helps.
#[test]
fn a_local_file_that_a_new_kubelet_refuses() {
    let mut rig = Rig::with(Style::V1_36, "1s");
    rig.local("featureGates: {DynamicKubeletConfig: true}");
    rig.start();
    rig.wait_log("the local file sets featureGates.DynamicKubeletConfig, which kubelets from v1.24 on refuse");
    let version = rig.offer("a", &configuration("maxPods: 42"));
    rig.wait_active(&version);
    rig.wait_ready(1);
    let config = rig.last_config();
    assert_eq!((&config["maxPods"], &config["featureGates"]), (&json!(42), &Value::Null));
}

/// Nothing but static pods: no API server, no file.
#[test]
fn a_standalone_node_is_minded_as_it_is() {
    let mut rig = Rig::new();
    let at = |name: &str| rig.at(name).display().to_string();
    let healthz = rig.args.iter().find(|arg| arg.starts_with("--healthz-port")).unwrap().clone();
    rig.args = vec![
        format!("--pod-manifest-path={}", at("manifests")),
        "--fail-swap-on=false".to_owned(),
        "-v2".to_owned(),
        format!("--cert-dir={}", at("pki")),
        format!("--root-dir={}", at("kubelet")),
        healthz,
    ];
    rig.up();
    assert_eq!(last_args(&rig), rig.args);
    rig.wait_log("it is standalone and supervised as it is");
    kill_kubelet(&rig);
    rig.wait_ready(2);
    eventually("it is shown", || (rig.status()["kubelet"]["restarts"] == 1).then_some(()));
    assert!(rig.server.requests().is_empty());
    rig.stop();
}
