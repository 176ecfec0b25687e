//! Local users without any right, and nodes in a state of their own.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use testkit::built::{copy_program, program, write_script};
use testkit::rig::Rig;

pub const NOBODY: u32 = 65534;

/// None, and said so, where this test cannot play other users.
pub fn as_root(rig: fn() -> Rig) -> Option<Rig> {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: not root, so nobody else can be played");
    }
    root.then(rig)
}

/// A process of uid 65534, until this is dropped.
pub struct Stranger {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    _dir: tempfile::TempDir,
}

impl Stranger {
    /// Begins; see `stranger.rs` of the test kit for what it can.
    pub fn new(args: &[&str]) -> Stranger {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = dir.path().join("stranger");
        copy_program(&program("stranger"), &path);
        let mut command = Command::new(&path);
        command.args(args).uid(NOBODY).gid(NOBODY).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Stranger { child, output, _dir: dir }
    }

    /// Waits for its result.
    pub fn done(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().strip_prefix("done ").unwrap_or_else(|| panic!("a stranger said {line:?}")).to_owned()
    }

    /// The result of what is over at once.
    pub fn tries(args: &[&str]) -> String {
        Stranger::new(args).done()
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Has these shell commands go before the supervisor, which then has the shell's pid.
pub fn begin_with(rig: &mut Rig, commands: &str) {
    let begin = rig.at("begin");
    write_script(&begin, &format!("set -e\n{commands}\nexec {} \"$@\"", program("kubelet-supervisor").display()));
    rig.installed = Some(begin);
}

/// The same with mounts of its own, and an empty /run.
pub fn with_run(rig: &mut Rig, commands: &str) {
    begin_with(rig, &format!("mount -t tmpfs -o mode=755 tmpfs /run\n{commands}"));
    let (begin, outer) = (rig.at("begin"), rig.at("unshare"));
    write_script(&outer, &format!("exec unshare --mount {} \"$@\"", begin.display()));
    rig.installed = Some(outer);
}

/// An environment variable of a process.
pub fn environment(pid: u64, name: &str) -> Option<String> {
    let text = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    let prefix = format!("{name}=");
    text.split(|byte| *byte == 0).find_map(|it| Some(String::from_utf8_lossy(it).strip_prefix(&prefix)?.to_owned()))
}
