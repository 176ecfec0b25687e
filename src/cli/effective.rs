//! `render --effective`: what the kubelet goes by, and where each value comes from.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use super::common::Failure;
use super::control::{Output, StoreDir};
use crate::adapters::fsx::Disk;
use crate::adapters::local_files::LocalFiles;
use crate::adapters::store::FsStore;
use crate::machine::records::Stored;
use crate::ports::Local as _;
use kubelet_config::effective::{Field, Sources, fields, layers};
use kubelet_config::flags::KubeletArgs;
use kubelet_config::hazard;
use kubelet_config::rendering::Configuration;
use kubelet_config::source::Source;

/// The configuration that is shown, and what its payload is called.
pub(super) struct Shown {
    pub(super) configuration: Configuration,
    pub(super) payload: String,
}

/// What a running supervisor says is active; none is the local configuration.
pub(super) struct Active(pub(super) Option<Source>);

/// Asks for it; `None` if nobody answers.
pub(super) fn active(dir: &StoreDir) -> Result<Option<Active>, Failure> {
    match dir.ask("GET", "/status", "") {
        Ok((_, body)) => Ok(active_in(&body)),
        Err(unreachable) => unreachable.unless_refused().map(|_| None),
    }
}

fn active_in(status: &str) -> Option<Active> {
    let document: Value = serde_json::from_str(status).ok()?;
    match document.get("active")? {
        Value::Null => Some(Active(None)),
        active => Some(Active(Some(serde_json::from_value(active.get("configMap")?.clone()).ok()?))),
    }
}

/// The bytes that a version was started from, if it would be rendered to others today.
pub(super) fn as_it_runs<D: Disk>(mut rendered: Shown, store: &FsStore<D>, stored: Stored, source: &Source) -> Shown {
    let (records, _) = stored.into_records();
    let named = records.assigned.iter().chain(&records.last_known_good).chain(&records.proven);
    let digest = named.filter(|version| version.source == *source).find_map(|version| version.digest.as_ref());
    if let Some(digest) = digest.filter(|digest| **digest != rendered.configuration.digest)
        && let Ok(found) = store.open_config(digest)
    {
        eprintln!(
            "note: shown are the bytes that the kubelet was given, {}: today it would be given others",
            found.given.config
        );
        let configuration = &mut rendered.configuration;
        (configuration.value, configuration.overrides) = (found.value, found.overrides);
        configuration.drop_ins = found.drop_ins;
    }
    rendered
}

/// What this kubelet goes by with a configuration.
pub(super) fn text(rendered: &Shown, local: &LocalFiles, output: Output) -> Result<String, Failure> {
    // What is stored was not rendered just now.
    if let Some(why) = rendered.configuration.drop_ins.iter().find_map(|it| it.fault(local.kubelet_minor())) {
        return Err(Failure::from(format!("no kubelet starts with this drop-in: {why}")));
    }
    let args = &local.args;
    let overrides = &rendered.configuration.overrides;
    let file = args.last("config").map(Path::new).and_then(|path| std::path::absolute(path).ok());
    let configuration = &rendered.configuration;
    let sources = Sources {
        configuration: &configuration.value,
        local: &file.unwrap_or_default().display().to_string(),
        payload: configuration.payload.as_ref().map(|payload| (rendered.payload.as_str(), payload)),
        drop_ins: &configuration.drop_ins,
        args: &args.with(overrides),
        added: &KubeletArgs::default().with(overrides),
        // Where there is a payload the directory is left out if it is empty.
        merges: !configuration.drop_ins.is_empty() || configuration.payload.is_none() && args.has("config-dir"),
    };
    let fields = fields(&layers(&sources), local.kubelet_minor());
    Ok(match output {
        Output::Json => format!("{:#}\n", document(local.version.get().as_deref(), &fields)),
        Output::Text => table(&fields),
    })
}

/// Of a value in the table: what is longer is not padded to.
const WIDE: usize = 40;

fn document(version: Option<&str>, fields: &[Field]) -> Value {
    let field = |field: &Field| {
        json!({
            "field": field.path, "value": shown(field).unwrap_or("(hidden)".into()),
            "from": field.origin.kind(), "name": field.origin.name(),
        })
    };
    json!({ "kubelet": version, "fields": fields.iter().map(field).collect::<Vec<_>>() })
}

fn table(fields: &[Field]) -> String {
    let cell = |field: &Field| match shown(field) {
        None => "(hidden)".to_owned(),
        Some(Value::Null) => "(default of this version)".to_owned(),
        Some(value) => value.to_string(),
    };
    let rows: Vec<(&str, String, String)> =
        fields.iter().map(|field| (field.path.as_str(), cell(field), field.origin.to_string())).collect();
    let paths = rows.iter().map(|(path, ..)| path.len()).max().unwrap_or_default();
    let values = rows.iter().map(|(_, value, _)| value.chars().count()).filter(|len| *len <= WIDE);
    let values = values.max().unwrap_or_default();
    let mut text = format!("{:paths$}   {:values$}   FROM\n", "FIELD", "VALUE");
    for (path, value, from) in rows {
        let _ = writeln!(text, "{path:paths$}   {value:values$}   {from}"); // a String takes it
    }
    text
}

/// The value, unless it is nobody's business.
fn shown(field: &Field) -> Option<Value> {
    (!hazard::is_secret(&field.path)).then(|| field.value.clone())
}
