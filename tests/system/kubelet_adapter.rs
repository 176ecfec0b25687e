//! The kubelet adapter by itself, with a real child: what is heard of it.

use std::time::Duration;

use kubelet_config::flags::KubeletArgs;
use kubelet_supervisor::adapters::kubelet_process::{KubeletProcess, ReadySignal, RunCommand};
use kubelet_supervisor::adapters::notify_socket::NotifySocket;
use kubelet_supervisor::adapters::process::ChildPid;
use kubelet_supervisor::kubelet_log;
use kubelet_supervisor::machine::Input;
use kubelet_supervisor::machine::model::Exit;
use kubelet_supervisor::ports::Kubelet as _;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use testkit::kubelet::{Installed, Style, install};
use testkit::rig::{SOON, configuration};

/// Starts a stand-in with this configuration and gives it to `work`.
fn with<W: Future<Output = ()>>(
    style: Style,
    stand_in: &str,
    work: impl FnOnce(KubeletProcess, UnboundedReceiver<Input>) -> W,
) {
    started(style, stand_in, None, work);
}

/// The same with another sign that it is up than READY=1.
fn started<W: Future<Output = ()>>(
    style: Style,
    stand_in: &str,
    ready: Option<ReadySignal>,
    work: impl FnOnce(KubeletProcess, UnboundedReceiver<Input>) -> W,
) {
    let dir = tempfile::tempdir().unwrap();
    let kubelet = install(&Installed::built(), dir.path(), style);
    let local = dir.path().join("local.yaml");
    std::fs::write(&local, configuration(&format!("healthzPort: 0\nstandIn: {{{stand_in}}}"))).unwrap();
    let args = [format!("--config={}", local.display()), format!("--cert-dir={}", dir.path().join("pki").display())];
    // On this thread alone, which lives as long as the child.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (inputs, queue) = unbounded_channel();
        let pid = ChildPid::default();
        let socket = NotifySocket::bind().unwrap();
        let mut process = KubeletProcess {
            run: RunCommand {
                program: kubelet.path.clone(),
                args: KubeletArgs::parse(&args),
                ready: ready.unwrap_or_else(|| ReadySignal::Socket(socket.name.clone())),
                // The kubelet wants more than a second.
                watchdog: Duration::from_millis(1100),
            },
            standby: None,
            pid: pid.clone(),
            inputs: inputs.clone(),
            relays: Vec::new(),
        };
        tokio::spawn(socket.listen(pid, inputs));
        process.start(None).unwrap();
        tokio::time::timeout(SOON, work(process, queue)).await.expect("in time");
    });
}

#[test]
fn watchdog_pings_are_heard() {
    with(Style::V1_36, "watchdogStopsAfter: 2s", async |mut process, mut queue| {
        let mut heard = Vec::new();
        while heard.iter().filter(|input| **input == Input::Watchdog).count() < 2 {
            heard.extend(queue.recv().await);
        }
        // Two a period, beside READY; and then no more, though it lives.
        while let Ok(input) = tokio::time::timeout(Duration::from_millis(1200), queue.recv()).await {
            heard.extend(input);
        }
        assert_eq!(heard.iter().filter(|input| **input != Input::Watchdog).collect::<Vec<_>>(), [&Input::Ready]);
        process.kill();
        assert_eq!(queue.recv().await, Some(Input::Exited(Exit::Signal(9))));
    });
    with(Style::V1_20, "", async |mut process, mut queue| {
        assert_eq!(queue.recv().await, Some(Input::Ready), "v1.20 does not ping");
        process.stop();
        assert_eq!(queue.recv().await, Some(Input::Exited(Exit::Code(0))));
    });
}

/// Where there is no socket for READY=1, time stands for it; the kubelet knows of none and does not ping.
#[test]
fn without_a_socket_it_counts_as_ready_after_a_time() {
    let after = |time| ReadySignal::RunsFor(Duration::from_millis(time));
    started(Style::V1_36, "", Some(after(300)), async |mut process, mut queue| {
        let pid = process.pid.get().unwrap();
        let environment = std::fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
        assert!(!environment.contains("NOTIFY_SOCKET") && !environment.contains("WATCHDOG_USEC"), "{environment:?}");
        assert_eq!(queue.recv().await, Some(Input::Ready));
        process.stop();
        assert_eq!(queue.recv().await, Some(Input::Exited(Exit::Code(0))));
    });
    started(Style::V1_20, "exitBeforeReady: 3", Some(after(5000)), async |_process, mut queue| {
        assert_eq!(queue.recv().await, Some(Input::Exited(Exit::Code(3))), "one that ends before is never ready");
    });
}

/// v1.20 follows its reason with the stacks of all goroutines; later ones write one line.
#[test]
fn the_last_lines_are_there_with_the_exit() {
    for style in [Style::V1_20, Style::V1_36] {
        with(style, "exitBeforeReady: 3, flood: 100", async |process, mut queue| {
            while queue.recv().await != Some(Input::Exited(Exit::Code(3))) {}
            let reason = kubelet_log::fatal(&process.log_tail()).unwrap();
            let told = "the stand-in was told to exit before READY";
            assert!(reason.starts_with("failed to run Kubelet:") && reason.ends_with(told), "{reason}");
        });
    }
}
