//! A file system of its own for a store, on a loop device, whose power can be cut.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Once;

use testkit::rig::{Rig, eventually};

/// The kernel writes nothing back by itself for so long, neither data nor journal; and a rename does not make it
/// allocate the blocks of what was renamed, which would do for a file what only fsync promises.
const OPTIONS: &str = "loop,commit=300,noauto_da_alloc";

/// `ioctl(EXT4_IOC_SHUTDOWN, EXT4_GOING_FLAGS_NOLOGFLUSH)`, once standard input ends: from then on nothing more of the file
/// system of this path gets to its device, not even its journal.
const CUT: &str = r#"
    sysopen(my $root, $ARGV[0], 0) or die "$ARGV[0]: $!";
    $| = 1;
    print "ready\n";
    my $line = <STDIN>;
    my $flags = pack("L", 2);
    ioctl($root, 0x8004587d, $flags) or die "ioctl: $!";
"#;

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {}", said.trim())) }
}

/// Why there can be no such device here. In CI that is a failure.
fn unavailable() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("needs root".to_owned());
    }
    let missing = || ["mkfs.ext4", "losetup", "perl"].iter().find(|tool| !installed(tool));
    if missing().is_some() {
        let fetch = "apt-get -qq update && apt-get -qq install -y --no-install-recommends e2fsprogs mount perl-base";
        let _ = run(Command::new("sh").args(["-c", fetch]).env("DEBIAN_FRONTEND", "noninteractive"));
    }
    if let Some(tool) = missing() {
        return Some(format!("{tool} is missing and cannot be installed"));
    }
    run(Command::new("losetup").arg("--find")).err().map(|why| format!("no loop device: {why}"))
}

fn installed(tool: &str) -> bool {
    run(Command::new("sh").args(["-c", &format!("command -v {tool}")])).is_ok()
}

/// Once for all tests.
static SKIPPED: Once = Once::new();

/// The store's file system.
pub struct Device {
    image: PathBuf,
    at: PathBuf,
}

impl Device {
    /// Mounted where the rig's supervisor keeps its store; none if this machine cannot have it.
    pub fn for_store_of(rig: &Rig) -> Option<Device> {
        if let Some(why) = unavailable() {
            assert!(std::env::var_os("CI").is_none(), "the power cut tests cannot run, and this is CI: {why}");
            // Not by a macro, whose output is shown only of tests that fail.
            SKIPPED.call_once(|| drop(std::io::stderr().write_all(format!("SKIPPED: power cut: {why}\n").as_bytes())));
            return None;
        }
        let device = Device { image: rig.at("store.img"), at: rig.at("dynamic") };
        std::fs::File::create(&device.image).unwrap().set_len(64 << 20).unwrap();
        run(Command::new("mkfs.ext4").arg("-qF").arg(&device.image)).unwrap();
        std::fs::create_dir(&device.at).unwrap();
        device.mount();
        Some(device)
    }

    fn mount(&self) {
        run(Command::new("mount").args(["-o", OPTIONS]).args([&self.image, &self.at])).unwrap();
    }

    /// Everything is prepared; the power goes at [`Switch::cut`].
    pub fn switch(&self) -> Switch {
        let mut command = Command::new("perl");
        command.args(["-e", CUT]).arg(&self.at).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut helper = command.spawn().unwrap();
        let mut said = [0; 6];
        helper.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        Switch(helper)
    }

    /// Power is back: the journal is replayed.
    pub fn restore(&self) {
        eventually("nobody uses the file system", || run(Command::new("umount").arg(&self.at)).ok());
        // A preflight that was cut off has it in a namespace of its own until it is gone: mounted meanwhile, it would be without
        // power still.
        eventually("its device is let go", || {
            let found = Command::new("losetup").arg("--associated").arg(&self.image).output().ok()?;
            (found.status.success() && found.stdout.is_empty()).then_some(())
        });
        self.mount();
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Lazily: a test that fails leaves a supervisor, which ends after this.
        let _ = run(Command::new("umount").arg("-l").arg(&self.at));
    }
}

/// Cuts the power of a [`Device`].
pub struct Switch(Child);

impl Switch {
    pub fn cut(mut self, at: &Path) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
        assert!(std::fs::File::create(at.join("after")).is_err(), "the file system still works");
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        // One that was not used holds the file system.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
