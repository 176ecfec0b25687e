//! A panic on the store's thread: one answer never comes. The kubelet is started or runs on, what waited for the answer
//! gives it up at its deadline, and the next change is taken up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use super::*;
use crate::ports::method;
use kubelet_config::rendering::DropIn;
use kubelet_supervisor::machine::model::KubeletId;

/// What panics, the first time it is asked for.
const CALLS: [&str; 9] = [
    "store.read_records",
    "store.load",
    "store.record",
    "store.save",
    "store.swap_state_files",
    "store.append",
    "local.config",
    "local.drop_ins",
    "local.kubelet_id",
];

/// Tells such a process which call is its.
const CALL: &str = "FAILOPEN_CALL";

#[derive(Clone)]
struct FirstCall {
    of: String,
    made: Arc<AtomicBool>,
}

impl FirstCall {
    fn check(&self, method: &str) {
        assert!(method != self.of || self.made.swap(true, SeqCst), "fault: {method}");
    }
}

/// The local files, read on the store's thread.
struct FaultyFiles(LocalFiles, FirstCall);

impl Local for FaultyFiles {
    fn config(&self) -> Result<Option<(String, String)>, LocalError> {
        self.1.check("local.config");
        self.0.config()
    }
    fn drop_ins(&self) -> Result<Vec<DropIn>, LocalError> {
        self.1.check("local.drop_ins");
        self.0.drop_ins()
    }
    fn kubelet_id(&self) -> KubeletId {
        self.1.check("local.kubelet_id");
        self.0.kubelet_id()
    }
    fn default_merge(&self) -> Merge {
        self.0.default_merge()
    }
}

#[test]
fn a_panic_on_the_stores_thread_costs_one_answer() {
    if let Ok(call) = std::env::var(CALL) {
        return one_call(&call);
    }
    let this = std::env::current_exe().unwrap();
    let args = ["--exact", "store_thread::a_panic_on_the_stores_thread_costs_one_answer", "--nocapture"];
    let begin = |call: &str| {
        let mut command = Process::new(&this);
        command.args(args).env(CALL, call).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let children: Vec<_> = CALLS.iter().map(|call| (call, begin(call))).collect();
    for (call, child) in children {
        let output = child.wait_with_output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{call}: {}", String::from_utf8_lossy(&text));
    }
}

fn one_call(call: &str) {
    let dir = tempfile::tempdir().unwrap();
    let kubelet = install(&Installed::built(), dir.path(), Style::V1_20);
    let port = Port::free();
    let args = arguments(dir.path(), &port);
    let first = FirstCall { of: call.to_owned(), made: Arc::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (inputs, mut queue) = unbounded_channel();
        let pid = ChildPid::default();
        let socket = NotifySocket::bind().unwrap();
        let process = kubelet_process(&kubelet, &args, socket.name.clone(), &pid, inputs.clone());
        tokio::spawn(socket.listen(pid.clone(), inputs.clone()));
        let signals = Signals::register().unwrap();
        let world = World::new(Fault::default(), inputs.clone());
        let files = FaultyFiles(local_files(&kubelet, &args), first.clone());
        let mut worker = worker(dir.path(), files, &args);
        let called = first.clone();
        let serve = move |request| {
            called.check(method(&request));
            worker.serve(request)
        };
        let ports = Faulty::new(&world, Box::new(StoreThread::start(serve, inputs).unwrap()), process);
        let mut executor = Executor::new(State::new(settings()), ports);
        let line = SupervisedKubelet(pid.clone());
        let supervisor = run_guarded(&mut executor, &mut queue, &signals, &BootClock, &line);
        let script = async {
            until(&world, "boot", |_| true).await;
            let before = pid.get();
            assert!(before.is_some());
            assign(&world, payload("good", "startDelay: 1ms"));
            let good = |status: &NodeConfigStatus| is(status.last_known_good.as_ref(), "good");
            // What gives up in half a minute must not be waited for with less.
            until_within(5 * SOON, &world, "a change", good).await;
            assert!(first.made.load(SeqCst), "{call} was never asked for");
            let starts = world.called.borrow().iter().filter(|method| **method == "kubelet.start").count();
            assert_eq!(starts, 2, "one for the boot, one for the change");
            terminate();
            std::future::pending::<()>().await;
        };
        let ended = tokio::time::timeout(10 * SOON, async {
            tokio::select! { code = supervisor => code, () = script => unreachable!() }
        });
        assert_eq!(ended.await.expect("an end"), 0, "a clean stop");
        assert_eq!(pid.get(), None, "the kubelet ended first");
    });
}
