//! Which laws the machine is held to. A rule whose behaviour is still to come is off.

/// Events after which a version that failed may be tried again.
pub const CLEARS: &[&str] = &["KubeletConfigNotBlamed", "KubeletConfigRetried"];

/// Going back from a source to last known good (or local) of equal content restarts nothing.
pub const EQUAL_FALLBACK: bool = false;

/// Where last known good cannot run and local does, a refused change does not try that again.
pub const FUTILE_FALLBACK: bool = false;

/// The content of last known good under another name is not tried anew after a boot, and no bad version
/// of it keeps last known good from running.
pub const PROVEN_CONTENT: bool = false;

/// A version (or another of equal content) that is taken up while no kubelet runs, after an exit
/// or a failed start, keeps the tries and exits of its trial.
pub const EQUAL_WHILE_DOWN: bool = true;

/// What equals the local configuration, but not last known good, is adopted on trial all the same.
pub const LOCAL_IS_UNPROVEN: bool = true;

/// A passing error of the disk does not keep last known good from running for the rest of a life.
pub const PASSING_ERRORS: bool = false;

/// A power cut between the ledger and the assignment of one change does not give back the tries
/// of what was assigned before.
pub const TORN_RECORDS: bool = false;
