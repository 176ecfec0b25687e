//! What a kubelet finds that it may do: a hostile one's first look around.

use std::fs::{File, read_dir, read_link, read_to_string};
use std::net::TcpListener;

use nix::errno::Errno;
use nix::mount::umount;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::getppid;
use serde_json::{Value, json};

/// Files that are open, limits, and how each attempt ended. None of them changes anything beside this process.
pub(super) fn tried() -> Value {
    let own = |file: &str| read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
    let status = own("status");
    let line = |name: &str| status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()));
    let limit = |resource| getrlimit(resource).map(|(_, hard)| hard).unwrap_or_default();
    let files = open_files();
    let namespace = |name: &str| read_link(format!("/proc/self/ns/{name}")).unwrap_or_default().display().to_string();
    let told = |result: Result<(), Errno>| result.map_or_else(|error| format!("{error:?}"), |()| "done".to_owned());
    let told_by = |error: std::io::Error| Errno::from_raw(error.raw_os_error().unwrap_or_default());
    let uts = File::open("/proc/self/ns/uts").map_err(told_by);
    let memory = File::open(format!("/proc/{}/mem", getppid())).map_err(told_by);
    json!({
        "event": "confinement",
        "pid": std::process::id(),
        "files": files,
        "noNewPrivileges": line("NoNewPrivs:"),
        "capabilities": line("CapEff:"),
        "network": namespace("net"),
        "mounts": namespace("mnt"),
        "oomScoreAdj": own("oom_score_adj").trim(),
        "core": limit(Resource::RLIMIT_CORE),
        "cpu": limit(Resource::RLIMIT_CPU),
        "attempts": {
            "unmount": told(umount("/proc/self")),
            "memory": told(memory.map(drop)),
            "port": told(TcpListener::bind("127.0.0.1:1").map(drop).map_err(told_by)),
            "unshare": told(unshare(CloneFlags::CLONE_NEWUTS)),
            "setns": told(uts.and_then(|file| setns(file, CloneFlags::CLONE_NEWUTS))),
        },
    })
}

/// All but the one that is opened to look.
fn open_files() -> Vec<String> {
    let mut files = Vec::new();
    for entry in read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let target = read_link(entry.path()).unwrap_or_default().display().to_string();
        if !target.starts_with(&format!("/proc/{}/fd", std::process::id())) {
            files.push(format!("{} {target}", entry.file_name().display()));
        }
    }
    files.sort();
    files
}
