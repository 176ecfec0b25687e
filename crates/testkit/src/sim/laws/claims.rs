//! The laws of what the supervisor claims, held against what the world knows.

use std::time::Duration;

use kubelet_config::assignment::Assignment;
use kubelet_config::status::NodeConfigStatus;
use kubelet_supervisor::machine::evidence::Signal;
use kubelet_supervisor::machine::records::Version;
use kubelet_supervisor::machine::{Kubelet, State};

use crate::sim::account::{Evidence, Proven};
use crate::sim::behaviour::Behaviour;
use crate::sim::laws::Law;
use crate::sim::promised;
use crate::sim::world::{Content, Outside};

/// Parts of the texts that native promises to be in the log (website, reconfigure-kubelet.md).
const NATIVE_ERRORS: [&str; 2] = [", see Kubelet log for details", "exactly one subfield must be non-nil"];

impl Outside {
    /// After an input was taken through to its last effect.
    pub fn check_claims(&mut self, state: &State) {
        self.check_proven(state);
        self.check_bad(state);
        self.check_process(state);
        self.check_disk(state);
    }

    /// Law 4: what became last known good, and by what right.
    fn check_proven(&mut self, state: &State) {
        if *state.kubelet() == Kubelet::NotBegun {
            return; // nothing was read yet
        }
        let claimed = state.records().last_known_good.as_ref();
        let may_be_reset = self.account.may_be_reset(self.now);
        // An answer may have come too late to be heard.
        let locked =
            state.config_error().is_some_and(|(_, why)| why.starts_with("the record of this node cannot be read"));
        self.account.unread |= locked;
        if claimed.is_none() && self.account.unread {
            return; // it could not be read, and what is not known is not claimed
        }
        let known = self.account.lkg.as_ref();
        if claimed.map(|version| (&version.source, &version.digest)) == known.map(|it| (&it.source, &it.digest)) {
            return;
        }
        let Some(version) = claimed.cloned() else {
            let found = self.account.may_be_proven.contains(&None);
            let reset = may_be_reset || self.known_assignment == Assignment::Local || found;
            self.account.check(Law::Earned, self.account.blind, reset, || "nothing is last known good".to_owned());
            self.account.reset_from = self.account.lkg.take().map(|old| old.content);
            self.account.proven.extend(self.account.reset_from);
            return;
        };
        let Some(content) = self.content_of_record(&version) else { return };
        let found = self.account.may_be_proven.contains(&Some(content))
            || self.account.blind
            || may_be_reset && self.account.proven.contains(&content);
        match self.account.lkg.as_mut().filter(|lkg| lkg.content == content) {
            // The content of last known good under another name is as good as it was.
            Some(lkg) => (lkg.source, lkg.digest) = (version.source, version.digest.or(lkg.digest.take())),
            None => self.check_promotion(&version, content, found),
        }
    }

    fn check_promotion(&mut self, version: &Version, content: Content, found: bool) {
        // What waited for a confirmation passed its trial then, maybe in an earlier life; it is well now.
        let awaited = self.account.passed == Some(content);
        let earned = (awaited && self.is_well(content) || self.has_earned(content)) && !self.is_lost(content);
        // Where it is not known what runs, what runs may be something else.
        let found = found || self.process.as_ref().is_some_and(|process| process.unread);
        self.account.check(Law::Earned, found, earned, || format!("{version} became last known good"));
        let evidence = self.account.evidence;
        let before = self.account.lkg.as_ref().map(|lkg| lkg.evidence).unwrap_or_default();
        let contact = evidence.content == Some(content)
            && evidence.contact
            && (evidence.node_ready || evidence.leased || !before.node_ready && !before.leased);
        self.account.check(Law::InContact, found, contact, || {
            format!("{version} was proven with {evidence:?}, after {before:?}")
        });
        let needed = self.confirm_within(&version.source).is_some();
        let confirmed = self.account.confirmed == Some(content);
        // Where the node's own content is assigned there is nothing to go back to.
        let excused = found || self.is_own(content);
        self.account.check(Law::Confirms, excused, confirmed || !needed, || format!("nobody confirmed {version}"));
        let path = self.process.as_ref().filter(|it| it.content == content).and_then(|it| it.path.clone());
        let file = path.and_then(|path| Some((path.clone(), self.disk.peek(std::path::Path::new(&path))?)));
        let new = Proven {
            source: version.source.clone(),
            content,
            digest: version.digest.clone(),
            kubelet: self.process.as_ref().map_or(&self.kubelet_id, |it| &it.kubelet).clone(),
            file,
            // What was seen of the very process that was proven; another's may not have been heard of.
            evidence: Evidence {
                node_ready: self.process.as_ref().is_some_and(|it| it.node_ready.is_some()),
                leased: self.process.as_ref().is_some_and(|it| it.leased.is_some()),
                ..evidence
            },
        };
        let old = self.account.lkg.replace(new);
        self.account.proven.extend(old.map(|old| old.content));
        self.account.cleared = None;
    }

    /// The cluster sees that it fails, by a sign that was good before.
    pub(super) fn is_lost(&self, content: Content) -> bool {
        let judged =
            content.behaviour.betrayed_by().is_some_and(|signal| self.account.was_good_before(content, signal));
        let since = self.process.as_ref().and_then(|process| process.lost_since);
        judged && since.is_some_and(|since| self.now - since > promised::WATCHDOG)
    }

    /// What was proven stays so.
    fn check_bad(&mut self, state: &State) {
        let Some(lkg) = self.account.lkg.clone().filter(|lkg| lkg.digest.is_some()) else { return };
        let bad = &state.records().bad;
        if bad.is_empty() {
            return;
        }
        let marked = bad.iter().find(|bad| bad.digest == lkg.digest && bad.kubelet.0 == lkg.kubelet);
        self.account.check(Law::ProvenIsNotBad, false, marked.is_none(), || format!("{marked:?}"));
    }

    /// The supervisor knows its process, and the status says what that runs.
    fn check_process(&mut self, state: &State) {
        let (Some(pid), Some(process)) = (state.pid(), &self.process) else { return };
        if self.account.status_is_known {
            return;
        }
        let (known, content, local) = (process.pid, process.content, process.path.is_none());
        let said = match &self.status.active {
            Some(source) => self.is_content_of(source, content),
            None => local || self.is_own(content) || self.says_local_failed(),
        };
        let status = self.status.active.clone();
        // While the store gives no answer nobody can look at what a kubelet is started with once more.
        let unseen = content.behaviour == Behaviour::Invalid && self.store_lags();
        // What lasts for moments is not told.
        let unseen = unseen || process.unread || !state.is_status_due();
        let account = &mut self.account;
        account.check(Law::OneKubelet, false, pid == known, || format!("{pid} is not {known}"));
        // Where the record could not be read yet, nothing is said.
        account.check(Law::StatusIsTrue, account.unread || unseen, said, || {
            format!("{status:?} is said to run, and {content:?} does")
        });
        account.status_is_known = true;
    }

    /// Nothing is assigned or proven, as after a reset; the error says that the local files failed, and what runs for them.
    pub(super) fn says_local_failed(&self) -> bool {
        let status = &self.status;
        let is_reset = status.assigned.is_none() && status.last_known_good.is_none() && status.error.is_some();
        is_reset && status.condition.message.contains("in its place")
    }

    /// A line of the log.
    pub fn note_error(&mut self, line: &str) {
        if NATIVE_ERRORS.iter().any(|error| line.contains(error)) {
            self.account.errors_logged.push(line.to_owned());
        }
    }

    /// Whoever searches the log for what the status says finds it, and what it is about.
    pub fn check_error(&mut self, status: &NodeConfigStatus) {
        let logged = std::mem::take(&mut self.account.errors_logged);
        let Some(error) = status.error.as_ref().filter(|_| status.error != self.status.error) else { return };
        let details = |line: &String| line.split_once(error.as_str()).is_some_and(|(_, rest)| rest.len() > ": ".len());
        let found = logged.iter().any(details);
        self.account.check(Law::ErrorIsLogged, false, found, || format!("{error:?} is not in the log: {logged:?}"));
    }

    /// Law 3: the disk says what is said to be on it, and holds last known good.
    fn check_disk(&mut self, state: &State) {
        let changes = self.disk.changes();
        if changes == self.account.looked_at {
            return;
        }
        self.account.looked_at = changes;
        let found = self.records(&self.disk.seen());
        let durable = self.records(&self.disk.durable());
        let versions = durable.iter().flat_map(|records| {
            let attempt = records.phase.attempt().map(|attempt| &attempt.version);
            records.assigned.iter().chain(&records.last_known_good).chain(attempt)
        });
        let versions: Vec<_> = versions.collect();
        self.account.named.extend(versions.iter().filter_map(|version| version.digest.clone()));
        let bad = durable.iter().flat_map(|records| records.bad.iter().map(|bad| &bad.source));
        self.check_traces(versions.iter().map(|version| &version.source).chain(bad));
        let agree =
            found.as_ref().map_or_else(|| state.saved().last_known_good.is_none(), |found| **found == *state.saved());
        let file = self.account.lkg.as_ref().and_then(|lkg| lkg.file.clone());
        let rotten = file.as_ref().is_some_and(|(path, _)| self.disk.is_rotten(crate::sim::records::content_dir(path)));
        let whole = file.as_ref().is_none_or(|file| self.is_durable(file));
        let excused = self.disk_is_ailing()
            || self.account.blind
            || self.account.unread
            || *state.kubelet() == Kubelet::NotBegun
            || self.store_lags();
        let saved = state.saved();
        self.account.check(Law::RecordsHold, excused, agree, || format!("{found:?} is not {saved:?}"));
        if file.is_some() {
            self.account.check(Law::ContentsHold, excused || rotten, whole, || format!("{file:?} is not there"));
        }
        // What waits to be written may be written yet, whatever became of it.
        let waits = self.silence.waits_for(self.now).is_some();
        if *state.kubelet() != Kubelet::NotBegun && agree && whole && !waits {
            self.account.failures_seen = self.disk.failures();
            self.account.reset_requested = self.known_assignment == Assignment::Local;
            self.account.unpin_requested &= !self.account.asked.is_empty();
            self.account.thaw_requested &= !self.account.asked.is_empty();
        }
    }

    /// Since when, and for how long at the most, a trial of this process may go on though it fails.
    pub(super) fn fault(&self, state: &State) -> Option<(Duration, Duration)> {
        let process = self.process.as_ref()?;
        let judged = |signal| self.account.was_good_before(process.content, signal);
        if !process.ready {
            return Some((process.started, state.settings.start_timeout));
        }
        if !process.was_heard {
            let since = process.ready_at.unwrap_or(process.started);
            return judged(Signal::Healthz).then_some((since, state.settings.start_timeout));
        }
        if let Some(since) = process.sick_since.filter(|_| judged(Signal::Healthz)) {
            return Some((since, promised::HEALTHZ));
        }
        let signal = process.content.behaviour.betrayed_by()?;
        let patience = signal.patience(state.settings.isolation);
        process.lost_since.filter(|_| judged(signal)).map(|since| (since, patience))
    }
}
