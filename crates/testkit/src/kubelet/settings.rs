//! Where the stand-in learns its style and journal from, and the tests' side of the same: installing it, reading
//! what it wrote.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::style::Style;
use crate::built::copy_program;

/// From `<executable>.env`: lines of KEY=VALUE, such as `STAND_IN_STYLE=1.36`.
#[derive(Default)]
pub struct Settings {
    pub style: Style,
    pub journal: Option<PathBuf>,
    /// It renews its Lease and posts its Node, through the API server in its kubeconfig.
    pub reports: bool,
    /// It passes every preflight and dies at every start.
    pub broken: bool,
    /// It tries what it may, and notes that.
    pub confinement: bool,
    /// It goes on without waiting for its lock file.
    pub ignores_lock: bool,
    /// A feature gate that this version has lost.
    pub lost_gate: Option<String>,
}

impl Settings {
    /// Looks beside the name that it was started by, then beside the file that it really is: a test may have put a
    /// symbolic link where the kubelet belongs.
    pub fn find(argv0: &str) -> Settings {
        let own_file = std::fs::read_link("/proc/self/exe").unwrap_or_default();
        let side_file = [PathBuf::from(argv0), own_file].into_iter().find_map(|executable| {
            let mut path = executable.into_os_string();
            path.push(".env");
            std::fs::read_to_string(path).ok()
        });
        let side_file = side_file.unwrap_or_default();
        let lines: HashMap<&str, &str> = side_file.lines().filter_map(|line| line.trim().split_once('=')).collect();
        let get = |key| lines.get(key).map(|value| (*value).to_owned());
        Settings {
            style: get("STAND_IN_STYLE").map_or(Style::V1_20, |name: String| Style::named(&name)),
            journal: get("STAND_IN_JOURNAL").map(PathBuf::from),
            reports: get("STAND_IN_REPORTS").is_some(),
            broken: get("STAND_IN_BROKEN").is_some(),
            confinement: get("STAND_IN_CONFINEMENT").is_some(),
            ignores_lock: get("STAND_IN_IGNORES_LOCK").is_some(),
            lost_gate: get("STAND_IN_LOST_GATE"),
        }
    }

    /// One line, one write: starts that overlap do not tear each other's lines.
    pub(super) fn note(journal: Option<&Path>, entry: &Value) {
        let Some(path) = journal else { return };
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        let _ = file.and_then(|mut file| file.write_all(format!("{entry}\n").as_bytes()));
    }
}

/// A stand-in kubelet in a test's own directory.
pub struct Installed {
    pub path: PathBuf,
    pub journal: PathBuf,
}

/// Puts `executable` into `dir` as `kubelet`, with its settings beside it. Find the executable that cargo built
/// with [`Installed::built`].
pub fn install(executable: &Path, dir: &Path, style: Style) -> Installed {
    let path = dir.join("kubelet");
    // A hard link if possible, which costs nothing.
    if std::fs::hard_link(executable, &path).is_err() {
        copy_program(executable, &path);
    }
    let installed = Installed { path, journal: dir.join("kubelet.journal") };
    installed.set_style(style);
    installed
}

impl Installed {
    /// The executable that cargo built.
    pub fn built() -> PathBuf {
        crate::built::program("stand-in-kubelet")
    }

    /// Another file takes its place, as in an upgrade.
    pub fn replace(&self) {
        let new = self.path.with_extension("new");
        copy_program(&self.path, &new);
        std::fs::rename(&new, &self.path).expect("rename the stand-in kubelet");
    }

    /// From its next start on it is a kubelet of this version.
    pub fn set_style(&self, style: Style) {
        let text = format!("STAND_IN_STYLE={}\nSTAND_IN_JOURNAL={}\n", style.name(), self.journal.display());
        std::fs::write(self.path.with_extension("env"), text).expect("write kubelet.env");
    }

    /// From its next start on it has this setting as well, until its style is set anew.
    pub fn set(&self, setting: &str) {
        let path = self.path.with_extension("env");
        let text = std::fs::read_to_string(&path).expect("read kubelet.env");
        std::fs::write(path, format!("{text}{setting}\n")).expect("write kubelet.env");
    }

    /// Every line of the journal so far.
    pub fn entries(&self) -> Vec<Value> {
        let text = match std::fs::read_to_string(&self.journal) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{}: {error}", self.journal.display()),
            read => read.unwrap_or_default(),
        };
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The real starts so far, preflights not counted.
    pub fn starts(&self) -> Vec<Value> {
        self.entries().into_iter().filter(|e| e["event"] == "start" && e["preflight"] == false).collect()
    }

    /// Those that found a standby, and those that ended.
    pub fn preflights(&self) -> Vec<Value> {
        self.entries().into_iter().filter(|e| e["event"] == "start" && e["preflight"] == true).collect()
    }

    /// Blocks until `look` finds something in the journal. This one polls: nix's `inotify` is not among the
    /// crate's features.
    pub fn wait<T>(&self, timeout: Duration, look: impl Fn(&[Value]) -> Option<T>) -> Result<T, String> {
        let deadline = Instant::now() + timeout;
        loop {
            let entries = self.entries();
            if let Some(found) = look(&entries) {
                return Ok(found);
            }
            if Instant::now() >= deadline {
                let lines: Vec<String> = entries.iter().map(Value::to_string).collect();
                return Err(format!("not within {timeout:?}; the kubelet's journal:\n{}", lines.join("\n")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
