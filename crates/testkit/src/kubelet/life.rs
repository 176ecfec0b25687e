//! The kubelet's life after validation: start, healthz, READY, and one of several deaths.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{SigSet, Signal};
use serde_json::{Value, json};

use super::config::Effective;
use super::contact;
use super::flags::Flags;
use super::notify;
use super::style::{self, Kubelet, Stage, Style};

/// The `standIn` field of a configuration file. Times are like "500ms" or "2s".
#[derive(Clone, Default)]
pub struct Knobs {
    /// Before validation, also where it only judges.
    pub load_delay: Duration,
    /// Between validation and everything else.
    pub start_delay: Duration,
    /// Stays alive, but gets neither to healthz nor to READY.
    pub never_ready: bool,
    /// Exits with this code instead of opening healthz.
    pub exit_before_ready: Option<i32>,
    /// Dies this long after READY.
    pub exit_after_ready: Option<Duration>,
    /// The code of that death; the version's own if not given.
    pub exit_code: Option<i32>,
    /// "fail": 500. "hang": accepts and never answers.
    pub healthz: Option<String>,
    /// 200 first, and 500 from this long after READY.
    pub fail_healthz_after: Option<Duration>,
    /// Only SIGKILL ends it.
    pub ignore_sigterm: bool,
    /// A first SIGTERM takes this long; a second one meanwhile makes the exit code 1.
    pub stop_delay: Duration,
    /// No more `WATCHDOG=1` from this long after the start (1.36).
    pub watchdog_stops_after: Option<Duration>,
    /// Nothing on stdout.
    pub quiet: bool,
    /// So many lines to stderr at the start, as fast as they go.
    pub flood: u64,
    /// So many stacks on SIGQUIT.
    pub goroutines: u64,
    /// "none": the API server hears nothing of a kubelet that reports to it.
    pub contact: Option<String>,
    /// "hang", "exit0", "nonutf8", "unheard" or "silent": a preflight that goes wrong.
    pub preflight: Option<String>,
}

impl Knobs {
    pub fn read(value: &Value) -> Knobs {
        let time = |key: &str| value[key].as_str().map(duration);
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        let code = |key: &str| value[key].as_i64().and_then(|code| i32::try_from(code).ok());
        let flag = |key: &str| value[key].as_bool().unwrap_or(false);
        Knobs {
            load_delay: time("loadDelay").unwrap_or_default(),
            start_delay: time("startDelay").unwrap_or_default(),
            never_ready: flag("neverReady"),
            exit_before_ready: code("exitBeforeReady"),
            exit_after_ready: time("exitAfterReady"),
            exit_code: code("exitCode"),
            healthz: text("healthz"),
            fail_healthz_after: time("failHealthzAfter"),
            ignore_sigterm: flag("ignoreSigterm"),
            stop_delay: time("stopDelay").unwrap_or_default(),
            watchdog_stops_after: time("watchdogStopsAfter"),
            quiet: flag("quiet"),
            goroutines: value["goroutines"].as_u64().unwrap_or(1),
            flood: value["flood"].as_u64().unwrap_or_default(),
            contact: text("contact"),
            preflight: text("preflight"),
        }
    }
}

/// "500ms", "2s", "1m". A typo in a test should not pass for zero.
fn duration(text: &str) -> Duration {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().unwrap_or_else(|_| panic!("standIn: not a duration: {text:?}"));
    match &text[digits.len()..] {
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        "m" => Duration::from_secs(60 * number),
        _ => panic!("standIn: not a duration: {text:?}"),
    }
}

/// It waits for its lock file.
static WAITING: AtomicBool = AtomicBool::new(false);

/// From here to the end there is nothing left to do but to be alive.
pub fn park() -> ! {
    loop {
        std::thread::park();
    }
}

/// The first SIGTERM or SIGINT ends the process with 0, and at once. Until the real kubelet gets here, the signals'
/// default is in force; the same is true of this one. SIGQUIT is the Go runtime's: all stacks, and exit code 2.
pub fn catch_signals(kubelet: &Kubelet, knobs: &Knobs) {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGQUIT);
    // Before any other thread exists: all of them inherit this, and the one below alone receives the signals.
    signals.thread_block().expect("block signals");
    let kubelet = kubelet.clone();
    let Knobs { ignore_sigterm, stop_delay, goroutines, .. } = *knobs;
    std::thread::spawn(move || {
        let (mut stopping, mut warned) = (false, false);
        loop {
            let signal = signals.wait().expect("sigwait");
            kubelet.note(json!({"event": "signal", "pid": std::process::id(), "signal": signal.as_str()}));
            // One that waits for its lock takes no notice of the first.
            let ignored = WAITING.load(Ordering::SeqCst) && !std::mem::replace(&mut warned, true);
            if ignore_sigterm || ignored && signal != Signal::SIGQUIT {
                continue;
            }
            if signal == Signal::SIGQUIT {
                style::write_raw(b"SIGQUIT: quit\nPC=0x46d6e1 m=0 sigcode=0\n\n");
                for n in 0..goroutines {
                    style::write_raw(stack(n).as_bytes());
                }
                kubelet.exit(2);
            }
            if stopping {
                kubelet.exit(1);
            }
            stopping = true;
            if stop_delay.is_zero() {
                kubelet.exit(0);
            }
            let kubelet = kubelet.clone();
            std::thread::spawn(move || {
                std::thread::sleep(stop_delay);
                kubelet.exit(0)
            });
        }
    });
}

fn stack(n: u64) -> String {
    format!("goroutine {n} [select]:\nstand-in/sync.loop(0xc000123400)\n\t/src/sync.go:{n} +0x8f\n\n")
}

pub fn live(kubelet: Kubelet, config: &Effective, flags: &Flags, knobs: &Knobs, reports: bool) -> ! {
    if !knobs.quiet {
        println!("stand-in kubelet: nothing real runs on this node");
    }
    std::thread::sleep(knobs.start_delay);
    for n in 0..knobs.flood {
        kubelet.info("flood.go:1", &format!("flood line {n}"));
    }
    if let Some(code) = knobs.exit_before_ready {
        let lines = ["server.go:269", "run.go:72"];
        kubelet.die_later(code, lines, "failed to run Kubelet:", "the stand-in was told to exit before READY");
    }
    if kubelet.style == Style::V1_36
        && let Some(text) = config.client_ca_error()
    {
        kubelet.die(Stage::Run, &format!("failed to run Kubelet: {text}"));
    }
    if knobs.never_ready {
        park();
    }

    let since = Instant::now();
    let port = config.number("/healthzPort").unwrap_or(10248);
    if let Ok(port @ 1..) = u16::try_from(port) {
        let address = config.string("/healthzBindAddress").unwrap_or("127.0.0.1").to_owned();
        open_healthz(&kubelet, address, port, Arc::new(knobs.clone()), since);
    }
    if reports && knobs.contact.as_deref() != Some("none") {
        contact::keep(flags);
    }
    kubelet.info("server.go:1148", "Started kubelet");
    // Noted first: whoever acts on READY finds it in the journal.
    kubelet.note(json!({"event": "ready", "pid": std::process::id()}));
    notify::notify("READY=1");
    kubelet.info("fs_resource_analyzer.go:64", "Starting FS ResourceAnalyzer");

    if let Some((scope, path)) = missing_reserved_cgroup(config) {
        // The container manager starts with the first successful look at the runtime. What is said by then is read within 100 ms,
        // and on a busy machine a little later.
        std::thread::sleep(Duration::from_millis(300));
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let parts: Vec<String> = parts.iter().map(|part| format!("{part:?}")).collect();
        let error = format!(
            "Failed to enforce {scope} Reserved Cgroup Limits on {path:?}: [{}] cgroup does not exist",
            parts.join(" ")
        );
        let code = kubelet.style.failure_code();
        kubelet.die_later(code, ["kubelet.go:1384", "kubelet.go:1831"], "Failed to start ContainerManager", &error);
    }
    if let Some(time) = knobs.exit_after_ready {
        std::thread::sleep(time);
        let code = knobs.exit_code.unwrap_or(kubelet.style.failure_code());
        let lines = ["kubelet.go:1384", "kubelet.go:1831"];
        kubelet.die_later(code, lines, "Failed to start ContainerManager", "the stand-in was told to die");
    }
    park()
}

/// Blocks like the real one: a kubelet that waits here shows up in /proc/locks.
pub fn wait_for_lock(kubelet: &Kubelet, path: &str) -> Flock<std::fs::File> {
    WAITING.store(true, Ordering::SeqCst);
    kubelet.info("server.go:495", &format!("acquiring file lock on {path:?}"));
    let file = std::fs::OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path);
    let locked = file
        .map_err(|error| error.to_string())
        .and_then(|file| Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error.to_string()));
    let locked = locked.unwrap_or_else(|error| {
        kubelet.die(Stage::Run, &format!("failed to run Kubelet: unable to acquire file lock on {path:?}: {error}"))
    });
    WAITING.store(false, Ordering::SeqCst);
    locked
}

/// The reserved cgroup that is to be enforced and does not exist, on cgroup v1 or v2.
fn missing_reserved_cgroup(config: &Effective) -> Option<(&'static str, String)> {
    let exists = |path: &str| {
        let path = path.trim_start_matches('/');
        ["", "cpu", "memory"].iter().any(|controller| Path::new("/sys/fs/cgroup").join(controller).join(path).exists())
    };
    [("system-reserved", "System", "/systemReservedCgroup"), ("kube-reserved", "Kube", "/kubeReservedCgroup")]
        .into_iter()
        .filter(|(key, ..)| config.enforces(key))
        .filter_map(|(_, scope, field)| Some((scope, config.string(field)?.to_owned())))
        .find(|(_, path)| !exists(path))
}

/// A busy port does not kill the kubelet: it logs, and tries again every five seconds.
fn open_healthz(kubelet: &Kubelet, address: String, port: u16, knobs: Arc<Knobs>, since: Instant) {
    let open = {
        let kubelet = kubelet.clone();
        move || {
            let opened = TcpListener::bind((address.as_str(), port));
            opened.inspect_err(|error| {
                let text = format!("Starting healthz server failed: listen tcp {address}:{port}: bind: {error}");
                kubelet.log('E', "server.go:793", &text);
            })
        }
    };
    // The first attempt is made before READY, as nearly always with the real one too.
    let first = open();
    std::thread::spawn(move || {
        let listener = first.or_else(|_| {
            loop {
                std::thread::sleep(Duration::from_secs(5));
                if let Ok(listener) = open() {
                    return Ok::<_, std::io::Error>(listener);
                }
            }
        });
        for stream in listener.expect("tried until it worked").incoming().flatten() {
            let knobs = Arc::clone(&knobs);
            std::thread::spawn(move || answer_probe(stream, &knobs, since));
        }
    });
}

fn answer_probe(mut stream: TcpStream, knobs: &Knobs, since: Instant) {
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut buffer) {
            Ok(read @ 1..) => head.extend_from_slice(&buffer[..read]),
            _ => return,
        }
    }
    if knobs.healthz.as_deref() == Some("hang") {
        // Until the prober hangs up.
        let _ = stream.read(&mut buffer);
        return;
    }
    let failing = knobs.healthz.as_deref() == Some("fail")
        || knobs.fail_healthz_after.is_some_and(|time| since.elapsed() >= time);
    let (status, body) = if !head.starts_with(b"GET /healthz") {
        ("404 Not Found", "404 page not found\n")
    } else if failing {
        ("500 Internal Server Error", "[-]ping failed: reason withheld\nhealthz check failed\n")
    } else {
        ("200 OK", "ok")
    };
    let _ = write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
}
