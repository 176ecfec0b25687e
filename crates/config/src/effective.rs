//! What a kubelet goes by, field by field, and where each value comes from.
//!
//! In the order in which a kubelet loads (cmd/kubelet/app/server.go and options/options.go, v1.20.2 and v1.36.2):
//!
//! 1. The file of `--config` is read, and its defaults are filled in.
//! 2. With `--config-dir` the outcome is written as JSON, which leaves empty lists and maps out. Drop-ins are merged over it.
//!    What is missing then is filled in once more, but for hard eviction. Kubelets before 1.32 do it otherwise ([`crate::own_files::DropInMerge`]).
//! 3. Flags are laid over the outcome. What a flag sets to zero is zero.
//! 4. At the start, named CPUs become the only ones reserved, and some fields take the value of another field.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value, json};

use crate::flags::{self, KubeletArgs, Setting};
use crate::hazard::table::{self, Unset};
use crate::hazard::{self, defaults};
use crate::merge::{leaves, merge};
use crate::own_files::DropIn;
use crate::types::Type;
use crate::{gates, schema};

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody sets it: the default of the kubelet's version.
    Default,
    /// The same, where it differs because there is no `--config` file at all.
    DefaultWithoutFile,
    /// The kubelet's own `--config` file, at this path.
    LocalFile(String),
    /// The payload of this name.
    Payload(String),
    /// The drop-in of `--config-dir` at this path.
    DropIn(String),
    /// This flag of the unit's command line, named without dashes.
    Flag(&'static str),
    /// This flag of the source's flag overrides.
    FlagOverride(&'static str),
}

impl Origin {
    /// Its kind in JSON.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.words().0
    }

    /// Which file, payload or flag.
    #[must_use]
    pub fn name(&self) -> Option<String> {
        match self {
            Self::Default | Self::DefaultWithoutFile => None,
            Self::LocalFile(name) | Self::Payload(name) | Self::DropIn(name) => Some(name.clone()),
            Self::Flag(flag) | Self::FlagOverride(flag) => Some(format!("--{flag}")),
        }
    }

    /// Its kind, for programs and for people.
    fn words(&self) -> (&'static str, &'static str) {
        match self {
            Self::Default => ("default", "default"),
            Self::DefaultWithoutFile => ("defaultWithoutFile", "default without --config"),
            Self::LocalFile(_) => ("localFile", "local file"),
            Self::Payload(_) => ("payload", "payload"),
            Self::DropIn(_) => ("dropIn", "drop-in"),
            Self::Flag(_) => ("flag", "flag"),
            Self::FlagOverride(_) => ("flagOverride", "flag override"),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words().1)?;
        self.name().map_or(Ok(()), |name| write!(f, " {name}"))
    }
}

/// A field that is no struct or map, or an entry of a map.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Its dotted path; names of entries may hold dots (`evictionHard.memory.available`).
    pub path: String,
    /// What the kubelet takes it for; null for a default that depends on a version or node that is not known.
    pub value: Value,
    /// Where that comes from.
    pub origin: Origin,
}

/// What of a configuration is laid over what.
#[derive(Clone, Debug, PartialEq)]
pub enum Layer {
    /// By RFC 7396.
    Merge(Origin, Value),
    /// What a kubelet without any `--config` goes by.
    WithoutFile,
    /// The kubelet's defaults, for what is not set.
    Defaults,
    /// All drop-ins, by the rules of the kubelet's version.
    DropIns(Vec<(Origin, Value)>),
    /// A field that is replaced, also where it is a map.
    Set(Origin, Setting),
}

/// All that a kubelet reads.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// What its `--config` says; null: it has none.
    pub configuration: &'a Value,
    /// Of that, the path of the local file.
    pub local: &'a str,
    /// Of that, name and content of the payload.
    pub payload: Option<(&'a str, &'a Value)>,
    /// The drop-ins, in the kubelet's order.
    pub drop_ins: &'a [DropIn],
    /// The whole command line.
    pub args: &'a KubeletArgs,
    /// Of that, what flag overrides added.
    pub added: &'a KubeletArgs,
    /// The kubelet merges drop-ins, though there may be none: it is given the unit's `--config-dir`.
    pub merges: bool,
}

impl<'a> Sources<'a> {
    /// Where nobody asks what comes from where.
    #[must_use]
    pub fn of(configuration: &'a Value, drop_ins: &'a [DropIn], args: &'a KubeletArgs) -> Self {
        Self { configuration, local: "", payload: None, drop_ins, args, added: args, merges: !drop_ins.is_empty() }
    }
}

/// The layers of a kubelet's configuration, the lowest first.
#[must_use]
pub fn layers(from: &Sources<'_>) -> Vec<Layer> {
    let mut layers = Vec::new();
    if from.configuration.is_object() {
        let (own, given) = split(from.configuration, from.payload.map(|(_, payload)| payload));
        layers.extend(own.map(|own| Layer::Merge(Origin::LocalFile(from.local.to_owned()), without_null_entries(own))));
        let name = from.payload.map_or("", |(name, _)| name);
        layers.extend(given.map(|given| Layer::Merge(Origin::Payload(name.to_owned()), without_null_entries(given))));
    } else {
        layers.push(Layer::WithoutFile);
    }
    layers.push(Layer::Defaults);
    if from.merges {
        let read = from.drop_ins.iter().filter_map(|it| Some((Origin::DropIn(it.path.clone()), it.value()?.clone())));
        layers.push(Layer::DropIns(read.collect()));
    }
    let added = from.added.settings();
    let is_added = |setting: &Setting| added.iter().any(|of| (of.flag, &of.path) == (setting.flag, &setting.path));
    layers.extend(from.args.settings().into_iter().map(|setting| {
        let origin = if is_added(&setting) { Origin::FlagOverride } else { Origin::Flag };
        Layer::Set(origin(setting.flag), setting)
    }));
    layers
}

/// What a kubelet without any `--config` goes by, where it differs from a file's defaults
/// (applyLegacyDefaults, cmd/kubelet/app/options/options.go, v1.20.2 and v1.36).
fn legacy_defaults(minor: Option<u64>) -> Value {
    let mut defaults = json!({
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "readOnlyPort": 10255,
    });
    // Since then hard eviction has its defaults from the reader of the file alone (`loadConfigFile`).
    if let (Some(25..), Some(fields)) = (minor, defaults.as_object_mut()) {
        fields.insert("evictionHard".to_owned(), json!({}));
    }
    defaults
}

/// A file in which entries of maps that are null are what Go's decoder makes of them: the zero value, of a gate *false*. Of
/// fields null is none.
fn without_null_entries(mut file: Value) -> Value {
    for hazard in table::HAZARDS {
        let zero: Value = match hazard.of {
            Type::Map(Type::Bool) => false.into(),
            Type::Map(Type::List(_)) => continue, // no list is an empty one
            Type::Map(_) => "".into(),
            _ => continue,
        };
        if let Some(Value::Object(entries)) = file.get_mut(hazard.field) {
            entries.values_mut().filter(|value| value.is_null()).for_each(|value| *value = zero.clone());
        }
    }
    file
}

/// What of a rendered configuration the payload does not say, and what it does.
fn split(value: &Value, payload: Option<&Value>) -> (Option<Value>, Option<Value>) {
    match (value, payload) {
        (_, None) => (Some(value.clone()), None),
        (Value::Object(fields), Some(Value::Object(payload))) if !fields.is_empty() => {
            let (mut own, mut given) = (Map::new(), Map::new());
            for (name, value) in fields {
                let (mine, theirs) = split(value, payload.get(name));
                own.extend(mine.map(|value| (name.clone(), value)));
                given.extend(theirs.map(|value| (name.clone(), value)));
            }
            let some = |fields: Map<_, _>| (!fields.is_empty()).then_some(Value::Object(fields));
            (some(own), some(given))
        }
        (_, Some(_)) => (None, Some(value.clone())),
    }
}

/// What the layers come to in a kubelet of this minor version, by path. Fields that it does not know are left out; what
/// is not listed is not set and has no default.
#[must_use]
pub fn fields(layers: &[Layer], minor: Option<u64>) -> Vec<Field> {
    let view = View::of(layers, minor);
    let mut found: Vec<Field> = view.fields().collect();
    let open = table::HAZARDS.iter().filter(|hazard| hazard.unset == Unset::Varies);
    let open = open.filter(|hazard| view.value.get(hazard.field).is_none_or(Value::is_null));
    found.extend(open.map(|hazard| Field {
        path: hazard.field.to_owned(),
        value: Value::Null,
        origin: Origin::Default,
    }));
    // Of an unknown version it is not known what it does not read; what somebody sets is shown.
    found.retain(|field| schema::is_known(&field.path, minor) || minor.is_none() && field.origin != Origin::Default);
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

/// The outcome of the layers as one configuration, to compare it with another: an object. Fields and feature gates that are at
/// their default are left out; [`hazard::effective`] has these defaults. A default that depends on the version is written out
/// if the version is known: so a field that is absent from two configurations is the same in both.
#[must_use]
pub fn value(layers: &[Layer], minor: Option<u64>) -> Value {
    settled(&View::of(layers, minor).value, minor)
}

/// What a kubelet goes by, without what is at its default.
pub(crate) fn settled(value: &Value, minor: Option<u64>) -> Value {
    let mut value = value.clone();
    let Some(fields) = value.as_object_mut() else { return value };
    if let Some(Value::Object(gates)) = fields.get_mut("featureGates") {
        *gates = gates::not_default(gates, minor);
    }
    // It enforces nothing, as an empty list does (pkg/kubelet/apis/config/validation, v1.20.2).
    if let Some(Value::Array(enforced)) = fields.get_mut("enforceNodeAllocatable") {
        enforced.retain(|it| it != "none");
    }
    if fields.get("cgroupsPerQOS") == Some(&false.into()) {
        fields.entry("cgroupRoot").or_insert("".into()); // its default is for cgroupsPerQOS alone
    }
    for hazard in table::HAZARDS {
        let Some(given) = fields.remove(hazard.field) else { continue };
        let default = match hazard.unset {
            Unset::Like(other) => fields.get(other).cloned().unwrap_or_else(|| hazard::effective(&Value::Null, other)),
            _ => hazard::effective(&Value::Null, hazard.field),
        };
        let is_default = match hazard.unset {
            Unset::Varies => false,
            _ if minor.is_some() && defaults::depends_on_version(hazard.field) => false,
            Unset::Zero => hazard.of.is_zero(&given),
            _ => hazard.of.is_same(&given, &default),
        };
        if !is_default {
            fields.insert(hazard.field.to_owned(), given);
        }
    }
    value
}

/// The same of a file by itself.
#[must_use]
pub fn of_file(configuration: &Value, minor: Option<u64>) -> Value {
    let args = KubeletArgs::default();
    value(&layers(&Sources::of(configuration, &[], &args)), minor)
}

/// The same of what a kubelet says that it goes by (`/configz`): zero is zero there.
#[must_use]
pub fn reported(configz: &Value, minor: Option<u64>) -> Value {
    value(&[Layer::Merge(Origin::Default, defaults::with_zeros(configz, minor))], minor)
}

/// The same of a payload and its flags, laid over what a kubelet says that it goes by.
#[must_use]
pub fn laid_over(configz: &Value, payload: &Value, args: &KubeletArgs, minor: Option<u64>) -> Value {
    let mut merged = defaults::with_zeros(configz, minor);
    merge(&mut merged, &defaults::without_zeros(payload));
    // The default of what the payload takes out; what else is zero is a flag's.
    let filled = defaults::defaulted(&merged, minor);
    for (field, given) in payload.as_object().into_iter().flatten() {
        if has_null(given)
            && let (Some(merged), Some(value)) = (merged.as_object_mut(), filled.get(field))
        {
            merged.insert(field.clone(), value.clone());
        }
    }
    let flags = args.settings().into_iter().map(|setting| Layer::Set(Origin::FlagOverride(setting.flag), setting));
    let layers: Vec<Layer> = std::iter::once(Layer::Merge(Origin::Default, merged)).chain(flags).collect();
    value(&layers, minor)
}

fn has_null(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(|fields| fields.values().any(has_null))
}

/// The fields that name a serving certificate and its key.
pub const SERVING_CERTIFICATE: [&str; 2] = ["tlsCertFile", "tlsPrivateKeyFile"];

/// The default of `--cert-dir`.
const CERTIFICATES: [&str; 2] = ["/var/lib/kubelet/pki/kubelet.crt", "/var/lib/kubelet/pki/kubelet.key"];

/// True if the kubelet that says this goes by the certificate that it goes by where nobody names one: `kubelet.crt` in its `--cert-dir`,
/// which it makes unless it is there (`InitializeTLS`, cmd/kubelet/app/server.go, v1.20.2 and v1.36). In another directory the same name
/// may be somebody's certificate, and nobody can tell through the API server.
#[must_use]
pub fn chose_certificate(configz: &Value) -> bool {
    let named = SERVING_CERTIFICATE.map(|field| configz.get(field).and_then(Value::as_str));
    named == CERTIFICATES.map(Some) && configz.get("serverTLSBootstrap") != Some(&true.into())
}

/// Takes the serving certificate out; true if it was there.
pub fn drop_certificate(value: &mut Value) -> bool {
    let Some(fields) = value.as_object_mut() else { return false };
    SERVING_CERTIFICATE.map(|field| fields.remove(field).is_some()).contains(&true)
}

/// A configuration, and who set what of it.
struct View {
    /// An object.
    value: Value,
    /// By path; what stands below a path that is here is not.
    origins: BTreeMap<Vec<String>, Origin>,
}

impl Default for View {
    fn default() -> Self {
        Self { value: Value::Object(Map::new()), origins: BTreeMap::new() }
    }
}

impl View {
    fn of(layers: &[Layer], minor: Option<u64>) -> Self {
        let mut view = Self::default();
        for layer in layers {
            match layer {
                Layer::Merge(origin, patch) => view.merge(origin, &schema::known_part(patch, minor)),
                Layer::WithoutFile => view.merge(&Origin::DefaultWithoutFile, &legacy_defaults(minor)),
                Layer::Defaults => view.fill(&defaults::defaulted(&view.value, minor)),
                Layer::DropIns(drop_ins) => view.lay_drop_ins(drop_ins, minor),
                Layer::Set(origin, setting) => view.set(origin, setting),
            }
        }
        view.reserve_cpus();
        view.open_groups(minor);
        view.fill(&defaults::started(&view.value, minor));
        view
    }

    fn merge(&mut self, origin: &Origin, patch: &Value) {
        if patch.is_object() {
            self.note(&mut Vec::new(), Some(&self.value.clone()), patch, origin, false);
            merge(&mut self.value, patch);
        }
    }

    /// Puts a value in its place that has defaults in it.
    fn fill(&mut self, filled: &Value) {
        let before = std::mem::replace(&mut self.value, filled.clone());
        self.note(&mut Vec::new(), Some(&before), filled, &Origin::Default, true);
    }

    fn set(&mut self, origin: &Origin, setting: &Setting) {
        let Value::Object(fields) = &mut self.value else { return };
        let mut value = setting.value.clone();
        // klog's patterns follow those of the file (`VModuleConfigurationPflag`, k8s.io/component-base/logs/api/v1, v1.36).
        if setting.flag == "vmodule"
            && let Some(Value::Array(there)) = fields.get("logging").and_then(|logging| logging.get("vmodule"))
            && let Value::Array(given) = &mut value
            && there != given
        {
            given.splice(0..0, there.iter().cloned());
        }
        flags::set(fields, &setting.path, value);
        for end in 0..setting.path.len() {
            self.origins.remove(setting.path.get(..end).unwrap_or_default());
        }
        self.forget(&setting.path);
        self.note(&mut setting.path.clone(), None, &setting.value, origin, false);
    }

    /// CPUs that are named are the only ones reserved (`run`, cmd/kubelet/app/server.go, v1.20.2 and v1.36).
    fn reserve_cpus(&mut self) {
        let (cpu, named) = ("cpu".to_owned(), "reservedSystemCPUs".to_owned());
        let cpus = self.value.get(&named).and_then(Value::as_str).and_then(hazard::cpus);
        let Some(count) = cpus.map(|cpus| cpus.len()).filter(|count| *count > 0) else { return };
        let origin = self.origins.get(&vec![named]).cloned().unwrap_or(Origin::Default);
        if let Some(Value::Object(reserved)) = self.value.get_mut("kubeReserved") {
            reserved.remove(&cpu);
            self.forget(&["kubeReserved".to_owned(), cpu.clone()]);
        }
        let path = vec!["systemReserved".to_owned(), cpu];
        self.set(&origin, &Setting { flag: "reserved-cpus", path, value: count.to_string().into() });
    }

    /// Sets the gates that groups set, in the name of whoever set the group.
    fn open_groups(&mut self, minor: Option<u64>) {
        let field = "featureGates".to_owned();
        let Some(Value::Object(gates)) = self.value.get(&field) else { return };
        for (gate, group, on) in gates::set_by_groups(gates, minor) {
            let origin = self.origins.get(&vec![field.clone(), group.to_owned()]).cloned().unwrap_or(Origin::Default);
            let path = vec![field.clone(), gate.to_owned()];
            self.set(&origin, &Setting { flag: "feature-gates", path, value: on.into() });
        }
    }

    /// Notes who set what of `laid`, which is laid over `below`; if `changes` alone count, where the two differ.
    fn note(&mut self, path: &mut Vec<String>, below: Option<&Value>, laid: &Value, origin: &Origin, changes: bool) {
        if changes && below == Some(laid) {
            return;
        }
        let inner = below.and_then(Value::as_object);
        match (laid, inner) {
            (Value::Null, _) => self.forget(path),
            // It takes nothing out of the mapping that is there.
            (Value::Object(entries), Some(_)) if entries.is_empty() => {}
            (Value::Object(entries), _) if !entries.is_empty() => {
                match inner {
                    Some(_) => drop(self.origins.remove(path)), // it may have been empty
                    None => self.forget(path),
                }
                for (name, value) in entries {
                    path.push(name.clone());
                    self.note(path, inner.and_then(|inner| inner.get(name)), value, origin, changes);
                    path.pop();
                }
            }
            _ => {
                self.forget(path);
                self.origins.insert(path.clone(), origin.clone());
            }
        }
    }

    fn forget(&mut self, path: &[String]) {
        self.origins.retain(|known, _| !known.starts_with(path));
    }

    fn fields(&self) -> impl Iterator<Item = Field> {
        leaves(&self.value).into_iter().filter_map(|(path, value)| {
            let origin = self.origins.get(&path).cloned().unwrap_or(Origin::Default);
            let is_unset = origin == Origin::Default && (*value == "" || value.is_object());
            (!is_unset).then(|| Field { path: path.join("."), value: value.clone(), origin })
        })
    }
}

mod drop_ins;
#[cfg(test)]
mod tests;
