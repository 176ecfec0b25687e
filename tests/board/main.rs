//! Rules and board against a real Prometheus that scrapes real supervisors with stand-in kubelets: one node for each
//! thing that can be seen. `tests/prometheus/run.sh` gets a Prometheus and names it in `PROMETHEUS`; without it this is
//! skipped, and says so.
#![cfg(test)]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::built::{given, program};
use testkit::port::Port;
use testkit::rig::{LOAD, Rig, VALIDATE, configuration, eventually_within, killer};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// Two scrapes a second: a rate needs two samples.
const SCRAPE: &str = "500ms";
const LIMIT: Duration = Duration::from_secs(60);

struct Prometheus {
    child: Child,
    port: Port,
    dir: tempfile::TempDir,
}

impl Prometheus {
    fn start(program: &str, targets: &[(&str, u16)], controller: &Port) -> Prometheus {
        let (dir, port) = (tempfile::tempdir().unwrap(), Port::free());
        let statics: Vec<Value> = targets
            .iter()
            .map(
                |(node, port)| json!({"targets": [format!("127.0.0.1:{port}")], "labels": {"node": node, "pool": "a"}}),
            )
            .collect();
        let config = json!({
            "global": {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE, "evaluation_interval": SCRAPE},
            "rule_files": [format!("{ROOT}/packaging/prometheus/rules.yaml")],
            "scrape_configs": [
                {"job_name": "kubelet-supervisor", "static_configs": statics},
                {"job_name": "controller", "static_configs": [{"targets": [controller.address().to_string()]}]},
            ],
        });
        let file = dir.path().join("prometheus.yml");
        std::fs::write(&file, config.to_string()).unwrap();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let mut command = Command::new(program);
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()));
        command.arg(format!("--web.listen-address={}", port.address()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().unwrap_or_else(|error| panic!("{program}: {error}"));
        let prometheus = Prometheus { child, port, dir };
        eventually_within(LIMIT, "Prometheus is ready", || {
            prometheus.get("/-/ready").filter(|(code, _)| *code == 200).map(drop)
        });
        prometheus
    }

    fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(self.port.address()).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }

    /// The result of an expression: as a table shows it, or over the last 40 s.
    fn ask(&self, expr: &str, range: bool) -> Result<Vec<Value>, String> {
        let now = jiff::Timestamp::now().as_second();
        let expr = escaped(expr);
        let path = if range {
            format!("/api/v1/query_range?query={expr}&start={}&end={now}&step=1", now - 40)
        } else {
            format!("/api/v1/query?query={expr}")
        };
        let (code, body) = self.get(&path).ok_or("no answer")?;
        let body: Value = serde_json::from_str(&body).map_err(|error| format!("{code}: {error}: {body}"))?;
        match body["data"]["result"].as_array() {
            Some(result) if code == 200 => Ok(result.clone()),
            _ => Err(body["error"].to_string()),
        }
    }

    /// The value of an expression that has one.
    fn number(&self, expr: &str) -> Option<f64> {
        self.ask(expr, false).ok()?.first()?["value"][1].as_str()?.parse().ok()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default());
        }
    }
}

/// For a URL.
fn escaped(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'.' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

/// A supervisor whose credential has a client certificate, as a kubelet's has.
fn with_certificate() -> Rig {
    let rig = Rig::long_trial();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:n1");
    let certificate = params.self_signed(&key).unwrap();
    let (pem, key_pem) = (rig.at("client.crt"), rig.at("client.key"));
    std::fs::write(&pem, certificate.pem()).unwrap();
    std::fs::write(&key_pem, key.serialize_pem()).unwrap();
    let file = rig.at("kubeconfig");
    let mut kubeconfig: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    kubeconfig["users"][0]["user"] = json!({"client-certificate": pem, "client-key": key_pem});
    std::fs::write(&file, kubeconfig.to_string()).unwrap();
    rig
}

/// One node for each thing that can be seen.
struct Fleet {
    rigs: Vec<(&'static str, Rig)>,
    /// Nobody listens here.
    absent: Port,
}

impl Fleet {
    fn up() -> Fleet {
        let rigs = vec![
            ("proven", Rig::new()),
            ("refused", Rig::new()),
            ("back", Rig::new()),
            ("trial", with_certificate()),
            ("local", Rig::new()),
        ];
        let mut fleet = Fleet { rigs, absent: Port::free() };
        for (_, rig) in &mut fleet.rigs {
            rig.up();
        }
        fleet
    }

    fn rig(&self, node: &str) -> &Rig {
        &self.rigs.iter().find(|(name, _)| *name == node).unwrap().1
    }

    fn targets(&self) -> Vec<(&str, u16)> {
        let answering = self.rigs.iter().map(|(node, rig)| (*node, rig.metrics.number()));
        answering.chain([("absent", self.absent.number())]).collect()
    }

    /// What happens while Prometheus looks on.
    fn live(&self) {
        self.rig("proven").prove("good", &configuration("maxPods: 42"));
        let refused = self.rig("refused");
        let version = refused.offer("bad", &configuration("kubeAPIQPS: -1"));
        refused.wait_error(&version, VALIDATE);
        let back = self.rig("back");
        let version = back.offer("killer", &killer());
        back.wait_error(&version, LOAD);
        self.rig("trial").apply("good", &configuration("maxPods: 43"));
    }
}

/// The controller of pools, with a pool that has no node.
struct Controller {
    child: Child,
    port: Port,
}

impl Controller {
    fn start(rig: &Rig) -> Controller {
        let pool = json!({"nodeSelector": {"matchLabels": {"none": "yes"}}, "kubeletConfiguration": {"maxPods": 60}});
        rig.server.put_pool("workers", &pool);
        let port = Port::free();
        let mut command = Command::new(program("kubectl-kubelet_config"));
        command.arg("controller").arg(format!("--metrics-bind-address={}", port.address()));
        command.env("KUBECONFIG", rig.at("kubeconfig")).stdin(Stdio::null()).stderr(Stdio::null());
        Controller { child: command.spawn().unwrap(), port }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn board() -> Value {
    let text = std::fs::read_to_string(Path::new(ROOT).join("packaging/grafana/kubelet-supervisor.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// As Grafana puts them in for "All", here with a rate over a few scrapes.
fn filled(expr: &str) -> String {
    let values = [("$__rate_interval", "20s"), ("$__range", "1m"), ("$pool", ".*"), ("$node", ".*")];
    let filled = values.iter().fold(expr.to_owned(), |expr, (name, value)| expr.replace(name, value));
    assert!(!filled.contains('$'), "{expr}: an unknown variable");
    filled
}

#[test]
fn each_query_of_the_board_has_an_answer() {
    let Ok(prometheus) = std::env::var("PROMETHEUS") else {
        println!("SKIPPED: PROMETHEUS names no program; tests/prometheus/run.sh does it");
        return;
    };
    let fleet = Fleet::up();
    let controller = Controller::start(fleet.rig("proven"));
    let prometheus = Prometheus::start(&prometheus, &fleet.targets(), &controller.port);
    let up = r#"count(up{job="kubelet-supervisor"} == 1)"#;
    eventually_within(LIMIT, "all are scraped", || (prometheus.number(up) == Some(5.0)).then_some(()));
    fleet.live();
    // As people see it on the first panels.
    let states = [
        ("LastKnownGood", "proven"),
        ("Rejected", "refused"),
        ("RolledBack", "back"),
        ("OnTrial", "trial"),
        ("Local", "local"),
    ];
    for (reason, node) in states {
        let expr = format!(r#"kubelet_supervisor_condition{{reason="{reason}",node="{node}"}}"#);
        eventually_within(LIMIT, &expr, || (prometheus.number(&expr) == Some(1.0)).then_some(()));
    }

    let mut queries = 0;
    for panel in board()["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            queries += 1;
            let expr = filled(target["expr"].as_str().unwrap());
            let range = target["range"] == true;
            let title = format!("panel {}: {expr}", panel["title"]);
            eventually_within(LIMIT, &title, || {
                let result = prometheus.ask(&expr, range).unwrap_or_else(|error| panic!("{title}: {error}"));
                // A quotient of zeros is drawn as nothing.
                let drawn = |series: &Value| series.to_string().matches("NaN").count() < values(series);
                result.iter().any(drawn).then_some(())
            });
        }
    }
    assert!(queries > 25, "{queries}");

    let shown = |title: &str| {
        let board = board();
        let all = board["panels"].as_array().unwrap();
        let panel = all.iter().find(|panel| panel["title"] == title).unwrap_or_else(|| panic!("no panel {title}"));
        prometheus.number(&filled(panel["targets"][0]["expr"].as_str().unwrap()))
    };
    let numbers = ["Nodes", "Proven", "On the way", "Failed", "No answer"].map(shown);
    assert_eq!(
        numbers.map(Option::unwrap_or_default).map(|number| number.round().to_string()),
        ["6", "1", "1", "2", "1"]
    );

    rules(&prometheus);
    metrics(&prometheus, &fleet);
    let alert = r#"count(ALERTS{alertname="KubeletConfigRolledBack",alertstate="firing",node="back"})"#;
    eventually_within(LIMIT, alert, || (prometheus.number(alert) == Some(1.0)).then_some(()));
}

fn values(series: &Value) -> usize {
    series["values"].as_array().map_or(1, Vec::len)
}

/// The text of each supervisor passes promtool, which knows the older format alone. Prometheus asked for OpenMetrics, and knows
/// the type and the help of each metric all the same.
fn metrics(prometheus: &Prometheus, fleet: &Fleet) {
    let promtool = std::env::var("PROMTOOL").expect("tests/prometheus/run.sh names it");
    let (_, known) = prometheus.get("/api/v1/metadata").unwrap();
    let known: Value = serde_json::from_str(&known).unwrap();
    for (node, rig) in &fleet.rigs {
        let (status, text) = rig.get("/metrics");
        assert!(status.contains(" 200 "), "{node}: {status}");
        let output = given(Command::new(&promtool).args(["check", "metrics"]), &text);
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success() && said.is_empty(), "{node}: {}: {said}", output.status);
        let types: Vec<(&str, &str)> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
        assert!(types.len() > 20, "{types:?}");
        for (name, kind) in types {
            let seen = &known["data"][name.trim_end_matches("_total")][0];
            let help = seen["help"].as_str().unwrap_or_default();
            assert!(seen["type"] == kind && !help.is_empty(), "{name} {kind}: {seen}");
        }
    }
}

/// Prometheus could evaluate each rule, and each record is there.
fn rules(prometheus: &Prometheus) {
    let (code, body) = prometheus.get("/api/v1/rules").unwrap();
    assert_eq!(code, 200, "{body}");
    let body: Value = serde_json::from_str(&body).unwrap();
    let groups = body["data"]["groups"].as_array().unwrap();
    let rules: Vec<&Value> = groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).collect();
    assert!(rules.len() > 15, "{}", rules.len());
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule:#}");
        if rule["type"] == "recording" {
            let name = rule["name"].as_str().unwrap();
            eventually_within(LIMIT, name, || prometheus.number(&format!("count({name})")));
        }
    }
}
