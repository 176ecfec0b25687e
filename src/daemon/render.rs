//! Renders a checkpoint, or the local configuration, with the local files.

use crate::machine::model::RenderError;
use crate::ports::{Checkpoint, Local, LocalError, LocalPolicy};
use kubelet_config::flags::{FlagOverrides, KEY_SUFFIX, KubeletArgs};
use kubelet_config::local_files;
use kubelet_config::rendering::{self, Configuration, RenderFault, RenderInput, Text};
use kubelet_config::source::{Merge, Source};
use kubelet_config::yaml;

/// A checkpoint to render, and the node's policy as it was read for that.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    /// Its keys.
    pub checkpoint: &'a Checkpoint,
    /// Where it is from.
    pub source: &'a Source,
    /// It may free flags that are the node's own otherwise.
    pub policy: &'a Result<LocalPolicy, String>,
}

impl From<LocalError> for RenderError {
    fn from(error: LocalError) -> Self {
        match error {
            LocalError::Unfinished(why) => Self::Unfinished(why),
            error => Self::Internal(error.to_string()),
        }
    }
}

/// Renders a checkpoint, or the local configuration. A checkpoint of the local files has all of them, and the files as they
/// are now have no say. Path fields that name a key of the payload point below `configs`, where
/// configurations lie by their digest; without it, into the checkpoint's directory.
///
/// # Errors
/// [`RenderError`], naming the key or file at fault.
pub fn configuration(
    given: Option<Payload<'_>>,
    configs: Option<&str>,
    args: &KubeletArgs,
    local: &dyn Local,
) -> Result<Configuration, RenderError> {
    let followed = given.filter(|given| given.source.is_local_files());
    let drop_ins =
        followed.map_or_else(|| local.drop_ins(), |given| Ok(local_files::drop_ins(&given.checkpoint.files)));
    let no_drop_ins =
        |why: String| RenderError::Internal(format!("the kubelet's own --config-dir cannot be used: {why}"));
    let drop_ins = drop_ins.map_err(|error| no_drop_ins(error.to_string()))?;
    let mut merge = local.default_merge();
    let (mut payload, mut overrides) = (None, FlagOverrides::default());
    if let Some(given @ Payload { checkpoint, source, .. }) = given {
        let text = text(checkpoint, source)?;
        if followed.is_some() {
            yaml::parse_own(text).map_err(RenderError::Load)?; // it was copied from a file that its kubelet may refuse
        }
        payload = Some(Text { text, dir: &checkpoint.dir });
        overrides = flag_overrides(given)?;
        if let Some(mode) = &checkpoint.annotations.merge {
            merge = mode
                .parse::<Merge>()
                .map_err(|why| RenderError::Load(format!("annotation kubelet-supervisor.io/merge: {why}")))?;
        }
    }
    let keys = |key: &str| given.and_then(|given| given.checkpoint.files.get(key).cloned());
    let minor = local.kubelet_minor();
    let with = |local_file: Option<&(String, String)>| {
        let local = local_file.map(|(text, dir)| Text { text, dir });
        let (keys, drop_ins, overrides) = (&keys, &drop_ins, &overrides);
        rendering::render(&RenderInput { payload, local, merge, keys, configs, drop_ins, args, overrides, minor })
    };
    // Drop-ins of a version of the local files are that version's fault.
    let refused = |fault| match fault {
        RenderFault::DropIn(why) if followed.is_none() => no_drop_ins(why),
        fault => RenderError::Load(fault.to_string()),
    };
    let local_file = if followed.is_some() { Ok(None) } else { local.config() };
    let fault = match &local_file {
        Ok(local_file) => match with(local_file.as_ref()) {
            Ok(out) => return Ok(out),
            Err(RenderFault::Local(why)) => why,
            Err(fault) => return Err(refused(fault)),
        },
        Err(error) => error.to_string(),
    };
    let why = format!("the kubelet's own --config file cannot be used: {fault}");
    if payload.is_none() || merge == Merge::Overlay {
        return Err(RenderError::Internal(why));
    }
    // A payload that replaces the file anyway must not go down with it: that would leave the
    // kubelet with nothing but the broken file.
    let mut out = with(None).map_err(refused)?;
    out.notes.push(format!("{why}; its feature gates are left out"));
    Ok(out)
}

/// What the payload changes of the command line.
fn flag_overrides(Payload { checkpoint, source, policy }: Payload<'_>) -> Result<FlagOverrides, RenderError> {
    let key = format!("{}{KEY_SUFFIX}", source.reference.kubelet_config_key);
    let fail = |why: String| RenderError::Load(format!("{key}: {why}"));
    if checkpoint.binary_keys.contains(&key) {
        return Err(fail("flags are text: they belong into data, not into binaryData".to_owned()));
    }
    let Some(text) = checkpoint.files.get(&key) else { return Ok(FlagOverrides::default()) };
    let overrides = FlagOverrides::parse(text).map_err(fail)?;
    // What a policy alone lets a source change.
    let freed = policy.as_ref().ok().and_then(|found| found.policy.as_ref()?.overridable_flags.clone());
    // One that cannot be read now may free the flag, once it can be.
    overrides.check(&freed.unwrap_or_default()).map_err(|why| match policy {
        Err(unreadable) => RenderError::Internal(format!("the node's policy: {unreadable}; so, {key}: {why}")),
        Ok(_) => fail(why),
    })?;
    Ok(overrides)
}

/// The payload's KubeletConfiguration.
fn text<'a>(checkpoint: &'a Checkpoint, source: &Source) -> Result<&'a str, RenderError> {
    let key = &source.reference.kubelet_config_key;
    if let Some(text) = checkpoint.files.get(key) {
        return Ok(text);
    }
    let keys: Vec<&str> = checkpoint.files.keys().map(String::as_str).collect();
    let others = if keys.is_empty() {
        "data is empty; binaryData is not read".to_owned()
    } else {
        format!("keys: {}", keys.join(", "))
    };
    Err(RenderError::Load(format!("the ConfigMap has no key {key:?} in its data ({others})")))
}
