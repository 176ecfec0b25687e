//! The laws, as the small world sees them.

use std::time::Duration;

use kubelet_config::digest::Digest;
use kubelet_supervisor::machine::Effect;
use kubelet_supervisor::machine::records::{Phase, Records};

use super::world::{Content, Event, TRIAL, Who, World};

/// No kubelet for longer breaks law 1; and while somebody does not answer.
const DOWN: [Duration; 2] = [Duration::from_secs(20), Duration::from_secs(75)];

impl World {
    pub fn violate(&mut self, what: impl Into<String>) {
        self.violation.get_or_insert(what.into());
    }

    /// The laws of a start.
    pub fn check_start(&mut self, content: Option<Content>) {
        if self.process.as_ref().is_some_and(|process| !process.left) {
            self.violate("law 1: a second kubelet is started");
        }
        let proven = self.records.last_known_good.clone();
        let Some(content) = content else {
            if proven.is_some() && self.assigned && self.silent.is_none() && !self.unanswered_store() {
                self.violate(format!("law 2: local is started beside {proven:?}"));
            }
            return;
        };
        let digest = Digest(format!("{content:?}"));
        let named = |records: &Records| {
            let attempt = records.phase.attempt().map(|attempt| &attempt.version);
            let before = records.reset.as_ref().map(|reset| &reset.before);
            let mut all = [&records.assigned, &records.last_known_good].into_iter().flatten().chain(&records.proven);
            all.any(|version| version.digest.as_ref() == Some(&digest))
                || attempt.into_iter().chain(before).any(|version| version.digest.as_ref() == Some(&digest))
        };
        if !named(&self.records) || !self.contents.contains(&digest) {
            self.violate(format!("law 3: {content:?} is started, and the durable record does not say so"));
        }
        if content == Content::Refused && !self.unjudged {
            self.violate("what the kubelet refuses is started");
        }
        let (deaths, others) = self.deaths.get(&content).copied().unwrap_or_default();
        let is_proven = proven.is_some_and(|version| version.digest.as_ref() == Some(&digest));
        // Where the store does not answer nothing is written down, and where the node does not, nobody knows how others do.
        let unknown = matches!(self.silent, Some(Who::Store | Who::Node));
        if deaths > 1 && !others && !is_proven && !unknown {
            self.violate(format!("{content:?} died {deaths} times, nothing else did, and it is started again"));
        }
    }

    fn unanswered_store(&self) -> bool {
        self.unanswered.iter().any(|effect| matches!(effect, Effect::Store(_)))
    }

    /// Law 4: what is written down as last known good.
    pub fn check_proven(&mut self, records: &Records) {
        let digest = records.last_known_good.as_ref().and_then(|it| it.digest.clone());
        let Some(new) = digest.and_then(|it| Content::of(&it.0)) else { return };
        let lived = self.lived.filter(|(of, _)| *of == new).map(|(_, lived)| lived);
        if lived >= Some(TRIAL) {
            self.proven.insert(new);
        } else if !self.proven.contains(&new) {
            self.violate(format!("law 4: {new:?} is last known good, and lived {lived:?}"));
        }
    }

    pub fn check(&mut self) {
        let down = self.now.saturating_sub(self.down_since);
        let most = DOWN[usize::from(self.silent.is_some() || !self.unanswered.is_empty())];
        if self.process.is_none() && down > most {
            self.violate(format!("law 1: no kubelet for {down:?}"));
        }
        if self.process.is_some() {
            self.down_since = self.now;
        }
    }

    /// Everybody answers and nothing more happens: what is wanted comes.
    pub fn rests(&mut self) {
        if self.silent.is_some() {
            self.happen(Event::Answers);
        }
        if self.away_since.is_some() {
            self.happen(Event::Contact);
        }
        self.pass_for(Duration::from_secs(2400));
        let restarts = self.restarts;
        self.pass_for(Duration::from_secs(600));
        if self.violation.is_some() {
            return;
        }
        let works = |content: &Content| matches!(content, Content::Good | Content::Better);
        let proven = self.records.last_known_good.as_ref().and_then(|it| it.digest.clone());
        let (wanted, running) = (self.wanted(), self.process.as_ref().map(|process| process.content));
        let fine = match wanted {
            Some(content) if works(&content) && !self.hurt.contains(&content) => {
                running == Some(wanted) && proven == Some(Digest(format!("{content:?}")))
            }
            Some(_) => running.is_some_and(|it| it.as_ref().is_none_or(works)),
            None => running == Some(None) && proven.is_none(),
        };
        let phase = &self.records.phase;
        let ends = matches!(phase, Phase::Settled);
        if !fine || !ends || self.restarts != restarts {
            let restarts = self.restarts - restarts;
            self.violate(format!(
                "at rest {running:?} runs and {wanted:?} is wanted, {proven:?} is proven, {restarts} restarts in ten \
                 minutes, {phase:?}"
            ));
        }
    }
}
