//! The table, and its place in the documents.

use std::time::Duration;

use crate::contender::Kind;
use crate::streams::NO_LOGS;
use crate::tally::Noticed;

/// All rounds of a contender beside so many pods.
pub struct Row {
    pub pods: usize,
    pub kind: Kind,
    pub rounds: Vec<Noticed>,
}

/// Chance decides whether a kubelet's first word of its node is that it is not ready yet: the range is told too.
fn seconds(rounds: &[Noticed], value: impl Fn(&Noticed) -> Duration) -> String {
    let values = || rounds.iter().map(&value);
    let (least, most) = (values().min().unwrap_or_default(), values().max().unwrap_or_default());
    let text = format!("{:.1} s", median(rounds, &value).as_secs_f64());
    if most.saturating_sub(least) < Duration::from_secs(1) {
        return text;
    }
    format!("{text} ({:.0} to {:.0})", least.as_secs_f64(), most.as_secs_f64())
}

fn median<T: Ord + Copy + Default>(rounds: &[Noticed], value: impl Fn(&Noticed) -> T) -> T {
    let mut values: Vec<T> = rounds.iter().map(value).collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Streams that were cut in most rounds.
fn cut(rounds: &[Noticed]) -> String {
    let is_cut = |name: &&str| median(rounds, |round| round.cut.contains(name));
    let names: Vec<&str> = ["exec", "port-forward", "logs", NO_LOGS].into_iter().filter(is_cut).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

pub fn markdown(rows: &[Row]) -> String {
    let rounds = rows.first().map_or(0, |row| row.rounds.len());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let mut text = format!(
        "Medians of {rounds} (and from the least to the most, where that is a second or more), on {cores} cores.\n\n\
         | pods | change by | Node not Ready | Pods that lost Ready | longest Pod not Ready | writes of Endpoints, EndpointSlices | restarts of containers, by probes | streams cut |\n\
         |---|---|---|---|---|---|---|---|\n"
    );
    for Row { pods, kind, rounds } in rows {
        let of_node = [pods.to_string(), kind.title().to_owned(), seconds(rounds, |round| round.node_not_ready)];
        let of_pods = [
            median(rounds, |round| round.pods_lost_readiness).to_string(),
            seconds(rounds, |round| round.longest_not_ready),
            format!(
                "{}, {}",
                median(rounds, |round| round.endpoints_writes),
                median(rounds, |round| round.slice_writes)
            ),
            format!("{}, {}", median(rounds, |round| round.restarts), median(rounds, |round| round.probe_kills)),
            cut(rounds),
        ];
        let of_pods = of_pods.map(|cell| if *pods == 0 { "–".to_owned() } else { cell });
        let cells: Vec<String> = of_node.into_iter().chain(of_pods).collect();
        text.extend(["| ", &cells.join(" | "), " |\n"]);
    }
    text
}
