//! One supervisor with all that it needs: a directory, an API server with a Node, a kubelet.

pub mod modern;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::api_server::{ApiServer, Fault, FaultKind, Verb};
use crate::built::program;
use crate::kubelet::{Installed, Style, install};
use crate::port::Port;

/// Long enough for a loaded machine; nothing waits for its end unless a test fails.
pub const SOON: Duration = Duration::from_secs(25);
pub const NODE: &str = "n1";
/// What a kubelet that stood by has on its command line beside what it is given.
pub const STANDBY_LOCK: &str = "--lock-file=/proc/self/fd/0";
pub const NAMESPACE: &str = "kube-system";

pub const LOAD: &str = "failed to load config, see Kubelet log for details";
pub const VALIDATE: &str = "failed to validate config, see Kubelet log for details";
pub const DOWNLOAD: &str = "failed to sync: failed to download config, see Kubelet log for details";

/// A version of a ConfigMap: uid, resourceVersion.
pub type Version = (String, String);

/// As commands take it.
pub fn id(version: &Version) -> String {
    format!("{}/{}", version.0, version.1)
}

pub fn configuration(more: &str) -> String {
    format!("kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n{more}\n")
}

/// A kubelet's, not a preflight's.
fn is_start(entry: &Value) -> bool {
    entry["event"] == "start" && entry["preflight"] == false
}

/// Valid, and fatal.
pub fn killer() -> String {
    configuration("enforceNodeAllocatable: [pods, system-reserved]\nsystemReservedCgroup: /no-such-cgroup")
}

pub fn supervisor() -> Command {
    supervisor_at(None)
}

fn supervisor_at(path: Option<&std::path::Path>) -> Command {
    let mut command = Command::new(path.map_or_else(|| program("kubelet-supervisor"), std::path::Path::to_path_buf));
    command.stdin(Stdio::null()).env_remove("NOTIFY_SOCKET").env_remove("JOURNAL_STREAM");
    command
}

pub fn exit_and_output(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

/// For what cannot be awaited: polls until there is something.
pub fn eventually<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    eventually_within(SOON, what, look)
}

/// The same for what takes its time by design.
pub fn eventually_within<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// True once the process is gone, or waits to be reaped by somebody else.
pub fn is_gone(pid: u64) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .map_or(true, |stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X'])))
}

/// What a script that is started as a worker says first, if it is to be taken for one.
pub const HELLO: &str = "printf '{\"hello\":{\"protocol\":3,\"version\":\"0.1.0\"}}' >&3";

/// The workers of a supervisor, oldest first: children of this monitor's that have the program by now.
pub fn workers(monitor: u64) -> Vec<u64> {
    let children = std::fs::read_to_string(format!("/proc/{monitor}/task/{monitor}/children")).unwrap_or_default();
    let is_worker = |pid: &u64| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(b"worker")
    };
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).filter(is_worker).collect()
}

pub struct Rig {
    pub dir: tempfile::TempDir,
    pub server: ApiServer,
    pub kubelet: Installed,
    /// The supervisor's binary, where it is a copy of this test's own.
    pub installed: Option<PathBuf>,
    /// What stands for KUBELET on the command line.
    pub program: PathBuf,
    /// The supervisor's options.
    pub options: Vec<String>,
    /// The kubelet's arguments.
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub metrics: Port,
    _healthz: Port,
    pub child: Option<Child>,
}

impl Rig {
    /// Nothing runs yet. The trial takes a second.
    pub fn new() -> Rig {
        Rig::with(Style::V1_20, "1s")
    }

    /// The trial takes longer than any test.
    pub fn long_trial() -> Rig {
        Rig::with(Style::V1_20, "10m")
    }

    pub fn with(style: Style, trial: &str) -> Rig {
        // What is made here is nobody else's to change, whatever the umask of whoever runs the tests.
        nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
        let dir = tempfile::tempdir().unwrap();
        let server = ApiServer::start();
        server.create_node(NODE);
        server.write_kubeconfig(dir.path().join("kubeconfig"));
        let kubelet = install(&Installed::built(), dir.path(), style);
        let (metrics, healthz) = (Port::free(), Port::free());
        let at = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(at("local.yaml"), configuration("maxPods: 110")).unwrap();
        let options = vec![
            format!("--dynamic-config-dir={}", at("dynamic")),
            format!("--trial-duration={trial}"),
            "--start-timeout=10s".to_owned(),
            // Edits take effect at once, save where a test is about that.
            "--spread=0s".to_owned(),
            format!("--metrics-bind-address={}", metrics.address()),
        ];
        let args = vec![
            format!("--config={}", at("local.yaml")),
            format!("--kubeconfig={}", at("kubeconfig")),
            format!("--hostname-override={NODE}"),
            format!("--healthz-port={}", healthz.number()),
            format!("--cert-dir={}", at("pki")),
            format!("--root-dir={}", at("kubelet")),
        ];
        let program = kubelet.path.clone();
        Rig {
            dir,
            server,
            kubelet,
            installed: None,
            program,
            options,
            args,
            env: Vec::new(),
            metrics,
            _healthz: healthz,
            child: None,
        }
    }

    /// A path in the test's directory.
    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// What the local configuration file says.
    pub fn local(&self, more: &str) {
        std::fs::write(self.at("local.yaml"), configuration(more)).unwrap();
    }

    /// Replaces one of the supervisor's options.
    pub fn option(&mut self, name: &str, value: &str) {
        let prefix = format!("{name}=");
        self.options.retain(|option| !option.starts_with(&prefix));
        self.options.push(format!("{prefix}{value}"));
    }

    pub fn command(&self) -> Command {
        let mut command = supervisor_at(self.installed.as_deref());
        command.arg("run").args(&self.options).arg("--").arg(&self.program).args(&self.args);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Starts the supervisor; its output is appended to `stdout` and `stderr`.
    pub fn start(&mut self) -> &mut Rig {
        let file = |name: &str| std::fs::OpenOptions::new().create(true).append(true).open(self.at(name)).unwrap();
        self.child = Some(self.command().stdout(file("stdout")).stderr(file("stderr")).spawn().unwrap());
        self
    }

    /// Starts the supervisor and waits for its kubelet.
    pub fn up(&mut self) -> &mut Rig {
        let before = self.starts();
        self.start();
        self.wait_ready_after(before);
        self
    }

    /// The same, of a rig just made.
    pub fn running(mut self) -> Rig {
        self.up();
        self
    }

    pub fn pid(&self) -> u64 {
        u64::from(self.child.as_ref().expect("a supervisor").id())
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.pid()).unwrap()), signal).unwrap();
    }

    pub fn wait_exit(&mut self) -> ExitStatus {
        let child = self.child.as_mut().expect("a supervisor");
        let status = eventually("the supervisor ends", || child.try_wait().unwrap());
        self.child = None;
        status
    }

    /// SIGTERM, and exit 0.
    pub fn stop(&mut self) {
        self.signal(Signal::SIGTERM);
        let status = self.wait_exit();
        assert_eq!(status.code(), Some(0), "{}", self.log());
    }

    pub fn restart(&mut self) {
        self.stop();
        self.up();
    }

    /// SIGKILL to the supervisor; the kubelet goes with it.
    pub fn kill(&mut self) {
        let kubelet = self.last_pid();
        let mut child = self.child.take().expect("a supervisor");
        child.kill().unwrap();
        child.wait().unwrap();
        eventually("the kubelet goes with the supervisor", || is_gone(kubelet).then_some(()));
    }

    // ---- the kubelet -----------------------------------------------------------------------------------------

    pub fn starts(&self) -> usize {
        self.kubelet.starts().len()
    }

    pub fn readies(&self) -> usize {
        self.kubelet.entries().iter().filter(|entry| entry["event"] == "ready").count()
    }

    pub fn wait_starts(&self, count: usize) {
        self.wait_journal(|all| all.iter().filter(|entry| is_start(entry)).count() >= count);
    }

    pub fn wait_ready(&self, count: usize) {
        self.wait_journal(|all| all.iter().filter(|entry| entry["event"] == "ready").count() >= count);
    }

    /// A kubelet that was started after so many others is ready.
    fn wait_ready_after(&self, starts: usize) {
        self.wait_journal(|all| {
            let new: Vec<_> = all.iter().filter(|entry| is_start(entry)).skip(starts).map(|it| &it["pid"]).collect();
            all.iter().any(|entry| entry["event"] == "ready" && new.contains(&&entry["pid"]))
        });
    }

    /// The latest start is ready; one before it may have been stopped before it was.
    pub fn wait_last_ready(&self) {
        self.wait_ready_after(self.starts() - 1);
    }

    fn wait_journal(&self, holds: impl Fn(&[Value]) -> bool) {
        self.kubelet.wait(SOON, |all| holds(all).then_some(())).unwrap_or_else(|error| panic!("{error}"));
    }

    /// The latest start's pid.
    pub fn last_pid(&self) -> u64 {
        self.kubelet.starts().last().and_then(|start| start["pid"].as_u64()).expect("a kubelet was started")
    }

    /// What the latest start found in its configuration.
    pub fn last_config(&self) -> Value {
        self.kubelet.starts().last().expect("a kubelet was started")["configJson"].clone()
    }

    // ---- the API server --------------------------------------------------------------------------------------

    /// Creates or updates ConfigMap `name`, whose key `kubelet` holds `text`.
    pub fn put(&self, name: &str, text: &str) -> Version {
        // What kills the kubelet is a field that is refused on a live node unless somebody has
        // taken care of it; the trial is to be tested, not that refusal.
        let hazard = "systemReservedCgroup";
        let accepted = text.contains(hazard).then_some(("kubelet-supervisor.io/acknowledge", hazard));
        self.server.put_annotated_config_map(NAMESPACE, name, &[("kubelet", text)], accepted)
    }

    /// The same with annotations of ours, as in `("confirm-within", "3s")`.
    pub fn put_with(&self, name: &str, text: &str, (annotation, value): (&str, &str)) -> Version {
        let annotation = format!("kubelet-supervisor.io/{annotation}");
        self.server.put_annotated_config_map(NAMESPACE, name, &[("kubelet", text)], Some((&annotation, value)))
    }

    /// Sets an annotation of ours on the Node.
    pub fn annotate_node(&self, annotation: &str, value: &str) {
        let annotation = format!("kubelet-supervisor.io/{annotation}");
        self.server.patch_node(NODE, serde_json::json!({"metadata": {"annotations": {annotation: value}}}));
    }

    pub fn assign(&self, name: &str) {
        self.server.assign(NODE, NAMESPACE, name, "kubelet");
    }

    /// Puts and assigns it, and waits for nothing.
    pub fn offer(&self, name: &str, text: &str) -> Version {
        let version = self.put(name, text);
        self.assign(name);
        version
    }

    /// The same with annotations of ours.
    pub fn offer_with(&self, name: &str, text: &str, annotation: (&str, &str)) -> Version {
        let version = self.put_with(name, text, annotation);
        self.assign(name);
        version
    }

    /// Puts, assigns, and waits until it is active and its kubelet ready.
    pub fn apply(&self, name: &str, text: &str) -> Version {
        let before = self.starts();
        let version = self.offer(name, text);
        self.wait_active(&version);
        self.wait_ready_after(before);
        version
    }

    /// As `apply`, and waits for it to become last known good.
    pub fn prove(&self, name: &str, text: &str) -> Version {
        let version = self.apply(name, text);
        self.wait_config(&format!("{version:?} is proven"), |config| is(config, "lastKnownGood", &version));
        version
    }

    /// Waits for a `Node.status.config`; `null` when there is none.
    pub fn wait_config(&self, what: &str, good: impl Fn(&Value) -> bool) -> Value {
        let node = self.server.wait_node(NODE, SOON, |node| good(&node["status"]["config"]));
        node.unwrap_or_else(|error| panic!("{what}: {error}"))["status"]["config"].clone()
    }

    pub fn wait_active(&self, version: &Version) -> Value {
        self.wait_config(&format!("{version:?} is active"), |config| is(config, "active", version))
    }

    /// This version is assigned, and the error is this one ("": none).
    pub fn wait_error(&self, version: &Version, error: &str) -> Value {
        let says = |config: &Value| config["error"].as_str().unwrap_or_default() == error;
        self.wait_config(&format!("{version:?} gives {error:?}"), |config| {
            is(config, "assigned", version) && says(config)
        })
    }

    /// Waits for an event with this reason that names this version; gives its message.
    pub fn wait_event(&self, reason: &str, version: &Version) -> String {
        let part = format!("UID: {}, ResourceVersion: {}, ", version.0, version.1);
        let event = self.server.wait_event(SOON, |event| {
            event["reason"] == reason && event["message"].as_str().unwrap_or_default().contains(&part)
        });
        event.unwrap_or_else(|error| panic!("{reason} {version:?}: {error}"))["message"].as_str().unwrap().to_owned()
    }

    /// The same, of which the message has these words.
    pub fn wait_told(&self, reason: &str, version: &Version, words: &str) {
        let message = self.wait_event(reason, version);
        assert!(message.contains(words), "{message}");
    }

    /// The reasons of all events, in order.
    pub fn reasons(&self) -> Vec<String> {
        self.server.events().iter().map(|event| event["reason"].as_str().unwrap_or_default().to_owned()).collect()
    }

    pub fn fault(&self, verb: Verb, path: &str, kind: FaultKind, times: u32) {
        self.server.faults().push(Fault::new(verb, path, kind).times(times));
    }

    /// The errors that were ever written to the Node's status.
    pub fn errors_written(&self) -> Vec<String> {
        let bodies = self.server.requests().into_iter().filter(|request| request.method == "PATCH");
        bodies.filter_map(|request| request.body["status"]["config"]["error"].as_str().map(str::to_owned)).collect()
    }

    // ---- what the supervisor says ----------------------------------------------------------------------------

    /// Its log and the kubelet's, so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.at("stderr")).unwrap_or_default()).into_owned()
    }

    pub fn wait_log(&self, text: &str) {
        eventually(&format!("{text:?} in the log"), || self.log().contains(text).then_some(()));
    }

    /// `kubelet-supervisor VERB` about this store: exit code, stdout, stderr.
    pub fn verb(&self, args: &[&str]) -> (i32, String, String) {
        exit_and_output(&supervisor().args(args).arg("--dynamic-config-dir").arg(self.at("dynamic")).output().unwrap())
    }

    /// The same, done; gives what it says.
    pub fn done(&self, args: &[&str]) -> String {
        let (code, stdout, stderr) = self.verb(args);
        assert_eq!(code, 0, "{args:?}: {stderr}");
        stdout.trim_end().to_owned()
    }

    /// The entries of `kubelet-supervisor history`.
    pub fn history(&self) -> Vec<Value> {
        serde_json::from_str(&self.done(&["history", "-o", "json"])).unwrap()
    }

    pub fn status(&self) -> Value {
        let (code, stdout, stderr) = self.verb(&["status", "-o", "json"]);
        assert_eq!(code, 0, "{stderr}");
        serde_json::from_str(&stdout).unwrap()
    }

    pub fn wait_status(&self, what: &str, good: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        eventually(what, || {
            last = self.status();
            good(&last).then(|| last.clone())
        })
    }

    /// Status line and body of a GET at the metrics address.
    pub fn get(&self, path: &str) -> (String, String) {
        let mut stream = TcpStream::connect(self.metrics.address()).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap(); // whoever listens
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
    }

    /// The value of the metric whose line begins like this.
    pub fn metric(&self, start: &str) -> Option<f64> {
        let text = self.get("/metrics").1;
        text.lines().find_map(|line| line.strip_prefix(start)?.trim().parse().ok())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("---- the supervisor's log, and its kubelets' ----");
            for line in self.log().lines().filter(|line| line.starts_with("kubelet-supervisor")) {
                eprintln!("{line}");
            }
        }
    }
}

/// Whether a field of `Node.status.config` is this version.
pub fn is(config: &Value, field: &str, version: &Version) -> bool {
    let map = &config[field]["configMap"];
    map["uid"] == version.0 && map["resourceVersion"] == version.1
}
