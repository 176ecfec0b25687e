//! The transition: an event in, actions out. Nothing here waits, reads or writes.

use std::time::Duration;

use super::state::{
    Action, CLAIM, Event, GRACE, HELLO, Kubelet, LAST_WORDS, Monitor, Parked, Pause, Phase, Role, SETTLED, SILENCE,
    Worker, notice,
};
use super::wire::{Ended, Request, Running, Standby, fingerprint};
use crate::machine::model::Exit;
use kubelet_config::flags::KubeletArgs;

const SIGQUIT: i32 = 3;
pub(super) const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

impl Monitor {
    /// Takes what happened at this time (CLOCK_BOOTTIME); gives what is to be done, in order.
    pub fn step(&mut self, event: Event, now: Duration) -> Vec<Action> {
        self.now = self.now.max(now);
        let mut out = Vec::new();
        match event {
            Event::Tick => {}
            Event::Boot(args) => {
                self.reading = None;
                if let Some(args) = args.filter(|_| self.runs == 0 && self.starting.is_none()) {
                    self.last = args;
                }
            }
            Event::End => self.end(&mut out),
            Event::Reload => self.reload(&mut out),
            Event::Forward(signal) => self.signal(signal, false, &mut out),
            Event::Forked(role, Ok((pid, output))) => self.forked(role, pid, output, &mut out),
            Event::Forked(role, Err(why)) => self.not_forked(role, why, &mut out),
            Event::Executed(pid, result) => self.executed(pid, result, &mut out),
            Event::Reaped(pid, exit) => self.reaped(pid, exit, &mut out),
            Event::Said(generation, request) => self.said(generation, request, &mut out),
            Event::Broken(generation, why) => self.end_worker(generation, &why, &mut out),
            Event::Ready => self.ready(&mut out),
            Event::Ping => self.ping(&mut out),
            Event::Waits => {
                if let Some(standby) = self.standby.as_mut().filter(|standby| !standby.now.waits) {
                    standby.now.waits = true;
                    standby.claim_by = self.now.saturating_add(CLAIM);
                }
            }
        }
        self.tick(&mut out);
        out
    }

    /// What is due.
    fn tick(&mut self, out: &mut Vec<Action>) {
        let now = self.now;
        let overdue: Vec<Worker> = self.workers.iter().filter(|worker| now >= worker.until).cloned().collect();
        for worker in overdue {
            match worker.phase {
                Phase::Starting => self.end_worker(worker.generation, "it says no hello", out),
                Phase::Speaks => self.end_worker(worker.generation, "it says nothing any more", out),
                Phase::Retires => self.end_worker(worker.generation, "it does not end", out),
                Phase::Killed => {
                    self.stuck.push(worker.pid);
                    self.worker_gone(worker.pid, "it cannot be killed, and is left alone", out);
                }
            }
        }
        if self.reading.is_some_and(|at| self.now >= at) {
            self.reading = None;
        }
        if self.standby.as_ref().is_some_and(|standby| self.now >= standby.claim_by) {
            self.unpark(out);
        }
        if self.kubelet.as_ref().and_then(|kubelet| kubelet.kill_at).is_some_and(|at| now >= at) {
            out.push(Action::Log("the kubelet does not stop, killing it".to_owned()));
            self.signal(SIGKILL, true, out);
        }
        if self.start_at().is_some_and(|at| self.now >= at) {
            let args = self.last.clone();
            self.start(None, args, out);
        }
        self.replace(out);
        if self.ping_at().is_some_and(|at| self.now >= at) {
            self.pinged = Some(self.now);
            out.push(Action::Systemd(notice::WATCHDOG));
        }
        if let (0, Some(worker)) = (self.turned, self.obeyed()) {
            self.turned = worker.generation;
        }
        self.leave(out);
    }

    fn end(&mut self, out: &mut Vec<Action>) {
        if self.leaving.is_some() {
            self.signal(SIGKILL, true, out);
            return out.push(Action::Exit(1));
        }
        self.leaving = Some(self.now.saturating_add(GRACE * 2));
        out.push(Action::Systemd(notice::STOPPING));
        self.stop(out);
        self.unpark(out);
    }

    fn leave(&mut self, out: &mut Vec<Action>) {
        let Some(leave) = &mut self.leaving else { return };
        let is_over = self.kubelet.is_none() && self.starting.is_none();
        if is_over {
            *leave = self.now.saturating_add(LAST_WORDS).min(*leave);
        }
        if self.now >= *leave || is_over && self.workers.is_empty() {
            out.push(Action::Exit(0));
        }
    }

    fn forked(&mut self, role: Role, pid: i32, output: Option<i32>, out: &mut Vec<Action>) {
        let since = self.now;
        match role {
            Role::Worker(generation) => {
                let until = since.saturating_add(HELLO);
                self.workers.push(Worker { generation, pid, since, phase: Phase::Starting, until });
            }
            Role::Standby => {
                let Some((ticket, args)) = self.parking.take() else { return };
                let now = Standby { ticket, output, ..Standby::default() };
                self.standby = Some(Parked { pid, args, now, claim_by: since.saturating_add(CLAIM) });
            }
            Role::Kubelet => self.kubelet_is(pid, output, false, out),
        }
    }

    fn kubelet_is(&mut self, pid: i32, output: Option<i32>, executed: bool, out: &mut Vec<Action>) {
        let Some((ticket, args)) = self.starting.take() else { return };
        let (run, started) = (self.runs.saturating_add(1), nanos(self.now));
        let command = fingerprint(&args);
        let now = Running { run, ticket, pid, started, command, executed, output, ..Running::default() };
        (self.runs, self.last) = (run, args);
        self.kubelet = Some(Kubelet { now, since: self.now, kill_at: None });
        if self.leaving.is_some() {
            self.stop(out);
        }
    }

    fn not_forked(&mut self, role: Role, why: String, out: &mut Vec<Action>) {
        out.push(Action::Log(format!("no process for the {}: {why}", name(role))));
        match role {
            Role::Worker(_) => self.pause_worker(),
            Role::Standby => self.refused = self.parking.take().map(|(ticket, _)| (ticket, why)),
            Role::Kubelet => {
                let asked = self.starting.take();
                if let Some((Some(ticket), _)) = asked {
                    self.refused = Some((ticket, why));
                }
                self.pause_kubelet();
            }
        }
    }

    fn executed(&mut self, pid: i32, result: Result<(), String>, out: &mut Vec<Action>) {
        if let Err(why) = &result {
            out.push(Action::Log(format!("a program cannot be run: {why}"))); // its end follows
        }
        let Some(kubelet) = self.kubelet.as_mut().filter(|kubelet| kubelet.now.pid == pid) else { return };
        kubelet.now.executed = result.is_ok();
        if let (Err(why), Some(ticket)) = (result, kubelet.now.ticket) {
            self.refused = Some((ticket, why));
        }
    }

    fn reaped(&mut self, pid: i32, exit: Exit, out: &mut Vec<Action>) {
        if self.standby.as_ref().is_some_and(|standby| standby.pid == pid) {
            self.standby = None;
        } else if let Some(kubelet) = self.kubelet.take_if(|kubelet| kubelet.now.pid == pid) {
            if self.now.saturating_sub(kubelet.since) >= SETTLED {
                self.kubelet_pause = Pause::default();
            }
            if kubelet.now.executed {
                self.absent = self.now;
            }
            if self.obeyed().is_none() && self.leaving.is_none() {
                out.push(Action::Log(format!("the kubelet (pid {pid}) ended, and no worker is there: {exit}")));
            }
            self.ended = Some(Ended { was: kubelet.now, exit });
            self.pause_kubelet();
        } else {
            self.worker_ended(pid, exit, out);
        }
    }

    fn said(&mut self, generation: u64, request: Request, out: &mut Vec<Action>) {
        let silence = self.now.saturating_add(SILENCE);
        if let Request::Hello { protocol, version } = request {
            return self.hello(generation, protocol, &version, out);
        }
        match self.worker_mut(generation) {
            Some(worker) if worker.phase == Phase::Speaks => worker.until = silence,
            Some(worker) if worker.phase == Phase::Starting => {
                return self.end_worker(generation, "it says other things before hello", out);
            }
            _ => return,
        }
        if self.obeyed().is_none_or(|worker| worker.generation != generation) {
            return;
        }
        match request {
            Request::Hello { .. } | Request::Beat => {}
            Request::Start { ticket, args } => self.asked_to_start(ticket, args, out),
            Request::Park { ticket, args } => self.park(ticket, args, out),
            Request::Unpark => self.unpark(out),
            Request::Stop { run } if self.is_run(run) => self.stop(out),
            Request::Dump { run } if self.is_run(run) => self.signal(SIGQUIT, true, out),
            Request::Stop { .. } | Request::Dump { .. } => {}
            Request::Feed { millis } => {
                self.fed_until = self.now.saturating_add(Duration::from_millis(millis).min(super::FEED_MAX));
            }
            Request::Show { text } => out.push(Action::Show(text)),
        }
    }

    fn asked_to_start(&mut self, ticket: u64, args: Vec<String>, out: &mut Vec<Action>) {
        if self.kubelet.is_none() && self.starting.is_none() && self.leaving.is_none() {
            return self.start(Some(ticket), args, out);
        }
        self.refused = Some((ticket, "there is a kubelet, or the supervisor ends".to_owned()));
    }

    fn start(&mut self, ticket: Option<u64>, args: Vec<String>, out: &mut Vec<Action>) {
        self.starting = Some((ticket, args.clone()));
        let fits = |standby: &mut Parked| standby.now.waits && !standby.now.stopping && standby.args == args;
        if let Some(standby) = self.standby.take_if(fits) {
            out.push(Action::Promote);
            return self.kubelet_is(standby.pid, standby.now.output, true, out);
        }
        self.unpark(out);
        if ticket.is_none() {
            out.push(Action::Log("no worker starts a kubelet: it is started with its last command".to_owned()));
        }
        out.push(Action::Start(args));
    }

    fn park(&mut self, ticket: u64, args: Vec<String>, out: &mut Vec<Action>) {
        // One that does not wait would be a second kubelet.
        let waits = KubeletArgs::parse(&args).can_stand_by() && args.iter().all(|arg| arg != "--");
        if self.standby.is_some() || self.leaving.is_some() || !waits {
            self.refused =
                Some((ticket, "there is another standby, or its command line is not one for a standby".to_owned()));
            return;
        }
        out.push(Action::Park(KubeletArgs::for_standby(&args)));
        self.parking = Some((ticket, args));
    }

    pub(super) fn unpark(&mut self, out: &mut Vec<Action>) {
        if let Some(standby) = self.standby.as_mut().filter(|standby| !standby.now.stopping) {
            (standby.now.stopping, standby.claim_by) = (true, Duration::MAX);
            out.push(Action::Signal(standby.pid, SIGKILL));
        }
    }

    fn is_run(&self, run: u64) -> bool {
        self.kubelet.as_ref().is_some_and(|kubelet| kubelet.now.run == run)
    }

    /// SIGTERM, once: a second one makes a kubelet drop what it does.
    fn stop(&mut self, out: &mut Vec<Action>) {
        if self.kubelet.as_ref().is_some_and(|kubelet| !kubelet.now.stopping) {
            self.signal(SIGTERM, true, out);
        }
    }

    fn signal(&mut self, signal: i32, ends: bool, out: &mut Vec<Action>) {
        let Some(kubelet) = &mut self.kubelet else { return };
        if ends {
            kubelet.now.stopping = true;
            kubelet.kill_at = Some(self.now.saturating_add(GRACE));
        }
        out.push(Action::Signal(kubelet.now.pid, signal));
    }

    fn ready(&mut self, out: &mut Vec<Action>) {
        let Some(kubelet) = &mut self.kubelet else { return };
        kubelet.now.ready.get_or_insert(nanos(self.now));
        if !std::mem::replace(&mut self.was_ready, true) {
            out.push(Action::Systemd(notice::READY));
        }
    }

    fn ping(&mut self, out: &mut Vec<Action>) {
        let Some(kubelet) = &mut self.kubelet else { return };
        kubelet.now.pings = kubelet.now.pings.saturating_add(1);
        if self.watchdog.is_some() {
            self.pinged = Some(self.now);
            out.push(Action::Systemd(notice::WATCHDOG));
        }
    }
}

fn nanos(moment: Duration) -> u64 {
    u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX)
}

fn name(role: Role) -> &'static str {
    match role {
        Role::Kubelet => "kubelet",
        Role::Standby => "standby",
        Role::Worker(_) => "worker",
    }
}
