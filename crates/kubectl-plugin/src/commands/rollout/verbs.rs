//! Looking at rollouts, and changing where they are.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::anew::put_back;
use super::args::{Named, Resumed};
use super::bad_versions;
use super::begin::anew;
use super::client::RolloutClient;
use super::fleet::Fleet;
use super::records::{Kept, Lock, Taken, no_overlap};
use super::run::{drive_locked, drive_on, ended, run_locked};
use super::show::{Show, clean};
use crate::Failure;
use crate::api::list::Selector;
use crate::api::watch::{Event, Watcher};
use crate::commands::history::ago;
use crate::commands::status::now;
use crate::fleet::rollout::drain::Cordon;
use crate::fleet::rollout::progress::{Counts, place};
use crate::fleet::rollout::record::{decode, map_name};
use crate::fleet::rollout::sight::{Doing, Has};
use crate::fleet::rollout::{Phase, Record};
use crate::output::{self, Format, Out, Table, Tone};

fn refuse(name: &str, record: &Record, what: &str) -> Failure {
    Failure::new(format!("rollout {name} is {}: it cannot be {what}", record.phase.words()))
}

/// `rollout pause`.
pub(crate) async fn pause(api: &RolloutClient, named: &Named) -> Result<ExitCode, Failure> {
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
pub(crate) async fn resume(api: &RolloutClient, Resumed { named, despite }: &Resumed) -> Result<ExitCode, Failure> {
    let name = &named.name;
    let kept = api.known(name).await?;
    let show = Show::new(named.quiet);
    match kept.record.phase {
        Phase::Starting if kept.record.replaces.is_some() => {
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
            let words = phase.words();
            return Err(Failure::new(format!(
                "rollout {name} is {words}: it cannot be resumed; {}",
                anew(&kept, &api.records().await?)
            )));
        }
        Phase::Reverting if !despite.is_empty() => {
            return Err(Failure::new(format!(
                "rollout {name} gives nodes back what they had, and sends nothing: there is nothing to do despite a node"
            )));
        }
        Phase::Reverting => {}
        _ => {
            let again = format!("`kubectl kubelet-config rollout resume {name}`");
            let (target, records) = (&kept.record.target, api.records().await?);
            let lift = bad_versions::judge(api, target, &records, despite, &again).await?;
            lift.write(api, name, target, &records).await?;
            if let Some(words) = lift.words() {
                show.say(&words);
            }
            let change = |record: &mut Record| {
                lift.apply(record, true);
                if matches!(record.phase, Phase::Paused | Phase::Stopped) {
                    record.phase = Phase::Running;
                    record.why = lift.words().unwrap_or_default();
                }
                Ok(())
            };
            api.change(name, change).await?;
        }
    }
    show.say(&format!("rollout/{name} resumed"));
    drive_on(api, name, show, "goes on with it").await
}

/// `rollout abort`.
pub(crate) async fn abort(api: &RolloutClient, named: &Named) -> Result<ExitCode, Failure> {
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
    let kept = api.change(name, change).await?;
    output::print(&match kept.record.phase {
        Phase::Aborted => format!(
            "rollout/{name} aborted; nodes keep what they have, `kubectl kubelet-config rollout undo {name}` gives back what they \
             had\n"
        ),
        phase => format!("rollout/{name} is {} and stays so\n", phase.words()),
    })?;
    if kept.record.options.drain.is_some() {
        // A client that lives does it too; one that died left its nodes cordoned.
        let show = Show::new(named.quiet);
        show.say("uncordoning what it cordoned; nodes in flight are waited for");
        if let Taken::Lock(lock) = Lock::take(api, name, |text| show.say(text)).await? {
            run_locked(api, lock, show).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// `rollout undo`. Unlike the other verbs it waits for the end even if another client drives it: what it ends with says
/// whether all is back.
pub(crate) async fn undo(api: &RolloutClient, named: &Named) -> Result<ExitCode, Failure> {
    let name = &named.name;
    let kept = put_back(api, api.known(name).await?, &Show::new(named.quiet)).await?;
    if kept.record.phase == Phase::Reverted && kept.record.behind == 0 {
        output::print(&format!("rollout/{name} is reverted already\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut members = Vec::new();
    if kept.record.phase.is_over() {
        members = api.all_members(&kept).await?;
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
    api.change(name, change).await?;
    // Whoever began in between, and was not seen before, sees it now, or is seen.
    if kept.record.phase.is_over()
        && let Err(failure) = no_overlap(api, name, &members).await
    {
        let back = |record: &mut Record| {
            if record.phase == Phase::Reverting {
                let Record { phase, why, undone, behind, .. } = kept.record.clone();
                (record.phase, record.why, record.undone, record.behind) = (phase, why, undone, behind);
            }
            Ok(())
        };
        api.change(name, back).await?;
        return Err(failure);
    }
    loop {
        let show = Show::new(named.quiet);
        show.say(&format!("rollout/{name}: nodes get back what they had"));
        let other = match Lock::take(api, name, |text| show.say(text)).await? {
            Taken::Lock(lock) => return drive_locked(api, lock, show).await,
            Taken::Alive(other) => other,
        };
        show.say(&format!("{other} gives back what nodes had; waiting for its end"));
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
        match tokio::time::timeout(api.pace.lock, record.events.recv()).await {
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
        eprintln!("No rollouts found in {} namespace.", api.api.namespace);
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
        "lifted": record.lifted,
        "despite": record.despite,
        "withdrawn": record.withdrawn,
        "holder": record.holder.as_ref().map(|holder| &holder.id),
        "started": record.started,
    })
}

/// `rollout status NAME`.
pub(crate) async fn status(api: &RolloutClient, name: &str, format: Format) -> Result<ExitCode, Failure> {
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
                (Has::Before, _) if sight.cordon == Cordon::Ours => ("draining", String::new()),
                (Has::Before, _) => return None,
                (Has::Other, _) if sight.taken_back => ("taken back", String::new()),
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
    let lifted = record.lifted.iter().map(|it| format!("node {} called it bad: {}; {}\n", it.node, it.why, it.how));
    text.extend(lifted);
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
async fn look(api: &RolloutClient, kept: &Kept) -> Result<Fleet, Failure> {
    let mut fleet = Fleet::new(api.all_members(kept).await?, &kept.record);
    fleet.follow(&kept.name, &kept.record);
    let mut nodes = fleet.feed(api, None);
    loop {
        if let Some(place) = fleet.unsure() {
            nodes = fleet.find(api, place).await?.unwrap_or(nodes);
        } else if fleet.is_known {
            return Ok(fleet);
        } else {
            let Some(news) = nodes.events.recv().await else { return Ok(fleet) };
            fleet.hear(news)?;
        }
    }
}
