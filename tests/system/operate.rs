//! The operator's verbs and the history.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use testkit::built::copy_program;
use testkit::rig::{Rig, configuration, eventually, exit_and_output, supervisor};

const VERBS: [&[&str]; 10] = [
    &["retry"],
    &["rollback"],
    &["rollback", "--to=local"],
    &["rollback", "--to", "u/7"],
    &["pin"],
    &["pin", "u/7"],
    &["unpin"],
    &["freeze"],
    &["thaw"],
    &["confirm", "--extend=5m"],
];

fn verb(dir: &Path, args: &[&str]) -> (i32, String, String) {
    exit_and_output(&supervisor().args(args).arg("--dynamic-config-dir").arg(dir).output().unwrap())
}

#[test]
fn without_a_supervisor_and_without_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = dir.path().join("nowhere");
    for args in VERBS {
        let (code, stdout, stderr) = verb(&nowhere, args);
        assert_eq!((code, stdout.as_str()), (1, ""), "{args:?}: {stderr}");
        for part in [
            "nowhere/supervisor/control.sock: No such file",
            "there is no store at",
            "kubelet-supervisor enable",
            "--dynamic-config-dir",
        ] {
            assert!(stderr.contains(part), "{args:?}: {part:?} in {stderr}");
        }
    }
    let (code, _, stderr) = verb(&nowhere, &["history"]);
    assert!(code == 1 && stderr.contains("there is no store at"), "{stderr}");
    assert!(!nowhere.exists(), "nothing is made where there is nothing");
}

/// What a verb makes of this answer on the control socket.
fn answered(answer: &'static str) -> (i32, String, String) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("supervisor")).unwrap();
    let listener = UnixListener::bind(dir.path().join("supervisor/control.sock")).unwrap();
    #[allow(clippy::disallowed_methods, reason = "a test's process has no kubelet")]
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut seen = [0];
        while seen != *b"}" {
            stream.read_exact(&mut seen).unwrap();
        }
        stream.write_all(answer.as_bytes()).unwrap();
    });
    let told = verb(dir.path(), &["unpin"]);
    server.join().unwrap();
    told
}

#[test]
fn what_a_supervisor_answers_is_shown() {
    let done = answered("HTTP/1.1 200 OK\r\n\r\nas you wish\n");
    assert_eq!(done, (0, "as you wish\n".to_owned(), String::new()));
    for (answer, message) in [
        ("HTTP/1.1 409 Conflict\r\n\r\nnothing is pinned\n", "kubelet-supervisor: refused: nothing is pinned\n"),
        ("HTTP/1.1 400 Bad Request\r\n\r\nunknown\n", "did not take the command (400): unknown"),
        ("HTTP/1.1 504 Gateway Timeout\r\n\r\nit may still be done\n", "kubelet-supervisor: it may still be done\n"),
        ("HTTP/1.1", "control.sock: the answer was cut"),
    ] {
        let (code, stdout, stderr) = answered(answer);
        assert!(code == 1 && stdout.is_empty() && stderr.contains(message), "{code} {stdout} {stderr}");
    }
}

#[test]
fn a_supervisor_that_does_not_listen_is_not_taken_for_none() {
    let rig = Rig::new().running();
    std::fs::remove_file(rig.at("dynamic/supervisor/control.sock")).unwrap();
    let (code, _, stderr) = verb(&rig.at("dynamic"), &["freeze"]);
    let message = format!("a supervisor runs, pid {}, but does not listen (", rig.pid());
    assert!(code == 1 && stderr.contains(&message) && stderr.contains("control.sock"), "{stderr}");
}

#[test]
fn others_than_root_are_refused() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let mut rig = Rig::new().running();
    // A place for the binary and the store that anybody can enter.
    let open = tempfile::tempdir().unwrap();
    for dir in [open.path(), rig.dir.path()] {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let program = open.path().join("kubelet-supervisor");
    copy_program(Path::new(env!("CARGO_BIN_EXE_kubelet-supervisor")), &program);
    for running in [true, false] {
        for args in [&["freeze"][..], &["status"], &["history"]] {
            let mut command = Command::new(&program);
            command.args(args).arg("--dynamic-config-dir").arg(rig.at("dynamic")).uid(65534).gid(65534);
            let (code, stdout, stderr) = exit_and_output(&command.output().unwrap());
            assert_eq!((code, stdout.as_str()), (1, ""), "running {running}, {args:?}: {stderr}");
            assert!(stderr.contains("Permission denied") && stderr.contains("run this as root"), "{args:?}: {stderr}");
        }
        if running {
            rig.stop();
        }
    }
}

/// Tells a copy of this test where to listen.
const SOCKET: &str = "SYSTEM_OPERATE_SOCKET";

/// Whoever may write in the directory could answer for the supervisor.
#[test]
fn a_socket_of_somebody_else_is_not_believed() {
    if let Ok(path) = std::env::var(SOCKET) {
        for stream in UnixListener::bind(path).unwrap().incoming() {
            let body = r#"{"active": null, "supervisor": {"version": "1"}}"#;
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            let _ = stream.unwrap().write_all(answer.as_bytes());
        }
    }
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let open = tempfile::tempdir().unwrap();
    let (program, own) = (open.path().join("listener"), open.path().join("supervisor"));
    std::fs::create_dir(&own).unwrap();
    for dir in [open.path(), &own] {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    copy_program(&std::env::current_exe().unwrap(), &program);
    let socket = own.join("control.sock");
    let mut command = Command::new(&program);
    command.args(["--exact", "operate::a_socket_of_somebody_else_is_not_believed"]).env(SOCKET, &socket);
    command.stdout(std::process::Stdio::null()).uid(65534).gid(65534);
    let mut listener = command.spawn().unwrap();
    eventually("a socket", || std::os::unix::net::UnixStream::connect(&socket).ok());
    for args in [&["status"][..], &["freeze"], &["render", "--effective"]] {
        let (code, stdout, stderr) = verb(open.path(), args);
        assert_eq!((code, stdout.as_str()), (1, ""), "{args:?}: {stderr}");
        for part in [&socket.display().to_string(), "uid 65534", "take the socket away", "--dynamic-config-dir"] {
            assert!(stderr.contains(part), "{args:?}: {part:?} in {stderr}");
        }
    }
    listener.kill().unwrap();
    listener.wait().unwrap();
}

#[test]
fn the_history_tells_the_story_across_restarts() {
    let mut rig = Rig::new().running();
    let history = |rig: &Rig, args: &[&str]| {
        let (code, stdout, stderr) = verb(&rig.at("dynamic"), &[&["history"], args].concat());
        assert_eq!(code, 0, "{stderr}");
        (stdout, stderr)
    };
    let entries = |rig: &Rig| serde_json::from_str::<Vec<Value>>(&history(rig, &["-o", "json"]).0).unwrap();
    let reasons = |rig: &Rig| {
        let names = entries(rig).into_iter().map(|entry| entry["reason"].as_str().unwrap().to_owned());
        names.filter(|name| name.starts_with("KubeletConfig")).collect::<Vec<_>>()
    };
    assert!(history(&rig, &[]).1.contains("nothing has happened in") || !entries(&rig).is_empty());
    let good = rig.prove("a", &configuration("maxPods: 42"));
    rig.restart();
    let bad = rig.put("a", &configuration("standIn: {exitBeforeReady: 3}"));
    let expected = ["KubeletConfigChanged", "KubeletConfigProven", "KubeletConfigChanged", "KubeletConfigRolledBack"];
    eventually("the rollback is on record", || (reasons(&rig) == expected).then_some(()));
    rig.stop();
    assert_eq!(reasons(&rig), expected);

    let all = entries(&rig);
    let numbers: Vec<u64> = all.iter().map(|entry| entry["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=all.len() as u64).collect::<Vec<_>>());
    let last = all.last().unwrap();
    assert!(last["warning"] == true && last["time"].as_str().unwrap().ends_with('Z'), "{last}");
    assert_eq!(last["source"]["resourceVersion"], bad.1);
    let lines = history(&rig, &["--verbose"]).0;
    let proven = format!(" KubeletConfigProven kube-system/a kubelet {}/{}: Last known good after", good.0, good.1);
    assert!(lines.lines().any(|line| line.contains(&proven)), "{lines}");
    let newest = history(&rig, &["-n", "1", "-o", "text", "-v"]).0;
    let head = newest.lines().next().unwrap();
    assert!(head.contains(&format!(" KubeletConfigRolledBack kube-system/a kubelet {}/{}: ", bad.0, bad.1)), "{head}");
    assert!(newest.lines().skip(1).all(|line| line.starts_with("    ")), "{newest}");
    let short = history(&rig, &["-n", "1"]).0;
    let (_, line) = short.split_once('\n').unwrap();
    assert!(short.starts_with("TIME ") && line.lines().count() == 1, "{short}");
    assert!(
        line.contains(&format!("  RolledBack  kube-system/a {}  the kubelet ended before it was ready: ", bad.1)),
        "{short}"
    );
    let mode = std::fs::metadata(rig.at("dynamic/supervisor/history.jsonl")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
