//! The laws at the moments of starts, stops, saves and events, by the account and the disk.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use kubelet_config::source::{Payload, Source};
use kubelet_supervisor::adapters::fsx::Disk as _;
use kubelet_supervisor::adapters::store::FsStore;
use kubelet_supervisor::machine::record::{BadVersion, LocalState, REJECTED};
use kubelet_supervisor::machine::{Stored, limits};
use kubelet_supervisor::ports::Store as _;

use super::disk::SimDisk;
use super::laws::Law;
use super::rules;
use super::world::{Behaviour, Content, Outside, ROOT};

/// The directory of a checkpoint.
pub fn checkpoint(source: &Source) -> PathBuf {
    Path::new(ROOT).join("store/checkpoints").join(&source.uid).join(&source.resource_version)
}

/// Beside the records of native: what is pinned.
fn is_pinned_in(local_state: &LocalState, source: &Source) -> bool {
    local_state.pin.as_ref().is_some_and(|pin| pin.source.as_ref() == Some(source))
}

/// Records that were read before, by their texts: reading them is the dearest part of checking.
#[derive(Clone, Debug, Default)]
pub struct Reader(RefCell<Vec<(Texts, Rc<Stored>)>>);

/// What the record files hold, as far as they are there.
type Texts = [Option<Vec<u8>>; 3];

impl Outside {
    /// The records as a fresh supervisor would read them on this view of the disk.
    pub fn records(&self, disk: &SimDisk) -> Rc<Stored> {
        let files = ["store/meta/assigned", "store/meta/last-known-good", "supervisor/state.json"];
        let texts = files.map(|file| disk.read(&Path::new(ROOT).join(file), u64::MAX).ok());
        let mut known = self.account.reader.0.borrow_mut();
        if let Some((_, stored)) = known.iter().find(|(of, _)| *of == texts) {
            return stored.clone();
        }
        let stored = Rc::new(FsStore::new(disk.clone(), Path::new(ROOT)).load());
        if known.len() >= 4 {
            known.remove(0);
        }
        known.push((texts, stored.clone()));
        stored
    }

    /// Operations of the disk failed since it was last found in order.
    pub fn disk_is_ailing(&self) -> bool {
        self.disk.failures() != self.account.failures_seen
    }

    /// Its checkpoint was spoiled, maybe between its verification and the start.
    pub fn is_rotten(&self, source: &Source) -> bool {
        self.disk.is_rotten(&checkpoint(source))
    }

    /// What a record names, as far as it can be read.
    fn content_of_record(&self, record: &Result<Option<Source>, String>) -> Option<Content> {
        self.content_of(record.as_ref().ok()?.as_ref())
    }

    /// The content that is run where the assigned one cannot be: nothing is tried with it.
    fn is_fallback_in(&self, content: Option<Content>, stored: &Stored) -> bool {
        let local = !rules::LOCAL_IS_UNPROVEN && content == self.content_of(None);
        local || content == self.content_of_record(&stored.last_known_good)
    }

    pub fn is_fallback(&self, content: Content) -> bool {
        self.is_fallback_in(Some(content), &self.records(&self.disk.seen()))
    }

    pub fn check_save(&mut self, source: &Source, payload: &Payload) {
        let given = self
            .version_of(source)
            .is_some_and(|version| version.name == source.reference.name && version.payload.data == payload.data);
        self.account.check(Law::SavedAsGiven, given, || format!("{source} was never given like that"));
    }

    /// Laws 2 and 3, at the moment of the start and as if the power went now. Gives what the path
    /// was rendered from.
    pub fn check_start(&mut self, config: Option<&str>) -> Option<Source> {
        let stored = self.records(&self.disk.seen());
        let Some(path) = config else {
            self.check_hold(None, &stored);
            self.check_local_start(&stored);
            self.check_restart(None, &stored);
            return None;
        };
        // `/…/rendered/<uid>/<resourceVersion>/<key>` back to what it was rendered from.
        let mut parts = path.rsplit('/');
        let (key, version, uid) = (parts.next(), parts.next(), parts.next());
        let pin =
            stored.local_state.as_ref().ok().and_then(|local_state| local_state.pin.clone()).and_then(|pin| pin.source);
        let known = [&stored.assigned, &stored.last_known_good].map(|record| record.as_ref().ok().cloned().flatten());
        let source = known.into_iter().chain([pin, self.account.unpinned.clone()]).flatten().find(|source| {
            let reference = &source.reference;
            (Some(&*source.uid), Some(&*source.resource_version), Some(&*reference.kubelet_config_key))
                == (uid, version, key)
        });
        let account = &mut self.account;
        account.check(Law::NamedByRecord, source.is_some(), || {
            format!("started {path}, which no record names: {stored:?}")
        });
        let source = source?;
        for (view, disk) in [("seen", self.disk.seen()), ("durable", self.disk.durable())] {
            let stored = self.records(&disk);
            let named = [&stored.assigned, &stored.last_known_good]
                .iter()
                .any(|it| it.as_ref().ok() == Some(&Some(source.clone())))
                || self.account.unpinned.as_ref() == Some(&source)
                || stored.local_state.as_ref().is_ok_and(|it| is_pinned_in(it, &source));
            let broken = FsStore::new(disk, Path::new(ROOT)).open(&source).err().filter(|_| !self.is_rotten(&source));
            self.account.check(Law::Durable, named && broken.is_none(), || {
                format!("started {source}, but the {view} records are {stored:?}, its checkpoint: {broken:?}")
            });
            let bad_versions =
                stored.local_state.as_ref().map(|local_state| local_state.bad.clone()).unwrap_or_default();
            // A failure in a trial does not take away what was earned.
            let earned = stored.last_known_good.as_ref() == Ok(&Some(source.clone()));
            let is_bad = |bad: &BadVersion| {
                bad.source == source
                    && bad.kubelet.0 == self.account.known_kubelet
                    && !(earned && bad.reason != REJECTED)
            };
            let is_bad = bad_versions.iter().any(is_bad);
            self.account
                .check(Law::BadStaysBad, !is_bad, || format!("started {source}, which is bad on the {view} disk"));
        }
        self.check_hold(Some(&source), &stored);
        let earned = stored.last_known_good.as_ref() == Ok(&Some(source.clone()));
        let again = self.account.has_failed(&source) && !earned;
        self.account.check(Law::BadStaysBad, !again, || format!("started {source}, which has failed"));
        let refused = matches!(self.behaviour_of(Some(&source)), Some(Behaviour::Invalid | Behaviour::Unloadable));
        self.account.check(Law::RefusedNeverRuns, !refused, || format!("started {source}, which the kubelet refuses"));
        self.check_tries(&source, &stored);
        self.check_restart(Some(&source), &stored);
        Some(source)
    }

    /// Local is the last rung: last known good is unset, or cannot be used.
    fn check_local_start(&mut self, stored: &Stored) {
        let Ok(Some(proven)) = &stored.last_known_good else {
            return self.account.check(Law::LocalOnlyIfNothingElse, true, String::new);
        };
        let bad_versions = stored.local_state.as_ref().map(|local_state| local_state.bad.clone()).unwrap_or_default();
        let content = self.content_of(Some(proven));
        let said = self.account.failed.iter().map(|failed| &failed.source);
        let mut failed = bad_versions.iter().map(|bad| &bad.source).chain(said);
        let equal = failed.any(|source| self.content_of(Some(source)) == content);
        // Once it had to be local, it stays so until the next decision.
        let excused = self.account.runs_local
            || self.account.pinned.is_some()
            || self.account.commanded
            || stored.assigned == Ok(None)
            || (!rules::PROVEN_CONTENT && equal)
            || self.content_of(Some(proven)) == self.content_of(None)
            || self.disk_is_ailing()
            || bad_versions.iter().any(|bad| bad.source == *proven)
            || FsStore::new(self.disk.seen(), Path::new(ROOT)).open(proven).is_err();
        self.account.check(Law::LocalOnlyIfNothingElse, excused, || format!("local was started beside {stored:?}"));
    }

    /// Unproven ones have their tries counted, over boots and over exits.
    fn check_tries(&mut self, source: &Source, stored: &Stored) {
        let content = self.content_of(Some(source));
        let proven = self.is_fallback_in(content, stored) || self.account.pinned.is_some();
        let ailing = self.disk_is_ailing() || self.is_rotten(source);
        let account = &mut self.account;
        if proven || ailing {
            account.boots = None;
            return;
        }
        let fresh = std::mem::take(&mut account.fresh);
        let before = account.boots.take().filter(|(of, _)| of == source).map_or(0, |(_, tries)| tries);
        let tries = if fresh { before + 1 } else { 1.max(before) };
        account.boots = Some((source.clone(), tries));
        account.check(Law::BootsCount, tries <= limits::TRIAL_BOOTS, || format!("{source} was tried {tries} times"));
        let renewed = !rules::EQUAL_WHILE_DOWN && account.started.as_ref() != Some(source);
        account.deaths = account.deaths.filter(|(of, _)| Some(*of) == content && !renewed);
        let deaths = account.deaths.map_or(0, |(_, deaths)| deaths);
        account.check(Law::ExitsCount, deaths < limits::TRIAL_EXITS, || {
            format!("{source} is started after {deaths} exits on trial")
        });
    }

    /// Law 5, seen from the start.
    fn check_restart(&mut self, source: Option<&Source>, stored: &Stored) {
        let content = self.content_of(source);
        let named = [&stored.assigned, &stored.last_known_good].map(|record| record.clone().ok().flatten());
        let rotten = named.iter().flatten().any(|source| self.is_rotten(source));
        let ailing = self.disk_is_ailing();
        let back = source.is_none() || Ok(source) == stored.last_known_good.as_ref().map(Option::as_ref);
        let same = self.account.stopped_source.as_ref() == source;
        let adopted = !rules::EQUAL_FALLBACK && back && !same;
        let futile = !rules::FUTILE_FALLBACK && same && source.is_none() && stored.last_known_good != Ok(None);
        let account = &mut self.account;
        (account.fresh, account.runs_local) = (false, source.is_none());
        account.started = source.cloned();
        if source.is_none() {
            account.boots = None;
        }
        if account.deaths.is_some_and(|(of, _)| Some(of) != content) {
            account.deaths = None;
        }
        let overruled = std::mem::take(&mut account.overruled);
        let Some((before, kubelet)) = account.stopped.take().filter(|_| !overruled) else { return };
        let excused =
            ailing || rotten || adopted || futile || kubelet != account.known_kubelet || account.pinned.is_some();
        account.check(Law::EqualCostsNothing, Some(before) != content || excused, || {
            format!("{before:?} was stopped for itself beside {stored:?}")
        });
    }

    /// Law 5, seen from the stop.
    pub fn check_stop(&mut self) {
        let Some(process) = &self.process else { return };
        let content = process.content;
        let stored = self.records(&self.disk.seen());
        let bad_versions = stored.local_state.as_ref().map(|local_state| local_state.bad.clone()).unwrap_or_default();
        let failed =
            self.account.failed.iter().map(|failed| &failed.source).chain(bad_versions.iter().map(|bad| &bad.source));
        let has_failed = failed.into_iter().any(|source| self.content_of(Some(source)) == Some(content));
        let changes = self.content_of_record(&stored.assigned) != Some(content);
        let due = changes
            || has_failed
            || self.account.leaving
            || self.account.commanded
            || self.account.pinned.is_some()
            || self.disk_is_ailing();
        let works = content.behaviour.works();
        self.account.check(Law::StoppedForAReason, due, || {
            format!("{content:?} (works: {works}) was stopped for nothing beside {stored:?}")
        });
    }
}
