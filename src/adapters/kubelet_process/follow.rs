//! What the monitor's state says of the kubelet that the machine knows of. Pure: a state in, inputs and requests out.

use crate::machine::Input;
use crate::machine::model::{RunId, StartedKubelet};
use crate::monitor::wire::{Child, Phase, Request, Status, fingerprint};

/// The kubelet that is to be started.
#[derive(Debug)]
struct Wanted {
    ticket: u64,
    args: Vec<String>,
    /// The monitor was asked.
    asked: bool,
}

/// The kubelet that the machine knows of, and what it was told of it.
#[derive(Debug)]
struct Known {
    run: u64,
    ready: bool,
    pings: u64,
}

/// What the machine was told of the monitor's state, and what it asked for.
#[derive(Debug, Default)]
pub(super) struct Follower {
    wanted: Option<Wanted>,
    known: Option<Known>,
    /// The run that a former worker left, until this one has asked for a start.
    former: Option<u64>,
    leaving: bool,
    retire: bool,
}

/// What follows from a state.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) inputs: Vec<Input>,
    pub(super) requests: Vec<Request>,
    /// The kubelet that was started, or goes on.
    pub(super) started: Option<Child>,
}

impl Follower {
    /// Its worker begins in this state.
    pub(super) fn beginning(status: &Status) -> Self {
        let former = status.kubelet.as_ref().map(|kubelet| kubelet.run);
        Self { former, ..Self::default() }
    }

    /// A kubelet with these arguments is to run. One that does already is it; another one is ended first. No start had this ticket
    /// before, not a former worker's either.
    pub(super) fn want(&mut self, ticket: u64, args: Vec<String>) {
        self.known = None;
        self.wanted = Some(Wanted { ticket, args, asked: false });
    }

    /// The kubelet with this identity goes on, which a former worker left. Gives what is to be told at once.
    pub(super) fn go_on(&mut self, run: RunId, status: &Status) -> Next {
        let is_it = |kubelet: &&Child| kubelet.id() == run && kubelet.phase < Phase::Ends;
        let Some(kubelet) = status.kubelet.as_ref().filter(is_it) else {
            let result = Err("it has ended".to_owned());
            return Next { inputs: vec![Input::Started(result)], ..Next::default() };
        };
        let mut next = Next::default();
        self.begin(kubelet, true, &mut next);
        self.follow(status, &mut next.inputs);
        next
    }

    /// This kubelet was started, or goes on.
    fn begin(&mut self, kubelet: &Child, adopted: bool, next: &mut Next) {
        self.former = None;
        self.known = Some(Known { run: kubelet.run, ready: false, pings: 0 });
        next.started = Some(*kubelet);
        next.inputs.push(Input::Started(Ok(StartedKubelet { id: kubelet.id(), adopted, ready: kubelet.ready })));
    }

    /// The run that the machine knows of.
    pub(super) fn run(&self) -> Option<u64> {
        self.known.as_ref().map(|known| known.run).or(self.former)
    }

    pub(super) fn advance(&mut self, status: &Status) -> Next {
        let mut next = Next::default();
        // First: an end that was asked for is no crash.
        if status.leaving && !std::mem::replace(&mut self.leaving, true) {
            next.inputs.push(Input::Shutdown);
        }
        if status.retire && !std::mem::replace(&mut self.retire, true) {
            next.inputs.push(Input::Retire);
        }
        let ended = status.ended.filter(|ended| Some(ended.run) == self.former);
        if let Some(exit) = ended.and_then(|ended| ended.exit) {
            self.former = None;
            next.inputs.push(Input::Exited(exit));
        }
        let wanted = self.wanted.as_mut().and_then(|wanted| wanted.advance(status, &mut next.requests));
        if let Some(result) = wanted {
            (self.wanted, self.former, self.known) = (None, None, None);
            match result {
                Ok((kubelet, adopted)) => self.begin(&kubelet, adopted, &mut next),
                Err(why) => next.inputs.push(Input::Started(Err(why))),
            }
        }
        self.follow(status, &mut next.inputs);
        next
    }

    /// READY=1, pings and the end of the kubelet that the machine knows of.
    fn follow(&mut self, status: &Status, inputs: &mut Vec<Input>) {
        let Some(known) = &mut self.known else { return };
        let mut kubelets = status.kubelet.into_iter().chain(status.ended);
        let Some(seen) = kubelets.find(|kubelet| kubelet.run == known.run) else { return };
        if seen.ready.is_some() && !std::mem::replace(&mut known.ready, true) {
            inputs.push(Input::Ready);
        }
        if seen.pings > std::mem::replace(&mut known.pings, seen.pings) {
            inputs.push(Input::Watchdog);
        }
        if let Some(exit) = seen.exit {
            inputs.push(Input::Exited(exit));
            self.known = None;
        }
    }
}

impl Wanted {
    /// The answer, once there is one: the kubelet, and whether it ran already.
    fn advance(&mut self, status: &Status, requests: &mut Vec<Request>) -> Option<Result<(Child, bool), String>> {
        let is_mine = |kubelet: &Child| self.asked && kubelet.ticket == Some(self.ticket);
        if let Some((_, why)) = status.refused.as_ref().filter(|(ticket, _)| self.asked && *ticket == self.ticket) {
            return Some(Err(why.clone()));
        }
        if let Some(mine) = status.kubelet.iter().chain(&status.ended).find(|kubelet| is_mine(kubelet)) {
            return (mine.phase > Phase::Begins).then_some(Ok((*mine, false)));
        }
        let Some(other) = &status.kubelet else {
            if !self.asked {
                self.asked = true;
                requests.push(Request::Start { ticket: self.ticket, args: self.args.clone() });
            }
            return None;
        };
        if other.command == fingerprint(&self.args) && other.phase < Phase::Ends {
            return (other.phase > Phase::Begins).then_some(Ok((*other, true)));
        }
        if other.phase < Phase::Ends {
            requests.push(Request::Stop(other.run)); // SIGKILL follows, if need be
        }
        None
    }
}
