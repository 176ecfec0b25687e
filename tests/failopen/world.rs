//! A world: a directory with all that a supervisor needs, and what is wanted of it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use testkit::kubelet::{Installed, Style, install};
use testkit::port::Port;
use testkit::rig::is_gone;

use crate::worker::{Fault, Spec};

/// Nothing waits for its end unless the test fails: a worker may be silent for half a minute, and an answer of the store's be given
/// up after another.
const LONG: Duration = Duration::from_secs(150);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Story {
    /// A change that is proven, and one that is rolled back.
    Change,
    /// A change to a kubelet that ignores SIGTERM, and back.
    Stubborn,
    /// The kubelet hangs.
    Hung,
}

/// What came of a story.
#[derive(Debug, Default)]
pub struct Told {
    /// Of the worker that began.
    pub calls: Vec<String>,
    /// By configuration.
    pub starts: Vec<String>,
    pub fired: bool,
}

/// What is wanted, and who is to be told.
#[derive(Default)]
struct Wanted {
    lines: Vec<String>,
    worker: Option<UnixStream>,
    ended: bool,
}

pub struct World {
    dir: tempfile::TempDir,
    _port: Port,
    kubelet: Installed,
    monitor: Child,
    wanted: Arc<Mutex<Wanted>>,
    lines: Receiver<String>,
    fault: Option<Fault>,
    calls: Vec<String>,
    /// Of the workers after it.
    later: Vec<String>,
    last: Option<String>,
    status: String,
    ready: bool,
    fired: bool,
    /// The fault fell where no kubelet was to run on.
    between: bool,
}

fn listen(listener: &UnixListener, wanted: &Mutex<Wanted>, lines: &Sender<String>) {
    for mut worker in listener.incoming().map_while(Result::ok) {
        let mut wants = wanted.lock().unwrap();
        if wants.ended {
            return;
        }
        for line in &wants.lines {
            let _ = writeln!(worker, "{line}");
        }
        wants.worker = worker.try_clone().ok();
        drop(wants);
        BufReader::new(worker).lines().map_while(Result::ok).for_each(|line| {
            let _ = lines.send(line); // the world has ended
        });
    }
}

impl World {
    pub fn begin(story: Story, fault: Option<&Fault>, hostile: Option<u64>) -> World {
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
        let kubelet = install(&Installed::built(), dir.path(), Style::V1_20);
        let port = Port::free();
        let local = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nstandIn: {quiet: true, stopDelay: 30ms}\n";
        std::fs::write(dir.path().join("local.yaml"), local).unwrap();
        let (fault, hung) = (fault.cloned(), story == Story::Hung);
        let spec = Spec { dir: dir.path().to_owned(), healthz: port.number(), fault: fault.clone(), hung, hostile };
        let (listener, wanted) =
            (UnixListener::bind(dir.path().join("story")).unwrap(), Arc::<Mutex<Wanted>>::default());
        let (wants, (sender, lines)) = (wanted.clone(), channel());
        std::thread::spawn(move || listen(&listener, &wants, &sender));
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["monitor", &serde_json::to_string(&spec).unwrap()])
            .env_remove("NOTIFY_SOCKET")
            .env("RUST_BACKTRACE", "0");
        let stderr = std::fs::File::create(dir.path().join("stderr")).unwrap();
        let monitor = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
        World {
            dir,
            _port: port,
            kubelet,
            monitor,
            wanted,
            lines,
            fault,
            calls: Vec::new(),
            later: Vec::new(),
            last: None,
            status: String::new(),
            ready: false,
            fired: false,
            between: false,
        }
    }

    /// Each worker is told, but for what is said once.
    fn say(&self, line: &str) {
        let mut wanted = self.wanted.lock().unwrap();
        let word = line.split(' ').next().unwrap_or_default();
        wanted.lines.retain(|it| !it.starts_with(word));
        if line != "retry" {
            wanted.lines.push(line.to_owned());
        }
        if let Some(worker) = &mut wanted.worker {
            let _ = writeln!(worker, "{line}"); // it may have ended
        }
    }

    fn hear(&mut self, line: &str) {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("call", method) => {
                if method.starts_with("kubelet.") && method != "kubelet.log_tail" {
                    self.last = Some(method.to_owned());
                }
                if self.fired { &mut self.later } else { &mut self.calls }.push(method.to_owned());
            }
            ("status", status) => status.clone_into(&mut self.status),
            ("ready", ready) => self.ready = ready == "true",
            ("fault", _) => {
                (self.fired, self.ready) = (true, false);
                let entries = self.kubelet.entries();
                let last = self.starts().pop().map(|(pid, _)| pid);
                let of_last = |event: &str| entries.iter().any(|it| it["event"] == event && it["pid"].as_u64() == last);
                let runs_on = of_last("ready") && !of_last("signal") && !of_last("exit");
                let is_stopped = self.last.as_deref().is_some_and(|method| method != "kubelet.start");
                let touches = self.fault.as_ref().is_some_and(|fault| fault.method.starts_with("kubelet."));
                self.between = !runs_on || is_stopped || touches;
            }
            _ => panic!("{line}"),
        }
    }

    fn until(&mut self, what: &str, good: impl Fn(&World) -> bool) -> Result<(), String> {
        let end = Instant::now() + LONG;
        while !good(self) {
            // What is not told, as the journal, is looked at now and then.
            match self.lines.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => self.hear(&line),
                Err(_) if Instant::now() < end => {}
                Err(_) => return Err(format!("not in time: {what}: {}; {}", self.status, self.log())),
            }
        }
        Ok(())
    }

    fn shows(&mut self, what: &[&str]) -> Result<(), String> {
        self.until(&format!("{what:?}"), |world| {
            let words: Vec<_> = world.status.split(' ').collect();
            what.iter().all(|word| words.contains(word))
        })
    }

    /// SIGTERM, and what follows.
    pub fn end(&mut self) -> Result<(), String> {
        kill(Pid::from_raw(self.monitor.id().cast_signed()), Signal::SIGTERM).unwrap();
        let end = Instant::now() + LONG;
        let status = loop {
            match self.monitor.try_wait().unwrap() {
                Some(status) => break status,
                None if Instant::now() > end => return Err(format!("no end; {}", self.log())),
                None => {}
            }
            if let Ok(line) = self.lines.recv_timeout(Duration::from_millis(10)) {
                self.hear(&line);
            }
        };
        while let Ok(line) = self.lines.try_recv() {
            self.hear(&line);
        }
        if status.code() != Some(0) {
            return Err(format!("{status}; {}", self.log()));
        }
        let left = self.starts().into_iter().find(|(pid, _)| !is_gone(*pid));
        left.map_or(Ok(()), |(pid, _)| Err(format!("kubelet {pid} outlives its supervisor")))
    }

    /// The kubelets that were started: process, and configuration.
    pub fn starts(&self) -> Vec<(u64, String)> {
        let name = |start: &Value| {
            let knobs = &start["configJson"]["standIn"];
            let names = [("exitBeforeReady", "dies"), ("ignoreSigterm", "stubborn"), ("startDelay", "good")];
            names.iter().find(|(knob, _)| !knobs[knob].is_null()).map_or("local", |(_, name)| name).to_owned()
        };
        self.kubelet.starts().iter().map(|start| (start["pid"].as_u64().unwrap(), name(start))).collect()
    }

    /// A kubelet has ended before the next one starts. One that is killed writes no end: it would have the healthz port.
    pub fn never_two(&self) -> Result<(), String> {
        let entries = self.kubelet.entries();
        let at = |event: &str, pid: &Value| entries.iter().position(|it| it["event"] == event && it["pid"] == *pid);
        let starts = self.kubelet.starts();
        for pair in starts.windows(2) {
            let (Some(start), end) = (entries.iter().position(|it| *it == pair[1]), at("exit", &pair[0]["pid"])) else {
                unreachable!()
            };
            if end.is_some_and(|end| end > start) {
                return Err(format!("two at once: {} and {}", pair[0], pair[1]));
            }
        }
        if self.log().contains("Starting healthz server failed") { Err(self.log()) } else { Ok(()) }
    }

    fn log(&self) -> String {
        let text = std::fs::read(self.dir.path().join("stderr")).unwrap();
        format!("{}\n{:?}", String::from_utf8_lossy(&text), self.kubelet.entries())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.monitor.kill();
        let _ = self.monitor.wait();
        self.wanted.lock().unwrap().ended = true;
        let _ = UnixStream::connect(self.dir.path().join("story")); // so that the listener sees it
    }
}

/// Tells a story with a fault in it. `usual` are the starts without.
pub fn tell(story: Story, fault: Option<&Fault>, usual: &[String]) -> Result<Told, String> {
    let mut world = World::begin(story, fault, None);
    world.until("boot", |world| world.ready)?;
    match story {
        Story::Change => {
            world.say("retry");
            world.say("assign good");
            world.shows(&["active=good", "good=good"])?;
            world.say("preflight good");
            world.shows(&["said=true"])?;
            world.until("the store is verified", |world| {
                world.fired || world.calls.iter().any(|it| it == "disk.Verify")
            })?;
            world.say("assign dies");
            world.shows(&["active=good", "good=good", "failed=true"])?;
        }
        Story::Stubborn => {
            world.say("assign stubborn");
            world.shows(&["active=stubborn", "good=stubborn"])?;
            world.say("assign good");
            world.shows(&["active=good", "good=good"])?;
        }
        Story::Hung => {
            let looks =
                |world: &World| world.calls.iter().chain(&world.later).filter(|it| *it == "probe.probe").count();
            world.until("a look", |world| looks(world) > 0)?;
            world.say("healthz false");
            world.until("a restart", |world| world.fired || world.starts().len() > 1)?;
            // A worker calls no kubelet hung that it has not seen alive.
            world.say("healthz true");
            let before = looks(&world);
            world.until("a look", |world| looks(world) > before + 1 || world.starts().len() > 1)?;
            if world.starts().len() == 1 {
                world.say("healthz false");
                world.until("a restart", |world| world.starts().len() > 1)?;
                world.say("healthz true");
            }
            world.until("it is up", |world| world.ready)?;
        }
    }
    world.until("what runs is ready", |world| world.ready)?;
    world.end()?;
    world.never_two()?;
    let ended = world.kubelet.entries().into_iter().filter(|it| it["event"] == "exit").count();
    let deaf = world.starts().iter().filter(|(_, name)| name == "stubborn").count();
    if ended + deaf != world.starts().len() {
        return Err(format!("one that heeds SIGTERM was killed; {}", world.log()));
    }
    let starts: Vec<String> = world.starts().into_iter().map(|(_, name)| name).collect();
    let (calls, fired) = (std::mem::take(&mut world.calls), world.fired);
    // One more where the fault left no kubelet, beside what the monitor starts by itself if the next worker is late.
    let mut rest = starts.iter();
    let is_usual = usual.iter().all(|name| rest.any(|start| start == name));
    let more = starts.len().saturating_sub(usual.len() + world.log().matches("no worker starts a kubelet").count());
    if fault.is_some() && !(is_usual && more <= usize::from(world.between)) {
        return Err(format!("starts {starts:?}, and without a fault {usual:?}; {}", world.log()));
    }
    Ok(Told { calls, starts, fired })
}
