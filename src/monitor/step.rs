//! The transition: an event in, actions out. Nothing here waits, reads or writes.
//!
//! A child goes from phase to phase and never back ([`Monitor::enter`]), and is in none for longer than [`limit`] says.
//! What time brings is in one table, [`DUE`]. One worker is obeyed: the first that is there, once it has said hello.
//!
//! [`limit`]: super::state::limit

use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM};

use super::state::{Action, EARLY_ENDS, Event, FEED_MAX, KUBELET_PAUSES, Monitor, Pause, Role, WORKER_PAUSES};
use super::wire::{Child, PROTOCOL, Phase, Request, fingerprint};
use crate::machine::model::Exit;
use crate::os::notify_socket::Message;
use kubelet_config::flags::KubeletArgs;

/// When something is due, and what is done then.
type Due = (fn(&Monitor) -> Option<Duration>, fn(&mut Monitor));

/// What time brings, in the order in which it is looked at.
const DUE: [Due; 6] = [
    (|monitor| monitor.next_lapse().map(|(at, ..)| at), Monitor::lose_patience),
    (Monitor::reloaded_at, Monitor::reloaded),
    (Monitor::work_at, Monitor::work), // before a start: a worker that begins may want another one
    (Monitor::start_at, |monitor| monitor.start(None, monitor.last.clone())),
    (Monitor::ping_at, Monitor::ping_systemd),
    (Monitor::end_at, |monitor| monitor.out.push(Action::Exit(0))),
];

impl Monitor {
    /// Takes what happened at this time (CLOCK_BOOTTIME); gives what is to be done, in order.
    pub fn step(&mut self, event: Event, now: Duration) -> Vec<Action> {
        self.now = self.now.max(now);
        match event {
            Event::Boot(args) if self.is_new() => {
                self.kubelet_pause = Pause::default();
                self.last = args.unwrap_or_else(|| std::mem::take(&mut self.last));
            }
            Event::Boot(_) | Event::Tick => {}
            Event::Signal(SIGTERM | SIGINT) => self.end(),
            Event::Signal(SIGHUP) => self.reload(),
            Event::Signal(signal) => self.out.push(Action::Signal(Role::Kubelet, signal)),
            Event::Forked(role, pid, output) => self.forked(role, pid, output),
            Event::Failed(role, why) => self.failed(role, &why),
            Event::Lives(role) => _ = self.enter(role, Phase::Lives),
            Event::Reaped(pid, exit) => self.reaped(pid, exit),
            Event::Said(generation, request) => self.said(generation, request),
            Event::Heard(Message::Ready) => self.ready(),
            Event::Heard(Message::Ping) => self.ping(),
        }
        // Each is looked up in its turn: what is done may change what else is due.
        for (at, act) in DUE {
            if at(self).is_some_and(|at| self.now >= at) {
                act(self);
            }
        }
        std::mem::take(&mut self.out)
    }

    /// When something is due; `None`: never.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        DUE.iter().filter_map(|(at, _)| at(self)).min()
    }

    fn lose_patience(&mut self) {
        match self.next_lapse() {
            Some((_, role, Phase::Killed, why)) => self.gone(role, why),
            Some((_, role, _, why)) => self.kill(role, why),
            None => {}
        }
    }

    /// A child is asked for, or another role is a child's.
    fn add(&mut self, role: Role, child: Child) {
        self.children.insert(role, Child { since: self.now, heard: self.now, ..child });
        self.killed.remove(&role); // of one before that was never there
    }

    /// The child is in this phase from now on. False if it is not there, or as far already.
    fn enter(&mut self, role: Role, phase: Phase) -> bool {
        let Some(child) = self.children.get_mut(&role).filter(|child| child.phase < phase) else { return false };
        (child.phase, child.heard) = (phase, self.now);
        true
    }

    fn kill(&mut self, role: Role, why: &str) {
        if self.enter(role, Phase::Killed) {
            self.out.push(Action::Signal(role, SIGKILL));
            self.killed.insert(role, format!("it was killed: {why}"));
            if role != Role::Standby {
                self.out.push(Action::Log(format!("{}: it is killed: {why}", self.name(role))));
            }
        }
    }

    fn end(&mut self) {
        if self.leaving.is_some() {
            self.kill(Role::Kubelet, "the supervisor was told twice to end");
            return self.out.push(Action::Exit(1));
        }
        self.leaving = Some(self.now);
        self.out.push(Action::Systemd("STOPPING=1"));
        self.stop(SIGTERM);
        self.kill(Role::Standby, "");
    }

    fn forked(&mut self, role: Role, pid: i32, output: Option<i32>) {
        let Some(child) = self.children.get_mut(&role) else { return };
        (child.pid, child.output) = (pid, output);
        self.runs = self.runs.max(child.run);
    }

    /// A child was not forked, or cannot be its program: what is left of it ends by itself.
    fn failed(&mut self, role: Role, why: &str) {
        self.refuse(self.children.get(&role).and_then(|child| child.ticket), why);
        self.gone(role, &format!("it cannot be started: {why}"));
        self.children.remove(&role);
    }

    fn reaped(&mut self, pid: i32, exit: Exit) {
        let Some(role) = self.role_of(pid) else { return };
        if let Some(code) = self.refusal(role, exit) {
            return self.out.push(Action::Exit(code));
        }
        let how = self.killed.remove(&role).unwrap_or_else(|| exit.to_string());
        self.gone(role, &how);
        let ended = self.children.remove(&role).map(|child| Child { exit: Some(exit), ..child });
        self.told.ended = ended.filter(|_| role == Role::Kubelet).or(self.told.ended);
    }

    /// A child ended, was not started, or cannot be killed: it is counted on no more.
    fn gone(&mut self, role: Role, how: &str) {
        let Some(child) = self.children.get(&role).copied() else { return };
        let what = format!("{}: {how}", self.name(role));
        match role {
            Role::Kubelet => {
                let is_odd = matches!(child.phase, Phase::Begins | Phase::Killed);
                if is_odd || self.obeyed().is_none() && self.leaving.is_none() {
                    self.out.push(Action::Log(what)); // of all others the worker tells
                }
                if child.phase > Phase::Begins {
                    self.absent = self.now;
                }
                self.kubelet_pause.after(child.since, self.now, KUBELET_PAUSES);
            }
            Role::Worker(generation) if child.phase < Phase::Left && self.leaving.is_none() => {
                let is_first = self.workers().next().is_some_and(|(first, _)| first == generation);
                let was_asked = child.phase == Phase::Ends;
                if was_asked {
                    self.worker_pause = Pause::default();
                } else {
                    self.out.push(Action::Log(format!("{what}; the kubelet goes on")));
                    self.worker_pause.after(child.since, self.now, WORKER_PAUSES);
                }
                if is_first {
                    self.told.before = (!was_asked).then_some(what);
                    self.kill(Role::Standby, ""); // whoever asked for it cannot claim it
                }
            }
            Role::Worker(_) | Role::Standby => {}
        }
        self.enter(role, Phase::Left);
    }

    fn said(&mut self, generation: u64, message: Result<Request, String>) {
        let role = Role::Worker(generation);
        let Some(worker) = self.children.get_mut(&role) else { return };
        match (worker.phase, &message) {
            (_, Err(why)) => self.kill(role, why),
            (Phase::Begins, Ok(Request::Hello { protocol, version })) => self.hello(generation, *protocol, version),
            (Phase::Begins, Ok(_)) => self.kill(role, "it says other things before hello"),
            (Phase::Lives, Ok(_)) => worker.heard = self.now,
            _ => {}
        }
        if let Ok(request) = message
            && self.obeyed() == Some(generation)
        {
            self.obey(request);
        }
    }

    fn obey(&mut self, request: Request) {
        let is_run = |run| self.kubelet().is_some_and(|kubelet| kubelet.run == run);
        match request {
            Request::Start { ticket, args } => self.start(Some(ticket), args),
            Request::Park { ticket, args } => self.park(ticket, &args),
            Request::Unpark => self.kill(Role::Standby, ""),
            Request::Stop(run) if is_run(run) => self.stop(SIGTERM),
            Request::Dump(run) if is_run(run) => self.stop(SIGQUIT),
            Request::Hello { .. } | Request::Beat | Request::Stop(_) | Request::Dump(_) => {}
            Request::Feed(time) => self.fed_until = self.now.saturating_add(time.min(FEED_MAX)),
            Request::Show(text) => self.out.push(Action::Show(text)),
        }
    }

    fn refuse(&mut self, ticket: Option<u64>, why: &str) {
        if let Some(ticket) = ticket {
            self.told.refused = Some((ticket, why.to_owned()));
        }
    }

    fn start(&mut self, ticket: Option<u64>, args: Vec<String>) {
        if self.kubelet().is_some() || self.leaving.is_some() {
            return self.refuse(ticket, "there is a kubelet, or the supervisor ends");
        }
        let (command, run) = (fingerprint(&args), self.runs.saturating_add(1));
        let fits = |standby: &Child| standby.phase == Phase::Lives && standby.command == command;
        self.last.clone_from(&args);
        if let Some(standby) = self.children.get(&Role::Standby).copied().filter(fits) {
            self.children.remove(&Role::Standby);
            self.runs = run;
            self.add(Role::Kubelet, Child { ticket, run, ..standby });
            return self.out.push(Action::Promote);
        }
        self.kill(Role::Standby, "");
        if ticket.is_none() {
            self.out.push(Action::Log("no worker starts a kubelet: it is started with its last command".to_owned()));
        }
        self.add(Role::Kubelet, Child { ticket, command, run, ..Child::default() });
        self.out.push(Action::Start(Role::Kubelet, args));
    }

    fn park(&mut self, ticket: u64, args: &[String]) {
        // One that does not wait would be a second kubelet.
        let waits = KubeletArgs::parse(args).can_stand_by() && args.iter().all(|arg| arg != "--");
        if self.children.contains_key(&Role::Standby) || self.leaving.is_some() || !waits {
            let why = "there is another standby, or its command line is not one for a standby";
            return self.refuse(Some(ticket), why);
        }
        self.add(Role::Standby, Child { ticket: Some(ticket), command: fingerprint(args), ..Child::default() });
        self.out.push(Action::Start(Role::Standby, KubeletArgs::for_standby(args)));
    }

    /// The kubelet is to end. SIGTERM comes once: a second one makes a kubelet drop what it does.
    fn stop(&mut self, signal: i32) {
        if self.enter(Role::Kubelet, Phase::Ends) || signal == SIGQUIT {
            self.out.push(Action::Signal(Role::Kubelet, signal));
        }
    }

    fn ready(&mut self) {
        let Some(kubelet) = self.children.get_mut(&Role::Kubelet) else { return };
        kubelet.ready.get_or_insert(self.now);
        if !std::mem::replace(&mut self.was_ready, true) {
            self.out.push(Action::Systemd("READY=1"));
        }
    }

    fn ping(&mut self) {
        let Some(kubelet) = self.children.get_mut(&Role::Kubelet) else { return };
        kubelet.pings = kubelet.pings.saturating_add(1);
        self.pinged = None;
    }

    fn ping_systemd(&mut self) {
        self.pinged = Some(self.now);
        self.out.push(Action::Systemd("WATCHDOG=1"));
    }

    fn work(&mut self) {
        self.generation = self.generation.saturating_add(1);
        self.add(Role::Worker(self.generation), Child::default());
        let own_binary = self.worker_pause.early >= EARLY_ENDS;
        self.out.push(Action::Work { generation: self.generation, own_binary });
    }

    /// [`Monitor::work_at`] and [`Monitor::reloaded_at`] do the rest.
    fn reload(&mut self) {
        self.worker_pause = Pause::default();
        if self.leaving.is_none() && self.reloading.is_none() {
            self.reloading = Some(self.generation);
            self.out.extend(self.was_ready.then_some(Action::Systemd("RELOADING=1")));
        }
    }

    fn reloaded(&mut self) {
        self.reloading = None;
        self.out.extend(self.was_ready.then_some(Action::Systemd("READY=1")));
    }

    fn hello(&mut self, generation: u64, protocol: u32, version: &str) {
        if protocol != PROTOCOL {
            let why = format!(
                "kubelet-supervisor {version} speaks protocol {protocol}, and this one {PROTOCOL}: \
                 systemctl restart kubelet replaces this one"
            );
            return self.kill(Role::Worker(generation), &why);
        }
        if let Some(elder) = self.obeyed() {
            self.enter(Role::Worker(elder), Phase::Ends);
        }
        self.enter(Role::Worker(generation), Phase::Lives);
        self.turned.get_or_insert(generation); // without an elder it is obeyed at once
    }
}
