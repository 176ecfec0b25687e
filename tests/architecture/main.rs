//! The house rules, checked by reading the source: who may import whom, who may spawn, sync, say
//! `unsafe`.
#![cfg(test)]
use std::fs;
use std::path::{Path, PathBuf};

fn sources() -> Vec<(String, String)> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    walk(&root, &mut found);
    assert!(found.len() > 30, "the walk missed the source");
    let name = |path: &Path| path.strip_prefix(&root).unwrap().display().to_string();
    let mut sources: Vec<_> = found.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect();
    sources.sort();
    sources
}

/// The code of a file without its unit tests and comments.
fn code(text: &str) -> String {
    let body = text.split("#[cfg(test)]").next().unwrap_or_default();
    body.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The room a file is in: `core`, `ports`, `adapters`, `daemon`, `cli`, or the crate root.
fn room(file: &str) -> &str {
    file.split(['/', '.']).next().unwrap_or_default()
}

/// Everything named after `crate::`, with brace groups after it opened.
fn crate_imports(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for after in code(text).split("crate::").skip(1) {
        let path: String = after.chars().take_while(|c| c.is_alphanumeric() || *c == '_' || *c == ':').collect();
        found.push(path.trim_end_matches(':').to_owned());
    }
    found
}

#[test]
fn rooms_know_only_the_rooms_below() {
    let below: &[(&str, &[&str])] = &[
        ("kubelet_log", &["kubelet_log"]),
        ("machine", &["machine", "kubelet_log"]),
        ("unit", &["unit"]),
        ("ports", &["machine"]),
        ("adapters", &["adapters", "ports", "machine", "kubelet_log", "unit"]),
        ("daemon", &["daemon", "adapters", "ports", "machine"]),
        ("cli", &["cli", "daemon", "adapters", "ports", "machine", "unit"]),
    ];
    for (file, text) in sources() {
        let Some((_, allowed)) = below.iter().find(|(name, _)| *name == room(&file)) else { continue };
        for import in crate_imports(&text) {
            let target = import.split("::").next().unwrap_or_default();
            assert!(allowed.contains(&target), "{file} imports crate::{import}");
        }
    }
}

/// One outside thing each; the exceptions are shared tools, not other outside things.
#[test]
fn adapters_do_not_know_each_other() {
    let exceptions = [
        ("store", "fsx"),             // the store is made of durable files
        ("preflight", "process"),     // the only place that spawns
        ("notify_socket", "process"), // whose READY=1 counts
        ("process", "stderr_relay"),  // a process has a standard error
        ("host", "process"),          // systemctl is asked
        ("reexec", "process"),        // a reload is an exec, with the kubelet as it is
        ("units", "process"),         // systemctl again
        ("units", "fsx"),             // a drop-in is a durable file
        ("http", "metrics"),
        ("kube", "metrics"),
        ("kube", "process"), // an exec credential plugin is run
        ("preflight", "metrics"),
    ];
    for (file, text) in sources() {
        let Some(rest) = file.strip_prefix("adapters/") else { continue };
        let own = room(rest);
        if own == "mod" {
            continue;
        }
        let depth = rest.matches('/').count();
        let supers = code(&text);
        let siblings = supers
            .split("super::")
            .skip(1)
            .filter(|_| depth == 0)
            .map(|after| after.split([':', ';', '{', ' ', '(']).next().unwrap_or_default().to_owned());
        let absolute = crate_imports(&text)
            .into_iter()
            .filter_map(|import| import.strip_prefix("adapters::").map(|path| room_of_path(path).to_owned()));
        for other in siblings.chain(absolute).filter(|other| *other != own && !other.is_empty()) {
            assert!(exceptions.contains(&(own, other.as_str())), "{file} knows the adapter {other}");
        }
    }
}

fn room_of_path(path: &str) -> &str {
    path.split("::").next().unwrap_or_default()
}

#[test]
fn concrete_adapters_are_named_in_the_wiring_only() {
    for (file, text) in sources() {
        let names_adapters = crate_imports(&text).iter().any(|import| import.starts_with("adapters"));
        if room(&file) == "daemon" {
            assert_eq!(names_adapters, file == "daemon/wire.rs", "{file}");
        }
    }
}

#[test]
fn core_and_ports_are_pure() {
    let forbidden = [
        "std::fs",
        "std::env",
        "std::process",
        "std::net",
        "std::thread",
        "std::io",
        "SystemTime",
        "Instant",
        "tokio",
        "kube::",
        "hyper::",
        "hyper_util",
        "nix::",
        "tracing::",
        "println!",
        "eprintln!",
        "k8s_openapi",
        "jiff::Timestamp::now",
    ];
    for (file, text) in
        sources().into_iter().filter(|(file, _)| matches!(room(file), "machine" | "kubelet_log" | "unit" | "ports"))
    {
        let code = code(&text);
        for word in forbidden {
            assert!(!code.contains(word), "{file} says {word}");
        }
    }
}

#[test]
fn one_file_each_may_spawn_sync_and_be_unsafe() {
    for (file, text) in sources() {
        let code = code(&text);
        let only = |words: &[&str], home: &str| {
            for word in words {
                assert!(file == home || !code.contains(word), "{file} says {word}, which belongs to {home}");
            }
        };
        only(&["Command::new", ".spawn()?", "command.spawn", "fork("], "adapters/process.rs");
        only(&["unsafe {", "allow(unsafe_code)", "unsafe fn"], "adapters/process.rs");
        only(&["sync_all", "sync_data", "fsync"], "adapters/fsx.rs");
    }
}

#[test]
fn files_are_small_enough_to_know() {
    for (file, text) in sources() {
        assert!(text.lines().count() <= 600, "{file} is too long");
    }
}
