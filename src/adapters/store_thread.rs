//! The store on a thread of its own: a disk that stalls must not stall the loop.

use std::convert::Infallible;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;

use crate::machine::Input;
use crate::os::block_all_signals;
use crate::ports::{Store, StoreRequest};

/// Hands requests to the thread, which serves one at a time, in order.
#[derive(Debug)]
pub struct StoreThread {
    requests: Option<mpsc::Sender<StoreRequest>>,
    /// Nothing comes; it is closed once the thread has ended.
    ended: mpsc::Receiver<Infallible>,
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
        let ((requests, queue), (end, ended)) = (mpsc::channel(), mpsc::channel());
        std::thread::Builder::new().name("store".to_owned()).spawn(move || {
            let _end = end;
            block_all_signals();
            for request in queue {
                // Without an answer the machine gives the request up at its deadline. The panic is in the journal.
                let answers = catch_unwind(AssertUnwindSafe(|| serve(request))).unwrap_or_default();
                for input in answers {
                    let _ = inputs.send(input); // the loop has ended
                }
            }
        })?;
        Ok(Self { requests: Some(requests), ended })
    }
}

impl Store for StoreThread {
    fn submit(&mut self, request: StoreRequest) -> Vec<Input> {
        if let Some(requests) = &self.requests {
            let _ = requests.send(request); // the thread ends after us
        }
        Vec::new()
    }

    fn finish(&mut self, limit: Duration) {
        self.requests = None; // the thread ends once it has served them all
        let _ = self.ended.recv_timeout(limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::model::{StateFiles, StateFilesFound};
    use crate::machine::{Answer, Ticket};
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    /// A store whose disk answers when it is told to, and panics at the request that it is told to panic at.
    fn stalled() -> (StoreThread, mpsc::Sender<()>, UnboundedReceiver<Input>) {
        let ((go, disk), (inputs, answers)) = (mpsc::channel(), unbounded_channel());
        let serve = move |request| {
            disk.recv().unwrap();
            match request {
                StoreRequest::SwapStateFiles(ticket, _) => {
                    vec![Input::Answer(ticket, Answer::StateFilesSwapped(Ok(StateFilesFound::InOrder)))]
                }
                StoreRequest::Unreported => panic!("a request that nobody can serve"),
                _ => Vec::new(),
            }
        };
        (StoreThread::start(serve, inputs).unwrap(), go, answers)
    }

    fn request(ticket: Ticket) -> StoreRequest {
        StoreRequest::SwapStateFiles(ticket, StateFiles::default())
    }

    fn answer(answers: &mut UnboundedReceiver<Input>) -> Option<Input> {
        answers.blocking_recv()
    }

    #[test]
    fn a_stalled_disk_stalls_nobody_else() {
        let (mut store, go, mut answers) = stalled();
        // If this waited for the disk, the test would hang: nobody has told it to answer.
        for ticket in 1..=100 {
            assert_eq!(store.submit(request(ticket)), []);
        }
        assert!(answers.try_recv().is_err());
        for ticket in 1..=100 {
            go.send(()).unwrap();
            assert_eq!(
                answer(&mut answers),
                Some(Input::Answer(ticket, Answer::StateFilesSwapped(Ok(StateFilesFound::InOrder)))),
                "in order"
            );
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
            assert_eq!(
                answer(&mut answers),
                Some(Input::Answer(ticket, Answer::StateFilesSwapped(Ok(StateFilesFound::InOrder))))
            );
        }
        // The thread ends after its last request; then nobody can send any more.
        drop(store);
        assert_eq!(answer(&mut answers), None);
    }
}
