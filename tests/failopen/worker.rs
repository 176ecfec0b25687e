//! The other two processes of a world: the real monitor, and a worker with the real kubelet, store and loop, whose other ports play
//! along. A chosen call of the first worker ends it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kubelet_config::assignment::Assignment;
use kubelet_config::flags::{ConfigDir, KubeletArgs};
use kubelet_config::source::{ConfigAnnotations, ConfigMapRef, Merge, Payload};
use kubelet_supervisor::adapters::clock::BootClock;
use kubelet_supervisor::adapters::fsx::RealDisk;
use kubelet_supervisor::adapters::kubelet_process::{KubeletProcess, MonitorLink};
use kubelet_supervisor::adapters::local_files::LocalFiles;
use kubelet_supervisor::adapters::policy::PolicyFile;
use kubelet_supervisor::adapters::store::FsStore;
use kubelet_supervisor::adapters::store_thread::StoreThread;
use kubelet_supervisor::daemon;
use kubelet_supervisor::daemon::exec::Executor;
use kubelet_supervisor::daemon::store_worker::StoreWorker;
use kubelet_supervisor::machine::command::Command;
use kubelet_supervisor::machine::{Input, Settings, State};
use kubelet_supervisor::monitor;
use kubelet_supervisor::monitor::wire::{Request, Status};
use kubelet_supervisor::ports::KubeletVersion;
use nix::sys::signal::{Signal, raise};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::ports::{Faulty, method};

/// How a call ends its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    Panic,
    Abort,
    Kill,
    /// By SIGSTOP: it is silent.
    Stop,
    /// The call never comes back.
    Loop,
}

/// Which call of the first worker ends it, and how.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fault {
    pub method: String,
    /// Counted from 1.
    pub call: u32,
    /// Once the call has done its work, not before.
    pub after: bool,
    pub end: End,
}

/// What the processes of a world know of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    pub dir: PathBuf,
    pub healthz: u16,
    pub fault: Option<Fault>,
    /// A kubelet without healthz hangs at once.
    pub hung: bool,
    /// The worker says anything to the monitor, by this seed.
    pub hostile: Option<u64>,
}

impl Spec {
    pub fn args(&self) -> KubeletArgs {
        let at = |name: &str| self.dir.join(name).display().to_string();
        KubeletArgs::parse(&[
            format!("--config={}", at("local.yaml")),
            format!("--kubeconfig={}", at("kubeconfig")),
            format!("--healthz-port={}", self.healthz),
            format!("--cert-dir={}", at("pki")),
            format!("--root-dir={}", at("root")),
        ])
    }

    fn settings(&self) -> Settings {
        let hung_after = if self.hung { Duration::from_millis(1) } else { Duration::ZERO };
        Settings { trial_duration: Duration::from_millis(50), hung_after, ..Settings::default() }
    }
}

pub fn payload(name: &str) -> Payload {
    let stand_in = match name {
        "dies" => "exitBeforeReady: 255",
        "stubborn" => "ignoreSigterm: true",
        _ => "startDelay: 1ms, stopDelay: 30ms",
    };
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
        annotations: ConfigAnnotations::default(),
    }
}

/// Counts calls, tells the story of each, and ends the worker at the one that is chosen.
pub struct Gate {
    fault: Option<Fault>,
    calls: Mutex<BTreeMap<String, u32>>,
    story: Mutex<UnixStream>,
}

impl Gate {
    pub fn tell(&self, line: &str) {
        self.story.lock().unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    pub fn call<T>(&self, method: &str, work: impl FnOnce() -> T) -> T {
        let call = *self.calls.lock().unwrap().entry(method.to_owned()).and_modify(|calls| *calls += 1).or_insert(1);
        self.tell(&format!("call {method}"));
        let due = self.fault.as_ref().filter(|fault| fault.method == method && fault.call == call);
        if let Some(fault) = due.filter(|fault| !fault.after) {
            self.end(fault.end);
        }
        let result = work();
        if let Some(fault) = due.filter(|fault| fault.after) {
            self.end(fault.end);
        }
        result
    }

    fn end(&self, end: End) {
        self.tell("fault");
        match end {
            End::Panic => panic!("fault"),
            End::Abort => std::process::abort(),
            End::Kill => raise(Signal::SIGKILL).unwrap(),
            End::Stop => raise(Signal::SIGSTOP).unwrap(),
            End::Loop => loop {
                std::thread::sleep(Duration::from_secs(1));
            },
        }
    }
}

pub fn monitor(spec: &Spec, text: OsString) -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let command = monitor::Command {
        program: spec.dir.join("kubelet"),
        args: spec.args().for_run(None, &ConfigDir::Unit),
        worker: std::env::current_exe().unwrap(),
        worker_args: vec!["worker".into(), text],
        last_known_good: |_| None,
    };
    ExitCode::from(monitor::run(command).unwrap())
}

pub fn worker(spec: &Spec) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let work = async {
        let link = MonitorLink::take_up().unwrap();
        let status = link.until(|status| status.turn || status.leaving || status.retire).await.unwrap();
        match spec.hostile {
            _ if !status.turn => {}
            Some(seed) => say_anything(spec, &link, seed + status.generation).await,
            None => Box::pin(work(spec, link, status)).await,
        }
    };
    runtime.block_on(work);
    ExitCode::SUCCESS
}

async fn work(spec: &Spec, link: MonitorLink, status: Status) {
    let (inputs, mut queue) = unbounded_channel();
    let wanted = UnixStream::connect(spec.dir.join("story")).unwrap();
    let heard = wanted.try_clone().unwrap();
    let fault = spec.fault.clone().filter(|_| status.generation == 1);
    let gate = Arc::new(Gate { fault, calls: Mutex::default(), story: Mutex::new(wanted) });
    let args = spec.args();
    let local = LocalFiles {
        program: spec.dir.join("kubelet"),
        args: args.clone(),
        merge: Merge::Replace,
        policy: PolicyFile::default(),
        followed: false,
        version: KubeletVersion::default(),
    };
    let mut store = StoreWorker::new(FsStore::new(RealDisk::default(), &spec.dir.join("dynamic")), local, args.clone());
    let disk = gate.clone();
    let serve = move |request| disk.call(&method("disk", &request), || store.serve(request));
    let store = StoreThread::start(serve, inputs.clone()).unwrap();
    let kubelet = KubeletProcess::start(link.clone(), args, None, inputs.clone(), &link.status());
    let healthz = Arc::new(AtomicBool::new(true));
    let (heard_inputs, heard_healthz) = (inputs.clone(), healthz.clone());
    std::thread::spawn(move || hear(heard, &heard_inputs, &heard_healthz));
    let ports = Faulty { gate, store, kubelet, link, inputs, healthz, ready: false };
    let mut executor = Executor::new(State::new(spec.settings()), ports);
    daemon::run(&mut executor, &mut queue, &BootClock, status.beginning()).await;
}

/// What the story wants.
fn hear(story: UnixStream, inputs: &UnboundedSender<Input>, healthz: &AtomicBool) {
    let send = |input| drop(inputs.send(input)); // the loop may have ended
    for line in BufReader::new(story).lines().map_while(Result::ok) {
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("assign", name) => {
                let reference = ConfigMapRef {
                    namespace: "kube-system".to_owned(),
                    name: name.to_owned(),
                    kubelet_config_key: "kubelet".to_owned(),
                };
                send(Input::Node(Assignment::Map(reference)));
            }
            ("preflight", name) => {
                send(Input::PreflightRequested { request: Some(format!("kube-system/{name}/kubelet")), answer: None });
            }
            ("retry", _) => send(Input::Operator(1, Command::Retry)),
            ("healthz", value) => healthz.store(value == "true", SeqCst),
            _ => panic!("{line}"),
        }
    }
}

/// Starts, standbys and signals as chance has it, and now and then something else.
async fn say_anything(spec: &Spec, link: &MonitorLink, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let args = spec.args().for_run(None, &ConfigDir::Unit);
    for ticket in 0..random.u64(50..1000) {
        let run = link.status().kubelet.map_or(0, |kubelet| kubelet.run) + random.u64(0..8) / 7;
        // Two command lines, so that a standby often is what is started.
        let args = [args.clone(), vec![format!("--v={}", random.u8(2..4))]].concat();
        link.send(&match random.u8(0..20) {
            0..6 => Request::Start { ticket, args },
            6..12 => Request::Park { ticket, args },
            12 => Request::Unpark,
            13 => Request::Stop(run),
            14 | 15 => Request::Dump(run),
            16 => Request::Feed(Duration::MAX),
            17 => Request::Show("x\nREADY=1".repeat(100)),
            18 => Request::Start { ticket, args: vec!["--no-such-flag".to_owned()] },
            _ => Request::Beat,
        });
        tokio::time::sleep(Duration::from_millis(random.u64(0..20))).await;
    }
}
