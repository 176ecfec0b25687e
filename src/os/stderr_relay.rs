//! The kubelet's standard error: passed on as it comes, its last lines kept in a file in memory.
//!
//! A thread of its own per kubelet start: it must go on when its process is stalled, for a kubelet whose standard error is full
//! stands still. It spawns nothing, so the parent-death signal, which is tied to the main thread, is not touched. First every
//! byte is passed on, then the lines are noted. Whoever wants them reads the file, from another process, too.
//!
//! Of a standby nothing is passed on before it is the node's kubelet: all that it wrote is in the file meanwhile. One that is
//! ended leaves no line in the journal.
//!
//! What SIGKILL to the supervisor loses is what lies in the pipe and one chunk: at any other end
//! [`StderrRelay::drain`] sees to it that everything read is written.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::block_all_signals;
use crate::kubelet_log;

/// What is kept: a screenful or two, and no more than a few events can show.
const LINES: usize = 64;
/// See [`LINES`].
const BYTES: usize = 16 << 10;
/// A line is cut here; klog's own are rarely over 500 bytes.
const LINE: usize = 1 << 10;
/// Lines kept of a stack trace: v1.20 writes 60 to some thousands of them after the line that says
/// why it dies, which must not be pushed out by them.
const FRAMES: usize = 8;
/// Kept of a standby's output at the most, as of any preflight.
const HELD: usize = 1 << 20;
/// Read at once. The kubelet writes line by line, so this much only comes in a flood.
const CHUNK: usize = 16 << 10;
/// Room for a kubelet that writes while stderr is slow; the most an unprivileged process may ask for.
const PIPE: i32 = 1 << 20;
/// Virtual memory mostly; a panic's backtrace needs more than the smallest stack.
const STACK: usize = 256 << 10;

/// The passing on for one kubelet process and its descendants.
#[derive(Debug)]
pub struct StderrRelay {
    /// What [`read`] reads.
    pub output: Arc<File>,
    /// Ends, for poll(2), when all is passed on and noted.
    pub ended: PipeReader,
    pipe: Arc<PipeState>,
}

/// What the thread shares with those who wait for it.
#[derive(Debug)]
struct PipeState {
    reader: PipeReader,
    /// Something read may not be written yet.
    busy: AtomicBool,
    /// Nothing more shall be read.
    closing: AtomicBool,
    /// Nothing is passed on.
    held: AtomicBool,
}

/// True if a read would not block: there is something, or the end.
fn is_readable(reader: &PipeReader, limit: PollTimeout) -> bool {
    let mut fds = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
    // An error is for the read to find out.
    !matches!(poll(&mut fds, limit), Ok(0) | Err(nix::errno::Errno::EINTR))
}

impl StderrRelay {
    /// Passes on to our own standard error; nothing before it is told to, if `held`. Gives what the kubelet writes to: every
    /// copy must be closed for the relay to end.
    ///
    /// # Errors
    /// If there is no pipe, file or thread to be had.
    pub fn to_stderr(held: bool) -> io::Result<(Self, PipeWriter)> {
        // With the lock, so that no line of ours lands within one of the kubelet's.
        Self::start(held, |bytes| pass_on(&mut io::stderr().lock(), bytes))
    }

    /// Passes on to `sink`, which must not panic.
    ///
    /// # Errors
    /// If there is no pipe, file or thread to be had.
    pub fn start(held: bool, sink: impl FnMut(&[u8]) + Send + 'static) -> io::Result<(Self, PipeWriter)> {
        let (reader, writer) = io::pipe()?;
        let (ended, end) = io::pipe()?;
        let _ = fcntl(&writer, FcntlArg::F_SETPIPE_SZ(PIPE)); // 64 KiB do as well, if there is no more
        let output = Arc::new(File::from(memfd_create(c"kubelet-output", MFdFlags::MFD_CLOEXEC)?));
        let flag = AtomicBool::new;
        let pipe = Arc::new(PipeState { reader, busy: flag(false), closing: flag(false), held: flag(held) });
        let relay = Self { output: output.clone(), ended, pipe: pipe.clone() };
        let mut work = RelayThread { output, pipe, held: 0, tail: TailBuffer::default(), sink };
        std::thread::Builder::new().name("kubelet-stderr".to_owned()).stack_size(STACK).spawn(move || {
            let end = end;
            block_all_signals();
            if catch_unwind(AssertUnwindSafe(|| work.run())).is_err() {
                // No panic is known of; if there is one, this still does the one thing that counts.
                let _ = io::copy(&mut &work.pipe.reader, &mut io::stderr());
            }
            work.pipe.busy.store(false, SeqCst);
            drop(end);
        })?;
        Ok((relay, writer))
    }

    /// What was held is passed on, with what comes next or with the end: nobody waits for a slow stderr here.
    pub(crate) fn release(&self) {
        self.pipe.held.store(false, SeqCst);
    }

    /// True once all its writers are gone, and what they wrote is passed on.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        is_readable(&self.ended, PollTimeout::ZERO)
    }

    /// True if all that was written so far is passed on.
    pub(crate) fn is_idle(&self) -> bool {
        // In this order: what is gone from the pipe was busy before.
        !is_readable(&self.pipe.reader, PollTimeout::ZERO) && !self.pipe.busy.load(SeqCst)
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
}

/// The thread's part.
struct RelayThread<S> {
    output: Arc<File>,
    pipe: Arc<PipeState>,
    /// Bytes in the file that were not passed on.
    held: usize,
    tail: TailBuffer,
    sink: S,
}

impl<S: FnMut(&[u8])> RelayThread<S> {
    fn run(&mut self) {
        let mut chunk = vec![0_u8; CHUNK];
        let mut filled = 0;
        loop {
            // Something held back means that more is there.
            if filled == 0 && !is_readable(&self.pipe.reader, PollTimeout::NONE) {
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
            self.take(chunk.get(..end).unwrap_or_default());
            if ended {
                break;
            }
            chunk.copy_within(end..filled, 0);
            filled -= end;
            if filled == 0 {
                self.pipe.busy.store(false, SeqCst);
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        if self.pipe.held.load(SeqCst) {
            let room = HELD.saturating_sub(self.held).min(bytes.len());
            let kept = bytes.get(..room).unwrap_or_default();
            if append(&self.output, self.held, kept).is_ok() {
                self.held += kept.len();
            }
            return;
        }
        if std::mem::take(&mut self.held) > 0 {
            let kept = read(&self.output).unwrap_or_default();
            (self.sink)(&kept);
            self.note(&kept);
            let _ = self.output.set_len(0);
        }
        (self.sink)(bytes);
        self.note(bytes);
    }

    /// In a flood only what comes last is worth a write.
    fn note(&mut self, bytes: &[u8]) {
        // No panic is known of; if there is one, the bytes must flow on all the same.
        let _ = catch_unwind(AssertUnwindSafe(|| self.tail.push(bytes)));
        if !is_readable(&self.pipe.reader, PollTimeout::ZERO) || bytes.is_empty() || self.is_at_the_end() {
            let _ = replace(&self.output, &self.tail.text());
        }
    }

    /// Every writer is gone; what is left fits into one more chunk, or is noted with it.
    fn is_at_the_end(&self) -> bool {
        let mut fds = [PollFd::new(self.pipe.reader.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut fds, PollTimeout::ZERO);
        fds.iter().any(|fd| fd.revents().is_some_and(|events| events.contains(PollFlags::POLLHUP)))
    }

    /// How much to pass on now: in a flood up to the last line end, lest a line of another writer
    /// gets into the middle of one; else everything, also an unfinished line.
    fn whole_lines(&self, bytes: &[u8]) -> usize {
        let pipe = &self.pipe;
        if bytes.len() < CHUNK || pipe.closing.load(SeqCst) || !is_readable(&pipe.reader, PollTimeout::ZERO) {
            return bytes.len();
        }
        bytes.iter().rposition(|byte| *byte == b'\n').map_or(CHUNK, |at| at + 1)
    }
}

/// Before the text in the file: its length.
const HEADER: usize = size_of::<u32>();

fn append(file: &File, at: usize, bytes: &[u8]) -> io::Result<()> {
    file.write_all_at(bytes, (HEADER + at) as u64)?;
    file.write_all_at(&u32::try_from(at + bytes.len()).unwrap_or_default().to_ne_bytes(), 0)
}

fn replace(file: &File, text: &[u8]) -> io::Result<()> {
    let length = u32::try_from(text.len()).unwrap_or_default().to_ne_bytes();
    file.write_all_at(&[&length, text].concat(), 0)
}

/// What is in the file of a relay: the last lines, oldest first, of which the last may be unfinished; of a standby all that
/// it wrote.
///
/// # Errors
/// As the system gives them.
pub fn read(file: &File) -> io::Result<Vec<u8>> {
    let once = || -> io::Result<Vec<u8>> {
        let mut length = [0; HEADER];
        if file.read_at(&mut length, 0)? < HEADER {
            return Ok(Vec::new());
        }
        let mut text = vec![0; usize::try_from(u32::from_ne_bytes(length)).unwrap_or_default().min(HELD)];
        let read = file.read_at(&mut text, HEADER as u64)?;
        text.truncate(read);
        Ok(text)
    };
    // The writer does not stop for it: what reads the same twice was not being written. A flood has no last words.
    let mut before = once()?;
    for _ in 0..8 {
        let now = once()?;
        if now == before {
            break;
        }
        before = now;
    }
    Ok(before)
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
    /// Lines of stack traces, with nothing else between them.
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
        if self.open.is_empty() || self.is_deep_in_a_trace() {
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
        // With GOTRACEBACK=crash each thread says so between its stack and the next one's.
        if self.open.starts_with(b"SIG") {
            return false;
        }
        // klog's and JSON lines begin like this; most lines need no closer look.
        let is_log = self.open.first().is_some_and(|first| first.is_ascii_uppercase() || *first == b'{');
        let is_log = is_log && !self.open.starts_with(b"PC=");
        if is_log || !std::str::from_utf8(&self.open).is_ok_and(kubelet_log::is_trace) {
            self.frames = 0;
            return false;
        }
        self.frames += 1;
        self.frames > FRAMES
    }

    fn text(&self) -> Vec<u8> {
        let open = Some(&self.open).filter(|open| !open.is_empty());
        self.lines.iter().chain(open).map(Vec::as_slice).collect::<Vec<_>>().join(&b'\n')
    }
}

#[cfg(test)]
mod tests;
