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

/// A body of which no more is read than one part of it may have.
#[derive(Debug)]
pub struct Bounded<B> {
    inner: B,
    limit: usize,
    /// A part is a line.
    by_line: bool,
    part: usize,
}

impl<B> Bounded<B> {
    pub(super) fn whole(inner: B, limit: usize) -> Self {
        Self { inner, limit, by_line: false, part: 0 }
    }

    pub(super) fn lines(inner: B, limit: usize) -> Self {
        Self { inner, limit, by_line: true, part: 0 }
    }

    /// True if no part has become too large with these bytes.
    fn fits(&mut self, bytes: &[u8]) -> bool {
        for (number, piece) in bytes.split(|byte| self.by_line && *byte == b'\n').enumerate() {
            if number > 0 {
                self.part = 0;
            }
            self.part = self.part.saturating_add(piece.len());
            if self.part > self.limit {
                return false;
            }
        }
        true
    }
}

impl<B> Body for Bounded<B>
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
                return Err(format!("the API server's answer is longer than {} MiB", self.limit >> 20).into());
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

/// So many at once, and then one in each interval.
#[derive(Debug)]
pub(super) struct Pace {
    interval: Duration,
    burst: Duration,
    /// The burst is whole again then.
    whole_at: Instant,
}

impl Pace {
    pub(super) fn new(interval: Duration, burst: u32) -> Self {
        Self { interval, burst: interval * burst, whole_at: Instant::now() }
    }

    /// When the next one may be.
    pub(super) fn next_at(&self) -> Instant {
        self.whole_at.checked_sub(self.burst).unwrap_or(self.whole_at)
    }

    /// There was one.
    pub(super) fn took(&mut self) {
        self.whole_at = self.whole_at.max(Instant::now()) + self.interval;
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::{BodyExt as _, StreamBody};

    use super::*;

    async fn read(parts: &[&'static str], bounded: impl Fn(TestBody) -> Bounded<TestBody>) -> Result<usize, String> {
        let frames: Vec<_> = parts.iter().map(|part| Ok(Frame::data(Bytes::from_static(part.as_bytes())))).collect();
        let body = bounded(StreamBody::new(futures_util::stream::iter(frames)));
        body.collect().await.map(|all| all.to_bytes().len()).map_err(|error| error.to_string())
    }

    type TestBody = StreamBody<futures_util::stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;

    #[tokio::test]
    async fn no_more_is_read_than_a_part_may_have() {
        let whole = |body| Bounded::whole(body, 4);
        let lines = |body| Bounded::lines(body, 4);
        assert_eq!(read(&["ab", "cd"], whole).await, Ok(4));
        assert!(read(&["ab", "c\n", "d"], whole).await.is_err());
        assert_eq!(read(&["ab", "cd\nabcd", "\n", "\nab\nabcd\nab", "cd\n"], lines).await, Ok(24));
        assert!(read(&["ab\na", "bcd", "e"], lines).await.is_err());
        assert!(read(&["ab\nabcde\n"], lines).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_and_then_a_pace() {
        let mut pace = Pace::new(Duration::from_secs(1), 3);
        let began = Instant::now();
        let mut at = Vec::new();
        for _ in 0..6 {
            tokio::time::sleep_until(pace.next_at()).await;
            pace.took();
            at.push(began.elapsed().as_secs());
        }
        assert_eq!(at, [0, 0, 0, 0, 1, 2], "the burst, and the one that is due");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(pace.next_at() <= Instant::now() - Duration::from_secs(3), "a rest gives it back, and no more");
        pace.took();
        assert_eq!(pace.next_at(), Instant::now() - Duration::from_secs(2));
    }
}
