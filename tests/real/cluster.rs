//! The cluster of `cluster.sh`, and its API through `curl` with the administrator's certificate.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::interrupt::is_interrupted;

use crate::assignment::Carrier;

/// Reasons of events whose type is Warning (docs/usage/reference.md).
const WARNINGS: [&str; 6] = [
    "KubeletConfigDrift",
    "KubeletConfigLocalFiles",
    "KubeletConfigRejected",
    "KubeletConfigRolledBack",
    "KubeletHung",
    "WorkerReplaced", // but on request
];

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real");

/// No assertion is about time; this only ends a test that would wait for ever.
const PATIENCE: Duration = Duration::from_secs(120);

/// Polls until there is a value; the last reason for there being none is in the panic.
pub fn until<T>(what: &str, get: impl FnMut() -> Result<T, String>) -> T {
    until_within(PATIENCE, what, get)
}

/// The same for what is meant to take longer.
pub fn until_within<T>(patience: Duration, what: &str, mut get: impl FnMut() -> Result<T, String>) -> T {
    let begin = Instant::now();
    loop {
        match get() {
            Ok(value) => return value,
            Err(why) => {
                assert!(!is_interrupted(), "interrupted while waiting: {what}");
                assert!(begin.elapsed() < patience, "waited in vain: {what}; last seen: {why}");
            }
        }
        pause(100);
    }
}

pub fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// Runs a command; its standard output, or all it said.
pub fn run(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(out);
    }
    Err(format!("{command:?}: {}: {out}{}", output.status, String::from_utf8_lossy(&output.stderr)))
}

/// Why the suite cannot run on this machine. What is being installed or built is shown, for that takes minutes.
pub fn missing() -> Option<String> {
    let mut command = Command::new(format!("{SCRIPTS}/prepare.sh"));
    let mut child = match command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => return Some(format!("prepare.sh: {error}")),
    };
    let mut last = "prepare.sh failed".to_owned();
    for line in BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok) {
        eprintln!("{line}");
        last = line;
    }
    (!child.wait().unwrap().success()).then_some(last)
}

pub struct Cluster {
    pub dir: PathBuf,
    pub carrier: Carrier,
    env: BTreeMap<String, String>,
    up: bool,
}

impl Cluster {
    pub fn up(dir: &Path, carrier: Carrier) -> Self {
        let mut cluster = Self { dir: dir.to_owned(), carrier, env: BTreeMap::new(), up: true };
        cluster.script("up", None);
        let text = std::fs::read_to_string(dir.join("env")).unwrap();
        let pairs = text.lines().filter_map(|line| line.strip_prefix("export ")?.split_once('='));
        cluster.env = pairs.map(|(name, value)| (name.to_owned(), value.trim_matches('"').to_owned())).collect();
        cluster
    }

    /// A verb of `cluster.sh`.
    pub fn script(&self, verb: &str, daemon: Option<&str>) -> String {
        let mut command = Command::new(format!("{SCRIPTS}/cluster.sh"));
        command.env("APISERVER_EXTRA_FLAGS", self.carrier.server_flags());
        run(command.arg(verb).arg(&self.dir).args(daemon)).unwrap()
    }

    /// Restarts the API server with other flags than this cluster's.
    pub fn restart_server(&self, flags: &str) {
        let file = self.dir.join("env");
        let text = std::fs::read_to_string(&file).unwrap();
        let line = |line: &str| {
            let own = line.starts_with("export APISERVER_FLAGS=");
            if own { format!("export APISERVER_FLAGS=\"{flags}\"\n") } else { format!("{line}\n") }
        };
        std::fs::write(&file, text.lines().map(line).collect::<String>()).unwrap();
        self.script("stop", Some("apiserver"));
        self.script("start", Some("apiserver"));
    }

    /// `kubectl`, as the administrator.
    pub fn kubectl(&self, args: &[&str]) -> String {
        self.try_kubectl(args).unwrap()
    }

    /// The same where it may be refused.
    pub fn try_kubectl(&self, args: &[&str]) -> Result<String, String> {
        run(Command::new(self.var("KUBECTL")).args(args).env("KUBECONFIG", self.var("KUBECONFIG")))
    }

    /// Waits for a resource definition; `kubectl wait` fails while it has no conditions at all.
    pub fn await_established(&self, resource: &str) {
        let wait = ["wait", "--for=condition=Established", resource, "--timeout=60s"];
        until(&format!("{resource} to be established"), || self.try_kubectl(&wait));
    }

    /// A variable of the cluster's `env` file.
    pub fn var(&self, name: &str) -> &str {
        &self.env[name]
    }

    pub fn vars(&self) -> &BTreeMap<String, String> {
        &self.env
    }

    /// The kubelet and its arguments.
    pub fn kubelet_args(&self) -> Vec<String> {
        self.script("kubelet-args", None).lines().map(str::to_owned).collect()
    }

    /// Pids of this cluster's kubelets, preflights not counted.
    pub fn kubelets(&self) -> Vec<u32> {
        let kubeconfig = format!("{}/", self.dir.display());
        let of = |entry: std::io::Result<std::fs::DirEntry>| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).into_owned();
            let ours = line.split('\0').next() == Some(self.var("KUBELET"))
                && line.contains(&kubeconfig)
                && !line.contains("--exit-on-lock-contention")
                && !line.contains("/supervisor/preflight");
            ours.then_some(pid)
        };
        std::fs::read_dir("/proc").unwrap().filter_map(of).collect()
    }

    /// A request to the API server, as its administrator.
    pub fn api(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        self.api_as("ADMIN", method, path, body)
    }

    /// A request with the credential `ADMIN` or `NODE`; an error begins with method, path and HTTP status.
    pub fn api_as(&self, who: &str, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let pair = [("--cert", "CERT"), ("--key", "KEY")];
        let pair = pair.map(|(option, name)| [option.to_owned(), self.var(&format!("{who}_{name}")).to_owned()]);
        self.api_with(&pair.concat(), method, path, body)
    }

    /// The same with these options of curl for a credential.
    pub fn api_with(
        &self,
        credential: &[String],
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, String> {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let mut command = Command::new("curl");
        command.args(["-sS", "-m", "20", "-X", method, "-H", &format!("Content-Type: {kind}"), "-w", "\n%{http_code}"]);
        command.args(["--cacert", self.var("CA_CERT")]).args(credential);
        if body.is_some() {
            command.args(["--data-binary", "@-"]);
        }
        command.arg(format!("{}{path}", self.var("API_URL")));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        if let Some(body) = body {
            let _ = input.write_all(body.to_string().as_bytes()); // the answer tells
        }
        drop(input);
        let output = child.wait_with_output().unwrap();
        let out = String::from_utf8_lossy(&output.stdout);
        let (text, code) = out.rsplit_once('\n').unwrap_or_default();
        if !code.starts_with('2') {
            return Err(format!("{method} {path}: {code} {text}"));
        }
        serde_json::from_str(text).map_err(|error| format!("{method} {path}: {error}: {text}"))
    }

    /// A request that must succeed in the end.
    pub fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        until(&format!("{method} {path}"), || self.api(method, path, body))
    }

    pub fn node_path(&self) -> String {
        format!("/api/v1/nodes/{}", self.var("NODE_NAME"))
    }

    // ------------------------------------------------------------ what is to be seen

    /// Waits for the Node to be Ready, said by a kubelet that lives.
    pub fn await_node_ready(&self) {
        until("the Node to be Ready", || {
            let node = self.api("GET", &self.node_path(), None)?;
            let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let ready =
                conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
            if ready { Ok(()) } else { Err(format!("{conditions:?}")) }
        });
    }

    /// Messages of this case's events of a reason, if they have the type that the reference has for it: the API server is asked for
    /// that, as by `kubectl get events --field-selector type=Warning`.
    pub fn events(&self, reason: &str) -> Result<Vec<String>, String> {
        let kind = if WARNINGS.contains(&reason) { "Warning" } else { "Normal" };
        let selector = format!("reason={reason},type={kind},involvedObject.kind=Node");
        let path = format!("/api/v1/namespaces/default/events?fieldSelector={selector}");
        let list = self.api("GET", &path, None)?;
        let of = |event: &Value| event["message"].as_str().unwrap_or_default().to_owned();
        Ok(list["items"].as_array().cloned().unwrap_or_default().iter().map(of).collect())
    }

    /// Waits for an event that contains these words; kubelets write some of theirs with capitals, or without.
    pub fn await_event(&self, reason: &str, words: &[&str]) {
        let is_in = |message: &str, word: &str| message.to_lowercase().contains(&word.to_lowercase());
        until(&format!("an event {reason} with {words:?}"), || {
            let seen = self.events(reason)?;
            let found = seen.iter().any(|message| words.iter().all(|word| is_in(message, word)));
            if found { Ok(()) } else { Err(format!("{seen:#?}")) }
        });
    }

    /// Waits until the running kubelet's own configuration has this value.
    pub fn await_configz(&self, field: &str, value: &Value) {
        until(&format!("configz {field} = {value}"), || {
            let configz = self.api("GET", &format!("{}/proxy/configz", self.node_path()), None)?;
            let seen = &configz["kubeletconfig"][field];
            if seen == value { Ok(()) } else { Err(seen.to_string()) }
        });
    }

    // ------------------------------------------------------------ housekeeping

    /// Undoes what the case before left.
    pub fn tidy(&self) {
        self.end_kubelets();
        self.script("start", Some("apiserver"));
        self.script("start", Some("containerd"));
        if self.api("GET", &self.node_path(), None).is_ok() {
            self.reset_all();
        }
        self.ask("DELETE", "/api/v1/namespaces/default/events", None);
    }

    pub fn end_kubelets(&self) {
        for pid in self.kubelets() {
            let _ = run(Command::new("kill").arg("-9").arg(pid.to_string()));
        }
    }

    /// Takes it down; only the logs stay.
    pub fn down(&mut self) {
        if std::mem::take(&mut self.up) && !self.env.is_empty() {
            self.end_kubelets();
            self.script("down", None);
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.down();
    }
}
