//! The version before this one, built from the repository's history: a node that is upgraded in mid-trial.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::json;
use testkit::built::{copy_program, forget_package};

use crate::cluster::{run, until};
use crate::supervisor::{BINARY, Case};
use crate::trial::await_clock;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Its binary, once it is built.
static BINARY_BEFORE: OnceLock<Result<PathBuf, String>> = OnceLock::new();

/// Waits for the build, or begins it. It takes minutes, and so begins with the suite: other cases mostly wait.
pub fn binary() -> &'static Result<PathBuf, String> {
    BINARY_BEFORE.get_or_init(build)
}

/// The supervisor of the commit before this one, built once a commit. It has a target directory of its own: cargo takes two
/// checkouts of one workspace that share one for the same, and the next build of this one would be made of that one's parts.
fn build() -> Result<PathBuf, String> {
    let git = |args: &[&str]| run(Command::new("git").arg("-C").arg(ROOT).args(args));
    let commit = git(&["rev-parse", "--verify", "HEAD~1^{commit}"])?.trim().to_owned();
    let target = Path::new(BINARY).ancestors().nth(2).unwrap();
    let own = target.join("previous");
    let (source, kept) = (own.join("source"), own.join("commit"));
    let binary = own.join("debug/kubelet-supervisor");
    if std::fs::read_to_string(&kept).is_ok_and(|built| built == commit) && binary.exists() {
        return Ok(binary);
    }
    let io = |error: std::io::Error| error.to_string();
    let _ = std::fs::remove_dir_all(&source);
    std::fs::create_dir_all(&source).map_err(io)?;
    // Files as of now: cargo compares times, and a commit's may be older than what is built.
    let unpack = "git -C \"$1\" archive \"$2\" | tar --extract --touch --directory \"$3\"";
    run(Command::new("sh").args(["-c", unpack, "sh", ROOT, &commit]).arg(&source))?;
    let mut cargo = Command::new("nice");
    cargo
        .args([
            "-n",
            "19",
            option_env!("CARGO").unwrap_or("cargo"),
            "build",
            "--locked",
            "--quiet",
            "--bin",
            "kubelet-supervisor",
        ])
        .current_dir(&source);
    forget_package(&mut cargo);
    run(cargo.env("CARGO_TARGET_DIR", &own))?;
    std::fs::write(kept, commit).map_err(io)?;
    Ok(binary)
}

/// The supervisor of the commit before runs a kubelet in mid-trial, its file is replaced by this one and it is reloaded:
/// the same processes, and the trial goes on to its end.
pub fn reload_from_previous(case: &Case) {
    let previous = match binary() {
        Ok(previous) => previous,
        Err(why) => {
            assert!(std::env::var_os("CI").is_none(), "there is no version before this one, and this is CI: {why}");
            case.say(&format!("SKIPPED: there is no version before this one: {why}"));
            return;
        }
    };
    let program = case.dir().with_extension("program");
    std::fs::create_dir_all(program.parent().unwrap()).unwrap();
    copy_program(previous, &program);
    let supervisor = case.launch_program(&program, "30s", &[], &case.dir(), case.kubelet_args());
    supervisor.await_ready();
    case.await_node_ready();
    let map = case.good(&case.id("map"), "maxPods: 42");
    let source = map.source();
    case.assign(&map);
    await_clock(&supervisor);
    let left = || supervisor.status()?["trial"]["remainingSeconds"].as_u64().ok_or_else(|| "no trial".to_owned());
    let earned = until("ten seconds of health", || match left()? {
        left if left <= 20 => Ok(left),
        left => Err(left.to_string()),
    });
    let before = (supervisor.pid(), supervisor.process());

    // As a package does: another file takes the name.
    let new = program.with_extension("new");
    copy_program(Path::new(BINARY), &new);
    std::fs::rename(&new, &program).unwrap();
    supervisor.signal("HUP");
    until("this version to take over", || {
        let runs = std::fs::read_link(format!("/proc/{}/exe", supervisor.pid())).map_err(|error| error.to_string())?;
        if runs == program { Ok(()) } else { Err(runs.display().to_string()) }
    });
    supervisor.await_status(&[("/supervisor/reloads", json!(1)), ("/trial/state", json!("running"))]);
    let now = until("the trial's clock", left);
    assert!(now <= earned, "begun anew: {now} s left after {earned} s");
    supervisor.await_status(&[("/active", source.clone()), ("/kubelet/ready", json!(true))]);
    case.await_config(&source, &source, &source, "");
    case.await_event("KubeletConfigProven", &[&map.event_text()]);
    assert_eq!((supervisor.pid(), supervisor.process()), before);
    assert_eq!(case.events("KubeletConfigRolledBack").unwrap(), Vec::<String>::new());
    case.await_configz("maxPods", &json!(42));
    // A supervisor as any other.
    let other = case.good(&case.id("other"), "maxPods: 43");
    case.assign(&other);
    supervisor.await_status(&[("/active", other.source()), ("/kubelet/restarts", json!(before.1.1 + 1))]);
    assert!(supervisor.stop().success());
}
