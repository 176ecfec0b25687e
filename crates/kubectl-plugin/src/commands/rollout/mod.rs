//! `rollout`: a ConfigMap for many nodes, canaries first, that stops by itself.

mod anew;
mod bad_versions;
mod begin;
mod client;
mod drain;
mod drive;
mod fleet;
mod records;
mod show;
mod verbs;

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};

use crate::api::write::{Carriers, Mode};
use crate::commands::targets::DryRun;
use crate::fleet::node::NodeRow;
use crate::fleet::rollout::drain::Draining;
use crate::fleet::rollout::plan::Member;
use crate::fleet::rollout::{OnFailure, Phase, Record, WaitFor};
use crate::output::{self, Format};
use crate::{Context, Failure};
use client::RolloutClient;
use drain::Drains;
use drive::{Drive, Outcome};
use fleet::Fleet;
use kubelet_config::duration::GoDuration;
use records::{Lock, Taken};
use show::Show;

/// Exit code of a client that did not come to the end of its rollout: the same command goes on (EX_TEMPFAIL).
const AGAIN: u8 = 75;

/// Options of `rollout`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Options {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    begin: Option<Begin>,
}

/// A rollout to begin.
#[derive(Debug, Args)]
struct Begin {
    /// The ConfigMap.
    #[arg(value_name = "CONFIGMAP", required = true)]
    config_map: String,
    /// Nodes with these labels, as they are now; those that come later are not its own.
    #[arg(short = 'l', long, value_name = "SELECTOR", required = true)]
    selector: String,
    /// The key of its data.
    #[arg(long, value_name = "KEY", default_value = kubelet_config::assignment::DEFAULT_KEY)]
    key: String,
    /// The rollout's name, if not the ConfigMap's.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Nodes that go first, of as many zones as there are; 0: none.
    #[arg(long, value_name = "N", default_value = "1")]
    canary: usize,
    /// Nodes that may be in flight or not Ready at a time: a number, or a share of all, rounded down.
    #[arg(long, value_name = "N|P%", default_value = "1")]
    max_unavailable: String,
    /// A node is done when it runs with it, or when it is last known good.
    #[arg(long, value_enum, default_value = "proven")]
    wait_for: Wait,
    /// Wait for `rollout resume` there.
    #[arg(long, value_enum, value_name = "WHEN")]
    pause_after: Option<Pause>,
    /// The label that says where a node is.
    #[arg(long, value_name = "KEY")]
    zone_key: Option<String>,
    /// What the first node that does not like it brings about: no further node gets it, or all get back what they had.
    #[arg(long, value_enum, default_value = "stop")]
    on_failure: Failing,
    /// A node that is not done after so long has failed.
    #[arg(long, value_name = "DURATION", default_value = "30m")]
    timeout_per_node: GoDuration,
    /// Drain each node before it gets it, and before it gets back what it had: cordon it, and evict its Pods. Refused
    /// are Pods without a controller and those with an emptyDir; =force evicts them too.
    #[arg(long, value_enum, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "careful")]
    drain: Option<Drained>,
    /// What these nodes say of the version counts for nothing: they were to blame for what they called bad.
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    despite: Vec<String>,
    /// none: do it; client, server: show who would be next when, and write nothing.
    #[arg(long, value_enum, default_value = "none", default_missing_value = "client", num_args = 0..=1, require_equals = true)]
    dry_run: DryRun,
    /// Say only how it ends.
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// How far it is; without a name, all rollouts.
    Status(Shown),
    /// No further node gets it; those in flight come to their end.
    Pause(Named),
    /// Go on with what is paused, has stopped, or lost its client.
    Resume(Resumed),
    /// Give it up; nodes keep what they have.
    Abort(Named),
    /// Give all nodes back what they had.
    Undo(Named),
}

#[derive(Debug, Args)]
struct Shown {
    /// Its name.
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// How.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

#[derive(Debug, Args)]
struct Named {
    /// Its name.
    #[arg(value_name = "NAME")]
    name: String,
    /// Say only how it ends.
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Debug, Args)]
struct Resumed {
    #[command(flatten)]
    named: Named,
    /// What these nodes say of the version counts for nothing: they were to blame for what they called bad.
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    despite: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Wait {
    Active,
    Proven,
}

impl From<Wait> for WaitFor {
    fn from(wait: Wait) -> Self {
        match wait {
            Wait::Active => Self::Active,
            Wait::Proven => Self::Proven,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Pause {
    Canary,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Failing {
    Stop,
    Revert,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Drained {
    Careful,
    Force,
}

impl From<Drained> for Draining {
    fn from(drained: Drained) -> Self {
        match drained {
            Drained::Careful => Self::Careful,
            Drained::Force => Self::Force,
        }
    }
}

impl From<Failing> for OnFailure {
    fn from(failing: Failing) -> Self {
        match failing {
            Failing::Stop => Self::Stop,
            Failing::Revert => Self::Revert,
        }
    }
}

impl Options {
    pub(crate) async fn run(self, context: &Context) -> Result<ExitCode, Failure> {
        let api = RolloutClient::new(context);
        match (self.verb, self.begin) {
            (Some(Verb::Status(Shown { name: Some(name), output })), _) => verbs::status(&api, &name, output).await,
            (Some(Verb::Status(Shown { output, .. })), _) => verbs::list(&api, output).await,
            (Some(Verb::Pause(named)), _) => verbs::pause(&api, &named).await,
            (Some(Verb::Resume(resumed)), _) => Box::pin(verbs::resume(&api, &resumed)).await,
            (Some(Verb::Abort(named)), _) => verbs::abort(&api, &named).await,
            (Some(Verb::Undo(named)), _) => Box::pin(verbs::undo(&api, &named)).await,
            (None, Some(begin)) => Box::pin(begin.run(&api)).await,
            (None, None) => {
                Err(Failure { code: 2, message: "rollout of what? A ConfigMap and -l SELECTOR".to_owned() })
            }
        }
    }
}

/// Drives a rollout that is recorded, unless a living client does.
async fn drive_on(api: &RolloutClient, name: &str, show: Show, what: &str) -> Result<ExitCode, Failure> {
    match Lock::take(api, name, |text| show.say(text)).await? {
        Taken::Lock(lock) => drive_locked(api, lock, show).await,
        Taken::Alive(other) => {
            show.say(&format!("{other} {what}; `kubectl kubelet-config rollout status {name}` says how far it is"));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The nodes of a rollout.
struct Nodes {
    members: Vec<Member>,
    /// As a list by its selector has them, if there was one, and its version.
    listed: Option<(Vec<NodeRow>, String)>,
    /// Whether the API server keeps `spec.configSource`, if somebody asked.
    keeps: Option<bool>,
}

async fn drive_locked(api: &RolloutClient, lock: Lock, show: Show) -> Result<ExitCode, Failure> {
    let name = lock.kept.name.clone();
    let record = run_locked(api, lock, show).await?;
    ended(&name, &record, &format!(" ({} requests)", api.api.requests()))
}

/// The same, to its end, whatever that is.
async fn run_locked(api: &RolloutClient, lock: Lock, show: Show) -> Result<Record, Failure> {
    match api.all_members(&lock.kept).await {
        Ok(members) => run_with(api, lock, Nodes { members, listed: None, keeps: None }, show).await,
        Err(failure) => {
            lock.release().await;
            Err(failure)
        }
    }
}

async fn drive_with(api: &RolloutClient, lock: Lock, nodes: Nodes, show: Show) -> Result<ExitCode, Failure> {
    let name = lock.kept.name.clone();
    let record = run_with(api, lock, nodes, show).await?;
    ended(&name, &record, &format!(" ({} requests)", api.api.requests()))
}

async fn run_with(api: &RolloutClient, lock: Lock, nodes: Nodes, show: Show) -> Result<Record, Failure> {
    let name = lock.kept.name.clone();
    let Nodes { members, listed, keeps } = nodes;
    let record = &lock.kept.record;
    let mut fleet = Fleet::new(members, record);
    // What the record says of nodes counts from the first sight of them.
    fleet.follow(&name, record);
    let from = listed.map(|(rows, version)| {
        fleet.know(rows);
        version
    });
    let phase = record.phase;
    let drains = Drains::new(api, record.options.drain);
    let left = if drains.is_on() { ", and stay cordoned until somebody goes on" } else { "" };
    let (heard, heard_all) = (Vec::new(), false);
    let carriers = Carriers { keeps_source: keeps, ..Carriers::new(None, Mode::Real) };
    let drive = Drive { api: api.clone(), lock, fleet, from, carriers, show, heard, heard_all, drains };
    match Box::pin(drive.run(interrupted())).await {
        Ok(Outcome::Ended(record, cordoned)) => {
            if let Some(first) = cordoned.first() {
                eprintln!(
                    "warning: {} nodes stay cordoned by this rollout, as they are not well: {}; `kubectl uncordon {first}` once \
                     one is",
                    cordoned.len(),
                    show::clean(&cordoned.join(", "))
                );
            }
            Ok(record)
        }
        Ok(Outcome::Interrupted) => {
            // Somebody may have aborted it meanwhile, and it may have come to its end.
            let phase = match api.in_time(api.record(&name)).await {
                Some(Ok(Some(kept))) => kept.record.phase,
                _ => phase,
            };
            let message = format!("interrupted; nothing more is sent, and nodes in flight come to their end{left}.");
            Err(again(&name, phase, &message, " "))
        }
        Err(failure) => {
            let phase = match api.record(&name).await {
                // What is not there any more is nothing to go on with.
                Ok(None) => return Err(failure),
                Ok(Some(kept)) => kept.record.phase,
                Err(_) => phase,
            };
            let left =
                if left.is_empty() { String::new() } else { format!("\nNodes in flight come to their end{left}.") };
            Err(again(&name, phase, &format!("{}{left}", failure.message), "\n"))
        }
    }
}

/// A client came to its end before its rollout did: what goes on with a rollout in this phase.
fn again(name: &str, phase: Phase, message: &str, between: &str) -> Failure {
    let verb = match phase {
        // There may be nodes that are to be uncordoned.
        Phase::Aborted | Phase::Done | Phase::Reverted => "abort",
        Phase::Reverting => "undo",
        Phase::Starting | Phase::Running | Phase::Paused | Phase::Stopped => "resume",
    };
    let message = format!("{message}{between}Go on with `kubectl kubelet-config rollout {verb} {name}`");
    Failure { code: AGAIN, message }
}

/// How a rollout that is not driven any more has ended: 0 if all is as it should be.
fn ended(name: &str, record: &Record, requests: &str) -> Result<ExitCode, Failure> {
    let why = if record.why.is_empty() { String::new() } else { format!(": {}", show::clean(&record.why)) };
    match record.phase {
        Phase::Done => {}
        Phase::Reverted if record.undone && record.behind == 0 => {}
        Phase::Reverted if record.behind > 0 => {
            return Err(Failure::new(format!(
                "rollout {name} is reverted, but for {} nodes{why}\n`kubectl kubelet-config status` says how they fare, and \
                 `kubectl kubelet-config rollout undo {name}` looks again",
                record.behind
            )));
        }
        Phase::Stopped => {
            return Err(Failure::new(format!(
                "rollout {name} stopped{why}\n`kubectl kubelet-config rollout undo {name}` gives nodes back what they had; \
                 `resume` goes on once the cause is mended (with --despite NODE if a node alone was to blame), `abort` leaves all \
                 as it is"
            )));
        }
        phase => return Err(Failure::new(format!("rollout {name} is {}{why}", phase.words()))),
    }
    output::print(&format!("rollout/{name} {}{why}{requests}\n", record.phase.words()))?;
    Ok(ExitCode::SUCCESS)
}

/// SIGINT or SIGTERM.
async fn interrupted() {
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
