//! Tables as kubectl aligns them, within the width of a terminal.

use std::collections::BTreeSet;

use super::output::{Out, Tone, broken, plain};
use kubelet_config::bounds::shortened;

/// A column of names is cut to no less than this for the sake of the last column, ...
const NAME_MIN: usize = 18;

/// ... to no less than this where the terminal is too narrow for names alone, ...
const NAME_LEAST: usize = 8;

/// ... and one that is no wider than this by itself is not cut: states, ages, versions.
const SHORT: usize = 20;

/// The last column gets so much of a terminal, if names can be cut for it.
const LAST_MIN: usize = 24;

/// So many lines of its own has a last cell that is too long: enough for most of what a kubelet says (220 characters on 80
/// columns), and a screen still shows several nodes.
const LINES: usize = 3;

/// What stands on lines of its own is indented by this.
const BELOW: &str = "    ";

/// Columns as kubectl aligns them: three blanks between, the last one as long as it wants. On a terminal no line is
/// longer than it is wide: a last cell that is too long stands below its row, and names are cut so that they still differ.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<(Tone, String)>>,
    /// Widths of what was printed before, for rows that follow.
    floor: Vec<usize>,
    /// The last column is what it is all about: none of it is left out.
    whole: bool,
}

impl Table {
    /// With these headings.
    pub(crate) fn new(headings: &[&str]) -> Self {
        let headings = headings.iter().map(|heading| (Tone::Plain, (*heading).to_owned())).collect();
        Self { rows: vec![headings], ..Self::default() }
    }

    /// Leaves nothing of the last column out, however many lines it takes.
    pub(crate) fn whole(self) -> Self {
        Self { whole: true, ..self }
    }

    /// Adds a row; what is empty is shown as `-`, what would upset a terminal is escaped.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = (Tone, String)>) {
        let shown = |text: String| if text.is_empty() { "-".to_owned() } else { plain(&text) };
        self.rows.push(cells.into_iter().map(|(tone, text)| (tone, shown(text))).collect());
    }

    /// The text of what was added since the last time, in columns at least as wide as before.
    pub(crate) fn take(&mut self, out: Out) -> String {
        let text = self.render(out);
        self.floor = self.widths();
        self.rows.clear();
        text
    }

    fn widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let floor = |column: usize| self.floor.get(column).copied().unwrap_or_default();
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.1.chars().count()).max().unwrap_or_default().max(floor(column))
        };
        (0..columns.max(self.floor.len())).map(width).collect()
    }

    /// How to cut a column to this width so that different names stay different; none if they cannot.
    fn cut(&self, column: usize, width: usize) -> Option<Cut> {
        let cells = || self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.1.as_str());
        let names: BTreeSet<&str> = cells().collect();
        [Cut::Middle, Cut::End].into_iter().find(|cut| {
            let cut: BTreeSet<String> = names.iter().map(|name| cut.apply(name, width)).collect();
            cut.len() == names.len()
        })
    }

    /// Widths that leave room for the last column: one character less of the widest that can be cut, again and again.
    fn squeezed(&self, room: usize) -> Vec<usize> {
        let natural = self.widths();
        let mut widths = natural.clone();
        let Some((last, names)) = widths.split_last_mut() else { return widths };
        for (room, least) in [(room.saturating_sub((*last).min(LAST_MIN)), NAME_MIN), (room, NAME_LEAST)] {
            while names.iter().map(|name| name + GAP).sum::<usize>() > room {
                let may = |(column, width): &(usize, &mut usize)| {
                    let long = natural.get(*column).is_some_and(|natural| *natural > SHORT);
                    long && **width > least && self.cut(*column, **width - 1).is_some()
                };
                let Some((_, widest)) = names.iter_mut().enumerate().filter(may).max_by_key(|(_, width)| **width)
                else {
                    break;
                };
                *widest -= 1;
            }
        }
        widths
    }

    /// The text.
    pub(crate) fn render(&self, out: Out) -> String {
        let widths = out.width.map_or_else(|| self.widths(), |room| self.squeezed(room));
        let cuts: Vec<Cut> =
            widths.iter().enumerate().map(|(column, width)| self.cut(column, *width).unwrap_or(Cut::End)).collect();
        // Names in the last column are cut like others.
        let prose = self.rows.iter().filter_map(|row| row.last()).any(|(_, cell)| cell.contains(' '));
        let mut text = String::new();
        for row in &self.rows {
            let mut used = 0;
            for (column, (tone, cell)) in row.iter().enumerate() {
                let last = column + 1 == row.len();
                let width = widths.get(column).copied().unwrap_or_default();
                let cell = match out.width {
                    Some(whole) if last && !prose => Cut::Middle.apply(cell, whole.saturating_sub(used)),
                    Some(whole) if last && used + cell.chars().count() > whole => {
                        text.truncate(text.trim_end_matches(' ').len());
                        text.push_str(&self.below(out, *tone, cell, whole));
                        break;
                    }
                    Some(_) => cuts.get(column).copied().unwrap_or(Cut::End).apply(cell, width),
                    None => cell.clone(),
                };
                let pad = width.saturating_sub(cell.chars().count());
                text.push_str(&out.paint(*tone, &cell));
                if !last {
                    text.extend(std::iter::repeat_n(' ', pad + GAP));
                }
                used += cell.chars().count() + pad + GAP;
            }
            text.truncate(text.trim_end_matches(' ').len());
            text.push('\n');
        }
        text
    }

    /// A last cell that does not fit behind the others.
    fn below(&self, out: Out, tone: Tone, cell: &str, width: usize) -> String {
        let lines = broken(cell, width, BELOW, BELOW);
        let most = if self.whole { lines.len() } else { LINES };
        let shown = lines.iter().take(most).enumerate().map(|(number, line)| {
            let line = if number + 1 == most && lines.len() > most { format!("{line} …") } else { line.clone() };
            let line = if self.whole { line } else { Cut::End.apply(&line, width) };
            format!("\n{BELOW}{}", out.paint(tone, line.trim_start()))
        });
        shown.collect()
    }
}

/// Blanks between columns.
const GAP: usize = 3;

/// Where what is too long is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// What tells names apart is at both ends: a pool and a hash.
    Middle,
    /// What tells them apart is in front: hosts of a domain.
    End,
}

impl Cut {
    /// The text within so many characters.
    fn apply(self, text: &str, room: usize) -> String {
        let tail = if self == Self::Middle { room.saturating_sub(1) / 2 } else { 0 };
        shortened(text, room, tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&["NODE", "STATE", "MESSAGE"]);
        table.row([(Tone::Plain, "node-1".into()), (Tone::Good, "proven".into()), (Tone::Plain, String::new())]);
        table.row([(Tone::Plain, "n2".into()), (Tone::Bad, "failed".into()), (Tone::Plain, "ä".repeat(70))]);
        table
    }

    #[test]
    fn a_terminal_gets_no_line_longer_than_itself() {
        let text = table().render(Out { colour: false, width: Some(80) });
        assert_eq!(text.lines().map(|line| line.chars().count()).max(), Some(80));
        let coloured = table().render(Out { colour: true, width: Some(80) });
        assert!(coloured.contains("\u{1b}[32mproven\u{1b}[0m   -"));
    }

    #[test]
    fn what_is_too_long_stands_below_its_row() {
        let words = "word ".repeat(40);
        let cells = || [(Tone::Plain, "n1".to_owned()), (Tone::Bad, "failed".into()), (Tone::Plain, words.clone())];
        let narrow = Out { colour: false, width: Some(40) };
        let mut table = Table::new(&["NODE", "STATE", "MESSAGE"]);
        table.row(cells());
        let text = table.render(narrow);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        let line = format!("    {}", ["word"; 7].join(" "));
        assert_eq!(lines, ["n1     failed", &line, &line, &format!("{line} …")], "{text}");
        let mut table = Table::new(&["NODE", "STATE", "MESSAGE"]).whole();
        table.row(cells());
        assert_eq!(table.render(narrow).matches("word").count(), 40);
        assert_eq!(table.render(Out { colour: false, width: None }).lines().count(), 2, "no terminal: a line a row");
    }

    #[test]
    fn on_narrow_terminals_names_still_differ() {
        let mut table = Table::new(&["NODE", "ASSIGNED", "STATE", "AGE", "MESSAGE"]);
        let map = "kubelet-pool-memory-optimised-hf7m2k9d5t";
        for host in 110..130 {
            let name = format!("ip-10-0-113-{host}.eu-central-1.compute.internal");
            let cells = [name.as_str(), map, "to confirm 28m", "6m41s", "the kubelet refuses it: unknown field"];
            table.row(cells.map(|cell| (Tone::Plain, cell.to_owned())));
        }
        let text = table.render(Out { colour: false, width: Some(80) });
        let lines: Vec<&str> = text.lines().skip(1).take(2).collect();
        let row = "ip-10-0-113-110.e…   kubelet-p…7m2k9d5t   to confirm 28m   6m41s";
        assert_eq!(lines, [row, "    the kubelet refuses it: unknown field"], "{text}");
        assert!(table.render(Out { colour: false, width: None }).contains(map), "not a terminal: whole");
        let narrow = table.render(Out { colour: false, width: Some(60) });
        assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
        let mut names = Table::new(&["WAVE", "NODE"]);
        names.row([(Tone::Plain, "canary".into()), (Tone::Plain, map.into())]);
        let line = "canary   kubelet-po…f7m2k9d5t";
        assert_eq!(names.render(Out { colour: false, width: Some(line.chars().count()) }).lines().nth(1), Some(line));
    }

    #[test]
    fn rows_that_follow_stay_in_line() {
        let mut table = table();
        let _ = table.take(Out { colour: false, width: None });
        table.row([(Tone::Plain, "n".into()), (Tone::Plain, "x".into()), (Tone::Plain, "y".into())]);
        assert_eq!(table.take(Out { colour: false, width: None }), "n        x        y\n");
    }
}
