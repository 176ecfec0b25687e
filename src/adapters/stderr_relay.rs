//! The kubelet's standard error: passed on as it comes, its last lines kept.
//!
//! A thread of its own per kubelet start: it must go on when the loop is stalled, panicked, or busy
//! with a slow disk, for a kubelet whose standard error is full stands still. It spawns nothing, so
//! the parent-death signal, which is tied to the main thread, is not touched. First every byte is
//! passed on, then the lines are noted; the lock on the noted lines is never waited for while there
//! may be something to pass on.
//!
//! What SIGKILL to the supervisor loses is what lies in the pipe and one chunk: at any other end
//! [`StderrRelay::drain`] sees to it that everything read is written.

use std::collections::VecDeque;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write};
use std::os::fd::AsFd as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::SigSet;
use tokio::sync::oneshot;

use crate::kubelet_log;

mod held;

pub(crate) use held::HeldOutput;

/// What is kept: a screenful or two, and no more than a few events can show.
const LINES: usize = 64;
/// See [`LINES`].
const BYTES: usize = 16 << 10;
/// A line is cut here; klog's own are rarely over 500 bytes.
const LINE: usize = 1 << 10;
/// Lines kept of a stack trace: v1.20 writes 60 to some thousands of them after the line that says
/// why it dies, which must not be pushed out by them.
const FRAMES: usize = 8;
/// Read at once. The kubelet writes line by line, so this much only comes in a flood.
const CHUNK: usize = 64 << 10;
/// Room for a kubelet that writes while stderr is slow; the most an unprivileged process may ask for.
const PIPE: i32 = 1 << 20;
/// Kept while somebody holds the lock on the lines.
const MISSED_LIMIT: usize = 2 * BYTES;
/// Virtual memory mostly; a panic's backtrace needs more than the smallest stack.
const STACK: usize = 256 << 10;

/// The passing on for one kubelet process and its descendants.
#[derive(Debug)]
pub struct StderrRelay {
    tail: Arc<Mutex<TailBuffer>>,
    pipe: Arc<PipeState>,
}

/// A relay at work, with what its kubelet needs.
#[derive(Debug)]
pub struct StartedRelay {
    /// The relay.
    pub relay: StderrRelay,
    /// For the kubelet's standard error; every copy must be closed for the relay to end.
    pub writer: PipeWriter,
    /// Fires when all is passed on and noted.
    pub ended: oneshot::Receiver<()>,
}

/// What the thread shares with those who wait for it.
#[derive(Debug)]
struct PipeState {
    reader: PipeReader,
    /// Something read may not be written yet.
    busy: AtomicBool,
    /// Nothing more shall be read.
    closing: AtomicBool,
    ended: AtomicBool,
}

impl PipeState {
    /// True if a read would not block: there is something, or the end.
    fn is_readable(&self, limit: PollTimeout) -> bool {
        let mut fds = [PollFd::new(self.reader.as_fd(), PollFlags::POLLIN)];
        // An error is for the read to find out.
        !matches!(poll(&mut fds, limit), Ok(0) | Err(nix::errno::Errno::EINTR))
    }
}

impl StderrRelay {
    /// Passes on to our own standard error.
    ///
    /// # Errors
    /// If there is no pipe or thread to be had.
    pub fn to_stderr() -> io::Result<StartedRelay> {
        // With the lock, so that no line of ours lands within one of the kubelet's.
        Self::start(|bytes| pass_on(&mut io::stderr().lock(), bytes))
    }

    /// Passes nothing on before it is told to.
    ///
    /// # Errors
    /// If there is no pipe or thread to be had.
    pub(crate) fn held() -> io::Result<(StartedRelay, HeldOutput)> {
        let output = HeldOutput::default();
        let mut held = output.clone();
        let relay = Self::start(move |bytes| held.take(bytes, |bytes| pass_on(&mut io::stderr().lock(), bytes)))?;
        Ok((relay, output))
    }

    /// Passes on to `sink`, which must not panic.
    ///
    /// # Errors
    /// If there is no pipe or thread to be had.
    pub fn start(sink: impl FnMut(&[u8]) + Send + 'static) -> io::Result<StartedRelay> {
        let (reader, writer) = io::pipe()?;
        let _ = fcntl(&writer, FcntlArg::F_SETPIPE_SZ(PIPE)); // 64 KiB do as well, if there is no more
        let pipe = Arc::new(PipeState {
            reader,
            busy: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        });
        let relay = Self { tail: Arc::default(), pipe };
        let (done, ended) = oneshot::channel();
        let mut work =
            RelayThread { tail: relay.tail.clone(), pipe: relay.pipe.clone(), missed: Vec::new(), gap: false, sink };
        std::thread::Builder::new().name("kubelet-stderr".to_owned()).stack_size(STACK).spawn(move || {
            // Signals come to the main thread: none interrupts a write.
            let _ = SigSet::all().thread_block();
            if catch_unwind(AssertUnwindSafe(|| work.run())).is_err() {
                // No panic is known of; if there is one, this still does the one thing that counts.
                let _ = io::copy(&mut &work.pipe.reader, &mut io::stderr());
            }
            work.pipe.ended.store(true, SeqCst);
            // Nothing is left to pass on: now there is time to wait for the lock.
            work.catch_up(&mut work.tail.clone().lock().unwrap_or_else(PoisonError::into_inner));
            let _ = done.send(());
        })?;
        Ok(StartedRelay { relay, writer, ended })
    }

    /// The last lines, oldest first; the last one may be unfinished.
    #[must_use]
    pub fn log_tail(&self) -> Vec<String> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner).log_tail()
    }

    /// True once all its writers are gone, and what they wrote is passed on.
    #[must_use]
    pub(crate) fn is_ended(&self) -> bool {
        self.pipe.ended.load(SeqCst)
    }

    /// True if all that was written so far is passed on.
    #[must_use]
    pub(crate) fn is_idle(&self) -> bool {
        // In this order: what is gone from the pipe was busy before.
        !self.pipe.is_readable(PollTimeout::ZERO) && !self.pipe.busy.load(SeqCst)
    }

    /// Before the supervisor ends: waits until what was written is passed on, but no longer than
    /// `limit`; then takes care that nothing is read that is not written, `limit` again, as a
    /// stderr that takes nothing must not hold up the end for ever. Relays nothing afterwards.
    pub fn drain(&self, limit: Duration) {
        let wait = |done: &dyn Fn() -> bool| {
            let begun = Instant::now();
            while !self.is_ended() && !done() && begun.elapsed() < limit {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        wait(&|| self.is_idle());
        self.pipe.closing.store(true, SeqCst);
        wait(&|| !self.pipe.busy.load(SeqCst));
    }

    /// A reader of the lines that stands still, for tests and measurements.
    #[doc(hidden)]
    pub fn hold_log_tail(&self) -> impl Sized + '_ {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread's part.
struct RelayThread<S> {
    tail: Arc<Mutex<TailBuffer>>,
    pipe: Arc<PipeState>,
    /// What could not be noted because somebody held the lock.
    missed: Vec<u8>,
    /// More than that was missed.
    gap: bool,
    sink: S,
}

impl<S: FnMut(&[u8])> RelayThread<S> {
    fn run(&mut self) {
        let mut chunk = vec![0_u8; CHUNK];
        let mut filled = 0;
        loop {
            // Something held back means that more is there.
            if filled == 0 && !self.wait() {
                continue;
            }
            self.pipe.busy.store(true, SeqCst);
            if filled == 0 && self.pipe.closing.load(SeqCst) {
                break;
            }
            let room = chunk.get_mut(filled..).unwrap_or_default();
            let ended = match (&self.pipe.reader).read(room) {
                Ok(0) => true,
                Ok(count) => {
                    filled += count;
                    false
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    self.pipe.busy.store(filled > 0, SeqCst);
                    continue;
                }
                Err(_) => true,
            };
            let end = if ended { filled } else { self.whole_lines(chunk.get(..filled).unwrap_or_default()) };
            let ready = chunk.get(..end).unwrap_or_default();
            (self.sink)(ready);
            self.push(ready);
            if ended {
                break;
            }
            chunk.copy_within(end..filled, 0);
            filled -= end;
            if filled == 0 {
                self.pipe.busy.store(false, SeqCst);
            }
        }
        self.pipe.busy.store(false, SeqCst);
    }

    /// Waits for something to read; false if it was only time to try to note again.
    fn wait(&mut self) -> bool {
        if self.missed.is_empty() {
            return self.pipe.is_readable(PollTimeout::NONE);
        }
        let readable = self.pipe.is_readable(PollTimeout::from(20_u8));
        if !readable {
            self.push(&[]);
        }
        readable
    }

    /// How much to pass on now: in a flood up to the last line end, lest a line of another writer
    /// gets into the middle of one; else everything, also an unfinished line.
    fn whole_lines(&self, bytes: &[u8]) -> usize {
        if bytes.len() < CHUNK || self.pipe.closing.load(SeqCst) || !self.pipe.is_readable(PollTimeout::ZERO) {
            return bytes.len();
        }
        bytes.iter().rposition(|byte| *byte == b'\n').map_or(CHUNK, |at| at + 1)
    }

    /// Notes the lines if nobody holds the lock; else later.
    fn push(&mut self, bytes: &[u8]) {
        let tail = self.tail.clone();
        let mut tail = match tail.try_lock() {
            Ok(tail) => tail,
            Err(TryLockError::Poisoned(tail)) => tail.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.missed.extend_from_slice(bytes);
                if self.missed.len() > MISSED_LIMIT {
                    self.missed.drain(..self.missed.len() - MISSED_LIMIT);
                    self.gap = true;
                }
                return;
            }
        };
        self.catch_up(&mut tail);
        // No panic is known of; if there is one, the bytes must flow on all the same.
        let _ = catch_unwind(AssertUnwindSafe(|| tail.push(bytes)));
    }

    fn catch_up(&mut self, tail: &mut TailBuffer) {
        let missed = std::mem::take(&mut self.missed);
        if std::mem::take(&mut self.gap) {
            tail.truncate_open();
        }
        let _ = catch_unwind(AssertUnwindSafe(|| tail.push(&missed)));
    }
}

/// Writes all of it, if that is possible at all. What a sink that is gone (EPIPE) or full (ENOSPC)
/// does not take is lost: the kubelet must neither stand still nor die of SIGPIPE for it.
pub fn pass_on(sink: &mut impl Write, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match sink.write(bytes) {
            Ok(0) => return,
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Somebody made it non-blocking; a terminal shared with another program, mostly.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(1)),
            Err(_) => return,
        }
    }
}

/// The last lines, within bounds.
#[derive(Debug, Default)]
struct TailBuffer {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// The line that has not ended yet.
    open: Vec<u8>,
    /// Its beginning is lost: it is no line to show.
    truncated: bool,
    /// Lines of a stack trace in a row.
    frames: usize,
}

impl TailBuffer {
    fn push(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let body = piece.strip_suffix(b"\n").unwrap_or(piece);
            let room = LINE.saturating_sub(self.open.len()).min(body.len());
            self.open.extend_from_slice(body.get(..room).unwrap_or_default());
            if body.len() < piece.len() {
                self.end_line();
            }
        }
    }

    fn end_line(&mut self) {
        let truncated = std::mem::take(&mut self.truncated);
        if truncated || self.open.is_empty() || self.is_deep_in_a_trace() {
            self.open.clear();
            return;
        }
        let line = std::mem::take(&mut self.open);
        self.bytes += line.len();
        self.lines.push_back(line);
        while self.lines.len() > LINES || self.bytes > BYTES {
            let Some(mut old) = self.lines.pop_front() else { return };
            self.bytes -= old.len();
            old.clear();
            self.open = old; // spares an allocation a line
        }
    }

    fn is_deep_in_a_trace(&mut self) -> bool {
        // klog's and JSON lines begin like this; most lines need no closer look.
        let is_log = self.open.first().is_some_and(|first| first.is_ascii_uppercase() || *first == b'{');
        if is_log || !std::str::from_utf8(&self.open).is_ok_and(kubelet_log::is_stack_frame) {
            self.frames = 0;
            return false;
        }
        self.frames += 1;
        self.frames > FRAMES
    }

    /// What follows does not continue what was noted.
    fn truncate_open(&mut self) {
        self.open.clear();
        self.truncated = true;
    }

    fn log_tail(&self) -> Vec<String> {
        let open = Some(&self.open).filter(|open| !open.is_empty() && !self.truncated);
        self.lines.iter().chain(open).map(|line| String::from_utf8_lossy(line).into_owned()).collect()
    }
}

#[cfg(test)]
mod tests;
