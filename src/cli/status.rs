//! `status`: asks the running supervisor, else reads the store.

use kubelet_config::status;
use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::common::Failure;
use super::control::{Output, StoreDir, Unreachable};
use crate::adapters::fsx::GuardedDisk;
use crate::adapters::store::FsStore;
use kubelet_config::duration::GoDuration;
use kubelet_config::source::Source;

#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    store: StoreDir,
    /// text or json
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

pub(super) fn run(options: &Options) -> Result<u8, Failure> {
    let answer = options.store.ask("GET", "/status", "").and_then(|(_, body)| {
        serde_json::from_str(&body)
            .map_err(|error| Unreachable::NoAnswer(format!("the supervisor's answer is unreadable: {error}")))
    });
    let (document, running) = match answer {
        Ok(document) => (document, true),
        Err(unreachable) => (stored(&options.store, &unreachable.unless_refused()?)?, false),
    };
    match options.output {
        Output::Json => println!("{document:#}"),
        Output::Text => print!("{}", text(&document, running)),
    }
    Ok(0)
}

/// Without a supervisor: what the next one would start from.
fn stored(store: &StoreDir, why: &str) -> Result<Value, Failure> {
    let dir = store.require(&format!("no supervisor answers ({why}) and "))?;
    let stored = FsStore::new(GuardedDisk::new(&dir), &dir).load();
    let record = |what: &str, record: Result<Option<Source>, String>| {
        record
            .map(|source| status::config_source(source.as_ref()))
            .map_err(|why| Failure::new(1, format!("{}: the record {what} is unreadable: {why}", dir.display())))
    };
    Ok(json!({
        "assigned": record("assigned", stored.assigned)?,
        "active": null,
        "lastKnownGood": record("last-known-good", stored.last_known_good)?,
        "error": format!("no supervisor is running: {why}"),
        "trial": { "state": "none", "since": null, "remainingSeconds": null },
        "kubelet": { "pid": null, "version": null, "ready": false, "restarts": 0 },
    }))
}

fn text(document: &Value, running: bool) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "{name:<17}{value}"); // a String takes it
    };
    let at = |path: &str| document.pointer(path).cloned().unwrap_or_default();
    let string = |path: &str| at(path).as_str().unwrap_or_default().to_owned();
    if running {
        let kubelet = at("/kubelet");
        let pid = kubelet
            .get("pid")
            .and_then(Value::as_u64)
            .map_or_else(|| "not running".to_owned(), |pid| format!("pid {pid}"));
        let ready = if kubelet.get("ready") == Some(&Value::Bool(true)) { "ready" } else { "not ready" };
        let restarts = kubelet.get("restarts").and_then(Value::as_u64).unwrap_or_default();
        line(
            "Kubelet:",
            format!("{} {pid}, {ready}, {restarts} restarts", string("/kubelet/version")).trim().to_owned(),
        );
    }
    line("Assigned:", source(&at("/assigned")));
    if running {
        line("Active:", source(&at("/active")));
    }
    line("Last known good:", source(&at("/lastKnownGood")));
    if running {
        let left = at("/trial/remainingSeconds")
            .as_u64()
            .map(|left| format!(", {} to go", GoDuration(Duration::from_secs(left))));
        line("Trial:", format!("{}{}", string("/trial/state"), left.unwrap_or_default()));
        let suspended = string("/trial/suspended");
        if !suspended.is_empty() {
            line("", format!("suspended, nobody is blamed: {suspended}"));
        }
        if let Some(left) = at("/trial/confirmWithinSeconds").as_u64() {
            let left = GoDuration(Duration::from_secs(left));
            line("", format!("healthy; rolled back unless confirmed within {left}: kubelet-supervisor confirm"));
        }
        let signals = at("/trial/signals");
        let signals: Vec<String> = signals
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, state)| format!("{name} {}", state.as_str().unwrap_or_default()))
            .collect();
        if !signals.is_empty() {
            line("Judged by:", signals.join(", "));
        }
        for (hold, what) in [("pinned", "until kubelet-supervisor unpin"), ("frozen", "until kubelet-supervisor thaw")]
        {
            if at(&format!("/{hold}")) == Value::Bool(true) {
                line("Held:", format!("{hold}, {what}"));
            }
        }
    }
    let error = string("/error");
    line("Error:", if error.is_empty() { "none".to_owned() } else { error });
    let detail = string("/errorDetail");
    if !detail.is_empty() {
        line("", detail);
    }
    for flag in at("/flagOverrides").as_array().into_iter().flatten() {
        line("Flag override:", flag.as_str().unwrap_or_default().to_owned());
    }
    if let Some(difference) = at("/localFiles").as_str() {
        line("Local files:", difference.to_owned());
    }
    for damage in at("/drift").as_array().into_iter().flatten() {
        line("Drift:", damage.as_str().unwrap_or_default().to_owned());
    }
    for field in at("/shadowedByFlags").as_array().into_iter().flatten() {
        line("No effect:", format!("{}, the command line wins", field.as_str().unwrap_or_default()));
    }
    out
}

fn source(value: &Value) -> String {
    let Some(map) = value.get("configMap") else { return "local configuration".to_owned() };
    let part = |name: &str| map.get(name).and_then(Value::as_str).unwrap_or_default();
    if let Ok(source) = serde_json::from_value::<Source>(map.clone())
        && let Some(title) = source.title()
    {
        let (key, uid, version) = (part("kubeletConfigKey"), source.uid, source.resource_version);
        return format!("{title}, key {key} (uid {uid}, resourceVersion {version})");
    }
    format!(
        "{}/{} key {} (uid {}, resourceVersion {})",
        part("namespace"),
        part("name"),
        part("kubeletConfigKey"),
        part("uid"),
        part("resourceVersion")
    )
}
