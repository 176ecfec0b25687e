//! `history`: what happened to this node's configuration. Read from the files, so it needs no
//! supervisor.

use kubelet_config::status;
use std::fmt::Write as _;
use std::io::Write as _;

use clap::Args;
use serde_json::Value;

use super::common::Failure;
use super::control::{Output, StoreDir};
use crate::adapters::fsx::RealDisk;
use crate::adapters::store::FsStore;
use crate::machine::history::HistoryEntry;
use kubelet_config::bounds::{broken, plain, shortened, whole_number};
use kubelet_config::source::{ConfigMapRef, Source};

/// Of a version on a terminal: what is longer loses its middle, and the reason has room.
const VERSION: usize = 26;

/// What stands on lines of its own is indented by this.
const BELOW: &str = "    ";

#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    store: StoreDir,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    /// Only the newest N entries [default: all that are kept]
    #[arg(short, long, value_name = "N", value_parser = whole_number(1..=u32::MAX))]
    number: Option<u32>,
    /// As text: each entry with its key and UID/RESOURCEVERSION, its whole message, and the kubelet's last log lines.
    #[arg(short, long)]
    verbose: bool,
}

pub(super) fn run(options: &Options) -> Result<u8, Failure> {
    let dir = options.store.require("")?;
    let (mut entries, damage) = FsStore::new(RealDisk::guarded(&dir), &dir).history();
    if let Some(number) = options.number.and_then(|number| usize::try_from(number).ok()) {
        entries.drain(..entries.len().saturating_sub(number));
    }
    let text = match options.output {
        Output::Json => json(&entries),
        Output::Text if options.verbose => entries.iter().map(verbose).collect(),
        Output::Text if entries.is_empty() => String::new(),
        Output::Text => table(&entries, exposition::terminal_columns(&std::io::stdout())),
    };
    if entries.is_empty() && damage.is_none() && matches!(options.output, Output::Text) {
        eprintln!("note: nothing has happened in {} yet", dir.display());
    }
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        // `| head` has seen enough.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.to_string().into()),
        _ => damage.map_or(Ok(0), |error| Err(format!("not all of the history can be read: {error}").into())),
    }
}

/// An array, one entry a line; with the time as people and programs read it.
fn json(entries: &[HistoryEntry]) -> String {
    let lines = entries.iter().map(|entry| {
        let mut value = serde_json::to_value(entry).unwrap_or_default();
        if let Value::Object(fields) = &mut value {
            fields.insert("time".to_owned(), status::timestamp(entry.nanos).into());
        }
        value.to_string()
    });
    format!("[{}]\n", lines.collect::<Vec<_>>().join(",\n"))
}

/// Everything there is of an entry.
fn verbose(entry: &HistoryEntry) -> String {
    let source = entry.source.as_ref().map_or_else(
        || "local".to_owned(),
        |source| {
            let (reference, version) = (&source.reference, &source.resource_version);
            let key = &reference.kubelet_config_key;
            format!("{}/{} {key} {}/{version}", reference.namespace, reference.name, source.uid)
        },
    );
    let time = status::timestamp(entry.nanos);
    let mut out = format!("{time} {} {source}: {}\n", entry.reason, plain(&entry.message));
    for line in &entry.log_tail {
        let _ = writeln!(out, "{BELOW}{}", plain(line)); // a String takes it
    }
    out
}

/// A line an entry. On a terminal of so many columns what is too long is cut; but why something went wrong is not: it
/// stands below, whole.
fn table(entries: &[HistoryEntry], columns: Option<usize>) -> String {
    let mut rows = vec![["TIME", "REASON", "VERSION", "MESSAGE"].map(str::to_owned)];
    rows.extend(entries.iter().map(|entry| row(entry, columns.is_some())));
    let widest = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let (times, events, versions) = (widest(0), widest(1), widest(2));
    let warnings = std::iter::once(false).chain(entries.iter().map(|entry| entry.warning));
    let mut out = String::new();
    for ([time, event, version, why], warning) in rows.iter().zip(warnings) {
        let head = format!("{time:times$}  {event:events$}  {version:versions$}");
        let line = format!("{head}  {why}");
        let room = columns.unwrap_or(usize::MAX);
        let lines = if warning && line.chars().count() > room {
            let below = broken(why, room, BELOW, BELOW);
            std::iter::once(head).chain(below).collect()
        } else {
            vec![shortened(&line, room, 0)]
        };
        for line in lines {
            let _ = writeln!(out, "{}", line.trim_end()); // a String takes it
        }
    }
    out
}

fn row(entry: &HistoryEntry, on_terminal: bool) -> [String; 4] {
    let reason = &entry.reason;
    let event = reason.strip_prefix("KubeletConfig").or_else(|| reason.strip_prefix("Kubelet")).unwrap_or(reason);
    let version = entry.source.as_ref().map_or_else(|| "local".to_owned(), version);
    let room = if on_terminal { VERSION } else { usize::MAX };
    [status::timestamp(entry.nanos), plain(event), shortened(&plain(&version), room, room / 2), why(entry)]
}

fn version(source: &Source) -> String {
    let ConfigMapRef { namespace, name, .. } = &source.reference;
    let title = source.title().map_or_else(|| format!("{namespace}/{name}"), str::to_owned);
    format!("{title} {}", source.resource_version)
}

/// The message without what the other columns say.
fn why(entry: &HistoryEntry) -> String {
    let message = plain(&entry.message);
    let own = entry.source.as_ref().map(Source::to_string).unwrap_or_default();
    let about_it = match own.as_str() {
        "" => message,
        own => message.strip_suffix(&format!(": {own}")).unwrap_or(&message).replace(own, "it"),
    };
    let said = ["Rejected it: ", "Rolled back, "].iter().find_map(|said| about_it.strip_prefix(said));
    with_short_names(said.unwrap_or(&about_it))
}

/// Versions as the column has them, in place of all that a [`Source`] prints.
fn with_short_names(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, version, after)) = next_version(rest) {
        let path = before.rsplit_once("/api/v1/namespaces/");
        match path.and_then(|(before, path)| Some((before, path.split_once("/configmaps/")?))) {
            Some((before, (namespace, name))) => out.extend([before, namespace, "/", name]),
            None => out.push_str(before),
        }
        out.extend([" ", version]);
        rest = after;
    }
    out + rest
}

/// What is before the next one's uid, its resourceVersion, and what is after it.
fn next_version(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once(", UID: ")?;
    let (_, rest) = rest.split_once(", ResourceVersion: ")?;
    let (version, rest) = rest.split_once(", KubeletConfigKey: ")?;
    let after = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || "-._".contains(c));
    Some((before, version, after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubelet_config::source::{ConfigMapRef, Source};

    fn entries() -> Vec<HistoryEntry> {
        let source = Source {
            reference: ConfigMapRef {
                namespace: "kube-system".into(),
                name: "a".into(),
                kubelet_config_key: "kubelet".into(),
            },
            resource_version: "7".into(),
            uid: "u".into(),
        };
        vec![
            HistoryEntry { number: 1, reason: "Local".into(), message: "first".into(), ..HistoryEntry::default() },
            HistoryEntry {
                number: 2,
                nanos: 1_700_000_000_000_000_000,
                reason: "KubeletConfigRolledBack".into(),
                message: "gone\nbad \x1b[31m".into(),
                source: Some(source),
                log_tail: vec!["its words".into()],
                ..HistoryEntry::default()
            },
        ]
    }

    #[test]
    fn verbose_is_all_there_is() {
        let shown: String = entries().iter().map(verbose).collect();
        assert_eq!(
            shown,
            "1970-01-01T00:00:00Z Local local: first\n\
             2023-11-14T22:13:20Z KubeletConfigRolledBack kube-system/a kubelet u/7: gone bad \\u{1b}[31m\n    its words\n"
        );
    }

    /// One rollback had thirty lines of the kubelet's log below it.
    #[test]
    fn a_line_an_entry() {
        let [mut changed, mut proven, mut back] = std::array::from_fn(|_| entries().remove(1));
        let own = changed.source.as_ref().unwrap().to_string();
        let earlier = own.replace("ResourceVersion: 7", "ResourceVersion: 6");
        changed = HistoryEntry {
            reason: "KubeletConfigChanged".into(),
            message: format!("Kubelet restarting to use {own}"),
            ..changed
        };
        proven = HistoryEntry {
            reason: "KubeletConfigProven".into(),
            message: format!("Last known good after 10m0s of continuous health: {own}"),
            ..proven
        };
        back = HistoryEntry {
            warning: true,
            message: format!(
                "Rolled back, the kubelet exited with code 1: failed to run Kubelet: no such cgroup: from {own} to {earlier}"
            ),
            log_tail: vec!["a line of the kubelet".into(); 30],
            ..back
        };
        let entries = [changed, proven, back];
        assert_eq!(
            table(&entries, None),
            "TIME                  REASON      VERSION          MESSAGE\n\
             2023-11-14T22:13:20Z  Changed     kube-system/a 7  Kubelet restarting to use it\n\
             2023-11-14T22:13:20Z  Proven      kube-system/a 7  Last known good after 10m0s of continuous health\n\
             2023-11-14T22:13:20Z  RolledBack  kube-system/a 7  the kubelet exited with code 1: failed to run Kubelet: no such cgroup: from it to kube-system/a 6\n"
        );
        assert_eq!(
            table(&entries, Some(80)),
            "TIME                  REASON      VERSION          MESSAGE\n\
             2023-11-14T22:13:20Z  Changed     kube-system/a 7  Kubelet restarting to use it\n\
             2023-11-14T22:13:20Z  Proven      kube-system/a 7  Last known good after 10m0s …\n\
             2023-11-14T22:13:20Z  RolledBack  kube-system/a 7\n    \
             the kubelet exited with code 1: failed to run Kubelet: no such cgroup: from\n    \
             it to kube-system/a 6\n"
        );
        let mut long = entries;
        if let Some(source) = &mut long[0].source {
            source.reference.name = "kubelet-pool-memory-optimised-hf7m2k9d5t".into();
        }
        let narrow = table(&long, Some(80));
        assert!(narrow.contains("  kube-system/…-hf7m2k9d5t 7"), "{narrow}");
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
    }

    #[test]
    fn versions_are_named_as_in_their_column() {
        let long = "from /api/v1/namespaces/n/configmaps/m, UID: u, ResourceVersion: 7, KubeletConfigKey: k.l to the local \
             files, UID: local-files, ResourceVersion: 1b, KubeletConfigKey: kubelet; see /api/v1/namespaces/n";
        let short = "from n/m 7 to the local files 1b; see /api/v1/namespaces/n";
        assert_eq!(with_short_names(long), short);
    }

    #[test]
    fn json_is_an_array_and_a_line_an_entry() {
        let shown = json(&entries());
        assert_eq!(shown.lines().count(), 2);
        let value: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(value[1]["time"], "2023-11-14T22:13:20Z");
        assert_eq!(value[1]["source"]["resourceVersion"], "7");
        assert_eq!(json(&[]), "[]\n");
    }
}
