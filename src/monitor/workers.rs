//! The workers: started, replaced, gone. One is obeyed, the first that is there, once it has said hello.

use super::state::{Action, EARLY_ENDS, Monitor, Pause, REFUSALS, Role, WORKER_PAUSES, notice};
use super::wire::{Child, PROTOCOL, Phase};
use crate::machine::model::Exit;

impl Monitor {
    pub(super) fn reload(&mut self) {
        self.worker_pause = Pause::default();
        if self.leaving.is_none() && self.reloading.is_none() {
            self.reloading = Some(false);
            if self.was_ready {
                self.out.push(Action::Systemd(notice::RELOADING));
            }
        }
    }

    /// A reload begins once nobody is on the way, and ends when nobody is any more: the successor has its turn, or is none.
    pub(super) fn go_on_reloading(&mut self) {
        if self.reloading == Some(false) {
            self.reloading = Some(true);
            return self.work();
        }
        self.reloading = None;
        if self.was_ready {
            self.out.push(Action::Systemd(notice::READY));
        }
    }

    pub(super) fn work(&mut self) {
        self.generation = self.generation.saturating_add(1);
        self.add(Role::Worker(self.generation), Child::default());
        let own_binary = self.worker_pause.early >= EARLY_ENDS;
        self.out.push(Action::Work { generation: self.generation, own_binary });
    }

    pub(super) fn hello(&mut self, generation: u64, protocol: u32, version: &str) {
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
    }

    /// The monitor's own exit code, if this end of a worker is a refusal that is heeded.
    pub(super) fn refusal(&self, role: Role, exit: Exit) -> Option<u8> {
        let is_first = self.generations().next().is_some_and(|first| role == Role::Worker(first));
        let heeded = is_first && self.runs == 0 && self.kubelet().is_none();
        let refusal = REFUSALS.iter().find(|(code, _)| exit == Exit::Code(i32::from(*code)));
        refusal.filter(|_| heeded).map(|(_, code)| *code)
    }

    pub(super) fn worker_gone(&mut self, generation: u64, what: String) {
        let is_first = self.generations().next() == Some(generation);
        let gone = self.workers().find(|(it, _)| *it == generation).map(|(_, worker)| (worker.phase, worker.since));
        let Some((phase, since)) = gone.filter(|_| self.leaving.is_none()) else { return };
        let asked = phase == Phase::Ends;
        if asked {
            self.worker_pause = Pause::default();
        } else {
            self.out.push(Action::Log(format!("{what}; the kubelet goes on")));
            self.worker_pause.after(since, self.now, WORKER_PAUSES);
        }
        if is_first {
            self.before = (!asked).then_some(what);
            self.kill(Role::Standby, ""); // whoever asked for it cannot claim it
        }
    }
}
