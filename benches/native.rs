//! The supervised kubelet against native dynamic configuration, on one real API server in one run.
//!
//! ```text
//! sudo cargo bench --bench native            # about fifteen minutes; CHANGES=5 for more samples
//! CONTENDERS=supervised cargo bench --bench native
//! ```
//! Needs what the real suite needs (`tests/real/prepare.sh`). Native is restarted by the benchmark with
//! RestartSec=10, as kubeadm's unit has it, and with 0.

// A benchmark may panic, and its numbers are small.
#![allow(clippy::indexing_slicing, clippy::cast_precision_loss, clippy::unchecked_time_subtraction)]
#![allow(clippy::semicolon_if_nothing_returned)]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

type Error = Box<dyn std::error::Error>;
type Result<T> = std::result::Result<T, Error>;

/// How long native gets to show what it does: its loops tick every 10 to 12 s, twice at the most.
const NATIVE_REACTS: Duration = Duration::from_secs(30);

fn main() {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED: the benchmark needs root, for a real kubelet");
        return;
    }
    if let Err(error) = bench() {
        eprintln!("the benchmark failed: {error}");
        std::process::exit(1);
    }
}

fn bench() -> Result<()> {
    let dir = tempfile::Builder::new().prefix("bench").tempdir_in("/tmp")?;
    let cluster = Cluster::up(dir.path())?;
    let samples = std::env::var("CHANGES").ok().and_then(|n| n.parse().ok()).unwrap_or(3);

    let bare = bare_restart(&cluster, samples)?;
    println!("bare kubelet restart, SIGTERM to healthz 200: {:.2} s (median of {samples})\n", bare.as_secs_f64());
    let mut rows = Vec::new();
    let all = [("native-10", Kind::Native(10)), ("native-0", Kind::Native(0)), ("supervised", Kind::Supervised)];
    let chosen = std::env::var("CONTENDERS").unwrap_or_default();
    for (_, kind) in all.into_iter().filter(|(name, _)| chosen.is_empty() || chosen.contains(name)) {
        rows.push(measure(&cluster, kind, samples)?);
    }
    print_table(bare, &rows);
    Ok(())
}

// ---------------------------------------------------------------- the cluster

struct Cluster {
    dir: PathBuf,
    script: PathBuf,
    proxy: Child,
    api: u16,
    healthz: u16,
    kubelet: Vec<String>,
    config: String,
}

impl Cluster {
    fn up(dir: &Path) -> Result<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real/cluster.sh");
        let output = |verb: &str| -> Result<String> {
            let output = Command::new(&script).arg(verb).arg(dir).stderr(Stdio::inherit()).output()?;
            if !output.status.success() {
                return Err(format!("cluster.sh {verb}: {}", output.status).into());
            }
            Ok(String::from_utf8(output.stdout)?)
        };
        output("up")?;
        let kubelet = output("kubelet-args")?.lines().map(str::to_owned).collect();
        let config = std::fs::read_to_string(dir.join("kubelet/config.yaml"))?;
        let healthz =
            config.lines().find_map(|line| line.strip_prefix("healthzPort: ")).ok_or("no healthzPort")?.parse()?;
        // Plain HTTP to the API server, so that a look costs a millisecond.
        let mut proxy = Command::new("kubectl")
            .args(["proxy", "--port=0"])
            .env("KUBECONFIG", dir.join("admin.kubeconfig"))
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = [0_u8; 64];
        let count = proxy.stdout.as_mut().ok_or("no stdout")?.read(&mut line)?;
        let line = String::from_utf8_lossy(&line[..count]).into_owned();
        let api = line.trim().rsplit(':').next().ok_or("no port")?.parse()?;
        Ok(Self { dir: dir.to_owned(), script, proxy, api, healthz, kubelet, config })
    }

    fn api(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let body = body.map(ToString::to_string).unwrap_or_default();
        let (status, text) = http(self.api, method, path, kind, &body)?;
        let value = serde_json::from_str(&text).unwrap_or_default();
        if status >= 300 { Err(format!("{method} {path}: {status} {text}").into()) } else { Ok(value) }
    }

    fn config_map(&self, name: &str, extra: &str) -> Result<()> {
        let data = format!("{}{extra}", self.config);
        let map = json!({"metadata": {"name": name, "annotations": {"kubelet-supervisor.io/acknowledge": "all"}}, "data": {"kubelet": data}});
        self.api("POST", "/api/v1/namespaces/kube-system/configmaps", Some(&map)).map(drop)
    }

    fn assign(&self, name: Option<&str>) -> Result<()> {
        let source = name.map(
            |name| json!({"configMap": {"namespace": "kube-system", "name": name, "kubeletConfigKey": "kubelet"}}),
        );
        self.api("PATCH", "/api/v1/nodes/node1", Some(&json!({"spec": {"configSource": source}}))).map(drop)
    }

    fn status(&self) -> Value {
        let node = self.api("GET", "/api/v1/nodes/node1", None).unwrap_or_default();
        node.pointer("/status/config").cloned().unwrap_or_default()
    }

    fn healthy(&self) -> bool {
        http(self.healthz, "GET", "/healthz", "", "").is_ok_and(|(status, _)| status == 200)
    }

    fn active_is(&self, name: Option<&str>) -> bool {
        self.status().pointer("/active/configMap/name").and_then(Value::as_str) == name
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.proxy.kill();
        let _ = self.proxy.wait();
        let _ = Command::new(&self.script).arg("down").arg(&self.dir).status();
    }
}

fn http(port: u16, method: &str, path: &str, kind: &str, body: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or("no answer")?;
    Ok((head.split(' ').nth(1).ok_or("no status")?.parse()?, body.to_owned()))
}

fn wait_for(what: &str, limit: Duration, mut done: impl FnMut() -> bool) -> Result<Duration> {
    let begun = Instant::now();
    while !done() {
        if begun.elapsed() > limit {
            return Err(format!("gave up after {} s waiting for {what}", limit.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(begun.elapsed())
}

// ---------------------------------------------------------------- contenders

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Native(u64),
    Supervised,
}

/// Native's systemd: starts the kubelet again, RestartSec after it ended.
struct Babysitter {
    stop: Arc<AtomicBool>,
    starts: Arc<AtomicU32>,
    pid: Arc<AtomicU32>,
    thread: Option<JoinHandle<()>>,
}

impl Babysitter {
    fn start(command: Vec<String>, log: &Path, pause: Duration) -> Result<Self> {
        let (stop, starts, pid) =
            (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let log = std::fs::File::create(log)?;
        let (stopped, count, id) = (stop.clone(), starts.clone(), pid.clone());
        let thread = std::thread::Builder::new().spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                let Ok(out) = log.try_clone() else { return };
                let Ok(err) = log.try_clone() else { return };
                let Ok(mut child) = Command::new(&command[0]).args(&command[1..]).stdout(out).stderr(err).spawn()
                else {
                    return;
                };
                count.fetch_add(1, Ordering::SeqCst);
                id.store(child.id(), Ordering::SeqCst);
                let _ = child.wait();
                let begun = Instant::now();
                while begun.elapsed() < pause && !stopped.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        })?;
        Ok(Self { stop, starts, pid, thread: Some(thread) })
    }

    fn signal(&self, signal: nix::sys::signal::Signal) {
        if let Ok(pid @ 1..) = i32::try_from(self.pid.load(Ordering::SeqCst)) {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal);
        }
    }
}

impl Drop for Babysitter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.signal(nix::sys::signal::Signal::SIGTERM);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

const SUPERVISOR: &str = env!("CARGO_BIN_EXE_kubelet-supervisor");
const METRICS_PORT: u16 = 10_246;

fn start(cluster: &Cluster, kind: Kind) -> Result<Babysitter> {
    let mut kubelet = cluster.kubelet.clone();
    let store = cluster.dir.join("kubelet").join(match kind {
        Kind::Native(seconds) => format!("native-{seconds}"),
        Kind::Supervised => "supervised".to_owned(),
    });
    kubelet.push(format!("--dynamic-config-dir={}", store.display()));
    let (command, pause) = match kind {
        Kind::Native(seconds) => (kubelet, seconds),
        Kind::Supervised => (
            [SUPERVISOR, "run", "--trial-duration=150s", "--"].map(str::to_owned).into_iter().chain(kubelet).collect(),
            10,
        ),
    };
    let log = cluster.dir.join("logs").join("bench.log");
    let running = Babysitter::start(command, &log, Duration::from_secs(pause))?;
    wait_for("healthz", Duration::from_secs(60), || cluster.healthy())?;
    wait_for("the Node", Duration::from_secs(60), || cluster.api("GET", "/api/v1/nodes/node1", None).is_ok())?;
    // Native takes no notice of the Node in its first ten seconds.
    std::thread::sleep(Duration::from_secs(if kind == Kind::Supervised { 2 } else { 14 }));
    Ok(running)
}

fn kubelet_starts(kind: Kind, running: &Babysitter, cluster: &Cluster) -> u32 {
    if kind != Kind::Supervised {
        return running.starts.load(Ordering::SeqCst);
    }
    u32::try_from(supervisor_status(cluster).pointer("/kubelet/restarts").and_then(Value::as_u64).unwrap_or_default())
        .unwrap_or_default()
}

fn supervisor_status(cluster: &Cluster) -> Value {
    let dir = cluster.dir.join("kubelet/supervised");
    let output = Command::new(SUPERVISOR).args(["status", "-o", "json", "--dynamic-config-dir"]).arg(dir).output();
    output.ok().and_then(|output| serde_json::from_slice(&output.stdout).ok()).unwrap_or_default()
}

// ---------------------------------------------------------------- measurements

/// Watches healthz every 5 ms and adds up the time it did not answer.
struct Outage {
    stop: Arc<AtomicBool>,
    micros: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Outage {
    fn watch(port: u16) -> Result<Self> {
        let (stop, micros) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, total) = (stop.clone(), micros.clone());
        let thread = std::thread::Builder::new().spawn(move || {
            let mut last = Instant::now();
            while !stopped.load(Ordering::SeqCst) {
                let ok = http(port, "GET", "/healthz", "", "").is_ok_and(|(status, _)| status == 200);
                let now = Instant::now();
                if !ok {
                    total.fetch_add(u64::try_from((now - last).as_micros()).unwrap_or_default(), Ordering::SeqCst);
                }
                last = now;
                std::thread::sleep(Duration::from_millis(5));
            }
        })?;
        Ok(Self { stop, micros, thread: Some(thread) })
    }

    fn end(mut self) -> Duration {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        Duration::from_micros(self.micros.load(Ordering::SeqCst))
    }
}

fn median(mut values: Vec<Duration>) -> Duration {
    values.sort();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn bare_restart(cluster: &Cluster, samples: usize) -> Result<Duration> {
    let running = Babysitter::start(cluster.kubelet.clone(), &cluster.dir.join("logs/bench.log"), Duration::ZERO)?;
    wait_for("healthz", Duration::from_secs(60), || cluster.healthy())?;
    let mut times = Vec::new();
    for _ in 0..samples {
        std::thread::sleep(Duration::from_secs(2));
        let begun = Instant::now();
        running.signal(nix::sys::signal::Signal::SIGTERM);
        wait_for("the end", Duration::from_secs(10), || !cluster.healthy())?;
        wait_for("healthz", Duration::from_secs(60), || cluster.healthy())?;
        times.push(begun.elapsed());
    }
    Ok(median(times))
}

struct Row {
    name: String,
    active: Duration,
    healthy: Duration,
    outage: Duration,
    starts: [u32; 3], // valid change, label edit, rejected payload
    recovery: Option<Duration>,
    rss_kib: u64,
    /// Share of a CPU, and requests per hour, during a trial.
    trial: (f64, f64),
    /// The same after it.
    idle: (f64, f64),
}

fn measure(cluster: &Cluster, kind: Kind, samples: usize) -> Result<Row> {
    let (name, prefix) = match kind {
        Kind::Native(seconds) => (format!("native, RestartSec={seconds}"), format!("n{seconds}")),
        Kind::Supervised => ("supervised".to_owned(), "s".to_owned()),
    };
    println!("measuring: {name}");
    let running = start(cluster, kind)?;
    let (mut active, mut healthy, mut outages) = (Vec::new(), Vec::new(), Vec::new());
    let begun_with = kubelet_starts(kind, &running, cluster);
    for sample in 0..samples {
        let map = format!("{prefix}-{sample}");
        cluster.config_map(&map, &format!("maxPods: {}\n", 50 + sample))?;
        let outage = Outage::watch(cluster.healthz)?;
        let begun = Instant::now();
        cluster.assign(Some(&map))?;
        wait_for("active", Duration::from_secs(90), || cluster.active_is(Some(&map)))?;
        active.push(begun.elapsed());
        wait_for("healthz", Duration::from_secs(60), || cluster.healthy())?;
        healthy.push(begun.elapsed());
        outages.push(outage.end());
        std::thread::sleep(Duration::from_secs(if kind == Kind::Supervised { 1 } else { 14 }));
    }
    let after_changes = kubelet_starts(kind, &running, cluster);
    let per_change = (after_changes - begun_with) / u32::try_from(samples)?;

    let map = format!("{prefix}-{}", samples - 1);
    let label = json!({"metadata": {"labels": {"edited": "yes"}}});
    cluster.api("PATCH", &format!("/api/v1/namespaces/kube-system/configmaps/{map}"), Some(&label))?;
    std::thread::sleep(NATIVE_REACTS);
    wait_for("healthz", Duration::from_secs(60), || cluster.healthy())?;
    let after_label = kubelet_starts(kind, &running, cluster);

    // Back to local, which is last known good for all three: what is proven runs.
    let to_local = || -> Result<()> {
        cluster.assign(None)?;
        wait_for("local", Duration::from_secs(90), || cluster.active_is(None) && cluster.healthy())?;
        std::thread::sleep(Duration::from_secs(if kind == Kind::Supervised { 2 } else { 14 }));
        Ok(())
    };
    to_local()?;
    let before_reject = kubelet_starts(kind, &running, cluster);
    cluster.config_map(&format!("{prefix}-rejected"), "kubeAPIQPS: -1\n")?;
    cluster.assign(Some(&format!("{prefix}-rejected")))?;
    std::thread::sleep(NATIVE_REACTS);
    let after_reject = kubelet_starts(kind, &running, cluster);
    to_local()?;
    let recovery = recovery(cluster, kind, &prefix)?;

    // With a ConfigMap assigned both watches are open; first on trial, then proven.
    cluster.assign(Some(&map))?;
    let (mut rss_kib, mut trial, mut idle) = (0, (0.0, 0.0), (0.0, 0.0));
    if kind == Kind::Supervised {
        std::thread::sleep(Duration::from_secs(20)); // the change's restart is over
        (_, trial) = quiet(&running)?;
        wait_for("the proof", Duration::from_secs(180), || cluster.status()["lastKnownGood"].is_object())?;
        (rss_kib, idle) = quiet(&running)?;
    }
    Ok(Row {
        name,
        active: median(active),
        healthy: median(healthy),
        outage: median(outages),
        starts: [per_change, after_label - after_changes, after_reject - before_reject],
        recovery,
        rss_kib,
        trial,
        idle,
    })
}

/// From the write of the killing configuration to a kubelet that stays up again.
fn recovery(cluster: &Cluster, kind: Kind, prefix: &str) -> Result<Option<Duration>> {
    let map = format!("{prefix}-killing");
    cluster
        .config_map(&map, "enforceNodeAllocatable: [pods, system-reserved]\nsystemReservedCgroup: /no-such-cgroup\n")?;
    let begun = Instant::now();
    cluster.assign(Some(&map))?;
    wait_for("the kubelet to go down", Duration::from_secs(60), || !cluster.healthy())?;
    if kind != Kind::Supervised {
        // It comes back for a tenth of a second at a time: two minutes show that it does not heal.
        let mut streak = Instant::now();
        let healed = wait_for("a healed kubelet", Duration::from_secs(120), || {
            if !cluster.healthy() {
                streak = Instant::now();
            }
            streak.elapsed() > Duration::from_secs(20)
        });
        return Ok(healed.is_ok().then(|| begun.elapsed() - Duration::from_secs(20)));
    }
    wait_for("the rollback", Duration::from_secs(60), || cluster.status().get("error").is_some() && cluster.healthy())?;
    Ok(Some(begun.elapsed()))
}

/// RSS, share of one CPU, API requests an hour.
fn quiet(running: &Babysitter) -> Result<(u64, (f64, f64))> {
    let pid = running.pid.load(Ordering::SeqCst);
    let cpu_ticks = || -> Result<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        Ok(fields.get(11).ok_or("stat")?.parse::<u64>()? + fields.get(12).ok_or("stat")?.parse::<u64>()?)
    };
    let requests = || -> Result<f64> {
        let (_, text) = http(METRICS_PORT, "GET", "/metrics", "", "")?;
        let values = text.lines().filter(|line| line.starts_with("kubelet_supervisor_api_requests_total"));
        Ok(values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    };
    let window = Duration::from_secs(120); // one turn of both watches
    let (ticks, count) = (cpu_ticks()?, requests()?);
    std::thread::sleep(window);
    let per_hour = (requests()? - count) * 3600.0 / window.as_secs_f64();
    #[allow(clippy::cast_precision_loss)]
    let cpu = (cpu_ticks()? - ticks) as f64 / 100.0 / window.as_secs_f64();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("VmRSS")?;
    Ok((rss.trim().trim_end_matches(" kB").parse()?, (cpu, per_hour)))
}

fn print_table(bare: Duration, rows: &[Row]) {
    let seconds = |duration: Duration| {
        format!("{:.2} s ({:.2}x)", duration.as_secs_f64(), duration.as_secs_f64() / bare.as_secs_f64())
    };
    println!("\n| | {} |", rows.iter().map(|row| row.name.as_str()).collect::<Vec<_>>().join(" | "));
    println!("|---|{}", "---|".repeat(rows.len()));
    let line = |name: &str, value: &dyn Fn(&Row) -> String| {
        println!("| {name} | {} |", rows.iter().map(value).collect::<Vec<_>>().join(" | "))
    };
    line("write → active in status (x bare restart)", &|row| seconds(row.active));
    line("write → active and healthz 200", &|row| seconds(row.healthy));
    line("healthz outage per change", &|row| seconds(row.outage));
    line("kubelet starts per valid change", &|row| row.starts[0].to_string());
    line("kubelet starts per label edit", &|row| row.starts[1].to_string());
    line("kubelet starts per rejected payload", &|row| row.starts[2].to_string());
    line("recovery from the killing configuration", &|row| {
        row.recovery.map_or_else(|| "not in 2 minutes".to_owned(), seconds)
    });
    for row in rows.iter().filter(|row| row.rss_kib > 0) {
        println!(
            "\n{}: RSS {:.1} MB; on trial {:.3} % of a CPU and {:.0} API requests an hour; idle {:.3} % and {:.0}",
            row.name,
            row.rss_kib as f64 / 1000.0,
            row.trial.0 * 100.0,
            row.trial.1,
            row.idle.0 * 100.0,
            row.idle.1,
        );
    }
    if let Ok(meta) = std::fs::metadata(SUPERVISOR) {
        println!("binary: {:.2} MiB", meta.len() as f64 / 1_048_576.0);
    }
}
