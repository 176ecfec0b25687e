//! `status`: asks the running supervisor, else reads the store.

use kubelet_config::status::{self, INTERNAL_ERROR, SyncError};
use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::common::Failure;
use super::control::{Output, StoreDir, Unreachable};
use crate::adapters::fsx::RealDisk;
use crate::adapters::store::FsStore;
use kubelet_config::bounds::{broken, plain};
use kubelet_config::duration::GoDuration;
use kubelet_config::source::Source;

#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    store: StoreDir,
    /// Output format.
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
        Output::Text => {
            let columns = exposition::terminal_columns(&std::io::stdout());
            print!("{}", text(&document, running, columns));
        }
    }
    Ok(0)
}

/// Without a supervisor: what the next one would start from.
fn stored(store: &StoreDir, why: &str) -> Result<Value, Failure> {
    let dir = store.require(&format!("no supervisor answers ({why}) and "))?;
    let stored = FsStore::new(RealDisk::guarded(&dir), &dir).load();
    let record = |what: &str, record: Result<Option<Source>, String>| {
        record
            .map(|source| status::config_source(source.as_ref()))
            .map_err(|why| format!("{}: the record {what} is unreadable: {why}", dir.display()))
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

/// Where values begin.
const INDENT: usize = 17;

/// A line each, name and value; what has no name goes on with the one before.
type Lines = Vec<(&'static str, String)>;

/// For people; on a terminal of so many columns a value that is too long goes on below itself.
fn text(document: &Value, running: bool, columns: Option<usize>) -> String {
    let mut lines = Lines::new();
    if running {
        lines.push(("Kubelet:", kubelet(document)));
    }
    lines.push(("Assigned:", source(at(document, "/assigned"))));
    if running {
        lines.push(("Active:", active(document)));
    }
    lines.push(("Last known good:", last_known_good(document)));
    if running {
        trial(document, &mut lines);
        yet_to_come(document, &mut lines);
    }
    trouble(document, running, &mut lines);
    let mut out = String::new();
    for (name, value) in lines {
        let value = match columns {
            Some(columns) => broken(&value, columns.saturating_sub(INDENT), "", "").join(&format!("\n{:INDENT$}", "")),
            None => plain(&value),
        };
        let _ = writeln!(out, "{name:<INDENT$}{value}"); // a String takes it
    }
    out
}

/// What is not there is null.
fn at<'a>(document: &'a Value, path: &str) -> &'a Value {
    document.pointer(path).unwrap_or(&Value::Null)
}

fn string<'a>(document: &'a Value, path: &str) -> &'a str {
    at(document, path).as_str().unwrap_or_default()
}

fn strings<'a>(document: &'a Value, path: &str) -> impl Iterator<Item = &'a str> {
    at(document, path).as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn duration(document: &Value, path: &str) -> Option<GoDuration> {
    at(document, path).as_u64().map(|seconds| GoDuration(Duration::from_secs(seconds)))
}

fn kubelet(document: &Value) -> String {
    let pid = at(document, "/kubelet/pid").as_u64();
    let pid = pid.map_or_else(|| "not running".to_owned(), |pid| format!("pid {pid}"));
    let ready = if *at(document, "/kubelet/ready") == true { "ready" } else { "not ready" };
    let restarts = match at(document, "/kubelet/restarts").as_u64().unwrap_or_default() {
        1 => "1 restart".to_owned(),
        restarts => format!("{restarts} restarts"),
    };
    format!("{} {pid}, {ready}, {restarts}", string(document, "/kubelet/version")).trim().to_owned()
}

/// Its name only where no line above has it.
fn active(document: &Value) -> String {
    let active = at(document, "/active");
    match active {
        Value::Null => source(active),
        _ if active == at(document, "/assigned") => "as assigned".to_owned(),
        _ if active == at(document, "/lastKnownGood") => "last known good, which is not what is assigned".to_owned(),
        _ => source(active),
    }
}

fn last_known_good(document: &Value) -> String {
    match at(document, "/lastKnownGood") {
        good if !good.is_null() && good == at(document, "/assigned") => "as assigned".to_owned(),
        good => source(good),
    }
}

fn trial(document: &Value, lines: &mut Lines) {
    let left = duration(document, "/trial/remainingSeconds").map(|left| format!(", {left} to go"));
    lines.push(("Trial:", format!("{}{}", string(document, "/trial/state"), left.unwrap_or_default())));
    let suspended = string(document, "/trial/suspended");
    if !suspended.is_empty() {
        lines.push(("", format!("judgement is suspended: {suspended}")));
    }
    if let Some(left) = duration(document, "/trial/confirmWithinSeconds") {
        lines.push(("", format!("healthy; rolled back unless confirmed within {left}: kubelet-supervisor confirm")));
    }
    let signals = at(document, "/trial/signals").as_object().into_iter().flatten();
    let signals: Vec<String> =
        signals.map(|(name, state)| format!("{name} {}", state.as_str().unwrap_or_default())).collect();
    if !signals.is_empty() {
        lines.push(("Judged by:", signals.join(", ")));
    }
}

/// What is accepted and does not run yet, and who holds what runs.
fn yet_to_come(document: &Value, lines: &mut Lines) {
    let time = string(document, "/scheduled/at");
    if !time.is_empty() {
        lines.push(("Scheduled:", format!("takes effect at {time}: {}", source(at(document, "/scheduled/source")))));
    }
    let holds: Vec<&str> = strings(document, "/waiting/for").collect();
    if !holds.is_empty() {
        let until = string(document, "/waiting/until");
        let until = if until.is_empty() { String::new() } else { format!(", until {until} at the latest") };
        let what = source(at(document, "/waiting/source"));
        lines.push(("Waiting:", format!("{what} waits while {}{until}", holds.join(" and "))));
    }
    for (hold, what) in [("pinned", "until kubelet-supervisor unpin"), ("frozen", "until kubelet-supervisor thaw")] {
        if *at(document, &format!("/{hold}")) == true {
            lines.push(("Held:", format!("{hold}, {what}")));
        }
    }
}

/// What is wrong, and what to do.
fn trouble(document: &Value, running: bool, lines: &mut Lines) {
    let error = string(document, "/error");
    lines.push(("Error:", if error.is_empty() { "none" } else { error }.to_owned()));
    let mut optional = |name: &'static str, value: String| {
        if !value.is_empty() {
            lines.push((name, value));
        }
    };
    optional("", string(document, "/errorDetail").to_owned());
    optional("To do:", to_do(document, running).to_owned());
    optional("Policy:", string(document, "/policy/error").to_owned());
    optional("Policy:", string(document, "/policy/forbids").to_owned());
    for flag in strings(document, "/flagOverrides") {
        optional("Flag override:", flag.to_owned());
    }
    optional("Local files:", string(document, "/localFiles").to_owned());
    for damage in strings(document, "/drift") {
        optional("Drift:", damage.to_owned());
    }
    for field in strings(document, "/shadowedByFlags") {
        optional("No effect:", format!("{field}, the command line wins"));
    }
}

/// The next command, where there is an error.
fn to_do(document: &Value, running: bool) -> &'static str {
    let error = string(document, "/error");
    if !running {
        "see why with systemctl status kubelet; its next start goes by the above"
    } else if error.is_empty() {
        ""
    } else if error == SyncError::AllNil.text() {
        "name a ConfigMap in the Node's spec.configSource, or take the field out: kubectl edit node NODE"
    } else if error == SyncError::Internal.text() || error == INTERNAL_ERROR {
        "see to this node's disk; why it failed is in its journal: journalctl -u kubelet. It is tried again by itself"
    } else if error == SyncError::Download.text() {
        "it is tried again by itself; kubectl kubelet-config doctor NODE finds what is missing"
    } else if string(document, "/trial/state") == "failed" {
        "mend what is assigned, or try it again as it is: kubelet-supervisor retry. How it came to this: kubelet-supervisor history"
    } else {
        "mend what is assigned, or assign something else; kubelet-supervisor check tries a file"
    }
}

fn source(value: &Value) -> String {
    let Some(map) = value.get("configMap") else { return "local configuration".to_owned() };
    let part = |name: &str| map.get(name).and_then(Value::as_str).unwrap_or_default();
    let source = serde_json::from_value::<Source>(map.clone()).ok();
    let title = source.and_then(|source| Some(format!("{},", source.title()?)));
    let name = title.unwrap_or_else(|| format!("{}/{}", part("namespace"), part("name")));
    let (key, uid, version) = (part("kubeletConfigKey"), part("uid"), part("resourceVersion"));
    format!("{name} key {key} (uid {uid}, resourceVersion {version})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(resource_version: &str) -> Value {
        json!({ "configMap": {
            "namespace": "kube-system", "name": "pool-memory-optimised-hf7m2k9d5t", "kubeletConfigKey": "kubelet",
            "uid": "6a8c0d6e-1f0e-4c43-9f0e-2b1c6b9a2c11", "resourceVersion": resource_version,
        } })
    }

    fn document() -> Value {
        json!({
            "assigned": version("8"), "active": version("8"), "lastKnownGood": version("7"), "error": "",
            "trial": { "state": "running", "remainingSeconds": 598, "signals": { "healthz": "good", "lease": "bad" } },
            "kubelet": { "pid": 12, "version": "v1.31.4", "ready": true, "restarts": 1 },
        })
    }

    #[test]
    fn it_is_read_in_ten_seconds_on_80_columns() {
        assert_eq!(
            text(&document(), true, Some(80)),
            "Kubelet:         v1.31.4 pid 12, ready, 1 restart
Assigned:        kube-system/pool-memory-optimised-hf7m2k9d5t key kubelet (uid
                 6a8c0d6e-1f0e-4c43-9f0e-2b1c6b9a2c11, resourceVersion 8)
Active:          as assigned
Last known good: kube-system/pool-memory-optimised-hf7m2k9d5t key kubelet (uid
                 6a8c0d6e-1f0e-4c43-9f0e-2b1c6b9a2c11, resourceVersion 7)
Trial:           running, 9m58s to go
Judged by:       healthz good, lease bad
Error:           none
"
        );
    }

    #[test]
    fn what_is_wrong_comes_with_what_to_do() {
        let mut document = document();
        document["active"] = version("7");
        document["error"] = "failed to load config, see Kubelet log for details".into();
        document["errorDetail"] = "the kubelet exited \u{1b}[31m".into();
        document["trial"] = json!({ "state": "failed" });
        let shown = text(&document, true, None);
        for line in [
            "Active:          last known good, which is not what is assigned\n",
            "Error:           failed to load config, see Kubelet log for details\n",
            "                 the kubelet exited \\u{1b}[31m\n",
            "kubelet-supervisor retry. How it came to this: kubelet-supervisor history\n",
        ] {
            assert!(shown.contains(line), "{line:?} in\n{shown}");
        }
        document["trial"] = json!({ "state": "none" });
        assert!(
            text(&document, true, None).contains("To do:           mend what is assigned, or assign something else")
        );
        document["error"] = "failed to sync: failed to download config, see Kubelet log for details".into();
        assert!(text(&document, true, None).contains("To do:           it is tried again by itself"));
        assert!(text(&document, false, None).contains("To do:           see why with systemctl status kubelet"));
        for own in [INTERNAL_ERROR, SyncError::Internal.text()] {
            document["error"] = own.into();
            assert!(text(&document, true, None).contains("To do:           see to this node's disk"), "{own}");
        }
        document["error"] = SyncError::AllNil.text().into();
        assert!(
            text(&document, true, None).contains("To do:           name a ConfigMap in the Node's spec.configSource")
        );
    }

    #[test]
    fn a_version_is_named_once() {
        let mut document = document();
        document["lastKnownGood"] = version("8");
        let shown = text(&document, true, None);
        assert_eq!(shown.matches("pool-memory-optimised").count(), 1, "{shown}");
        assert!(shown.contains("Last known good: as assigned\n"), "{shown}");
        document["assigned"] = Value::Null;
        document["lastKnownGood"] = Value::Null;
        assert!(text(&document, true, None).contains("Last known good: local configuration\n"));
    }

    #[test]
    fn what_is_yet_to_come_and_what_the_policy_forbids() {
        let mut document = document();
        document["scheduled"] = json!({ "source": version("8"), "at": "2026-11-24T22:05:04Z" });
        document["waiting"] =
            json!({ "source": version("8"), "for": ["2 streams run"], "until": "2026-11-24T22:06:04Z" });
        document["policy"] = json!({ "state": "violated", "error": "", "forbids": "maxPods is denied" });
        document["frozen"] = true.into();
        let shown = text(&document, true, None);
        for line in [
            "Scheduled:       takes effect at 2026-11-24T22:05:04Z: kube-system/pool",
            "waits while 2 streams run, until 2026-11-24T22:06:04Z at the latest\n",
            "Policy:          maxPods is denied\n",
            "Held:            frozen, until kubelet-supervisor thaw\n",
        ] {
            assert!(shown.contains(line), "{line:?} in\n{shown}");
        }
    }
}
