//! What stands in the files where every field is set.

use std::sync::Arc;
use std::time::Duration;

use kubelet_config::digest::Digest;
use kubelet_config::flags::FlagOverrides;
use kubelet_config::rendering::HealthzTarget;
use kubelet_config::source::{ConfigAnnotations, ConfigMapRef, Source};
use kubelet_supervisor::machine::evidence::{Failure, NodeReadiness, Signal};
use kubelet_supervisor::machine::model::{ConfigError, KubeletId, Moment};
use kubelet_supervisor::machine::records::{
    Attempt, BadReason, BadVersion, ConfirmationWait, Phase, Pin, Records, Version,
};
use kubelet_supervisor::machine::{Run, RunningConfig};
use serde_json::json;

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
    NodeReadiness { ready: true, heartbeat: "2027-01-15T08:00:00Z".to_owned(), message, ..NodeReadiness::default() }
}

pub fn annotations() -> ConfigAnnotations {
    ConfigAnnotations {
        merge: Some("overlay".to_owned()),
        acknowledge: Some("cgroupDriver".to_owned()),
        confirm_within: Some("15m".to_owned()),
        courtesy: None, // which that version did not know
    }
}

pub fn named(n: u32) -> Version {
    Version::named(source(n))
}

/// A version whose content is known.
pub fn version(n: u32, digit: &str) -> Version {
    Version { digest: Some(digest(digit)), ..named(n) }
}

pub fn confirmation_wait() -> ConfirmationWait {
    let boot_id = "0123456789abcdef0123456789abcdef".to_owned();
    ConfirmationWait { boot_id, until: 1800, left: 850, wall: 1_800_001_800 }
}

/// All that format 1 could know of an attempt.
pub fn attempt() -> Attempt {
    Attempt {
        tries: 2,
        exits: 3,
        baseline: Some(SIGNALS.into()),
        confirm_within: Some(900),
        confirmed: true,
        pods: ["pod-uid-1".to_owned(), "pod-uid-2".to_owned()].into(),
        runtime: Some(SOCKET.to_owned()),
        runtime_answered: true,
        node: Some(readiness()),
        ..Attempt::new(named(2))
    }
}

/// And all that there is to know since.
pub fn full_attempt() -> Attempt {
    Attempt {
        version: version(2, "a"),
        contact_expected: true,
        contact: true,
        earned: Duration::from_millis(90_250),
        suspended: true,
        clearances: 3,
        accepts_lost_pods: true,
        ..attempt()
    }
}

pub fn bad_versions() -> Vec<BadVersion> {
    let exited = BadVersion {
        source: source(3),
        digest: Some(digest("c")),
        kubelet: kubelet(1),
        error: ConfigError::Load,
        detail: "no such cgroup".to_owned(),
        reason: BadReason::Failed(Failure::ExitBeforeReady),
        time: "2027-01-15T07:00:00Z".to_owned(),
        kubelet_version: "v1.20.2".to_owned(),
        log_tail: vec!["E0115 1".to_owned(), "F0115 2".to_owned()],
        by_policy: false,
    };
    let rejected = BadVersion {
        source: source(4),
        digest: None,
        kubelet: KubeletId::ANY,
        error: ConfigError::Validate,
        detail: "maxPods: must be positive".to_owned(),
        reason: BadReason::Rejected,
        time: String::new(),
        kubelet_version: String::new(),
        log_tail: Vec::new(),
        by_policy: false,
    };
    vec![exited, rejected]
}

/// What format 1 has on record, with native's records.
pub fn full() -> Records {
    Records {
        assigned: Some(named(2)),
        last_known_good: Some(named(1)),
        phase: Phase::Trial(attempt()),
        bad: bad_versions(),
        accepted: vec![(digest("a"), kubelet(1)), (digest("b"), kubelet(2))],
        proven: vec![named(6), Version::named(source_dir()), named(1)],
        pin: Some(Pin { version: Some(named(1)) }),
        frozen: true,
        retried: Some("2027-01-15T06:00:00Z".to_owned()),
        ..Records::default()
    }
}

/// Every field that there is, in this phase.
pub fn full_records(phase: Phase) -> Records {
    Records {
        assigned: Some(version(2, "a")),
        last_known_good: Some(version(1, "b")),
        phase,
        good_signals: SIGNALS.into(),
        proven: vec![version(6, "c"), Version::named(source_dir()), version(1, "b")],
        pin: Some(Pin { version: Some(version(1, "b")) }),
        ..full()
    }
}

pub fn run() -> Run {
    Run {
        pid: 4711,
        started: at(1),
        ready_at: Some(at(2)),
        start_timeout_from: at(3),
        healthy_since: Some(at(4)),
        was_up: true,
        heartbeat: "2027-01-15T07:59:00Z".to_owned(),
        // Format 1 kept two fields of their own for healthz.
        good: SIGNALS.into_iter().zip((11..).map(at)).chain([(Signal::Healthz, at(5))]).collect(),
        bad: SIGNALS.into_iter().zip((21..).map(at)).chain([(Signal::Healthz, at(6))]).collect(),
        was_answered: true,
        ..Run::default()
    }
}

pub fn running_config() -> RunningConfig {
    RunningConfig {
        version: Some(version(2, "a")),
        digest: Some(digest("a")),
        path: String::new(),
        overrides: FlagOverrides::default(),
        healthz: Some(HealthzTarget { host: "127.0.0.1".to_owned(), port: 10248 }),
        shadowed: vec!["maxPods (--max-pods)".to_owned()],
        effective: Arc::new(json!({"maxPods": 42, "evictionHard": {"memory.available": "100Mi"}})),
        ignores_eviction: false,
        runtime: Some(SOCKET.to_owned()),
        signed: None,
    }
}
