//! How the kubelets of two ages talk and die.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::config;
use super::settings::Settings;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    #[default]
    V1_20,
    V1_36,
}

impl Style {
    pub fn named(name: &str) -> Style {
        if name == "1.36" { Style::V1_36 } else { Style::V1_20 }
    }

    pub fn name(self) -> &'static str {
        match self {
            Style::V1_20 => "1.20",
            Style::V1_36 => "1.36",
        }
    }

    pub fn version(self) -> &'static str {
        match self {
            Style::V1_20 => "v1.20.2",
            Style::V1_36 => "v1.36.2",
        }
    }

    /// klog.Fatal, or cobra.
    pub fn failure_code(self) -> i32 {
        match self {
            Style::V1_20 => 255,
            Style::V1_36 => 1,
        }
    }
}

/// Where a start can end: the line that 1.20 logs it from, the words that 1.36 wraps it in.
pub enum Stage {
    FlagParse,
    Positional,
    FlagGates,
    /// With the path of the file.
    Load(String),
    DropIns,
    FileGates,
    Logging,
    Validate,
    Dependencies,
    Run,
}

impl Stage {
    fn line(&self) -> &'static str {
        match self {
            Stage::FlagParse => "server.go:158",
            Stage::Positional => "server.go:165",
            Stage::FlagGates => "server.go:182",
            Stage::Load(_) | Stage::DropIns => "server.go:198",
            Stage::FileGates => "server.go:208",
            Stage::Logging | Stage::Validate => "server.go:215",
            Stage::Dependencies => "server.go:257",
            Stage::Run => "server.go:269",
        }
    }

    fn wrap(&self, text: &str) -> String {
        match self {
            Stage::FlagParse => format!("failed to parse kubelet flag: {text}"),
            Stage::FlagGates => format!("failed to set feature gates from initial flags-based config: {text}"),
            Stage::Load(path) => format!("failed to load kubelet config file, path: {path}, error: {text}"),
            Stage::DropIns => format!("failed to merge kubelet configs: {text}"),
            Stage::Logging => format!("initialize logging: {text}"),
            // The path is the real one's: it formats a struct with %s.
            Stage::Validate => {
                format!(
                    "failed to validate kubelet configuration, error: {text}, path: &TypeMeta{{Kind:,APIVersion:,}}"
                )
            }
            Stage::Dependencies => format!("failed to construct kubelet dependencies: {text}"),
            Stage::Positional | Stage::FileGates | Stage::Run => text.to_owned(),
        }
    }
}

/// What a process is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Preflight,
    /// A preflight that waits for its lock file, and then runs.
    Standby,
    Run,
}

impl Start {
    pub fn new(preflight: bool) -> Start {
        if preflight { Start::Preflight } else { Start::Run }
    }
}

/// The process, as far as it talks.
#[derive(Clone)]
pub struct Kubelet {
    pub style: Style,
    pub json_logs: bool,
    /// Dies without a word.
    pub silent: bool,
    lost_gate: Option<String>,
    journal: Option<PathBuf>,
}

impl Kubelet {
    pub fn new(settings: &Settings) -> Kubelet {
        let (style, journal) = (settings.style, settings.journal.clone());
        Kubelet { style, json_logs: false, silent: false, lost_gate: settings.lost_gate.clone(), journal }
    }

    /// Whether this version knows the gate.
    pub fn has_gate(&self, gate: &str) -> bool {
        self.lost_gate.as_deref() != Some(gate) && config::is_gate(gate, self.style)
    }

    pub fn started(&self, args: &[String], config: Option<&Path>, start: Start, content: &Value) {
        self.note(json!({"event": "start", "pid": std::process::id(), "args": args, "config": config,
            "preflight": start != Start::Run, "standby": start == Start::Standby, "configJson": content}));
    }

    pub fn note(&self, entry: Value) {
        Settings::note(self.journal.as_deref(), &entry);
    }

    pub fn info(&self, line: &str, text: &str) {
        self.log('I', line, text);
    }

    /// The end, in the words of the version.
    pub fn die(&self, stage: Stage, text: &str) -> ! {
        match self.style {
            Style::V1_20 => self.fatal(stage.line(), text),
            Style::V1_36 => self.log_error("run.go:72", "command failed", &stage.wrap(text)),
        }
        self.exit(self.style.failure_code())
    }

    /// The end by another goroutine, some time after the start.
    pub fn die_later(&self, code: i32, line: [&str; 2], message: &str, error: &str) -> ! {
        match self.style {
            Style::V1_20 => self.fatal(line[0], &format!("{message} {error}")),
            Style::V1_36 => self.log_error(line[1], message, error),
        }
        self.exit(code)
    }

    /// What defaulting does with a gate it does not know, since 1.32.
    pub fn panic_over(&self, error: &str) -> ! {
        if !self.silent {
            eprintln!(
                "panic: failed to merge global and in-flight KubeletConfiguration while setting defaults, error: {error}\n"
            );
            dump_goroutines();
        }
        self.exit(2)
    }

    pub fn warn_lenient(&self, strict_error: &str) {
        match self.style {
            Style::V1_20 => self.log(
                'W',
                "codec.go:73",
                &format!("using lenient decoding as strict decoding failed: {strict_error}"),
            ),
            Style::V1_36 => {
                let text = format!("\"Using lenient decoding as strict decoding failed\" err={strict_error:?}");
                self.log('I', "codec.go:104", &text);
            }
        }
    }

    pub fn exit(&self, code: i32) -> ! {
        // A signal may come while another thread is dying already: the first one wins, and is noted alone.
        static LEAVING: AtomicBool = AtomicBool::new(false);
        if LEAVING.swap(true, Ordering::SeqCst) {
            super::life::park();
        }
        self.note(json!({"event": "exit", "pid": std::process::id(), "code": code}));
        std::process::exit(code)
    }

    fn fatal(&self, line: &str, text: &str) {
        if self.silent {
            return;
        }
        if self.json_logs {
            eprintln!("{}", json!({"ts": timestamp(), "msg": format!("{text}\n"), "v": 0}));
        } else {
            self.log('F', line, text);
        }
        dump_goroutines();
    }

    fn log_error(&self, line: &str, message: &str, error: &str) {
        if self.silent {
            return;
        }
        if self.json_logs {
            eprintln!("{}", json!({"ts": timestamp(), "caller": line, "msg": message, "err": error}));
        } else {
            self.log('E', line, &format!("{message:?} err={error:?}"));
        }
    }

    pub fn log(&self, severity: char, line: &str, text: &str) {
        if self.json_logs {
            eprintln!("{}", json!({"ts": timestamp(), "caller": line, "msg": text, "v": 0}));
            return;
        }
        let time = jiff::Timestamp::now().strftime("%m%d %H:%M:%S%.6f").to_string();
        // klog writes a line at once; eprintln! would do it in pieces.
        write_raw(format!("{severity}{time} {:>7} {line}] {text}\n", std::process::id()).as_bytes());
    }
}

fn timestamp() -> f64 {
    jiff::Timestamp::now().as_microsecond() as f64 / 1000.0
}

/// The ~60 lines that follow every klog.Fatal, so that whoever looks for the reason at the end looks in vain.
fn dump_goroutines() {
    let mut text = String::from(
        "goroutine 1 [running]:\nk8s.io/kubernetes/vendor/k8s.io/klog/v2.stacks(0xc000128001, 0xc0003a0000, 0x7b, 0x1d3)\n\
         \t/build/vendor/k8s.io/klog/v2/klog.go:1026 +0xb9\n\
         k8s.io/kubernetes/cmd/kubelet/app.NewKubeletCommand.func1(0xc000446000, 0xc000122010, 0x7, 0x7)\n\
         \t/build/cmd/kubelet/app/server.go:269 +0x845\nmain.main()\n\t_output/local/go/src/k8s.io/kubernetes/cmd/kubelet/kubelet.go:41 +0xe5\n\n",
    );
    for goroutine in [6, 18, 33, 49, 50, 71, 72, 90, 91, 113] {
        text.push_str(&format!(
            "goroutine {goroutine} [chan receive]:\nk8s.io/kubernetes/vendor/k8s.io/klog/v2.(*loggingT).flushDaemon(0x6f1e0a0)\n\
             \t/build/vendor/k8s.io/klog/v2/klog.go:1169 +0x8b\ncreated by k8s.io/kubernetes/vendor/k8s.io/klog/v2.init.0\n\
             \t/build/vendor/k8s.io/klog/v2/klog.go:417 +0xdf\n\n"
        ));
    }
    write_raw(text.as_bytes());
}

pub fn write_raw(bytes: &[u8]) {
    let _ = std::io::stderr().write_all(bytes);
}

/// An operating system's error in Go's words: without the number, and in lower case.
pub fn go_error(error: &std::io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    text.to_lowercase()
}
