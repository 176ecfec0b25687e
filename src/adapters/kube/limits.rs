//! What an API server can cost a node, however it answers: bytes in memory, and things in a time.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::time::Instant;
use tower::BoxError;

/// Bytes of one object, in an answer or in a line of a watch. etcd takes 1.5 MiB of it; JSON may spell a byte with six.
pub(super) const OBJECT_BYTES: usize = 8 << 20;

/// Bytes of a list of pods.
pub(super) const LIST_BYTES: usize = 64 << 20;

/// What has the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Body,
    Line,
}

/// A body of which no more is read than one part of it may have.
#[derive(Debug)]
pub struct LimitedBody<B> {
    inner: B,
    limit: usize,
    part: Part,
    /// Bytes of the part that is being read.
    size: usize,
    /// What it answers, for messages: method and path.
    request: String,
}

impl<B> LimitedBody<B> {
    pub(super) fn new(inner: B, part: Part, limit: usize, request: String) -> Self {
        Self { inner, limit, part, size: 0, request }
    }

    /// True if no part has become too large with these bytes.
    fn fits(&mut self, bytes: &[u8]) -> bool {
        for (number, piece) in bytes.split(|byte| self.part == Part::Line && *byte == b'\n').enumerate() {
            if number > 0 {
                self.size = 0;
            }
            self.size = self.size.saturating_add(piece.len());
            if self.size > self.limit {
                return false;
            }
        }
        true
    }
}

impl<B> Body for LimitedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(context));
        Poll::Ready(frame.map(|frame| {
            let frame = frame.map_err(Into::into)?;
            if frame.data_ref().is_some_and(|bytes| !self.fits(bytes)) {
                let (request, limit) = (&self.request, self.limit >> 20);
                return Err(format!(
                    "{request}: the answer exceeds {limit} MiB and was dropped; check what the API server or a proxy in front \
                     of it sends"
                )
                .into());
            }
            Ok(frame)
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A token bucket: a burst, and then one in each interval.
#[derive(Debug)]
pub(super) struct RateLimiter {
    interval: Duration,
    burst: Duration,
    /// The burst is whole again then.
    full_at: Instant,
}

impl RateLimiter {
    pub(super) fn new(interval: Duration, burst: u32) -> Self {
        Self { interval, burst: interval * burst, full_at: Instant::now() }
    }

    /// When the next one may be.
    pub(super) fn next_at(&self) -> Instant {
        self.full_at.checked_sub(self.burst).unwrap_or(self.full_at)
    }

    /// There was one.
    pub(super) fn consume(&mut self) {
        self.full_at = self.full_at.max(Instant::now()) + self.interval;
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::{BodyExt as _, StreamBody};

    use super::*;

    async fn read(
        parts: &[&'static str],
        limited: impl Fn(TestBody) -> LimitedBody<TestBody>,
    ) -> Result<usize, String> {
        let frames: Vec<_> = parts.iter().map(|part| Ok(Frame::data(Bytes::from_static(part.as_bytes())))).collect();
        let body = limited(StreamBody::new(futures_util::stream::iter(frames)));
        body.collect().await.map(|all| all.to_bytes().len()).map_err(|error| error.to_string())
    }

    type TestBody = StreamBody<futures_util::stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;

    #[tokio::test]
    async fn no_more_is_read_than_a_part_may_have() {
        let whole = |body| LimitedBody::new(body, Part::Body, 4, "GET /x".to_owned());
        let lines = |body| LimitedBody::new(body, Part::Line, 4, "GET /x".to_owned());
        assert_eq!(read(&["ab", "cd"], whole).await, Ok(4));
        let error = read(&["ab", "c\n", "d"], whole).await.unwrap_err();
        assert!(error.starts_with("GET /x: the answer exceeds 0 MiB and was dropped"), "{error}");
        assert_eq!(read(&["ab", "cd\nabcd", "\n", "\nab\nabcd\nab", "cd\n"], lines).await, Ok(24));
        assert!(read(&["ab\na", "bcd", "e"], lines).await.is_err());
        assert!(read(&["ab\nabcde\n"], lines).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_and_then_one_in_each_interval() {
        let mut limiter = RateLimiter::new(Duration::from_secs(1), 3);
        let began = Instant::now();
        let mut at = Vec::new();
        for _ in 0..6 {
            tokio::time::sleep_until(limiter.next_at()).await;
            limiter.consume();
            at.push(began.elapsed().as_secs());
        }
        assert_eq!(at, [0, 0, 0, 0, 1, 2], "the burst, and the one that is due");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(limiter.next_at() <= Instant::now() - Duration::from_secs(3), "a rest gives it back, and no more");
        limiter.consume();
        assert_eq!(limiter.next_at(), Instant::now() - Duration::from_secs(2));
    }
}
