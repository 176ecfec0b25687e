//! What the relay of the kubelet's standard error costs: through it, and straight into the same sink.
//!
//! ```text
//! cargo bench --bench output            # half a minute
//! ```
//! The sink is a pipe with a reader, as journald's socket is; a line is one write, as klog does it.

// A benchmark may panic, and its numbers are small.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing
)]

use std::io::{BufRead as _, BufReader, PipeWriter, Write as _};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kubelet_supervisor::os::stderr_relay::{StderrRelay, pass_on};

const FLOOD: u32 = 200_000;
const PACED: u32 = 10_000;
const PACED_FOR: u32 = 3;
const ROUNDS: usize = 5;

/// Reads lines `<n> <nanoseconds since begin> …`; gives each line's lag, in order.
fn sink(begin: Instant) -> (PipeWriter, JoinHandle<Vec<Duration>>) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let read = move || {
        let mut lags = Vec::new();
        for line in BufReader::with_capacity(64 << 10, reader).lines() {
            let line = line.expect("a line");
            let mut words = line.split(' ');
            let number: u32 = words.next().and_then(|n| n.parse().ok()).expect("a number");
            assert_eq!(number as usize, lags.len(), "lost or out of order");
            let sent = words.next().and_then(|n| n.parse().ok()).expect("a time");
            lags.push(begin.elapsed().saturating_sub(Duration::from_nanos(sent)));
        }
        lags
    };
    (writer, std::thread::spawn(read))
}

/// `pace`: lines a second; as fast as they go without.
fn write(writer: &mut PipeWriter, begin: Instant, count: u32, pace: Option<u32>) {
    let filling = "x".repeat(90);
    for n in 0..count {
        if let Some(pace) = pace {
            let due = Duration::from_secs(1) * n / pace;
            std::thread::sleep(due.saturating_sub(begin.elapsed()));
        }
        let line = format!("{n} {} {filling}\n", begin.elapsed().as_nanos());
        writer.write_all(line.as_bytes()).expect("a reader");
    }
}

struct Measured {
    /// Until the writer could go on.
    written: Duration,
    /// Until the last line was there.
    arrived: Duration,
    lags: Vec<Duration>,
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Direct,
    StderrRelay,
}

fn run(way: Way, count: u32, pace: Option<u32>) -> Measured {
    let begin = Instant::now();
    let (mut out, reader) = sink(begin);
    let written;
    if way == Way::Direct {
        write(&mut out, begin, count, pace);
        written = begin.elapsed();
        drop(out);
    } else {
        let relay = StderrRelay::start(false, move |bytes| pass_on(&mut out, bytes));
        let (relay, mut writer) = relay.expect("a relay");
        write(&mut writer, begin, count, pace);
        written = begin.elapsed();
        drop(writer);
        relay.drain(Duration::from_secs(60));
    }
    let lags = reader.join().expect("the reader");
    assert_eq!(lags.len(), count as usize, "lines were lost");
    Measured { written, arrived: begin.elapsed(), lags }
}

fn percentile(lags: &mut [Duration], percent: usize) -> f64 {
    lags.sort_unstable();
    lags[(lags.len() - 1) * percent / 100].as_secs_f64() * 1e6
}

fn main() {
    let ways = [("direct", Way::Direct), ("relay", Way::StderrRelay)];
    println!("flood of {FLOOD} lines, median of {ROUNDS}\n");
    println!("| way | written s | arrived s | lines/s | time ratio |\n|---|---|---|---|---|");
    let mut base = None;
    for (name, way) in ways {
        let mut rounds: Vec<Measured> = (0..ROUNDS).map(|_| run(way, FLOOD, None)).collect();
        rounds.sort_by_key(|round| round.arrived);
        let Measured { written, arrived, .. } = rounds[ROUNDS / 2];
        let base = *base.get_or_insert(arrived);
        println!(
            "| {name} | {:.3} | {:.3} | {:.0} | {:.2} |",
            written.as_secs_f64(),
            arrived.as_secs_f64(),
            f64::from(FLOOD) / arrived.as_secs_f64(),
            arrived.as_secs_f64() / base.as_secs_f64()
        );
    }
    println!("\n{PACED} lines/s for {PACED_FOR} s: how late a line is at the other end\n");
    println!("| way | lines/s | lag p50 µs | p99 µs | max µs |\n|---|---|---|---|---|");
    for (name, way) in ways {
        let Measured { arrived, mut lags, .. } = run(way, PACED * PACED_FOR, Some(PACED));
        println!(
            "| {name} | {:.0} | {:.0} | {:.0} | {:.0} |",
            f64::from(PACED * PACED_FOR) / arrived.as_secs_f64(),
            percentile(&mut lags, 50),
            percentile(&mut lags, 99),
            percentile(&mut lags, 100)
        );
    }
}
