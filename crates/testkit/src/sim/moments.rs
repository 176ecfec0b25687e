//! What a change waits for: streams through the kubelet, pressure, pods that it would cost.

use std::collections::BTreeSet;
use std::time::Duration;

use kubelet_config::pods::PodSummary;
use kubelet_config::source::Source;
use kubelet_supervisor::machine::evidence::NodePressure;
use kubelet_supervisor::machine::{Input, Ticket};
use serde_json::json;

use super::world::{Coming, Outside, ms};

/// How long a change waits at the most, in worlds where it does: shorter than the slack of laws about time.
pub const COURTESY: Duration = Duration::from_secs(4);

/// What a change waits for.
#[derive(Debug, Default)]
pub struct Moments {
    pub streams: u32,
    is_under_pressure: bool,
    /// Since when the supervisor knows of it.
    pub(super) told: Option<Duration>,
    /// It did when it stopped the kubelet.
    pub(super) stopped_under_pressure: bool,
    /// Until then a pod is there that needs a label that the Node has no longer: any restart costs it.
    stray_until: Duration,
    /// The question for the pods that was asked last, and whether the supervisor knows of such a pod from its answer.
    pub(super) asked_for_pods: Option<(Ticket, bool)>,
    /// It did when it stopped the kubelet.
    pub(super) stopped_for_a_loss: bool,
    /// It has known of one since the last start.
    pub(super) has_known_of_loss: bool,
    /// What waits for streams by the supervisor's own account, and since when.
    pub(super) waits: Option<(Source, Duration)>,
}

impl Moments {
    pub fn ask_for_pods(&mut self, ticket: Ticket) {
        self.asked_for_pods = Some((ticket, false));
    }

    /// The pod that any restart costs, if it is there; this is the answer to that question.
    pub fn tell_stray(&mut self, ticket: Ticket, now: Duration) -> Option<PodSummary> {
        let is_there = now < self.stray_until;
        if let Some((asked, told)) = &mut self.asked_for_pods {
            *told = *asked == ticket && is_there;
            self.has_known_of_loss |= *told;
        }
        is_there.then(|| PodSummary {
            uid: "stray".to_owned(),
            name: "default/stray".to_owned(),
            phase: "Running".to_owned(),
            node_selector: json!({"disk": "ssd"}),
            ..PodSummary::default()
        })
    }

    /// As the supervisor is told of it now.
    pub fn tell_pressure(&mut self, now: Duration) -> BTreeSet<NodePressure> {
        self.told = self.is_under_pressure.then(|| self.told.unwrap_or(now));
        if self.is_under_pressure { [NodePressure::Disk].into() } else { BTreeSet::new() }
    }
}

impl Outside {
    /// There are streams from now on, and a pressure and a pod that any restart costs for so long.
    pub fn disturb_node(&mut self, streams: u32, pressure: Option<Duration>, stray: Duration) {
        self.moments.streams = streams;
        self.moments.stray_until = self.now + stray;
        if let Some(lasts) = pressure.filter(|_| !self.moments.is_under_pressure) {
            self.moments.is_under_pressure = true;
            if let Some(pid) = self.process.as_ref().filter(|process| process.ready).map(|process| process.pid) {
                self.schedule(ms(10), Coming::Heartbeat(pid, false));
            }
            self.schedule(lasts, Coming::Relief);
        }
    }

    /// The pressure is over, and the kubelet says so until it is heard.
    pub fn relieve(&mut self) -> Option<Input> {
        self.moments.is_under_pressure = false;
        let pid = self.process.as_ref().filter(|process| process.ready)?.pid;
        let heard = self.heartbeat(pid, false);
        if heard.is_none() {
            self.schedule(ms(1000), Coming::Relief);
        }
        heard
    }
}
