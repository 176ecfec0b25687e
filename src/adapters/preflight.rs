//! The kubelet's own binary as a judge of candidates.

use std::future::Future;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use tokio::sync::OnceCell;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;

use super::fsx::FileId;
use super::kubelet_process::{self, StandbyKubelet};
use super::metrics::Metrics;
use super::process::{self, Confinement, ProgramOutput};
use crate::kubelet_log;
use crate::machine::model::{KubeletId, PreflightResult, Rendered, Verdict};
use crate::machine::{Answer, Input};
use crate::os::ownership;
use crate::ports::{self, KubeletVersion};
use kubelet_config::flags::{ConfigDir, FlagOverrides, KubeletArgs};

mod classify;

pub use classify::classify;

/// A preflight takes 0.05 s, and half a second when it first makes its certificates.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// What spins on several processors meanwhile comes to no verdict either.
const CONFINEMENT: Confinement = Confinement::Preflight { cpu_seconds: TIME_LIMIT.as_secs(), isolated: true };
/// Where that is refused.
const BOUNDED_IN_TIME: Confinement = Confinement::Preflight { cpu_seconds: TIME_LIMIT.as_secs(), isolated: false };

/// Something no kubelet can load.
const GARBAGE: &str = "{0xdeadbeef}";

/// Something no kubelet finds valid. Several fields, because a flag may override one of them.
const INVALID: &str = r#"{"kind":"KubeletConfiguration","apiVersion":"kubelet.config.k8s.io/v1beta1",
"kubeAPIQPS":-1,"eventRecordQPS":-1,"registryPullQPS":-1,"kubeAPIBurst":-1,"podsPerCore":-1}"#;

/// Name, text and expected verdict of each self-test.
const SELF_TESTS: [(&str, &str, PreflightResult); 2] =
    [("garbage", GARBAGE, PreflightResult::Load), ("invalid", INVALID, PreflightResult::Validate)];

/// How to run the binary for a preflight.
#[derive(Clone, Debug)]
pub(crate) struct PreflightCommand {
    /// Resolved path of the kubelet.
    pub(crate) program: PathBuf,
    /// Its own arguments.
    pub(crate) args: KubeletArgs,
    /// A private directory, for throw-away certificates and test files.
    pub(crate) dir: PathBuf,
}

/// Whether the binary told a good configuration from bad ones.
type SelfTest = Arc<OnceCell<Result<(), String>>>;

/// The binary, and what is known of it as a judge. Cloned, it is the same.
#[derive(Clone, Debug)]
struct Judge {
    command: PreflightCommand,
    tested: SelfTest,
    /// Whether it waits for a lock file before it does anything.
    parks: SelfTest,
}

#[derive(Debug)]
pub(crate) struct KubeletPreflight {
    judge: Judge,
    inputs: UnboundedSender<Input>,
    metrics: Metrics,
    version: KubeletVersion,
    /// What may wait to be the next kubelet; `None`: nobody may.
    standby: Option<StandbyKubelet>,
    run: Option<JoinHandle<()>>,
}

impl KubeletPreflight {
    /// The binary is not tested yet. `version` receives what `--version` prints.
    pub(crate) fn new(
        command: PreflightCommand,
        inputs: UnboundedSender<Input>,
        metrics: Metrics,
        version: KubeletVersion,
        standby: Option<StandbyKubelet>,
    ) -> Self {
        Self { judge: Judge::new(command), inputs, metrics, version, standby, run: None }
    }

    /// Answers with what comes of this. There is one run at a time: an earlier one is dropped.
    fn answer(&mut self, ticket: u64, verdict: impl Future<Output = Verdict> + Send + 'static) {
        let (inputs, metrics) = (self.inputs.clone(), self.metrics.clone());
        let run = tokio::spawn(async move {
            let started = Instant::now();
            let verdict = verdict.await;
            metrics.preflight_took(started.elapsed().as_secs_f64());
            let _ = inputs.send(Input::Answer(ticket, Answer::PreflightDone(verdict)));
        });
        if let Some(earlier) = self.run.replace(run) {
            earlier.abort();
        }
    }
}

impl ports::Preflight for KubeletPreflight {
    fn judge(&mut self, ticket: u64, candidate: &Rendered) {
        let (judge, candidate) = (self.judge.clone(), candidate.clone());
        self.answer(ticket, async move { judge.verdict(&candidate).await });
    }

    fn judge_for_standby(&mut self, ticket: u64, candidate: &Rendered) {
        let Some(standby) = self.standby.clone() else { return self.judge(ticket, candidate) };
        let (judge, candidate) = (self.judge.clone(), candidate.clone());
        standby.expect(ticket);
        self.answer(ticket, async move {
            let parked = match judge.ensure_parks().await {
                Ok(()) => standby.park(ticket, &candidate).await,
                Err(why) => Err(why),
            };
            match parked {
                Ok(output) => Verdict::Valid(classify::remarks(&output)),
                Err(why) => {
                    let verdict = judge.verdict(&candidate).await;
                    if !matches!(verdict, Verdict::Load(_) | Verdict::Validate(_)) {
                        tracing::info!("no kubelet stands by, this one will be started anew: {why}");
                    }
                    verdict
                }
            }
        });
    }

    fn discard_standby(&mut self) {
        if let Some(standby) = &self.standby {
            standby.discard();
        }
    }

    fn self_test(&mut self) {
        self.judge = Judge::new(self.judge.command.clone()); // another binary than before
        let (judge, known, inputs) = (self.judge.clone(), self.version.clone(), self.inputs.clone());
        let stands_by = self.standby.is_some();
        tokio::spawn(async move {
            let found = judge.command.know_version(&known).await;
            let _ = inputs.send(found.map_or(Input::Tick, Input::KubeletVersion));
            // Asked again when it matters. Either run makes the throw-away certificates, which takes a kubelet 0.4 s, before the
            // first change does.
            if !stands_by || judge.ensure_parks().await.is_err() {
                let _ = judge.ensure_tested().await;
                let _ = judge.command.run(None, &FlagOverrides::default(), &ConfigDir::Unit).await;
            }
        });
    }
}

impl Judge {
    /// Not tested yet.
    fn new(command: PreflightCommand) -> Self {
        Self { command, tested: SelfTest::default(), parks: SelfTest::default() }
    }

    async fn verdict(&self, candidate: &Rendered) -> Verdict {
        match self.command.or_with(&candidate.overrides, self.ensure_tested().await).await {
            Ok(()) => self.command.judge(candidate).await,
            // A judge that fails its test may still say that nothing at all can be started.
            Err(why) => match self.command.judge(candidate).await {
                verdict @ Verdict::NotItsFault(_) => verdict,
                _ => Verdict::Inconclusive(format!("this kubelet cannot serve as a judge: {why}")),
            },
        }
    }

    /// Tests the binary once. That the test's files cannot be written is the disk's fault, and that it gave
    /// no answer in time the machine's: such things are not remembered, they may be over when the next candidate comes.
    async fn ensure_tested(&self) -> Result<(), String> {
        let own = FlagOverrides::default();
        self.tested.get_or_try_init(|| self.command.self_test(&own)).await?.clone()
    }

    /// Tests once whether the binary waits for its lock file, in the bounds of a preflight: one that does not would be a second
    /// kubelet beside the first.
    async fn ensure_parks(&self) -> Result<(), String> {
        let PreflightCommand { program, args, dir } = &self.command;
        if !args.can_stand_by() {
            return Err("its command line has a --lock-file or --exit-on-lock-contention of its own".to_owned());
        }
        self.ensure_tested().await?;
        let test = async || {
            let args = args.for_standby_test(&dir.display().to_string());
            // Nothing less will do for one that may not wait. That it cannot be started so is no word of the binary's.
            let found = kubelet_process::test_parking(program, &args, CONFINEMENT).await;
            let found = found.map_err(|error| format!("it cannot be tested in the bounds of a preflight: {error}"))?;
            Ok::<_, String>(found.map_err(|why| format!("with --lock-file, {why}")))
        };
        self.parks.get_or_try_init(test).await?.clone()
    }
}

impl PreflightCommand {
    /// Judges a rendered configuration. A rejection is checked against the local file with the same drop-ins: what refuses
    /// that one with the same message is not the candidate's fault. But for drop-ins of before, where the unit's own are
    /// accepted by now: then there is something that can be started, and it is not this.
    pub(crate) async fn judge(&self, candidate: &Rendered) -> Verdict {
        let flags =
            |message: &str| Verdict::NotItsFault(format!("the kubelet refuses its own command line: {message}"));
        let path = candidate.path.as_str();
        let (own, config_dir) = (FlagOverrides::default(), &candidate.config_dir);
        let verdict = match self.run(Some(path), &candidate.overrides, config_dir).await {
            Err(message) if candidate.overrides.is_empty() => return flags(&message),
            // Where the unit's own flags are no better, nothing could be started now.
            Err(message) => match self.run(None, &own, config_dir).await {
                Err(own) => return flags(&own),
                Ok(_) => return Verdict::Load(format!("the flags: {message}")),
            },
            Ok(verdict) => verdict,
        };
        let (Verdict::Load(message) | Verdict::Validate(message)) = &verdict else { return verdict };
        let local = match self.run(None, &own, config_dir).await {
            // By itself the unit starts nothing any more: with the candidate's flags it may.
            Err(_) if !candidate.overrides.is_empty() => self.run(None, &candidate.overrides, config_dir).await,
            local => local,
        };
        match local {
            Err(message) => flags(&message),
            Ok(Verdict::Load(own) | Verdict::Validate(own))
                if !candidate.is_local_files
                    && own == message.replace(path, "")
                    && (*config_dir == ConfigDir::Unit || self.refuses_unit().await) =>
            {
                Verdict::NotItsFault(format!("the kubelet refuses its local configuration in the same way: {own}"))
            }
            Ok(_) => verdict,
        }
    }

    /// True if the unit's own files, as they are now, are refused.
    async fn refuses_unit(&self) -> bool {
        let found = self.run(None, &FlagOverrides::default(), &ConfigDir::Unit).await;
        matches!(found, Err(_) | Ok(Verdict::Load(_) | Verdict::Validate(_)))
    }

    /// What this binary says to `--version`: asked, which takes some 0.1 s, unless it is known, and kept for the next supervisor.
    pub(crate) async fn know_version(&self, known: &KubeletVersion) -> Option<String> {
        let id = KubeletId(FileId::named(&self.program).unwrap_or_default());
        if let Some(version) = known.of(&id) {
            return Some(version);
        }
        let found = self.version().await;
        known.set(&id, found.clone());
        if let (Some(version), Some(file)) = (&found, known.file()) {
            self.keep_version(file.to_owned(), KubeletVersion::text(&id, version)).await;
        }
        found
    }

    /// What `--version` of this kubelet says, without "Kubernetes ".
    async fn version(&self) -> Option<String> {
        let mut words: Vec<String> =
            self.args.as_slice().iter().take_while(|word| !word.starts_with('-')).cloned().collect();
        words.push("--version".to_owned());
        let run = run_judge(&self.program, &words).await.ok()?;
        let text = String::from_utf8_lossy(&run.output).into_owned();
        text.trim().strip_prefix("Kubernetes ").map(str::to_owned)
    }

    /// For the next supervisor. Where it cannot be kept that one has to do without, until it has asked.
    async fn keep_version(&self, file: PathBuf, text: String) {
        let dir = self.dir.clone();
        let kept = tokio::task::spawn_blocking(move || {
            let is_new = std::fs::read_to_string(&file).map_or(true, |there| there != text);
            if is_new && check_ownership(&dir).is_ok() {
                std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
                std::fs::write(&file, text)?;
            }
            Ok::<_, io::Error>(())
        });
        if let Ok(Err(error)) = kept.await {
            tracing::debug!("the kubelet's version is not kept: {error}");
        }
    }

    /// Whether this kubelet can judge such a candidate. A kubelet that was upgraded may refuse the unit's own flags, and the
    /// candidate take these out.
    ///
    /// # Errors
    /// Why it cannot.
    pub(crate) async fn can_judge(&self, overrides: &FlagOverrides) -> Result<(), String> {
        let tested = self.self_test(&FlagOverrides::default()).await.flatten();
        self.or_with(overrides, tested).await
    }

    /// The outcome of the self-test; where it failed, that with these flags.
    async fn or_with(&self, overrides: &FlagOverrides, tested: Result<(), String>) -> Result<(), String> {
        if tested.is_ok() || overrides.is_empty() { tested } else { self.self_test(overrides).await.flatten() }
    }

    /// Whether the binary tells what cannot be loaded from what is invalid, with the unit's flags as a source changes them.
    ///
    /// # Errors
    /// Why that is not known: it may go well another time.
    async fn self_test(&self, overrides: &FlagOverrides) -> Result<Result<(), String>, String> {
        self.write_test_files().await?;
        for (name, _, expected) in SELF_TESTS {
            let file = self.test_file(name).display().to_string();
            // A broken drop-in is no fault of the judge.
            let verdict = match self.run(Some(&file), overrides, &ConfigDir::Removed).await {
                Err(message) => return Ok(Err(format!("it refuses its own command line: {message}"))),
                Ok(verdict) if verdict.result() == expected => continue,
                Ok(verdict) => verdict,
            };
            let why = format!("self-test {name}: expected {}, got {verdict:?}", expected.as_str());
            let is_transient = matches!(verdict, Verdict::Inconclusive(_) | Verdict::NotItsFault(_));
            return if is_transient { Err(why) } else { Ok(Err(why)) };
        }
        Ok(Ok(()))
    }

    fn test_file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("self-test-{name}.json"))
    }

    /// Writes the files of the self-test, on another thread: the disk may stall.
    async fn write_test_files(&self) -> Result<(), String> {
        let (dir, files) = (self.dir.clone(), SELF_TESTS.map(|(name, text, _)| (self.test_file(name), text)));
        let written = tokio::task::spawn_blocking(move || {
            let told = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
            check_ownership(&dir)?;
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(|error| told(&dir, error))?;
            files.iter().try_for_each(|(path, text)| std::fs::write(path, text).map_err(|error| told(path, error)))
        });
        written.await.map_err(|error| format!("the self-test's files: {error}"))?
    }

    async fn run(
        &self,
        config: Option<&str>,
        overrides: &FlagOverrides,
        config_dir: &ConfigDir,
    ) -> Result<Verdict, String> {
        let dir = self.dir.clone();
        // The kubelet makes its throw-away certificates there: nothing is written where others can change it.
        let trusted = tokio::task::spawn_blocking(move || check_ownership(&dir)).await;
        if let Err(why) = trusted.unwrap_or_else(|error| Err(error.to_string())) {
            return Ok(Verdict::Inconclusive(why));
        }
        let dir = self.dir.display().to_string();
        let args = self.args.with(overrides).for_preflight(config, config_dir, &dir);
        match run_judge(&self.program, &args).await {
            Ok(run) => {
                tell_vendor(&run);
                classify(&run)
            }
            // What cannot be run to judge cannot be run to replace the kubelet that runs: an upgrade is copying it, say.
            Err(error) => {
                let why = format!("the kubelet cannot be run: {}: {error}", self.program.display());
                Ok(Verdict::NotItsFault(why))
            }
        }
    }
}

/// Says once that something stands before klog's header in this kubelet's log. It is read over.
fn tell_vendor(run: &ProgramOutput) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let words = kubelet_log::vendor(String::from_utf8_lossy(&run.output).lines());
    if let Some(words) = words.filter(|_| !TOLD.swap(true, SeqCst)) {
        tracing::info!("this kubelet's log has {words:?} before klog's header, which is read over");
    }
}

/// Root writes there: not where others can change anything.
fn check_ownership(dir: &Path) -> Result<(), String> {
    ownership::check(dir).map_err(|error| error.to_string())
}

async fn run_judge(program: &Path, args: &[String]) -> io::Result<ProgramOutput> {
    confined_if_possible(|confinement| process::run_to_end(program, args, TIME_LIMIT, confinement)).await
}

/// A container may make no namespaces, and a security module may refuse an exec that changes the domain where no privileges
/// may be gained. Better a judge that is bounded in time alone than no change at all.
async fn confined_if_possible<T, R: Future<Output = io::Result<T>>>(run: impl Fn(Confinement) -> R) -> io::Result<T> {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let refused = match run(CONFINEMENT).await {
        Err(error) if is_refusal(&error) => error,
        result => return result,
    };
    let result = run(BOUNDED_IN_TIME).await?;
    if !TOLD.swap(true, SeqCst) {
        tracing::warn!(
            "preflights run without namespaces of their own and with all rights: confined they cannot be started: {refused}"
        );
    }
    Ok(result)
}

/// The bounds cannot be had here; any other error is of the program, or of a node in trouble.
fn is_refusal(error: &io::Error) -> bool {
    let refusals = [Errno::EPERM, Errno::EACCES, Errno::EINVAL, Errno::ENOSPC, Errno::ENOSYS];
    error.raw_os_error().is_some_and(|number| refusals.contains(&Errno::from_raw(number)))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[tokio::test]
    async fn what_cannot_be_started_in_bounds_is_started_with_fewer_once() {
        let both = [CONFINEMENT, BOUNDED_IN_TIME].as_slice();
        let cases = [(Errno::EPERM, false, both), (Errno::EPERM, true, both), (Errno::ENOENT, true, &both[..1])];
        for (why, always, expected) in cases {
            let tried = RefCell::new(Vec::new());
            let result = confined_if_possible(|confinement| {
                tried.borrow_mut().push(confinement);
                let refused = always || confinement == CONFINEMENT;
                async move { if refused { Err(io::Error::from(why)) } else { Ok(()) } }
            });
            assert_eq!(result.await.is_ok(), !always, "{why}");
            assert_eq!(*tried.borrow(), expected, "{why}");
        }
    }
}
