//! The first decision: what to start from what the store held.

use super::{Effect, Kubelet, Level, State, Stored, say};
use crate::core::model::{KubeletId, Source};
use crate::core::policy;
use crate::core::record::Attempt;
use crate::core::report;

impl State {
    pub(super) fn boot(&mut self, stored: Stored, id: KubeletId, fx: &mut Vec<Effect>) {
        if self.kubelet != Kubelet::Down {
            return;
        }
        self.kubelet_id = id;
        let mut keep = |what: &str, result: Result<Option<Source>, String>| {
            result.unwrap_or_else(|why| {
                say(
                    fx,
                    Level::Warn,
                    format!(
                        "the record {what} is unreadable ({why}); it is written anew once the API server is reached"
                    ),
                );
                self.error = Some((report::LOAD_ERROR.to_owned(), format!("the record {what} is unreadable: {why}")));
                None
            })
        };
        let assigned_readable = stored.assigned.is_ok();
        let keep_all = !assigned_readable || stored.last_known_good.is_err();
        self.saved.assigned = keep("meta/assigned", stored.assigned);
        self.saved.last_known_good = keep("meta/last-known-good", stored.last_known_good);
        self.saved.ledger = stored.ledger.unwrap_or_else(|why| {
            say(fx, Level::Warn, format!("the memory of past attempts is unreadable ({why}); it starts empty"));
            crate::core::record::Ledger::default()
        });
        self.keep_all = keep_all;
        self.damaged = !assigned_readable;
        self.judged.clone_from(&self.saved.ledger.judged);
        self.target = if assigned_readable { self.first_choice(fx) } else { self.fallback() };
        self.launch(fx);
    }

    /// Assigned, unless it is marked bad or has used up its tries.
    fn first_choice(&mut self, fx: &mut Vec<Effect>) -> Option<Source> {
        let assigned = self.saved.assigned.clone()?;
        if Some(&assigned) == self.saved.last_known_good.as_ref() {
            return Some(assigned);
        }
        if let Some(bad) = self.bad(&assigned, None) {
            self.error = Some((bad.error.clone(), bad.detail.clone()));
            return self.fallback();
        }
        let spent = match &self.saved.ledger.attempt {
            Some(attempt) if attempt.source == assigned => attempt.tries,
            _ => 0,
        };
        if spent >= policy::TRIAL_BOOTS {
            let detail = format!("{spent} starts of the supervisor passed without proof");
            self.mark_bad(&assigned, None, report::LOAD_ERROR, &detail, fx);
            self.say_rolled_back(&assigned, "boots", &detail, fx);
            return self.fallback();
        }
        // Spend the try before trying.
        let mut records = self.records().clone();
        records.ledger.attempt = Some(Attempt { source: assigned.clone(), tries: spent + 1 });
        self.remember(records, fx);
        Some(assigned)
    }
}
