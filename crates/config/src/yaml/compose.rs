//! A document out of the parser's events, as the kubelet's decoder puts it together.
//!
//! Upstream: decode.go of gopkg.in/yaml.v2 (v2.2.8 to v2.4.0) for `<<`, keys that stand twice, anchors and aliases;
//! yaml.go of sigs.k8s.io/yaml (v1.2.0 to v1.6.0) for what JSON can have.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use serde_yaml::granit_parser::{Event, Options, Parser, ScalarStyle, Span, StrInput, Tag};

use super::fault::{Fault, MAX_DEPTH, MAX_NODES, What, twice};
use super::scalar::{Scalar, resolve};

/// What anchors and aliases may copy: bytes of text, and as much for each value.
const MAX_COPIED: usize = 2 << 20;
const VALUE: usize = 16;

/// How scalars are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// The kubelet's YAML.
    Yaml,
    /// JSON, which it does not convert: `1.0` is no integer there, and escapes are JSON's.
    Json,
}

/// The first document of a text.
#[derive(Debug)]
pub(super) struct Composed {
    pub(super) value: Value,
    /// The field that stands twice, and where: the last one won.
    pub(super) duplicate: Option<String>,
    /// What comes after it: a document, or no YAML.
    pub(super) rest: Option<Fault>,
}

pub(super) fn compose(text: &str, dialect: Dialect) -> Result<Composed, Fault> {
    if dialect == Dialect::Yaml {
        no_control_characters(text)?;
    }
    let mut options = Options::default();
    options.set_emit_comments(false);
    let events = Parser::new_from_str_with_options(text, options);
    let (anchors, duplicate) = (BTreeMap::new(), None);
    let mut composer = Composer { text, dialect, events, anchors, duplicate, nodes: 0, depth: 0, weight: 0, copied: 0 };
    let mut value = Value::Null;
    loop {
        match composer.next()? {
            (Event::StreamStart | Event::DocumentStart(..), _) => {}
            (Event::StreamEnd, _) => return Ok(Composed { value, duplicate: composer.duplicate, rest: None }),
            (Event::DocumentEnd, _) => break,
            (event, span) => value = composer.value(event, &span)?,
        }
    }
    let rest = composer.rest();
    Ok(Composed { value, duplicate: composer.duplicate, rest })
}

/// Any of them makes the decoder refuse the whole stream (yaml_parser_update_buffer, readerc.go).
fn no_control_characters(text: &str) -> Result<(), Fault> {
    let is_one = |c: char| (c.is_control() && !"\t\n\r\u{85}".contains(c)) || matches!(c, '\u{fffe}' | '\u{ffff}');
    let Some((before, _)) = text.find(is_one).and_then(|at| text.split_at_checked(at)) else { return Ok(()) };
    let line = before.lines().last().filter(|_| !before.ends_with('\n')).unwrap_or_default();
    let place = (before.matches('\n').count() + 1, line.chars().count() + 1);
    Err(Fault { place: Some(place), what: What::ControlCharacter })
}

/// What an event came to: a scalar can be the name of a field, and has another form there.
#[derive(Clone)]
enum Node {
    Scalar(Scalar),
    Tree(Value),
}

struct Anchored {
    node: Node,
    nodes: usize,
    weight: usize,
}

struct Composer<'a> {
    text: &'a str,
    dialect: Dialect,
    events: Parser<'a, StrInput<'a>>,
    anchors: BTreeMap<usize, Anchored>,
    duplicate: Option<String>,
    nodes: usize,
    depth: usize,
    /// Of the nodes so far: their number and their text.
    weight: usize,
    copied: usize,
}

impl<'a> Composer<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), Fault> {
        match self.events.next_event() {
            Some(Ok(found)) => Ok(found),
            Some(Err(error)) => Err(Fault::syntax(&error)),
            None => Err(Fault { place: None, what: What::Ends }),
        }
    }

    fn value(&mut self, event: Event<'a>, span: &Span) -> Result<Value, Fault> {
        match self.node(event, span)? {
            Node::Tree(value) => Ok(value),
            Node::Scalar(scalar) => {
                let shown = scalar.clone().name();
                scalar.value().ok_or_else(|| Fault::at(span, What::NoNumber(shown.unwrap_or_default())))
            }
        }
    }

    fn node(&mut self, event: Event<'a>, span: &Span) -> Result<Node, Fault> {
        let (nodes, weight) = (self.nodes, self.weight);
        self.count(1, VALUE, span)?;
        let (node, anchor) = match event {
            Event::Alias(id) => return self.alias(id, span),
            Event::Scalar(text, style, anchor, tag) => {
                self.count(0, text.len(), span)?;
                if self.dialect == Dialect::Json && style == ScalarStyle::Plain {
                    let value = serde_json::from_str(&text);
                    return value.map(Node::Tree).map_err(|_| Fault::at(span, What::NoNumber(text.into_owned())));
                }
                (Node::Scalar(self.scalar(&text, style, tag.as_deref(), span)?), anchor)
            }
            Event::SequenceStart(_, anchor, _) => (Node::Tree(self.nested(span, Self::list)?), anchor),
            Event::MappingStart(_, anchor, _) => (Node::Tree(self.nested(span, Self::mapping)?), anchor),
            _ => return Err(Fault::at(span, What::Ends)),
        };
        if anchor != 0 {
            let (nodes, weight) = (self.nodes - nodes, self.weight - weight);
            self.copy(weight, span)?;
            self.anchors.insert(anchor, Anchored { node: node.clone(), nodes, weight });
        }
        Ok(node)
    }

    fn count(&mut self, nodes: usize, weight: usize, span: &Span) -> Result<(), Fault> {
        self.nodes += nodes;
        self.weight += weight;
        if self.nodes > MAX_NODES { Err(Fault::at(span, What::TooMany)) } else { Ok(()) }
    }

    fn copy(&mut self, weight: usize, span: &Span) -> Result<(), Fault> {
        self.copied += weight;
        if self.copied > MAX_COPIED { Err(Fault::at(span, What::Aliases)) } else { Ok(()) }
    }

    /// One that is within its own anchor has none yet, and would have no end.
    fn alias(&mut self, id: usize, span: &Span) -> Result<Node, Fault> {
        let Some(Anchored { nodes, weight, .. }) = self.anchors.get(&id) else {
            return Err(Fault::at(span, What::Aliases));
        };
        let (nodes, weight) = (*nodes, *weight);
        self.copy(weight, span)?;
        self.count(nodes, weight, span).map_err(|_| Fault::at(span, What::Aliases))?;
        let found = self.anchors.get(&id).map(|anchored| anchored.node.clone());
        found.ok_or_else(|| Fault::at(span, What::Aliases))
    }

    fn scalar(&self, text: &str, style: ScalarStyle, tag: Option<&Tag>, span: &Span) -> Result<Scalar, Fault> {
        let source = span.slice(self.text).unwrap_or_default();
        if style == ScalarStyle::DoubleQuoted && self.dialect == Dialect::Yaml && has_json_escape(source) {
            return Err(Fault::at(span, What::Escape));
        }
        let mut text = text;
        if matches!(style, ScalarStyle::Literal | ScalarStyle::Folded) && self.ends_the_text(span) {
            text = text.strip_suffix('\n').unwrap_or(text);
        }
        match tag.map(|tag| format!("{}{}", tag.handle(), tag.suffix())) {
            None if style != ScalarStyle::Plain => Ok(Scalar::Text(text.to_owned())),
            tag => resolve(tag.as_deref(), text).map_err(|()| Fault::at(span, What::NotItsTag)),
        }
    }

    /// The decoder gives a block scalar no line break that is not there.
    fn ends_the_text(&self, span: &Span) -> bool {
        !self.text.ends_with(['\n', '\r']) && span.end.byte_offset().is_some_and(|end| end >= self.text.len())
    }

    fn nested(&mut self, span: &Span, of: fn(&mut Self) -> Result<Value, Fault>) -> Result<Value, Fault> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Fault::at(span, What::TooDeep));
        }
        let value = of(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn list(&mut self) -> Result<Value, Fault> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(items.into()),
                (event, span) => items.push(self.value(event, &span)?),
            }
        }
    }

    fn mapping(&mut self) -> Result<Value, Fault> {
        let mut fields = Map::new();
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                return Ok(fields.into());
            }
            let merges = self.dialect == Dialect::Yaml && is_merge(&event);
            let name = match self.node(event, &span)? {
                _ if merges => None,
                Node::Scalar(scalar) => scalar.name(),
                Node::Tree(_) => None,
            };
            if !merges && name.is_none() {
                return Err(Fault::at(&span, What::NoName));
            }
            if let Some(name) = name.as_ref().filter(|name| fields.contains_key(*name)) {
                self.duplicate.get_or_insert_with(|| twice(name, &span));
            }
            let (event, at) = self.next()?;
            let Some(name) = name else {
                for more in self.merged(event, &at)? {
                    for (name, value) in more {
                        if fields.contains_key(&name) {
                            self.duplicate.get_or_insert_with(|| twice(&name, &span));
                        }
                        fields.insert(name, value);
                    }
                }
                continue;
            };
            fields.insert(name, self.value(event, &at)?);
        }
    }

    /// The mappings behind a `<<`, the one that counts most at the end. They win over the fields above them.
    fn merged(&mut self, event: Event<'a>, span: &Span) -> Result<Vec<Map<String, Value>>, Fault> {
        let is_list = matches!(event, Event::SequenceStart(..));
        let map = |value| match value {
            Value::Object(fields) => Ok(fields),
            _ => Err(Fault::at(span, What::NoMapping)),
        };
        match self.node(event, span)? {
            Node::Tree(Value::Array(items)) if is_list => items.into_iter().rev().map(map).collect(),
            Node::Tree(value) => Ok(vec![map(value)?]),
            Node::Scalar(_) => Err(Fault::at(span, What::NoMapping)),
        }
    }

    /// What comes after the document. Documents without content are none.
    fn rest(&mut self) -> Option<Fault> {
        loop {
            match self.next() {
                Ok((Event::StreamEnd, _)) => return None,
                Ok((Event::DocumentStart(..) | Event::DocumentEnd, _)) => {}
                Ok((_, span)) => return Some(Fault::at(&span, What::MoreDocuments)),
                Err(fault) => return Some(fault),
            }
        }
    }
}

/// `isMerge` of decode.go.
fn is_merge(event: &Event<'_>) -> bool {
    let Event::Scalar(text, style, _, tag) = event else { return false };
    let tag = tag.as_ref().map(|tag| format!("{}{}", tag.handle(), tag.suffix()));
    text == "<<"
        && match tag.as_deref() {
            None => *style == ScalarStyle::Plain,
            Some(tag) => matches!(tag, "!" | "tag:yaml.org,2002:merge"),
        }
}

/// What JSON escapes and this decoder does not: a slash, and a character in two halves (yaml_parser_scan_flow_scalar,
/// scannerc.go, v2.2.8).
fn has_json_escape(source: &str) -> bool {
    let mut rest = source;
    while let Some((_, escape)) = rest.split_once('\\') {
        let half = |digits: &str| {
            digits.starts_with(['d', 'D']) && digits.as_bytes().get(1).is_some_and(|c| b"89abcdefABCDEF".contains(c))
        };
        if escape.starts_with('/') || escape.strip_prefix('u').is_some_and(half) {
            return true;
        }
        let mut chars = escape.chars();
        chars.next(); // a second backslash begins no escape
        rest = chars.as_str();
    }
    false
}
