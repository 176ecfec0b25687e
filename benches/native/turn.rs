//! One contender's turn: it is started anew, and what it does is measured, the same for each.

use std::time::{Duration, Instant};

use testkit::restarted::Restarted;

use crate::Result;
use crate::contender::{Contender, LIMIT};
use crate::counted::{Starts, now};
use crate::healthz::HealthzWatch;
use crate::world::{ConfigMap, World, wait_for};

/// So long native is watched whether it heals. It does not; once is enough.
pub const NATIVE_WATCHED: Duration = Duration::from_secs(120);

/// A kubelet that stays up so long is healed: one that its configuration kills comes back for less than a second.
const HEALED: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// From the write (bare: from SIGTERM) to a new kubelet that is active and healthy.
    pub healthy: Duration,
    /// Without healthz 200.
    pub outage: Duration,
    pub starts: Starts,
}

#[derive(Clone, Debug)]
pub struct Turn {
    pub contender: Contender,
    pub round: u32,
    /// Until its first kubelet was healthy.
    pub own_start: Starts,
    pub first: Change,
    pub second: Change,
    /// A bare kubelet has no configurations; of native one round is enough.
    pub others: Option<OtherCases>,
    /// From the supervisor's own start to that of the kubelet, with what it has on disk.
    pub exec: Option<Duration>,
}

#[derive(Clone, Debug)]
pub struct OtherCases {
    pub label_edit: Starts,
    pub rejected: Starts,
    /// From the write of the configuration that kills the kubelet to a kubelet that stays; `None`: not within [`NATIVE_WATCHED`].
    pub recovery: Option<Duration>,
}

pub fn take(world: &World, contender: Contender, round: u32, rounds: u32) -> Result<Turn> {
    let phase = f64::from(round) / f64::from(rounds);
    let changes = Changes { world, contender, round, phase };
    world.forget()?;
    let mark = world.kubelet.mark();
    let running = contender.start(world, &options(world, "10m"))?;
    changes.settle()?;
    let own_start = world.kubelet.since(mark);
    let taken = |first, second, others| Turn { contender, round, own_start, first, second, others, exec: None };
    if contender == Contender::Bare {
        let (first, second) = (changes.bare_restart(&running)?, changes.bare_restart(&running)?);
        return Ok(taken(first, second, None));
    }

    let (_, first) = changes.change("first", "maxPods: 51")?;
    let (map, second) = changes.change("second", "maxPods: 52")?;
    // It takes native ten minutes, and is the same each time.
    let is_due = round == 0 || contender.is_supervised();
    let others = if is_due { Some(changes.others(&map)?) } else { None };
    drop(running);
    let exec = if contender.is_supervised() { Some(changes.exec()?) } else { None };
    std::fs::remove_dir_all(contender.store(world))?;
    Ok(Turn { exec, ..taken(first, second, others) })
}

/// The supervisor's, whose trial lasts so long.
pub fn options(world: &World, trial: &str) -> [String; 2] {
    [format!("--trial-duration={trial}"), format!("--metrics-bind-address=127.0.0.1:{}", world.metrics)]
}

struct Changes<'a> {
    world: &'a World,
    contender: Contender,
    round: u32,
    phase: f64,
}

impl Changes<'_> {
    fn settle(&self) -> Result<()> {
        self.contender.settle(self.world, self.phase)
    }

    fn map(&self, name: &str, lines: &str) -> Result<ConfigMap> {
        self.world.config_map(&format!("{}-{}-{name}", self.contender.name(), self.round), lines)
    }

    fn bare_restart(&self, running: &Restarted) -> Result<Change> {
        self.measure(
            || {
                running.terminate();
                Ok(())
            },
            || true,
        )
    }

    /// One valid change.
    fn change(&self, name: &str, lines: &str) -> Result<(ConfigMap, Change)> {
        let map = self.map(name, lines)?;
        let change = self.measure(|| self.world.assign(Some(&map)), || self.world.is_active(Some(&map)))?;
        Ok((map, change))
    }

    /// Until the kubelet was away and is back, and it is said to be active, whichever comes last.
    fn measure(&self, write: impl FnOnce() -> Result<()>, is_active: impl Fn() -> bool) -> Result<Change> {
        let mark = self.world.kubelet.mark();
        let watch = HealthzWatch::begin(self.world.healthz).begun()?;
        let begun = Instant::now();
        write()?;
        wait_for("the configuration to be active", LIMIT, is_active)?;
        let active = Instant::now();
        wait_for("the kubelet to be healthy again", LIMIT, || watch.back().is_some())?;
        let back = watch.back().ok_or("the kubelet is away again")?;
        drop(watch);
        self.settle()?;
        let healthy = active.max(back.at) - begun;
        Ok(Change { healthy, outage: back.outage, starts: self.world.kubelet.since(mark) })
    }

    /// A new version of the ConfigMap with the same content. It is told as active once it was taken notice of.
    fn label_edit(&self, map: &ConfigMap) -> Result<Starts> {
        let mark = self.world.kubelet.mark();
        let edited = self.world.label(map)?;
        wait_for("the edited version to be active", LIMIT, || self.world.is_active(Some(&edited)))?;
        self.settle()?;
        Ok(self.world.kubelet.since(mark))
    }

    /// Back to the local configuration, which is last known good.
    fn to_local(&self) -> Result<()> {
        self.world.assign(None)?;
        let is_local =
            || self.world.is_active(None) && self.world.status()["error"].is_null() && self.world.is_healthy();
        wait_for("the local configuration", LIMIT, is_local)?;
        self.settle()
    }

    fn others(&self, map: &ConfigMap) -> Result<OtherCases> {
        Ok(OtherCases { label_edit: self.label_edit(map)?, rejected: self.rejected()?, recovery: self.recovery()? })
    }

    fn rejected(&self) -> Result<Starts> {
        self.to_local()?;
        let map = self.map("rejected", "kubeAPIQPS: -1")?;
        let mark = self.world.kubelet.mark();
        self.world.assign(Some(&map))?;
        wait_for("the rejection", LIMIT, || {
            let status = self.world.status();
            status["assigned"]["configMap"]["name"] == *map.name
                && status["error"].as_str().is_some_and(|error| error.contains("failed to validate"))
        })?;
        self.settle()?;
        let starts = self.world.kubelet.since(mark);
        self.to_local()?;
        Ok(starts)
    }

    /// A configuration that is valid and kills the kubelet.
    fn recovery(&self) -> Result<Option<Duration>> {
        let killing = "enforceNodeAllocatable: [pods, system-reserved]\nsystemReservedCgroup: /no-such-cgroup";
        let map = self.map("killing", killing)?;
        let begun = Instant::now();
        self.world.assign(Some(&map))?;
        wait_for("the kubelet to go down", LIMIT, || !self.world.is_healthy())?;
        if self.contender.is_native() {
            let mut streak = Instant::now();
            let healed = wait_for("a kubelet that stays", NATIVE_WATCHED, || {
                if !self.world.is_healthy() {
                    streak = Instant::now();
                }
                streak.elapsed() > HEALED
            });
            let took = begun.elapsed().saturating_sub(HEALED);
            return Ok(healed.is_ok().then_some(took));
        }
        let is_rolled_back =
            || !self.world.status()["error"].is_null() && self.world.is_active(None) && self.world.is_healthy();
        wait_for("the rollback", LIMIT, is_rolled_back)?;
        let took = begun.elapsed();
        self.settle()?;
        if is_rolled_back() { Ok(Some(took)) } else { Err("the rollback did not last".into()) }
    }

    fn exec(&self) -> Result<Duration> {
        let (mark, begun) = (self.world.kubelet.mark(), now());
        let _running = self.contender.start(self.world, &options(self.world, "10m"))?;
        wait_for("the kubelet", LIMIT, || self.world.kubelet.first_acting(mark).is_some())?;
        let at = self.world.kubelet.first_acting(mark).ok_or("no kubelet")?;
        wait_for("healthz", LIMIT, || self.world.is_healthy())?;
        Ok(Duration::from_nanos(at.saturating_sub(begun)))
    }
}
