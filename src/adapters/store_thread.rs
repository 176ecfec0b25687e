//! The store on a thread of its own: a disk that stalls must not stall the loop.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::signal::SigSet;
use tokio::sync::mpsc::UnboundedSender;

use crate::machine::Input;
use crate::ports::{Store, StoreRequest};

#[derive(Debug)]
enum Order {
    Serve(StoreRequest),
    /// Everything before it is served.
    Done(mpsc::SyncSender<()>),
}

/// Hands requests to the thread, which serves one at a time, in order.
#[derive(Debug)]
pub struct StoreThread {
    requests: mpsc::Sender<Order>,
    work: Arc<Work>,
}

#[derive(Debug, Default)]
struct Work {
    /// Requests that are not served yet.
    pending: AtomicUsize,
    /// Somebody waits for the last of them.
    awaited: AtomicBool,
}

impl StoreThread {
    /// Starts the thread. It ends when this is dropped and the last request is served.
    ///
    /// # Errors
    /// If there is no thread to be had.
    pub fn start(
        mut serve: impl FnMut(StoreRequest) -> Vec<Input> + Send + 'static,
        inputs: UnboundedSender<Input>,
    ) -> io::Result<Self> {
        let (requests, queue) = mpsc::channel::<Order>();
        let work = Arc::new(Work::default());
        let served = work.clone();
        std::thread::Builder::new().name("store".to_owned()).spawn(move || {
            // A signal to the process must come to the main thread, where it can be held.
            let _ = SigSet::all().thread_block();
            for order in queue {
                let request = match order {
                    Order::Serve(request) => request,
                    Order::Done(done) => {
                        let _ = done.send(()); // nobody waits any more
                        continue;
                    }
                };
                // Without an answer the machine gives the request up at its deadline. The panic is in the journal.
                let answers = catch_unwind(AssertUnwindSafe(|| serve(request))).unwrap_or_default();
                for input in answers {
                    let _ = inputs.send(input); // the loop has ended
                }
                if served.pending.fetch_sub(1, SeqCst) == 1 && served.awaited.swap(false, SeqCst) {
                    let _ = inputs.send(Input::Tick);
                }
            }
        })?;
        Ok(Self { requests, work })
    }
}

impl Store for StoreThread {
    fn submit(&mut self, request: StoreRequest) -> Vec<Input> {
        self.work.pending.fetch_add(1, SeqCst);
        if self.requests.send(Order::Serve(request)).is_err() {
            self.work.pending.fetch_sub(1, SeqCst); // nobody will ever serve it
        }
        Vec::new()
    }

    fn is_idle(&self) -> bool {
        // In this order, lest the last request is served between the two and nobody is told.
        self.work.awaited.store(true, SeqCst);
        let idle = self.work.pending.load(SeqCst) == 0;
        if idle {
            self.work.awaited.store(false, SeqCst);
        }
        idle
    }

    fn finish(&mut self, limit: Duration) {
        let (done, served) = mpsc::sync_channel(1);
        if self.requests.send(Order::Done(done)).is_ok() {
            let _ = served.recv_timeout(limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Ticket;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    /// A store whose disk answers when it is told to, and panics at the request that it is told to panic at.
    fn stalled() -> (StoreThread, mpsc::Sender<()>, UnboundedReceiver<Input>) {
        let ((go, disk), (inputs, answers)) = (mpsc::channel(), unbounded_channel());
        let serve = move |request| {
            disk.recv().unwrap();
            match request {
                StoreRequest::SwapStateFiles(ticket, _) => vec![Input::StateFilesSwapped(ticket, Ok(()))],
                StoreRequest::Unreported => panic!("a request that nobody can serve"),
                _ => Vec::new(),
            }
        };
        (StoreThread::start(serve, inputs).unwrap(), go, answers)
    }

    fn request(ticket: Ticket) -> StoreRequest {
        StoreRequest::SwapStateFiles(ticket, crate::machine::model::StateFiles::default())
    }

    fn answer(answers: &mut UnboundedReceiver<Input>) -> Option<Input> {
        answers.blocking_recv()
    }

    #[test]
    fn a_stalled_disk_stalls_nobody_else() {
        let (mut store, go, mut answers) = stalled();
        assert!(store.is_idle());
        // If this waited for the disk, the test would hang: nobody has told it to answer.
        for ticket in 1..=100 {
            assert_eq!(store.submit(request(ticket)), []);
        }
        assert!(!store.is_idle() && answers.try_recv().is_err());
        for ticket in 1..=100 {
            go.send(()).unwrap();
            assert_eq!(answer(&mut answers), Some(Input::StateFilesSwapped(ticket, Ok(()))), "in order");
        }
    }

    #[test]
    fn a_panic_costs_one_answer() {
        let (mut store, go, mut answers) = stalled();
        for request in [request(1), StoreRequest::Unreported, request(2), StoreRequest::Reported(1)] {
            store.submit(request);
            go.send(()).unwrap();
        }
        for ticket in [1, 2] {
            assert_eq!(answer(&mut answers), Some(Input::StateFilesSwapped(ticket, Ok(()))));
        }
        // The thread ends after its last request; then nobody can send any more.
        let work = store.work.clone();
        drop(store);
        assert_eq!((answer(&mut answers), work.pending.load(SeqCst)), (None, 0));
    }

    #[test]
    fn whoever_finds_it_busy_is_woken_once_it_is_idle() {
        let (mut store, go, mut answers) = stalled();
        for round in 0..50 {
            let tickets = [2 * round, 2 * round + 1];
            for ticket in tickets {
                store.submit(request(ticket));
            }
            assert!(!store.is_idle() && !store.is_idle());
            for ticket in tickets {
                go.send(()).unwrap();
                assert_eq!(answer(&mut answers), Some(Input::StateFilesSwapped(ticket, Ok(()))));
            }
            assert_eq!(answer(&mut answers), Some(Input::Tick), "once, and after the answers");
            assert!(store.is_idle());
            assert!(answers.try_recv().is_err());
        }
    }
}
