//! `--restart-by exit`: the supervisor ends in place of a restart, and systemd starts both anew.

mod step;

/// EX_TEMPFAIL of sysexits(3): not 0, so that `Restart=on-failure` goes by it as `Restart=always` does.
pub const EXIT_FOR_RESTART: u8 = 75;

/// The stages of an end for a restart by systemd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum ExitForRestart {
    /// None is under way.
    #[default]
    None,
    /// The records could not be written: the next start is ours.
    Failed,
    /// It has ended: [`EXIT_FOR_RESTART`] is the exit code.
    Done,
}
