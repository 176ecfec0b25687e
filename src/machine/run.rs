//! A running kubelet, and the signs of its health.

use std::collections::BTreeMap;
use std::time::Duration;

use super::evidence::Signal;
use super::limits;
use super::model::{Moment, RunId, later};

/// A running kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Tells it from all others.
    pub id: RunId,
    /// When it was started.
    pub started: Moment,
    /// A worker went on with it then.
    pub resumed: Option<Moment>,
    /// READY=1 was heard then.
    pub ready_at: Option<Moment>,
    /// Nobody watched it right before then: the machine slept, or the supervisor stood still.
    pub woke_at: Option<Moment>,
    /// Its start time-out counts from here: later than `started` if judgement was suspended.
    pub start_timeout_from: Moment,
    /// Every signal it is judged by has been good since then.
    pub healthy_since: Option<Moment>,
    /// The process has given all signs of health that it gave before since then, in contact or not, on a node that is well.
    pub well_since: Option<Moment>,
    /// It was ready once, and answered healthz if it is judged by that.
    pub was_up: bool,
    /// The Node's last heartbeat before the start.
    pub heartbeat: String,
    /// It was written so shortly before the start that the first one of this kubelet may read the same.
    pub may_repeat_heartbeat: bool,
    /// Signals that were good, and when last.
    pub good: BTreeMap<Signal, Moment>,
    /// Signals that are bad, and since when.
    pub bad: BTreeMap<Signal, Moment>,
    /// Health was lost then, and nothing around the kubelet was at fault.
    pub broken_since: Option<Moment>,
    /// The API server, or a proxy before it, answered that it is overloaded or out of order.
    pub was_answered: bool,
}

impl Run {
    /// READY=1 was heard.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready_at.is_some()
    }

    /// True if it began a moment ago, or a worker went on with it: the first signs of health are on their way.
    pub(super) fn is_fresh(&self, from: Option<Moment>, within: Duration, now: Moment) -> bool {
        from.max(self.resumed).is_some_and(|from| now.since(from) <= within)
    }

    /// True if healthz answered a moment ago. A gap that nobody watched is not health.
    pub(super) fn is_watched(&self, now: Moment) -> bool {
        self.was_good_within(Signal::Healthz, limits::HEALTHZ_PATIENCE, now)
    }

    /// True if the API server answered a moment ago: it can tell how the Node does.
    pub(super) fn hears_api_server(&self, now: Moment) -> bool {
        self.was_good_within(Signal::ApiServer, limits::API_SERVER_HEARD, now)
    }

    fn was_good_within(&self, signal: Signal, within: Duration, now: Moment) -> bool {
        self.is_good(signal) && self.good.get(&signal).is_some_and(|at| now.since(*at) <= within)
    }

    /// True if the process itself gives no sign of health.
    pub(super) fn is_process_bad(&self) -> bool {
        [Signal::Healthz, Signal::Watchdog].iter().any(|signal| self.bad.contains_key(signal))
    }

    /// True if it was seen to be good, and not to be bad since.
    pub(super) fn is_good(&self, signal: Signal) -> bool {
        self.good.contains_key(&signal) && !self.bad.contains_key(&signal)
    }

    /// Whatever is bad counts as such only from this moment on. When it was lost stays known: that tells whether the change
    /// did it.
    pub(super) fn begin_anew(&mut self, from: Moment) {
        self.start_timeout_from = from;
    }

    /// The bad signals, and since when they are held against the kubelet: what nobody could see does not count.
    pub(super) fn held_against(&self) -> impl Iterator<Item = (Signal, Moment)> {
        self.bad.iter().map(|(signal, since)| (*signal, self.start_timeout_from.max(*since)))
    }

    /// The API server answers. While it did not, nobody could tell how the Node does: that time is not held against it.
    pub(super) fn hear_api_server(&mut self, now: Moment) {
        let answered = self.good.get(&Signal::ApiServer).copied().or(self.ready_at).unwrap_or(now);
        let away = now.since(answered);
        if away > limits::API_SERVER_HEARD {
            let seen = self.bad.iter_mut().chain(&mut self.good);
            let of_node = seen.filter(|(signal, _)| matches!(signal, Signal::NodeReady | Signal::Lease));
            of_node.for_each(|(_, at)| *at = later(*at, away).min(now));
        }
        self.record_good(Signal::ApiServer, now);
    }

    /// The container runtime answers. The Node was not Ready for want of it, and the kubelet needs some time to tell that it is.
    pub(super) fn runtime_answers(&mut self, now: Moment) {
        if self.bad.contains_key(&Signal::Runtime)
            && let Some(since) = self.bad.get_mut(&Signal::NodeReady)
        {
            *since = later(now, limits::SUSPENSION_GRACE);
        }
        self.record_good(Signal::Runtime, now);
    }

    /// True if health was lost for good before now: what is at fault around the kubelet may be seen some time after the
    /// kubelet's own sign of it, but no later.
    pub(super) fn is_broken(&self, now: Moment) -> bool {
        self.broken_since.is_some_and(|since| now.since(since) > limits::SUSPENSION_GRACE)
    }

    /// Nothing was observed for a while: what was healthy then says nothing of the time since. Healthz is asked again.
    pub(super) fn woke_up(&mut self, now: Moment) {
        self.begin_anew(now);
        self.woke_at = Some(now);
        self.good.iter_mut().filter(|(signal, _)| **signal != Signal::Healthz).for_each(|(_, at)| *at = now);
        (self.healthy_since, self.well_since) = (None, None);
    }

    /// True if the kubelet itself is seen by the API server.
    pub(super) fn has_contact(&self) -> bool {
        self.is_good(Signal::Lease) || self.is_good(Signal::NodeReady)
    }

    /// It has been ready, and watched, since then.
    pub(super) fn watched_since(&self) -> Option<Moment> {
        self.ready_at.map(|ready| self.woke_at.map_or(ready, |woke| woke.max(ready)))
    }

    /// True if so long has passed since READY=1 that what breaks at this moment is not the change's doing.
    pub(super) fn is_past_attribution(&self, at: Moment) -> bool {
        self.watched_since().is_some_and(|since| at.since(since) >= limits::ATTRIBUTION)
    }

    pub(super) fn record_good(&mut self, signal: Signal, now: Moment) {
        self.good.insert(signal, now);
        self.bad.remove(&signal);
        self.was_answered &= signal != Signal::ApiServer;
    }

    pub(super) fn record_bad(&mut self, signal: Signal, since: Moment) {
        self.bad.entry(signal).or_insert(since);
    }

    /// The signals that come by themselves are awaited from now on.
    pub(super) fn await_signals(&mut self, now: Moment) {
        for signal in [Signal::Watchdog, Signal::NodeReady, Signal::Lease] {
            // The first ping may come just before READY=1.
            if !self.good.contains_key(&signal) {
                self.record_bad(signal, now);
            }
        }
    }

    /// What was seen so far says nothing of what comes.
    pub(super) fn forget_health(&mut self) {
        (self.healthy_since, self.well_since) = (None, None);
        self.good.remove(&Signal::Healthz);
    }
}
