//! The programs that cargo built beside the test that runs.

use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The root of the workspace.
pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The path of a program of this workspace, of the profile that the running test was built with.
///
/// # Panics
/// If it is missing, with the command that builds it.
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("current_exe");
    let profile = test.ancestors().find(|dir| dir.join("deps").is_dir()).expect("cargo's profile directory");
    let path = profile.join(name);
    assert!(path.exists(), "{} is missing: cargo build --workspace --bins", path.display());
    path
}

/// Copies a program that is to be run from there.
///
/// Another process does it: what a test beside this one forks has our open files until it runs a program, and a file
/// that anybody has open for writing cannot be run.
///
/// # Panics
/// If it fails.
pub fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg(from).arg(to).status().expect("cp");
    assert!(copied.success(), "cp {} {}: {copied}", from.display(), to.display());
}

/// Writes a shell script that is to be run; what runs there already goes on with the file that it has.
///
/// # Panics
/// If it fails.
pub fn write_script(path: &Path, commands: &str) {
    let (written, new) = (path.with_extension("written"), path.with_extension("new"));
    std::fs::write(&written, format!("#!/bin/sh\n{commands}\n")).expect("write a script");
    std::fs::set_permissions(&written, Permissions::from_mode(0o755)).expect("chmod a script");
    copy_program(&written, &new);
    std::fs::rename(&new, path).expect("rename a script");
}

/// What a program says that is given this on its standard input.
///
/// # Panics
/// If it cannot be run.
pub fn given(command: &mut Command, input: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes()); // who reads none ends without
    child.wait_with_output().expect("its end")
}

/// A file of the workspace, by its path from the root.
pub fn file(name: &str) -> PathBuf {
    Path::new(ROOT).join(name)
}

/// An image of the controller.
pub struct Image {
    /// The OCI archive.
    pub archive: PathBuf,
    /// Its name and tag, as containerd imports it.
    pub name: &'static str,
    /// Of the index.
    pub digest: String,
}

/// What `packaging/image.sh` makes in this directory of a plugin that is linked statically from what cargo built for tests: to
/// compile all of it once more, as a release does, takes minutes.
///
/// # Panics
/// If it fails.
pub fn image(directory: &Path) -> Image {
    let (archive, plugin) = (directory.join("image.oci.tar"), directory.join("kubectl-kubelet_config"));
    let mut command = Command::new("rustc");
    command.args(["--edition", "2024", "-C", "target-feature=+crt-static", "-o"]).arg(&plugin);
    let library = plugin_library();
    let dependencies = library.parent().expect("deps");
    command.arg("--extern").arg(format!("kubectl_plugin={}", library.display()));
    command.arg("-L").arg(format!("dependency={}", dependencies.display()));
    assert!(command.arg(file("crates/kubectl-plugin/src/main.rs")).status().expect("rustc").success());

    let mut command = Command::new(file("packaging/image.sh"));
    command.args(["--version", "0.0.1-test", "--binary"]).arg(&plugin).arg("--out").arg(&archive);
    let output = command.env("SOURCE_DATE_EPOCH", "1700000000").stderr(Stdio::inherit()).output().expect("image.sh");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "image.sh: {}: {said}", output.status);
    let digest = said.lines().last().unwrap_or_default().to_owned();
    Image { archive, name: "localhost/kubectl-kubelet-config:0.0.1-test", digest }
}

/// The plugin's library, as it was compiled for the tests of the workspace.
fn plugin_library() -> PathBuf {
    let mut command = Command::new("cargo");
    command.args("test --locked --quiet --workspace --no-run --message-format=json --test image".split(' '));
    forget_package(&mut command);
    let output = command.current_dir(ROOT).stderr(Stdio::inherit()).output().expect("cargo");
    let messages = String::from_utf8_lossy(&output.stdout);
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let of_plugin = |it: &serde_json::Value| it["target"]["name"] == "kubectl_plugin" && it["profile"]["test"] == false;
    let library = messages.filter(of_plugin).find_map(|it| {
        let files = it["filenames"].as_array()?.iter().filter_map(serde_json::Value::as_str);
        files.map(PathBuf::from).find(|file| file.extension().is_some_and(|it| it == "rlib"))
    });
    library.expect("cargo names the plugin's library")
}

/// Hides from a cargo what another one told the test that runs of its package: build scripts of dependencies that ask for it would
/// run anew, and all that depends on them be built anew.
pub fn forget_package(cargo: &mut Command) {
    let of_package =
        |name: &str| ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_EXE_"].iter().any(|it| name.starts_with(it));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(of_package)) {
        cargo.env_remove(name);
    }
}
