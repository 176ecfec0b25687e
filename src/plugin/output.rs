//! Tables as kubectl prints them, colours on terminals only, and machine formats.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal as _, Write as _};

use clap::ValueEnum;
use serde_json::Value;

use super::Failure;
pub use crate::core::fleet::view::Mood as Tone;

/// `-o`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people, within the terminal's width.
    #[default]
    Table,
    /// All columns.
    Wide,
    /// For programs.
    Json,
    /// For programs and people.
    Yaml,
}

/// Where output goes.
#[derive(Clone, Copy, Debug)]
pub struct Out {
    /// ANSI colours may be used.
    pub colour: bool,
    /// Columns of the terminal; none if it is not one.
    pub width: Option<usize>,
}

impl Out {
    /// Standard output: colours unless NO_COLOR (no-color.org) or TERM=dumb.
    #[must_use]
    pub fn stdout() -> Self {
        let terminal = io::stdout().is_terminal();
        let plain = std::env::var_os("NO_COLOR").is_some_and(|it| !it.is_empty())
            || std::env::var_os("TERM").is_some_and(|it| it == "dumb");
        let columns = std::env::var("COLUMNS").ok().and_then(|it| it.parse().ok());
        Self { colour: terminal && !plain, width: terminal.then(|| columns.unwrap_or(80)) }
    }

    /// The same for this format: wide lines are as long as they are.
    #[must_use]
    pub fn of(format: Format) -> Self {
        let out = Self::stdout();
        if format == Format::Wide { Self { width: None, ..out } } else { out }
    }

    /// The text in the colour of its tone.
    #[must_use]
    pub fn paint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Good => "32",
            Tone::Open => "33",
            Tone::Bad => "31",
            Tone::Plain => return text.to_owned(),
        };
        if self.colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

/// Writes to standard output. A reader that went away (`| head`) is no failure.
///
/// # Errors
/// The output cannot be written.
pub fn print(text: &str) -> Result<(), Failure> {
    offer(text).map(drop)
}

/// The same for what has no end: false if the reader went away.
///
/// # Errors
/// See [`print`].
pub fn offer(text: &str) -> Result<bool, Failure> {
    match io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(format!("standard output: {error}"))),
    }
}

/// A line, on a terminal broken between words; what follows the first is indented.
#[must_use]
pub fn paragraph(out: Out, tone: Tone, text: &str) -> String {
    let width = out.width.unwrap_or(usize::MAX);
    let mut lines = vec![String::new()];
    for word in plain(text).split_whitespace() {
        let line = lines.last().map_or(0, |line| line.chars().count());
        if line > 2 && line.saturating_add(1).saturating_add(word.chars().count()) > width {
            lines.push("  ".to_owned());
        }
        let Some(line) = lines.last_mut() else { continue };
        if !line.trim().is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.iter().map(|line| out.paint(tone, line) + "\n").collect()
}

/// Prints a value as JSON or YAML.
///
/// # Errors
/// See [`print`].
pub fn document(format: Format, value: &Value) -> Result<(), Failure> {
    print(&text_of(format, value)?)
}

/// A value as JSON or YAML.
///
/// # Errors
/// It has no YAML.
pub fn text_of(format: Format, value: &Value) -> Result<String, Failure> {
    if format == Format::Yaml {
        return serde_yaml::to_string(value).map_err(|error| Failure::new(format!("as YAML: {error}")));
    }
    Ok(format!("{value:#}\n"))
}

/// The text without what would move a terminal's cursor, change its colours or turn its writing round.
#[must_use]
pub fn plain(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let shown = |c: char| match c {
        '\n' | '\t' => " ".to_owned(),
        c if c.is_control() || turns(c) => c.escape_default().to_string(),
        c => c.to_string(),
    };
    text.chars().map(shown).collect()
}

/// The same for text of several lines.
#[must_use]
pub fn plain_lines(text: &str) -> String {
    text.lines().map(plain).collect::<Vec<_>>().join("\n")
}

/// A column of names is cut to no less than this where the terminal is narrow, ...
const NAME_MIN: usize = 12;

/// ... and one that is no wider than this by itself is not cut: states, ages, versions.
const SHORT: usize = 20;

/// The last column gets so much of a terminal, if names can be cut for it.
const LAST_MIN: usize = 24;

/// Columns as kubectl aligns them: three blanks between, the last one as long as it wants. On a terminal no line is
/// longer than it is wide: the last column is cut at its end, and names so that they still differ.
#[derive(Clone, Debug, Default)]
pub struct Table {
    rows: Vec<Vec<(Tone, String)>>,
    /// Widths of what was printed before, for rows that follow.
    floor: Vec<usize>,
}

impl Table {
    /// With these headings.
    #[must_use]
    pub fn new(headings: &[&str]) -> Self {
        let headings = headings.iter().map(|heading| (Tone::Plain, (*heading).to_owned())).collect();
        Self { rows: vec![headings], floor: Vec::new() }
    }

    /// Adds a row; what is empty is shown as `-`, what would upset a terminal is escaped.
    pub fn row(&mut self, cells: impl IntoIterator<Item = (Tone, String)>) {
        let shown = |text: String| if text.is_empty() { "-".to_owned() } else { plain(&text) };
        self.rows.push(cells.into_iter().map(|(tone, text)| (tone, shown(text))).collect());
    }

    /// The text of what was added since the last time, in columns at least as wide as before.
    #[must_use]
    pub fn take(&mut self, out: Out) -> String {
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
        let room = room.saturating_sub((*last).min(LAST_MIN));
        while names.iter().map(|name| name + GAP).sum::<usize>() > room {
            let may = |(column, width): &(usize, &mut usize)| {
                let long = natural.get(*column).is_some_and(|natural| *natural > SHORT);
                long && **width > NAME_MIN && self.cut(*column, **width - 1).is_some()
            };
            let Some((_, widest)) = names.iter_mut().enumerate().filter(may).max_by_key(|(_, width)| **width) else {
                break;
            };
            *widest -= 1;
        }
        widths
    }

    /// The text.
    #[must_use]
    pub fn render(&self, out: Out) -> String {
        let widths = out.width.map_or_else(|| self.widths(), |room| self.squeezed(room));
        let cuts: Vec<Cut> =
            widths.iter().enumerate().map(|(column, width)| self.cut(column, *width).unwrap_or(Cut::End)).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut used = 0;
            for (column, (tone, cell)) in row.iter().enumerate() {
                let last = column + 1 == row.len();
                let width = widths.get(column).copied().unwrap_or_default();
                let cell = match out.width {
                    Some(whole) if last => Cut::End.apply(cell, whole.saturating_sub(used)),
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
        let length = text.chars().count();
        if length <= room || room < 2 {
            return text.to_owned();
        }
        let tail = if self == Self::Middle { (room - 1) / 2 } else { 0 };
        let head = text.chars().take(room - 1 - tail);
        head.chain(std::iter::once('…')).chain(text.chars().skip(length - tail)).collect()
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
    fn columns_line_up() {
        let text = table().render(Out { colour: false, width: None });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "NODE     STATE    MESSAGE");
        assert_eq!(lines[1], "node-1   proven   -");
        assert_eq!(lines[2], format!("n2       failed   {}", "ä".repeat(70)));
    }

    #[test]
    fn paragraphs_fit_a_terminal_and_obey_nothing() {
        let words = "a note\n with \u{1b}[31m words that are too many for a narrow terminal";
        let text = paragraph(Out { colour: false, width: Some(20) }, Tone::Plain, words);
        assert!(text.lines().all(|line| line.chars().count() <= 20 && !line.contains('\u{1b}')), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with("  ")), "{text}");
        let whole = paragraph(Out { colour: false, width: None }, Tone::Plain, words);
        assert_eq!(whole, "a note with \\u{1b}[31m words that are too many for a narrow terminal\n");
    }

    #[test]
    fn a_terminal_gets_no_line_longer_than_itself() {
        let text = table().render(Out { colour: false, width: Some(80) });
        assert_eq!(text.lines().map(|line| line.chars().count()).max(), Some(80));
        let coloured = table().render(Out { colour: true, width: Some(80) });
        assert!(coloured.contains("\u{1b}[32mproven\u{1b}[0m   -"));
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
        let line = text.lines().nth(1).unwrap();
        assert_eq!(line, "ip-10-0-113-110…   kubele…k9d5t   to confirm 28m   6m41s   the kubelet refuses …", "{text}");
        assert!(table.render(Out { colour: false, width: None }).contains(map), "not a terminal: whole");
    }

    #[test]
    fn rows_that_follow_stay_in_line() {
        let mut table = table();
        let _ = table.take(Out { colour: false, width: None });
        table.row([(Tone::Plain, "n".into()), (Tone::Plain, "x".into()), (Tone::Plain, "y".into())]);
        assert_eq!(table.take(Out { colour: false, width: None }), "n        x        y\n");
    }

    #[test]
    fn nothing_moves_the_cursor() {
        assert_eq!(plain("a\u{1b}[31mb\nc\u{202e}d\u{7}ä"), "a\\u{1b}[31mb c\\u{202e}d\\u{7}ä");
    }
}
