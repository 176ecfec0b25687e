//! Looking at rollouts, and changing where they are.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::args::{NamedArgs, ResumeArgs};
use super::bad_versions;
use super::begin::new_name_advice;
use super::client::RolloutClient;
use super::fleet::Fleet;
use super::lock::{Lock, LockAttempt};
use super::progress_reporter::{ProgressReporter, clean};
use super::records::{Replaced, StoredRecord, no_overlap};
use super::replace::put_back;
use super::run::{drive_locked, drive_on, ended, run_locked};
use crate::Failure;
use crate::api::list::Selector;
use crate::api::watch::{Event, Watcher};
use crate::commands::history::ago;
use crate::commands::status::now;
use crate::fleet::rollout::drain::Cordon;
use crate::fleet::rollout::observed::{Assigned, Progress};
use crate::fleet::rollout::progress::{Counts, phase_text};
use crate::fleet::rollout::record::{decode, map_name};
use crate::fleet::rollout::{Phase, Record};
use crate::output::{self, Format, Out, Table, Tone};

fn refuse(name: &str, record: &Record, what: &str) -> Failure {
    Failure::new(format!("rollout {name} is {}: it cannot be {what}", record.phase.label()))
}

/// `rollout pause`.
pub(crate) async fn pause(api: &RolloutClient, named: &NamedArgs) -> Result<ExitCode, Failure> {
    let name = &named.name;
    let change = |record: &mut Record| match record.phase {
        Phase::Running => {
            record.phase = Phase::Paused;
            record.why = String::from("somebody paused it");
            Ok(())
        }
        Phase::Paused => Ok(()),
        _ => Err(refuse(name, record, "paused")),
    };
    api.change(name, change).await?;
    output::write_stdout(&format!("rollout/{name} paused; nodes in flight come to their end\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// `rollout resume`.
pub(crate) async fn resume(
    api: &RolloutClient,
    ResumeArgs { named, excluded_nodes }: &ResumeArgs,
) -> Result<ExitCode, Failure> {
    let name = &named.name;
    let stored = api.known(name).await?;
    let reporter = ProgressReporter::new(named.quiet);
    match stored.record.phase {
        Phase::Starting if stored.record.replaces.is_some() => {
            return Err(Failure::new(format!(
                "rollout {name} was to begin anew, and did not: run the same command again, or `kubectl kubelet-config rollout undo \
                 {name}` gives nodes back what they had before the last one"
            )));
        }
        Phase::Starting => {
            return Err(Failure::new(format!(
                "rollout {name} never began, and no node has heard of it: begin it anew by the same command"
            )));
        }
        phase if phase.is_over() => {
            let message = phase.label();
            return Err(Failure::new(format!(
                "rollout {name} is {message}: it cannot be resumed; {}",
                new_name_advice(&stored, &api.records().await?)
            )));
        }
        Phase::Reverting if !excluded_nodes.is_empty() => {
            return Err(Failure::new(format!(
                "rollout {name} gives nodes back what they had, and sends nothing: there is nothing to do despite a node"
            )));
        }
        Phase::Reverting => {}
        _ => {
            let again = format!("`kubectl kubelet-config rollout resume {name}`");
            let (target, records) = (&stored.record.target, api.records().await?);
            let clearance = bad_versions::check(api, target, &records, excluded_nodes, &again).await?;
            clearance.write(api, name, target, &records).await?;
            if let Some(message) = clearance.summary() {
                reporter.note(&message);
            }
            let change = |record: &mut Record| {
                clearance.apply(record, true);
                if matches!(record.phase, Phase::Paused | Phase::Stopped) {
                    record.phase = Phase::Running;
                    record.why = clearance.summary().unwrap_or_default();
                }
                Ok(())
            };
            api.change(name, change).await?;
        }
    }
    reporter.note(&format!("rollout/{name} resumed"));
    drive_on(api, name, reporter, "goes on with it").await
}

/// `rollout abort`.
pub(crate) async fn abort(api: &RolloutClient, named: &NamedArgs) -> Result<ExitCode, Failure> {
    let name = &named.name;
    let change = |record: &mut Record| {
        match record.phase {
            Phase::Aborted => return Ok(()),
            // There may be nodes that a client which died left cordoned.
            Phase::Done | Phase::Reverted if record.options.drain.is_some() => return Ok(()),
            Phase::Done | Phase::Reverted => return Err(refuse(name, record, "aborted")),
            _ => {}
        }
        record.phase = Phase::Aborted;
        record.replaces = None;
        record.why = String::from("somebody gave it up");
        Ok(())
    };
    let stored = api.change(name, change).await?;
    output::write_stdout(&match stored.record.phase {
        Phase::Aborted => format!(
            "rollout/{name} aborted; nodes keep what they have, `kubectl kubelet-config rollout undo {name}` gives back what they \
             had\n"
        ),
        phase => format!("rollout/{name} is {} and stays so\n", phase.label()),
    })?;
    if stored.record.options.drain.is_some() {
        // A client that lives does it too; one that died left its nodes cordoned.
        let reporter = ProgressReporter::new(named.quiet);
        reporter.note("uncordoning what it cordoned; nodes in flight are waited for");
        if let LockAttempt::Acquired(lock) = Lock::acquire(api, name, |text| reporter.note(text)).await? {
            run_locked(api, lock, reporter).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// `rollout undo`. Unlike the other verbs it waits for the end even if another client drives it: what it ends with says
/// whether all is back.
pub(crate) async fn undo(api: &RolloutClient, named: &NamedArgs) -> Result<ExitCode, Failure> {
    let name = &named.name;
    let stored = put_back(api, api.known(name).await?, &ProgressReporter::new(named.quiet)).await?;
    if stored.record.phase == Phase::Reverted && stored.record.behind == 0 {
        output::write_stdout(&format!("rollout/{name} is reverted already\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut members = Vec::new();
    if stored.record.phase.is_over() {
        members = api.all_members(&stored).await?;
        no_overlap(api, name, &members).await?;
    }
    let change = |record: &mut Record| {
        match record.phase {
            Phase::Starting => return Err(refuse(name, record, "undone: no node has it")),
            Phase::Reverting => {}
            _ => {
                record.phase = Phase::Reverting;
                record.behind = 0;
                record.why = String::new();
            }
        }
        record.undone = true;
        Ok(())
    };
    // What cannot be written down stops nobody's way back.
    let refused = match api.try_change(name, change).await? {
        Replaced::Stored(_) => None,
        Replaced::Refused(_, why) => Some(why.message),
    };
    // Whoever began in between, and was not seen before, sees it now, or is seen.
    if stored.record.phase.is_over()
        && let Err(failure) = no_overlap(api, name, &members).await
    {
        let back = |record: &mut Record| {
            if record.phase == Phase::Reverting {
                let Record { phase, why, undone, behind, .. } = stored.record.clone();
                (record.phase, record.why, record.undone, record.behind) = (phase, why, undone, behind);
            }
            Ok(())
        };
        if refused.is_none() {
            api.change(name, back).await?;
        }
        return Err(failure);
    }
    loop {
        let reporter = ProgressReporter::new(named.quiet);
        reporter.note(&format!("rollout/{name}: nodes get back what they had"));
        let other = match Lock::acquire_with(api, name, change, |text| reporter.note(text)).await? {
            LockAttempt::Acquired(lock) => return drive_locked(api, lock, reporter).await,
            LockAttempt::Held(other) => other,
        };
        if let Some(why) = refused {
            return Err(Failure::new(format!(
                "{why}; {other} still drives rollout {name}: end that client, then run this again"
            )));
        }
        reporter.note(&format!("{other} gives back what nodes had; waiting for its end"));
        if let Some(record) = until_reverted(api, name).await? {
            return ended(name, &record, "");
        }
    }
}

/// Follows the record until nodes are not given back any more what they had; none if its client is silent.
async fn until_reverted(api: &RolloutClient, name: &str) -> Result<Option<Record>, Failure> {
    let field = format!("metadata.name={}", map_name(name));
    let mut record = Watcher::new(&api.api, &api.config_maps().url_path, "ConfigMaps", Selector::fields(field), None);
    loop {
        match tokio::time::timeout(api.lock_timing.lease_duration, record.events.recv()).await {
            Ok(Some(Event::Apply(map))) => {
                let (_, record, _) = decode(&map).map_err(Failure::new)?;
                if record.phase != Phase::Reverting {
                    return Ok(Some(record));
                }
                if record.holder.is_none() {
                    return Ok(None);
                }
            }
            Ok(Some(Event::Delete(_))) => {
                return Err(Failure::new(format!(
                    "the ConfigMap {} was deleted: rollout {name} is no more",
                    map_name(name)
                )));
            }
            Ok(Some(Event::Failed(failure))) => return Err(failure),
            Ok(Some(Event::Init | Event::InitDone(_) | Event::Interrupted(_))) => {}
            Ok(None) | Err(_) => return Ok(None),
        }
    }
}

/// `rollout status` without a name.
pub(crate) async fn list(api: &RolloutClient, format: Format) -> Result<ExitCode, Failure> {
    let mut found = api.records().await?;
    found.sort_by(|one, other| one.name.cmp(&other.name));
    if matches!(format, Format::Json | Format::Yaml) {
        let all: Vec<Value> = found.iter().map(document).collect();
        output::document(format, &json!(all))?;
        return Ok(ExitCode::SUCCESS);
    }
    if found.is_empty() {
        eprintln!("No rollouts found in {} namespace.", api.namespace);
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["NAME", "CONFIGMAP", "NODES", "STATE", "AGE", "WHY"]);
    let now = now();
    for StoredRecord { name, record, .. } in &found {
        let plain = |text: &str| (Tone::Plain, clean(text));
        table.row([
            plain(name),
            plain(&record.target.reference.name),
            plain(&record.nodes.to_string()),
            (tone(record.phase), phase_text(record)),
            plain(&ago(&record.started, now)),
            plain(&record.why),
        ]);
    }
    output::write_stdout(&table.render(Out::for_format(format)))?;
    Ok(ExitCode::SUCCESS)
}

fn tone(phase: Phase) -> Tone {
    match phase {
        Phase::Done | Phase::Reverted => Tone::Good,
        Phase::Stopped => Tone::Bad,
        Phase::Aborted => Tone::Plain,
        _ => Tone::Open,
    }
}

/// What programs read.
fn document(stored: &StoredRecord) -> Value {
    let StoredRecord { name, record, .. } = stored;
    json!({
        "name": name,
        "configMap": record.target,
        "selector": record.selector,
        "options": record.options,
        "nodes": record.nodes,
        "phase": record.phase.label(),
        "wave": record.wave,
        "waves": record.last_wave(),
        "why": record.why,
        "bad": record.bad,
        "lifted": record.cleared,
        "despite": record.excluded_nodes,
        "withdrawn": record.withdrawn,
        "holder": record.holder.as_ref().map(|holder| &holder.id),
        "started": record.started,
    })
}

/// `rollout status NAME`.
pub(crate) async fn status(api: &RolloutClient, name: &str, format: Format) -> Result<ExitCode, Failure> {
    let stored = api.known(name).await?;
    let fleet = current_fleet(api, &stored).await?;
    let record = &stored.record;
    let counts = Counts::new(record, &fleet.observed);
    let open: Vec<(&str, &str, String)> = fleet
        .members
        .iter()
        .zip(&fleet.observed)
        .filter(|(_, node)| !node.is_settled(record.options.wait_for))
        .filter_map(|(member, node)| {
            let (state, message) = match (node.assigned, &node.progress) {
                (Assigned::Target, Progress::Bad(why)) => ("bad", why.clone()),
                _ if node.is_away() => ("away", "not Ready, or held on the node".to_owned()),
                (Assigned::Target, Progress::Active) => ("on trial", String::new()),
                (Assigned::Target, _) => ("in flight", String::new()),
                (Assigned::Previous, Progress::Updating) => ("on its way back", String::new()),
                (Assigned::Previous, _) if node.cordon == Cordon::Ours => ("draining", String::new()),
                (Assigned::Previous, _) => return None,
                (Assigned::Other, _) if node.taken_back => ("taken back", String::new()),
                (Assigned::Other, _) => ("assigned something else", String::new()),
                (Assigned::Gone, _) => ("gone", String::new()),
            };
            Some((member.name.as_str(), state, message))
        })
        .collect();
    if matches!(format, Format::Json | Format::Yaml) {
        let mut document = document(&stored);
        let nodes: Vec<Value> = open
            .iter()
            .map(|(node, state, message)| json!({"node": node, "state": state, "message": message}))
            .collect();
        if let Some(fields) = document.as_object_mut() {
            let Counts { done, in_flight, waiting, away, bad, other } = counts;
            fields.insert(
                "counts".to_owned(),
                json!({"done": done, "inFlight": in_flight, "waiting": waiting, "away": away, "bad": bad, "other": other}),
            );
            fields.insert("open".to_owned(), json!(nodes));
        }
        output::document(format, &document)?;
        return Ok(ExitCode::SUCCESS);
    }
    let driver = record.holder.as_ref().map_or("nobody drives it", |holder| holder.id.as_str());
    let out = Out::for_format(format);
    let line = format!("{name}: {}, {}; {driver}", phase_text(record), counts.summary());
    let mut text = output::paragraph(out, Tone::Plain, &clean(&line));
    if !record.why.is_empty() {
        text.push_str(&output::paragraph(out, tone(record.phase), &clean(&record.why)));
    }
    let cleared = record.cleared.iter().map(|it| format!("node {} called it bad: {}; {}\n", it.node, it.why, it.how));
    text.extend(cleared);
    let mut table = Table::new(&["NODE", "STATE", "MESSAGE"]);
    for (node, state, message) in &open {
        let tone = if *state == "bad" { Tone::Bad } else { Tone::Open };
        table.row([(Tone::Plain, clean(node)), (tone, (*state).to_owned()), (Tone::Plain, clean(message))]);
    }
    if !open.is_empty() {
        text.push_str(&table.render(out));
    }
    output::write_stdout(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The nodes as they are now.
async fn current_fleet(api: &RolloutClient, stored: &StoredRecord) -> Result<Fleet, Failure> {
    let mut fleet = Fleet::new(api.all_members(stored).await?, &stored.record);
    fleet.follow_record(&stored.name, &stored.record);
    let mut nodes = fleet.feed(api, None);
    loop {
        if let Some(index) = fleet.unsure() {
            nodes = fleet.find_unselected(api, index).await?.unwrap_or(nodes);
        } else if fleet.is_known {
            return Ok(fleet);
        } else {
            let Some(news) = nodes.events.recv().await else { return Ok(fleet) };
            fleet.on_event(news)?;
        }
    }
}
