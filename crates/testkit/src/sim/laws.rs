//! The laws by name, and how often each was put to the test.
//!
//! Each is stated from what the world knows: processes, contents, contact, the disk, the API server, what an operator was
//! told. The machine's record is looked at for what it claims, never for what it may do. A check counts only where nothing
//! excused it.

mod claims;
mod crash;
mod deadlines;
mod hung;
mod local_files;
mod moments;
mod operators;
mod peace;
mod start;
mod stop;
mod verdicts;

/// A law, or one of the points that follow from the laws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Law {
    Runs,
    RunsInStall,
    OneKubelet,
    GoesOn,
    Standby,
    Ends,
    Watchdog,
    Known,
    Flags,
    ProvenIsNotLeft,
    Durable,
    SavedAsGiven,
    NothingLost,
    Mended,
    LocalFiles,
    RecordsHold,
    ContentsHold,
    Earned,
    InContact,
    StoppedForAReason,
    EqualCostsNothing,
    NotWhileAway,
    NotUnderPressure,
    CostsNoPods,
    Courtesy,
    BadStaysBad,
    BadIsDurable,
    ProvenIsNotBad,
    BootsCount,
    ExitsCount,
    SickEnds,
    RefusedNeverRuns,
    PolicyHolds,
    PolicyIsTold,
    GoodIsKept,
    NotBlamed,
    Cleared,
    RetryLater,
    Hung,
    Confirms,
    Obeys,
    Held,
    TriesAgain,
    StatusIsTrue,
    ErrorIsLogged,
    NoSpinning,
    Rests,
    TrialEnds,
    GivesUp,
    WallClock,
    LastingFaults,
    Asked,
    LeavesNoTrace,
    Converges,
}

/// A law, how often it is to be checked in 100,000 steps, and what it says.
pub type Entry = (Law, u64, &'static str);

impl Law {
    pub const ALL: [Entry; 54] = [
        (Self::Runs, 10_000, "law 1: a kubelet runs, but for moments"),
        (Self::RunsInStall, 3_000, "law 1: it does so while the store does not answer"),
        (Self::OneKubelet, 1_000, "law 1: there is one kubelet at a time, and the machine knows which"),
        (Self::GoesOn, 100, "law 5: the death of a worker costs no kubelet, unless another configuration is wanted"),
        (Self::Standby, 20, "law 1: a kubelet that waits for the end of another is started within moments, or ended"),
        (Self::Ends, 20, "law 1: the supervisor ends when it is told to, and the kubelet with it"),
        (Self::Watchdog, 10_000, "law 1: systemd's watchdog is pinged, whatever the store does"),
        (Self::Known, 80, "law 2: what is started was assigned, or proven, or is local"),
        (Self::Flags, 20, "law 2: what is started has the flags of its source, and no others"),
        (Self::ProvenIsNotLeft, 10, "law 2: what was proven and can be read is not left for local"),
        (Self::Durable, 100, "law 3: what is started outlives a power cut at this moment"),
        (Self::SavedAsGiven, 100, "law 3: what is saved is what the API server gave for that very version"),
        (Self::NothingLost, 100, "law 3: a crash at any instruction loses no last known good"),
        (Self::Mended, 1, "law 3: what is damaged behind the supervisor's back is put right while the kubelet runs"),
        (Self::LocalFiles, 5_000, "what the local file says otherwise than what runs is told, or followed"),
        (Self::RecordsHold, 300, "law 3: what is said to be on disk is there"),
        (Self::ContentsHold, 20, "law 3: the content of last known good is whole and durable"),
        (Self::Earned, 7, "law 4: last known good was healthy for the whole trial, or it was reset"),
        (Self::InContact, 4, "law 4: nothing is proven on a node that was out of contact for the whole trial"),
        (Self::StoppedForAReason, 3, "law 5: a kubelet is stopped for a change or a failure"),
        (Self::EqualCostsNothing, 6, "law 5: no restart into the content that ran"),
        (Self::NotWhileAway, 9, "law 5: nothing is switched to while the API server is away"),
        (Self::NotUnderPressure, 20, "law 5: nothing is switched to while the node is under pressure"),
        (Self::CostsNoPods, 1, "law 5: nothing is switched to while any restart would cost pods"),
        (Self::Courtesy, 20, "law 5: a change waits for streams, and no longer than the courtesy"),
        (Self::BadStaysBad, 30, "what failed is not started again, under whatever name"),
        (Self::BadIsDurable, 20, "what failed is remembered durably"),
        (Self::ProvenIsNotBad, 1_000, "the content of last known good is not bad for the binary it was proven with"),
        (Self::BootsCount, 20, "three boots without proof are enough"),
        (Self::ExitsCount, 20, "two exits in a trial are enough"),
        (Self::SickEnds, 100, "a trial that is sick or never healthy ends in time"),
        (Self::RefusedNeverRuns, 30, "what the kubelet refuses, or --unknown-fields, is never started"),
        (Self::PolicyHolds, 80, "law 7: what the node's policy refuses is never started, under whatever name"),
        (Self::PolicyIsTold, 1_000, "law 7: what the policy says of what runs is told"),
        (Self::GoodIsKept, 1, "what works is rolled back or refused for nothing but what it did"),
        (Self::NotBlamed, 5, "no version is rolled back for the node's trouble alone"),
        (Self::Cleared, 1, "a version is cleared only if last known good fails alike"),
        (Self::RetryLater, 7, "what was not to blame is tried again in better times"),
        (Self::Hung, 200, "a kubelet that hangs while nobody judges it is restarted as it was, and no other one is"),
        (Self::Confirms, 3, "what is to be confirmed is confirmed, or ends in time"),
        (Self::Obeys, 7, "operators are answered, and what was answered is durable"),
        (Self::Held, 200, "what is pinned or frozen stays, over boots as well"),
        (Self::TriesAgain, 5, "what the disk refused is tried again in time"),
        (Self::StatusIsTrue, 500, "law 6: the status says what runs"),
        (Self::ErrorIsLogged, 200, "law 6: the error of the status is in the log word for word, with details"),
        (Self::NoSpinning, 1_000, "no busy loop"),
        (Self::Rests, 1, "law 6: a node that is left alone with its faults comes to rest"),
        (Self::TrialEnds, 1, "law 6: a trial ends, or a fault of the world that lasts holds it"),
        (Self::GivesUp, 4, "a question without an answer is given up"),
        (Self::WallClock, 1, "jumps of the wall clock change nothing"),
        (Self::LastingFaults, 5, "beside a fault that never heals, everything else goes on"),
        (Self::Asked, 100, "a preflight on request is answered in time, and truly"),
        (Self::LeavesNoTrace, 1_000, "what was only asked about is on no record, in no event and in no status"),
        (Self::Converges, 5, "left in peace, a node comes to what is wanted"),
    ];

    /// The law of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().map(|(law, ..)| *law).find(|law| format!("{law:?}") == name)
    }
}

/// Which laws end a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Heed {
    #[default]
    All,
    Only(Law),
    AllBut(Law),
}

impl Heed {
    pub fn heeds(self, law: Law) -> bool {
        match self {
            Self::All => true,
            Self::Only(only) => law == only,
            Self::AllBut(other) => law != other,
        }
    }
}

/// What the message of a broken law begins with; another panic is none.
const BROKEN: &str = "broken law ";

/// Ends the world.
pub fn broken(law: Law, why: &str) -> ! {
    panic!("{BROKEN}{law:?}: {why}");
}

/// The law that a panic's message tells of; `None` if something else broke.
pub fn broken_law(message: &str) -> Option<Law> {
    Law::named(message.strip_prefix(BROKEN)?.split(':').next()?)
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

    /// All laws with their counts, and the count that a run of so many steps must have.
    pub fn iter(&self, steps: u64) -> impl Iterator<Item = (Law, &'static str, u64, u64)> {
        let floor = move |per: u64| (per * steps / 100_000).max(1);
        Law::ALL.iter().map(move |(law, per, name)| (*law, *name, self.0[*law as usize], floor(*per)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laws_are_in_their_order() {
        for (number, (law, floor, _)) in Law::ALL.iter().enumerate() {
            assert_eq!(*law as usize, number);
            assert!(*floor > 0, "{law:?}");
            assert_eq!(Law::named(&format!("{law:?}")), Some(*law));
        }
    }

    #[test]
    fn a_run_that_checks_too_little_is_seen() {
        let mut tally = Tally::default();
        let low = |tally: &Tally, steps| tally.iter(steps).filter(|(_, _, checks, floor)| checks < floor).count();
        assert_eq!(low(&tally, 1000), Law::ALL.len());
        Law::ALL.iter().for_each(|(law, floor, _)| (0..*floor).for_each(|_| tally.check(*law)));
        assert_eq!(low(&tally, 100_000), 0);
        assert_eq!(low(&tally, 200_000), Law::ALL.len(), "floors grow with the steps");
    }

    #[test]
    fn other_panics_are_no_broken_laws() {
        let message = std::panic::catch_unwind(|| broken(Law::Runs, "for too long")).unwrap_err();
        let message = message.downcast_ref::<String>().unwrap();
        assert_eq!(broken_law(message), Some(Law::Runs));
        assert_eq!(broken_law("index out of bounds: Runs"), None);
    }
}
