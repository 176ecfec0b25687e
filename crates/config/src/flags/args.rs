//! A kubelet's arguments: read, and put together again for a run or a preflight.

use std::ops::Range;

use serde_json::Value;

use super::overrides::FlagOverrides;
use super::table;
use crate::hazard;
use crate::strconv::boolean;

/// The gate of native dynamic configuration: locked in kubelets v1.24, unknown to later ones
/// (pkg/features/kube_features.go). It means nothing without `--dynamic-config-dir`.
pub(crate) const NATIVE_GATE: &str = "DynamicKubeletConfig";

/// The `--lock-file` of a standby kubelet: its standard input, whoever opened that.
const STANDBY_LOCK: &str = "--lock-file=/proc/self/fd/0";

/// A parsed command line, without the program itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeletArgs {
    args: Vec<String>,
    pub(super) flags: Vec<Flag>,
    /// Index in `args` where further flags may be inserted: before a `--`, else at the end.
    end: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flag {
    pub(super) name: String,
    pub(super) value: Option<String>,
    at: Range<usize>,
}

/// What becomes of the unit's `--config-dir`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ConfigDir {
    /// It stays as it is.
    #[default]
    Unit,
    /// It is taken out: there is no drop-in.
    Removed,
    /// Copies of its drop-ins lie in this directory.
    Copied(String),
}

impl KubeletArgs {
    /// Reads `args`; never fails, the kubelet judges its own command line.
    #[must_use]
    pub fn parse(args: &[String]) -> Self {
        let mut flags = Vec::new();
        let mut index = args.iter().take_while(|arg| !arg.starts_with('-')).count();
        let mut end = args.len();
        while let Some(arg) = args.get(index) {
            if arg == "--" {
                end = index;
                break;
            }
            let start = index;
            index += 1;
            let (name, mut value) = match (arg.strip_prefix("--"), arg.strip_prefix("-v")) {
                (Some(body), _) => match body.split_once('=') {
                    Some((name, value)) => (name, Some(value.to_owned())),
                    None => (body, None),
                },
                // The only shorthand with a value: `-v2`, `-v=2`, `-v 2`.
                (None, Some("")) => ("v", None),
                (None, Some(level)) => ("v", Some(level.trim_start_matches('=').to_owned())),
                (None, None) => continue,
            };
            let name = name.replace('_', "-");
            if value.is_none() && !table::is_boolean(&name) {
                value = args.get(index).cloned();
                index += 1;
            }
            let at = start..index.min(args.len());
            if name == "feature-gates" {
                value = value.map(|gates| without_native_gate(&gates));
            }
            flags.push(Flag { name, value, at });
        }
        Self { args: args.to_vec(), flags, end }
    }

    /// The arguments as given.
    #[must_use]
    pub fn as_slice(&self) -> &[String] {
        &self.args
    }

    /// The value in force of a scalar flag; an empty value is unset, as in the kubelet.
    #[must_use]
    pub fn last(&self, name: &str) -> Option<&str> {
        let flag = self.flags.iter().rev().find(|flag| flag.name == name)?;
        flag.value.as_deref().filter(|value| !value.is_empty())
    }

    /// The socket of the container runtime, where command line and configuration name one. A kubelet
    /// with the built-in dockershim (v1.20: `--container-runtime=docker`, the default) has none.
    #[must_use]
    pub fn runtime_socket(&self, effective: &Value, minor: Option<u64>) -> Option<String> {
        if self.last("container-runtime").is_some_and(|kind| kind != "remote") {
            return None;
        }
        // Since it is a field, v1.27, it has a default.
        let field = match minor {
            Some(27..) => hazard::effective(effective, "containerRuntimeEndpoint"),
            _ => effective.get("containerRuntimeEndpoint").cloned().unwrap_or_default(),
        };
        let socket = self.last("container-runtime-endpoint").or(field.as_str());
        socket.filter(|socket| !socket.is_empty()).map(str::to_owned)
    }

    /// True if the flag stands on the command line, with whatever value.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.flags.iter().any(|flag| flag.name == name)
    }

    /// True if hard eviction thresholds are not kept from what pods may request: a flag without a field
    /// (cmd/kubelet/app/options/options.go, v1.20.2 to v1.36).
    #[must_use]
    pub fn ignores_eviction(&self) -> bool {
        let flag = self.flags.iter().rev().find(|flag| flag.name == "experimental-allocatable-ignore-eviction");
        flag.is_some_and(|flag| boolean(flag.value.as_deref().unwrap_or("true")) == Some(true))
    }

    /// This command line with a source's flags.
    #[must_use]
    pub fn with(&self, overrides: &FlagOverrides) -> Self {
        Self::parse(&self.rebuild(&overrides.removed(), &overrides.added()))
    }

    /// Remarks on what a source's flags do to this command line.
    pub(crate) fn remarks(&self, overrides: &FlagOverrides) -> Vec<String> {
        let mut notes = Vec::new();
        for name in overrides.removed().iter().filter(|name| !self.has(name)) {
            notes.push(format!("!--{name} of the source has no effect: the unit has no such flag"));
        }
        let stays = |name: &&&str| self.has(name) && !overrides.removed().contains(*name);
        for name in overrides.lists().iter().filter(stays) {
            notes.push(format!("--{name} of the source adds to the unit's own; !--{name} takes that out"));
        }
        notes
    }

    /// The arguments for a real run: `--dynamic-config-dir` and `DynamicKubeletConfig` stripped, which later
    /// kubelets refuse, and `--config` replaced.
    ///
    /// `config: None` leaves the kubelet's own `--config` as it was given.
    #[must_use]
    pub fn for_run(&self, config: Option<&str>, config_dir: &ConfigDir) -> Vec<String> {
        self.with_files(config, config_dir, &[])
    }

    /// True if the unit has no use of its own for the lock file, with which a kubelet can be kept waiting.
    #[must_use]
    pub fn can_stand_by(&self) -> bool {
        !self.has("lock-file") && !self.has("exit-on-lock-contention")
    }

    /// These arguments of a run, for a kubelet that first waits for the lock on its standard input: after validation, before it
    /// touches anything (v1.20 and v1.36, cmd/kubelet/app/server.go).
    #[must_use]
    pub fn for_standby(run: &[String]) -> Vec<String> {
        let mut args = run.to_vec();
        let end = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
        args.insert(end, STANDBY_LOCK.to_owned());
        args
    }

    /// The arguments with which it is found out whether the kubelet waits for such a lock: the unit's own configuration, and
    /// throw-away certificates.
    #[must_use]
    pub fn for_standby_test(&self, cert_dir: &str) -> Vec<String> {
        let extra = [format!("--cert-dir={cert_dir}"), STANDBY_LOCK.to_owned(), "--v=0".to_owned()];
        self.with_files(None, &ConfigDir::Unit, &extra)
    }

    fn with_files(&self, config: Option<&str>, config_dir: &ConfigDir, extra: &[String]) -> Vec<String> {
        let (mut without, mut added) = (vec!["dynamic-config-dir"], Vec::new());
        if let Some(path) = config {
            without.push("config");
            added.push(format!("--config={path}"));
        }
        if *config_dir != ConfigDir::Unit {
            without.push("config-dir");
        }
        if let ConfigDir::Copied(dir) = config_dir {
            added.push(format!("--config-dir={dir}"));
        }
        added.extend_from_slice(extra);
        self.rebuild(&without, &added)
    }

    /// The arguments of a preflight: those of a real run, plus the ones that make the kubelet
    /// leave after validation, before it touches anything.
    #[must_use]
    pub fn for_preflight(&self, config: Option<&str>, config_dir: &ConfigDir, cert_dir: &str) -> Vec<String> {
        let mut extra = vec![
            format!("--cert-dir={cert_dir}"),
            "--exit-on-lock-contention=true".to_owned(),
            "--lock-file=".to_owned(),
            "--v=0".to_owned(),
        ];
        if self.has("log-dir") || self.has("log-file") || self.has("logtostderr") {
            // Only then: the flag is gone from later kubelets.
            extra.push("--logtostderr=true".to_owned());
        }
        self.with_files(config, config_dir, &extra)
    }

    fn rebuild(&self, without: &[&str], extra: &[String]) -> Vec<String> {
        let kept = |range: Range<usize>| {
            let args = self.args.iter().enumerate().skip(range.start).take(range.len());
            args.filter_map(|(index, arg)| self.kept(index, arg, without)).collect::<Vec<_>>()
        };
        let mut args = kept(0..self.end);
        args.extend_from_slice(extra);
        args.extend(kept(self.end..self.args.len()));
        args
    }

    /// The argument as it is handed on, if it is.
    fn kept(&self, index: usize, arg: &str, without: &[&str]) -> Option<String> {
        let Some(flag) = self.flags.iter().find(|flag| flag.at.contains(&index)) else { return Some(arg.to_owned()) };
        if without.contains(&flag.name.as_str()) {
            return None;
        }
        let Some(gates) = flag.value.as_deref().filter(|_| flag.name == "feature-gates") else {
            return Some(arg.to_owned());
        };
        let last = index + 1 == flag.at.end;
        let given = match arg.split_once('=') {
            Some((_, given)) if flag.at.len() == 1 => given,
            _ if last => arg,
            _ => self.args.get(index + 1)?,
        };
        if given == gates {
            return Some(arg.to_owned());
        }
        // Nothing is left of a flag that named no other gate.
        match (gates.is_empty(), last) {
            (true, _) => None,
            (false, true) => Some(arg.replace(given, gates)),
            (false, false) => Some(arg.to_owned()),
        }
    }
}

/// `A=true,B=false` without [`NATIVE_GATE`], split and trimmed as by MapStringBool (component-base
/// cli/flag/map_string_bool.go, v1.20.2 and v1.36); untouched if it does not name that gate.
fn without_native_gate(gates: &str) -> String {
    let is_native = |pair: &&str| pair.split('=').next().is_some_and(|name| name.trim() == NATIVE_GATE);
    if !gates.split(',').any(|pair| is_native(&pair)) {
        return gates.to_owned();
    }
    let kept: Vec<&str> = gates.split(',').filter(|pair| !is_native(pair) && !pair.trim().is_empty()).collect();
    kept.join(",")
}
