//! Power off in earnest: the built supervisor's store is on an ext4 of its own, which is cut off from its device at once
//! after something was said to be done. Nothing the kernel would still have written counts, so what is there afterwards was
//! synced, and so was the directory that it is in. The API server is away then: what is not on the device is not
//! anywhere.
#![cfg(test)]

mod device;

use serde_json::Value;

use device::{Device, Switch};
use testkit::rig::{LOAD, NODE, Rig, SOON, VALIDATE, Version, configuration, eventually, id, is, killer};

/// A node whose store may lose its power.
struct Node {
    switch: Option<Switch>,
    // Before the rig, whose directory it is mounted in.
    device: Device,
    rig: Rig,
}

impl Node {
    /// Up and running on its local configuration; none if this machine cannot have it.
    fn new(rig: Rig) -> Option<Node> {
        let device = Device::for_store_of(&rig)?;
        let switch = Some(device.switch());
        let mut node = Node { switch, device, rig };
        node.rig.up();
        Some(node)
    }

    /// The power goes now and comes again, without an API server. Gives the status once the kubelet runs with so many pods.
    fn cut(&mut self, pods: u64) -> Value {
        let at = self.rig.at("dynamic");
        self.switch.take().unwrap().cut(&at);
        if self.rig.child.is_some() {
            self.rig.kill();
        }
        self.rig.server.stop();
        self.device.restore();
        let starts = self.rig.starts();
        self.rig.up();
        assert_eq!(self.rig.kubelet.starts()[starts]["configJson"]["maxPods"], pods, "the first start");
        assert_eq!(self.rig.starts(), starts + 1);
        self.switch = Some(self.device.switch());
        self.rig.status()
    }
}

fn is_bad(status: &Value, version: &Version) -> bool {
    let bad = status["badVersions"].as_array().unwrap();
    bad.iter().any(|bad| bad["source"]["uid"] == version.0 && bad["source"]["resourceVersion"] == version.1)
}

/// Puts and assigns, and returns when a kubelet was started with so many pods: before anybody was told.
fn apply_until_started(rig: &Rig, pods: u64) -> Version {
    let version = rig.offer("a", &configuration(&format!("maxPods: {pods}")));
    let started = |all: &[Value]| {
        let is_it = |entry: &Value| entry["preflight"] == false && entry["configJson"]["maxPods"] == pods;
        all.iter().any(is_it).then_some(())
    };
    rig.kubelet.wait(SOON, started).unwrap();
    version
}

#[test]
fn what_a_kubelet_was_started_with() {
    let Some(mut node) = Node::new(Rig::long_trial()) else { return };
    let version = apply_until_started(&node.rig, 42);
    let status = node.cut(42);
    assert!(is(&status, "assigned", &version) && is(&status, "active", &version), "{status:#}");
    assert_eq!(status["trial"]["state"], "running", "{status:#}");
}

/// Each life spends one of the tries, also those that the power ended.
#[test]
fn tries_that_were_spent() {
    let Some(mut node) = Node::new(Rig::long_trial()) else { return };
    let version = apply_until_started(&node.rig, 42);
    node.cut(42);
    node.cut(42);
    let status = node.cut(110);
    assert!(is_bad(&status, &version), "{status:#}");
}

#[test]
fn what_is_active() {
    let Some(mut node) = Node::new(Rig::long_trial()) else { return };
    let version = node.rig.apply("a", &configuration("maxPods: 42"));
    let status = node.cut(42);
    assert!(is(&status, "active", &version), "{status:#}");
}

#[test]
fn what_is_last_known_good() {
    let Some(mut node) = Node::new(Rig::new()) else { return };
    // The first is made in directories that are made for it, the second takes its place.
    for pods in [42, 43] {
        node.rig.server.restart();
        let version = node.rig.put("a", &configuration(&format!("maxPods: {pods}")));
        node.rig.assign("a");
        node.rig.wait_config("proven", |config| is(config, "lastKnownGood", &version));
        let status = node.cut(pods);
        assert!(is(&status, "active", &version) && is(&status, "lastKnownGood", &version), "{status:#}");
    }
}

#[test]
fn what_status_says() {
    let Some(mut node) = Node::new(Rig::new()) else { return };
    let version = node.rig.put("a", &configuration("maxPods: 42"));
    node.rig.assign("a");
    node.rig.wait_status("proven", |status| is(status, "lastKnownGood", &version));
    let status = node.cut(42);
    assert!(is(&status, "lastKnownGood", &version), "{status:#}");
}

#[test]
fn a_reset() {
    let Some(mut node) = Node::new(Rig::new()) else { return };
    let version = node.rig.prove("a", &configuration("maxPods: 42"));
    let status = node.cut(42);
    assert!(is(&status, "lastKnownGood", &version), "{status:#}");
    node.rig.server.restart();
    node.rig.server.unassign(NODE);
    node.rig.wait_config("local", |config| config["active"].is_null());
    let status = node.cut(110);
    assert_eq!((&status["assigned"], &status["lastKnownGood"]), (&Value::Null, &Value::Null), "{status:#}");
}

#[test]
fn what_was_refused() {
    let Some(mut node) = Node::new(Rig::new()) else { return };
    node.rig.prove("a", &configuration("maxPods: 42"));
    let bad = node.rig.put("a", &configuration("kubeAPIQPS: -1"));
    node.rig.wait_error(&bad, VALIDATE);
    let status = node.cut(42);
    assert!(is_bad(&status, &bad), "{status:#}");
}

#[test]
fn what_was_rolled_back() {
    let Some(mut node) = Node::new(Rig::new()) else { return };
    let good = node.rig.prove("a", &configuration("maxPods: 42"));
    let bad = node.rig.put("a", &killer());
    node.rig.wait_event("KubeletConfigRolledBack", &bad);
    let status = node.cut(42);
    assert!(is_bad(&status, &bad) && is(&status, "active", &good), "{status:#}");
    assert_eq!(status["error"], LOAD, "{status:#}");
}

#[test]
fn what_is_pinned() {
    let Some(mut node) = Node::new(Rig::new()) else { return };
    let first = node.rig.prove("a", &configuration("maxPods: 1"));
    let second = node.rig.prove("a", &configuration("maxPods: 2"));
    node.rig.done(&["pin", &id(&first)]);
    let status = node.cut(1);
    assert!(is(&status, "active", &first) && is(&status, "assigned", &second), "{status:#}");
    assert_eq!(status["pinned"], true, "{status:#}");
    node.rig.done(&["unpin"]);
    let status = node.cut(2);
    assert!(is(&status, "active", &second), "{status:#}");
}

/// Of these the answer is all that is seen: no kubelet is restarted, nothing is told to anybody.
#[test]
fn what_an_operator_was_answered() {
    let Some(mut node) = Node::new(Rig::new()) else { return };
    node.rig.done(&["freeze"]);
    assert_eq!(node.cut(110)["frozen"], true);
    node.rig.done(&["thaw"]);
    assert_eq!(node.cut(110)["frozen"], false);
    node.rig.done(&["pin", "local"]);
    assert_eq!(node.cut(110)["pinned"], true);
}

/// The verb itself writes it then.
#[test]
fn what_was_answered_while_no_supervisor_ran() {
    let Some(mut node) = Node::new(Rig::new()) else { return };
    node.rig.prove("a", &configuration("maxPods: 42"));
    node.rig.stop();
    node.rig.done(&["pin", "local"]);
    assert_eq!(node.cut(110)["pinned"], true);
    node.rig.stop();
    node.rig.done(&["unpin"]);
    assert_eq!(node.cut(42)["pinned"], false);
}

#[test]
fn a_rollback_that_an_operator_asked_for() {
    let Some(mut node) = Node::new(Rig::long_trial()) else { return };
    let version = node.rig.apply("a", &configuration("maxPods: 42"));
    node.rig.done(&["rollback"]);
    let status = node.cut(110);
    assert!(is_bad(&status, &version), "{status:#}");
    node.rig.done(&["retry"]);
    // What is assigned is not switched to while the API server is away.
    let status = node.cut(110);
    assert!(!is_bad(&status, &version), "{status:#}");
}

#[test]
fn the_history_as_it_was_told() {
    let Some(mut node) = Node::new(Rig::new()) else { return };
    node.rig.prove("a", &configuration("maxPods: 42"));
    node.rig.done(&["freeze"]);
    // The record is what an answer waits for; the line in the history comes after it.
    let told = eventually("it is told", || {
        Some(node.rig.history()).filter(|told| told.last().is_some_and(|last| last["reason"] == "KubeletConfigFrozen"))
    });
    // A reader may see a line that is not synced yet; what is answered next was written after it.
    node.rig.done(&["thaw"]);
    node.cut(42);
    assert_eq!(node.rig.history()[..told.len()], told);
}

#[test]
fn what_was_confirmed() {
    let Some(mut node) = Node::new(Rig::new()) else { return };
    let version = node.rig.put_with("a", &configuration("maxPods: 42"), ("confirm-within", "1h"));
    node.rig.assign("a");
    node.rig.wait_event("KubeletConfigAwaitsConfirmation", &version);
    node.rig.done(&["confirm"]);
    let status = node.cut(42);
    assert!(is(&status, "lastKnownGood", &version), "{status:#}");
}
