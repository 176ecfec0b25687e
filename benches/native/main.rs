//! A change of configuration: supervised, by native dynamic configuration, and as a bare restart, on one API server in one run.
//!
//! ```text
//! sudo cargo bench --bench native                                   # prints the table; about an hour and a half
//! sudo IDLE_SECONDS=3600 cargo bench --bench native -- --write      # and renews it in docs/usage/measured.md
//! BENCH_KUBELET=stand-in cargo bench --bench native -- --write      # a stand-in kubelet; some minutes, no root
//! ```
//! It needs what the real suite needs (`tests/real/prepare.sh`). ROUNDS (5): in each, all contenders have their turn, in
//! another order. CONTENDERS: names of those that are to take part, with commas. IDLE_SECONDS (60): how long the supervisor's own
//! use of the machine is observed.
//!
//! What is measured is the same for all, and observed from outside: healthz, asked every 2 ms; the Node's status; and the
//! starts of the kubelet's binary, which are written down by a program in its place (`counted.rs`).

// A benchmark may panic, its numbers are small, and its threads hold no process of ours.
#![allow(
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::unchecked_time_subtraction
)]

mod cluster;
mod contender;
mod counted;
mod healthz;
mod report;
mod turn;
mod usage;
mod world;

use std::path::Path;
use std::time::Duration;

use testkit::document::write_between;

use contender::Contender;
use turn::Turn;
use world::World;

type Error = Box<dyn std::error::Error>;
type Result<T> = std::result::Result<T, Error>;

fn main() {
    counted::become_the_kubelet_if_named_so();
    let stand_in = std::env::var("BENCH_KUBELET").is_ok_and(|name| name == "stand-in");
    if !stand_in && !nix::unistd::geteuid().is_root() {
        println!("SKIPPED: the benchmark needs root, for a real kubelet (BENCH_KUBELET=stand-in does not)");
        return;
    }
    if let Err(error) = bench(stand_in) {
        eprintln!("the benchmark failed: {error}");
        std::process::exit(1);
    }
}

fn bench(stand_in: bool) -> Result<()> {
    let rounds = number("ROUNDS", 5)?;
    let window = Duration::from_secs(u64::from(number("IDLE_SECONDS", 60)?));

    testkit::interrupt::register()?;
    let world = if stand_in { World::stand_in()? } else { World::real()? };
    let mut contenders = chosen(&world);
    if contenders.is_empty() {
        return Err(format!("CONTENDERS names none of {}", Contender::ALL.map(Contender::name).join(", ")).into());
    }
    println!("{}", world.told());
    let mut turns: Vec<Turn> = Vec::new();
    for round in 0..rounds {
        for contender in &contenders {
            let turn = turn::take(&world, *contender, round, rounds)?;
            println!("round {}: {turn:?}", round + 1);
            turns.push(turn);
        }
        contenders.rotate_left(1);
    }
    let usage = usage::measure(&world, window)?;
    let text = report::text(&world, rounds, &turns, &usage)?;
    println!("\n{text}");
    if std::env::args().any(|arg| arg == "--write") {
        if cfg!(debug_assertions) {
            return Err("a development build's numbers are not published".into());
        }
        let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/usage/measured.md");
        write_between(&document, if stand_in { "stand-in" } else { "native" }, &text)?;
    }
    Ok(())
}

/// A setting from the environment.
fn number(name: &str, default: u32) -> Result<u32> {
    let Ok(text) = std::env::var(name) else { return Ok(default) };
    let parsed = text.parse().ok().filter(|number| *number > 0);
    parsed.ok_or_else(|| format!("{name}={text} is not a number above 0").into())
}

/// Those that can take part, and were not left out by the environment. Native needs an API server and a kubelet that have it.
fn chosen(world: &World) -> Vec<Contender> {
    let wanted = std::env::var("CONTENDERS").unwrap_or_default();
    let is_wanted = |contender: &Contender| wanted.is_empty() || wanted.split(',').any(|name| name == contender.name());
    let (possible, left_out): (Vec<_>, Vec<_>) =
        Contender::ALL.into_iter().partition(|contender| world.has_native || !contender.is_native());
    for contender in left_out {
        println!("left out: {}, which this API server or this kubelet does not have", contender.title());
    }
    possible.into_iter().filter(is_wanted).collect()
}
