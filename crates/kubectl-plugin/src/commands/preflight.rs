//! `preflight`: what nodes would make of a configuration, by their own word.

use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, FuturesUnordered};
use futures_util::{FutureExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::api::client::{ApiError, Client};
use crate::api::nodes::{NodeEvent, NodeWatcher};
use crate::api::watch::older;
use crate::api::write::patch_node;
use crate::commands::assign::reference;
use crate::commands::push;
use crate::commands::targets::{Targets, readable_config_map};
use crate::commands::wait::{duration, interrupted};
use crate::fleet::config_ref::ConfigRef;
use crate::fleet::node::{ConfigManager, NodeRow};
use crate::fleet::preflight::{Answers, Outcome, names};
use crate::fleet::wait::version_of;
use crate::output::{self, Format, Out, Table, Tone};
use crate::{Context, Failure};
use kubelet_config::assignment::DEFAULT_KEY;
use kubelet_config::preflight::{ANSWER_ANNOTATION, PreflightRequest, PreflightResult, REQUEST_ANNOTATION};

/// Patches under way at a time, ...
const IN_FLIGHT: usize = 20;
/// ... and a new one no oftener than that: 5,000 nodes are asked within a minute, and so answer one after the other.
const PACE: Duration = Duration::from_millis(10);

/// Options of `preflight`.
#[derive(Debug, Args)]
#[command(override_usage = "kubectl kubelet-config preflight <CONFIGMAP|FILE> <NODE...|-l SELECTOR>")]
pub(crate) struct Options {
    /// The ConfigMap, in the namespace of -n; or a file (it begins with / or . or ends in .yaml, .yml or .json), which is
    /// pushed first.
    #[arg(value_name = "CONFIGMAP|FILE")]
    what: String,
    #[command(flatten)]
    targets: Targets,
    /// The key of its data that holds the KubeletConfiguration.
    #[arg(long, value_name = "KEY", default_value = DEFAULT_KEY)]
    key: String,
    /// The file holds only what differs from each node's own configuration file, and is laid over that instead of replacing it.
    #[arg(long)]
    overlay: bool,
    /// How long to wait for answers, such as 90s or 10m.
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = duration)]
    timeout: Duration,
    /// Output format: table and wide have one row for each thing that nodes say, json and yaml the names of all nodes.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

impl Options {
    pub(crate) async fn run(self, context: &Context) -> Result<ExitCode, Failure> {
        let client = context.api();
        let request = self.request(context, &client).await?.to_string();
        let selection = self.targets.clone().selection();
        let (watcher, rows) = NodeWatcher::new(&client, selection.clone()).await?;
        if rows.is_empty() && selection.names.is_empty() {
            return Err(selection.nothing());
        }
        let mut answers = Answers::default();
        for name in selection.names.iter().filter(|name| rows.iter().all(|row| row.name != **name)) {
            answers.unanswered(name, Outcome::Gone, "there is no such node");
        }
        let mut survey = Survey::new(client, request, rows, answers);
        let result = survey.run(watcher, self.timeout).await;
        survey.withdraw().await;
        let interrupted = result?;
        output::show(self.output, || survey.answers.document(&survey.request), |out| survey.answers_text(out))?;
        if interrupted {
            return Err(Failure::new("interrupted"));
        }
        Ok(if survey.answers.all_valid() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// These very bytes, if they can be read.
    async fn request(&self, context: &Context, client: &Client) -> Result<PreflightRequest, Failure> {
        let (reference, map) = if let Ok(ConfigRef::File(file)) = ConfigRef::parse(&self.what) {
            let map = push::Options::push(&file, &self.key, self.overlay, client).await?;
            let name = map.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
            eprintln!("configmap/{name} is what is judged");
            (reference(context, &name, &self.key)?, Some(map))
        } else if self.overlay {
            return Err(Failure::new("--overlay is for a FILE: of a ConfigMap its annotation says it"));
        } else {
            let reference = reference(context, &self.what, &self.key)?;
            let map = readable_config_map(client, &reference).await?;
            (reference, map)
        };
        // Its own: what it is told is told to us, now.
        let token = jiff::Timestamp::now().as_nanosecond().to_string();
        Ok(PreflightRequest { reference, version: map.as_ref().and_then(version_of), token: Some(token) })
    }
}

/// A patch under way: the node, and what came of it.
type Flight = BoxFuture<'static, (String, Result<Value, ApiError>)>;

/// Nodes that are asked, and what they said.
struct Survey {
    client: Client,
    request: String,
    /// Those that are still to answer, and whether they were asked.
    open: BTreeMap<String, bool>,
    queue: VecDeque<String>,
    /// Their annotation is to go; the resourceVersion that our patch gave them, once it is answered.
    asked: BTreeMap<String, Option<String>>,
    answers: Answers,
}

impl Survey {
    fn new(client: Client, request: String, rows: Vec<NodeRow>, answers: Answers) -> Self {
        let (open, queue, asked) = Default::default();
        let mut survey = Self { client, request, open, queue, asked, answers };
        for row in rows {
            if row.manager == Some(ConfigManager::Supervisor) {
                survey.queue.push_back(row.name.clone());
                survey.open.insert(row.name, false);
            } else {
                survey.answers.unanswered(&row.name, Outcome::NoSupervisor, "");
            }
        }
        survey
    }

    /// True if the user does not want to wait.
    async fn run(&mut self, watcher: NodeWatcher, timeout: Duration) -> Result<bool, Failure> {
        // A stream, because what lists anew must not be interrupted.
        let events = stream::unfold(watcher, async |mut watcher| Some((watcher.next().await, watcher)));
        let (mut events, mut interrupted) = (pin!(events), pin!(interrupted()));
        let mut flights: FuturesUnordered<Flight> = FuturesUnordered::new();
        let (deadline, mut pace) = (Instant::now() + timeout, interval(PACE));
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stopped = false;
        while !self.open.is_empty() && !stopped {
            tokio::select! {
                () = &mut interrupted => stopped = true,
                () = sleep_until(deadline) => break,
                _ = pace.tick(), if !self.queue.is_empty() && flights.len() < IN_FLIGHT => flights.extend(self.ask_next()),
                Some((name, answer)) = flights.next(), if !flights.is_empty() => self.patched(&name, answer),
                Some(event) = events.next() => match event? {
                    NodeEvent::Applied(row) => self.seen(*row),
                    NodeEvent::Deleted(name) => self.end(&name, Outcome::Gone, "it is gone, or has lost its labels"),
                },
            }
        }
        // What is under way may have been done.
        while let Some((name, answer)) = flights.next().await {
            self.patched(&name, answer);
        }
        for (name, is_asked) in std::mem::take(&mut self.open) {
            let outcome = if is_asked { Outcome::Silent } else { Outcome::NotAsked };
            self.answers.unanswered(&name, outcome, if stopped { "interrupted" } else { "the time was over" });
        }
        Ok(stopped)
    }

    /// Asks the next node.
    fn ask_next(&mut self) -> Option<Flight> {
        let name = self.queue.pop_front()?;
        self.asked.insert(name.clone(), None);
        Some(self.annotate(name, &json!(self.request)))
    }

    fn patched(&mut self, name: &str, answer: Result<Value, ApiError>) {
        match answer {
            Ok(node) => {
                let version = node.pointer("/metadata/resourceVersion").and_then(Value::as_str);
                if let Some(asked) = self.asked.get_mut(name) {
                    *asked = version.map(str::to_owned);
                }
                if let Some(is_asked) = self.open.get_mut(name) {
                    *is_asked = true;
                }
            }
            Err(error) => {
                if !error.may_pass() {
                    self.asked.remove(name);
                }
                self.end(name, Outcome::NotAsked, &Failure::from(error).message);
            }
        }
    }

    /// The answer to us may be seen before that to our patch.
    fn seen(&mut self, row: NodeRow) {
        let asked = self.asked.get(&row.name).and_then(Option::as_deref);
        if asked.is_some_and(|asked| older(asked, &row.version))
            && row.preflight_request.as_ref() != Some(&self.request)
        {
            self.asked.remove(&row.name);
            self.end(&row.name, Outcome::NotAsked, "somebody else asked it meanwhile: run this again");
            return;
        }
        let Some(status) = row.preflight.filter(|status| status.answers(&self.request)) else { return };
        if self.open.remove(&row.name).is_some() {
            self.answers.answered(&row.name, &status);
        }
    }

    fn end(&mut self, name: &str, outcome: Outcome, why: &str) {
        if self.open.remove(name).is_some() {
            self.answers.unanswered(name, outcome, why);
        }
    }

    /// Takes our annotation off, and no other. Whoever does not want to wait for that either interrupts it; the nodes then
    /// keep it, and it costs them nothing.
    async fn withdraw(&mut self) {
        let mut interrupted = pin!(interrupted());
        let mut flights: FuturesUnordered<Flight> = FuturesUnordered::new();
        let mut pace = interval(PACE);
        let (mut left, mut why) = (Vec::new(), String::new());
        while !(self.asked.is_empty() && flights.is_empty()) {
            tokio::select! {
                () = &mut interrupted => break,
                _ = pace.tick(), if !self.asked.is_empty() && flights.len() < IN_FLIGHT => flights.extend(self.withdraw_next()),
                Some((name, answer)) = flights.next(), if !flights.is_empty() => match answer {
                    Err(error) if error.code() != 404 => {
                        left.push(name);
                        why = Failure::from(error).message;
                    }
                    _ => {}
                },
            }
        }
        left.extend(std::mem::take(&mut self.asked).into_keys());
        if !left.is_empty() {
            let left = format!("the annotation {REQUEST_ANNOTATION} stays on {}: {why}", names(&left));
            eprintln!("warning: {}", output::plain(&left));
        }
    }

    fn withdraw_next(&mut self) -> Option<Flight> {
        let (name, _) = self.asked.pop_first()?;
        Some(self.annotate(name, &Value::Null))
    }

    /// What it said to others goes with it.
    fn annotate(&self, name: String, request: &Value) -> Flight {
        let annotations = json!({REQUEST_ANNOTATION: request, ANSWER_ANNOTATION: null});
        let patch = json!({"metadata": {"annotations": annotations}});
        let client = self.client.clone();
        async move {
            let answer = patch_node(&client, &name, &patch, false).await;
            (name, answer)
        }
        .boxed()
    }

    fn answers_text(&self, out: Out) -> String {
        let mut table = Table::new(&["COUNT", "RESULT", "KUBELET", "NODES", "MESSAGE"]).whole();
        for ((outcome, version, message), group) in self.answers.groups() {
            let tone = match outcome {
                Outcome::Answered(PreflightResult::Valid) => Tone::Good,
                Outcome::Answered(PreflightResult::Inconclusive) | Outcome::NoSupervisor | Outcome::Silent => {
                    Tone::Open
                }
                _ => Tone::Bad,
            };
            let pods = match group.pods_lost {
                0 => String::new(),
                lost if lost > group.pods.len() => format!("{lost} pods, such as {}", names(&group.pods)),
                _ => format!("pods: {}", names(&group.pods)),
            };
            table.row([
                (Tone::Plain, group.nodes.len().to_string()),
                (tone, outcome.label().to_owned()),
                (Tone::Plain, version.clone()),
                (Tone::Plain, names(&group.nodes)),
                (Tone::Plain, format!("{message}{pods}")),
            ]);
        }
        format!("{}{}\n", table.render(out), output::plain(&self.answers.summary()))
    }
}
