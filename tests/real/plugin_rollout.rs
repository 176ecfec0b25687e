//! `kubectl kubelet-config rollout` over two hundred Node objects of the real API server, each with a simulated
//! supervisor: this thread, which looks at all of them again and again, and says what a supervisor would.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kube::api::{Patch, PatchParams};
use kube::core::request::Request as Path;
use kubelet_supervisor::core::carrier::LABELS;
use serde_json::{Value, json};

use crate::supervisor::Case;

/// No assertion is about time; this only ends a test that would wait for ever.
const PATIENCE_LONG: Duration = Duration::from_secs(600);
const NODES: usize = 200;
const MAX: usize = 20;
const CANARIES: usize = 3;
const NAMESPACE: &str = "kubelet-config";

fn node(number: usize) -> String {
    format!("simulated-{number:03}")
}

/// The nodes, as they were last seen, and what they have proven.
struct Fleet<'a> {
    case: &'a Case<'a>,
    runtime: tokio::runtime::Runtime,
    client: kube::Client,
    /// What they have heard of, and how often they have been looked at since.
    heard: BTreeMap<String, (String, u32)>,
    proven: BTreeMap<String, String>,
    /// Refuse what they are assigned.
    refuse: BTreeSet<String>,
    sources: BTreeMap<String, Value>,
    most: usize,
}

impl<'a> Fleet<'a> {
    fn new(case: &'a Case<'a>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(async {
            let file = kube::config::Kubeconfig::read_from(case.var("KUBECONFIG")).unwrap();
            let config = kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default()).await;
            kube::Client::try_from(config.unwrap()).unwrap()
        });
        let fleet = Self {
            case,
            runtime,
            client,
            heard: BTreeMap::new(),
            proven: BTreeMap::new(),
            refuse: BTreeSet::new(),
            sources: BTreeMap::new(),
            most: 0,
        };
        for number in 0..NODES {
            let name = node(number);
            let body = json!({"metadata": {"name": name, "labels":
                {"simulated": "yes", "topology.kubernetes.io/zone": format!("z{}", number % 3)}}});
            case.ask("POST", "/api/v1/nodes", Some(&body));
            fleet.say(&name, "Local", None, None, false);
        }
        fleet
    }

    fn map(&mut self, name: &str) {
        let body = json!({"metadata": {"name": name}, "immutable": true,
            "data": {"kubelet": "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n"}});
        let map = self.case.ask("POST", &format!("/api/v1/namespaces/{NAMESPACE}/configmaps"), Some(&body));
        let source = json!({"configMap": {"namespace": NAMESPACE, "name": name, "kubeletConfigKey": "kubelet",
            "uid": map["metadata"]["uid"], "resourceVersion": map["metadata"]["resourceVersion"]}});
        self.sources.insert(name.to_owned(), source);
    }

    fn patch(&self, path: &'static str, name: &str, change: &Value) {
        let params = PatchParams::default();
        let request = Path::new("/api/v1/nodes");
        let merge = Patch::Merge(change);
        let request = match path {
            "status" => request.patch_subresource("status", name, &params, &merge),
            _ => request.patch(name, &params, &merge),
        };
        let _: Value = self.runtime.block_on(self.client.request(request.unwrap())).unwrap();
    }

    fn say(&self, name: &str, reason: &str, assigned: Option<&str>, active: Option<&str>, failed: bool) {
        let source = |map: Option<&str>| map.and_then(|map| self.sources.get(map));
        let proven = self.proven.get(name).map(String::as_str);
        let mut status = json!({});
        for (field, map) in [("assigned", assigned), ("active", active), ("lastKnownGood", proven)] {
            if let Some(source) = source(map) {
                status[field] = source.clone();
            }
        }
        if failed {
            status["error"] = "failed to validate config, see Kubelet log for details".into();
        }
        let conditions = json!([
            {"type": "Ready", "status": "True"},
            {"type": "KubeletConfigOk", "status": "Unknown", "reason": reason, "message": "in my words"},
        ]);
        self.patch(
            "",
            name,
            &json!({"metadata": {"annotations": {"kubelet-supervisor.io/config-status": status.to_string()}}}),
        );
        self.patch("status", name, &json!({"status": {"conditions": conditions}}));
    }

    /// One look at all nodes: what is assigned. Those that heard of it some looks ago say something.
    fn look(&mut self) -> BTreeMap<String, String> {
        let list = self.case.ask("GET", "/api/v1/nodes?labelSelector=simulated%3Dyes", None);
        let mut assigned = BTreeMap::new();
        for item in list["items"].as_array().unwrap() {
            let name = item["metadata"]["name"].as_str().unwrap().to_owned();
            let native = item["spec"]["configSource"]["configMap"]["name"].as_str();
            let label = item["metadata"]["labels"][format!("{LABELS}name")].as_str();
            assigned.insert(name, native.or(label).unwrap_or_default().to_owned());
        }
        let flight = assigned.iter().filter(|(name, map)| {
            let proven = self.proven.get(*name).map_or("", String::as_str);
            !map.is_empty() && proven != map.as_str()
        });
        self.most = self.most.max(flight.count());
        for (name, map) in &assigned {
            let heard = self.heard.entry(name.clone()).or_default();
            if heard.0 != *map {
                *heard = (map.clone(), 0);
            }
            heard.1 += 1;
            let looks = heard.1;
            let (target, proven) = (Some(map.as_str()), self.proven.get(name).cloned());
            if map.is_empty() {
                if looks == 1 && proven.is_some() {
                    self.proven.remove(name);
                    self.say(name, "Local", None, None, false);
                }
            } else if self.refuse.contains(name) {
                if looks == 2 {
                    self.say(name, "Rejected", target, proven.as_deref(), true);
                }
            } else if looks == 2 {
                self.say(name, "OnTrial", target, target, false);
            } else if looks == 3 {
                self.proven.insert(name.clone(), map.clone());
                self.say(name, "LastKnownGood", target, target, false);
            }
        }
        assigned
    }

    /// Looks until the client has ended; its exit code.
    fn until_end(&mut self, client: &mut Child) -> Option<i32> {
        let begun = Instant::now();
        loop {
            self.look();
            if let Some(status) = client.try_wait().unwrap() {
                return status.code();
            }
            assert!(begun.elapsed() < PATIENCE_LONG, "the client does not end");
        }
    }

    /// Looks until so many nodes have it, and kills the client then.
    fn kill_at(&mut self, client: &mut Child, map: &str, count: usize) {
        let begun = Instant::now();
        while self.look().values().filter(|it| *it == map).count() < count {
            assert_eq!(client.try_wait().unwrap(), None, "the client lives");
            assert!(begun.elapsed() < PATIENCE_LONG, "{count} nodes have it");
        }
        client.kill().unwrap();
        client.wait().unwrap();
    }

    fn has(&mut self, map: &str) -> usize {
        self.look().values().filter(|it| *it == map).count()
    }
}

impl Drop for Fleet<'_> {
    fn drop(&mut self) {
        let _ = self.case.api("DELETE", "/api/v1/nodes?labelSelector=simulated%3Dyes", None);
    }
}

fn log(case: &Case) -> PathBuf {
    case.cluster.dir.join("logs").join(format!("{}.log", case.name))
}

fn client(case: &Case, args: &[&str]) -> Child {
    let file = std::fs::File::options().create(true).append(true).open(log(case)).unwrap();
    Command::new(env!("CARGO_BIN_EXE_kubectl-kubelet_config"))
        .args(["--kubeconfig", case.var("KUBECONFIG"), "rollout"])
        .args(args)
        .stdin(Stdio::null())
        .stdout(file.try_clone().unwrap())
        .stderr(file)
        .spawn()
        .unwrap()
}

/// A good one whose client is killed twice, one that a canary rejects, and back again.
pub fn rollout(case: &Case) {
    let mut fleet = Fleet::new(case);
    fleet.map("sim-good");
    fleet.map("sim-bad");
    let max = MAX.to_string();
    let canaries = CANARIES.to_string();
    let begin = |map: &'static str| {
        ["-l", "simulated=yes", "--canary", &canaries, "--max-unavailable", &max, map].map(str::to_owned)
    };
    let run = |args: &[String]| client(case, &args.iter().map(String::as_str).collect::<Vec<_>>());

    case.say("killed while the canaries are on trial, and in the fourth wave");
    let mut first = run(&begin("sim-good"));
    fleet.kill_at(&mut first, "sim-good", 1);
    let mut second = run(&begin("sim-good"));
    fleet.kill_at(&mut second, "sim-good", CANARIES + 3 * MAX + 1);
    let mut third = client(case, &["resume", "sim-good"]);
    assert_eq!(fleet.until_end(&mut third), Some(0));
    assert_eq!(fleet.has("sim-good"), NODES);
    assert!(fleet.most <= MAX, "{} in flight at once", fleet.most);

    case.say("a canary rejects the next one");
    fleet.refuse.insert(node(1));
    let mut fourth = run(&begin("sim-bad"));
    assert_eq!(fleet.until_end(&mut fourth), Some(1));
    assert_eq!(fleet.has("sim-bad"), CANARIES);
    fleet.refuse.clear();
    let mut undo = client(case, &["undo", "sim-bad"]);
    assert_eq!(fleet.until_end(&mut undo), Some(0));
    assert_eq!((fleet.has("sim-good"), fleet.has("sim-bad")), (NODES, 0));
    let mut again = run(&begin("sim-bad"));
    assert_eq!(fleet.until_end(&mut again), Some(1), "a version that a node called bad is not sent again");

    case.say("the good one is undone");
    let mut undo = client(case, &["undo", "sim-good"]);
    assert_eq!(fleet.until_end(&mut undo), Some(0));
    assert_eq!(fleet.has(""), NODES);
    let said = std::fs::read_to_string(log(case)).unwrap();
    for line in said.lines().filter(|line| line.contains(" requests)")) {
        case.say(line);
    }
}
