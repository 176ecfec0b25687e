//! The signals of the daemon. The handlers set a flag each, so that a signal is known from the moment
//! of its delivery; a byte in a socket wakes the loop.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::Poll;

use nix::sys::signal::Signal::{self, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::low_level::{pipe, unregister};
use signal_hook::{SigId, flag};
use tokio::net::UnixStream;

/// What comes first is taken first.
const ALL: [Signal; 6] = [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];

/// Signals that end the supervisor, and those that are passed on to the kubelet.
#[derive(Debug)]
pub struct Signals {
    arrived: [(Signal, Arc<AtomicBool>); 6],
    wake: UnixStream,
    handlers: Vec<SigId>,
}

impl Signals {
    /// Takes over the signals.
    ///
    /// # Errors
    /// As the system gives them.
    pub fn register() -> io::Result<Self> {
        let (wake, writer) = std::os::unix::net::UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let arrived = ALL.map(|signal| (signal, Arc::default()));
        let mut signals = Self { arrived, wake: UnixStream::from_std(wake)?, handlers: Vec::new() };
        for (signal, arrived) in &signals.arrived {
            // Handlers run in this order: the loop that is woken finds the flag.
            signals.handlers.push(flag::register(*signal as i32, Arc::clone(arrived))?);
            signals.handlers.push(pipe::register(*signal as i32, writer.try_clone()?)?);
        }
        Ok(signals)
    }

    /// The next one. Cancel-safe: one that nobody takes stays.
    pub(super) async fn next(&self) -> Signal {
        poll_fn(|context| {
            loop {
                if let Some((signal, _)) = self.arrived.iter().find(|(_, arrived)| arrived.swap(false, SeqCst)) {
                    return Poll::Ready(*signal);
                }
                match self.wake.poll_read_ready(context) {
                    Poll::Ready(Ok(())) => drop(self.wake.try_read(&mut [0; 64])),
                    _ => return Poll::Pending,
                }
            }
        })
        .await
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for handler in self.handlers.drain(..) {
            unregister(handler);
        }
    }
}
