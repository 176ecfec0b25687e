//! The laws by name, and how often each was put to the test.

/// A law, or one of the points that follow from the laws. Each is checked from facts of the
/// simulated world, not from what the machine believes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Law {
    Runs,
    OneKubelet,
    NamedByRecord,
    LocalOnlyIfNothingElse,
    Durable,
    SavedAsGiven,
    NothingLost,
    RecordsHold,
    CheckpointsHold,
    Earned,
    StoppedForAReason,
    EqualCostsNothing,
    StopEnds,
    BadStaysBad,
    BadVersionsAreDurable,
    BootsCount,
    ExitsCount,
    SickEnds,
    RefusedNeverRuns,
    GoodIsKept,
    NotBlamed,
    ObservesNodeFirst,
    Baseline,
    Clears,
    ClearedVersion,
    RetryLater,
    Confirms,
    Obeys,
    Held,
    TriesAgain,
    StatusIsTrue,
    NoSpinning,
    EndsOnRequest,
    WallClock,
    Converges,
}

impl Law {
    pub const ALL: [(Self, &'static str); 35] = [
        (Self::Runs, "law 1: a kubelet runs, but for moments"),
        (Self::OneKubelet, "law 1: there is one kubelet at a time, and the machine knows which"),
        (Self::NamedByRecord, "law 2: what is started is assigned or last known good"),
        (Self::LocalOnlyIfNothingElse, "law 2: local is started only where nothing else can be"),
        (Self::Durable, "law 3: what is started outlives a power cut at this moment"),
        (Self::SavedAsGiven, "law 3: what is saved is what the API server gave for that very version"),
        (Self::NothingLost, "law 3: a crash at any instruction loses no last known good"),
        (Self::RecordsHold, "law 3: the disk says what the machine believes"),
        (Self::CheckpointsHold, "law 3: what the records name has a whole, durable checkpoint"),
        (Self::Earned, "law 4: last known good is earned by health, or dropped by a reset"),
        (Self::StoppedForAReason, "law 5: a kubelet is stopped for a change or a failure"),
        (Self::EqualCostsNothing, "law 5: no restart into the content that ran"),
        (Self::StopEnds, "a kubelet that ignores SIGTERM is killed"),
        (Self::BadStaysBad, "a bad version is not started again"),
        (Self::BadVersionsAreDurable, "a version that failed is remembered durably"),
        (Self::BootsCount, "three boots without proof are enough"),
        (Self::ExitsCount, "two exits in a trial are enough"),
        (Self::SickEnds, "a trial that is sick or never healthy ends in time"),
        (Self::RefusedNeverRuns, "what the kubelet refuses is never started"),
        (Self::GoodIsKept, "what works is rolled back or refused for nothing but what it did"),
        (Self::NotBlamed, "no version is bad for the node's trouble alone"),
        (Self::ObservesNodeFirst, "no version is bad before the node was observed"),
        (Self::Baseline, "a trial judges by what was good before it, and by that only"),
        (Self::Clears, "if last known good fails alike, the version is cleared"),
        (Self::ClearedVersion, "a version is cleared only if last known good fails alike"),
        (Self::RetryLater, "what was not to blame is tried again in better times"),
        (Self::Confirms, "what is to be confirmed is confirmed, or ends in time"),
        (Self::Obeys, "operators are answered and obeyed"),
        (Self::Held, "what is pinned or frozen stays, over boots as well"),
        (Self::TriesAgain, "what the disk refused is tried again in time"),
        (Self::StatusIsTrue, "law 6: the status says what runs and what is recorded"),
        (Self::NoSpinning, "no busy loop"),
        (Self::EndsOnRequest, "it ends when it is told to, and the kubelet with it"),
        (Self::WallClock, "jumps of the wall clock change nothing"),
        (Self::Converges, "left in peace, a node comes to what is wanted"),
    ];
}

/// Counts of checks, by law.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally([u64; Law::ALL.len()]);

impl Default for Tally {
    fn default() -> Self {
        Self([0; Law::ALL.len()])
    }
}

impl Tally {
    /// Counts a check.
    pub fn check(&mut self, law: Law) {
        self.0[law as usize] += 1;
    }

    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine += theirs);
    }

    /// All laws with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (Law, &'static str, u64)> {
        Law::ALL.iter().map(|(law, name)| (*law, *name, self.0[*law as usize]))
    }
}
