//! `history`: what happened to this node's configuration. Read from the files, so it needs no
//! supervisor.

use kubelet_config::status;
use std::fmt::Write as _;
use std::io::Write as _;

use clap::Args;
use serde_json::Value;

use super::common::Failure;
use super::control::{Output, StoreDir};
use crate::adapters::fsx::GuardedDisk;
use crate::adapters::store::FsStore;
use crate::machine::history::HistoryEntry;

#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    store: StoreDir,
    /// text or json
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    /// Only the newest N entries.
    #[arg(short, long, value_name = "N")]
    number: Option<usize>,
}

pub(super) fn run(options: &Options) -> Result<u8, Failure> {
    let dir = options.store.require("")?;
    let mut entries = FsStore::new(GuardedDisk::new(&dir), &dir).history();
    if let Some(number) = options.number {
        entries.drain(..entries.len().saturating_sub(number));
    }
    let text = match options.output {
        Output::Json => json(&entries),
        Output::Text => entries.iter().map(text).collect(),
    };
    if entries.is_empty() && matches!(options.output, Output::Text) {
        eprintln!("note: nothing has happened in {} yet", dir.display());
    }
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        // `| head` has seen enough.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::new(1, error.to_string())),
        _ => Ok(0),
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

fn text(entry: &HistoryEntry) -> String {
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
        let _ = writeln!(out, "    {}", plain(line)); // a String takes it
    }
    out
}

/// One line, and nothing that a terminal would obey.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
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
    fn a_line_an_entry_and_its_details_below() {
        let shown: String = entries().iter().map(text).collect();
        assert_eq!(
            shown,
            "1970-01-01T00:00:00Z Local local: first\n\
             2023-11-14T22:13:20Z KubeletConfigRolledBack kube-system/a kubelet u/7: gone bad  [31m\n    its words\n"
        );
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
