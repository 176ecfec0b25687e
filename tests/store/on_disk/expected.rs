//! What stands in the files where every field is set.

use std::collections::BTreeMap;
use std::time::Duration;

use kubelet_config::digest::Digest;
use kubelet_config::source::{ConfigAnnotations, ConfigMapRef, Source};
use kubelet_supervisor::machine::evidence::{FailedRun, Failure, Signal};
use kubelet_supervisor::machine::model::{ConfigError, KubeletId};
use kubelet_supervisor::machine::records::{
    Attempt, BadReason, BadVersion, ConfirmationWait, Phase, Pin, Records, Reset, Version,
};

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

pub fn local_files() -> Source {
    let (namespace, name) = ("local".to_owned(), "local-files".to_owned());
    let reference = ConfigMapRef { namespace, name, kubelet_config_key: "kubelet".to_owned() };
    Source { reference, resource_version: "36659e842a8b1d2e".to_owned(), uid: "local-files".to_owned() }
}

pub fn digest(digit: &str) -> Digest {
    Digest(digit.repeat(64))
}

pub fn kubelet(n: u32) -> KubeletId {
    KubeletId(format!("/usr/bin/kubelet:{n}:114000000:1600000000:500000000"))
}

pub fn annotations() -> ConfigAnnotations {
    ConfigAnnotations {
        merge: Some("overlay".to_owned()),
        acknowledge: Some("cgroupDriver".to_owned()),
        confirm_within: Some("15m".to_owned()),
        courtesy: None,
    }
}

/// A version whose content is known.
pub fn version(n: u32, digit: &str) -> Version {
    Version { source: source(n), digest: Some(digest(digit)) }
}

pub fn confirmation_wait() -> ConfirmationWait {
    let boot_id = "0123456789abcdef0123456789abcdef".to_owned();
    ConfirmationWait { boot_id, until: 1800, left: 850, wall: 1_800_001_800 }
}

pub fn attempt() -> Attempt {
    Attempt {
        version: version(2, "a"),
        tries: 2,
        exits: 3,
        breaks: 0,
        baseline: Some(SIGNALS.into()),
        contact_expected: true,
        contact_boot: "0123456789abcdef0123456789abcdef".to_owned(),
        earned: Duration::from_millis(90_250),
        suspended: true,
        progress: None,
        clearances: 3,
        runtime_tested: true,
        failed: FailedRun {
            lived: Duration::from_secs(42),
            unstarted: true,
            in_outage: true,
            lacked_contact: true,
            control_lacked_it: true,
        },
        confirm_within: Some(900),
        extended: None,
        confirmed: true,
        accepts_lost_pods: true,
        pods: ["pod-uid-1".to_owned(), "pod-uid-2".to_owned()].into(),
        runtime: Some("unix:///run/containerd/containerd.sock".to_owned()),
        runtime_answered: true,
        signed: None,
    }
}

pub fn bad_versions() -> Vec<BadVersion> {
    let exited = BadVersion {
        source: source(3),
        digest: Some(digest("c")),
        stood_for: None,
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
        stood_for: None,
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

/// Every field that there is, in this phase.
pub fn records(phase: Phase) -> Records {
    Records {
        assigned: Some(version(2, "a")),
        last_known_good: Some(version(1, "b")),
        phase,
        good_signals: SIGNALS.into(),
        bad: bad_versions().into(),
        accepted: vec![(digest("a"), kubelet(1)), (digest("b"), kubelet(2))],
        proven: vec![version(6, "c"), Version::named(local_files()), version(1, "b")],
        pin: Some(Pin { version: Some(version(1, "b")) }),
        frozen: true,
        reset: Some(Reset {
            failures: 0,
            before: version(6, "c"),
            exits: 1,
            failed: Some("the kubelet ended twice with it".to_owned()),
        }),
        retried: Some("2027-01-15T06:00:00Z".to_owned()),
        sequences: BTreeMap::new(),
        payloads: BTreeMap::new(),
        local_hazards: None,
        started: None,
    }
}
