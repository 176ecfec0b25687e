//! A running kubelet, and the signs of its health.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::evidence::Signal;
use super::limits;
use super::model::{Moment, later};

/// A running kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Run {
    /// Process id.
    pub pid: u32,
    /// When it was started.
    pub started: Moment,
    /// READY=1 was heard.
    pub ready: bool,
    /// READY=1 was heard then.
    pub ready_at: Option<Moment>,
    /// Its start time-out counts from here: later than `started` if judgement was suspended.
    #[serde(rename = "judged_from")]
    pub start_timeout_from: Moment,
    /// Every signal it is judged by has been good since then.
    pub healthy_since: Option<Moment>,
    /// healthz last answered then.
    pub answered: Option<Moment>,
    /// It was ready once, and answered healthz if it is judged by that.
    pub was_up: bool,
    /// Healthz fails since then without a break.
    pub failing_since: Option<Moment>,
    /// The next probe is due.
    pub probe_at: Option<Moment>,
    /// The next observation of the node is due.
    #[serde(rename = "look_at")]
    pub environment_at: Option<Moment>,
    /// The next query for the Lease is due.
    pub lease_at: Option<Moment>,
    /// The next query for the pods is due.
    pub pods_at: Option<Moment>,
    /// The Node's last heartbeat before the start.
    pub heartbeat: String,
    /// The Lease's renew time as last seen.
    pub lease: Option<String>,
    /// Signals that were good, and when last.
    pub good: BTreeMap<Signal, Moment>,
    /// Signals that are bad, and since when.
    pub bad: BTreeMap<Signal, Moment>,
    /// A switch to a new configuration started it: further changes wait a little.
    pub switched: bool,
    /// The API server, or a proxy before it, answered that it is overloaded or out of order.
    pub was_answered: bool,
}

impl Run {
    /// True if healthz answered a moment ago. A gap that nobody watched (a suspended machine, a
    /// stopped supervisor) is not health.
    pub(super) fn is_watched(&self, now: Moment) -> bool {
        self.answered.is_some_and(|at| now.since(at) <= limits::HEALTHZ_PATIENCE)
    }

    /// Whatever is bad is so only from this moment on. When contact was lost stays known: that
    /// tells whether the change did it.
    pub(super) fn begin_anew(&mut self, from: Moment) {
        self.start_timeout_from = from;
        self.failing_since = self.failing_since.map(|_| from);
        let bad = self.bad.iter_mut().filter(|(signal, _)| **signal != Signal::ApiServer);
        bad.for_each(|(_, since)| *since = from);
    }

    /// True if a loss of contact at that moment can come of the change.
    pub(super) fn is_attributable(&self, lost: Moment) -> bool {
        let proven = self.good.contains_key(&Signal::Lease) || self.good.contains_key(&Signal::NodeReady);
        let settled = self.ready_at.is_some_and(|ready| lost.since(ready) >= limits::ATTRIBUTION);
        !(proven && settled)
    }

    pub(super) fn record_good(&mut self, signal: Signal, now: Moment) {
        self.good.insert(signal, now);
        self.bad.remove(&signal);
        self.was_answered &= signal != Signal::ApiServer;
    }

    pub(super) fn record_bad(&mut self, signal: Signal, since: Moment) {
        self.bad.entry(signal).or_insert(since);
    }

    /// At READY=1: the signals that come by themselves are awaited from now on.
    pub(super) fn await_signals(&mut self, now: Moment) {
        for signal in [Signal::Watchdog, Signal::NodeReady, Signal::Lease] {
            // The first ping may come just before READY=1.
            if !self.good.contains_key(&signal) {
                self.record_bad(signal, now);
            }
        }
        self.probe_at = Some(now);
        self.environment_at = Some(now);
        self.lease_at = Some(now);
        self.pods_at = Some(later(now, limits::POD_QUERY_DELAY));
    }
}
