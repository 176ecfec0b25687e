//! The workers: started, replaced, ended. One is obeyed, the first that is there, once it has said hello.

use super::state::{Action, EARLY_ENDS, GRACE, Monitor, Pause, Phase, REFUSALS, SETTLED, SILENCE, notice};
use super::step::SIGKILL;
use super::wire::PROTOCOL;
use crate::machine::model::Exit;

impl Monitor {
    pub(super) fn reload(&mut self, out: &mut Vec<Action>) {
        (self.early_ends, self.worker_pause) = (0, Pause::default());
        if self.leaving.is_none() && self.reloading.is_none() {
            self.reloading = Some(0);
            if self.was_ready {
                out.push(Action::Systemd(notice::RELOADING));
            }
        }
    }

    /// A reload begins once nobody else is on the way, and ends when the successor has its turn, or is none.
    pub(super) fn replace(&mut self, out: &mut Vec<Action>) {
        let is_over = |successor: u64| {
            let has_turn = self.obeyed().is_some_and(|worker| worker.generation == successor);
            has_turn || self.generations().all(|generation| generation != successor)
        };
        if self.reloading.is_some_and(|successor| successor > 0 && is_over(successor)) {
            self.reloading = None;
            if self.was_ready {
                out.push(Action::Systemd(notice::READY));
            }
        }
        let is_calm = self.workers.len() < 2 && self.workers.iter().all(|worker| worker.phase == Phase::Speaks);
        if self.reloading == Some(0) && is_calm && self.leaving.is_none() {
            self.work(out);
            self.reloading = Some(self.generation);
        } else if self.work_at().is_some_and(|at| self.now >= at) {
            self.work(out);
        }
    }

    fn work(&mut self, out: &mut Vec<Action>) {
        self.generation = self.generation.saturating_add(1);
        let own_binary = self.early_ends >= EARLY_ENDS;
        out.push(Action::Work { generation: self.generation, own_binary });
    }

    pub(super) fn worker_ended(&mut self, pid: i32, exit: Exit, out: &mut Vec<Action>) {
        let never = self.runs == 0 && self.kubelet.is_none() && self.starting.is_none();
        let is_first = self.workers.first().is_some_and(|worker| worker.pid == pid);
        let refusal = REFUSALS.iter().find(|(code, _)| exit == Exit::Code(i32::from(*code)) && never && is_first);
        if let Some((_, code)) = refusal {
            return out.push(Action::Exit(*code));
        }
        self.stuck.retain(|stuck| *stuck != pid);
        self.worker_gone(pid, &exit.to_string(), out);
    }

    /// A worker is no more, or is not counted any more.
    pub(super) fn worker_gone(&mut self, pid: i32, how: &str, out: &mut Vec<Action>) {
        let Some(at) = self.workers.iter().position(|worker| worker.pid == pid) else { return };
        let worker = self.workers.remove(at);
        if self.leaving.is_some() {
            return;
        }
        let asked = worker.phase == Phase::Retires;
        let why = format!("worker {} (pid {pid}): {how}", worker.generation);
        if !asked {
            out.push(Action::Log(format!("{why}; the kubelet goes on")));
        }
        if self.now.saturating_sub(worker.since) >= SETTLED || asked {
            (self.early_ends, self.worker_pause) = (0, Pause::default());
        } else {
            self.early_ends = self.early_ends.saturating_add(1);
        }
        if at == 0 {
            self.before = (!asked).then_some(why);
            self.unpark(out); // whoever asked for it cannot claim it
        }
        if self.workers.is_empty() {
            self.pause_worker();
        }
    }

    pub(super) fn end_worker(&mut self, generation: u64, why: &str, out: &mut Vec<Action>) {
        let until = self.now.saturating_add(GRACE);
        let Some(worker) = self.worker_mut(generation).filter(|worker| worker.phase != Phase::Killed) else { return };
        (worker.phase, worker.until) = (Phase::Killed, until);
        let pid = worker.pid;
        out.push(Action::Log(format!("worker {generation} (pid {pid}) is killed: {why}")));
        out.push(Action::Signal(pid, SIGKILL));
    }

    pub(super) fn hello(&mut self, generation: u64, protocol: u32, version: &str, out: &mut Vec<Action>) {
        let (silence, grace) = (self.now.saturating_add(SILENCE), self.now.saturating_add(GRACE));
        let Some(worker) = self.worker_mut(generation).filter(|worker| worker.phase == Phase::Starting) else { return };
        if protocol != PROTOCOL {
            let why = format!(
                "kubelet-supervisor {version} speaks protocol {protocol}, and this one {PROTOCOL}: \
                 systemctl restart kubelet replaces this one"
            );
            return self.end_worker(generation, &why, out);
        }
        (worker.phase, worker.until) = (Phase::Speaks, silence);
        for elder in &mut self.workers {
            if elder.generation < generation && elder.phase == Phase::Speaks {
                (elder.phase, elder.until) = (Phase::Retires, grace);
            }
        }
    }
}
