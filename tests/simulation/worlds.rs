//! Worlds by their seeds, on all cores.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use testkit::sim::chaos::Chaos;
use testkit::sim::laws::{Heed, Law, Tally, broken_law};
use testkit::sim::needs::Need;

/// Every world of these has a twin without jumps of the wall clock.
const TWINS: u64 = 8;

/// Of so many seeds one has what a defect needs: the rarest needs fit one in some hundred.
const SOON: u64 = 100_000;

/// How a world ended.
#[derive(Default)]
pub struct Outcome {
    pub steps: u64,
    pub tally: Tally,
    pub failure: Option<String>,
    pub log: Vec<String>,
}

impl Outcome {
    /// The law that was broken; `None` if none was, or something else ended the world.
    pub fn broken(&self) -> Option<Law> {
        broken_law(self.failure.as_ref()?)
    }
}

/// What is run, and what of it counts.
#[derive(Clone, Copy)]
pub struct Plan {
    /// Steps of one world before the peace at its end.
    pub steps: u64,
    pub heed: Heed,
    /// The world ends, wherever it is, after so many.
    pub limit: u64,
    /// What is to happen often.
    pub needs: &'static [Need],
}

/// True if the world of this seed can have what it is to have.
pub fn fits(seed: u64, plan: Plan) -> bool {
    plan.needs.is_empty() || {
        let chaos = Chaos::new(seed, plan.heed, false);
        plan.needs.iter().all(|need| chaos.has(*need))
    }
}

/// The first such seed from this one on.
pub fn fitting(seed: u64, plan: Plan) -> u64 {
    (seed..seed + SOON).find(|seed| fits(*seed, plan)).unwrap_or(seed)
}

/// Runs the world of a seed, and its twin.
pub fn run(seed: u64, plan: Plan, with_log: bool) -> Outcome {
    let (mut outcome, fingerprint) = run_one(seed, plan, with_log, false);
    let twins = seed.is_multiple_of(TWINS) && plan.heed.heeds(Law::WallClock);
    if outcome.failure.is_none() && twins && outcome.steps < plan.limit {
        let plan = Plan { limit: plan.limit - outcome.steps, ..plan };
        let (twin, other) = run_one(seed, plan, false, true);
        outcome.steps += twin.steps;
        outcome.tally.add(&twin.tally);
        outcome.tally.check(Law::WallClock);
        if twin.steps < plan.limit && (twin.failure.is_some() || fingerprint != other) {
            let message = catch_unwind(|| testkit::sim::laws::broken(Law::WallClock, "its twin does other things"));
            outcome.failure = message.err().map(|cause| text(&*cause));
        }
    }
    outcome
}

fn text(cause: &(dyn std::any::Any + Send)) -> String {
    let message = cause.downcast_ref::<String>().cloned();
    message.or_else(|| cause.downcast_ref::<&str>().map(|it| (*it).to_owned())).unwrap_or_default()
}

fn run_one(seed: u64, plan: Plan, with_log: bool, wall_is_steady: bool) -> (Outcome, u64) {
    let mut chaos = Chaos::new(seed, plan.heed, wall_is_steady);
    chaos.direct(seed, plan.needs);
    chaos.node.outside.borrow_mut().log = with_log.then(Vec::new);
    chaos.node.outside.borrow_mut().account.limit = plan.limit;
    let result = catch_unwind(AssertUnwindSafe(|| chaos.live(plan.steps)));
    let failure = result.err().map(|cause| text(&*cause));
    let log = chaos.node.outside.borrow_mut().log.take().unwrap_or_default();
    let outside = chaos.node.outside.borrow();
    let account = &outside.account;
    let failure = failure.filter(|_| account.steps < plan.limit);
    (Outcome { steps: account.steps, tally: account.tally.clone(), failure, log }, account.fingerprint)
}

/// A world that failed.
pub struct Failure {
    pub seed: u64,
    pub message: String,
}

impl Failure {
    pub fn report(&self, steps: u64) {
        println!("\n{}", self.message);
        println!("\nSIM_SEED={} SIM_STEPS={steps} cargo test --locked --test simulation", self.seed);
    }
}

/// What all threads found so far.
#[derive(Default)]
pub struct Findings {
    pub steps: u64,
    pub worlds: u64,
    pub tally: Tally,
    pub failure: Option<Failure>,
}

/// Does something with every number, on all cores, until it is told that it is enough.
pub fn on_all_cores(work: impl Fn(u64) -> bool + Sync) {
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(|| while work(next.fetch_add(1, Ordering::Relaxed)) {});
        }
    });
}

/// Runs worlds until there is enough of them or one fails.
pub fn many(seeds: impl Fn(u64) -> u64 + Sync, plan: Plan, enough: impl Fn(&Findings) -> bool + Sync) -> Findings {
    let findings = Mutex::new(Findings::default());
    on_all_cores(|number| {
        {
            let found = findings.lock().unwrap();
            if found.failure.is_some() || enough(&found) {
                return false;
            }
        }
        let seed = seeds(number);
        let outcome = run(seed, plan, false);
        let mut found = findings.lock().unwrap();
        found.steps += outcome.steps;
        found.worlds += 1;
        found.tally.add(&outcome.tally);
        if let Some(message) = outcome.failure {
            found.failure.get_or_insert(Failure { seed, message });
        }
        true
    });
    findings.into_inner().unwrap()
}

pub fn threads() -> u64 {
    std::thread::available_parallelism().map_or(2, |cores| cores.get() as u64)
}

pub fn summary(found: &Findings, began: Instant) -> String {
    let seconds = began.elapsed().as_secs_f64();
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    let rate = found.steps as f64 / seconds;
    let (steps, worlds, threads) = (found.steps, found.worlds, threads());
    format!("{steps} steps in {worlds} worlds, {seconds:.1} s, {rate:.0} steps/s on {threads} threads")
}
