//! What is wrong with a text, as its author is told: where, what, and what to write instead. The parser's own messages are
//! for those who program with it.

use serde_yaml::granit_parser::{ErrorKind, ScanError, Span};

use crate::bounds::{plain, shortened};

/// A real KubeletConfiguration has under 500 nodes. The bounds leave it a hundredfold and end an alias bomb within
/// milliseconds.
pub(super) const MAX_NODES: usize = 50_000;

/// Mappings and lists in one another.
pub(super) const MAX_DEPTH: usize = 64;

/// Characters of the text that a message quotes.
const QUOTED: usize = 60;

/// Characters of a message that is not ours.
const LONGEST: usize = 200;

/// Why a text cannot be read.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    /// Line and column, from 1 on.
    pub(super) place: Option<(usize, usize)>,
    pub(super) what: What,
}

#[derive(Clone, Debug)]
pub(super) enum What {
    Syntax(ErrorKind),
    ControlCharacter,
    /// An escape of JSON in YAML.
    Escape,
    Ends,
    MoreDocuments,
    /// It is infinite, or not a number.
    NoNumber(String),
    NotItsTag,
    /// A field's name is no text, and cannot become one.
    NoName,
    /// Behind `<<`.
    NoMapping,
    TooDeep,
    TooMany,
    Aliases,
}

impl Fault {
    pub(super) fn at(span: &Span, what: What) -> Self {
        Self { place: Some((span.start.line(), span.start.col() + 1)), what }
    }

    pub(super) fn syntax(error: &ScanError) -> Self {
        let at = error.marker();
        Self { place: Some((at.line(), at.col() + 1)), what: What::Syntax(error.kind().clone()) }
    }

    /// One line: where it is, what is wrong, and what to do.
    pub(super) fn explain(&self) -> String {
        let place = self.place.map(|(line, column)| format!("line {line}, column {column}: "));
        format!("{}{}", place.unwrap_or_default(), message(&self.what))
    }
}

/// Which field stands twice, and where it does so again.
pub(super) fn twice(name: &str, span: &Span) -> String {
    format!("{}, line {}, column {}", shown(name), span.start.line(), span.start.col() + 1)
}

fn message(what: &What) -> String {
    let text = match what {
        What::Syntax(kind) => return syntax(kind),
        What::ControlCharacter => "a control character",
        What::Escape => {
            "an escape of JSON, which YAML has not: write / without \\, and a character as it is, or all of it as JSON"
        }
        What::Ends => "it ends in the middle of a value",
        What::MoreDocuments => {
            "it holds more than one YAML document (---), and the kubelet would silently ignore all but the first: keep one"
        }
        What::NoNumber(value) => {
            return format!(
                "{} is no number in JSON, which the kubelet turns it into: quote it if it is a text",
                shown(value)
            );
        }
        What::NotItsTag => "a value that is not what its tag (!!) says: leave the tag out",
        What::NoName => "the name of a field must be a text",
        What::NoMapping => "<< takes an alias of a mapping (<<: *NAME), or a list of them",
        What::TooDeep => return too_deep(),
        What::TooMany => return format!("more than {MAX_NODES} values: no configuration of a kubelet is that large"),
        What::Aliases => {
            "its aliases (*NAME) grow to more than a configuration of a kubelet can be: write the values out"
        }
    };
    text.to_owned()
}

/// Where the text is no YAML. What is not here has libyaml's messages, which kubectl and the kubelet show too.
fn syntax(kind: &ErrorKind) -> String {
    let text = match kind {
        ErrorKind::TabNotAllowed
        | ErrorKind::TabInBlockIndentation
        | ErrorKind::TabInIndentation
        | ErrorKind::TabAtBlockScalarStart
        | ErrorKind::TabInPlainScalar => "a tab, which YAML does not indent with: use blanks",
        ErrorKind::MappingValueNotAllowed | ErrorKind::MappingKeyNotAllowed => {
            "a field where none can be: indent it like its neighbours, or quote a value that holds \": \""
        }
        ErrorKind::SimpleKeyExpected | ErrorKind::InvalidSimpleKey | ErrorKind::ExpectedBlockMappingKey => {
            "a line that is no field: write NAME: VALUE, and indent it like its neighbours"
        }
        ErrorKind::InvalidIndentation
        | ErrorKind::InvalidFlowScalarIndent
        | ErrorKind::InvalidBlockScalarIndent
        | ErrorKind::ExpectedBlockSequenceEntry => "wrong indentation: fields of one mapping begin in the same column",
        ErrorKind::BlockSequenceEntryNotAllowed => {
            "a list (-) behind a field, in its line: begin it on a line of its own"
        }
        ErrorKind::UnclosedQuotedScalar => "a quote that is never closed",
        ErrorKind::InvalidQuotedScalarIndent => "a quote that is not closed before this line",
        ErrorKind::UnknownQuotedScalarEscape => {
            "an unknown escape: between double quotes write \\\\ for \\, or use single quotes"
        }
        ErrorKind::UnclosedFlowCollection { open } => return format!("'{open}' is never closed"),
        ErrorKind::UnexpectedEofFlowSequence
        | ErrorKind::UnexpectedEofFlowMapping
        | ErrorKind::UnexpectedEofImplicitFlowMapping => "a field or value is missing, or a bracket is never closed",
        ErrorKind::ExpectedFlowSequenceSeparator => "a list without ',' or ']' where it must go on or end",
        ErrorKind::ExpectedFlowMappingSeparator => "a mapping without ',' or '}' where it must go on or end",
        ErrorKind::MisplacedFlowCollectionEnd => "a bracket is closed that was not opened",
        ErrorKind::MismatchedFlowCollectionEnd { open, close } => return format!("'{open}' is closed by '{close}'"),
        ErrorKind::UnexpectedEof | ErrorKind::UnexpectedEofBlockSequence | ErrorKind::UnexpectedEofBlockMapping => {
            "it ends in the middle of a value"
        }
        ErrorKind::UnknownAnchor => {
            "an alias (*NAME) without an anchor (&NAME) above it: write the value out, or quote what begins with *"
        }
        ErrorKind::MissingAnchorOrAliasName => {
            "an alias (*NAME) without an anchor (&NAME) above it: write the value out, or quote what begins with * or &"
        }
        ErrorKind::UndeclaredTagHandle | ErrorKind::InvalidTagTerminator => {
            "a tag that cannot be read: leave it out, or quote what begins with !"
        }
        ErrorKind::UnexpectedCharacter { character } if character.is_control() => "a control character",
        ErrorKind::UnexpectedCharacter { character } => {
            return format!("unexpected '{}': quote a value that begins with it", plain(&character.to_string()));
        }
        ErrorKind::RecursionLimitExceeded => return too_deep(),
        kind => return one_line(&kind.to_string()),
    };
    text.to_owned()
}

fn too_deep() -> String {
    format!("more than {MAX_DEPTH} levels deep: no configuration of a kubelet is")
}

/// A text of the document: in one line, and not a long one.
fn shown(text: &str) -> String {
    plain(&shortened(text, QUOTED, 0))
}

/// It can run over several lines and quote the document: the first line, short.
fn one_line(text: &str) -> String {
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("unreadable");
    plain(&line.trim().chars().take(LONGEST).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    /// What somebody who writes a configuration is told of it: where, what, and what to do. Nothing is of the parser's interface.
    #[test]
    fn what_the_author_is_told() {
        let indent = "a field where none can be: indent it like its neighbours, or quote a value that holds \": \"";
        let no_field = "a line that is no field: write NAME: VALUE, and indent it like its neighbours";
        let tab = "a tab, which YAML does not indent with: use blanks";
        let alias =
            "an alias (*NAME) without an anchor (&NAME) above it: write the value out, or quote what begins with *";
        let json = "is no number in JSON, which the kubelet turns it into: quote it if it is a text";
        let bracket = "a field or value is missing, or a bracket is never closed";
        for (text, place, told) in [
            ("", "", "it is empty"),
            ("- 1\n- 2\n", "", "it is a list, not a mapping of fields (NAME: VALUE)"),
            ("a:1\n", "", "it is a single value, not a mapping of fields (NAME: VALUE)"),
            (
                "a: 1\n---\nb: 2\n",
                "3:1",
                "it holds more than one YAML document (---), and the kubelet would silently ignore all but the first: keep one",
            ),
            ("a: [1, 2", "1:4", "'[' is never closed"),
            ("a: [1, 2}\n", "1:4", "'[' is closed by '}'"),
            ("a: {b: 1}}\n", "1:10", "a bracket is closed that was not opened"),
            ("{\"a\": 1 \"b\": 2}", "1:12", "a mapping without ',' or '}' where it must go on or end"),
            ("{\"a\": 1,, \"b\": 2}", "1:9", bracket),
            ("a: 'x\nb: 2\n", "2:1", "a quote that is not closed before this line"),
            ("a: \"\\q\"\n", "1:4", "an unknown escape: between double quotes write \\\\ for \\, or use single quotes"),
            ("a:\n\tb: 1\n", "2:2", tab),
            ("a:\n  b: 1\n\tc: 2\n", "2:6", tab),
            ("a: b: c\n", "1:5", indent),
            ("a: 1\n  b: 2\n", "2:4", indent),
            ("a:\n  b: 1\n c: 2\n", "3:2", no_field),
            ("a: 1\nb\nc: 2\n", "2:1", no_field),
            ("a: - 1\n", "1:4", "a list (-) behind a field, in its line: begin it on a line of its own"),
            ("a: @x\n", "1:4", "unexpected '@': quote a value that begins with it"),
            ("a: *missing\n", "1:4", alias),
            ("a: !!int x\n", "1:10", "a value that is not what its tag (!!) says: leave the tag out"),
            ("a: !x!y z\n", "1:4", "a tag that cannot be read: leave it out, or quote what begins with !"),
            ("a: .nan\n", "1:4", &format!(".nan {json}")),
            ("a: -.INF\n", "1:4", &format!("-.inf {json}")),
            ("<<: 1\n", "1:5", "<< takes an alias of a mapping (<<: *NAME), or a list of them"),
            ("? [a]\n: 1\n", "1:3", "the name of a field must be a text"),
            (
                "a: &x [*x]\n",
                "1:8",
                "its aliases (*NAME) grow to more than a configuration of a kubelet can be: write the values out",
            ),
            ("\u{0}\u{1}", "1:1", "a control character"),
            (&format!("a: {}", "[".repeat(500)), "1:259", "more than 64 levels deep: no configuration of a kubelet is"),
            (
                &format!("a: {}1", "{a: ".repeat(100)),
                "1:256",
                "more than 64 levels deep: no configuration of a kubelet is",
            ),
            (
                &format!("a: [{}]", "1,".repeat(60_000)),
                "1:99999",
                "more than 50000 values: no configuration of a kubelet is that large",
            ),
        ] {
            let place = place.split_once(':').map(|(line, column)| format!("line {line}, column {column}: "));
            let shown: String = text.chars().take(40).collect();
            assert_eq!(parse(text).unwrap_err(), format!("{}{told}", place.unwrap_or_default()), "{shown:?}");
        }
    }

    #[test]
    fn which_field_stands_twice() {
        let duplicate = |text: &str| parse(text).unwrap().duplicate.unwrap();
        assert_eq!(duplicate("a: 1\nb: 2\na: 3\n"), "a, line 3, column 1");
        assert_eq!(duplicate("a: 1\nb: {c: 2, c: 4}\n"), "c, line 2, column 11");
        let long = duplicate(&format!("{0}: 1\n{0}: 2\n", "x".repeat(90)));
        assert!(long.starts_with(&format!("{}…, line", "x".repeat(59))), "{long}");
    }
}
