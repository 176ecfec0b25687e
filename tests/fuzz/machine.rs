//! The machine goes on from whatever was read: a kubelet is started, nothing panics, and no input has consequences without end.

use std::collections::VecDeque;
use std::time::Duration;

use kubelet_supervisor::machine::model::{
    Beginning, Exit, KubeletId, Moment, Rendered, RunId, StartedKubelet, StateFilesFound, Verdict,
};
use kubelet_supervisor::machine::{Answer, Effect, Input, Settings, State, StoreRequest, Stored};

/// Begins with these records.
pub(crate) fn boot(stored: &Stored) {
    let mut host =
        FakeHost { state: State::new(Settings::default()), stored: Some(stored), seconds: 100, started: false };
    host.input(Input::Boot(Beginning::Supervisor));
    assert!(host.started, "no kubelet with {stored:?}");
    host.live();
}

/// A machine whose store and whose kubelet do what they are told.
struct FakeHost<'a> {
    state: State,
    stored: Option<&'a Stored>,
    seconds: u64,
    started: bool,
}

impl FakeHost<'_> {
    fn live(&mut self) {
        let inputs =
            [Input::Tick, Input::Ready, Input::Watchdog, Input::Exited(Exit::Code(1)), Input::Tick, Input::Ready];
        for (input, seconds) in inputs.into_iter().zip([1, 100, 1_000, 10_000, 1_000_000, 1]) {
            self.seconds += seconds;
            self.input(input);
        }
    }

    fn input(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        let mut steps = 0;
        while let Some(input) = inputs.pop_front() {
            let now = Moment { boot: Duration::from_secs(self.seconds), wall_nanos: self.seconds * 1_000_000_000 };
            let effects = self.state.step(input, now);
            inputs.extend(effects.into_iter().filter_map(|effect| self.answer(&effect)));
            steps += 1;
            assert!(steps < 300, "one input has no end: {:?}", self.state.records());
        }
    }

    fn answer(&mut self, effect: &Effect) -> Option<Input> {
        let kubelet = || KubeletId("k".to_owned());
        match effect {
            Effect::Store(StoreRequest::ReadRecords(ticket)) => {
                let stored = self.stored.cloned().unwrap_or_else(Stored::empty);
                Some(Input::Answer(*ticket, Answer::RecordsRead(Box::new(stored), kubelet())))
            }
            Effect::Store(StoreRequest::Load(ticket, _)) => {
                Some(Input::Answer(*ticket, Answer::Loaded(kubelet(), Ok(Rendered::default()))))
            }
            Effect::Store(StoreRequest::Record(ticket, _)) => Some(Input::Answer(*ticket, Answer::Recorded(Ok(())))),
            Effect::Store(StoreRequest::SwapStateFiles(ticket, _)) => {
                Some(Input::Answer(*ticket, Answer::StateFilesSwapped(Ok(StateFilesFound::InOrder))))
            }
            Effect::Preflight(ticket, ..) => {
                Some(Input::Answer(*ticket, Answer::PreflightDone(Verdict::Valid(Vec::new()))))
            }
            Effect::Start(..) => {
                self.started = true;
                Some(Input::Started(Ok(StartedKubelet {
                    id: RunId { pid: 4711, started: Duration::ZERO },
                    ..StartedKubelet::default()
                })))
            }
            _ => None,
        }
    }
}
