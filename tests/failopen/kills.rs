//! SIGKILL to the worker at random moments, while the node changes: the built binary, with standbys and preflights.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use testkit::kubelet::Style;
use testkit::rig::{Rig, configuration, eventually, is, workers};

/// They take a minute.
const KILLS: u32 = 1000;
/// Side by side.
const RIGS: u32 = 8;
/// Within one round: while a change is on its way, on trial, and while others are rejected.
const ROUND: [u32; 3] = [6, 6, 20];

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().unwrap())
}

/// What chance begins with, printed.
pub fn seed() -> u64 {
    let seed = number("FAILOPEN_SEED").unwrap_or_else(|| fastrand::u64(..1_000_000));
    println!("FAILOPEN_SEED={seed}");
    seed
}

pub fn kills() {
    let kills = number("FAILOPEN_KILLS").map_or(KILLS, |kills| u32::try_from(kills).unwrap());
    let rounds = kills.div_ceil(RIGS * ROUND.iter().sum::<u32>());
    let seed = seed();
    std::thread::scope(|scope| {
        for nth in 0..RIGS {
            let style = if nth % 2 == 0 { Style::V1_20 } else { Style::V1_36 };
            scope.spawn(move || Node::new(style, seed + u64::from(nth)).live(rounds));
        }
    });
    println!("{} kills", rounds * RIGS * ROUND.iter().sum::<u32>());
}

struct Node {
    rig: Rig,
    random: fastrand::Rng,
    /// The latest worker that was killed.
    killed: u64,
}

impl Node {
    fn new(style: Style, seed: u64) -> Node {
        let mut rig = Rig::with(style, "1s");
        rig.env = vec![("WATCHDOG_USEC".to_owned(), "2000000".to_owned())]; // one that pings is seen to be well by a ping
        rig.up();
        Node { rig, random: fastrand::Rng::with_seed(seed), killed: 0 }
    }

    /// A worker that was not killed: a child of the monitor's that has another program by now.
    fn worker(&self) -> u64 {
        let monitor = self.rig.pid();
        eventually("a worker", || workers(monitor).into_iter().find(|pid| *pid != self.killed))
    }

    fn kill(&mut self) {
        loop {
            let worker = self.worker();
            // It says hello within a few milliseconds.
            std::thread::sleep(Duration::from_millis(self.random.u64(0..=150)));
            if kill(Pid::from_raw(i32::try_from(worker).unwrap()), Signal::SIGKILL).is_ok() {
                self.killed = worker;
                break;
            } // else it retired
        }
        // The pause before the next one would grow, but for a person who asks for one: now, or once it is known to have ended.
        if self.random.bool() {
            let path = format!("/proc/{}", self.killed);
            eventually("it is reaped", || (!std::path::Path::new(&path).exists()).then_some(()));
        }
        self.rig.signal(Signal::SIGHUP);
    }

    fn live(mut self, rounds: u32) {
        for round in 0..rounds {
            let max_pods = 101 + round;
            let text = configuration(&format!("maxPods: {max_pods}"));
            let version = self.assign(&format!("map-{}", round % 3), &text);
            for _ in 0..ROUND[0] {
                self.kill();
            }
            self.rig.wait_active(&version);
            eventually("it runs", || (self.rig.last_config()["maxPods"] == max_pods).then_some(()));
            self.rig.wait_last_ready();

            // From here on no other content is to run.
            let (starts, pid) = (self.rig.starts(), self.rig.last_pid());
            self.disturb(ROUND[1], round, false, &text);
            self.prove(&format!("tried-{round}"), &text);
            self.disturb(ROUND[2], round, true, &text);
            self.prove(&format!("last-{round}"), &text);
            assert_eq!((self.rig.starts(), self.rig.last_pid()), (starts, pid), "{}", self.rig.log());
        }
        self.end();
    }

    fn assign(&self, name: &str, text: &str) -> (String, String) {
        let version = self.rig.put(name, text);
        self.rig.assign(name);
        version
    }

    fn prove(&self, name: &str, text: &str) {
        let version = self.assign(name, text);
        self.rig.wait_config(&format!("{name} is proven"), |config| {
            is(config, "lastKnownGood", &version) && is(config, "active", &version)
        });
    }

    /// Kills, while the same content comes once more or under new names, and others that are rejected.
    fn disturb(&mut self, kills: u32, round: u32, rejected: bool, text: &str) {
        for nth in 0..kills {
            match self.random.u8(0..6) {
                0 => drop(self.assign(&format!("map-{}", round % 3), text)),
                1 => drop(self.assign(&format!("same-{round}-{nth}"), text)),
                2 if rejected => drop(self.assign("bad", &configuration(&format!("maxPods: -{}", nth + 1)))),
                3 if rejected => drop(self.assign("bad", "no configuration")),
                _ => {}
            }
            self.kill();
        }
    }

    fn end(mut self) {
        let begun = Instant::now();
        self.rig.stop();
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        let entries = self.rig.kubelet.entries();
        let of = |event: &str, pid: &Value| {
            entries.iter().position(|it| it["event"] == event && it["pid"] == *pid && it["preflight"] != true)
        };
        for pair in self.rig.kubelet.starts().windows(2) {
            let (end, start) = (of("exit", &pair[0]["pid"]), of("start", &pair[1]["pid"]));
            assert!(end.is_some() && end < start, "two at once: {pair:?}");
        }
        let starts = self.rig.starts();
        println!("{starts} kubelets, {} workers", self.rig.log().matches("WorkerReplaced: ").count() + 1);
    }
}
