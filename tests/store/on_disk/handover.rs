//! What a supervisor of format 1 hands over to this one.

use std::time::Duration;

use kubelet_config::status::SyncError;
use kubelet_supervisor::machine::records::{Attempt, Phase, Records};
use kubelet_supervisor::machine::{Kubelet, Run};

use super::expected::{attempt, digest, full, kubelet, named, run, running_config, version};
use super::golden::document;

#[test]
fn handover_in_full() {
    let (document, handover) = document("format-1/handover/full.json");
    assert_eq!((document.pid, document.notify, document.lock), (4711, Some(9), Some(10)));
    assert_eq!(document.notify_name, "kubelet-supervisor-1-2");
    assert_eq!(document.relays, [(11, vec!["I0115 one".to_owned(), "E0115 two".to_owned()]), (12, Vec::new())]);
    assert_eq!((document.service.ready, document.service.version), (true, Some("v1.20.2".to_owned())));
    assert_eq!((handover.pid(), handover.records()), (4711, None), "what is on disk is in the old form");

    let state = handover.state().unwrap();
    // The content of what runs is known, and so that of its name.
    let phase = Phase::Trial(Attempt { version: version(2, "a"), ..attempt() });
    assert_eq!(*state.saved(), Records { assigned: Some(version(2, "a")), phase, ..full() });
    let current = state.records();
    assert_eq!((&current.assigned, current.accepted.as_slice()), (&Some(named(8)), &[(digest("a"), kubelet(1))][..]));
    assert!(state.is_unsaved());
    assert_eq!(state.kubelet(), &Kubelet::Running(run()));
    assert_eq!((state.active(), state.running()), (Some(&version(2, "a")), &running_config()));
    assert_eq!((state.kubelet_version(), state.starts(), state.is_ready()), (Some("v1.20.2"), 4, true));
    assert_eq!(state.sync_error(), Some((SyncError::Download, "not found")));
}

#[test]
fn handover_variants() {
    let all_nil = Some((SyncError::AllNil, "all were nil"));
    for (name, sync_error) in [
        ("bare", None),
        ("local", None),
        ("default", None),
        ("invalid", Some((SyncError::Internal, "no room"))),
        ("all-nil", all_nil),
    ] {
        let (document, handover) = document(&format!("format-1/handover/{name}.json"));
        assert_eq!(
            (document.pid, document.notify, document.lock, document.service.ready),
            (4711, None, None, false),
            "{name}"
        );
        let state = handover.state().unwrap();
        assert_eq!((state.saved(), state.sync_error()), (&Records::default(), sync_error), "{name}");
        assert_eq!(state.kubelet(), &Kubelet::Running(Run { pid: 4711, ..Run::default() }), "{name}");
        assert_eq!((state.active(), state.is_unsaved()), (None, false), "{name}");
    }
}

#[test]
fn a_real_handover() {
    let (document, handover) = document("format-1/real/handover.json");
    assert_eq!((document.service.ready, document.relays.len(), document.notify.is_some()), (true, 1, true));
    let state = handover.state().unwrap();
    let active = state.active().unwrap();
    assert_eq!((active.source.reference.name.as_str(), active.source.resource_version.as_str()), ("c", "34"));
    assert!(active.digest.is_some() && state.records().assigned.as_ref() == Some(active));
    let attempt = state.records().phase.trial().unwrap();
    assert_eq!((&attempt.version, attempt.tries, attempt.earned > Duration::ZERO), (active, 1, false));
    assert_eq!((state.starts(), state.is_ready(), state.records().frozen), (7, true, true));
}
