//! Progress: a bar that stays on its line on a terminal, lines elsewhere.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use tokio::time::Instant;

use super::fleet::Fleet;
use super::records::Kept;
use crate::core::fleet::rollout::progress::{Counts, bar, duration, place, time_left};
use crate::core::fleet::rollout::{Phase, Record};
use crate::plugin::output::{self, Out};

/// Lines of counts come no closer than this; where the rollout is, is always said.
const APART: Duration = Duration::from_secs(30);
/// The bar is drawn anew so often.
const REDRAW: Duration = Duration::from_millis(200);

/// The bar's columns, and those that are kept for the words behind it, so that it does not change its size.
const BAR: usize = 24;
const WORDS: usize = 44;

pub(super) struct Show {
    quiet: bool,
    /// Its columns.
    terminal: Option<usize>,
    last: Option<(Instant, String, Counts)>,
    /// Since when, and with how many done.
    begun: Option<(Instant, usize)>,
}

impl Show {
    pub(super) fn new(quiet: bool) -> Self {
        let terminal = io::stderr().is_terminal() && !quiet;
        let width = Out::stdout().width.unwrap_or(80);
        Self { quiet, terminal: terminal.then_some(width), last: None, begun: None }
    }

    /// A sentence.
    pub(super) fn say(&self, text: &str) {
        if !self.quiet {
            self.clear();
            tell(&format!("{}\n", clean(text)));
        }
    }

    fn clear(&self) {
        if self.terminal.is_some() {
            tell(ERASE);
        }
    }

    /// As kubectl says it.
    pub(super) fn wrote(&self, kept: &Kept, node: &str, forward: bool) {
        if self.quiet || self.terminal.is_some() {
            return;
        }
        let what = if forward { kept.record.target.reference.name.as_str() } else { "what it had before" };
        let _ = output::print(&format!("node/{node} assigned {what}\n"));
    }

    /// One step of a drain.
    pub(super) fn did(&self, what: &str) {
        if !self.quiet && self.terminal.is_none() {
            let _ = output::print(&format!("{}\n", clean(what)));
        }
    }

    pub(super) fn progress(&mut self, name: &str, record: &Record, fleet: &Fleet) {
        if self.quiet || !fleet.is_known {
            return;
        }
        let now = Instant::now();
        let is_due = |apart: Duration| self.last.as_ref().is_none_or(|(then, ..)| now.duration_since(*then) >= apart);
        let place = place(record);
        let moved = self.last.as_ref().is_none_or(|(_, before, _)| *before != place);
        if !moved && !is_due(if self.terminal.is_some() { REDRAW } else { APART }) {
            return;
        }
        let counts = Counts::of(record, &fleet.sights);
        let (since, done) = *self.begun.get_or_insert((now, counts.done));
        let left = time_left(now.duration_since(since), counts.done.saturating_sub(done), counts.left());
        let left = left.filter(|_| matches!(record.phase, Phase::Running | Phase::Reverting) && counts.left() > 0);
        let left = left.map_or(String::new(), |left| format!(", about {} left", duration(left)));
        if let Some(width) = self.terminal {
            let head = format!("{name}: {place} ");
            let room = width.saturating_sub(head.chars().count() + WORDS);
            let bar = if room >= 8 { bar(&counts, record.nodes, room.min(BAR)) + " " } else { String::new() };
            let line = format!("{head}{bar}{}{left}", counts.short(record.nodes));
            let line: String = line.chars().take(width.saturating_sub(1)).collect();
            tell(&format!("{ERASE}{line}"));
        } else {
            let same = self.last.as_ref().is_some_and(|(_, _, before)| *before == counts);
            if moved || !same {
                let _ = output::print(&format!("{name}: {place}, {}{left}\n", counts.words()));
            }
        }
        self.last = Some((now, place, counts));
    }

    /// When to draw anew, whatever happens: the time left goes on.
    pub(super) fn redraw(&self) -> Option<Duration> {
        self.terminal.map(|_| Duration::from_secs(1))
    }

    /// Leaves the bar's line.
    pub(super) fn end(&self) {
        if self.terminal.is_some() && self.last.is_some() {
            tell("\n");
        }
    }
}

/// The beginning of the terminal's line, and nothing on it.
const ERASE: &str = "\r\u{1b}[2K";

/// To standard error. That nobody reads it is no reason to stop.
fn tell(text: &str) {
    let mut error = io::stderr().lock();
    let _ = error.write_all(text.as_bytes()).and_then(|()| error.flush());
}

/// What a Node or ConfigMap says, without what would steer a terminal.
pub(super) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}
