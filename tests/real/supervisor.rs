//! A supervisor with the real kubelet below it, and a kubelet without one.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use serde_json::{Value, json};
use testkit::rig::workers;

use crate::assignment::ConfigMap;
use crate::cluster::{Cluster, pause, run, until};

pub const BINARY: &str = env!("CARGO_BIN_EXE_kubelet-supervisor");

/// A case's view: the cluster, a directory of its own and a name.
pub struct Case<'a> {
    pub cluster: &'a Cluster,
    pub name: &'static str,
}

impl std::ops::Deref for Case<'_> {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        self.cluster
    }
}

impl<'a> Case<'a> {
    /// The dynamic configuration directory.
    pub fn dir(&self) -> PathBuf {
        self.cluster.dir.join("dynamic").join(self.name)
    }

    /// Tells how far the case is; the other carrier's cases talk at the same time.
    pub fn say(&self, words: &str) {
        println!("    {} [{}]: {words}", self.name, self.carrier.name());
    }

    /// A name for a ConfigMap of this case.
    pub fn id(&self, suffix: &str) -> String {
        format!("{}-{suffix}", self.name.replace('_', "-"))
    }

    /// A supervisor with a short trial, its kubelet ready and its status on the Node.
    pub fn supervisor(&self) -> Supervisor<'a> {
        self.supervisor_with("4s")
    }

    pub fn supervisor_with(&self, trial: &str) -> Supervisor<'a> {
        let supervisor = self.launch(trial, &self.dir(), self.cluster.kubelet_args());
        supervisor.await_ready();
        supervisor
    }

    /// A supervisor with further options, its kubelet ready.
    pub fn supervisor_options(&self, trial: &str, options: &[&str]) -> Supervisor<'a> {
        let supervisor = self.launch_with(trial, options, &self.dir(), self.cluster.kubelet_args());
        supervisor.await_ready();
        supervisor
    }

    /// A supervisor, as it comes.
    pub fn launch(&self, trial: &str, dir: &Path, kubelet: Vec<String>) -> Supervisor<'a> {
        self.launch_with(trial, &[], dir, kubelet)
    }

    /// The same with further options.
    pub fn launch_with(&self, trial: &str, options: &[&str], dir: &Path, kubelet: Vec<String>) -> Supervisor<'a> {
        self.launch_installed(BINARY.as_ref(), trial, options, dir, kubelet)
    }

    /// The same of a binary that is replaced later.
    pub fn launch_installed(
        &self,
        binary: &Path,
        trial: &str,
        options: &[&str],
        dir: &Path,
        kubelet: Vec<String>,
    ) -> Supervisor<'a> {
        // The kubelet's own flag says where the store is.
        let given = kubelet.iter().any(|arg| arg.starts_with("--dynamic-config-dir"));
        let own = if given { vec![] } else { vec!["--dynamic-config-dir".into(), dir.to_owned()] };
        // An edit would else take effect within five minutes, which is a case of its own.
        let at_once: &[&str] = if options.contains(&"--spread") { &[] } else { &["--spread", "0s"] };
        let log = self.cluster.dir.join("logs").join(format!("{}.log", self.name));
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let file = File::options().create(true).append(true).open(&log).unwrap();
        let mut command = Command::new(binary);
        command.arg("run").args(own).args(at_once).args(options).args(["--trial-duration", trial]);
        command.args(["--metrics-bind-address", &format!("127.0.0.1:{port}"), "--"]).args(kubelet);
        command.process_group(0).stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        let (child, dir) = (command.spawn().unwrap(), dir.to_owned());
        Supervisor { child, cluster: self.cluster, dir, log, port, ended: None }
    }

    /// A supervisor with a configuration that is last known good.
    pub fn proven(&self) -> (Supervisor<'a>, ConfigMap) {
        let supervisor = self.supervisor();
        let map = self.assign_new(&self.id("lkg"), "maxPods: 41");
        self.await_proven(&map);
        (supervisor, map)
    }
}

pub struct Supervisor<'a> {
    child: Child,
    cluster: &'a Cluster,
    dir: PathBuf,
    log: PathBuf,
    port: u16,
    ended: Option<ExitStatus>,
}

impl Supervisor<'_> {
    /// A verb about this supervisor: what it says.
    pub fn verb(&self, args: &[&str]) -> Result<String, String> {
        run(Command::new(BINARY).args(args).arg("--dynamic-config-dir").arg(&self.dir))
    }

    /// `status -o json`.
    pub fn status(&self) -> Result<Value, String> {
        let text = self.verb(&["status", "-o", "json"])?;
        serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))
    }

    /// Waits until `status -o json` has these values at these pointers.
    pub fn await_status(&self, wanted: &[(&str, Value)]) {
        until(&format!("status {wanted:?}"), || {
            let status = self.status()?;
            let reached = wanted.iter().all(|(pointer, value)| status.pointer(pointer) == Some(value));
            if reached { Ok(()) } else { Err(format!("{status:#}")) }
        });
    }

    pub fn await_ready(&self) {
        self.await_status(&[("/kubelet/ready", json!(true))]);
    }

    pub fn kubelet(&self) -> u32 {
        until("a kubelet", || {
            let status = self.status()?;
            status["kubelet"]["pid"].as_u64().map(|pid| u32::try_from(pid).unwrap()).ok_or(status.to_string())
        })
    }

    /// The monitor's child that is no kubelet.
    pub fn worker(&self) -> u32 {
        until("a worker", || {
            let workers = workers(u64::from(self.child.id()));
            workers.first().and_then(|pid| u32::try_from(*pid).ok()).ok_or_else(|| "none".to_owned())
        })
    }

    pub fn restarts(&self) -> u64 {
        until("the number of restarts", || {
            let status = self.status()?;
            status["kubelet"]["restarts"].as_u64().ok_or(status.to_string())
        })
    }

    /// What must not change when nothing is restarted.
    pub fn process(&self) -> (u32, u64) {
        (self.kubelet(), self.restarts())
    }

    /// Asserts that nothing is restarted for some seconds.
    pub fn assert_steady(&self, seconds: u64) {
        let before = self.process();
        for _ in 0..seconds * 4 {
            pause(250);
            assert_eq!(self.process(), before, "the kubelet was restarted");
        }
        assert_eq!(self.cluster.kubelets(), [before.0], "kubelets that run");
    }

    /// A page of the metrics listener.
    pub fn page(&self, path: &str) -> Result<String, String> {
        run(Command::new("curl").args(["-sSf", "-m", "10", &format!("http://127.0.0.1:{}{path}", self.port)]))
    }

    /// The sum of a metric's samples whose labels contain `labels`.
    pub fn metric(&self, name: &str, labels: &str) -> f64 {
        let text = until("metrics", || self.page("/metrics"));
        let matching = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            (series.split('{').next() == Some(name) && series.contains(labels)).then(|| value.parse::<f64>().unwrap())
        };
        text.lines().filter_map(matching).sum()
    }

    pub fn await_metric(&self, name: &str, labels: &str, value: f64) {
        until(&format!("metric {name}{{{labels}}} = {value}"), || {
            let seen = self.metric(name, labels);
            if (seen - value).abs() < 0.001 { Ok(()) } else { Err(seen.to_string()) }
        });
    }

    /// All that it and its kubelets said so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap()).into_owned()
    }

    /// Waits for words in the log. Only for what no API tells.
    pub fn await_log(&self, words: &str) {
        until(&format!("{words:?} in the log"), || {
            let text = self.log();
            let own: Vec<&str> = text.lines().filter(|line| line.contains("kubelet_supervisor")).collect();
            if text.contains(words) { Ok(()) } else { Err(own.join("\n")) }
        });
    }

    /// SIGTERM; the exit status once it and its kubelet are gone.
    pub fn stop(mut self) -> ExitStatus {
        self.signal("TERM");
        self.ended()
    }

    /// Waits until it has ended, and no kubelet is left.
    pub fn ended(&mut self) -> ExitStatus {
        let child = &mut self.child;
        let status = until("the supervisor's end", || child.try_wait().unwrap().ok_or("it runs".into()));
        self.ended = Some(status);
        until("the kubelet's end", || {
            let left = self.cluster.kubelets();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        });
        status
    }

    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }
}

pub fn signal(pid: u32, name: &str) {
    run(Command::new("kill").args([format!("-{name}"), pid.to_string()])).unwrap();
}

/// SIGTERM, then SIGKILL.
fn end(child: &mut Child) {
    let _ = run(Command::new("kill").arg(child.id().to_string()));
    for _ in 0..200 {
        if matches!(child.try_wait(), Ok(Some(_))) {
            return;
        }
        pause(100);
    }
    let _ = child.kill();
    let _ = child.wait();
}

impl Drop for Supervisor<'_> {
    fn drop(&mut self) {
        if self.ended.is_none() {
            end(&mut self.child);
            for _ in 0..100 {
                if self.cluster.kubelets().is_empty() {
                    return;
                }
                pause(100);
            }
            self.cluster.end_kubelets();
        }
    }
}

/// A kubelet on its own, with native's dynamic configuration; restarted when it exits for a change.
pub struct Native {
    child: Child,
    command: Command,
    pub starts: u32,
}

impl Native {
    pub fn start(case: &Case) -> Self {
        let log = case.cluster.dir.join("logs").join(format!("{}.native.log", case.name));
        let args = case.kubelet_args();
        let mut command = Command::new(&args[0]);
        let file = File::options().create(true).append(true).open(log).unwrap();
        command.args(&args[1..]).arg(format!("--dynamic-config-dir={}", case.dir().display()));
        command.process_group(0).stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        Self { child: command.spawn().unwrap(), command, starts: 1 }
    }

    /// What systemd would do; to be called while waiting.
    pub fn keep_up(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            assert!(status.success(), "the native kubelet failed: {status}");
            self.child = self.command.spawn().unwrap();
            self.starts += 1;
        }
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}
