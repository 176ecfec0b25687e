//! What pods and their clients notice of a change, or of a bare restart of the kubelet: on a real node with pods that
//! have probes, Services and streams, counted from watches on the API server.
//!
//! ```text
//! sudo cargo bench --bench pods -- --write          # more than an hour; renews the table in docs/usage/measured.md
//! sudo SIZES=0,50 ROUNDS=1 CONTENDERS=bare,supervised cargo bench --bench pods
//! ```
//! Needs what the real suite needs, and builds a kube-controller-manager once (`tests/real/prepare.sh`): it keeps the
//! endpoints of Services, and takes Ready from the pods of a node that is not.

use std::path::Path;

use testkit::document::write_between;

use cluster::Cluster;
use contender::{Contender, Kind};
use observer::Observer;
use table::Row;
use tally::Noticed;

mod cluster;
mod contender;
mod observer;
mod streams;
mod table;
mod tally;
mod workload;

type Error = Box<dyn std::error::Error>;
type Result<T> = std::result::Result<T, Error>;

fn main() {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED: the benchmark needs root, for a real kubelet");
        return;
    }
    if let Err(error) = bench() {
        eprintln!("the benchmark failed: {error}");
        std::process::exit(1);
    }
}

fn bench() -> Result<()> {
    let asked = |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    let rounds: usize = asked("ROUNDS", "3").parse()?;
    let sizes: Vec<usize> =
        asked("SIZES", "0,50,100").split(',').map(|size| size.trim().parse()).collect::<std::result::Result<_, _>>()?;
    let chosen = asked("CONTENDERS", "");
    let is_chosen = |kind: &Kind| chosen.is_empty() || chosen.split(',').any(|name| name == kind.name());
    let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(is_chosen).collect();
    if kinds.is_empty() {
        return Err(format!("CONTENDERS={chosen}: there are {}", Kind::ALL.map(Kind::name).join(", ")).into());
    }
    testkit::interrupt::register()?;
    // A short name: there are sockets below it.
    let dir = tempfile::Builder::new().prefix("pods").tempdir_in("/tmp")?;
    let cluster = Cluster::up(dir.path())?;
    let mut observer = Observer::start(&cluster)?;
    let (mut rows, mut pods) = (Vec::new(), 0);
    for size in sizes {
        let kubelet = Contender::start(&cluster, Kind::Bare, &format!("grow-{size}"))?;
        observer.until("a node", |tally| Ok(tally.has_node()))?;
        workload::grow(&cluster, &mut observer, pods, size)?;
        kubelet.stop()?;
        pods = size;
        let begin = rows.len();
        rows.extend(kinds.iter().map(|&kind| Row { pods, kind, rounds: Vec::new() }));
        for round in 0..rounds {
            for row in rows.iter_mut().skip(begin) {
                let id = format!("{}-{pods}-{round}", row.kind as u8);
                let noticed = measure(&cluster, &mut observer, row.kind, pods, &id)?;
                println!("{pods} pods, {}: {noticed:?}", row.kind.title());
                row.rounds.push(noticed);
            }
        }
    }
    let table = table::markdown(&rows);
    println!("\n{table}");
    if std::env::args().any(|arg| arg == "--write") {
        let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/usage/measured.md");
        write_between(&document, "pods", &table)?;
    }
    Ok(())
}

/// One change, from before it until all is calm again.
fn measure(cluster: &Cluster, observer: &mut Observer, kind: Kind, pods: usize, id: &str) -> Result<Noticed> {
    observer.tally.expect_heartbeat();
    let contender = Contender::start(cluster, kind, id)?;
    observer.until_calm(pods)?;
    let streams = if pods == 0 { Vec::new() } else { streams::open(cluster)? };
    let before = contender.kubelet().ok_or("no kubelet")?;
    let is_next = |pid: Option<u32>| pid.is_some_and(|pid| pid != before);
    observer.tally.begin();
    contender.change()?;
    observer.until("the next kubelet", |_| Ok(is_next(contender.kubelet())))?;
    let next = contender.kubelet();
    observer.tally.expect_heartbeat();
    observer.until_calm(pods)?;
    let mut noticed = observer.tally.noticed();
    noticed.cut = streams::cut(streams);
    if contender.kubelet() != next || !contender.has_changed()? {
        return Err(format!("{}: the change did not last", kind.title()).into());
    }
    contender.stop()?;
    Ok(noticed)
}
