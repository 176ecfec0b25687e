//! A stand-in kubelet: it loads, validates and dies the way the real one does, and does nothing else.
//!
//! The order of the steps in [`run`] is the real one's, because the supervisor's verdicts depend on it: parse,
//! load, validate, write the serving certificate, look at the lock file, start, open healthz, say READY. Texts and
//! exit codes are those of 1.20.2 or of 1.36.2, see [`Style`]. While it waits for a lock file it is noted as a preflight, a
//! standby; it has started once it has the lock. Not imitated: inotify on a lock file, reading anything but the first YAML document, every validation rule but a handful.
//!
//! Tests steer it by a field that no kubelet has, `standIn` (see [`life::Knobs`]), and by settings that come from
//! the environment or, since a preflight has an empty one, from a file beside the executable (see [`Settings`]).

mod config;
mod confinement;
mod contact;
mod flags;
mod life;
mod notify;
mod settings;
mod style;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

pub use settings::{Installed, Settings, install};
pub use style::Style;

use flags::{Flags, Parsed};
use life::Knobs;
use style::{Kubelet, Stage, Start};

/// What the lock file check says when the recipe of a preflight (an empty `--lock-file`) brings it here.
const NO_LOCK_FILE: &str = "failed to run Kubelet: cannot exit on lock file contention: no lock file specified";

/// The whole program. `args` includes the executable's name.
pub fn run(args: Vec<OsString>) -> ! {
    let args: Vec<String> = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let settings = Settings::find(args.first().map_or("", String::as_str));
    let mut kubelet = Kubelet::new(&settings);
    // A multi-call binary, as OpenShift and old Google images have it: `hyperkube kubelet …`.
    let is_hyperkube = args.first().is_some_and(|program| program.ends_with("hyperkube"));
    let begin = if is_hyperkube && args.get(1).is_some_and(|word| word == "kubelet") { 2 } else { 1 };
    let args = args.get(begin..).unwrap_or_default();

    let flags = match flags::parse(args, kubelet.style) {
        Ok(Parsed::Run(flags)) => flags,
        Ok(Parsed::Version) => {
            println!("Kubernetes {}", kubelet.style.version());
            std::process::exit(0);
        }
        Ok(Parsed::Help) => {
            println!("{}", flags::USAGE);
            std::process::exit(0);
        }
        Err(error) => {
            let judges = ["--exit-on-lock-contention", "--lock-file=/proc/"];
            let preflight = args.iter().any(|arg| judges.iter().any(|flag| arg.starts_with(flag)));
            kubelet.started(args, None, Start::new(preflight), &Value::Null);
            if kubelet.style == Style::V1_20 {
                eprintln!("{}", flags::USAGE);
            }
            kubelet.die(error.stage, &error.text);
        }
    };
    if settings.confinement {
        kubelet.note(confinement::tried());
    }
    let lock = flags.get("lock-file").filter(|path| !path.is_empty() && !settings.ignores_lock);
    let preflight = flags.bool("exit-on-lock-contention") && lock.is_none();
    let judges = if lock.is_some() { Start::Standby } else { Start::new(preflight) };
    let path = flags.get("config").filter(|path| !path.is_empty()).map(absolute);

    let loaded = path.as_ref().map_or_else(|| Ok(config::Loaded::default()), |path| config::load(path, kubelet.style));
    let seen = loaded.as_ref().map_or(&Value::Null, |loaded| &loaded.original);
    kubelet.started(args, path.as_deref(), judges, seen);
    let seen = seen.clone();

    if let Some(gate) = flags.gates().find(|gate| !kubelet.has_gate(gate)) {
        kubelet.die(Stage::FlagGates, &format!("unrecognized feature gate: {gate}"));
    }
    let mut loaded = loaded.unwrap_or_else(|text| kubelet.die(Stage::Load(shown(path.as_deref())), &text));
    if let Some(dir) = flags.get("config-dir").filter(|dir| !dir.is_empty()) {
        loaded.merge_drop_ins(Path::new(dir)).unwrap_or_else(|text| kubelet.die(Stage::DropIns, &text));
        kubelet.note(json!({"event": "merged", "pid": std::process::id(), "config": loaded.merged()}));
    }
    if let Some(warning) = &loaded.lenient {
        kubelet.warn_lenient(warning);
    }
    let knobs = Knobs::read(&loaded.knobs);
    std::thread::sleep(knobs.load_delay);
    if judges != Start::Run {
        misbehave(&mut kubelet, &knobs);
    }
    let base = path.as_deref().and_then(Path::parent).map(Path::to_owned).unwrap_or_default();
    let config = config::Effective::new(loaded, &flags, base);
    judge(&mut kubelet, &config, &flags);

    life::catch_signals(&kubelet, &knobs);
    kubelet.info("server.go:416", &format!("Version: {}", kubelet.style.version()));
    if kubelet.style == Style::V1_36
        && let Err(error) = notify::start_watchdog(&knobs)
    {
        kubelet.die(Stage::Run, &format!("failed to run Kubelet: create health checker: configure watchdog: {error}"));
    }
    if preflight {
        kubelet.die(Stage::Run, NO_LOCK_FILE);
    }
    let _lock = lock.map(|path| life::wait_for_lock(&kubelet, path));
    if judges == Start::Standby {
        kubelet.started(args, path.as_deref(), Start::Run, &seen);
    }
    if settings.broken {
        let why = "the node is broken, whatever the configuration";
        kubelet.die(Stage::Run, &format!("failed to run Kubelet: {why}"));
    }
    life::live(kubelet, &config, &flags, &knobs, settings.reports)
}

/// Everything between a loaded file and a kubelet that may run.
fn judge(kubelet: &mut Kubelet, config: &config::Effective, flags: &Flags) {
    let json_logs = config.string("/logging/format") == Some("json");
    if kubelet.style == Style::V1_36 {
        // Gates panic while the file's defaults are filled in, and logging is set up before validation.
        if let Some(gate) = config.gates().find(|gate| !kubelet.has_gate(gate)) {
            kubelet.panic_over(&format!("unrecognized feature gate: {gate}"));
        }
        if let Some(format) = config.bad_log_format() {
            let text = format!("format: Invalid value: {format:?}: Unsupported log format");
            kubelet.die(Stage::Logging, &text);
        }
        kubelet.json_logs = json_logs;
    } else if let Some(gate) = config.gates().find(|gate| !kubelet.has_gate(gate)) {
        kubelet.die(Stage::FileGates, &format!("unrecognized feature gate: {gate}"));
    }
    if let Some(text) = config.validate(kubelet.style) {
        kubelet.die(Stage::Validate, &text);
    }
    if let Err(text) = write_serving_certificate(flags) {
        kubelet.die(Stage::Dependencies, &text);
    }
    if kubelet.style == Style::V1_20 {
        if let Some(text) = config.client_ca_error() {
            kubelet.die(Stage::Dependencies, &text);
        }
        kubelet.json_logs = json_logs;
    }
}

/// Preflights that no verdict can be read from, or hardly.
fn misbehave(kubelet: &mut Kubelet, knobs: &Knobs) {
    match knobs.preflight.as_deref() {
        Some("hang") => life::park(),
        Some("exit0") => kubelet.exit(0),
        Some("nonutf8") => style::write_raw(b"W1121 03:24:02.000000 1 codec.go:73] \xff\xfe\x00 bytes \xc3\x28\n"),
        // As no kubelet does that is known.
        Some("unheard") => kubelet.die_later(1, ["server.go:1", "server.go:1"], "Kubelet stays away", "a full moon"),
        // As 1.24.0 to 1.24.3 are reported to do.
        Some("silent") => kubelet.silent = true,
        _ => {}
    }
}

/// Keeps an existing pair, as the real one does. What is in it matters to nobody here.
fn write_serving_certificate(flags: &Flags) -> Result<(), String> {
    let dir = PathBuf::from(flags.get("cert-dir").unwrap_or("/var/lib/kubelet/pki"));
    std::fs::create_dir_all(&dir).map_err(|error| format!("mkdir {}: {}", dir.display(), style::go_error(&error)))?;
    for (name, kind) in [("kubelet.crt", "CERTIFICATE"), ("kubelet.key", "RSA PRIVATE KEY")] {
        let path = dir.join(name);
        if !path.exists() {
            let text = format!("-----BEGIN {kind}-----\nc3RhbmQtaW4=\n-----END {kind}-----\n");
            std::fs::write(&path, text)
                .map_err(|error| format!("open {}: {}", path.display(), style::go_error(&error)))?;
        }
    }
    Ok(())
}

fn absolute(path: &str) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path))
}

fn shown(path: Option<&Path>) -> String {
    path.map(|path| path.display().to_string()).unwrap_or_default()
}
