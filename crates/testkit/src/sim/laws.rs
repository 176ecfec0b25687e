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

macro_rules! laws {
    ($($law:ident $floor:literal $name:literal)*) => {
        /// A law, or one of the points that follow from the laws.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Law {
            $($law),*
        }

        impl Law {
            pub const ALL: [Entry; [$($name),*].len()] = [$((Self::$law, $floor, $name)),*];
        }
    };
}

laws! {
    Runs 10_000 "law 1: a kubelet runs, but for moments"
    RunsInStall 3_000 "law 1: it does so while the store does not answer"
    OneKubelet 1_000 "law 1: there is one kubelet at a time, and the machine knows which"
    GoesOn 100 "law 5: the death of a worker costs no kubelet, unless another configuration is wanted"
    Standby 20 "law 1: a kubelet that waits for the end of another is started within moments, or ended"
    Ends 20 "law 1: the supervisor ends when it is told to, and the kubelet with it"
    Watchdog 10_000 "law 1: systemd's watchdog is pinged, whatever the store does"
    Known 80 "law 2: what is started was assigned, or proven, or is local"
    Flags 20 "law 2: what is started has the flags of its source, and no others"
    ProvenIsNotLeft 10 "law 2: what was proven and can be read is not left for local"
    Durable 100 "law 3: what is started outlives a power cut at this moment"
    SavedAsGiven 100 "law 3: what is saved is what the API server gave for that very version"
    NothingLost 100 "law 3: a crash at any instruction loses no last known good"
    Mended 1 "law 3: what is damaged behind the supervisor's back is put right while the kubelet runs"
    LocalFiles 5_000 "what the local file says otherwise than what runs is told, or followed"
    RecordsHold 300 "law 3: what is said to be on disk is there"
    ContentsHold 20 "law 3: the content of last known good is whole and durable"
    Earned 7 "law 4: last known good was healthy for the whole trial, or it was reset"
    InContact 4 "law 4: nothing is proven on a node that was out of contact for the whole trial"
    StoppedForAReason 3 "law 5: a kubelet is stopped for a change or a failure"
    EqualCostsNothing 6 "law 5: no restart into the content that ran"
    NotWhileAway 9 "law 5: nothing is switched to while the API server is away"
    NotUnderPressure 20 "law 5: nothing is switched to while the node is under pressure"
    CostsNoPods 1 "law 5: nothing is switched to while any restart would cost pods"
    Courtesy 20 "law 5: a change waits for streams, and no longer than the courtesy"
    BadStaysBad 30 "what failed is not started again, under whatever name"
    BadIsDurable 20 "what failed is remembered durably"
    ProvenIsNotBad 1_000 "the content of last known good is not bad for the binary it was proven with"
    BootsCount 20 "three boots without proof are enough"
    ExitsCount 20 "two exits in a trial are enough"
    SickEnds 100 "a trial that is sick or never healthy ends in time"
    RefusedNeverRuns 30 "what the kubelet refuses, or --unknown-fields, is never started"
    PolicyHolds 80 "law 7: what the node's policy refuses is never started, under whatever name"
    PolicyIsTold 1_000 "law 7: what the policy says of what runs is told"
    GoodIsKept 1 "what works is rolled back or refused for nothing but what it did"
    NotBlamed 5 "no version is rolled back for the node's trouble alone"
    Cleared 1 "a version is cleared only if last known good fails alike"
    RetryLater 7 "what was not to blame is tried again in better times"
    Hung 200 "a kubelet that hangs while nobody judges it is restarted as it was, and no other one is"
    Confirms 3 "what is to be confirmed is confirmed, or ends in time"
    Obeys 7 "operators are answered, and what was answered is durable"
    Held 200 "what is pinned or frozen stays, over boots as well"
    TriesAgain 5 "what the disk refused is tried again in time"
    StatusIsTrue 500 "law 6: the status says what runs"
    ErrorIsLogged 200 "law 6: the error of the status is in the log word for word, with details"
    NoSpinning 1_000 "no busy loop"
    Rests 1 "law 6: a node that is left alone with its faults comes to rest"
    TrialEnds 1 "law 6: a trial ends, or a fault of the world that lasts holds it"
    GivesUp 4 "a question without an answer is given up"
    WallClock 1 "jumps of the wall clock change nothing"
    LastingFaults 5 "beside a fault that never heals, everything else goes on"
    Asked 100 "a preflight on request is answered in time, and truly"
    LeavesNoTrace 1_000 "what was only asked about is on no record, in no event and in no status"
    Converges 5 "left in peace, a node comes to what is wanted"
}

/// A law, how often it is to be checked in 100,000 steps, and what it says.
pub type Entry = (Law, u64, &'static str);

impl Law {
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
    fn laws_are_found_by_their_names() {
        for (law, floor, _) in Law::ALL {
            assert!(floor > 0, "{law:?}");
            assert_eq!(Law::named(&format!("{law:?}")), Some(law));
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
