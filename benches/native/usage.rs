//! What the supervisor itself takes of the machine and of the API server.

use std::time::Duration;

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use testkit::rig::workers;

use crate::Result;
use crate::contender::{Contender, LIMIT, SUPERVISOR};
use crate::turn::options;
use crate::world::{World, http, wait_for};

/// On trial it is observed for no longer than this: a turn of both watches.
const TRIAL_WINDOW: Duration = Duration::from_secs(120);

pub struct Usage {
    pub trial: Window,
    /// With two watches open, proven.
    pub idle: Window,
    pub binary_bytes: u64,
}

pub struct Window {
    pub length: Duration,
    /// Bytes of memory that is a process' own: of the monitor, and of the worker.
    pub monitor: u64,
    pub worker: u64,
    /// Of the worker that is pages of files, mostly the binary's.
    pub file: u64,
    /// CPU time of both.
    pub cpu: Duration,
    /// Requests to the API server.
    pub requests: f64,
}

pub fn measure(world: &World, length: Duration) -> Result<Usage> {
    let contender = Contender::Supervised { standby: true };
    let on_trial = length.min(TRIAL_WINDOW);
    world.forget()?;
    // Long enough for the change, what comes of it, and the window.
    let trial = format!("{}s", on_trial.as_secs() + 40);
    let running = contender.start(world, &options(world, &trial))?;
    contender.settle(world, 0.0)?;
    let map = world.config_map("usage", "maxPods: 53")?;
    world.assign(Some(&map))?;
    wait_for("the change", LIMIT, || world.is_active(Some(&map)) && world.is_healthy())?;
    contender.settle(world, 0.0)?;
    let trial = observe(world, running.pid(), on_trial)?;
    wait_for("the proof", on_trial + LIMIT, || world.status()["lastKnownGood"].is_object())?;
    contender.settle(world, 0.0)?;
    let idle = observe(world, running.pid(), length)?;
    Ok(Usage { trial, idle, binary_bytes: std::fs::metadata(SUPERVISOR)?.len() })
}

fn observe(world: &World, pid: u32, length: Duration) -> Result<Window> {
    let worker = workers(u64::from(pid)).first().copied().ok_or("the supervisor has no worker")?;
    let worker = u32::try_from(worker)?;
    let cpu = || -> Result<Duration> {
        [pid, worker].into_iter().try_fold(Duration::ZERO, |sum, pid| {
            let clock = clock_getcpuclockid(Pid::from_raw(i32::try_from(pid)?))?;
            Ok(sum + Duration::from(clock_gettime(clock)?))
        })
    };
    let (cpu_before, requests_before) = (cpu()?, requests(world)?);
    std::thread::sleep(length);
    let (cpu, requests) = (cpu()?.saturating_sub(cpu_before), requests(world)? - requests_before);
    let bytes = |pid: u32, name: &str| -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such line in status")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
    };
    let (monitor, file) = (bytes(pid, "RssAnon:")?, bytes(worker, "RssFile:")?);
    Ok(Window { length, monitor, worker: bytes(worker, "RssAnon:")?, file, cpu, requests })
}

fn requests(world: &World) -> Result<f64> {
    let (_, text) = http(world.metrics, "GET", "/metrics", "", "")?;
    let values = text.lines().filter(|line| line.starts_with("kubelet_supervisor_api_requests_total"));
    Ok(values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
}
