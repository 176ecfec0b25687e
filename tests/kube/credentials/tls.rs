//! TLS with client certificates: what the API server sees of a rotation, and what is said of authorities that do not fit.

use std::time::{Duration, Instant};

use kubelet_config::assignment::Assignment;
use kubelet_supervisor::adapters::kube::{KubeCluster, KubeconfigAccess};
use kubelet_supervisor::adapters::metrics::Metrics;
use kubelet_supervisor::machine::evidence::LeaseObservation;
use kubelet_supervisor::machine::history::HistoryEntry;
use kubelet_supervisor::machine::{Answer, Input};
use kubelet_supervisor::ports::{Cluster as _, ClusterQuery, ClusterRequest};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use testkit::api_server::ApiServer;
use testkit::api_server::tls::Authority;
use testkit::built::write_script;

use crate::{NODE, SOON, next};

/// A port at work, with TLS.
struct Bench {
    server: ApiServer,
    dir: tempfile::TempDir,
    clients: Authority,
    cluster: KubeCluster,
    inputs: UnboundedReceiver<Input>,
}

impl Bench {
    /// Its kubeconfig is that of a kubelet after its TLS bootstrap.
    fn start(servers: &Authority, shown: &Authority, names: &[&str], more: &Value) -> Bench {
        let user = json!({"client-certificate": "current.pem", "client-key": "current.pem"});
        Bench::start_as(&user, servers, shown, names, more)
    }

    fn start_as(user: &Value, servers: &Authority, shown: &Authority, names: &[&str], more: &Value) -> Bench {
        let server = ApiServer::start();
        server.create_node(NODE);
        let clients = Authority::new("clients");
        server.use_tls(Some(shown.server(names, &clients)));
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.crt"), &servers.pem).unwrap();
        let mut cluster = json!({"server": server.url().replace("http:", "https:"), "certificate-authority": "ca.crt"});
        cluster.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let kubeconfig = dir.path().join("kubelet.conf");
        std::fs::write(&kubeconfig, super::kubeconfig(&cluster, user).to_string()).unwrap();
        let (sender, inputs) = unbounded_channel();
        let metrics = Metrics::new();
        let access =
            KubeconfigAccess { kubeconfig, node_name: None, hostname_override: None, metrics: metrics.clone() };
        let cluster = KubeCluster::start(access, String::new(), sender, metrics);
        let bench = Bench { server, dir, clients, cluster, inputs };
        bench.rotate(1);
        bench
    }

    /// As a kubelet does: a new file, then the link is swapped.
    fn rotate(&self, serial: u64) {
        let pair = self.clients.node(NODE, serial, 2100);
        let at = |name: &str| self.dir.path().join(name);
        let file = format!("kubelet-client-{serial}.pem");
        std::fs::write(at(&file), format!("{}{}", pair.certificate, pair.key)).unwrap();
        std::os::unix::fs::symlink(&file, at("next")).unwrap();
        std::fs::rename(at("next"), at("current.pem")).unwrap();
    }

    /// What the API server is asked, by the certificate of this number.
    async fn seen(&self, serial: &str) -> usize {
        let deadline = Instant::now() + SOON;
        loop {
            let requests = self.server.requests();
            let watching = requests.iter().any(|request| request.is_watch() && request.peer == serial);
            if watching {
                return requests.len();
            }
            assert!(Instant::now() < deadline, "no watch by {serial}: {:?}", requests.last());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Why the Lease cannot be had, in the end.
    async fn trouble(&mut self, words: &str) -> String {
        let deadline = Instant::now() + SOON;
        loop {
            self.cluster.submit(ClusterRequest::Query(ClusterQuery::Lease(7)));
            match next(&mut self.inputs).await {
                Input::Answer(7, Answer::LeaseObserved(LeaseObservation::Unreachable(why))) if why.contains(words) => {
                    return why;
                }
                other => assert!(Instant::now() < deadline, "{words}: {other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }
}

#[tokio::test]
async fn after_a_rotation_nothing_is_asked_with_the_old_certificate() {
    let authority = Authority::new("ca");
    let mut bench = Bench::start(&authority, &authority, &["127.0.0.1"], &json!({}));
    assert_eq!(next(&mut bench.inputs).await, Input::Node(Assignment::Local));
    bench.seen("01").await;
    for serial in 2..=3 {
        bench.rotate(serial);
        // The files are looked at every 15 seconds.
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(16)).await;
        tokio::time::resume();
        let before = bench.seen(&format!("0{serial}")).await;
        bench.cluster.submit(ClusterRequest::Emit(Box::new(HistoryEntry {
            number: serial,
            nanos: serial,
            reason: "R".to_owned(),
            ..HistoryEntry::default()
        })));
        while next(&mut bench.inputs).await != Input::Reported(serial) {}
        let deadline = Instant::now() + SOON;
        while bench.server.watches() != 1 {
            assert!(Instant::now() < deadline, "{} watches", bench.server.watches());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let requests = bench.server.requests();
        let old: Vec<_> = requests[before..].iter().filter(|request| request.peer != format!("0{serial}")).collect();
        assert!(old.is_empty(), "{old:?}");
    }
    assert_eq!(bench.server.events().len(), 2);
}

#[tokio::test]
async fn another_authority_is_named_and_followed() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let mut bench = Bench::start(&old, &old, &["127.0.0.1"], &json!({}));
    assert_eq!(next(&mut bench.inputs).await, Input::Node(Assignment::Local));
    // The API server comes back with a certificate of another authority.
    bench.server.stop();
    bench.server.use_tls(Some(new.server(&["127.0.0.1"], &bench.clients)));
    bench.server.restart();
    let why = bench.trouble("did not issue the certificate").await;
    let named = format!("certificate-authority {} of {}", bench.path("ca.crt"), bench.path("kubelet.conf"));
    assert!(why.contains(&named) && why.contains(&bench.server.url().replace("http:", "https:")), "{why}");
    // The bundle has both; the failures make it be looked at at once.
    std::fs::write(bench.path("ca.crt"), format!("{}{}", old.pem, new.pem)).unwrap();
    while next(&mut bench.inputs).await != Input::Node(Assignment::Local) {}
}

#[tokio::test]
async fn a_certificate_for_other_names() {
    let authority = Authority::new("ca");
    let mut bench = Bench::start(&authority, &authority, &["kubernetes.example"], &json!({}));
    let why = bench.trouble("is for other names; see server and tls-server-name").await;
    assert!(why.contains(&bench.path("kubelet.conf")), "{why}");
    for more in [json!({"tls-server-name": "kubernetes.example"}), json!({"insecure-skip-tls-verify": true})] {
        let mut bench = Bench::start(&authority, &authority, &["kubernetes.example"], &more);
        assert_eq!(next(&mut bench.inputs).await, Input::Node(Assignment::Local), "{more}");
        assert_eq!(bench.server.requests().last().unwrap().peer, "01");
    }
}

#[tokio::test]
async fn a_client_certificate_that_the_server_does_not_take() {
    let authority = Authority::new("ca");
    let mut bench = Bench::start(&authority, &authority, &["127.0.0.1"], &json!({}));
    assert_eq!(next(&mut bench.inputs).await, Input::Node(Assignment::Local));
    bench.server.stop();
    bench.server.use_tls(Some(authority.server(&["127.0.0.1"], &Authority::new("others"))));
    bench.server.restart();
    let why = bench.trouble("does not accept client-certificate").await;
    assert!(why.contains(&bench.path("current.pem")), "{why}");
    // It was the server's fault: nothing has changed here, and all goes on.
    bench.server.use_tls(Some(authority.server(&["127.0.0.1"], &bench.clients)));
    let deadline = Instant::now() + SOON;
    loop {
        bench.cluster.submit(ClusterRequest::Query(ClusterQuery::Lease(7)));
        match next(&mut bench.inputs).await {
            Input::Answer(7, Answer::LeaseObserved(LeaseObservation::Absent)) => break,
            other => assert!(Instant::now() < deadline, "{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_plugin_that_gives_certificates_is_asked_again_before_they_end() {
    let authority = Authority::new("ca");
    let user = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin.sh"}});
    let mut bench = Bench::start_as(&user, &authority, &authority, &["127.0.0.1"], &json!({}));
    let gives = |serial: u64, lasts: i64| {
        let pair = bench.clients.node(NODE, serial, 2100);
        let end = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(lasts);
        let status = json!({"clientCertificateData": pair.certificate, "clientKeyData": pair.key,
            "expirationTimestamp": end.to_string()});
        let given =
            json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status});
        std::fs::write(bench.path("given"), given.to_string()).unwrap();
    };
    gives(5, 12);
    let script = format!("echo >>{}\nexec cat {}", bench.path("runs"), bench.path("given"));
    write_script(bench.path("plugin.sh").as_ref(), &script);
    bench.seen("05").await;
    gives(6, 1000);
    bench.seen("06").await;
    assert_eq!(next(&mut bench.inputs).await, Input::Node(Assignment::Local));
    assert_eq!(std::fs::read_to_string(bench.path("runs")).unwrap().lines().count(), 2);
}

#[tokio::test]
async fn a_pair_of_files_of_which_one_is_new() {
    let authority = Authority::new("ca");
    let user = json!({"client-certificate": "node.crt", "client-key": "node.key"});
    let mut bench = Bench::start_as(&user, &authority, &authority, &["127.0.0.1"], &json!({}));
    let (one, two) = (bench.clients.node(NODE, 1, 2100), bench.clients.node(NODE, 2, 2100));
    std::fs::write(bench.path("node.crt"), &one.certificate).unwrap();
    std::fs::write(bench.path("node.key"), &one.key).unwrap();
    assert_eq!(next(&mut bench.inputs).await, Input::Node(Assignment::Local));
    std::fs::write(bench.path("node.crt"), &two.certificate).unwrap();
    // Failures make it look at once: what it finds cannot be used, and the old client goes on.
    bench.server.stop();
    bench.trouble("").await;
    bench.server.restart();
    bench.cluster.submit(ClusterRequest::Emit(Box::new(HistoryEntry {
        number: 7,
        nanos: 7,
        reason: "R".to_owned(),
        ..HistoryEntry::default()
    })));
    while next(&mut bench.inputs).await != Input::Reported(7) {}
    let requests = bench.server.requests();
    assert!(requests.iter().all(|request| request.peer == "01"), "{requests:?}");
    std::fs::write(bench.path("node.key"), &two.key).unwrap();
    bench.seen("02").await;
}
