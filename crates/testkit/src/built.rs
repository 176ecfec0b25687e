//! The programs that cargo built beside the test that runs.

use std::path::{Path, PathBuf};

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

/// A file of the workspace, by its path from the root.
pub fn file(name: &str) -> PathBuf {
    Path::new(ROOT).join(name)
}
