//! The tests' own tools, tested: the API server against a real client, the stand-in kubelet as a process.
#![cfg(test)]

use std::process::Command;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, pin_mut};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use kube::config::KubeConfigOptions;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use testkit::api_server::{ApiServer, Fault, FaultKind, Verb};
use testkit::kubelet::{Installed, Style, install};

const SOON: Duration = Duration::from_secs(10);
const RECIPE: [&str; 2] = ["--exit-on-lock-contention=true", "--lock-file="];
const VALID: &str = "failed to run Kubelet: cannot exit on lock file contention: no lock file specified";

// ---- the API server ----------------------------------------------------------------------------------------

async fn client(server: &ApiServer) -> Client {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    server.write_kubeconfig(&path);
    let kubeconfig = kube::config::Kubeconfig::read_from(&path).unwrap();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Reads on, over errors (which are counted), to the first object that `good` likes.
async fn until<K>(
    events: &mut (impl futures_util::Stream<Item = watcher::Result<Event<K>>> + Unpin),
    good: impl Fn(&K) -> bool,
) -> usize {
    let mut errors = 0;
    let deadline = tokio::time::Instant::now() + SOON;
    loop {
        // Errors come without a pause between them, so the whole wait has one limit.
        assert!(tokio::time::Instant::now() < deadline, "not in time, after {errors} errors");
        match tokio::time::timeout_at(deadline, events.next()).await.expect("in time").expect("it never ends") {
            Ok(Event::Apply(object) | Event::InitApply(object)) if good(&object) => return errors,
            Ok(_) => {}
            Err(_) => errors += 1,
        }
    }
}

#[test]
fn a_watcher_survives_what_the_server_does_to_it() {
    let mut server = ApiServer::start();
    server.create_node("other");
    server.create_node("n1");
    runtime().block_on(async {
        let nodes: Api<Node> = Api::all(client(&server).await);
        let events = watcher(nodes, watcher::Config::default().fields("metadata.name=n1"));
        pin_mut!(events);
        let assigned = |name: &'static str| {
            move |node: &Node| {
                assert_eq!(node.metadata.name.as_deref(), Some("n1"));
                let source = node.spec.as_ref().and_then(|spec| spec.config_source.as_ref());
                source.and_then(|s| s.config_map.as_ref()).is_some_and(|map| map.name == name)
            }
        };
        assert_eq!(until(&mut events, |_| true).await, 0);
        server.assign("n1", "kube-system", "a", "kubelet");
        assert_eq!(until(&mut events, assigned("a")).await, 0);

        // The next watch is cut in the middle of its only line; the one after that replays from where it was.
        let lists = |server: &ApiServer| server.requests().iter().filter(|r| r.query.contains("limit=")).count();
        let before = lists(&server);
        server.faults().push(Fault::once(Verb::Watch, "nodes", FaultKind::CutMidLine));
        server.end_watches();
        server.assign("n1", "kube-system", "b", "kubelet");
        assert!(until(&mut events, assigned("b")).await <= 1);
        assert_eq!(server.faults().left(), 0);
        assert_eq!(lists(&server), before, "no new list");

        // Compacted: an ERROR event makes the watcher list again.
        server.end_watches();
        server.assign("n1", "kube-system", "c", "kubelet");
        server.compact();
        let before = lists(&server);
        assert_eq!(until(&mut events, assigned("c")).await, 1);
        assert_eq!(lists(&server), before + 1);

        server.faults().push(Fault::once(Verb::Watch, "nodes", FaultKind::GoneInStream));
        server.faults().push(Fault::new(Verb::List, "nodes", FaultKind::Status(500)).times(2));
        server.end_watches();
        server.restart();
        server.assign("n1", "kube-system", "e", "kubelet");
        assert!(until(&mut events, assigned("e")).await >= 1);
    });
}

/// Not our wish but a fact to build around: to a 410 that comes as an HTTP status, kube 5's watcher answers with the
/// same request, for ever. When this fails, kube has learned to list again, and the supervisor's own answer can go.
#[test]
fn a_watcher_is_stuck_when_410_is_the_http_status() {
    let server = ApiServer::start();
    server.create_node("n1");
    server.gone_as_http(true);
    runtime().block_on(async {
        let nodes: Api<Node> = Api::all(client(&server).await);
        let events = watcher(nodes, watcher::Config::default().fields("metadata.name=n1"));
        pin_mut!(events);
        until(&mut events, |_| true).await;
        assert!(matches!(events.try_next().await, Ok(Some(Event::InitDone))));
        server.compact();
        for _ in 0..5 {
            let error = events.try_next().await.unwrap_err();
            assert!(matches!(error, watcher::Error::WatchStartFailed(kube::Error::Api(s)) if s.code == 410));
        }
    });
    assert_eq!(server.requests().iter().filter(|r| r.status == 410).count(), 5);
    assert_eq!(server.requests().iter().filter(|r| r.query.contains("limit=")).count(), 1);
}

#[test]
fn a_selection_is_all_that_its_watch_knows() {
    let server = ApiServer::start();
    let pool = |node: &str, pool: &str| server.patch_node(node, json!({"metadata": {"labels": {"pool": pool}}}));
    for node in ["n1", "n2", "n3"] {
        server.create_node(node);
        pool(node, "a");
    }
    runtime().block_on(async {
        let nodes: Api<Node> = Api::all(client(&server).await);
        let selected = ListParams::default().labels("pool=a").limit(2);
        let first = nodes.list(&selected).await.unwrap();
        let version = first.metadata.resource_version.clone().unwrap();
        let rest = selected.clone().continue_token(first.metadata.continue_.as_deref().unwrap());
        server.delete_node("n1");
        let second = nodes.list(&rest).await.unwrap();
        let names = |list: &[Node]| list.iter().map(|it| it.metadata.name.clone().unwrap()).collect::<Vec<_>>();
        assert_eq!((names(&first.items), names(&second.items)), (vec!["n1".into(), "n2".into()], vec!["n3".into()]));
        assert_eq!(second.metadata.resource_version.as_ref(), Some(&version), "all pages are of one version");

        let events = nodes.watch(&WatchParams::default().labels("pool=a"), &version).await.unwrap();
        pin_mut!(events);
        let left = pool("n2", "b")["metadata"]["resourceVersion"].clone();
        pool("n2", "c");
        pool("n2", "a");
        let Ok(Some(WatchEvent::Deleted(node))) = events.try_next().await else { panic!("it is gone") };
        assert_eq!(node.name_any(), "n1");
        let Ok(Some(WatchEvent::Deleted(node))) = events.try_next().await else { panic!("it left") };
        assert_eq!(node.labels()["pool"], "a", "as it last was");
        assert_eq!(node.metadata.resource_version.as_deref(), left.as_str());
        assert!(matches!(events.try_next().await, Ok(Some(WatchEvent::Added(_)))));

        server.compact();
        assert!(matches!(nodes.list(&rest).await, Err(kube::Error::Api(status)) if status.code == 410));
    });
}

#[test]
fn patches_go_where_they_may() {
    let server = ApiServer::start();
    server.create_node("n1");
    server.set_condition("n1", "Ready", "True");
    runtime().block_on(async {
        let nodes: Api<Node> = Api::all(client(&server).await);
        let params = PatchParams::default();
        let ok = json!({"type": "KubeletConfigOk", "status": "True"});
        let source = json!({"configMap": {"namespace": "a", "name": "b", "kubeletConfigKey": "k"}});
        let patch = json!({"status": {"conditions": [ok], "config": {"error": "x"}}, "spec": {"configSource": source}});
        nodes.patch_status("n1", &params, &Patch::Strategic(patch)).await.unwrap();
        let node = server.node("n1");
        assert_eq!(node["status"]["conditions"].as_array().unwrap().len(), 2);
        assert_eq!(node["status"]["config"]["error"], "x");
        assert!(node["spec"]["configSource"].is_null(), "the subresource keeps to the status");

        let patch = json!({"status": {"config": {"active": source}}});
        let refused = nodes.patch_status("n1", &params, &Patch::Strategic(patch)).await;
        assert!(matches!(refused, Err(kube::Error::Api(status)) if status.code == 422));

        let patch = json!({"metadata": {"annotations": {"a": "b"}}, "status": {"config": null}});
        nodes.patch("n1", &params, &Patch::Merge(patch)).await.unwrap();
        assert_eq!(server.node("n1")["metadata"]["annotations"]["a"], "b");
        assert_eq!(server.node("n1")["status"]["config"]["error"], "x", "the main resource keeps off the status");

        let stale = json!({"metadata": {"resourceVersion": "1", "annotations": {"a": "c"}}});
        let conflict = nodes.patch("n1", &params, &Patch::Merge(stale)).await;
        assert!(matches!(conflict, Err(kube::Error::Api(status)) if status.code == 409));

        server.drop_dynamic_config(true);
        server.assign("n1", "kube-system", "a", "kubelet");
        assert!(server.node("n1")["spec"]["configSource"].is_null());
        let version = nodes.get("n1").await.unwrap().metadata.resource_version;
        let patch = json!({"status": {"config": {"error": "y"}}});
        let patched = nodes.patch_status("n1", &params, &Patch::Merge(patch)).await.unwrap();
        assert!(patched.status.unwrap().config.is_none());
        assert_eq!(patched.metadata.resource_version, version, "dropped, hence unchanged");
    });
}

// ---- the stand-in kubelet ----------------------------------------------------------------------------------

struct Bench {
    dir: tempfile::TempDir,
    kubelet: Installed,
}

impl Bench {
    fn new(style: Style) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let kubelet = install(&Installed::built(), dir.path(), style);
        Bench { dir, kubelet }
    }

    /// A preflight of this configuration: how it ends, and what it says.
    fn preflight(&self, config: &str, more: &[&str]) -> (i32, String) {
        let file = self.dir.path().join("config.yaml");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(&self.kubelet.path);
        command.arg(format!("--config={}", file.display())).arg("--cert-dir").arg(self.dir.path().join("pki"));
        let output = command.args(more).args(RECIPE).env_clear().env("PATH", "/nonexistent").output().unwrap();
        (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn configuration(more: &str) -> String {
    format!("kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n{more}\n")
}

#[test]
fn verdicts() {
    let missing_ca = "authentication: {x509: {clientCAFile: ca.crt}}";
    for (style, failed) in [(Style::V1_20, 255), (Style::V1_36, 1)] {
        let old = style == Style::V1_20;
        let bench = Bench::new(style);
        let check = |config: &str, code: i32, text: &str| {
            let (got, stderr) = bench.preflight(config, &[]);
            assert!(got == code && stderr.contains(text), "{style:?} {config:?}: {got}\n{stderr}");
        };
        check(&configuration(""), failed, VALID);
        check(&configuration("maxPods: 0644\n---\nmaxPods: ten"), failed, VALID);
        check(&configuration("standIn: {}"), failed, VALID);
        check(&configuration("noSuchField: 1"), failed, "sing lenient decoding as strict decoding failed");
        check(&configuration("noSuchField: 1"), failed, VALID);
        check(&configuration("maxPods: 1\nmaxPods: 2"), failed, VALID);
        for unloadable in ["", "{0xdeadbeef}", "a: [", "kind: KubeletConfiguration", &configuration("maxPods: ten")] {
            let text = if old {
                "] failed to load Kubelet config file /"
            } else {
                "failed to load kubelet config file, path: /"
            };
            check(unloadable, failed, text);
        }
        let text = if old {
            "] invalid configuration: KubeAPIQPS"
        } else {
            "failed to validate kubelet configuration, error: "
        };
        check(&configuration("kubeAPIQPS: -1"), failed, text);
        let gate = configuration("featureGates: {Nonsense: true}");
        if old {
            check(&gate, 255, "server.go:208] unrecognized feature gate: Nonsense");
            check(&configuration(missing_ca), 255, "unable to load client CA file /");
        } else {
            check(&gate, 2, "panic: failed to merge global and in-flight KubeletConfiguration");
            check(&configuration(missing_ca), 1, VALID);
        }
        let json = configuration("logging: {format: json}\nkubeAPIQPS: 5");
        check(&json, failed, if old { "no lock file specified\\n\",\"ts\"" } else { "\"msg\":\"command failed\"" });
        check(&configuration("standIn: {preflight: exit0}"), 0, "");

        let flag = bench.preflight(&configuration(""), &["--dynamic_config_dir", "/nowhere"]).1;
        assert_eq!(flag.contains("unknown flag: --dynamic-config-dir"), !old, "{flag}");
        let typo = bench.preflight(&configuration(""), &["--no-such-flag"]).1;
        assert!(typo.contains("unknown flag: --no-such-flag"));
        let silent = bench.preflight(&configuration("standIn: {preflight: silent}"), &[]);
        assert!(silent.0 == failed && silent.1.contains("Version: v") && !silent.1.contains("lock"), "{silent:?}");
        assert!(!bench.preflight(&configuration("standIn: {preflight: nonutf8}"), &[]).1.is_ascii());

        let version = Command::new(&bench.kubelet.path).arg("--version").output().unwrap();
        assert_eq!(String::from_utf8(version.stdout).unwrap(), format!("Kubernetes {}\n", style.version()));
        assert!(bench.kubelet.starts().is_empty() && bench.kubelet.preflights().len() > 10);
        assert!(bench.dir.path().join("pki/kubelet.key").exists());
    }
}
