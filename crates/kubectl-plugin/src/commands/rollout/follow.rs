//! Following a pool until it has come to an end, and saying who carries it out.

use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior};

use super::progress_reporter::ProgressReporter;
use crate::api::client::Client;
use crate::api::list::Selector;
use crate::api::pools::{self, StoredPool};
use crate::api::watch::{Event, Watcher};
use crate::commands::wait::interrupted;
use crate::fleet::leader_election::{Claim, LEASE_NAME, RETRY_PERIOD, claim, holder};
use crate::fleet::pool::progress::{Standing, advice, condition, standing};
use crate::fleet::pool::types::KubeletConfigPool;
use crate::output::{self, plain};
use crate::{Context, Failure};

/// Exit code of a terminal that did not come to the end of its rollout: the same command goes on (EX_TEMPFAIL).
const AGAIN: u8 = 75;
/// An answer takes no longer.
const ANSWER: Duration = Duration::from_secs(4);

/// Shows how far the pool is, until it has come to an end or somebody interrupts.
pub(crate) async fn run(context: &Context, name: &str, mut reporter: ProgressReporter) -> Result<(), Failure> {
    let client = Client { answer: ANSWER, ..context.api() };
    let ended = tokio::select! {
        biased;
        ended = follow(&client, name, &mut reporter) => ended,
        () = interrupted() => Err(again(
            name,
            &format!("interrupted; pool {name} stays as it is, and a controller carries it on: `kubectl kubelet-config rollout pause {name}` stops it"),
        )),
    };
    reporter.end();
    output::write_stdout(&format!("{}\n", plain(&ended?)))
}

fn again(name: &str, message: &str) -> Failure {
    let message = format!("{message}; `kubectl kubelet-config rollout status {name} --watch` follows it again");
    Failure { code: AGAIN, message }
}

/// What is said of how it has ended.
async fn follow(client: &Client, name: &str, reporter: &mut ProgressReporter) -> Result<String, Failure> {
    let mut controller = ObservedController::new(client, reporter).await;
    let selector = Selector::default().fields(&format!("metadata.name={name}"));
    let mut watcher = Watcher::new::<KubeletConfigPool>(&client.for_reading(), "pools", selector);
    let mut looks = tokio::time::interval(RETRY_PERIOD);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    looks.reset();
    let mut pool: Option<StoredPool> = None;
    // The latest list has the pool: a deletion is not always told, as after a gap in the watch.
    let mut is_listed = false;
    let mut changed = Instant::now();
    loop {
        let gone = || Err(Failure::new(format!("pool {name} was deleted; nodes keep what they have")));
        let event = tokio::select! {
            event = watcher.next() => Some(event),
            _ = looks.tick() => {
                controller.look(client, reporter).await;
                None
            }
        };
        match event.transpose() {
            Ok(Some(Event::Apply(object))) => {
                is_listed = true;
                let new = StoredPool::new(object)?;
                if pool.as_ref().is_none_or(|old| old.pool.status != new.pool.status) {
                    changed = Instant::now();
                }
                pool = Some(new);
            }
            Ok(Some(Event::Init)) => is_listed = false,
            Ok(Some(Event::InitDone)) if !is_listed => return gone(),
            Ok(Some(Event::Delete(_))) => return gone(),
            Ok(Some(Event::Interrupted(failure))) => {
                reporter.note(&format!("warning: {}; trying on", failure.message));
            }
            Err(failure) => return Err(again(name, &failure.message)),
            Ok(Some(Event::InitDone) | None) => {}
        }
        if let Some(pool) = &pool {
            reporter.progress(name, &pool.pool);
            if let Some(ended) = ended(pool, changed.elapsed()).filter(|_| controller.has_acted) {
                return ended;
            }
        }
    }
}

/// Who carries out pools, as its Lease tells.
struct ObservedController {
    lease: Value,
    /// When the Lease was seen to change.
    changed: Instant,
    /// It was seen to live, so that what a pool says is no news of a former day.
    has_acted: bool,
    /// Who was said to carry it out; none: nobody was.
    told: Option<String>,
}

impl ObservedController {
    /// The first look, which can only go by the time of day.
    async fn new(client: &Client, reporter: &ProgressReporter) -> Self {
        let mut observed = Self { lease: Value::Null, changed: Instant::now(), has_acted: false, told: None };
        match pools::lease(client).await {
            Ok(lease) => {
                match holder(&lease, jiff::Timestamp::now()) {
                    Ok(holder) => observed.acts(holder, reporter),
                    Err(why) => nobody_acts(&why, reporter),
                }
                observed.lease = lease;
            }
            Err(error) => {
                // It is believed then: nobody could say more.
                observed.has_acted = error.code() == 403;
                let cause = error.cause();
                reporter
                    .warn(&format!("whether a controller carries it out is not known (Lease {LEASE_NAME}: {cause})"));
            }
        }
        observed
    }

    /// The next one. A holder renews its Lease each [`RETRY_PERIOD`]; what cannot be read now is read then.
    async fn look(&mut self, client: &Client, reporter: &ProgressReporter) {
        let lease = match pools::lease(client).await {
            Ok(lease) => lease,
            Err(error) => {
                self.has_acted |= error.code() == 403; // as at the first look: nobody could say more
                return;
            }
        };
        let held_by = |lease: &Value| lease.pointer("/spec/holderIdentity").and_then(Value::as_str).map(str::to_owned);
        let is_new = lease != self.lease;
        if is_new {
            // Whoever has just taken it has not looked at the pool yet.
            self.has_acted |=
                held_by(&lease).is_some_and(|us| !us.is_empty()) && held_by(&lease) == held_by(&self.lease);
            (self.lease, self.changed) = (lease, Instant::now());
        }
        match claim(&self.lease, "", self.changed.elapsed()) {
            Claim::Held(holder) if is_new && self.told.as_ref() != Some(&holder) => self.acts(&holder, reporter),
            Claim::Free if self.told.take().is_some() => nobody_acts("it is not renewed any more", reporter),
            _ => {}
        }
    }

    fn acts(&mut self, holder: &str, reporter: &ProgressReporter) {
        reporter.note(&format!("{holder} carries it out; this terminal follows"));
        self.told = Some(holder.to_owned());
    }
}

/// This is said also to who wants to hear of nothing but the end, which may never come.
fn nobody_acts(why: &str, reporter: &ProgressReporter) {
    reporter.warn(&format!(
        "nobody carries out pools (of the Lease {LEASE_NAME}, {why}): run `kubectl kubelet-config controller` in another terminal, or \
         `kubectl apply -k packaging/manifests/pools`; this terminal waits for one"
    ));
}

/// How it has ended, if it has. `unchanged`: its status is as it was for so long.
fn ended(StoredPool { name, pool, .. }: &StoredPool, unchanged: Duration) -> Option<Result<String, Failure>> {
    let status = pool.status.clone().unwrap_or_default();
    let update = status.update_revision.clone().unwrap_or_default();
    let stalled = |reason: &str, message: &str| {
        Failure::new(format!("pool {name} goes no further ({reason}): {message}\n{}", advice(name, reason)))
    };
    let timeout = Duration::from_secs(pool.spec.rollout.node_timeout_seconds.into());
    Some(match standing(pool) {
        Standing::OnItsWay => return None,
        Standing::GoingBack if unchanged < timeout => return None,
        Standing::GoingBack => {
            let left = status.updated + status.updating;
            let reason = condition(&status, "Ready").map_or("", |ready| ready.reason.as_str());
            let not_back = "do not go back: they are not Ready, or held";
            Err(stalled(reason, &format!("{update} is bad, and of the nodes that have it {left} {not_back}")))
        }
        Standing::Complete => {
            Ok(format!("pool/{name} complete: {} of {} nodes have {update}", status.updated, status.nodes))
        }
        Standing::Stalled(reason, message) => Err(stalled(&reason, &message)),
        Standing::Paused => Ok(format!("pool/{name} paused; `kubectl kubelet-config rollout resume {name}` goes on")),
        Standing::AwaitingApproval(revision) => Ok(format!(
            "pool/{name} waits: the canaries have {revision}; once you have looked at them, `kubectl kubelet-config rollout resume {name}` \
             goes on"
        )),
    })
}
