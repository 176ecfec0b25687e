//! What is printed, and how: colours on terminals only, lines within their width, and machine formats.

use std::io::{self, IsTerminal, Write as _};
use std::os::fd::AsFd;

use clap::ValueEnum;
use serde_json::Value;

pub(crate) use super::table::Table;
use crate::failure::Failure;
pub(crate) use crate::fleet::view::Tone;
pub(crate) use kubelet_config::bounds::{broken, plain};

/// `-o`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
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

impl Format {
    pub(crate) fn is_for_programs(self) -> bool {
        matches!(self, Self::Json | Self::Yaml)
    }
}

/// Where output goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    /// ANSI colours may be used.
    pub(crate) colour: bool,
    /// Columns of the terminal; none if it is not one.
    pub(crate) width: Option<usize>,
}

impl Out {
    /// Standard output: colours unless NO_COLOR (no-color.org) or TERM=dumb.
    pub(crate) fn stdout() -> Self {
        Self::for_stream(&io::stdout())
    }

    /// The same for what is said beside.
    pub(crate) fn stderr() -> Self {
        Self::for_stream(&io::stderr())
    }

    fn for_stream(stream: &(impl IsTerminal + AsFd)) -> Self {
        let width = exposition::terminal_columns(stream);
        let plain = std::env::var_os("NO_COLOR").is_some_and(|it| !it.is_empty())
            || std::env::var_os("TERM").is_some_and(|it| it == "dumb");
        Self { colour: width.is_some() && !plain, width }
    }

    /// The same for this format: wide lines are as long as they are.
    pub(crate) fn for_format(format: Format) -> Self {
        let out = Self::stdout();
        if format == Format::Wide { Self { width: None, ..out } } else { out }
    }

    /// The text in the colour of its tone.
    pub(crate) fn paint(self, tone: Tone, text: &str) -> String {
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
pub(crate) fn write_stdout(text: &str) -> Result<(), Failure> {
    try_write_stdout(text).map(drop)
}

/// The same for what has no end: false if the reader went away.
pub(crate) fn try_write_stdout(text: &str) -> Result<bool, Failure> {
    match io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(format!("standard output: {error}"))),
    }
}

/// Back to the beginning of the terminal's line, and nothing on it.
pub(crate) const ERASE: &str = "\r\u{1b}[2K";

/// A line on standard error; on a terminal in the place of a bar that may stand there.
pub(crate) fn note(text: &str) {
    let erase = if io::stderr().is_terminal() { ERASE } else { "" };
    eprintln!("{erase}{}", plain(text));
}

/// A line, on a terminal broken between words; what follows the first is indented.
pub(crate) fn paragraph(out: Out, tone: Tone, text: &str) -> String {
    let lines = broken(text, out.width.unwrap_or(usize::MAX), "", "  ");
    lines.iter().map(|line| out.paint(tone, line) + "\n").collect()
}

/// A line that fits the terminal, the part before the colon in this tone.
pub(crate) fn headed(out: Out, tone: Tone, head: &str, text: &str) -> String {
    let line = paragraph(Out { colour: false, ..out }, Tone::Plain, &format!("{head}: {text}"));
    match line.strip_prefix(head) {
        Some(rest) => out.paint(tone, head) + rest,
        // A head of several lines.
        None => line,
    }
}

/// Prints what a command has to say: a document for programs, or a text for people.
pub(crate) fn show(
    format: Format,
    document: impl FnOnce() -> Value,
    text: impl FnOnce(Out) -> String,
) -> Result<(), Failure> {
    if format.is_for_programs() {
        return self::document(format, &document());
    }
    write_stdout(&text(Out::for_format(format)))
}

/// Lines below a table, apart from it by an empty one.
pub(crate) fn below(out: Out, lines: &[(Tone, String)]) -> String {
    let lines = lines.iter().map(|(tone, line)| paragraph(out, *tone, line));
    lines.enumerate().map(|(number, line)| if number == 0 { format!("\n{line}") } else { line }).collect()
}

/// Prints a value as JSON or YAML.
pub(crate) fn document(format: Format, value: &Value) -> Result<(), Failure> {
    write_stdout(&text_of(format, value)?)
}

/// A value as JSON or YAML.
pub(crate) fn text_of(format: Format, value: &Value) -> Result<String, Failure> {
    if format == Format::Yaml {
        return serde_yaml::to_string(value)
            .map_err(|error| Failure::new(format!("this cannot be written as YAML (-o json can): {error}")));
    }
    Ok(format!("{value:#}\n"))
}

/// Text of several lines without what would steer a terminal.
pub(crate) fn plain_lines(text: &str) -> String {
    text.lines().map(plain).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_fit_a_terminal_and_obey_nothing() {
        let words = "a note\n with \u{1b}[31m words that are too many for a narrow terminal";
        let text = paragraph(Out { colour: false, width: Some(20) }, Tone::Plain, words);
        assert!(text.lines().all(|line| line.chars().count() <= 20 && !line.contains('\u{1b}')), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with("  ")), "{text}");
        let whole = paragraph(Out { colour: false, width: None }, Tone::Plain, words);
        assert_eq!(whole, "a note with \\u{1b}[31m words that are too many for a narrow terminal\n");
    }
}
