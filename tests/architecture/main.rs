//! The house rules that cargo cannot enforce, checked by reading the source: which room may import which, files that
//! import each other, who may spawn, sync, say `unsafe`.
#![cfg(test)]

mod imports;
mod tree;

use std::collections::BTreeMap;

use tree::{Crate, File};

/// The source of the crate with this name.
fn source(name: &str) -> Crate {
    tree::crates().into_iter().find(|source| source.name == name).unwrap()
}

/// The room of a module: its first part.
fn room(module: &str) -> &str {
    module.split("::").next().unwrap_or_default()
}

#[test]
fn rooms_know_only_the_rooms_below() {
    let below: &[(&str, &[&str])] = &[
        ("kubelet_log", &[]),
        ("machine", &["kubelet_log"]),
        ("unit", &[]),
        ("ports", &["machine"]),
        ("os", &["kubelet_log"]),
        ("monitor", &["os", "machine"]),
        ("adapters", &["os", "monitor", "ports", "machine", "kubelet_log", "unit"]),
        ("daemon", &["adapters", "monitor", "ports", "machine"]),
        ("cli", &["daemon", "adapters", "monitor", "os", "ports", "machine", "unit"]),
    ];
    let graph = imports::graph(&source("kubelet-supervisor"));
    for (module, named) in &graph {
        let Some((own, allowed)) = below.iter().find(|(name, _)| *name == room(module)) else {
            assert!(module.is_empty() || module == "main", "{module} is in no room");
            continue;
        };
        for (other, names) in named {
            assert!(room(other) == *own || allowed.contains(&room(other)), "{module} imports {other}: {names:?}");
        }
    }
}

/// In what is shipped; the simulator's world and its parts know each other. `State` is the whole of the core: it holds the
/// components, and each of them extends it.
#[test]
fn no_files_import_each_other() {
    let mut found = Vec::new();
    for source in tree::crates().into_iter().filter(|source| source.name != "testkit") {
        let mut graph = imports::graph(&source);
        for named in graph.values_mut() {
            named.entry("machine::state".to_owned()).or_default().remove("State");
            named.retain(|_, names| !names.is_empty());
        }
        let arrows: usize = graph.values().map(BTreeMap::len).sum();
        assert!(arrows >= source.files.len() / 2, "{}: the imports were not read", source.name);
        for pair in imports::circle(&graph).unwrap_or_default().windows(2) {
            let names = &graph[&pair[0]][&pair[1]];
            found.push(format!("{}: {} -> {}: {names:?}", source.name, pair[0], pair[1]));
        }
    }
    assert!(found.is_empty(), "files that import each other:\n{}", found.join("\n"));
}

#[test]
fn a_circle_is_found_through_a_reexport() {
    let file = |code: &str| File { name: String::new(), lines: 1, code: code.to_owned() };
    let graph = |child: &str| {
        let code = [
            ("", "mod a;\nmod b;"),
            ("a", "mod c;\npub use c::{C, D};\nuse crate::b::B;"),
            ("a::c", child),
            ("b", "use super::a::C;\nfn f() { crate::a::g() }"),
        ];
        let files = code.into_iter().map(|(module, code)| (module.to_owned(), file(code))).collect();
        imports::graph(&Crate { name: "x", files })
    };
    let apart = graph("use std::fmt;");
    assert_eq!(apart["b"].keys().collect::<Vec<_>>(), ["a", "a::c"], "{apart:?}");
    assert_eq!(imports::circle(&apart).unwrap(), ["a", "b", "a"]);
    let tied = graph("use crate::b::{self, B as _};");
    assert_eq!(tied["a::c"]["b"].len(), 2, "{tied:?}");
}

/// One outside thing each; the exceptions are shared tools, not other outside things.
#[test]
fn adapters_do_not_know_each_other() {
    let exceptions = [
        ("store", "fsx"),         // the store is made of durable files
        ("preflight", "process"), // the only place that spawns
        ("kubelet_process", "process"),
        ("preflight", "kubelet_process"), // the judge of a change stands by
        ("host", "process"),              // systemctl is asked
        ("host", "tcp_table"),            // what runs through the kubelet
        ("probe", "tcp_table"),           // whose the answer is
        ("file_watch", "inotify"),        // changes of files
        ("clock", "inotify"),             // a descriptor that tokio waits for
        ("kubelet_process", "inotify"),   // another one
        ("lock", "clock"),                // which boot it was taken in
        ("local_files", "policy"),        // one of them
        ("local_files", "file_watch"),    // what tells one state of a file from another
        ("systemctl", "process"),         // systemctl again
        ("systemctl", "fsx"),             // a drop-in is a durable file
        ("http", "metrics"),
        ("kube", "metrics"),
        ("kube", "fsx"),            // another plugin in the place of one
        ("kubelet_process", "fsx"), // another kubelet, too
        ("local_files", "fsx"),     // the same
        ("kube", "process"),        // an exec credential plugin is run
        ("preflight", "metrics"),
        ("preflight", "fsx"), // whose version it was
    ];
    let adapter = |module: &str| module.split("::").nth(1).unwrap_or_default().to_owned();
    for (module, named) in imports::graph(&source("kubelet-supervisor")) {
        let own = adapter(&module);
        for other in named.keys().filter(|other| room(&module) == "adapters" && room(other) == "adapters") {
            let other = adapter(other);
            assert!(own == other || exceptions.contains(&(&own, &other)), "{module} knows the adapter {other}");
        }
    }
}

#[test]
fn concrete_adapters_are_named_in_the_wiring_only() {
    for (module, named) in imports::graph(&source("kubelet-supervisor")) {
        if room(&module) == "daemon" {
            let names_adapters = named.keys().any(|other| room(other) == "adapters");
            // The worker is made of the store, whatever disk it is on: there is no other.
            let may = ["daemon::wire", "daemon::store_worker"].contains(&module.as_str());
            assert_eq!(names_adapters, may, "{module}");
        }
    }
}

/// The monitor, and all files that it names, and that they name: what owns the kubelet has no runtime, parser or TLS to fail.
#[test]
fn what_the_monitor_calls_is_small() {
    let source = source("kubelet-supervisor");
    let graph = imports::graph(&source);
    let mut called: Vec<&String> = graph.keys().filter(|module| room(module) == "monitor").collect();
    let mut at = 0;
    while let Some(module) = called.get(at) {
        let named = graph[*module].keys().filter(|other| !called.contains(other)).collect::<Vec<_>>();
        called.extend(named);
        at += 1;
    }
    // The state machine's own decisions are none of its.
    assert!(called.iter().any(|module| *module == "os::fork"), "{called:?}");
    for module in called {
        let code = &source.files[module].code;
        for word in ["tokio", "serde_yaml", "kube::", "rustls", "hyper", "async fn", "clap::"] {
            assert!(!code.contains(word), "the monitor calls {module}, which says {word}");
        }
    }
    let pure = ["monitor", "monitor::state", "monitor::step", "monitor::wire"];
    for module in pure {
        for word in ["std::fs", "std::io", "std::process", "std::env", "std::thread", "nix::", "tracing::", "Instant"] {
            assert!(!source.files[module].code.contains(word), "{module} says {word}");
        }
    }
    let lines = |module: &str| source.files[module].lines;
    assert!(lines("monitor::step") <= 450, "the transition fits a reader");
}

/// Rooms that decide: what they may not say.
#[test]
fn pure_rooms_are_free_of_io() {
    let forbidden = "std::fs std::env std::process std::net std::thread std::io SystemTime Instant tokio \
                     kube:: hyper:: hyper_util nix:: tracing:: println! eprintln! k8s_openapi jiff::Timestamp::now";
    let rooms = [
        ("kubelet-supervisor", &["machine", "kubelet_log", "unit", "ports"][..]),
        ("kubectl-plugin", &["fleet"]),
        ("kubelet-config", &[]),
    ];
    for (name, pure) in rooms {
        let source = source(name);
        let files = source.files.iter().filter(|(module, _)| pure.is_empty() || pure.contains(&room(module)));
        let mut read = 0;
        for (_, file) in files {
            read += 1;
            // The derive that makes a type an API object does no IO.
            let code = file.code.replace("kube::CustomResource;", "").replace("kube::core::Rule", "");
            for word in forbidden.split(' ') {
                assert!(!code.contains(word), "{name}: {} says {word}", file.name);
            }
        }
        assert!(read > 3, "{name}");
    }
}

/// What both sides share must not grow a side: cargo refuses what is not in this list.
#[test]
fn the_shared_crate_depends_on_no_side() {
    let manifest = include_str!("../../crates/config/Cargo.toml");
    let dependencies = manifest.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
    let names: Vec<&str> =
        dependencies.lines().filter_map(|line| line.split(['.', ' ']).next()).filter(|name| !name.is_empty()).collect();
    assert_eq!(names, ["jiff", "minisign-verify", "serde", "serde_json", "serde_yaml", "sha2", "strsim", "thiserror"]);
    let plugin = include_str!("../../crates/kubectl-plugin/Cargo.toml");
    let dependencies = plugin.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
    assert!(!dependencies.contains("kubelet-supervisor"), "the plugin knows the daemon");
}

#[test]
fn one_file_each_may_spawn_sync_and_be_unsafe() {
    for source in tree::crates().into_iter().filter(|source| source.name != "testkit") {
        for file in source.files.values() {
            let only = |words: &[&str], home: &str| {
                for word in words {
                    let is_home = source.name == "kubelet-supervisor" && file.name == home;
                    assert!(
                        is_home || !file.code.contains(word),
                        "{}: {} says {word}, which belongs to {home}",
                        source.name,
                        file.name
                    );
                }
            };
            only(&["Command::new(", ".spawn()"], "adapters/process.rs");
            only(&["unsafe {", "allow(unsafe_code)", "unsafe fn", "fork()"], "os/fork.rs");
            only(&["sync_all", "sync_data", "fsync"], "adapters/fsx.rs");
        }
    }
}

/// Else a limit that grows moves the law along.
#[test]
fn laws_judge_by_what_is_promised() {
    for source in tree::crates().into_iter().filter(|source| source.name == "testkit") {
        for file in source.files.values().filter(|file| file.name.starts_with("sim/")) {
            assert!(
                !file.code.contains("limits::") && !file.code.contains("limits}"),
                "{} knows the machine's",
                file.name
            );
        }
    }
}

/// Each repetition has a bound, and all bounds are in `limits`.
#[test]
fn the_core_repeats_by_one_kind_of_pause() {
    for source in tree::crates().into_iter().filter(|source| source.name == "kubelet-supervisor") {
        for file in source.files.values().filter(|file| file.name.starts_with("machine/")) {
            let is_home = |home: &str| file.name == home;
            assert!(is_home("machine/pause.rs") || !file.code.contains("backoff("), "{} grows a pause", file.name);
            let makes_one = file.code.contains("Growth {") && !file.code.contains("first: hung_after");
            let may = is_home("machine/pause.rs") || is_home("machine/limits.rs");
            assert!(may || !makes_one, "{} has a limit of its own", file.name);
        }
    }
}

#[test]
fn files_are_small_enough_to_know() {
    for source in tree::crates() {
        for file in source.files.values() {
            assert!(file.lines <= 600, "{}: {} is too long", source.name, file.name);
        }
    }
}
