//! Looking at rollouts, and changing where they are.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::api::Api;
use super::begin::no_overlap;
use super::fleet::Fleet;
use super::records::Kept;
use super::show::{Show, clean};
use super::{Named, drive_on};
use crate::core::fleet::rollout::progress::{Counts, place};
use crate::core::fleet::rollout::sight::{Doing, Has};
use crate::core::fleet::rollout::{Phase, Record};
use crate::plugin::Failure;
use crate::plugin::history::ago;
use crate::plugin::output::{self, Format, Out, Table, Tone};
use crate::plugin::status::now;

fn refuse(name: &str, record: &Record, what: &str) -> Failure {
    Failure::new(format!("rollout {name} is {}: it cannot be {what}", record.phase.words()))
}

/// `rollout pause`.
pub(super) async fn pause(api: &Api, named: &Named) -> Result<ExitCode, Failure> {
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
    output::print(&format!("rollout/{name} paused; nodes in flight come to their end\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// `rollout resume`.
pub(super) async fn resume(api: &Api, named: &Named) -> Result<ExitCode, Failure> {
    let name = &named.name;
    let change = |record: &mut Record| match record.phase {
        Phase::Paused | Phase::Stopped => {
            record.phase = Phase::Running;
            record.why = String::new();
            Ok(())
        }
        Phase::Running | Phase::Reverting => Ok(()),
        Phase::Starting => Err(Failure::new(format!(
            "rollout {name} never began, and no node has heard of it: begin it anew by the same command"
        ))),
        _ => Err(refuse(name, record, "resumed")),
    };
    api.change(name, change).await?;
    let show = Show::new(named.quiet);
    show.say(&format!("rollout/{name} resumed"));
    drive_on(api, name, show, "goes on with it").await
}

/// `rollout abort`.
pub(super) async fn abort(api: &Api, named: &Named) -> Result<ExitCode, Failure> {
    let name = &named.name;
    let change = |record: &mut Record| {
        if record.phase.is_over() {
            return Err(refuse(name, record, "aborted"));
        }
        record.phase = Phase::Aborted;
        record.why = String::from("somebody gave it up");
        Ok(())
    };
    api.change(name, change).await?;
    output::print(&format!(
        "rollout/{name} aborted; nodes keep what they have, `kubectl kubelet-config rollout undo {name}` gives back what they had\n"
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// `rollout undo`.
pub(super) async fn undo(api: &Api, named: &Named) -> Result<ExitCode, Failure> {
    let name = &named.name;
    let kept = api.known(name).await?;
    if kept.record.phase.is_over() {
        no_overlap(api, name, &api.all_members(&kept).await?).await?;
    }
    let change = |record: &mut Record| match record.phase {
        Phase::Starting | Phase::Reverted => Err(refuse(name, record, "undone: no node has it")),
        Phase::Reverting => Ok(()),
        _ => {
            record.phase = Phase::Reverting;
            record.why = String::new();
            Ok(())
        }
    };
    api.change(name, change).await?;
    let show = Show::new(named.quiet);
    show.say(&format!("rollout/{name}: nodes get back what they had"));
    drive_on(api, name, show, "gives back what nodes had").await
}

/// `rollout status` without a name.
pub(super) async fn list(api: &Api, format: Format) -> Result<ExitCode, Failure> {
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
    for Kept { name, record, .. } in &found {
        let plain = |text: &str| (Tone::Plain, clean(text));
        table.row([
            plain(name),
            plain(&record.target.reference.name),
            plain(&record.nodes.to_string()),
            (tone(record.phase), place(record)),
            plain(&ago(&record.started, now)),
            plain(&record.why),
        ]);
    }
    output::print(&table.render(Out::of(format)))?;
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
fn document(kept: &Kept) -> Value {
    let Kept { name, record, .. } = kept;
    json!({
        "name": name,
        "configMap": record.target,
        "selector": record.selector,
        "options": record.options,
        "nodes": record.nodes,
        "phase": record.phase.words(),
        "wave": record.wave,
        "waves": record.last_wave(),
        "why": record.why,
        "bad": record.bad,
        "holder": record.holder.as_ref().map(|holder| &holder.id),
        "started": record.started,
    })
}

/// `rollout status NAME`.
pub(super) async fn status(api: &Api, name: &str, format: Format) -> Result<ExitCode, Failure> {
    let kept = api.known(name).await?;
    let fleet = look(api, &kept).await?;
    let record = &kept.record;
    let counts = Counts::of(record, &fleet.sights);
    let open: Vec<(&str, &str, String)> = fleet
        .members
        .iter()
        .zip(&fleet.sights)
        .filter(|(_, sight)| !sight.is_settled(record.options.wait_for))
        .filter_map(|(member, sight)| {
            let (state, words) = match (sight.has, &sight.doing) {
                (Has::Target, Doing::Bad(why)) => ("bad", why.clone()),
                _ if sight.is_away() => ("away", "not Ready, or held on the node".to_owned()),
                (Has::Target, Doing::Runs) => ("on trial", String::new()),
                (Has::Target, _) => ("in flight", String::new()),
                (Has::Before, Doing::Moving) => ("on its way back", String::new()),
                (Has::Before, _) => return None,
                (Has::Other, _) => ("assigned something else", String::new()),
                (Has::Gone, _) => ("gone", String::new()),
            };
            Some((member.name.as_str(), state, words))
        })
        .collect();
    if matches!(format, Format::Json | Format::Yaml) {
        let mut document = document(&kept);
        let nodes: Vec<Value> =
            open.iter().map(|(node, state, words)| json!({"node": node, "state": state, "message": words})).collect();
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
    let out = Out::of(format);
    let said = format!("{name}: {}, {}; {driver}", place(record), counts.words());
    let mut text = output::paragraph(out, Tone::Plain, &clean(&said));
    if !record.why.is_empty() {
        text.push_str(&output::paragraph(out, tone(record.phase), &clean(&record.why)));
    }
    let mut table = Table::new(&["NODE", "STATE", "MESSAGE"]);
    for (node, state, words) in &open {
        let tone = if *state == "bad" { Tone::Bad } else { Tone::Open };
        table.row([(Tone::Plain, clean(node)), (tone, (*state).to_owned()), (Tone::Plain, clean(words))]);
    }
    if !open.is_empty() {
        text.push_str(&table.render(out));
    }
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The nodes as they are now.
async fn look(api: &Api, kept: &Kept) -> Result<Fleet, Failure> {
    let mut fleet = Fleet::new(api.all_members(kept).await?, &kept.record);
    let mut nodes = fleet.feed(api, None);
    loop {
        if let Some(place) = fleet.unsure() {
            nodes = fleet.find(api, place).await?.unwrap_or(nodes);
        } else if fleet.is_known {
            return Ok(fleet);
        } else {
            let Some(news) = nodes.news.recv().await else { return Ok(fleet) };
            fleet.hear(news)?;
        }
    }
}
