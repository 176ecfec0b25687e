//! Progress on standard error: a bar that stays on its line on a terminal, lines elsewhere.

use std::io::{self, Write as _};
use std::time::Duration;

use tokio::time::Instant;

use crate::fleet::pool::progress::{Counts, duration, phase, time_left};
use crate::fleet::pool::types::KubeletConfigPool;
use crate::output::{self, ERASE, Out, Tone};

/// Lines of counts come no closer than this; where the pool is, is always said.
const APART: Duration = Duration::from_secs(30);

/// The bar's columns at the most and at the least, and those that are kept for where the pool is and for what stands behind the
/// bar, so that it does not change its size.
const BAR: usize = 24;
const LEAST: usize = 10;
const PLACE: usize = 13;
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
            self.say(text);
        }
    }

    /// Also to who wants to hear of nothing but the end.
    pub(crate) fn warn(&self, text: &str) {
        self.say(&format!("warning: {text}"));
    }

    /// Beside the bar.
    fn say(&self, text: &str) {
        let line = output::paragraph(Out { colour: false, ..Out::stderr() }, Tone::Plain, text);
        write_stderr(&format!("{}{line}", if self.terminal { ERASE } else { "" }));
    }

    pub(crate) fn progress(&mut self, name: &str, pool: &KubeletConfigPool) {
        let (now, phase, counts) = (Instant::now(), phase(pool).to_owned(), Counts::new(pool));
        // Nobody has looked at it yet.
        if self.quiet || phase.is_empty() {
            return;
        }
        let moved = self.last.as_ref().is_none_or(|(_, before, _)| *before != phase);
        let same = self.last.as_ref().is_some_and(|(_, _, before)| *before == counts);
        let is_due = self.last.as_ref().is_none_or(|(then, ..)| now.duration_since(*then) >= APART);
        if !self.terminal && !moved && (same || !is_due) {
            return;
        }
        let (since, done) = *self.begun.get_or_insert((now, counts.done));
        let left = time_left(now.duration_since(since), counts.done.saturating_sub(done), counts.left());
        let left = left.map_or(String::new(), |left| format!(", about {} left", duration(left)));
        let message = format!("{}{left}", counts.summary());
        if self.terminal {
            // Asked anew: windows change their size.
            let width = Out::stderr().width.unwrap_or(80);
            write_stderr(&format!("{ERASE}{}", line(name, &phase, |cells| counts.bar(cells), &message, width)));
        } else {
            write_stderr(&format!("{}\n", output::plain(&format!("{name}: {phase}, {message}"))));
        }
        self.last = Some((now, phase, counts));
    }

    /// Leaves the bar's line.
    pub(crate) fn end(&self) {
        if self.terminal && self.last.is_some() {
            write_stderr("\n");
        }
    }
}

/// A line within a terminal of so many columns. The pool's name was said before: a bar comes before it.
fn line(name: &str, phase: &str, bar: impl Fn(usize) -> String, message: &str, width: usize) -> String {
    // The last column stays free, for some terminals go to the next line there; three are brackets and a blank.
    let room = width.saturating_sub(1 + PLACE.max(phase.chars().count()) + 1 + 3 + WORDS);
    let named = room.saturating_sub(name.chars().count() + 2);
    let (name, room) = if named >= LEAST { (format!("{name}: "), named) } else { (String::new(), room) };
    let bar = if room >= LEAST { bar(room.min(BAR)) + " " } else { String::new() };
    let line = output::plain(&format!("{name}{phase} {bar}{message}"));
    line.chars().take(width.saturating_sub(1)).collect()
}

/// To standard error. That nobody reads it is no reason to stop.
fn write_stderr(text: &str) {
    let mut error = io::stderr().lock();
    let _ = error.write_all(text.as_bytes()).and_then(|()| error.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_bar_before_it_has_a_name() {
        let message = "333/400 done, 20 in flight, about 6h10m left";
        let at =
            |name: &str, width: usize| line(name, "Waves", |cells| format!("[{}]", "#".repeat(cells)), message, width);
        assert_eq!(at("pool-a-7d4f5c2k8m", 80), format!("Waves [{}] {message}", "#".repeat(19)));
        assert_eq!(at("pool-a", 120), format!("pool-a: Waves [{}] {message}", "#".repeat(24)));
        for width in 0..200 {
            assert!(at("pool-a-7d4f5c2k8m", width).chars().count() < width.max(1));
            let long = line("pool-a", "MaxUnavailableReached", |cells| "#".repeat(cells + 2), message, width);
            assert!(long.chars().count() < width.max(1));
        }
        let counts = Counts { total: 400, done: 133, in_flight: 20, bad: 0 };
        let message = format!("{}, about 4h10m left", counts.summary());
        let shown = line("pool-a-7d4f5c2k8m", "Waves", |cells| counts.bar(cells), &message, 80);
        for page in ["docs/usage/overview.md", "docs/usage/rollouts.md"] {
            let text = std::fs::read_to_string(format!("{}/../../{page}", env!("CARGO_MANIFEST_DIR"))).unwrap();
            assert!(text.lines().any(|line| line == shown), "{page} does not show this line:\n{shown}");
        }
    }
}
