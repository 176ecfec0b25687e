//! What stands in the files where every field is set.

use std::sync::Arc;
use std::time::Duration;

use kubelet_config::digest::Digest;
use kubelet_config::rendering::HealthzTarget;
use kubelet_config::source::{ConfigAnnotations, ConfigMapRef, Source};
use kubelet_supervisor::machine::evidence::{Failure, NodeReadiness, Signal};
use kubelet_supervisor::machine::model::{KubeletId, Moment};
use kubelet_supervisor::machine::record::{
    Attempt, BadVersion, ConfirmationWait, ControlTest, LocalState, Pin, RetryLater, TrialSnapshot,
};
use kubelet_supervisor::machine::{Run, RunningConfig};
use serde_json::json;

pub const LOAD: &str = "failed to load config, see Kubelet log for details";
pub const VALIDATE: &str = "failed to validate config, see Kubelet log for details";
pub const SOCKET: &str = "unix:///run/containerd/containerd.sock";
pub const SIGNALS: [Signal; 7] = [
    Signal::Healthz,
    Signal::Watchdog,
    Signal::NodeReady,
    Signal::Lease,
    Signal::ApiServer,
    Signal::Runtime,
    Signal::Pods,
];

pub fn reference(n: u32) -> ConfigMapRef {
    ConfigMapRef {
        namespace: "kube-system".to_owned(),
        name: format!("pool-{n}"),
        kubelet_config_key: "kubelet".to_owned(),
    }
}

pub fn source(n: u32) -> Source {
    let uid = format!("6a1f0000-0000-4000-8000-{n:012}");
    Source { reference: reference(n), resource_version: format!("{}", 1000 + n), uid }
}

pub fn source_dir() -> Source {
    let (namespace, name) = ("local".to_owned(), "source-dir".to_owned());
    let reference = ConfigMapRef { namespace, name, kubelet_config_key: "kubelet".to_owned() };
    Source { reference, resource_version: "36659e842a8b1d2e".to_owned(), uid: "source-dir".to_owned() }
}

pub fn digest(digit: &str) -> Digest {
    Digest(digit.repeat(64))
}

pub fn kubelet(n: u32) -> KubeletId {
    KubeletId(format!("/usr/bin/kubelet:{n}:114000000:1600000000:500000000"))
}

pub fn at(n: u64) -> Moment {
    Moment { boot: Duration::new(n, 500_000_000), wall_nanos: (1_800_000_000 + n) * 1_000_000_000 }
}

pub fn readiness() -> NodeReadiness {
    let message = "KubeletReady: kubelet is posting ready status".to_owned();
    NodeReadiness { ready: true, heartbeat: "2027-01-15T08:00:00Z".to_owned(), message }
}

pub fn annotations() -> ConfigAnnotations {
    ConfigAnnotations {
        merge: Some("overlay".to_owned()),
        acknowledge: Some("cgroupDriver".to_owned()),
        confirm_within: Some("15m".to_owned()),
    }
}

pub fn attempt() -> Attempt {
    let boot_id = "0123456789abcdef0123456789abcdef".to_owned();
    Attempt {
        source: source(2),
        tries: 2,
        baseline: Some(SIGNALS.into()),
        confirm_within: Some(900),
        confirm: Some(ConfirmationWait { boot_id, until: 1800, left: 850, wall: 1_800_001_800 }),
        confirmed: true,
        adopted: true,
        snapshot: Some(TrialSnapshot {
            exits: 3,
            pods: ["pod-uid-1".to_owned(), "pod-uid-2".to_owned()].into(),
            runtime: Some(SOCKET.to_owned()),
            runtime_answered: true,
            node: Some(readiness()),
            lease: Some("2027-01-15T08:00:01.000000Z".to_owned()),
        }),
    }
}

pub fn bad_versions() -> Vec<BadVersion> {
    let exited = BadVersion {
        source: source(3),
        digest: Some(digest("c")),
        kubelet: kubelet(1),
        error: LOAD.to_owned(),
        detail: "no such cgroup".to_owned(),
        reason: "exit-before-ready".to_owned(),
        time: "2027-01-15T07:00:00Z".to_owned(),
        version: "v1.20.2".to_owned(),
        log_tail: vec!["E0115 1".to_owned(), "F0115 2".to_owned()],
    };
    let rejected = BadVersion {
        source: source(4),
        digest: None,
        kubelet: KubeletId::ANY,
        error: VALIDATE.to_owned(),
        detail: "maxPods: must be positive".to_owned(),
        reason: "rejected".to_owned(),
        time: String::new(),
        version: String::new(),
        log_tail: Vec::new(),
    };
    vec![exited, rejected]
}

pub fn full() -> LocalState {
    let baseline = Some([Signal::Healthz, Signal::Lease].into());
    LocalState {
        version: 1,
        attempt: Some(attempt()),
        bad: bad_versions(),
        accepted_digests: vec![(digest("a"), kubelet(1)), (digest("b"), kubelet(2))],
        control_test: Some(ControlTest { source: source(3), failure: Failure::Exits, baseline }),
        retry_later: Some(RetryLater { source: source(5), times: 2, why: "last known good failed alike".to_owned() }),
        pin: Some(Pin { source: Some(source(1)) }),
        frozen: true,
        proven: vec![source(6), source_dir(), source(1)],
        retried: Some("2027-01-15T06:00:00Z".to_owned()),
    }
}

pub fn run() -> Run {
    Run {
        pid: 4711,
        started: at(1),
        ready: true,
        ready_at: Some(at(2)),
        start_timeout_from: at(3),
        healthy_since: Some(at(4)),
        answered: Some(at(5)),
        was_up: true,
        failing_since: Some(at(6)),
        probe_at: Some(at(7)),
        environment_at: Some(at(8)),
        lease_at: Some(at(9)),
        pods_at: Some(at(10)),
        heartbeat: "2027-01-15T07:59:00Z".to_owned(),
        lease: Some("2027-01-15T07:59:01.000000Z".to_owned()),
        good: SIGNALS.into_iter().zip((11..).map(at)).collect(),
        bad: SIGNALS.into_iter().zip((21..).map(at)).collect(),
        switched: true,
        was_answered: true,
    }
}

pub fn running_config() -> RunningConfig {
    RunningConfig {
        source: Some(source(2)),
        digest: Some(digest("a")),
        healthz: Some(HealthzTarget { host: "127.0.0.1".to_owned(), port: 10248 }),
        shadowed: vec!["maxPods (--max-pods)".to_owned()],
        effective: Arc::new(json!({"maxPods": 42, "evictionHard": {"memory.available": "100Mi"}})),
        annotations: annotations(),
        runtime: Some(SOCKET.to_owned()),
    }
}
