//! A reload, step by step.

use super::document::{Document, VERSION, decode};
use super::{Reload, ReloadStage};
use crate::machine::handover::Handover;
use crate::machine::io::{Effect, Ticket, log};
use crate::machine::question::no_answer;
use crate::machine::records::Version;
use crate::machine::{Level, State, limits};
use kubelet_config::status;

impl State {
    /// The reload that was asked for, and those before it.
    #[must_use]
    pub fn reload(&self) -> &Reload {
        &self.reload
    }

    /// An operator asks for a reload.
    pub(in crate::machine) fn request_reload(&mut self) -> Result<String, String> {
        if self.is_leaving() {
            return Err("the supervisor is on its way out".to_owned());
        }
        if self.reload.stage == ReloadStage::None {
            self.reload.stage = ReloadStage::Requested;
            self.reload.error = None;
        }
        Ok("the installed supervisor takes over as soon as the kubelet runs undisturbed".to_owned())
    }

    /// Goes on with a reload, if one is asked for and now is the time.
    pub(in crate::machine) fn tick_reload(&mut self, fx: &mut Vec<Effect>) {
        if self.reload.asked.take_if(|asked| asked.is_given_up(self.now)).is_some() {
            self.reload_failed(&format!("the installed binary: {}", no_answer(limits::RELOAD_DEADLINE)), fx);
        }
        let is_due = matches!(self.reload.stage, ReloadStage::Requested | ReloadStage::Proven);
        if !is_due {
            return;
        }
        let Some(handover) = self.hand_over() else { return };
        if self.reload.stage == ReloadStage::Requested {
            let asked = self.ask(limits::RELOAD_DEADLINE);
            self.reload.stage = ReloadStage::Proving;
            self.reload.asked = Some(asked);
            fx.push(Effect::ProveReload(asked.ticket, Box::new(handover)));
        } else {
            fx.push(Effect::Reexec);
        }
    }

    pub(in crate::machine) fn reload_proven(
        &mut self,
        ticket: Ticket,
        result: Result<String, String>,
        fx: &mut Vec<Effect>,
    ) {
        if self.reload.asked.take_if(|asked| asked.ticket == ticket).is_none() {
            return;
        }
        match result {
            Ok(version) => {
                log(fx, Level::Info, format!("supervisor {version} takes over from {}", status::VERSION));
                self.reload.stage = ReloadStage::Proven;
            }
            Err(why) => self.reload_failed(&why, fx),
        }
    }

    /// The reload is off.
    pub(in crate::machine) fn reload_failed(&mut self, why: &str, fx: &mut Vec<Effect>) {
        self.reload.stage = ReloadStage::None;
        self.reload.error = Some(why.to_owned());
        log(fx, Level::Warn, format!("no reload, this supervisor stays in charge: {why}"));
    }

    /// What another supervisor needs to go on from here; `None` while something is under way that
    /// would be lost.
    #[must_use]
    pub fn hand_over(&self) -> Option<Handover> {
        let calm = !self.is_leaving()
            && !self.is_failure_pending()
            && !self.writer.is_writing()
            && self.commands.is_empty()
            && self.standby.is_none()
            && self.launch.is_idle();
        if !calm {
            return None;
        }
        let mut state = self.clone();
        state.sync.without_bytes();
        state.forget_questions();
        (state.change, state.settings) = (None, crate::machine::Settings::default());
        let pid = state.pid()?;
        let saved = Some(state.saved().clone()).filter(|_| !state.is_unsaved());
        let document = serde_json::to_string(&Document { version: VERSION, state }).unwrap_or_default();
        Some(Handover { document, pid, saved })
    }

    /// Goes on where the supervisor before us stopped.
    pub(in crate::machine) fn resume(&mut self, handover: &Handover, fx: &mut Vec<Effect>) {
        let Ok((state, _)) = decode(&handover.document) else { return };
        if *self.kubelet() != crate::machine::Kubelet::NotBegun {
            return;
        }
        let (settings, now) = (self.settings.clone(), self.now);
        *self = Self { settings, ..state };
        self.advance(now);
        self.reload = Reload { count: self.reload.count + 1, ..Reload::default() };
        let pid = self.pid().unwrap_or_default();
        let active = Version::name(self.active());
        log(fx, Level::Info, format!("supervisor {} goes on with kubelet pid {pid}, {active}", status::VERSION));
        self.read_again();
        self.store_touched();
        self.local_files_touched(); // nobody watched meanwhile
        self.ask_policy();
        fx.push(Effect::Watch(self.sync.assigned_map().cloned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::model::{KubeletId, Moment, Rendered};
    use crate::machine::{Input, StoreRequest, Stored};

    /// Everything that is asked is answered; gives all that was asked.
    fn answer(state: &mut State, mut inputs: Vec<Input>) -> Vec<Effect> {
        let mut asked = Vec::new();
        while let Some(input) = inputs.pop() {
            for effect in state.step(input, Moment::default()) {
                inputs.extend(match &effect {
                    Effect::Store(StoreRequest::ReadRecords(ticket)) => {
                        Some(Input::RecordsRead(*ticket, Box::new(Stored::empty()), KubeletId::default()))
                    }
                    Effect::Store(StoreRequest::Load(ticket, _)) => {
                        Some(Input::Loaded(*ticket, KubeletId::default(), Ok(Rendered::default())))
                    }
                    Effect::Store(StoreRequest::SwapStateFiles(ticket, _)) => {
                        Some(Input::StateFilesSwapped(*ticket, Ok(())))
                    }
                    Effect::Store(StoreRequest::Record(ticket, _)) => Some(Input::Recorded(*ticket, Ok(()))),
                    Effect::Start(_) => Some(Input::Started(Ok(7))),
                    _ => None,
                });
                asked.push(effect);
            }
        }
        asked
    }

    fn running() -> State {
        let mut state = State::default();
        answer(&mut state, vec![Input::Boot]);
        state
    }

    /// The ticket with which the installed binary is asked.
    fn asked(effects: &[Effect]) -> Option<Ticket> {
        effects.iter().find_map(|effect| match effect {
            Effect::ProveReload(ticket, _) => Some(*ticket),
            _ => None,
        })
    }

    #[test]
    fn a_wish_is_kept_until_the_kubelet_runs() {
        let mut state = State::default();
        assert_eq!(state.step(Input::Boot, Moment::default()), [Effect::Store(StoreRequest::ReadRecords(1))]);
        assert_eq!(asked(&state.step(Input::Reload, Moment::default())), None);
        let read = Input::RecordsRead(1, Box::new(Stored::empty()), KubeletId::default());
        let effects = answer(&mut state, vec![read]);
        let ticket = asked(&effects).expect("it is asked");
        // It dies before the new one is proven: the request stands.
        let exited = Input::Exited(crate::machine::model::Exit::Code(1));
        state.step(exited, Moment::default());
        let effects = state.step(Input::ReloadProven(ticket, Ok("2".to_owned())), Moment::default());
        assert!(!effects.contains(&Effect::Reexec), "{effects:?}");
        assert_eq!(state.reload.stage, ReloadStage::Proven);
    }

    #[test]
    fn a_refusal_says_why_and_changes_nothing() {
        let mut state = running();
        let before = state.clone();
        let ticket = asked(&state.step(Input::Reload, Moment::default())).unwrap();
        state.step(Input::ReloadProven(ticket + 1, Ok("2".to_owned())), Moment::default());
        assert_eq!(state.reload.stage, ReloadStage::Proving, "the answer to another question");
        state.step(Input::ReloadProven(ticket, Err("broken".to_owned())), Moment::default());
        assert_eq!(state.reload.error.as_deref(), Some("broken"));
        let reload = before.reload.clone();
        assert_eq!(State { reload, ticket: before.ticket, ..state.clone() }, before);
        let effects = state.step(Input::Reload, Moment::default());
        assert!(asked(&effects).is_some() && state.reload.error.is_none());
    }

    #[test]
    fn only_what_can_be_read_is_taken_over() {
        let text = running().hand_over().unwrap().encode().to_owned();
        let decoded = Handover::decode(&text).unwrap();
        assert_eq!(decoded.pid(), 7);
        // A newer supervisor's fields are no hindrance, its newer format is.
        assert!(Handover::decode(&text.replacen('{', "{\"added\":[1],", 1)).is_ok());
        let newer = Handover::decode(&text.replacen("\"version\":2", "\"version\":3", 1));
        assert!(newer.unwrap_err().contains("has version 3, this binary reads 2"));
        assert!(Handover::decode(&text.replace("Running", "Flying")).is_err());
        for nothing in ["", "{\"version\":1,\"state\":{}}", "{\"version\":2,\"state\":{}}"] {
            assert!(Handover::decode(nothing).is_err(), "{nothing}");
        }
    }
}
