//! Where operators' commands wait for their answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use crate::machine::Input;
use crate::machine::command::Command;

/// More than a few people at one node are a runaway script.
const PENDING_LIMIT: usize = 16;
/// A step takes milliseconds; only a store that hangs takes longer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Takes commands to the machine and its answers back.
#[derive(Clone, Debug)]
pub(crate) struct CommandQueue {
    inputs: mpsc::UnboundedSender<Input>,
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Debug, Default)]
struct Waiting {
    last: u64,
    by_ticket: BTreeMap<u64, oneshot::Sender<Result<String, String>>>,
}

/// A command that waits; dropped when its client goes away.
struct Pending<'a> {
    commands: &'a CommandQueue,
    ticket: u64,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.commands.take(self.ticket);
    }
}

impl CommandQueue {
    /// Commands go into the daemon's queue.
    pub(crate) fn new(inputs: mpsc::UnboundedSender<Input>) -> Self {
        Self { inputs, waiting: Arc::default() }
    }

    /// Hands a command in and waits for the answer, a line for people. 409: the machine refuses; 503: it never came to the
    /// machine; 504: it went to the machine, and no answer came.
    pub(crate) async fn submit(&self, command: Command) -> (StatusCode, String) {
        let busy = |why: &str| (StatusCode::SERVICE_UNAVAILABLE, why.to_owned());
        let (sender, answer) = oneshot::channel();
        let ticket = {
            let mut waiting = self.waiting.lock();
            if waiting.by_ticket.len() >= PENDING_LIMIT {
                return busy("too many commands are waiting for their answers; try again");
            }
            waiting.last += 1;
            let ticket = waiting.last;
            waiting.by_ticket.insert(ticket, sender);
            ticket
        };
        let _pending = Pending { commands: self, ticket };
        if self.inputs.send(Input::Operator(ticket, command)).is_err() {
            return busy("the supervisor is on its way out; try again once the next one runs");
        }
        match tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
            Ok(Ok(Ok(text))) => (StatusCode::OK, text),
            Ok(Ok(Err(why))) => (StatusCode::CONFLICT, why),
            _ => {
                let why = "the supervisor took the command and did not answer within 10 s; it may still be done: see \
                    `kubelet-supervisor status` and the journal";
                (StatusCode::GATEWAY_TIMEOUT, why.to_owned())
            }
        }
    }

    /// The machine's answer; nobody may be waiting for it any more.
    pub(crate) fn answer(&self, ticket: u64, result: &Result<String, String>) {
        if let Some(sender) = self.take(ticket) {
            let _ = sender.send(result.clone());
        }
    }

    fn take(&self, ticket: u64) -> Option<oneshot::Sender<Result<String, String>>> {
        self.waiting.lock().by_ticket.remove(&ticket)
    }
}
