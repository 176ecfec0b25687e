//! A reload: another supervisor goes on in our place, with the same process id and the same kubelet.
//!
//! First the binary that is installed now is asked whether it could go on from what we know; then, in
//! a calm moment, it does. What is on its way and found again by itself (a change up to its record) is
//! dropped; what is not (a kubelet that starts or stops, a pending failure) is waited for. The boot clock
//! goes on, so a trial's health does as well, and no try is spent.

use super::handover::VERSION;
use super::io::log;
use super::{ConfigMapState, Effect, Handover, Kubelet, Level, Reload, ReloadStage, Stage, State};
use kubelet_config::status;

impl State {
    /// An operator asks for a reload.
    pub(super) fn request_reload(&mut self) -> Result<String, String> {
        if self.leaving {
            return Err("the supervisor is on its way out".to_owned());
        }
        if self.reload.stage == ReloadStage::None {
            self.reload.stage = ReloadStage::Requested;
            self.reload.error = None;
        }
        Ok("the installed supervisor takes over as soon as the kubelet runs undisturbed".to_owned())
    }

    /// Goes on with a reload, if one is asked for and now is the time.
    pub(super) fn tick_reload(&mut self, fx: &mut Vec<Effect>) {
        let is_due = matches!(self.reload.stage, ReloadStage::Requested | ReloadStage::Proven);
        if !is_due || fx.iter().any(|effect| matches!(effect, Effect::Record(..) | Effect::Stop)) {
            return;
        }
        let Some(handover) = self.hand_over() else { return };
        if self.reload.stage == ReloadStage::Requested {
            self.reload.stage = ReloadStage::Proving;
            fx.push(Effect::ProveReload(Box::new(handover)));
        } else {
            fx.push(Effect::Reexec);
        }
    }

    pub(super) fn reload_proven(&mut self, result: Result<String, String>, fx: &mut Vec<Effect>) {
        if self.reload.stage != ReloadStage::Proving {
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
    pub(super) fn reload_failed(&mut self, why: &str, fx: &mut Vec<Effect>) {
        self.reload.stage = ReloadStage::None;
        self.reload.error = Some(why.to_owned());
        log(fx, Level::Warn, format!("no reload, this supervisor stays in charge: {why}"));
    }

    /// What another supervisor needs to go on from here; `None` while something is under way that
    /// would be lost.
    #[must_use]
    pub fn hand_over(&self) -> Option<Handover> {
        let recording = matches!(&self.change, Some(change) if matches!(change.stage, Stage::Recording(_)));
        let Kubelet::Running(run) = &self.kubelet else { return None };
        if self.leaving || recording || self.pending_failure.is_some() || self.target != self.active {
            return None;
        }
        let mut state = self.clone();
        // The answer to a pending probe would go to the old process.
        let again = run.probe_at.is_none() && run.ready && self.is_observing();
        if let Kubelet::Running(run) = &mut state.kubelet
            && again
        {
            run.probe_at = Some(self.now);
        }
        if let Some(change) = state.change.take() {
            state.applying_since.get_or_insert(change.seen);
        }
        if let ConfigMapState::Present(_) = state.config_map {
            state.config_map = ConfigMapState::Pending; // its bytes are on their way again
        }
        state.launching = None;
        state.settings = super::Settings::default();
        Some(Handover { version: VERSION, state })
    }

    /// Goes on where the supervisor before us stopped.
    pub(super) fn resume(&mut self, handover: Handover, fx: &mut Vec<Effect>) {
        if self.kubelet != Kubelet::Down {
            return;
        }
        let (settings, now) = (self.settings.clone(), self.now);
        *self = State { settings, ..handover.state };
        self.advance(now);
        self.reload = Reload { count: self.reload.count + 1, ..Reload::default() };
        let pid = self.pid().unwrap_or_default();
        let active = status::name(self.active.as_ref());
        log(fx, Level::Info, format!("supervisor {} goes on with kubelet pid {pid}, {active}", status::VERSION));
        fx.push(Effect::Watch(self.assigned_map().cloned()));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Input, Purpose, Stored};
    use super::*;
    use crate::machine::model::{KubeletId, Moment, Rendered};
    use crate::machine::record::LocalState;

    fn running() -> State {
        let mut state = State::default();
        let stored = Stored { assigned: Ok(None), last_known_good: Ok(None), local_state: Ok(LocalState::default()) };
        for input in [
            Input::Boot(Box::new(stored), KubeletId::default()),
            Input::Rendered(Purpose::Launch, None, KubeletId::default(), Ok(Rendered::default())),
            Input::Started(Ok(7)),
        ] {
            state.step(input, Moment::default());
        }
        state
    }

    fn has(effects: &[Effect], wanted: fn(&Effect) -> bool) -> bool {
        effects.iter().any(wanted)
    }

    #[test]
    fn a_wish_is_kept_until_the_kubelet_runs() {
        let mut state = State::default();
        let stored = Stored { assigned: Ok(None), last_known_good: Ok(None), local_state: Ok(LocalState::default()) };
        state.step(Input::Boot(Box::new(stored), KubeletId::default()), Moment::default());
        assert!(!has(&state.step(Input::Reload, Moment::default()), |it| matches!(it, Effect::ProveReload(_))));
        let rendered = Input::Rendered(Purpose::Launch, None, KubeletId::default(), Ok(Rendered::default()));
        state.step(rendered, Moment::default());
        let effects = state.step(Input::Started(Ok(7)), Moment::default());
        assert!(has(&effects, |it| matches!(it, Effect::ProveReload(_))), "{effects:?}");
        // It dies before the new one is proven: the request stands.
        let exited = Input::Exited(crate::machine::model::Exit::Code(1));
        state.step(exited, Moment::default());
        let effects = state.step(Input::ReloadProven(Ok("2".to_owned())), Moment::default());
        assert!(!has(&effects, |it| *it == Effect::Reexec), "{effects:?}");
        assert_eq!(state.reload.stage, ReloadStage::Proven);
    }

    #[test]
    fn a_refusal_says_why_and_changes_nothing() {
        let mut state = running();
        let before = state.clone();
        state.step(Input::Reload, Moment::default());
        state.step(Input::ReloadProven(Err("broken".to_owned())), Moment::default());
        assert_eq!(state.reload.error.as_deref(), Some("broken"));
        let reload = before.reload.clone();
        assert_eq!(State { reload, ..state.clone() }, before);
        let effects = state.step(Input::Reload, Moment::default());
        assert!(has(&effects, |it| matches!(it, Effect::ProveReload(_))) && state.reload.error.is_none());
    }

    #[test]
    fn only_what_can_be_read_is_taken_over() {
        let text = running().hand_over().unwrap().encode();
        let decoded = Handover::decode(&text).unwrap();
        assert_eq!(decoded.pid(), Some(7));
        // A newer supervisor's fields are no hindrance, its newer format is.
        assert!(Handover::decode(&text.replacen('{', "{\"added\":[1],", 1)).is_ok());
        let newer = Handover::decode(&text.replacen("\"version\":1", "\"version\":2", 1));
        assert!(newer.unwrap_err().contains("has version 2, this binary reads 1"));
        assert!(Handover::decode(&text.replace("Running", "Flying")).is_err());
        assert!(Handover::decode("").is_err() && Handover::decode("{\"version\":1,\"state\":{}}").is_err());
    }
}
