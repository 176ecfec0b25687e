//! A unit's files and properties: what is in force after drop-ins and resets.

use std::collections::BTreeMap;
use std::time::Duration;

/// The drop-in's name: behind kubeadm's `10-kubeadm.conf`, what installers number, and the `override.conf` of `systemctl edit`.
pub(crate) const DROP_IN: &str = "zz-kubelet-supervisor.conf";

/// A file of a unit: the unit itself, then its drop-ins in the order systemd applies them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitFile {
    /// Its path, by which an earlier drop-in of ours is known.
    pub path: String,
    /// Its content.
    pub text: String,
}

/// Path of the drop-in for a unit.
pub(crate) fn drop_in_path(unit: &str) -> String {
    format!("/etc/systemd/system/{unit}.d/{DROP_IN}")
}

/// A unit's name with its suffix.
///
/// # Errors
/// If it is no name of a service: it becomes part of a path.
pub(crate) fn unit_name(name: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    let name = if name.ends_with(".service") { name.to_owned() } else { format!("{name}.service") };
    if name.starts_with('.') || name.len() > 255 || !name.chars().all(allowed) {
        return Err(format!("{name:?} is not the name of a service, such as kubelet.service"));
    }
    Ok(name)
}

/// What systemd says of a unit (`systemctl show`), by property.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties(BTreeMap<String, String>);

impl Properties {
    /// Reads `Key=Value` lines; of a key that comes more than once the last one counts, but there may be many
    /// `EnvironmentFiles`: a line for each.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut found = BTreeMap::<String, String>::new();
        for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
            let known = found.entry(key.to_owned()).or_default();
            if key != "EnvironmentFiles" {
                known.clear();
            } else if !known.is_empty() {
                known.push('\n');
            }
            known.push_str(value.trim());
        }
        Self(found)
    }

    /// A property, empty if it was not given.
    pub(crate) fn get(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
    }

    /// The unit's files, the unit itself first.
    pub(crate) fn paths(&self) -> Vec<String> {
        let fragment = Some(self.get("FragmentPath")).filter(|path| !path.is_empty());
        fragment.into_iter().chain(self.get("DropInPaths").split_whitespace()).map(str::to_owned).collect()
    }

    /// The program and the arguments of `ExecStart`, as systemd will run them: specifiers expanded,
    /// quotes gone.
    pub(crate) fn exec_start(&self) -> Option<(&str, &str)> {
        let rest = self.get("ExecStart").split_once("path=")?.1;
        let (path, rest) = rest.split_once(" ; argv[]=")?;
        let (argv, _) = rest.split_once(" ; ignore_errors=")?;
        Some((path, argv))
    }

    /// True if `ExecStart` has this supervisor, at once or behind launchers.
    pub(crate) fn starts(&self, supervisor: &str) -> bool {
        self.exec_start().is_some_and(|(_, argv)| argv.contains(&format!("{supervisor} run ")))
    }
}

/// A time span as systemd prints and reads them: `1min 30s`, `100ms`, `5`. None: no limit, or not
/// one.
pub(crate) fn span(text: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, tail) = rest.split_at_checked(digits)?;
        let tail = tail.trim_start();
        let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at_checked(letters)?;
        let micros: u64 = match unit {
            "us" | "usec" => 1,
            "ms" | "msec" => 1_000,
            "" | "s" | "sec" | "second" | "seconds" => 1_000_000,
            "m" | "min" | "minute" | "minutes" => 60_000_000,
            "h" | "hr" | "hour" | "hours" => 3_600_000_000,
            "d" | "day" | "days" => 86_400_000_000,
            _ => return None,
        };
        total += Duration::from_micros(number.parse::<u64>().ok()?.saturating_mul(micros));
        rest = tail.trim_start();
    }
    Some(total)
}

/// One assignment in a `[Service]` section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting<'a> {
    pub(super) key: String,
    pub(super) value: String,
    pub(super) file: &'a str,
}

/// All `[Service]` sections of a unit, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Service<'a>(pub(super) Vec<Setting<'a>>);

impl<'a> Service<'a> {
    pub(super) fn read(files: impl IntoIterator<Item = &'a UnitFile>) -> Self {
        let mut settings = Vec::new();
        for file in files {
            let mut within = false;
            for line in logical_lines(&file.text) {
                if let Some(section) = line.strip_prefix('[') {
                    within = section.trim_end() == "Service]";
                } else if let Some((key, value)) = line.split_once('=').filter(|_| within) {
                    let (key, value) = (key.trim().to_owned(), value.trim().to_owned());
                    settings.push(Setting { key, value, file: &file.path });
                }
            }
        }
        Self(settings)
    }

    /// What a list holds after its resets.
    pub(super) fn list(&self, key: &str) -> Vec<&Setting<'a>> {
        let mut found = Vec::new();
        for setting in self.0.iter().filter(|setting| setting.key == key) {
            if setting.value.is_empty() {
                found.clear();
            } else {
                found.push(setting);
            }
        }
        found
    }

    /// The value in force; an empty one is the default.
    pub(super) fn last(&self, key: &str) -> Option<&str> {
        let setting = self.0.iter().rev().find(|setting| setting.key == key)?;
        Some(setting.value.as_str()).filter(|value| !value.is_empty())
    }
}

/// Lines with their continuations, without comments and empty ones.
pub(super) fn logical_lines(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open: Option<String> = None;
    for line in text.lines() {
        let line = line.trim_start();
        if line.starts_with(['#', ';']) {
            continue;
        }
        let mut whole = open.take().unwrap_or_default() + line;
        // An escaped backslash at the end is one, not a continuation.
        let escapes = whole.chars().rev().take_while(|c| *c == '\\').count();
        if escapes % 2 == 1 {
            whole.pop();
            // One blank is enough; within quotes systemd would keep as many as there are.
            if !whole.ends_with(' ') {
                whole.push(' ');
            }
            open = Some(whole);
        } else if !whole.trim().is_empty() {
            found.push(whole);
        }
    }
    found.extend(open.filter(|line| !line.trim().is_empty()));
    found
}
