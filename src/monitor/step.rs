//! The transition: an event in, actions out. Nothing here waits, reads or writes.
//!
//! A child goes from phase to phase and never back ([`Monitor::enter`]), and may be in each for so long ([`patience`]). What time
//! brings beside that is in the one table that gives the deadline, too ([`Monitor::due`]).

use std::time::Duration;

use super::state::{Action, Due, Event, FEED_MAX, KUBELET_PAUSES, Monitor, Role, SILENCE, notice, patience};
use super::wire::{Child, Phase, Request, fingerprint};
use crate::machine::model::Exit;
use kubelet_config::flags::KubeletArgs;

const SIGQUIT: i32 = 3;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

impl Monitor {
    /// Takes what happened at this time (CLOCK_BOOTTIME); gives what is to be done, in order.
    pub fn step(&mut self, event: Event, now: Duration) -> Vec<Action> {
        self.now = self.now.max(now);
        match event {
            Event::Tick => {}
            Event::Boot(args) => {
                self.reading = Duration::ZERO;
                if let Some(args) = args.filter(|_| self.runs == 0 && self.kubelet().is_none()) {
                    self.last = args;
                }
            }
            Event::End => self.end(),
            Event::Reload => self.reload(),
            Event::Forward(signal) => self.signal(Role::Kubelet, signal),
            Event::Forked(role, pid, output) => self.forked(role, pid, output),
            Event::Failed(role, why) => self.failed(role, &why),
            Event::Lives(role) => _ = self.enter(role, Phase::Lives),
            Event::Reaped(pid, exit) => self.reaped(pid, exit),
            Event::Said(generation, request) => self.said(generation, request),
            Event::Broken(generation, why) => self.kill(Role::Worker(generation), &why),
            Event::Ready => self.ready(),
            Event::Ping => self.ping(),
        }
        for nth in 0..self.due().len() {
            // Looked up each time: what is done may change what else is due.
            match self.due().get(nth) {
                Some((Some(at), act)) if self.now >= *at => act(self),
                _ => {}
            }
        }
        if self.turned == 0 {
            self.turned = self.obeyed().unwrap_or_default();
        }
        std::mem::take(&mut self.out)
    }

    /// In the order in which it is looked at.
    fn due(&self) -> [Due; 6] {
        [
            (self.children.values().map(|child| child.until).min(), Self::lose_patience),
            (self.start_at(), |monitor| monitor.start(None, monitor.last.clone())),
            (self.reload_at(), Self::go_on_reloading),
            (self.work_at(), Self::work),
            (self.ping_at(), Self::ping_systemd),
            (self.end_at(), |monitor| monitor.out.push(Action::Exit(0))),
        ]
    }

    /// When something is due; `None`: never.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.due().into_iter().filter_map(|(at, _)| at).min()
    }

    fn lose_patience(&mut self) {
        let late = self.children.iter().filter(|(_, child)| self.now >= child.until);
        for (role, phase) in late.map(|(role, child)| (*role, child.phase)).collect::<Vec<_>>() {
            match phase {
                Phase::Begins => self.kill(role, "it says no hello"),
                Phase::Lives => self.kill(role, "it says nothing any more"),
                Phase::Ends => self.kill(role, "it does not end"),
                Phase::Killed | Phase::Left => self.gone(role, "it cannot be killed, and is left alone"),
            }
        }
    }

    /// The child is in this phase from now on. False if it is not there, or as far already.
    pub(super) fn enter(&mut self, role: Role, phase: Phase) -> bool {
        let Some(child) = self.children.get_mut(&role).filter(|child| child.phase < phase) else { return false };
        (child.phase, child.until) = (phase, self.now.saturating_add(patience(role, phase)));
        true
    }

    /// A child is asked for.
    pub(super) fn add(&mut self, role: Role, child: Child) {
        let until = self.now.saturating_add(patience(role, child.phase));
        self.children.insert(role, Child { since: self.now, until, ..child });
    }

    fn signal(&mut self, role: Role, signal: i32) {
        if let Some(child) = self.children.get(&role).filter(|child| child.pid > 0) {
            self.out.push(Action::Signal(child.pid, signal));
        }
    }

    pub(super) fn kill(&mut self, role: Role, why: &str) {
        if self.enter(role, Phase::Killed) {
            self.signal(role, SIGKILL);
            if role != Role::Standby {
                self.out.push(Action::Log(format!("{}: it is killed: {why}", self.name(role))));
            }
        }
    }

    fn name(&self, role: Role) -> String {
        let pid = self.children.get(&role).map(|child| child.pid).unwrap_or_default();
        match role {
            Role::Kubelet => format!("the kubelet (pid {pid})"),
            Role::Standby => format!("the standby (pid {pid})"),
            Role::Worker(generation) => format!("worker {generation} (pid {pid})"),
        }
    }

    fn end(&mut self) {
        if self.leaving.is_some() {
            self.kill(Role::Kubelet, "the supervisor was told twice to end");
            return self.out.push(Action::Exit(1));
        }
        self.leaving = Some(self.now);
        self.out.push(Action::Systemd(notice::STOPPING));
        self.stop();
        self.kill(Role::Standby, "");
    }

    fn forked(&mut self, role: Role, pid: i32, output: Option<i32>) {
        let Some(child) = self.children.get_mut(&role) else { return };
        (child.pid, child.output) = (pid, output);
        self.runs = self.runs.max(child.run);
        if child.phase >= Phase::Ends {
            self.signal(role, SIGKILL); // it was told to end before
        }
    }

    fn failed(&mut self, role: Role, why: &str) {
        let Some((pid, ticket)) = self.children.get(&role).map(|child| (child.pid, child.ticket)) else { return };
        self.refuse(ticket, why);
        if pid == 0 {
            self.gone(role, &format!("it cannot be forked: {why}"));
            self.children.remove(&role);
        } else {
            self.out.push(Action::Log(format!("{}: it cannot be run: {why}", self.name(role)))); // its end follows
        }
    }

    fn reaped(&mut self, pid: i32, exit: Exit) {
        let Some(role) = self.role_of(pid) else { return };
        if let Some(code) = self.refusal(role, exit) {
            return self.out.push(Action::Exit(code));
        }
        self.gone(role, &exit.to_string());
        let child = self.children.remove(&role).filter(|_| role == Role::Kubelet);
        if let Some(kubelet) = child {
            self.ended = Some(Child { exit: Some(exit), ..kubelet });
        }
    }

    /// A child ended, was not forked, or cannot be killed: it is counted on no more.
    fn gone(&mut self, role: Role, how: &str) {
        let what = format!("{}: {how}", self.name(role));
        match role {
            Role::Worker(generation) => self.worker_gone(generation, what),
            Role::Kubelet => {
                let (began, phase) = self.kubelet().map(|it| (it.since, it.phase)).unwrap_or_default();
                if phase == Phase::Killed || self.obeyed().is_none() && self.leaving.is_none() {
                    self.out.push(Action::Log(what));
                }
                if phase > Phase::Begins {
                    self.absent = self.now;
                }
                self.kubelet_pause.after(began, self.now, KUBELET_PAUSES);
            }
            Role::Standby => {}
        }
        self.enter(role, Phase::Left);
    }

    fn said(&mut self, generation: u64, request: Request) {
        let role = Role::Worker(generation);
        let Some(worker) = self.children.get_mut(&role) else { return };
        match (worker.phase, &request) {
            (Phase::Begins, Request::Hello { protocol, version }) => self.hello(generation, *protocol, version),
            (Phase::Begins, _) => self.kill(role, "it says other things before hello"),
            (Phase::Lives, _) => worker.until = self.now.saturating_add(SILENCE),
            _ => {}
        }
        if self.obeyed() == Some(generation) {
            self.obey(request);
        }
    }

    fn obey(&mut self, request: Request) {
        let is_run = |run| self.kubelet().is_some_and(|kubelet| kubelet.run == run);
        match request {
            Request::Start { ticket, args } => self.start(Some(ticket), args),
            Request::Park { ticket, args } => self.park(ticket, &args),
            Request::Unpark => self.kill(Role::Standby, ""),
            Request::Stop { run } if is_run(run) => self.stop(),
            Request::Dump { run } if is_run(run) => {
                self.enter(Role::Kubelet, Phase::Ends);
                self.signal(Role::Kubelet, SIGQUIT);
            }
            Request::Hello { .. } | Request::Beat | Request::Stop { .. } | Request::Dump { .. } => {}
            Request::Feed { millis } => {
                self.fed_until = self.now.saturating_add(Duration::from_millis(millis).min(FEED_MAX));
            }
            Request::Show { text } => self.out.push(Action::Show(text)),
        }
    }

    fn refuse(&mut self, ticket: Option<u64>, why: &str) {
        if let Some(ticket) = ticket {
            self.refused = Some((ticket, why.to_owned()));
        }
    }

    fn start(&mut self, ticket: Option<u64>, args: Vec<String>) {
        if self.kubelet().is_some() || self.leaving.is_some() {
            return self.refuse(ticket, "there is a kubelet, or the supervisor ends");
        }
        let (command, run) = (fingerprint(&args), self.runs.saturating_add(1));
        let fits = |standby: &Child| standby.phase == Phase::Lives && standby.command == command;
        if self.children.get(&Role::Standby).is_some_and(fits)
            && let Some(standby) = self.children.remove(&Role::Standby)
        {
            self.runs = run;
            self.add(Role::Kubelet, Child { ticket, run, ..standby });
            self.out.push(Action::Promote);
        } else {
            self.kill(Role::Standby, "");
            if ticket.is_none() {
                self.out
                    .push(Action::Log("no worker starts a kubelet: it is started with its last command".to_owned()));
            }
            self.add(Role::Kubelet, Child { ticket, command, run, ..Child::default() });
            self.out.push(Action::Start(args.clone()));
        }
        self.last = args;
    }

    fn park(&mut self, ticket: u64, args: &[String]) {
        // One that does not wait would be a second kubelet.
        let waits = KubeletArgs::parse(args).can_stand_by() && args.iter().all(|arg| arg != "--");
        if self.children.contains_key(&Role::Standby) || self.leaving.is_some() || !waits {
            let why = "there is another standby, or its command line is not one for a standby";
            return self.refuse(Some(ticket), why);
        }
        let command = fingerprint(args);
        self.add(Role::Standby, Child { ticket: Some(ticket), command, ..Child::default() });
        self.out.push(Action::Park(KubeletArgs::for_standby(args)));
    }

    /// SIGTERM, once: a second one makes a kubelet drop what it does.
    fn stop(&mut self) {
        if self.enter(Role::Kubelet, Phase::Ends) {
            self.signal(Role::Kubelet, SIGTERM);
        }
    }

    fn ready(&mut self) {
        let Some(kubelet) = self.children.get_mut(&Role::Kubelet) else { return };
        kubelet.ready.get_or_insert(self.now);
        if !std::mem::replace(&mut self.was_ready, true) {
            self.out.push(Action::Systemd(notice::READY));
        }
    }

    fn ping(&mut self) {
        let Some(kubelet) = self.children.get_mut(&Role::Kubelet) else { return };
        kubelet.pings = kubelet.pings.saturating_add(1);
        self.pinged = None;
    }

    fn ping_systemd(&mut self) {
        self.pinged = Some(self.now);
        self.out.push(Action::Systemd(notice::WATCHDOG));
    }
}
