//! Carrying a pool out, or watching who does, until it has come to an end.

use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::progress_reporter::ProgressReporter;
use crate::api::client::Client;
use crate::api::list::Selector;
use crate::api::pools::StoredPool;
use crate::api::watch::{Event, Watcher, older};
use crate::commands::controller::client as controller_client;
use crate::commands::doctor::requests;
use crate::commands::wait::interrupted;
use crate::controller::{self, Leader, Scope, only_pool};
use crate::fleet::doctor::rights::RIGHTS;
use crate::fleet::leader_election::{LEASE_NAME, holder};
use crate::fleet::pool::progress::{Standing, advice, condition, standing};
use crate::fleet::pool::types::KubeletConfigPool;
use crate::output::{self, plain};
use crate::{Context, Failure};

/// Exit code of a terminal that did not come to the end of its rollout: the same command goes on (EX_TEMPFAIL).
const AGAIN: u8 = 75;

/// What this terminal does, as far as its rights go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It carries the pool out whenever nobody else holds the Lease.
    Candidate,
    /// It has not the rights to, and somebody else does.
    Follower,
}

impl Role {
    /// # Errors
    /// It has not the rights, and nobody else carries pools out.
    pub(crate) async fn find(client: &Client) -> Result<Self, Failure> {
        let mut lacking = Vec::new();
        for right in RIGHTS.iter().filter(|right| right.commands.split(", ").any(|command| command == "rollout")) {
            // Who cannot ask finds out by trying.
            if requests::allows(client, right).await.is_ok_and(|allowed| !allowed) {
                lacking.push(format!("{} {}", right.verb, right.resource));
            }
        }
        if lacking.is_empty() {
            return Ok(Self::Candidate);
        }
        let lacking = lacking.join(", ");
        let lease = requests::pools(client).await.map(|(_, lease)| lease).unwrap_or_default();
        match holder(&lease, jiff::Timestamp::now()) {
            Ok(_) => Ok(Self::Follower),
            Err(why) => Err(Failure::new(format!(
                "nobody carries out pools (of the Lease {LEASE_NAME}, {why}), and you have not the rights to do it from here ({lacking}); \
                 nothing was written. `kubectl kubelet-config doctor` says how to grant them, or start a controller"
            ))),
        }
    }
}

/// Until the pool has come to an end, whoever carries it out.
pub(crate) async fn run(
    context: &Context,
    name: &str,
    role: Role,
    mut reporter: ProgressReporter,
) -> Result<ExitCode, Failure> {
    let client = controller_client(context);
    let notes = reporter.notes();
    // What the pool says is believed from this version on: somebody who lives has judged it.
    let (judged, judgement) = watch::channel((role == Role::Follower).then(String::new));
    let tell = |leader: Leader<'_>| {
        notes.note(&match leader {
            Leader::Us(_) => format!("this terminal carries it out, as holder of the Lease {LEASE_NAME}"),
            Leader::Other(other) => match only_pool(other).filter(|pool| *pool != name) {
                Some(pool) => {
                    format!("{other} carries out pool {pool} alone; this terminal waits for its Lease {LEASE_NAME}")
                }
                None => format!("{other} carries it out; this terminal follows"),
            },
            Leader::Renewed(other) => {
                if only_pool(other).is_none_or(|pool| pool == name) {
                    judged.send_replace(Some(String::new()));
                }
                return;
            }
            Leader::Nobody => format!("the Lease {LEASE_NAME} is lost; this terminal follows"),
        });
    };
    let on_reconciled = |version| drop(judged.send_replace(Some(version)));
    let (stop, stopped) = oneshot::channel::<()>();
    let carry_out = async {
        if role == Role::Follower {
            notes.note("a controller carries it out; this terminal follows");
            let _ = stopped.await;
            return Ok(());
        }
        let stopped = async {
            let _ = stopped.await;
        };
        controller::run(
            &client,
            Scope { pool: Some(name), on_leader: &tell, on_reconciled: &on_reconciled },
            None,
            stopped,
        )
        .await
    };
    let (mut carry_out, mut is_over) = (pin!(carry_out), false);
    let ended = tokio::select! {
        biased;
        ended = follow(&client, name, judgement, &mut reporter) => ended,
        () = interrupted() => Err(again(name, "interrupted; nodes on their way come to their end")),
        failed = &mut carry_out => {
            is_over = true;
            let why = failed.err().map_or_else(String::new, |failure| failure.message);
            Err(again(name, &format!("{why}\nnodes on their way come to their end")))
        }
    };
    drop(stop);
    if !is_over {
        // Others need not wait until the Lease is over.
        let _ = carry_out.await;
    }
    reporter.end();
    output::write_stdout(&format!("{}\n", plain(&ended?)))?;
    Ok(ExitCode::SUCCESS)
}

fn again(name: &str, message: &str) -> Failure {
    let message =
        format!("{message}; `kubectl kubelet-config rollout resume {name}` goes on with it, or a controller does");
    Failure { code: AGAIN, message }
}

/// Shows how far the pool is, until it has come to an end; what is said of that.
async fn follow(
    client: &Client,
    name: &str,
    mut judgement: watch::Receiver<Option<String>>,
    reporter: &mut ProgressReporter,
) -> Result<String, Failure> {
    let selector = Selector::default().fields(&format!("metadata.name={name}"));
    let mut watcher = Watcher::new::<KubeletConfigPool>(&client.for_reading(), "pools", selector);
    let mut pool: Option<StoredPool> = None;
    let mut changed = Instant::now();
    loop {
        let gone = || Err(Failure::new(format!("pool {name} was deleted; nodes keep what they have")));
        let event = async {
            tokio::select! {
                event = watcher.next() => Some(event),
                Ok(()) = judgement.changed() => None,
            }
        };
        let event = match tokio::time::timeout(reporter.redraw(), event).await {
            Ok(Some(event)) => Ok(event),
            // Time to show how far it is, or to believe it.
            Ok(None) | Err(_) => Err(()),
        };
        match event {
            Ok(Ok(Event::Apply(object))) => {
                let new = StoredPool::new(object)?;
                if pool.as_ref().is_none_or(|old| old.pool.status != new.pool.status) {
                    changed = Instant::now();
                }
                pool = Some(new);
            }
            Ok(Ok(Event::InitDone)) if pool.is_none() => return gone(),
            Ok(Ok(Event::Delete(_))) => return gone(),
            Ok(Ok(Event::Interrupted(failure))) => reporter.note(&format!("warning: {}; trying on", failure.message)),
            Ok(Err(failure)) => return Err(again(name, &failure.message)),
            Ok(Ok(Event::Init | Event::InitDone)) | Err(()) => {}
        }
        if let Some(pool) = &pool {
            reporter.progress(name, &pool.pool);
            let version = pool.pool.metadata.resource_version.as_deref().unwrap_or_default();
            let is_judged = judgement.borrow().as_deref().is_some_and(|judged| !older(version, judged));
            if let Some(ended) = ended(pool, changed.elapsed()).filter(|_| is_judged) {
                return ended;
            }
        }
    }
}

/// How it has ended, if it has. `unchanged`: its status is as it was for so long.
fn ended(StoredPool { name, pool, .. }: &StoredPool, unchanged: Duration) -> Option<Result<String, Failure>> {
    let status = pool.status.clone().unwrap_or_default();
    let update = status.update_revision.clone().unwrap_or_default();
    let stalled = |reason: &str, message: &str| {
        Failure::new(format!("pool {name} goes no further ({reason}): {message}\n{}", advice(name, reason)))
    };
    let timeout = Duration::from_secs(pool.spec.rollout.node_timeout_seconds.into());
    match standing(pool) {
        Standing::OnItsWay => None,
        Standing::GoingBack if unchanged < timeout => None,
        Standing::GoingBack => {
            let message = format!(
                "{update} is bad, and of the nodes that have it {} do not go back: they are not Ready, or held",
                status.updated + status.updating
            );
            Some(Err(stalled(
                &condition(&status, "Ready").map_or_else(String::new, |ready| ready.reason.clone()),
                &message,
            )))
        }
        Standing::Complete => {
            Some(Ok(format!("pool/{name} complete: {} of {} nodes have {update}", status.updated, status.nodes)))
        }
        Standing::Stalled(reason, message) => Some(Err(stalled(&reason, &message))),
        Standing::Paused => {
            Some(Ok(format!("pool/{name} paused; `kubectl kubelet-config rollout resume {name}` goes on")))
        }
        Standing::AwaitingApproval(revision) => Some(Ok(format!(
            "pool/{name} waits: the canaries have {revision}; once you have looked at them, `kubectl kubelet-config rollout resume {name}` \
             goes on"
        ))),
    }
}
