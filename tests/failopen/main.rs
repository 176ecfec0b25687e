//! Law 1 to the end: a panic in any call to any port leaves the node with a running kubelet.
//!
//! The real loop, in this process, with the real kubelet adapter, store and stand-in kubelet, tells one story: boot,
//! a change that is proven, one that is rolled back, a stubborn kubelet, the end. It is told once for every call to a
//! port; that call panics. Then the kubelet must run, or be started, and SIGTERM must end it all.
#![cfg(test)]

mod ports;
mod store_thread;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command as Process, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kubelet_config::assignment::Assignment;
use kubelet_config::flags::KubeletArgs;
use kubelet_config::source::{ConfigMapRef, Merge, Payload};
use kubelet_config::status::{NodeConfigStatus, PreflightAnswer};
use kubelet_supervisor::adapters::clock::BootClock;
use kubelet_supervisor::adapters::fsx::RealDisk;
use kubelet_supervisor::adapters::kubelet_process::{KubeletProcess, ReadySignal, RunCommand};
use kubelet_supervisor::adapters::local_files::LocalFiles;
use kubelet_supervisor::adapters::notify_socket::NotifySocket;
use kubelet_supervisor::adapters::policy::PolicyFile;
use kubelet_supervisor::adapters::process::ChildPid;
use kubelet_supervisor::adapters::store::FsStore;
use kubelet_supervisor::adapters::store_thread::StoreThread;
use kubelet_supervisor::daemon::Signals;
use kubelet_supervisor::daemon::exec::Executor;
use kubelet_supervisor::daemon::failopen::{KubeletControl, run_guarded};
use kubelet_supervisor::daemon::store_worker::StoreWorker;
use kubelet_supervisor::machine::command::Command;
use kubelet_supervisor::machine::{Input, Settings, State};
use kubelet_supervisor::ports::{Local, LocalError};
use nix::sys::signal::{Signal, kill, raise};
use nix::unistd::Pid;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use ports::{Fault, Faulty, METHODS, World};
use testkit::kubelet::{Installed, Style, install};
use testkit::port::Port;

/// Nothing waits for its end unless the test fails.
const SOON: Duration = Duration::from_secs(20);

struct SupervisedKubelet(ChildPid);

impl KubeletControl for SupervisedKubelet {
    fn is_alive(&self) -> bool {
        self.0.get().is_some()
    }
    fn is_stopping(&self) -> bool {
        self.0.is_stopping()
    }
    fn signal(&self, signal: Signal) {
        self.0.signal(signal);
    }
    fn ready(&self) {}
    fn ping_watchdog(&self) {}
    fn status(&self, text: &str) {
        assert!(text.starts_with("internal error: fault: "), "{text}");
    }
}

fn payload(name: &str, stand_in: &str) -> Payload {
    let text = format!(
        "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nstandIn: {{quiet: true, {stand_in}}}\n"
    );
    Payload {
        namespace: "kube-system".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-of-{name}"),
        resource_version: "1".to_owned(),
        data: BTreeMap::from([("kubelet".to_owned(), text)]),
        binary_keys: [].into(),
        annotations: kubelet_config::source::ConfigAnnotations::default(),
    }
}

/// Waits for what the supervisor shows.
async fn until(world: &World, what: &str, good: impl Fn(&NodeConfigStatus) -> bool) {
    until_within(SOON, world, what, good).await;
}

async fn until_within(limit: Duration, world: &World, what: &str, good: impl Fn(&NodeConfigStatus) -> bool) {
    let wait = async {
        while !(world.ready.get() && good(&world.status.borrow())) {
            world.news.notified().await;
        }
    };
    let waited = tokio::time::timeout(limit, wait).await;
    assert!(waited.is_ok(), "not in time: {what}: {:?}", world.status.borrow());
}

fn assign(world: &World, payload: Payload) {
    let reference = ConfigMapRef {
        namespace: payload.namespace.clone(),
        name: payload.name.clone(),
        kubelet_config_key: "kubelet".to_owned(),
    };
    let _ = world.inputs.send(Input::Node(Assignment::Map(reference)));
    let _ = world.inputs.send(Input::ConfigMap(Arc::new(payload)));
}

/// To this thread, so that it has arrived on return: one sent to the process may be taken by the harness's thread, a
/// moment later, and then ends the next story.
fn terminate() {
    raise(Signal::SIGTERM).unwrap();
}

fn is(source: Option<&kubelet_config::source::Source>, name: &str) -> bool {
    source.is_some_and(|source| source.reference.name == name)
}

/// Everything up to the first SIGTERM.
async fn story(world: &World) {
    until(world, "boot", |_| true).await;
    let _ = world.inputs.send(Input::Operator(1, Command::Retry));
    assign(world, payload("good", "startDelay: 1ms"));
    until(world, "a change", |status| is(status.active.as_ref(), "good")).await;
    until(world, "its proof", |status| is(status.last_known_good.as_ref(), "good")).await;
    let request = Some("kube-system/good/kubelet".to_owned());
    let _ = world.inputs.send(Input::PreflightRequested { request, answer: None });
    until(world, "an answer", |status| matches!(status.preflight, PreflightAnswer::Said(_))).await;
    assign(world, payload("dies", "exitBeforeReady: 255"));
    until(world, "a rollback", |status| status.error.is_some() && is(status.active.as_ref(), "good")).await;
    assign(world, payload("stubborn", "ignoreSigterm: true"));
    until(world, "a stubborn one", |status| is(status.active.as_ref(), "stubborn")).await;
    tokio::time::timeout(SOON, called(world, "store.verify")).await.expect("the store is verified");
}

async fn called(world: &World, method: &str) {
    while !world.called.borrow().contains(&method) {
        world.news.notified().await;
    }
}

async fn fault(world: &World) {
    while world.fired.get().is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// After the fault: there is a kubelet, and it is not about to go.
async fn kubelet_runs(pid: &ChildPid, context: &str) {
    let wait = async {
        while pid.get().is_none_or(|pid| kill(Pid::from_raw(pid), None).is_err()) || pid.is_stopping() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(tokio::time::timeout(SOON, wait).await.is_ok(), "no kubelet after {context}");
}

fn arguments(dir: &Path, port: &Port) -> KubeletArgs {
    let local = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nstandIn: {quiet: true}\n";
    std::fs::write(dir.join("local.yaml"), local).unwrap();
    let at = |name: &str| dir.join(name).display().to_string();
    KubeletArgs::parse(&[
        format!("--config={}", at("local.yaml")),
        format!("--kubeconfig={}", at("kubeconfig")),
        format!("--healthz-port={}", port.number()),
        format!("--cert-dir={}", at("pki")),
        format!("--root-dir={}", at("root")),
    ])
}

fn kubelet_process(
    kubelet: &Installed,
    args: &KubeletArgs,
    notify_socket: String,
    pid: &ChildPid,
    inputs: UnboundedSender<Input>,
) -> KubeletProcess {
    KubeletProcess {
        run: RunCommand {
            program: kubelet.path.clone(),
            args: args.clone(),
            ready: ReadySignal::Socket(notify_socket),
            watchdog: Duration::from_secs(30),
        },
        standby: None,
        pid: pid.clone(),
        inputs,
        relays: Vec::new(),
    }
}

fn settings() -> Settings {
    Settings { trial_duration: Duration::from_millis(50), ..Settings::default() }
}

fn local_files(kubelet: &Installed, args: &KubeletArgs) -> LocalFiles {
    LocalFiles {
        program: kubelet.path.clone(),
        args: args.clone(),
        merge: Merge::Replace,
        policy: PolicyFile::default(),
        followed: false,
    }
}

fn worker<L: Local>(dir: &Path, local: L, args: &KubeletArgs) -> StoreWorker<RealDisk, L> {
    StoreWorker::new(FsStore::new(RealDisk, &dir.join("dynamic")), local, args.clone())
}

/// A supervisor that boots in a new store, and what is around it.
struct Booting {
    world: Rc<World>,
    pid: ChildPid,
    queue: UnboundedReceiver<Input>,
    signals: Signals,
    executor: Executor<Faulty>,
}

impl Booting {
    fn new(dir: &Path, kubelet: &Installed, port: &Port, settings: Settings, fault_at: Fault) -> Self {
        let _ = std::fs::remove_dir_all(dir.join("dynamic"));
        let args = arguments(dir, port);
        let (inputs, queue) = unbounded_channel();
        let pid = ChildPid::default();
        let socket = NotifySocket::bind().unwrap();
        let process = kubelet_process(kubelet, &args, socket.name.clone(), &pid, inputs.clone());
        tokio::spawn(socket.listen(pid.clone(), inputs.clone()));
        let signals = Signals::register().unwrap();
        let world = World::new(fault_at, inputs);
        let store = worker(dir, local_files(kubelet, &args), &args);
        let executor = Executor::new(State::new(settings), Faulty::new(&world, Box::new(store), process));
        Self { world, pid, queue, signals, executor }
    }

    async fn run(mut self) -> u8 {
        let line = SupervisedKubelet(self.pid);
        run_guarded(&mut self.executor, &mut self.queue, &self.signals, &BootClock, &line).await
    }
}

/// Tells the story once. Gives the world as it was left.
fn tell(dir: &Path, kubelet: &Installed, port: &Port, fault_at: Fault) -> Rc<World> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (world, pids) = runtime.block_on(async {
        let booting = Booting::new(dir, kubelet, port, settings(), fault_at);
        let (world, pid) = (booting.world.clone(), booting.pid.clone());
        let supervisor = Box::pin(booting.run());
        let mut pids = Vec::new();
        let script = async {
            tokio::select! {
                () = story(&world) => {}
                () = fault(&world) => {
                    kubelet_runs(&pid, &format!("{fault_at:?} {:?}", world.fired.get())).await;
                }
            }
            pids.extend(pid.get());
            terminate();
            // The first may take its time; the second ends all.
            tokio::select! {
                () = called(&world, "kubelet.kill") => {}
                () = async {
                    if world.fired.get().is_none() {
                        called(&world, "kubelet.stop").await;
                        // A fault from here on hits the leaving one.
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    loop {
                        terminate();
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                } => {}
            }
            std::future::pending::<()>().await;
        };
        let ended = tokio::time::timeout(2 * SOON, async {
            tokio::select! { code = supervisor => code, () = script => unreachable!() }
        });
        let code = ended.await.unwrap_or_else(|_| panic!("no end after {fault_at:?} {:?}", world.fired.get()));
        assert_eq!(code, 1, "a panic and a second SIGTERM are failures: {fault_at:?} {:?}", world.fired.get());
        (world, pids)
    });
    drop(runtime);
    for pid in pids {
        let stat = format!("/proc/{pid}/stat");
        let begun = std::time::Instant::now();
        let is_gone =
            || std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z") || stat.contains(") X"));
        while !is_gone() {
            assert!(begun.elapsed() < SOON, "the kubelet outlives its supervisor: {fault_at:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    world
}

/// The kubelet hangs, and a call that comes of that panics: it runs on as it is, or another is started.
fn hangs(dir: &Path, kubelet: &Installed, port: &Port, method: &'static str, after: bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let settings = Settings { hung_after: Duration::from_millis(1), ..settings() };
        let fault_at = Fault { method: Some(method), after, ..Fault::default() };
        let booting = Booting::new(dir, kubelet, port, settings, fault_at);
        let (world, pid) = (booting.world.clone(), booting.pid.clone());
        let supervisor = Box::pin(booting.run());
        let script = async {
            until(&world, "boot", |_| true).await;
            tokio::time::timeout(SOON, called(&world, "probe.probe")).await.expect("it is looked at");
            world.healthz.set(false);
            tokio::time::timeout(SOON, fault(&world)).await.expect("it hangs");
            kubelet_runs(&pid, "a hang").await;
            loop {
                terminate();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let ended = tokio::time::timeout(2 * SOON, async {
            tokio::select! { _ = supervisor => (), () = script => unreachable!() }
        });
        assert!(ended.await.is_ok(), "no end after a hang");
        println!("{HIT}{}", world.fired.get().unwrap_or_default());
    });
}

/// Fault points are dealt out to so many processes, each of which has signals of its own. They mostly wait.
const PARTS: usize = 6;
/// Tells such a process which part is its.
const PART: &str = "FAILOPEN_PART";

#[test]
fn a_panic_anywhere_leaves_a_kubelet() {
    if let Ok(part) = std::env::var(PART) {
        return one_part(part.parse().unwrap());
    }
    let this = std::env::current_exe().unwrap();
    let args = ["--exact", "a_panic_anywhere_leaves_a_kubelet", "--nocapture"];
    let begin = |part: usize| {
        let mut command = Process::new(&this);
        command.args(args).env(PART, part.to_string()).stdin(Stdio::null()).stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    let children: Vec<_> = (0..PARTS).map(begin).collect();
    let mut hits: BTreeMap<String, u32> = BTreeMap::new();
    for child in children {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}");
        for method in text.lines().filter_map(|line| line.strip_prefix(HIT)) {
            *hits.entry(method.to_owned()).or_default() += 1;
        }
    }
    println!("{} fault points; by method: {hits:?}", hits.values().sum::<u32>());
    for method in METHODS {
        assert!(hits.contains_key(method), "{method} was never hit");
    }
}

/// Begins the line that names the method of a fault point.
const HIT: &str = "panicked in ";

fn one_part(number: usize) {
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let kubelet = install(&Installed::built(), dir.path(), Style::V1_20);
    let port = Port::free();
    // What some hundred kubelets and panics say is of no interest.
    let mut sink = std::fs::File::create(dir.path().join("stderr")).unwrap();
    nix::unistd::dup2_stderr(&sink).unwrap();
    std::panic::set_hook(Box::new(|info| {
        if !info.to_string().contains("fault: ") {
            println!("{info}");
        }
    }));

    println!();
    let mut tell = |at, after, starts| {
        std::io::Seek::rewind(&mut sink).unwrap();
        let world = tell(dir.path(), &kubelet, &port, Fault { at, after, starts, method: None });
        let fired = world.fired.get();
        if let Some(method) = fired {
            println!("{HIT}{method}");
        }
        (fired, world.called.borrow().clone())
    };
    let (_, calls) = tell(0, false, 0);
    let starts: Vec<u32> =
        (1_u32..).zip(&calls).filter(|(_, method)| method.starts_with("kubelet.")).map(|(n, _)| n).collect();
    // The story is not the same to the call each time: a few misses are needed to know its end.
    let mut misses = 0;
    for at in (1..).skip(number).step_by(PARTS) {
        misses = if tell(at, false, 0).0.is_none() { misses + 1 } else { 0 };
        if misses == 3 {
            break;
        }
    }
    // The process has changed before the panic.
    for at in starts.iter().skip(number).step_by(PARTS) {
        tell(*at, true, 0);
    }
    if number == 0 {
        // The first start of `keep_kubelet` panics as well, and it tries again.
        assert_eq!(tell(starts[0], false, 1).0, Some("kubelet.start"));
    }
    let of_a_hang = [("kubelet.dump_stacks", false), ("kubelet.dump_stacks", true), ("store.probe_disk", false)];
    if let Some((method, after)) = of_a_hang.get(number) {
        hangs(dir.path(), &kubelet, &port, method, *after);
    }
}
