//! A program of Go's that ends as kubelets do, built here: `ends/`.

use std::env;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{reason, reason_by_the_tail};

/// Builds one of the programs. `None` where there is no Go; in CI that is a failure.
fn build(package: &str) -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kubelet_log/ends");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = target.join(format!("ends{}", package.trim_start_matches('.').replace('/', "-")));
    let with_c = if package == "./cgo" { "1" } else { "0" };
    let built = Command::new("go")
        .args(["build", "-o", program.to_str()?, package])
        .current_dir(dir)
        .env("GOCACHE", target.join("go-cache"))
        .envs([("CGO_ENABLED", with_c), ("GOFLAGS", ""), ("GOTOOLCHAIN", "local"), ("GO111MODULE", "on")])
        .output();
    let why = match built {
        Ok(output) if output.status.success() => return Some(program),
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    println!("SKIPPED: programs of Go that end cannot be built (apt-get install golang-go): {why}");
    assert!(env::var_os("CI").is_none(), "Go is missing, and this is CI: apt-get install golang-go: {why}");
    None
}

fn program() -> Option<&'static PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(|| build(".")).as_ref()
}

/// What it writes to standard error until its end, in these limits of a shell.
fn log(program: &Path, how: &str, traceback: &str, limits: &str) -> Vec<u8> {
    // A core of it is of no use to anybody.
    let script = format!("ulimit -c 0; {limits} exec \"$0\" \"$1\"");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).arg(program).arg(how).env("GOTRACEBACK", traceback);
    shell.stdin(Stdio::null()).output().unwrap().stderr
}

fn check(how: &str, log: &[u8], expected: &str) {
    let text = String::from_utf8_lossy(log);
    assert_eq!(reason(&text).as_deref(), Some(expected), "{how}:\n{text}");
    assert_eq!(reason_by_the_tail(log).as_deref(), Some(expected), "{how}, by the tail:\n{text}");
}

#[test]
fn a_program_that_ends_by_itself_says_why() {
    let Some(program) = program() else { return };
    let limit = "runtime: goroutine stack exceeds 1048576-byte limit";
    for (how, expected) in [
        ("panic", "panic: one line".to_owned()),
        ("recovered", "panic: the second has three lines".to_owned()),
        ("nil", "panic: runtime error: invalid memory address or nil pointer dereference".to_owned()),
        ("error", "panic: cannot go on: unknown gate: X".to_owned()),
        ("deadlock", "fatal error: all goroutines are asleep - deadlock!".to_owned()),
        ("maps", "fatal error: concurrent map writes".to_owned()),
        ("stack", format!("fatal error: stack overflow ({limit})")),
        ("exit", "failed to run Kubelet: the moon is full".to_owned()),
        ("lines", "failed to validate kubelet configuration, error: [a, b], path: x".to_owned()),
        ("fatalf", "cannot bind: xxx".to_owned()),
    ] {
        for traceback in ["none", "single", "all", "crash"] {
            check(&format!("{how}, {traceback}"), &log(program, how, traceback, ""), &expected);
        }
    }
}

#[test]
fn a_program_without_memory_says_so() {
    let Some(program) = program() else { return };
    let log = log(program, "memory", "single", "ulimit -v 900000;");
    let text = String::from_utf8_lossy(&log);
    let found = reason(&text).unwrap_or_default();
    // How much was in use differs.
    assert!(found.starts_with("fatal error: out of memory"), "{found}:\n{text}");
    assert!(!text.contains("runtime: out of memory: ") || found.contains("-byte block"), "{found}:\n{text}");
    assert_eq!(reason_by_the_tail(&log), Some(found), "{text}");
}

#[test]
fn a_program_that_is_killed_names_the_signal() {
    let Some(program) = program() else { return };
    for (signal, traceback, expected) in [
        (Signal::SIGQUIT, "all", "SIGQUIT: quit"),
        (Signal::SIGABRT, "all", "SIGABRT: abort"),
        (Signal::SIGABRT, "crash", "SIGABRT: abort"),
        (Signal::SIGSYS, "single", "SIGSYS: bad system call"),
    ] {
        // A core of it is of no use to anybody.
        let mut child = Command::new("sh")
            .args(["-c", "ulimit -c 0; exec \"$0\" wait"])
            .arg(program)
            .env("GOTRACEBACK", traceback)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
        let mut log = Vec::new();
        child.stderr.take().unwrap().read_to_end(&mut log).unwrap();
        child.wait().unwrap();
        check(&format!("{signal} {traceback}"), &log, expected);
    }
}

/// It needs a C compiler as well.
#[test]
fn a_program_that_gets_no_thread_says_so() {
    if program().is_none() {
        return;
    }
    let Some(program) = build("./cgo") else { return };
    let log = log(&program, "", "single", "ulimit -v 2500000;");
    check("cgo", &log, "runtime/cgo: pthread_create failed: Resource temporarily unavailable");
}
