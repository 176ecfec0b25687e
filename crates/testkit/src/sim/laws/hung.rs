//! The law of a kubelet that hangs while nobody judges it.

use std::time::Duration;

use kubelet_supervisor::machine::evidence::Signal;

use crate::sim::kubelet::{PING, Process};
use crate::sim::laws::Law;
use crate::sim::laws::start::UNREADABLE;
use crate::sim::promised;
use crate::sim::records::content_dir;
use crate::sim::world::{Behaviour, Content, Outside};

/// It is looked at every 15 s, some of the questions about the node are never answered, and others come first.
const UNNOTICED: Duration = Duration::from_secs(120);

/// A change that was just heard of may be decided, and restart it anyhow.
const CHANGES: Duration = Duration::from_secs(180);

/// A verdict takes no longer, where somebody comes to one.
const WHOEVER: Duration = Duration::from_secs(900);

impl Outside {
    /// Since when the kubelet gives no sign of life, after it gave one.
    fn unresponsive_since(&self) -> Option<Duration> {
        let process = self.process.as_ref()?;
        let silent = self.surroundings.modern && matches!(process.content.behaviour, Behaviour::SilentAfter(_));
        process.sick_since.filter(|_| process.was_heard || process.pinged).or(process.lost_since.filter(|_| silent))
    }

    /// The same of one that has come to life again, as long as nobody could hear of that.
    fn unresponsive_until_now(&self) -> Option<Duration> {
        let process = self.process.as_ref()?;
        let (since, until) = process.revived?;
        let sign = if process.pinged { Signal::Watchdog } else { Signal::Healthz };
        let heard = self.observations.signals.get(&sign).is_some_and(|(good, at)| *good && *at >= until);
        (!heard && self.now.saturating_sub(until) <= PING).then_some(since)
    }

    /// So long it may do so by now.
    fn hung_patience(&self) -> Duration {
        promised::hung_after(self.account.hung_after, self.account.dumps)
    }

    /// A kubelet is to dump its stacks: it is dead for long enough, and nothing around it is.
    pub fn check_dump(&mut self) {
        let patience = self.hung_patience();
        let unresponsive_since = self.unresponsive_since().or_else(|| self.unresponsive_until_now());
        // One that hangs right after a sleep has given no sign since that.
        let woke =
            self.woke().filter(|woke| unresponsive_since.is_some_and(|since| (*woke..*woke + PING).contains(&since)));
        let dead = woke.or(unresponsive_since).is_some_and(|since| self.now.saturating_sub(since) >= patience);
        // As it was told before the store was asked: what it writes of that may fill the disk.
        let lately = |at: Duration| self.now.saturating_sub(at) <= promised::START_LOADS;
        let told = self.observations.environment.is_some_and(|(trouble, at)| !trouble && lately(at));
        let well = told && self.observations.is_good(Signal::Runtime, self.now, promised::START_LOADS);
        // A stall that began since the store was asked is not known.
        let stalled = self.silence.is_stalled_for(promised::START_LOADS, self.now);
        let dumps = self.account.dumps;
        self.account.check(Law::Hung, false, dead && well && !stalled, || {
            format!(
                "dead since {unresponsive_since:?}, node well: {well}, disk stalled: {stalled}, and it is restarted, \
                 after {dumps} times"
            )
        });
        self.account.dumps += 1;
    }

    /// What hung is started again as it was.
    pub(super) fn check_restart_of_hung(&mut self, path: Option<&str>, content: Content) {
        let Some((before, kubelet)) = self.account.dumped.take() else { return };
        let last = self.account.last.as_ref();
        let since = last.and_then(|last| last.stopping).unwrap_or(self.now);
        let edited = path.is_none() && self.local_edited.is_some_and(|at| last.is_none_or(|last| at >= last.started));
        let account = &self.account;
        // It rotted by the time of the restart.
        let damaged =
            last.and_then(|last| last.path.as_ref()).is_some_and(|path| self.disk.is_rotten(content_dir(path)));
        let excused = self.disk_is_ailing()
            || self.store_lags()
            || edited
            || damaged
            || kubelet != account.known_kubelet
            || kubelet != self.kubelet_id
            || last.is_none_or(|last| last.unread)
            || self.is_forbidden_lately()
            || account.overruled
            || account.is_commanded(self.now)
            || account.commanded_at.is_some_and(|at| at >= since)
            || account.told_last.is_some_and(|told| told + CHANGES >= since)
            || account.read_failed_last.1.is_some_and(|at| self.now <= at + UNREADABLE);
        self.account
            .check(Law::Hung, excused, before == content, || format!("{before:?} hung, and {content:?} follows"));
    }

    /// A kubelet that hangs is restarted in time.
    pub(super) fn check_hung(&mut self) {
        let now = self.now;
        let forgotten = |since: Duration| now.saturating_sub(since) >= promised::HUNG_MOST;
        if self.process.as_ref().and_then(|it| it.well_since).is_some_and(forgotten) {
            self.account.dumps = 0;
        }
        if self.may_be_judged() {
            self.account.judged_last = now;
        }
        let (Some(unresponsive_since), Some(process)) = (self.unresponsive_since(), &self.process) else { return };
        let account = &self.account;
        let trouble = self.trouble.until.max(self.silence.waited_until);
        let since = unresponsive_since.max(account.judged_last).max(trouble.unwrap_or_default());
        let due = since + self.hung_patience() + UNNOTICED;
        // Whoever judges it, somebody acts: it is restarted, or what it runs is taken back.
        let latest = unresponsive_since.max(trouble.unwrap_or_default()) + self.hung_patience() + WHOEVER;
        let due = if process.hangs.is_some() { due.min(latest) } else { due };
        let content = process.content;
        // Another one would have to be started.
        let damaged = process.path.as_ref().is_some_and(|path| self.disk.is_rotten(content_dir(path)));
        let excused = account.hung_after.is_zero()
            || damaged
            || process.stopping.is_some()
            || self.in_trouble()
            || self.silence.queries
            || self.silence.judge
            || account.withheld.is_some()
            || self.store_lags()
            || self.disk_is_ailing()
            || self.mood != crate::sim::api::Mood::default()
            || account.told_last.is_some_and(|at| now <= at + CHANGES)
            || account.commanded_at.is_some_and(|at| now <= at + CHANGES);
        self.account
            .check(Law::Hung, excused, now <= due, || format!("{content:?} hangs since {unresponsive_since:?}"));
    }

    /// A verdict on what runs, or on what it is the control for, may be somebody else's.
    fn may_be_judged(&self) -> bool {
        let account = &self.account;
        let settled = |it: &Process| {
            (it.path.is_none() || account.is_lkg(it.content))
                && account.on_trial.is_none_or(|on| on != it.content || account.is_lkg(on))
        };
        account.testing || account.cleared.is_some() || !self.process.as_ref().is_some_and(settled)
    }
}
