//! The targets, one a file, and what they share.

use std::path::PathBuf;

use tempfile::TempDir;

pub(crate) mod kubeconfig;
pub(crate) mod notify;
pub(crate) mod policy;
pub(crate) mod preflight;
pub(crate) mod records;
pub(crate) mod render;
pub(crate) mod signature;
pub(crate) mod unit;

/// The texts of an input, which lines of `%%` hold apart; none, if it is no text. There are as many as are asked for: what is
/// missing is empty.
fn texts<const N: usize>(data: &[u8]) -> Option<[&str; N]> {
    let mut parts = std::str::from_utf8(data).ok()?.split("\n%%\n");
    Some(std::array::from_fn(|_| parts.next().unwrap_or_default()))
}

/// A directory of this thread alone, removed when the thread ends. It stays behind when libFuzzer ends the process: run.sh says
/// where, and removes it.
fn directory() -> PathBuf {
    thread_local! {
        static DIRECTORY: TempDir = tempfile::Builder::new()
            .prefix("fuzz")
            .tempdir()
            .unwrap_or_else(|error| panic!("a temporary directory: {error}"));
    }
    DIRECTORY.with(|dir| dir.path().to_owned())
}

/// Panics if a message cannot stand in one line of a journal or in a status.
fn assert_message(message: &str, bytes: usize) {
    assert!(message.len() <= bytes, "{} bytes are more than {bytes}: {message:?}", message.len());
    let control = message.chars().find(|c| c.is_control());
    assert!(control.is_none(), "{control:?} in {message:?}");
}
