//! The laws of verdicts: what is said to have failed did fail, by itself.

use std::time::Duration;

use kubelet_config::duration::GoDuration;
use kubelet_config::source::Source;
use kubelet_supervisor::machine::evidence::Signal;
use kubelet_supervisor::machine::history::HistoryEntry;

use crate::sim::account::{Awaits, Cleared, Failed, SLACK};
use crate::sim::kubelet::Process;
use crate::sim::laws::Law;
use crate::sim::promised;
use crate::sim::records::digest_of;
use crate::sim::world::{Content, Outside};

/// Events after which a version that failed may be tried again.
const CLEARS: &[&str] = &["KubeletConfigNotBlamed", "KubeletConfigRetried"];

impl Outside {
    /// The history is to have this.
    pub fn check_event(&mut self, entry: &HistoryEntry) {
        let now = self.now;
        self.check_traces(entry.source.iter());
        let Some(source) = &entry.source else {
            if entry.reason == "KubeletConfigRolledBack" {
                self.account.unlucky.push(self.own()); // the node's own files
            }
            return;
        };
        // What runs is what the event is about, though the version was rendered to something else since.
        let lives = self.process.as_ref().or(self.account.last.as_ref()).map(|it| it.content);
        let ran = lives.filter(|ran| entry.reason != "KubeletConfigRejected" && self.is_content_of(source, *ran));
        let content = ran.or_else(|| self.content_of_version(source));
        if CLEARS.contains(&&*entry.reason) {
            let about = |failed: &Failed| failed.source == *source || Some(failed.content) == content;
            let latest = self.account.failed.iter().rev().find(|failed| about(failed)).map(|it| it.kubelet.clone());
            // What failed with another binary is cleared by nothing but another try.
            let stays = |failed: &Failed| entry.reason == CLEARS[0] && Some(&failed.kubelet) != latest.as_ref();
            self.account.failed.retain(|failed| !about(failed) || stays(failed));
        }
        match &*entry.reason {
            "KubeletConfigNotBlamed" => self.check_clearance(source, content, &entry.message),
            "KubeletConfigAwaitsConfirmation" => {
                self.check_awaits(source, content);
                // As people were told: an operator may have asked for longer.
                let told = entry.message.split("within ").nth(1).and_then(|rest| rest.split(':').next());
                let told = told.and_then(|within| within.parse::<GoDuration>().ok()).map(|within| within.0);
                let within = told.or(self.confirm_within(source));
                self.account.awaits = content.zip(within).map(|(content, within)| Awaits::new(content, within, now));
            }
            "KubeletConfigRetried" => {
                self.account.cleared.take_if(|cleared| cleared.source == *source);
                self.account.testing = false;
            }
            "KubeletConfigChanged" => {
                if self.account.cleared.as_ref().is_none_or(|cleared| cleared.source != *source) {
                    self.account.dumps = 0; // another version need not hang
                }
                self.account.cleared.take_if(|cleared| cleared.source != *source);
                self.account.testing = false;
                // What was passed, awaited and confirmed outlives the restarts of what it is about.
                self.account.awaits.take_if(|awaits| Some(awaits.content) != content);
                if let Some(awaits) = &mut self.account.awaits {
                    awaits.latest = awaits.latest.max(now + awaits.within); // that it waits may have been read only now
                }
                self.account.passed.take_if(|passed| Some(*passed) != content);
                self.account.confirmed.take_if(|confirmed| Some(*confirmed) != content);
            }
            "KubeletConfigAdopted" => {
                self.account.testing = false;
                self.account.offered.extend(content);
                self.move_deadline(source, content);
                self.account.on_trial = content;
            }
            "KubeletConfigProven" => self.account.cleared = None,
            "KubeletConfigConfirmed" => self.account.confirmed = content,
            "KubeletConfigRolledBack" | "KubeletConfigRejected" => {
                let rolled_back = entry.reason == "KubeletConfigRolledBack";
                if !rolled_back {
                    self.account.cleared = None; // another one is assigned; what was cleared is new when it comes back
                }
                let Some(content) = content else { return };
                self.check_failure(source, content, rolled_back, &entry.message);
            }
            _ => {}
        }
    }

    /// The same content under another name, or with other annotations, may be waited for longer, shorter or not at all.
    fn move_deadline(&mut self, source: &Source, content: Option<Content>) {
        let (now, within) = (self.now, self.confirm_within(source));
        let Some(awaits) = self.account.awaits.filter(|awaits| Some(awaits.content) == content) else { return };
        self.account.awaits = within.map(|within| Awaits {
            within,
            soonest: awaits.soonest.min(now + within),
            latest: awaits.latest.max(now + within),
            ..awaits
        });
    }

    /// What asks for a confirmation has passed its trial.
    fn check_awaits(&mut self, source: &Source, content: Option<Content>) {
        let Some(content) = content else { return };
        let earned = self.has_earned(content) && !self.is_lost(content);
        self.account
            .check(Law::Earned, false, earned, || format!("{source} passed no trial, and awaits a confirmation"));
        self.account.passed = Some(content);
    }

    fn check_failure(&mut self, source: &Source, content: Content, rolled_back: bool, message: &str) {
        let now = self.now;
        let awaited = self
            .account
            .awaits
            .take()
            // It is told once it is durable, which a slow disk makes later.
            .is_some_and(|awaits| awaits.content == content && now + Duration::from_secs(5) >= awaits.soonest);
        let commanded = self.account.is_commanded(now);
        let booted = self.account.fresh;
        let ailing = self.disk_is_ailing() || self.store_lags();
        // A record of which the disk said that it failed may be there all the same; and a supervisor may end between a record
        // and its event.
        let untold = self.disk.failures() > 0 || now < self.account.began + SLACK;
        let awaited = awaited || untold && message.contains("nobody confirmed");
        if rolled_back {
            self.account.confirmed = None;
            self.account.passed.take_if(|_| !message.contains("nobody confirmed"));
            self.account.boots = None; // what follows, with another binary, is another trial
            self.account.testing = false;
        }
        // A runtime that has been away for ten minutes is put to the control test, once.
        let tested = message.contains("does not come back");
        if rolled_back && !awaited && !commanded && !booted && !tested && !message.contains("nobody confirmed") {
            self.check_blame(source, content);
        }
        let lives = self.process.as_ref().or(self.account.last.as_ref());
        let hindered = lives.is_none_or(|it| it.hindered);
        if content.behaviour.works() {
            let fair = if rolled_back {
                // Its third boot, or somebody killed it, or it had no runtime.
                let died = self.account.deaths.is_some_and(|(of, _)| of == content);
                booted || hindered || died || commanded || awaited
            } else {
                // The same content was unlucky before, or it has no such key, or the preflight did not read what was meant.
                source.reference.kubelet_config_key == "absent"
                    || self.account.unlucky.contains(&content)
                    || self.is_refused_lately(content)
                    || self.is_unclear(source)
                    || message.contains("passed without proof")
            };
            self.account.check(Law::GoodIsKept, ailing, fair, || format!("{source} works, but {message}"));
        }
        if rolled_back {
            self.account.unlucky.push(content);
        }
        // What a policy refuses is taken up under another one, and what asks for nothing clear under another name.
        let by_policy = !rolled_back && (self.is_refused_lately(content) || self.is_unclear(source));
        if source.reference.kubelet_config_key != "absent" && !self.account.is_lkg(content) && !by_policy {
            let lives = self.process.as_ref().or(self.account.last.as_ref());
            // At a boot it is another life's.
            let booted = booted || message.contains("passed without proof");
            let ran = lives.filter(|it| rolled_back && !booted && it.content == content);
            let digest = ran.and_then(|it| it.path.as_deref()).map(|path| digest_of(path).to_owned());
            // What is refused may be so because it failed before, with the binary that still runs.
            let known = &self.account.known_kubelet;
            let sure = rolled_back || lives.is_none_or(|it| it.kubelet == *known);
            let kubelet = sure.then(|| ran.map_or(known, |it| &it.kubelet).clone());
            let source = source.clone();
            self.account.note_failed(Failed {
                source,
                content,
                kubelet,
                digest,
                since: now,
                durable: false,
                replaced: false,
            });
        }
    }

    /// No version is rolled back while the surroundings fail, unless they failed right after it came.
    fn check_blame(&mut self, source: &Source, content: Content) {
        let now = self.now;
        let lives = self.process.as_ref().or(self.account.last.as_ref()).filter(|it| it.content == content).cloned();
        let Some(process) = lives else { return };
        let came = process.ready_at.unwrap_or(process.started);
        let itself = |since: Option<Duration>| {
            since.is_some_and(|since| process.ready_at.is_none() || since <= came + promised::ATTRIBUTION)
        };
        let excused =
            self.disk_is_ailing() || self.store_lags() || itself(self.trouble.since) || itself(process.lost_since);
        let trouble = self.observations.has_trouble(now);
        self.account.check(Law::NotBlamed, excused, !trouble, || format!("{source} is bad for the node's trouble"));
        if let Some(lost) = self.trouble.alone_since.filter(|_| self.process.is_some()) {
            let later = lost >= came + promised::ATTRIBUTION && process.in_contact && process.well_since.is_some();
            // It may not have been asked since.
            let excused = excused || self.observations.is_good(Signal::ApiServer, now, 2 * promised::QUERIES);
            self.account
                .check(Law::NotBlamed, excused, !later, || format!("{source} is bad for the API server's trouble"));
        }
        self.account.testing = true;
    }

    /// A version is cleared if last known good was seen to fail alike.
    fn check_clearance(&mut self, source: &Source, content: Option<Content>, message: &str) {
        let now = self.now;
        self.account.testing = false;
        // A torn file of the node's own looks like a version that is refused.
        let other = |it: &Process| it.path.is_none() || Some(it.content) != content || self.account.is_lkg(it.content);
        let minutes = |since: Duration, seconds: u64| now.saturating_sub(since) >= Duration::from_secs(seconds);
        let fails = match &self.process {
            None => self.account.last.as_ref().is_some_and(|it| other(it) && it.stopping.is_none()),
            Some(it) => {
                let far = it.hindered || it.content.behaviour.is_seen_from_afar();
                let died = self.account.last.as_ref().is_some_and(|it| other(it) && it.stopping.is_none());
                other(it)
                    && (far
                        || died && !minutes(self.down_since, 60)
                        || it.sick_since.is_some_and(|since| minutes(since, 25))
                        // It was sick a moment ago, and is so again and again.
                        || it.revived.is_some_and(|(_, until)| !minutes(until, 60))
                        || !it.was_healthy && minutes(it.started, 100)
                        // As long as a kubelet's watchdog is waited for.
                        || !it.was_healthy && it.ready_at.is_some_and(|at| minutes(at, 60)))
            }
        };
        let unsure = self.was_in_trouble() || self.silence.is_one_sided();
        let unsure = unsure || message.contains("state files") && (self.store_lags() || self.disk_is_ailing());
        self.account
            .check(Law::Cleared, unsure, fails, || format!("{source} is not to blame, it is said; but nothing failed"));
        let equal = |it: &Source| content.is_some_and(|content| self.is_content_of(it, content));
        let before = self.account.cleared.as_ref().filter(|it| it.source == *source || equal(&it.source));
        let times = before.map_or(0, |before| before.times + 1);
        self.account.cleared = Some(Cleared { source: source.clone(), times, overtaken: false });
    }
}
