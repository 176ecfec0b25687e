//! `--wait`: until each node has it, or one of them never will.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::Failure;
use crate::api::client::Client;
use crate::api::nodes::{NodeEvent, NodeSelection, NodeWatcher};
use crate::commands::status::now;
use crate::commands::targets::Writer;
use crate::fleet::node::NodeRow;
use crate::fleet::wait::{Expectation, Goal, WaitStatus};
use crate::output::{self, plain};
use kubelet_config::bounds::first_of;
use kubelet_config::duration::GoDuration;

/// So many nodes are named when the time is over.
const NAMED: usize = 10;

/// Until SIGINT or SIGTERM.
pub(crate) async fn interrupted() {
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

/// What a command that waits takes.
#[derive(Clone, Copy, Debug, Args)]
#[group(skip)]
pub(crate) struct Options {
    /// Wait until the nodes run it and are healthy (active), or until it is last known good (proven); ends with 1 at the
    /// first node that refuses it or rolls it back.
    #[arg(long, value_enum, value_name = "GOAL", default_missing_value = "active", num_args = 0..=1, require_equals = true)]
    wait: Option<Goal>,
    /// How long to wait, such as 90s or 1h.
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = duration)]
    timeout: Duration,
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    text.parse::<GoDuration>().map(|duration| duration.0)
}

impl Options {
    /// How far a node is to get.
    pub(crate) fn goal(self) -> Goal {
        self.wait.unwrap_or(Goal::Active)
    }

    /// Waits, if that was asked for, for the nodes that were written to.
    ///
    /// # Errors
    /// A node that will not get there, or the time is over.
    pub(crate) async fn run(self, writer: Writer) -> Result<ExitCode, Failure> {
        if self.wait.is_none() || writer.done.is_empty() || !writer.is_real() {
            return Ok(writer.code());
        }
        let labels = writer.selection.labels.clone();
        let selection = NodeSelection { names: writer.done.keys().cloned().collect(), labels };
        let mut waiting = Waiting { expectations: writer.done.clone(), messages: BTreeMap::new() };
        match tokio::time::timeout(self.timeout, waiting.run(&writer.client, selection)).await {
            Ok(result) => result.map(|()| writer.code()),
            Err(_) => Err(waiting.over(self.timeout)),
        }
    }
}

/// The nodes that are not there yet.
struct Waiting {
    expectations: BTreeMap<String, Expectation>,
    /// What each said last.
    messages: BTreeMap<String, String>,
}

impl Waiting {
    async fn run(&mut self, client: &Client, selection: NodeSelection) -> Result<(), Failure> {
        let (mut nodes, rows) = NodeWatcher::new(client, selection).await?;
        for row in rows {
            self.on_row(&row)?;
        }
        while !self.expectations.is_empty() {
            match nodes.next().await? {
                NodeEvent::Applied(row) => self.on_row(&row)?,
                NodeEvent::Deleted(name) if self.expectations.contains_key(&name) => {
                    return Err(Failure::new(format!("node/{name} is gone, or has lost the labels it was chosen by")));
                }
                NodeEvent::Deleted(_) => {}
            }
        }
        Ok(())
    }

    fn on_row(&mut self, row: &NodeRow) -> Result<(), Failure> {
        let Some(expectation) = self.expectations.get(&row.name) else { return Ok(()) };
        let name = &row.name;
        match expectation.status(row, now()) {
            WaitStatus::Reached => {
                let state = match (&expectation.target, expectation.goal) {
                    (None, _) => "runs its own configuration",
                    (_, Goal::Active) => "active",
                    (_, Goal::Proven) => "proven",
                };
                self.expectations.remove(name);
                output::write_stdout(&format!("node/{name} {state}\n"))
            }
            WaitStatus::Waiting(messages) => {
                if self.messages.get(name) != Some(&messages) {
                    output::write_stdout(&format!("node/{name} {}\n", plain(&messages)))?;
                    self.messages.insert(name.clone(), messages);
                }
                Ok(())
            }
            WaitStatus::Failed(messages) => Err(Failure::new(plain(&format!("node/{name}: {messages}")))),
        }
    }

    fn over(&self, after: Duration) -> Failure {
        let word = |name: &String| match self.messages.get(name) {
            Some(messages) => format!("node/{name} {}", plain(messages)),
            None => format!("node/{name}"),
        };
        let waiting: Vec<String> = self.expectations.keys().map(word).collect();
        Failure::new(format!("timed out after {}; still waiting: {}", GoDuration(after), first_of(&waiting, NAMED)))
    }
}
