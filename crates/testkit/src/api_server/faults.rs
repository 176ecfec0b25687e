//! Faults that tests script: each one names the requests it is for, and how many of them it spoils.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};

use super::http::Response;
use super::state::Shared;

/// What the API server's own audit log would call the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// In a fault: every verb.
    Any,
    Get,
    List,
    Watch,
    Patch,
    Post,
    Put,
    Delete,
}

#[derive(Clone, Debug)]
pub enum FaultKind {
    /// Answers with this code and a Kubernetes Status object; 429 with `Retry-After: 1`.
    Status(u16),
    /// 429 with this many seconds in `Retry-After`.
    Throttle(u32),
    /// Accepts the request and never answers it.
    Hang,
    /// A watch: sends half of a line, then closes the connection. Anything else: half of the body.
    /// Writes are carried out all the same, only their answer is lost.
    CutMidLine,
    /// Carries the request out after this long.
    Slow(Duration),
    /// 200 and a body that is not JSON.
    Garbage,
    /// A lie.
    Answer(Answer),
    /// A watch: 200, and an ERROR event with code 410 at once. Anything else: as `Status(410)`.
    GoneInStream,
}

/// What is answered instead of the truth, whatever was asked.
#[derive(Clone, Debug)]
pub struct Answer {
    code: u16,
    header: Option<(&'static str, String)>,
    text: Bytes,
    then: Then,
    /// How often the text was sent.
    pub sent: Arc<AtomicUsize>,
}

/// What comes after the text.
#[derive(Clone, Copy, Debug)]
pub enum Then {
    End,
    Silence,
    /// The same again, for ever.
    Again,
}

impl Answer {
    pub fn new(code: u16, text: impl Into<String>, then: Then) -> Answer {
        Answer { code, header: None, text: Bytes::from(text.into()), then, sent: Arc::default() }
    }

    #[must_use]
    pub fn header(self, name: &'static str, value: &str) -> Answer {
        Answer { header: Some((name, value.to_owned())), ..self }
    }

    pub(super) fn response(self) -> (u16, Response) {
        let Answer { code, header, text, then, sent } = self;
        let count = move |text: Bytes| {
            sent.fetch_add(1, Ordering::Relaxed);
            Ok::<_, std::io::Error>(Frame::data(text))
        };
        let body = match then {
            Then::End => BodyExt::boxed(StreamBody::new(stream::iter([text]).map(count))),
            Then::Silence => BodyExt::boxed(StreamBody::new(stream::iter([text]).chain(stream::pending()).map(count))),
            Then::Again => BodyExt::boxed(StreamBody::new(stream::repeat(text).map(count))),
        };
        let mut response = super::http::response(code, body);
        if let Some((name, value)) = header {
            response.headers_mut().insert(name, value.parse().expect("a header value"));
        }
        (code, response)
    }
}

#[derive(Clone, Debug)]
pub struct Fault {
    verb: Verb,
    path: String,
    kind: FaultKind,
    /// `None`: for ever.
    left: Option<u32>,
}

impl Fault {
    /// For every such request until cleared. `path` is any part of the URL's path, query included.
    pub fn new(verb: Verb, path: &str, kind: FaultKind) -> Fault {
        Fault { verb, path: path.to_owned(), kind, left: None }
    }

    /// For one such request.
    pub fn once(verb: Verb, path: &str, kind: FaultKind) -> Fault {
        Fault::new(verb, path, kind).times(1)
    }

    pub fn times(mut self, count: u32) -> Fault {
        self.left = Some(count);
        self
    }

    fn matches(&self, verb: Verb, path: &str) -> bool {
        (self.verb == Verb::Any || self.verb == verb) && path.contains(&self.path)
    }
}

/// Consumes the first fault in the script that is for this request.
pub(super) fn take(script: &mut Vec<Fault>, verb: Verb, path: &str) -> Option<FaultKind> {
    let index = script.iter().position(|fault| fault.matches(verb, path))?;
    let fault = &mut script[index];
    let kind = fault.kind.clone();
    if let Some(left) = &mut fault.left {
        *left = left.saturating_sub(1);
        if *left == 0 {
            script.remove(index);
        }
    }
    Some(kind)
}

/// What a connection that breaks in the middle has let through.
pub(super) fn half(text: &str) -> Bytes {
    Bytes::copy_from_slice(&text.as_bytes()[..text.len() / 2])
}

/// The script, see [`super::ApiServer::faults`].
pub struct Faults<'a>(pub(super) &'a Shared);

impl Faults<'_> {
    pub fn push(&self, fault: Fault) {
        self.0.change(|s| s.faults.push(fault));
    }

    /// Drops what is left of the script. Requests that hang go on hanging.
    pub fn clear(&self) {
        self.0.change(|s| s.faults.clear());
    }

    /// How many faults still wait for their request.
    pub fn left(&self) -> usize {
        self.0.read(|s| s.faults.len())
    }
}
