//! A kubelet that hangs while nobody judges it: its stacks are dumped, and it is restarted as it was.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use testkit::rig::{Rig, SOON, eventually};

/// As many stacks as a pipe does not hold.
const GOROUTINES: usize = 20_000;

/// The kubelet's container runtime: answers whoever opens an HTTP/2 connection, while it is told to.
pub fn runtime(rig: &mut Rig) -> Arc<AtomicBool> {
    let socket = rig.at("runtime.sock");
    rig.args.push("--container-runtime=remote".to_owned());
    rig.args.push(format!("--container-runtime-endpoint=unix://{}", socket.display()));
    let listener = UnixListener::bind(socket).unwrap();
    let answers = Arc::new(AtomicBool::new(true));
    let shared = Arc::clone(&answers);
    let serve = move || {
        for mut stream in listener.incoming().flatten() {
            let mut opening = [0; 24];
            if shared.load(Ordering::SeqCst) && stream.read_exact(&mut opening).is_ok() {
                let _ = stream.write_all(b"\0\0\0\x04\0\0\0\0\0");
            }
        }
    };
    #[allow(clippy::disallowed_methods, reason = "a test's process has no kubelet")]
    std::thread::spawn(serve);
    answers
}

/// A kubelet that fails its healthz soon after it was ready, each time.
fn rig(more: &[&str]) -> (Rig, Arc<AtomicBool>) {
    let mut rig = Rig::new();
    rig.local(&format!("standIn: {{failHealthzAfter: 2s, goroutines: {GOROUTINES}}}"));
    rig.option("--hung-after", "2s");
    rig.options.extend(more.iter().map(|option| (*option).to_owned()));
    let answers = runtime(&mut rig);
    (rig, answers)
}

fn hung(rig: &Rig) -> Value {
    rig.server.wait_event(SOON, |event| event["reason"] == "KubeletHung").unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn its_stacks_are_in_the_log_and_it_is_restarted_as_it_was() {
    let (mut rig, _) = rig(&[]);
    rig.up();
    rig.wait_ready(2);
    let event = hung(&rig);
    assert_eq!((&event["type"], &event["involvedObject"]["kind"]), (&"Warning".into(), &"Node".into()), "{event}");
    let message = event["message"].as_str().unwrap();
    assert!(message.contains("no healthz for") && message.ends_with("the local configuration"), "{message}");
    rig.wait_log(&format!("goroutine {} [select]:", GOROUTINES - 1)); // the event may come before the last line
    let log = rig.log();
    let dump = log.split("SIGQUIT: quit\n").nth(1).expect("a dump");
    let stacks = dump.lines().filter_map(|line| line.strip_prefix("goroutine ")?.strip_suffix(" [select]:"));
    let stacks = stacks.take(GOROUTINES).map(|number| number.parse::<usize>().unwrap());
    assert!(stacks.eq(0..GOROUTINES), "the dump is whole and in order");
    // It is no exit of the kubelet's own, and no failure of what it ran.
    assert!(!log.contains("ended by itself"), "it was asked to");
    assert!(rig.metric("kubelet_supervisor_kubelet_restarts_total{cause=\"hung\"}").is_some_and(|count| count >= 1.0));
    assert_eq!(rig.metric("kubelet_supervisor_kubelet_restarts_total{cause=\"exit\"}"), Some(0.0));
    let starts = rig.kubelet.starts();
    assert_eq!(starts[0]["args"], starts[1]["args"]);
    let status = rig.status();
    assert_eq!(
        (&status["error"], &status["active"], &status["badVersions"]),
        (&"".into(), &Value::Null, &serde_json::json!([]))
    );
    assert!(rig.history().iter().any(|entry| entry["reason"] == "KubeletHung" && entry["warning"] == true));
    rig.stop();
}

#[test]
fn a_runtime_that_does_not_answer_is_not_the_kubelets_fault() {
    let (mut rig, answers) = rig(&[]);
    answers.store(false, Ordering::SeqCst);
    rig.up();
    rig.wait_log("no healthz, and is not restarted: the container runtime does not answer");
    // Somebody looks again and again; each time that takes as long as the first.
    answers.store(true, Ordering::SeqCst);
    hung(&rig);
    rig.wait_ready(2);
    let signals = || rig.kubelet.entries().into_iter().filter(|entry| entry["signal"] == "SIGQUIT").count();
    eventually("one signal for each restart", || (signals() == rig.starts() - 1).then_some(()));
    assert_eq!(rig.log().matches("is not restarted: ").count(), 1, "said once");
    rig.stop();
}
