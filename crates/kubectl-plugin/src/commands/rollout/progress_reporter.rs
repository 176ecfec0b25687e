//! Progress: a bar that stays on its line on a terminal, lines elsewhere.

use std::io::{self, Write as _};
use std::time::Duration;

use tokio::time::Instant;

use super::fleet::Fleet;
use super::records::StoredRecord;
use crate::fleet::rollout::progress::{Counts, bar, duration, phase_text, time_left};
use crate::fleet::rollout::{Phase, Record};
use crate::output::{self, Out, Tone};

/// Lines of counts come no closer than this; where the rollout is, is always said.
const APART: Duration = Duration::from_secs(30);
/// The bar is drawn anew so often.
const REDRAW: Duration = Duration::from_millis(200);

/// The bar's columns at the most and at the least, and those that are kept for where it is (`wave 100 of 100`) and for
/// the words behind the bar, so that it does not change its size.
const BAR: usize = 24;
const LEAST: usize = 10;
const PLACE: usize = 15;
const WORDS: usize = 43;

pub(crate) struct ProgressReporter {
    quiet: bool,
    /// Standard error is a terminal.
    terminal: bool,
    last: Option<(Instant, String, Counts)>,
    /// Since when, and with how many done.
    begun: Option<(Instant, usize)>,
}

impl ProgressReporter {
    pub(crate) fn new(quiet: bool) -> Self {
        Self { quiet, terminal: !quiet && Out::stderr().width.is_some(), last: None, begun: None }
    }

    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            self.clear();
            let out = Out { colour: false, ..Out::stderr() };
            let text = clean(text);
            let lines = text.lines().map(|line| output::paragraph(out, Tone::Plain, line));
            write_stderr(&lines.collect::<String>());
        }
    }

    fn clear(&self) {
        if self.terminal {
            write_stderr(ERASE);
        }
    }

    /// As kubectl says it.
    pub(crate) fn assigned(&self, stored: &StoredRecord, node: &str, forward: bool) {
        if self.quiet || self.terminal {
            return;
        }
        let what = if forward { stored.record.target.reference.name.as_str() } else { "what it had before" };
        let _ = output::write_stdout(&format!("node/{node} assigned {what}\n"));
    }

    /// One step of a drain.
    pub(crate) fn action(&self, what: &str) {
        if !self.quiet && !self.terminal {
            let _ = output::write_stdout(&format!("{}\n", clean(what)));
        }
    }

    pub(crate) fn progress(&mut self, name: &str, record: &Record, fleet: &Fleet) {
        if self.quiet || !fleet.is_known {
            return;
        }
        let now = Instant::now();
        let is_due = |apart: Duration| self.last.as_ref().is_none_or(|(then, ..)| now.duration_since(*then) >= apart);
        let phase = phase_text(record);
        let moved = self.last.as_ref().is_none_or(|(_, before, _)| *before != phase);
        if !moved && !is_due(if self.terminal { REDRAW } else { APART }) {
            return;
        }
        let counts = Counts::new(record, &fleet.observed);
        let (since, done) = *self.begun.get_or_insert((now, counts.done));
        let left = time_left(now.duration_since(since), counts.done.saturating_sub(done), counts.left());
        let left = left.filter(|_| matches!(record.phase, Phase::Running | Phase::Reverting) && counts.left() > 0);
        let left = left.map_or(String::new(), |left| format!(", about {} left", duration(left)));
        if self.terminal {
            // Asked anew: windows change their size.
            let width = Out::stderr().width.unwrap_or(80);
            let message = format!("{}{left}", counts.short(record.nodes));
            let line = line(name, &phase, |cells| bar(&counts, record.nodes, cells), &message, width);
            write_stderr(&format!("{ERASE}{line}"));
        } else {
            let same = self.last.as_ref().is_some_and(|(_, _, before)| *before == counts);
            if moved || !same {
                let _ = output::write_stdout(&format!("{name}: {phase}, {}{left}\n", counts.summary()));
            }
        }
        self.last = Some((now, phase, counts));
    }

    /// When to draw anew, whatever happens: the time left goes on.
    pub(crate) fn redraw(&self) -> Option<Duration> {
        self.terminal.then_some(Duration::from_secs(1))
    }

    /// Leaves the bar's line.
    pub(crate) fn end(&self) {
        if self.terminal && self.last.is_some() {
            write_stderr("\n");
        }
    }
}

/// A line within a terminal of so many columns. The rollout's name was said before: a bar comes before it.
fn line(name: &str, phase: &str, bar: impl Fn(usize) -> String, message: &str, width: usize) -> String {
    // The last column stays free, for some terminals go to the next line there; three are brackets and a blank.
    let room = width.saturating_sub(1 + PLACE + 1 + 3 + WORDS);
    let named = room.saturating_sub(name.chars().count() + 2);
    let (name, room) = if named >= LEAST { (format!("{name}: "), named) } else { (String::new(), room) };
    let bar = if room >= LEAST { bar(room.min(BAR)) + " " } else { String::new() };
    let line = format!("{name}{phase} {bar}{message}");
    line.chars().take(width.saturating_sub(1)).collect()
}

/// The beginning of the terminal's line, and nothing on it.
const ERASE: &str = "\r\u{1b}[2K";

/// To standard error. That nobody reads it is no reason to stop.
fn write_stderr(text: &str) {
    let mut error = io::stderr().lock();
    let _ = error.write_all(text.as_bytes()).and_then(|()| error.flush());
}

/// What a Node or ConfigMap says, without what would steer a terminal.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_bar_before_it_has_a_name() {
        let message = "333/400 done, 20 in flight, about 6h10m left";
        let at = |name: &str, width: usize| {
            line(name, "wave 17 of 40", |cells| format!("[{}]", "#".repeat(cells)), message, width)
        };
        assert_eq!(at("pool-a-7d4f5c2k8m", 80), format!("wave 17 of 40 [{}] {message}", "#".repeat(17)));
        assert_eq!(
            at("pool-a-7d4f5c2k8m", 120),
            format!("pool-a-7d4f5c2k8m: wave 17 of 40 [{}] {message}", "#".repeat(24))
        );
        for width in 0..200 {
            assert!(at("pool-a-7d4f5c2k8m", width).chars().count() < width.max(1));
        }
        let counts = Counts { done: 133, in_flight: 20, waiting: 247, ..Counts::default() };
        let message = format!("{}, about 4h10m left", counts.short(400));
        let shown = line("pool-a-7d4f5c2k8m", "wave 7 of 20", |cells| bar(&counts, 400, cells), &message, 80);
        for page in ["docs/usage/overview.md", "docs/usage/rollouts.md"] {
            let text = std::fs::read_to_string(format!("{}/../../{page}", env!("CARGO_MANIFEST_DIR"))).unwrap();
            assert!(text.lines().any(|line| line == shown), "{page} does not show this line:\n{shown}");
        }
    }
}
