//! Workers that end while the kubelet goes on, and what the monitor does for the next one.

use std::time::Duration;

use kubelet_supervisor::machine::Input;
use kubelet_supervisor::machine::model::{Rendered, RunId, StartedKubelet};

use super::account::UNSEEN;
use super::kubelet::Process;
use super::laws::Law;
use super::promised;
use super::world::{Coming, Content, Outside, ms};
use std::path::Path;

/// What a worker that dies may not have written down, and what the next one needs to see the first signs.
const UNWRITTEN: Duration = promised::PROGRESS.saturating_add(promised::GRACE);

/// How a worker ends, in so many inputs.
#[derive(Clone, Copy, Debug)]
pub struct Doom {
    pub inputs: u64,
    /// It is asked to, and not killed.
    pub asked: bool,
    /// Until the next one begins.
    pub absent: Duration,
}

/// What is started then.
#[derive(Debug)]
struct Awaited(Option<Box<Rendered>>);

/// Of the workers.
#[derive(Debug, Default)]
pub struct Workers {
    pub generation: u64,
    /// None is there.
    pub absent: bool,
    /// A start that waits for the end of another kubelet.
    starting: Option<Awaited>,
    /// The kubelet that was left, and whether the next worker is to go on with it.
    left: Option<(u32, bool)>,
    /// How much longer a trial of this kubelet may take.
    pub unwatched: Duration,
    /// The latest worker ended then.
    gone: Option<Duration>,
}

impl Outside {
    /// The kubelet that runs, as the monitor tells of it.
    pub fn run_id(&self) -> Option<RunId> {
        let process = self.process.as_ref()?;
        Some(RunId { pid: process.pid, started: self.boot_clock(process.started) })
    }

    /// The same, but for one that was told to end.
    pub fn left_id(&self) -> Option<RunId> {
        self.run_id().filter(|_| self.process.as_ref().is_some_and(|process| process.stopping.is_none()))
    }

    /// The worker is about to end. The next one knows what runs if that is on the disk.
    pub fn note_left(&mut self) {
        let run = self.run_id();
        let known = self.records(&self.disk.seen()).and_then(|records| records.started.clone());
        let known = known.is_some_and(|started| Some(started.run) == run);
        self.workers.left = self.process.as_ref().map(|process| (process.pid, known && process.stopping.is_none()));
    }

    /// Whatever the worker knew and had asked is gone; the kubelet goes on.
    pub fn forget_worker(&mut self, doom: Doom) {
        self.queue.retain(|_, coming| {
            use Coming::{Exit, Healthz, Heartbeat, Ready, Watchdog};
            matches!(coming, Ready(_) | Exit(..) | Healthz(..) | Watchdog(_) | Heartbeat(..))
        });
        self.forget_known();
        self.account.begin_worker(self.disk.failures(), self.now);
        self.remember_holds();
        (self.workers.starting, self.workers.gone) = (None, Some(self.now));
        self.workers.unwatched += UNWRITTEN + doom.absent;
    }

    /// The next worker begins.
    pub fn begin_worker(&mut self) {
        self.workers.generation += 1;
        if self.process.is_none() {
            self.down_since = self.now;
        }
        self.account.note_worker(self.now);
        *self.account.activity.entry("workers").or_default() += 1;
        self.hear();
        self.deliver(ms(20), Coming::Posted);
    }

    /// No worker was there since then, but for moments.
    pub fn is_unwatched_since(&self, since: Duration) -> bool {
        let Some(gone) = self.workers.gone else { return false };
        let until = if self.workers.absent { self.now } else { self.account.began };
        gone <= since + UNSEEN && self.now <= until + UNSEEN
    }

    /// A life of the supervisor has its first worker.
    pub fn forget_workers(&mut self) {
        self.workers = Workers { generation: 1, ..Workers::default() };
    }

    /// The kubelet is to run with this. Gives what is known at once.
    pub fn start_or_go_on(&mut self, config: Option<&Rendered>) -> Vec<Input> {
        let left = self.workers.left.take();
        let Some(process) = self.process.clone() else { return vec![self.start_kubelet(config)] };
        // A start that waits, and was given up over a sleep, is asked for again.
        if self.workers.starting.is_some() {
            self.workers.starting = Some(Awaited(config.cloned().map(Box::new)));
            return Vec::new();
        }
        let left = left.filter(|(pid, _)| *pid == process.pid);
        self.account.check(Law::OneKubelet, false, left.is_some(), || "a second kubelet was started".to_owned());
        let path = config.map(|config| config.path.as_str());
        let goes_on = process.path.as_deref() == path && process.stopping.is_none();
        let expected = left.is_some_and(|(_, expected)| expected);
        let excused = !expected || process.stopping.is_some();
        self.account.check(Law::GoesOn, excused, goes_on, || {
            format!("{:?} ran, and the next worker ends it to start {path:?}", process.content)
        });
        if goes_on {
            let unread = path.is_none() && self.torn_local.is_some();
            self.process.iter_mut().for_each(|process| process.unread |= unread);
            return self.take_over(&process);
        }
        self.workers.starting = Some(Awaited(config.cloned().map(Box::new)));
        if process.stopping.is_none() {
            self.check_stop();
            self.terminate();
        }
        Vec::new()
    }

    /// The kubelet that a worker left goes on, if it is there.
    pub fn go_on(&mut self, run: RunId) -> Vec<Input> {
        let expected = self.workers.left.take().is_some_and(|(_, expected)| expected);
        match self.process.clone().filter(|process| process.stopping.is_none() && self.run_id() == Some(run)) {
            Some(process) => {
                self.account.check(Law::GoesOn, !expected, true, String::new); // it is broken where another one is started
                self.take_over(&process)
            }
            None => vec![Input::Started(Err("it has ended".to_owned()))],
        }
    }

    fn take_over(&mut self, process: &Process) -> Vec<Input> {
        self.account.withheld.take_if(|(of, _)| *of == process.content);
        let id = self.run_id().unwrap_or_default();
        let ready = process.ready_at.map(|at| self.boot_clock(at));
        let started = Input::Started(Ok(StartedKubelet { id, adopted: true, ready }));
        [started].into_iter().chain(process.ready.then_some(Input::Ready)).collect()
    }

    /// A kubelet has ended: true if a start waited for that, which comes then.
    pub fn goes_on_starting(&mut self) -> bool {
        if self.workers.starting.is_some() {
            self.schedule(ms(1), Coming::Start);
        }
        self.workers.starting.is_some()
    }

    /// That start.
    pub fn start_at_last(&mut self) -> Option<Input> {
        let Awaited(config) = self.workers.starting.take()?;
        Some(self.start_kubelet(config.as_deref()))
    }

    fn start_kubelet(&mut self, config: Option<&Rendered>) -> Input {
        let started = self.start_now(config);
        Input::Started(started.map(|id| StartedKubelet { id, ..StartedKubelet::default() }).map_err(str::to_owned))
    }

    fn start_now(&mut self, config: Option<&Rendered>) -> Result<RunId, &'static str> {
        let flags = config.map(|config| config.overrides.lines()).unwrap_or_default();
        let config = config.map(|config| config.path.as_str());
        self.account.steps += 1;
        if self.disk.is_off() {
            return Err("power is off");
        }
        if self.spawn_failures > 0 {
            self.spawn_failures -= 1;
            self.down_since = self.now; // not for want of trying
            self.account.note_failed_start();
            return Err("out of memory");
        }
        let text = config.map(|path| self.disk.peek(Path::new(path)).unwrap_or_default());
        let content = Content::of(text.as_ref().unwrap_or(&self.local));
        let content = self.promote_standby(config, &flags).unwrap_or(content);
        self.check_start(config, content);
        self.check_flags(config, content, &flags);
        self.workers.unwatched = Duration::ZERO;
        Ok(self.begin_process(config.map(str::to_owned), content))
    }
}
