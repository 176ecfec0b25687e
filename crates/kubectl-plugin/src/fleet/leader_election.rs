//! Which of several controllers acts: leader election by a Lease, as client-go does it
//! (tools/leaderelection/leaderelection.go, v0.20.2 and v0.36.0).
//!
//! A Lease is over when it stood still for its duration by the candidate's own clock: clocks of two machines are not
//! compared. There is no fencing: whoever acts by it says with each write of which resourceVersion it was decided.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::MAX_CLOCK_SKEW;

/// Where kubelet configurations are kept if nobody says otherwise: the namespace that `packaging/manifests/base` makes.
pub(crate) const NAMESPACE: &str = "kubelet-config";

/// Of the controller, in [`NAMESPACE`] wherever revisions are: pools are of the whole cluster.
pub(crate) const LEASE_NAME: &str = "kubelet-config-controller";
/// A Lease that was not renewed for so long is free.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// A holder that could not renew it for so long acts no more.
pub(crate) const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Renewed, or asked for, so often.
pub(crate) const RETRY_PERIOD: Duration = Duration::from_secs(2);
/// What others say of their Leases is taken up to here.
const MAX_LEASE_DURATION: Duration = Duration::from_secs(300);

/// Who holds a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    Ours,
    Free,
    Held(String),
}

/// How long it holds without being renewed.
fn duration(lease: &Value) -> Duration {
    let seconds = lease.pointer("/spec/leaseDurationSeconds").and_then(Value::as_u64);
    seconds.map_or(LEASE_DURATION, Duration::from_secs).min(MAX_LEASE_DURATION)
}

/// `lease`: as it stands; `unchanged`: for so long, as this candidate saw it.
pub(crate) fn claim(lease: &Value, us: &str, unchanged: Duration) -> Claim {
    let holder = lease.pointer("/spec/holderIdentity").and_then(Value::as_str).unwrap_or_default();
    match holder {
        "" => Claim::Free,
        holder if holder == us => Claim::Ours,
        _ if unchanged >= duration(lease) => Claim::Free,
        holder => Claim::Held(holder.to_owned()),
    }
}

/// Who holds a Lease by the time of day, which is for people: the clock of who renewed it may be another one.
pub(crate) fn holder(lease: &Value, now: Timestamp) -> Result<&str, String> {
    let text = |field: &str| lease.pointer("/spec")?.get(field)?.as_str().filter(|text| !text.is_empty());
    let holder = text("holderIdentity").ok_or("nobody holds it")?;
    let renewed = text("renewTime").unwrap_or_default();
    let until = |time: Timestamp| time.checked_add(duration(lease))?.checked_add(MAX_CLOCK_SKEW);
    let is_live = |time| until(time).is_ok_and(|until| now < until);
    if renewed.parse().is_ok_and(is_live) {
        Ok(holder)
    } else {
        Err(format!("{holder} renewed it at {renewed}, and no more"))
    }
}

/// The Lease as `us` holds it from now on; `lease`: as it stands, `Null` if there is none.
pub(crate) fn acquired_or_renewed(lease: &Value, us: &str, now: Timestamp) -> Value {
    let holder = lease.pointer("/spec/holderIdentity").and_then(Value::as_str).unwrap_or_default();
    let transitions = lease.pointer("/spec/leaseTransitions").and_then(Value::as_u64).unwrap_or_default();
    let time = |time: Timestamp| Value::from(time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string());
    let (acquired, transitions) = match lease.pointer("/spec/acquireTime") {
        Some(acquired) if holder == us => (acquired.clone(), transitions),
        _ => (time(now), transitions + u64::from(!lease.is_null())),
    };
    with_spec(
        lease,
        json!({"holderIdentity": us, "leaseDurationSeconds": LEASE_DURATION.as_secs(), "renewTime": time(now),
        "acquireTime": acquired, "leaseTransitions": transitions}),
    )
}

/// The Lease as nobody holds it.
pub(crate) fn released(lease: &Value) -> Value {
    let mut spec = lease.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
    spec.extend([("holderIdentity".to_owned(), "".into()), ("leaseDurationSeconds".to_owned(), 1.into())]);
    with_spec(lease, spec)
}

fn with_spec(lease: &Value, spec: impl Into<Value>) -> Value {
    let metadata = lease.get("metadata").cloned().unwrap_or_else(|| json!({ "name": LEASE_NAME }));
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec.into()})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_lease_is_free_when_it_stood_still_for_its_duration() {
        let lease = acquired_or_renewed(&Value::Null, "a", at("2026-01-01T00:00:00Z"));
        assert_eq!(claim(&lease, "a", Duration::MAX), Claim::Ours);
        assert_eq!(claim(&lease, "b", Duration::from_secs(14)), Claim::Held("a".to_owned()));
        assert_eq!(claim(&lease, "b", Duration::from_secs(15)), Claim::Free);
        assert_eq!(claim(&released(&lease), "b", Duration::ZERO), Claim::Free);
        let for_ever = json!({"spec": {"holderIdentity": "a", "leaseDurationSeconds": 1_000_000}});
        assert_eq!(claim(&for_ever, "b", MAX_LEASE_DURATION), Claim::Free, "nobody holds it for ever");
    }

    #[test]
    fn who_holds_it_by_the_time_of_day() {
        let lease = acquired_or_renewed(&Value::Null, "a", at("2026-01-01T00:00:00Z"));
        assert_eq!(holder(&lease, at("2026-01-01T00:01:14Z")), Ok("a"));
        let over = holder(&lease, at("2026-01-01T00:01:15Z"));
        assert_eq!(over, Err("a renewed it at 2026-01-01T00:00:00.000000Z, and no more".to_owned()));
        assert_eq!(holder(&lease, at("2025-12-31T00:00:00Z")), Ok("a"), "a clock that is behind");
        for none in [released(&lease), Value::Null] {
            assert_eq!(holder(&none, at("2026-01-01T00:00:00Z")), Err("nobody holds it".to_owned()));
        }
    }

    #[test]
    fn a_renewal_keeps_what_it_was_acquired_with() {
        let first = acquired_or_renewed(&Value::Null, "a", at("2026-01-01T00:00:00Z"));
        let renewed = acquired_or_renewed(&first, "a", at("2026-01-01T00:00:02Z"));
        assert_eq!(renewed["spec"]["acquireTime"], "2026-01-01T00:00:00.000000Z");
        assert_eq!(renewed["spec"]["renewTime"], "2026-01-01T00:00:02.000000Z");
        assert_eq!(renewed["spec"]["leaseTransitions"], 0);
        let other = acquired_or_renewed(&renewed, "b", at("2026-01-01T00:01:00Z"));
        assert_eq!((&other["spec"]["leaseTransitions"], &other["spec"]["holderIdentity"]), (&json!(1), &json!("b")));
    }
}
