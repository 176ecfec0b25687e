//! Why a command failed, as the user is told.

/// A message for the user and an exit code.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// What went wrong, and what to do.
    pub message: String,
}

impl Failure {
    /// Exit code 1.
    pub fn new(message: impl Into<String>) -> Self {
        Self { code: 1, message: message.into() }
    }
}
