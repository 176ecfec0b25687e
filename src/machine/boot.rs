//! The first decision: what to start from what the store held.

use super::evidence::Failure;
use super::io::log;
use super::model::KubeletId;
use super::record::Attempt;
use super::{Effect, Kubelet, Level, State, Stored};
use kubelet_config::source::Source;
use kubelet_config::status;

impl State {
    pub(super) fn boot(&mut self, stored: Stored, id: KubeletId, fx: &mut Vec<Effect>) {
        if self.kubelet != Kubelet::Down {
            return;
        }
        self.kubelet_id = id;
        self.began = self.now;
        let mut keep = |what: &str, result: Result<Option<Source>, String>| {
            result.unwrap_or_else(|why| {
                log(
                    fx,
                    Level::Warn,
                    format!(
                        "the record {what} is unreadable ({why}); it is written anew once the API server is reached"
                    ),
                );
                self.error = Some((status::LOAD_ERROR.to_owned(), format!("the record {what} is unreadable: {why}")));
                None
            })
        };
        let assigned_readable = stored.assigned.is_ok();
        let keep_all = !assigned_readable || stored.last_known_good.is_err();
        self.saved.assigned = keep("meta/assigned", stored.assigned);
        self.saved.last_known_good = keep("meta/last-known-good", stored.last_known_good);
        self.saved.local_state = stored.local_state.unwrap_or_else(|why| {
            log(fx, Level::Warn, format!("the memory of past attempts is unreadable ({why}); it starts empty"));
            super::record::LocalState::default()
        });
        self.keep_all = keep_all;
        self.checkpoint_damaged = !assigned_readable;
        self.accepted_digests.clone_from(&self.saved.local_state.accepted_digests);
        self.target = if assigned_readable { self.first_choice(fx) } else { self.fallback() };
        self.launch(fx);
    }

    /// Assigned, unless it is known as bad or has used up its tries.
    fn first_choice(&mut self, fx: &mut Vec<Effect>) -> Option<Source> {
        if let Some(pinned) = self.pinned().cloned() {
            self.pin_tried = true;
            return pinned;
        }
        let assigned = self.saved.assigned.clone()?;
        if Some(&assigned) == self.saved.last_known_good.as_ref() {
            return Some(assigned);
        }
        if let Some(bad) = self.bad_version(&assigned, None) {
            self.error = Some((bad.error.clone(), bad.detail.clone()));
            return self.fallback();
        }
        // The last supervisor may have exited for a restart of the kubelet with this version.
        let snapshot = self.saved.local_state.attempt.as_ref().filter(|attempt| attempt.source == assigned);
        let snapshot = snapshot.and_then(|attempt| attempt.snapshot.clone());
        let cleared = self
            .saved
            .local_state
            .retry_later
            .as_ref()
            .filter(|retry_later| retry_later.source == assigned && snapshot.is_none());
        if let Some(retry_later) = cleared {
            let detail = format!("not to blame, will be tried again: {}", retry_later.why);
            self.error = Some((status::LOAD_ERROR.to_owned(), detail));
            return self.fallback();
        }
        let before = self.saved.local_state.attempt.clone().filter(|attempt| attempt.source == assigned);
        let spent = before.as_ref().map_or(0, |attempt| attempt.tries);
        let adopted = before.as_ref().is_some_and(|attempt| attempt.adopted);
        if spent >= self.settings.boots && !adopted {
            let detail = format!("{spent} starts of the supervisor passed without proof");
            self.remember_bad(&assigned, None, Failure::Boots.label(), status::LOAD_ERROR, &detail, fx);
            self.report_rollback(&assigned, Failure::Boots, &detail, fx);
            return self.fallback();
        }
        if let Some(snapshot) = snapshot {
            self.restore_snapshot(snapshot);
        }
        // Spend the try before trying.
        let mut records = self.records().clone();
        let attempt = before.unwrap_or_else(|| Attempt { tries: 0, ..Attempt::new(assigned.clone()) });
        records.local_state.attempt = Some(Attempt { tries: spent + 1, ..attempt });
        self.remember(records, fx);
        Some(assigned)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Input, Purpose, RecordReason, Settings};
    use super::*;
    use crate::machine::model::{Moment, Rendered, Verdict};
    use crate::machine::record::LocalState;
    use kubelet_config::digest::Digest;
    use kubelet_config::source::ConfigMapRef;

    /// The record may be whole and only the disk at fault: its checkpoint must survive this process,
    /// also after other records have been written.
    #[test]
    fn nothing_is_collected_while_last_known_good_is_unknown() {
        let source = Source {
            reference: ConfigMapRef { namespace: "n".into(), name: "m".into(), kubelet_config_key: "k".into() },
            resource_version: "1".into(),
            uid: "u".into(),
        };
        let rendered = Rendered { digest: Digest("d".into()), path: "/r".into(), ..Rendered::default() };
        for last_known_good in [Ok(None), Err("Input/output error".to_owned())] {
            let unknown = last_known_good.is_err();
            let stored =
                Stored { assigned: Ok(Some(source.clone())), last_known_good, local_state: Ok(LocalState::default()) };
            let mut state = State::new(Settings::default());
            let mut effects = state.step(Input::Boot(Box::new(stored), KubeletId::default()), Moment::default());
            let records = effects.iter().find_map(|effect| match effect {
                Effect::Record(RecordReason::Memory, records) => Some(records.clone()),
                _ => None,
            });
            let answer = Ok(rendered.clone());
            for input in [
                Input::Recorded(RecordReason::Memory, Ok(records.expect("the try is spent"))),
                Input::Rendered(Purpose::Launch, Some(source.clone()), KubeletId::default(), answer),
                Input::Judged(1, Verdict::Valid(Vec::new())),
                Input::Started(Ok(7)),
            ] {
                effects.extend(state.step(input, Moment::default()));
            }
            assert!(effects.contains(&Effect::Start(Some("/r".to_owned()), None)), "{effects:?}");
            let collects = effects.iter().any(|effect| matches!(effect, Effect::Collect(_)));
            assert_eq!(collects, !unknown, "{effects:?}");
        }
    }
}
