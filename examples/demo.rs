//! A first look in under a minute, without root: `cargo run --release --example demo`.
//!
//! This one executable plays three parts, by the name it is started under: the demo, which brings up a small API
//! server of its own; `kubelet-supervisor`, which is the real one; and `kubelet`, a stand-in that loads, validates
//! and dies the way the real one does. Nothing outside a temporary directory is touched.

#![allow(clippy::indexing_slicing, clippy::unused_self, reason = "JSON's index never panics; a stage says it all")]

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::api_server::ApiServer;
use testkit::kubelet::{Installed, Style, install};
use testkit::port::Port;

const NODE: &str = "node-1";
const NAMESPACE: &str = "kube-system";
const SOON: Duration = Duration::from_secs(30);
const LOAD_ERROR: &str = "failed to load config, see Kubelet log for details";
const VALIDATE_ERROR: &str = "failed to validate config, see Kubelet log for details";

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    let name = args.first().and_then(|name| Path::new(name).file_name()).unwrap_or_default();
    match name.to_str() {
        Some("kubelet") => testkit::kubelet::run(args),
        Some("kubelet-supervisor") => kubelet_supervisor::cli::main(args),
        _ => match demo() {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                eprintln!("\nThis did not go as told: {why}");
                ExitCode::FAILURE
            }
        },
    }
}

/// What went on, and whether it was what the demo says.
type Told = Result<(), String>;

fn demo() -> Told {
    let begin = Instant::now();
    let mut stage = Stage::set()?;
    println!("The real supervisor, a stand-in kubelet and a stand-in API server, on this");
    println!("machine and without root. What they log is in");
    println!("  {}", stage.log.display());
    stage.kubelet.wait(SOON, |all| all.iter().any(|e| e["event"] == "ready").then_some(()))?;
    stage.outcome("The kubelet runs with its own file, maxPods: 110. Nothing is assigned.");
    let good = good_one(&mut stage)?;
    bad_one(&mut stage, &good)?;
    let mended = killing_one(&mut stage, &good)?;
    label_edit(&mut stage, &mended)?;
    reset(&mut stage)?;
    println!("\nEvery step turned out as told, in {:.0} s.", begin.elapsed().as_secs_f64());
    Ok(())
}

/// One ConfigMap version, by resourceVersion.
type Version = (String, String);

fn good_one(stage: &mut Stage) -> Result<Version, String> {
    stage.heading("A good configuration");
    stage.command("kubectl -n kube-system create configmap pods --from-file=kubelet");
    stage.file("maxPods: 42");
    stage.command(
        "kubectl patch node node-1 -p '{\"spec\":{\"configSource\":{\"configMap\":{\n    \"namespace\":\"kube-system\",\"name\":\"pods\",\"kubeletConfigKey\":\"kubelet\"}}}}'",
    );
    let version = stage.put(&configuration("maxPods: 42"));
    stage.begin();
    stage.server.assign(NODE, NAMESPACE, "pods", "kubelet");
    stage.wait("it is active", |config| is(config, "active", &version))?;
    stage.kubelet.wait(SOON, |all| (readies(all) == 2).then_some(()))?;
    stage.report("active, and the kubelet ready with it");
    stage.restarts(1)?;
    println!("  It is on trial now. It becomes last known good after 5 s of continuous");
    println!("  health (10 minutes unless told otherwise) ...");
    stage.wait("it is last known good", |config| is(config, "lastKnownGood", &version))?;
    stage.report("last known good");
    stage.proven(&version)?;
    stage.events();
    Ok(version)
}

fn bad_one(stage: &mut Stage, good: &Version) -> Told {
    stage.heading("One that the kubelet refuses");
    stage.command("kubectl -n kube-system edit configmap pods");
    stage.file("maxPods: 42\nkubeAPIQPS: -1");
    stage.begin();
    let version = stage.put(&configuration("maxPods: 42\nkubeAPIQPS: -1"));
    stage.wait("the error", |config| is(config, "assigned", &version) && config["error"] == VALIDATE_ERROR)?;
    stage.report("judged by the kubelet's own binary, and refused");
    let config = stage.config();
    expect(is(&config, "active", good) && is(&config, "lastKnownGood", good), "the good one is still active")?;
    let words = "must not be a negative number";
    let heard = |event: &Value| event["message"].as_str().unwrap_or_default().contains(words);
    stage.server.wait_event(SOON, heard)?;
    stage.events();
    stage.restarts(0)
}

fn killing_one(stage: &mut Stage, good: &Version) -> Result<Version, String> {
    stage.heading("One that passes validation, and then kills the kubelet");
    let text = "enforceNodeAllocatable: [pods, system-reserved]\nsystemReservedCgroup: /no-such-cgroup";
    stage.command("kubectl -n kube-system edit configmap pods");
    stage.command(
        "kubectl -n kube-system annotate configmap pods kubelet-supervisor.io/acknowledge=systemReservedCgroup",
    );
    stage.file(text);
    stage.begin();
    let version = stage.put(&configuration(text));
    stage.wait("the error", |config| is(config, "assigned", &version) && config["error"] == LOAD_ERROR)?;
    stage.wait("last known good is back", |config| is(config, "active", good))?;
    stage.kubelet.wait(SOON, |all| (all.last()?["event"] == "ready").then_some(()))?;
    stage.report("tried twice, rolled back, and the kubelet ready again");
    let rolled_back = |event: &Value| event["reason"] == "KubeletConfigRolledBack";
    stage.server.wait_event(SOON, rolled_back)?;
    expect(is(&stage.config(), "lastKnownGood", good), "last known good is untouched")?;
    stage.events();
    stage.restarts(3)?;
    println!("  The administrator mends it ...");
    stage.begin();
    let mended = stage.put(&configuration("maxPods: 50"));
    stage
        .wait("the mended one is proven", |config| is(config, "lastKnownGood", &mended) && config["error"].is_null())?;
    stage.report("the mended one is active and, 5 s later, last known good");
    stage.proven(&mended)?;
    stage.events();
    stage.restarts(1)?;
    Ok(mended)
}

fn label_edit(stage: &mut Stage, before: &Version) -> Told {
    stage.heading("An edit that means nothing to the kubelet");
    stage.command("kubectl -n kube-system label configmap pods team=blue");
    stage.begin();
    let version = stage.server.label_config_map(NAMESPACE, "pods", "team", "blue");
    expect(version != *before, "the label makes a new version")?;
    stage.wait("it is adopted", |config| is(config, "active", &version))?;
    stage.report("the new version is adopted");
    stage.server.wait_event(SOON, |event| event["reason"] == "KubeletConfigAdopted")?;
    stage.events();
    stage.restarts(0)
}

fn reset(stage: &mut Stage) -> Told {
    stage.heading("Back to the node's own configuration");
    stage.command("kubectl patch node node-1 -p '{\"spec\":{\"configSource\":null}}'");
    stage.begin();
    let ready = readies(&stage.kubelet.entries()) + 1;
    stage.server.unassign(NODE);
    stage.wait("nothing is left", |config| {
        ["assigned", "active", "lastKnownGood", "error"].iter().all(|field| config[field].is_null())
    })?;
    stage.kubelet.wait(SOON, |all| (readies(all) == ready).then_some(()))?;
    stage.report("the kubelet runs with its own file again");
    let config = stage.kubelet.starts().pop().unwrap_or_default();
    expect(config["configJson"]["maxPods"] == 110, "it is the local file")?;
    stage.server.wait_event(SOON, |event| event["message"] == "Kubelet restarting to use local config")?;
    stage.events();
    stage.restarts(1)
}

/// All that takes part, and what of it was shown already.
struct Stage {
    server: ApiServer,
    kubelet: Installed,
    log: PathBuf,
    supervisor: Child,
    began: Instant,
    steps: usize,
    events_shown: usize,
    starts_seen: usize,
    _healthz: Port,
    _dir: tempfile::TempDir,
}

impl Stage {
    fn set() -> Result<Stage, String> {
        let text = |error: std::io::Error| error.to_string();
        let dir = tempfile::tempdir().map_err(text)?;
        let own = std::env::current_exe().map_err(text)?;
        let server = ApiServer::start();
        server.create_node(NODE);
        server.write_kubeconfig(dir.path().join("kubeconfig"));
        let kubelet = install(&own, dir.path(), Style::V1_20);
        let supervisor = dir.path().join("kubelet-supervisor");
        std::os::unix::fs::symlink(&own, &supervisor).map_err(text)?;
        let healthz = Port::free();
        let at = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(at("kubelet.yaml"), configuration("maxPods: 110")).map_err(text)?;
        let log = std::env::temp_dir().join(format!("kubelet-supervisor-demo-{}.log", std::process::id()));
        let file = std::fs::File::create(&log).map_err(text)?;
        let mut command = Command::new(supervisor);
        command
            .args(["run", "--trial-duration=5s", "--spread=0s", "--metrics-bind-address="])
            .arg(format!("--dynamic-config-dir={}", at("dynamic-config")))
            .arg("--")
            .arg(&kubelet.path)
            .arg(format!("--config={}", at("kubelet.yaml")))
            .arg(format!("--kubeconfig={}", at("kubeconfig")))
            .arg(format!("--root-dir={}", at("kubelet")))
            .arg(format!("--hostname-override={NODE}"))
            .arg(format!("--healthz-port={}", healthz.number()))
            .arg(format!("--cert-dir={}", at("pki")))
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stdout(file.try_clone().map_err(text)?)
            .stderr(file);
        let supervisor = command.spawn().map_err(text)?;
        Ok(Stage {
            server,
            kubelet,
            log,
            supervisor,
            began: Instant::now(),
            steps: 0,
            events_shown: 0,
            starts_seen: 1,
            _healthz: healthz,
            _dir: dir,
        })
    }

    fn heading(&mut self, text: &str) {
        self.steps += 1;
        println!("\n{}. {text}", self.steps);
    }

    fn command(&self, text: &str) {
        println!("  $ {text}");
    }

    fn file(&self, text: &str) {
        for line in text.lines() {
            println!("      {line}");
        }
    }

    fn outcome(&self, text: &str) {
        println!("{}", wrap(text, "  "));
    }

    fn begin(&mut self) {
        self.began = Instant::now();
    }

    /// What came out, after what time, and the Node's status.
    fn report(&self, text: &str) {
        println!("  => {text}: {:.2} s", self.began.elapsed().as_secs_f64());
        let config = self.config();
        println!("     Node.status.config:");
        for field in ["assigned", "active", "lastKnownGood"] {
            let map = &config[field]["configMap"];
            let shown = match map["resourceVersion"].as_str() {
                Some(version) => format!("{}, resourceVersion {version}", map["name"].as_str().unwrap_or_default()),
                None => "(local)".to_owned(),
            };
            println!("       {field:<14} {shown}");
        }
        if let Some(error) = config["error"].as_str() {
            println!("       {:<14} {error}", "error");
        }
    }

    /// The events that were not shown before.
    fn events(&mut self) {
        let events = self.server.events();
        for event in &events[self.events_shown..] {
            let text = |field: &str| event[field].as_str().unwrap_or_default();
            let message = text("message").replace(&format!("/api/v1/namespaces/{NAMESPACE}/configmaps/"), "…/");
            println!("     Event {} {}:", text("type"), text("reason"));
            println!("{}", wrap(&message, "       "));
        }
        self.events_shown = events.len();
    }

    /// How often the kubelet was started since this was last asked.
    fn restarts(&mut self, expected: usize) -> Told {
        let starts = self.kubelet.starts().len();
        let count = starts - std::mem::replace(&mut self.starts_seen, starts);
        println!("     Kubelet restarts: {count}");
        expect(count == expected, &format!("{expected} restarts of the kubelet"))
    }

    fn proven(&self, version: &Version) -> Told {
        let part = format!("ResourceVersion: {},", version.1);
        let heard = |event: &Value| {
            event["reason"] == "KubeletConfigProven" && event["message"].as_str().unwrap_or_default().contains(&part)
        };
        self.server.wait_event(SOON, heard).map(drop)
    }

    fn put(&self, text: &str) -> Version {
        // A field that wants a drained node is refused unless somebody has taken care of it.
        let hazard = "systemReservedCgroup";
        let accepted = text.contains(hazard).then_some(("kubelet-supervisor.io/acknowledge", hazard));
        self.server.put_annotated_config_map(NAMESPACE, "pods", &[("kubelet", text)], accepted)
    }

    fn wait(&self, what: &str, good: impl Fn(&Value) -> bool) -> Told {
        let node = self.server.wait_node(NODE, SOON, |node| good(&node["status"]["config"]));
        node.map(drop).map_err(|error| format!("{what}: {error}"))
    }

    fn config(&self) -> Value {
        self.server.node(NODE)["status"]["config"].clone()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // The kubelet goes with it.
        let _ = self.supervisor.kill();
        let _ = self.supervisor.wait();
    }
}

fn configuration(more: &str) -> String {
    format!("kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n{more}\n")
}

fn is(config: &Value, field: &str, version: &Version) -> bool {
    let map = &config[field]["configMap"];
    map["uid"] == version.0 && map["resourceVersion"] == version.1
}

fn readies(entries: &[Value]) -> usize {
    entries.iter().filter(|entry| entry["event"] == "ready").count()
}

fn expect(held: bool, what: &str) -> Told {
    if held { Ok(()) } else { Err(format!("expected: {what}")) }
}

/// Lines of at most 78 characters.
fn wrap(text: &str, indent: &str) -> String {
    let mut out = String::from(indent);
    let mut column = indent.chars().count();
    for (index, word) in text.split_whitespace().enumerate() {
        let width = word.chars().count();
        if index > 0 && column + 1 + width > 78 {
            let _ = write!(out, "\n{indent}");
            column = indent.chars().count();
        } else if index > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += width;
    }
    out
}
