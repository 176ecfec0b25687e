//! Simulated standbys: kubelets that wait for their lock file, or that do not.

use std::path::Path;
use std::time::Duration;

use kubelet_supervisor::machine::Ticket;
use kubelet_supervisor::machine::model::{Rendered, Verdict};

use super::Rng;
use super::laws::Law;
use super::world::{Content, Outside};

/// A standby that is to be started is so within this time: the baseline, the record, the load, a kubelet that ignores SIGTERM.
const LONGEST: Duration = Duration::from_secs(60);

/// What the adapter keeps.
#[derive(Clone, Debug, Default)]
pub struct StandbySlot {
    /// The question whose standby is kept, and what it is.
    expected: Option<(Ticket, Standby)>,
    pub standby: Option<Standby>,
}

/// A kubelet that has loaded its configuration.
#[derive(Clone, Debug)]
pub struct Standby {
    path: String,
    flags: Vec<String>,
    content: Content,
    since: Duration,
    /// By the time it is to go on it has ended, or does not wait any more.
    fails: bool,
}

impl Outside {
    /// The judge of this question may stand by.
    pub fn expect_standby(&mut self, ticket: Ticket, candidate: &Rendered) {
        let content = Content::of(&self.disk.peek(Path::new(&candidate.path)).unwrap_or_default());
        // A generator of its own: worlds are what they were without standbys.
        let mut rng = Rng::new(ticket ^ self.now.as_secs());
        let hangs = rng.one_in(6);
        let standby = Standby {
            path: candidate.path.clone(),
            flags: candidate.overrides.lines(),
            content,
            since: self.now,
            fails: rng.one_in(5),
        };
        // One that hangs is killed, and the judge asked.
        self.standby = StandbySlot { expected: (!hangs).then_some((ticket, standby)), standby: None };
    }

    /// Its verdict is there.
    pub fn park_standby(&mut self, ticket: Ticket, verdict: &Verdict) {
        let now = self.now;
        if let Some((_, standby)) = self.standby.expected.take_if(|(of, _)| *of == ticket)
            && matches!(verdict, Verdict::Valid(_))
        {
            self.standby.standby = Some(Standby { since: now, ..standby });
        }
    }

    /// A start with this: the content of the standby that goes on, if it is the one.
    pub fn promote_standby(&mut self, path: Option<&str>, flags: &[String]) -> Option<Content> {
        let standby = std::mem::take(&mut self.standby).standby?;
        let fits = path == Some(standby.path.as_str()) && flags == standby.flags;
        (fits && !standby.fails).then_some(standby.content)
    }

    /// Nobody keeps one that nobody starts.
    pub fn check_standby(&mut self) {
        let Some(standby) = &self.standby.standby else { return };
        let runs = self.process.as_ref().is_some_and(|process| process.path.as_ref() == Some(&standby.path));
        let waits = self.now.saturating_sub(standby.since);
        let excused = self.store_lags() || self.disk_is_ailing();
        let content = standby.content;
        let fine = waits <= LONGEST && !runs;
        self.account.check(Law::Standby, excused && !runs, fine, || {
            format!("{content:?} stands by since {waits:?}; it runs: {runs}")
        });
    }
}
