//! `render --effective` against the `/configz` of the kubelet that runs: every field, in both directions.

use std::collections::BTreeMap;
use std::process::Command;

use kubelet_config::duration::GoDuration;
use kubelet_config::hazard::table;
use kubelet_config::schema;
use serde_json::{Value, json};

use crate::cluster::until;
use crate::supervisor::{BINARY, Case};
use crate::versions;

/// The minor version of this suite's kubelet.
const MINOR: u64 = 20;

/// In the local file, over which the payload is laid.
const LOCAL: &str = include_str!("effective_view/local.yaml");

/// Whatever this version has, at another value than its default.
const PAYLOAD: &str = include_str!("effective_view/payload.yaml");

/// Of the unit, over all that.
const FLAGS: [&str; 6] = [
    "--event-qps=9",
    "--max-pods=44",
    "--eviction-minimum-reclaim=nodefs.available=2Mi",
    "--kube-reserved=cpu=400m",
    "--node-status-max-images=-1",
    "--streaming-connection-idle-timeout=2h30m",
];

/// What keeps its default in the full configuration, and why.
const KEPT: [(&str, &str); 14] = [
    ("enableServer", "there would be no /configz"),
    ("enableDebuggingHandlers", "there would be no /configz"),
    ("readOnlyPort", "a port on a machine with other clusters"),
    ("serverTLSBootstrap", "the kubelet would wait for somebody to approve its certificate, and serve no /configz"),
    ("kubeletCgroups", "it would leave this cluster's cgroup"),
    ("systemCgroups", "it would move the machine's processes"),
    ("cgroupsPerQOS", "its pods would leave this cluster's cgroup"),
    ("cgroupDriver", "there is no systemd"),
    ("runOnce", "the kubelet would end"),
    ("protectKernelDefaults", "it would not start with this machine's sysctls"),
    ("reservedSystemCPUs", "refused beside systemReservedCgroup; set in the second configuration"),
    ("shutdownGracePeriod", "it would rewrite the machine's logind.conf"),
    ("shutdownGracePeriodCriticalPods", "as the one before"),
    ("makeIPTablesUtilChains", "set to false in the local file: the machine's iptables are not ours"),
];

/// Like what Go leaves out of JSON, with durations as what they last.
fn meaning(value: &Value) -> Option<Value> {
    match value {
        Value::Null | Value::Bool(false) => None,
        Value::Number(number) if number.as_f64() == Some(0.0) => None,
        Value::String(text) if text.is_empty() => None,
        Value::Array(items) if items.is_empty() => None,
        Value::Object(fields) if fields.is_empty() => None,
        Value::String(text) => match text.parse::<GoDuration>() {
            Ok(duration) => Some(json!(duration.0.as_nanos().to_string())).filter(|nanos| *nanos != "0"),
            Err(_) => Some(value.clone()),
        },
        value => Some(value.clone()),
    }
}

/// Each value by its path, as it stands in a document.
fn flat(path: &str, value: &Value, found: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                flat(&path, value, found);
            }
        }
        value => found.extend(meaning(value).map(|value| (path.to_owned(), value))),
    }
}

/// `render --effective` of what is active: by path, value and source.
fn view(case: &Case, args: &[String]) -> BTreeMap<String, (Value, String)> {
    let mut command = Command::new(BINARY);
    command.args(["render", "--effective", "-o", "json", "--dynamic-config-dir"]).arg(case.dir()).arg("--").args(args);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("note: the active configuration"), "{said}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["kubelet"], versions::kubelet());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let field = |field: &Value| {
        let source = format!("{} {}", text(&field["from"]), text(&field["name"]));
        (text(&field["field"]), (field["value"].clone(), source.trim_end().to_owned()))
    };
    document["fields"].as_array().unwrap().iter().map(field).collect()
}

/// Holds the view against what the kubelet says; gives the view.
fn compare(case: &Case, args: &[String]) -> BTreeMap<String, (Value, String)> {
    let seen = view(case, args);
    let configz =
        until("/configz", || case.api("GET", &format!("{}/proxy/configz", case.node_path()), None))["kubeletconfig"]
            .clone();
    let mut running = BTreeMap::new();
    flat("", &configz, &mut running);
    // Later kubelets say what it is.
    running.retain(|path, _| path != "apiVersion" && path != "kind");
    let mut expected = BTreeMap::new();
    for (path, (value, _)) in &seen {
        flat(path, value, &mut expected);
    }
    // Filled in after /configz was (PreInitRuntimeService, pkg/kubelet/kubelet.go, v1.36).
    if !running.contains_key("imageServiceEndpoint") {
        expected.remove("imageServiceEndpoint");
    }
    // Its values are nobody's business.
    for (path, value) in &mut running {
        if path == "staticPodURL" || path.starts_with("staticPodURLHeader.") {
            *value = json!("(hidden)");
        }
    }
    let differ = running.keys().chain(expected.keys()).filter(|path| running.get(*path) != expected.get(*path));
    let differ: BTreeMap<_, _> = differ.map(|path| (path, (running.get(path), expected.get(path)))).collect();
    assert!(differ.is_empty(), "/configz, and what we say: {differ:#?}");
    assert!(running.len() > 60, "{running:#?}");
    seen
}

/// Whatever the version: the node's own file, one field more, and every other at its default.
pub fn defaults(case: &Case) {
    let (supervisor, _) = case.proven();
    let seen = compare(case, &case.kubelet_args());
    let defaults = seen.values().filter(|(_, source)| source == "default").count();
    assert!(defaults > 40, "{defaults} defaults: {seen:#?}");
    assert!(supervisor.stop().success());
}

pub fn every_field(case: &Case) {
    let dir = case.cluster.dir.join("effective-view");
    std::fs::create_dir_all(&dir).unwrap();
    let resolv_conf = dir.join("resolv.conf");
    std::fs::write(&resolv_conf, "nameserver 10.96.0.10\n").unwrap();
    let local = dir.join("local.yaml");
    std::fs::write(&local, case.payload(LOCAL)).unwrap();
    let mut args = case.kubelet_args();
    args.retain(|arg| !arg.starts_with("--config="));
    args.push(format!("--config={}", local.display()));
    args.extend(FLAGS.map(str::to_owned));

    let supervisor = case.launch("4s", &case.dir(), args.clone());
    supervisor.await_ready();
    let text = format!("{PAYLOAD}resolvConf: {}\n", resolv_conf.display());
    let map = case.map(
        &case.id("full"),
        &json!({
            "metadata": { "annotations": {
                "kubelet-supervisor.io/merge": "overlay", "kubelet-supervisor.io/acknowledge": "all",
            } },
            "data": { "kubelet": text, "kubelet.flags": "!--event-qps\n--registry-burst=13\n--feature-gates=CSIMigration=false\n" },
        }),
    );
    case.prove(&map);
    let seen = compare(case, &args);

    let (local, payload) =
        (format!("localFile {}", local.display()), format!("payload ConfigMap {}/{}", map.namespace, map.name));
    for (path, value, source) in [
        ("clusterDomain", json!("local.test"), local.as_str()),
        ("podsPerCore", json!(21), &local),
        ("registryBurst", json!(13), "flagOverride --registry-burst"),
        ("featureGates.CSIMigration", json!(false), "flagOverride --feature-gates"),
        ("featureGates.QOSReserved", json!(true), &local),
        ("systemReserved.pid", json!("100"), &local),
        ("systemReserved.memory", json!("11Mi"), &payload),
        ("featureGates.TTLAfterFinished", json!(false), &payload),
        ("clusterDNS", json!(["10.96.0.10", "10.96.0.11"]), &payload),
        ("staticPodURLHeader.X-Token", json!("(hidden)"), &payload),
        ("eventRecordQPS", json!(7), &payload),
        ("maxPods", json!(44), "flag --max-pods"),
        ("evictionMinimumReclaim.nodefs.available", json!("2Mi"), "flag --eviction-minimum-reclaim"),
        ("featureGates.DevicePlugins", json!(false), "flag --feature-gates"),
        ("enableServer", json!(true), "default"),
    ] {
        assert_eq!(seen.get(path), Some(&(value, source.to_owned())), "{path}");
    }
    // Nothing of this version was forgotten here.
    let fields = table::HAZARDS.iter().map(|hazard| hazard.field).filter(|field| schema::is_known(field, Some(MINOR)));
    for field in fields.filter(|field| KEPT.iter().all(|(kept, _)| kept != field)) {
        let of = |path: &str| path.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        let set = seen.iter().any(|(path, (_, source))| of(path) && source != "default");
        assert!(set, "{field} is at its default");
    }

    // Hardly anything: the defaults. This kubelet reserves what reservedSystemCPUs says either way, but shows it only where
    // systemReserved is a mapping already (run, cmd/kubelet/app/server.go: one is made after /configz was).
    let map = case.map(
        &case.id("bare"),
        &json!({
            "metadata": { "annotations": { "kubelet-supervisor.io/acknowledge": "all" } },
            "data": { "kubelet": case.payload("reservedSystemCPUs: '0'\nsystemReserved: {memory: 12Mi}") },
        }),
    );
    case.prove(&map);
    let seen = compare(case, &args);
    let of_cpus = |path: &str| seen.get(path).map(|(value, source)| (value.clone(), source.clone()));
    // By flag there is a cpu in kubeReserved: the kubelet takes that out.
    assert_eq!(of_cpus("kubeReserved.cpu"), None);
    assert_eq!(
        of_cpus("systemReserved.cpu"),
        Some((json!("1"), format!("payload ConfigMap {}/{}", map.namespace, map.name)))
    );
    let defaults = seen.values().filter(|(_, source)| source == "default").count();
    assert!(defaults > 40, "{defaults} defaults: {seen:#?}");
    assert!(supervisor.stop().success());
}
