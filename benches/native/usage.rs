//! What the supervisor itself takes of the machine and of the API server.

use std::time::Duration;

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

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
    /// Bytes of memory that is the process' own, and that is pages of files, mostly the binary's.
    pub anonymous: u64,
    pub file: u64,
    /// CPU time of all threads together.
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
    let clock = clock_getcpuclockid(Pid::from_raw(i32::try_from(pid)?))?;
    let cpu = || clock_gettime(clock).map(Duration::from);
    let (cpu_before, requests_before) = (cpu()?, requests(world)?);
    std::thread::sleep(length);
    let (cpu, requests) = (cpu()?.saturating_sub(cpu_before), requests(world)? - requests_before);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let bytes = |name: &str| -> Result<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such line in status")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
    };
    Ok(Window { length, anonymous: bytes("RssAnon:")?, file: bytes("RssFile:")?, cpu, requests })
}

fn requests(world: &World) -> Result<f64> {
    let (_, text) = http(world.metrics, "GET", "/metrics", "", "")?;
    let values = text.lines().filter(|line| line.starts_with("kubelet_supervisor_api_requests_total"));
    Ok(values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
}
