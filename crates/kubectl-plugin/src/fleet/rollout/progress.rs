//! How far a rollout is, in numbers and in a line.

use std::time::Duration;

use super::drain::Cordon;
use super::observed::{Assigned, ObservedNode, Progress};
use super::{Phase, Record};

/// Nodes by what can be said of them; together all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Done: they have the target, or, on the way back, what they had.
    pub(crate) done: usize,
    /// Assigned, or being drained for it, and not done.
    pub(crate) in_flight: usize,
    /// Not sent yet.
    pub(crate) waiting: usize,
    /// Not Ready, or held on the node.
    pub(crate) away: usize,
    pub(crate) bad: usize,
    /// Assigned something else, or gone.
    pub(crate) other: usize,
}

impl Counts {
    pub(crate) fn new(record: &Record, observed: &[ObservedNode]) -> Self {
        let mut counts = Self::default();
        for node in observed {
            let slot = match (node.assigned, &node.progress) {
                (Assigned::Other | Assigned::Gone, _) => &mut counts.other,
                _ if record.is_forward() && node.is_settled(record.options.wait_for) => &mut counts.done,
                _ if node.is_away() => &mut counts.away,
                (Assigned::Target, Progress::Bad(_)) => &mut counts.bad,
                (Assigned::Target, _) if record.is_forward() => &mut counts.in_flight,
                (Assigned::Previous, _)
                    if record.is_forward() && (node.drain.is_on() || node.cordon == Cordon::Ours) =>
                {
                    &mut counts.in_flight
                }
                (Assigned::Previous, _) if record.is_forward() => &mut counts.waiting,
                (Assigned::Previous, Progress::Updating) => &mut counts.in_flight,
                (Assigned::Previous, _) => &mut counts.done,
                (Assigned::Target, _) if node.same => &mut counts.done,
                (Assigned::Target, _) => &mut counts.waiting,
            };
            *slot += 1;
        }
        counts
    }

    /// Nodes that are still to be done.
    pub(crate) fn left(&self) -> usize {
        self.waiting + self.in_flight
    }

    /// For a line with a bar: `3/10 done, 2 in flight`, and what is wrong.
    pub(crate) fn short(&self, total: usize) -> String {
        let Self { done, in_flight, away, bad, .. } = *self;
        let parts = [(in_flight, "in flight"), (bad, "bad"), (away, "away")];
        let parts = parts.into_iter().filter(|(number, _)| *number > 0);
        let parts: Vec<String> = parts.map(|(number, what)| format!(", {number} {what}")).collect();
        format!("{done}/{total} done{}", parts.concat())
    }

    /// `3 done, 2 in flight, 5 waiting`: what is zero is not said.
    pub(crate) fn summary(&self) -> String {
        let Self { done, in_flight, waiting, away, bad, other } = *self;
        let parts = [
            (in_flight, "in flight"),
            (waiting, "waiting"),
            (bad, "bad"),
            (away, "not Ready or held"),
            (other, "gone or assigned something else"),
        ];
        let parts = parts.into_iter().filter(|(number, _)| *number > 0);
        let parts: Vec<String> = parts.map(|(number, what)| format!(", {number} {what}")).collect();
        format!("{done} done{}", parts.concat())
    }
}

/// The time left, if it goes on as since `done` nodes were done.
pub(crate) fn time_left(passed: Duration, done: usize, left: usize) -> Option<Duration> {
    let (done, left) = (u32::try_from(done).ok()?, u32::try_from(left).ok()?);
    (done > 0).then(|| passed.saturating_mul(left) / done)
}

/// `2h05m`, `4m10s`, `9s`.
pub(crate) fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds:02}s"),
        (hours, minutes, _) => format!("{hours}h{minutes:02}m"),
    }
}

/// Where the rollout is: `canaries`, `wave 2 of 7`.
pub(crate) fn phase_text(record: &Record) -> String {
    match record.phase {
        Phase::Running if record.wave == 0 && record.options.canaries > 0 => "canaries".to_owned(),
        Phase::Running => format!("wave {} of {}", record.wave.max(1), record.last_wave().max(1)),
        phase => phase.label().to_owned(),
    }
}

/// A bar, `[#####.....]`: done, in flight, to come.
pub(crate) fn bar(counts: &Counts, total: usize, width: usize) -> String {
    let cells = |nodes: usize| nodes * width / total.max(1);
    let done = cells(counts.done);
    let flight = cells(counts.done + counts.in_flight).saturating_sub(done);
    let bad = cells(counts.done + counts.in_flight + counts.bad).saturating_sub(done + flight);
    let bad = bad.max(usize::from(counts.bad > 0)).min(width.saturating_sub(done + flight));
    let rest = width.saturating_sub(done + flight + bad);
    format!("[{}{}{}{}]", "#".repeat(done), ">".repeat(flight), "!".repeat(bad), ".".repeat(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_wide_as_it_is() {
        let counts = Counts { done: 50, in_flight: 10, bad: 1, waiting: 39, ..Counts::default() };
        assert_eq!(bar(&counts, 100, 20), "[##########>>!.......]");
        for done in 0..=7 {
            assert_eq!(bar(&Counts { done, ..Counts::default() }, 7, 20).len(), 22);
        }
        assert_eq!(bar(&Counts::default(), 0, 4), "[....]");
        assert_eq!(counts.short(100), "50/100 done, 10 in flight, 1 bad");
        assert_eq!(counts.summary(), "50 done, 10 in flight, 39 waiting, 1 bad");
    }

    #[test]
    fn time_left_goes_by_what_passed() {
        assert_eq!(time_left(Duration::from_secs(60), 0, 5), None);
        assert_eq!(time_left(Duration::from_secs(60), 2, 5).map(duration), Some("2m30s".to_owned()));
        assert_eq!(duration(Duration::from_secs(7500)), "2h05m");
    }
}
