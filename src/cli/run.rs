//! `run`: the monitor; and `worker`, its child, which has the options.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{CommandFactory as _, FromArgMatches as _, Parser};

use super::common::{Failure, block_on, parse_kubelet, strings_of};
use crate::adapters::{clock, local_files, log, process};
use crate::daemon::settings::{self, Settings};
use crate::daemon::wire;
use crate::machine::{self, limits};
use crate::monitor::{self, wire::WRONG_OPTIONS};
use crate::os::systemd;
use kubelet_config::assignment;
use kubelet_config::bounds::whole_number;
use kubelet_config::duration::GoDuration;
use kubelet_config::flags::{ConfigDir, KubeletArgs};
use kubelet_config::policy;
use kubelet_config::schema::UnknownFields;
use kubelet_config::source::{ConfigMapRef, Merge};

#[derive(Debug, Parser)]
pub(super) struct Options {
    /// The supervisor's directory: downloaded configurations, its records and its socket [default: the kubelet's own --dynamic-config-dir, else /var/lib/kubelet/dynamic-config]
    #[arg(long, env = "KUBELET_SUPERVISOR_DYNAMIC_CONFIG_DIR", value_name = "DIR")]
    dynamic_config_dir: Option<PathBuf>,
    /// How long a new configuration must be healthy without a break until it becomes last known good.
    #[arg(long, env = "KUBELET_SUPERVISOR_TRIAL_DURATION", default_value = "10m", value_parser = settings::positive, value_name = "DURATION")]
    trial_duration: GoDuration,
    /// How long the kubelet may take to be ready with a new configuration, before it is rolled back.
    #[arg(long, env = "KUBELET_SUPERVISOR_START_TIMEOUT", default_value = "2m", value_parser = settings::positive, value_name = "DURATION")]
    start_timeout: GoDuration,
    /// How long a node may be without contact to the API server after a new configuration, before it is rolled back.
    #[arg(long, env = "KUBELET_SUPERVISOR_ISOLATION_TIMEOUT", default_value = "90s", value_parser = settings::positive, value_name = "DURATION")]
    isolation_timeout: GoDuration,
    /// How many starts of the supervisor before a new configuration is proven fail it, as of a machine that reboots in a loop.
    #[arg(long, env = "KUBELET_SUPERVISOR_TRIAL_BOOTS", default_value_t = limits::TRIAL_BOOTS, value_parser = whole_number(1..=u32::MAX), value_name = "N")]
    trial_boots: u32,
    /// Roll back what nobody confirmed within this time of being healthy, where the ConfigMap's annotation kubelet-supervisor.io/confirm-within says nothing.
    #[arg(long, env = "KUBELET_SUPERVISOR_CONFIRM_WITHIN", value_parser = settings::positive, value_name = "DURATION")]
    confirm_within: Option<GoDuration>,
    /// The namespace of ConfigMaps that a Node's label names without one.
    #[arg(long, env = "KUBELET_SUPERVISOR_CONFIG_NAMESPACE", default_value = assignment::DEFAULT_NAMESPACE, value_name = "NAMESPACE")]
    config_namespace: String,
    /// The ConfigMap of a Node that is assigned none, such as kubeadm's kube-system/kubelet-config.
    #[arg(long, env = "KUBELET_SUPERVISOR_DEFAULT_SOURCE", value_parser = assignment::parse_reference, value_name = "NAMESPACE/NAME[/KEY]")]
    default_source: Option<ConfigMapRef>,
    /// Edits of an assigned ConfigMap, and the default source, take effect within this time, each node at its own; 0s: at once.
    #[arg(long, env = "KUBELET_SUPERVISOR_SPREAD", default_value = "5m", value_name = "DURATION")]
    spread: GoDuration,
    /// The same as --spread, for a new assignment.
    #[arg(long, env = "KUBELET_SUPERVISOR_SPREAD_ASSIGNMENT", default_value = "0s", value_name = "DURATION")]
    spread_assignment: GoDuration,
    /// A change waits at most so long while exec, attach or port-forward streams run through this kubelet, where the ConfigMap's annotation kubelet-supervisor.io/courtesy says nothing; 0: not at all, 1h at the most.
    #[arg(long, env = "KUBELET_SUPERVISOR_COURTESY", default_value_t = GoDuration(limits::COURTESY), value_parser = machine::parse_courtesy, value_name = "DURATION")]
    courtesy: GoDuration,
    /// Restart a kubelet outside a trial that gave no sign of life for this long (no healthz; no WATCHDOG=1, if it pings) while the machine is well and the container runtime answers, with the same configuration; 0: never.
    #[arg(long, env = "KUBELET_SUPERVISOR_HUNG_AFTER", default_value_t = GoDuration(limits::HUNG_AFTER), value_name = "DURATION")]
    hung_after: GoDuration,
    /// How a configuration without the annotation kubelet-supervisor.io/merge is put together with the node's own file: it replaces it, or it is laid over it.
    #[arg(long, env = "KUBELET_SUPERVISOR_MERGE", default_value = "replace", value_name = "replace|overlay")]
    merge: Merge,
    /// Fields that this kubelet's version does not know (also in wrong case), or that stand twice: say so (warn, as the kubelet does), or reject the configuration (refuse).
    #[arg(long, env = "KUBELET_SUPERVISOR_UNKNOWN_FIELDS", default_value = "warn", value_name = "warn|refuse")]
    unknown_fields: UnknownFields,
    /// The node's policy, which says what the cluster may do to this node; a file that is not there allows everything.
    #[arg(long, env = "KUBELET_SUPERVISOR_POLICY", default_value = policy::DEFAULT_PATH, value_name = "FILE")]
    policy: PathBuf,
    /// Where to serve /metrics, /healthz and /readyz; empty: nowhere.
    #[arg(
        long,
        env = "KUBELET_SUPERVISOR_METRICS_BIND_ADDRESS",
        default_value = "127.0.0.1:10246",
        value_name = "ADDRESS:PORT"
    )]
    metrics_bind_address: String,
    /// The Node's name [default: from the client certificate, else as the kubelet has it]
    #[arg(long, env = "KUBELET_SUPERVISOR_NODE_NAME", value_name = "NAME")]
    node_name: Option<String>,
    /// Take up changes of the local files (--config, --config-dir) while the kubelet runs, also where nothing is assigned: judged, tried and rolled back like any change.
    #[arg(long, env = "KUBELET_SUPERVISOR_FOLLOW_LOCAL", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_parser = clap::builder::FalseyValueParser::new(), value_name = "true|false")]
    follow_local: bool,
    /// Have the kubelet that judged a change wait on a lock file and go on as soon as the one before has ended, where it is switched to at once and memory suffices; false: each start is a new process.
    #[arg(long, env = "KUBELET_SUPERVISOR_STANDBY", num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true", value_parser = clap::builder::FalseyValueParser::new(), value_name = "true|false")]
    standby: bool,
    /// Format of the supervisor's own log lines; the kubelet's are passed through untouched.
    #[arg(long, env = "KUBELET_SUPERVISOR_LOG_FORMAT", value_enum, default_value_t, value_name = "text|json")]
    log_format: log::Format,
    /// The kubelet and its arguments, as kubelet.service has them.
    #[arg(last = true, required = true, num_args = 1.., value_name = "KUBELET [ARGS]")]
    kubelet: Vec<String>,
}

impl Options {
    /// What they amount to.
    pub(super) fn settings(&self) -> Result<Settings, Failure> {
        let (program, args) = parse_kubelet(&self.kubelet)?;
        let metrics = exposition::http::address(&self.metrics_bind_address)
            .map_err(|why| Failure::usage(format!("--metrics-bind-address: {why}")))?;
        // A kubelet without a file of its own has defaults that no file can say.
        let follows = self.follow_local && args.last("config").is_some();
        let local_files = follows.then(ConfigMapRef::local_files);
        // Without an API server the node has no other source.
        let has_api_server = args.last("kubeconfig").is_some();
        let default_source = self.default_source.clone().filter(|_| has_api_server || !follows).or(local_files);
        Ok(Settings {
            program,
            dir: settings::store_dir(self.dynamic_config_dir.as_deref(), &args),
            machine: machine::Settings {
                trial_duration: self.trial_duration.0,
                start_timeout: self.start_timeout.0,
                isolation: self.isolation_timeout.0,
                boots: self.trial_boots,
                confirm_within: self.confirm_within.map(|within| within.0),
                api_server: has_api_server,
                standalone: !has_api_server && !follows,
                default_source,
                follow_local: self.follow_local,
                spread: self.spread.0,
                spread_assignment: self.spread_assignment.0,
                courtesy: self.courtesy.0,
                unknown_fields: self.unknown_fields,
                hung_after: self.hung_after.0,
                watchdog: systemd::watchdog(),
                boot_id: clock::boot_id(),
            },
            args,
            merge: self.merge,
            config_namespace: self.config_namespace.clone(),
            // Empty stays empty: there is none.
            policy: std::path::absolute(&self.policy).unwrap_or_else(|_| self.policy.clone()),
            metrics,
            node_name: self.node_name.clone().filter(|name| !name.is_empty()),
            standby: self.standby,
        })
    }
}

/// The monitor. Of its command line it takes the kubelet's command alone: the options are the worker's, which says what is wrong
/// with them. `None`: there is no kubelet to supervise, and whoever reads all of it says why.
pub(super) fn supervise(args: &[OsString]) -> Option<Result<u8, Failure>> {
    let end = args.iter().position(|arg| arg == "--")?;
    let (options, command) = (args.get(2..end)?, args.get(end + 1..)?);
    if options.iter().any(|option| option == "--help" || option == "-h") {
        return None;
    }
    let command: Vec<String> = command.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let (program, kubelet_args) = command.split_first()?;
    let program = local_files::resolve_program(program).ok()?;
    let kubelet_args = KubeletArgs::parse(kubelet_args);
    log::init_detached(log_format(options));
    if kubelet_args.last("runonce").is_some_and(|value| value != "false") {
        tracing::info!("--runonce: this kubelet ends by itself, there is nothing to supervise");
        return Some(Err(become_kubelet(&program, &kubelet_args)));
    }
    // As it was called: a link may lead to another version by the time of a reload.
    let called = args.first().map(PathBuf::from).filter(|path| path.is_absolute());
    let worker = called.or_else(|| std::env::current_exe().ok()).unwrap_or_else(|| PathBuf::from("/proc/self/exe"));
    let own = kubelet_args.for_run(None, &ConfigDir::Unit);
    let worker_args = std::iter::once(OsString::from("worker")).chain(args.get(2..)?.iter().cloned()).collect();
    let command = monitor::Command { program: program.clone(), args: own, worker, worker_args, last_known_good };
    let ended = monitor::run(command);
    log::flush();
    let why = match ended {
        Ok(code) => return Some(Ok(code)),
        Err(why) => why,
    };
    // Law 1 to the end: it has our process id, so systemd goes on as if there had never been a supervisor.
    tracing::error!("the supervisor cannot begin: {why}; the kubelet runs without it, with its own arguments");
    Some(Err(become_kubelet(&program, &kubelet_args)))
}

/// In our place, once all is said. Comes back if that fails.
fn become_kubelet(program: &Path, args: &KubeletArgs) -> Failure {
    log::flush();
    let error = process::exec_kubelet(program, args);
    format!("cannot run {}: {error}", program.display()).into()
}

/// The kubelet's arguments with what is last known good for a worker with these arguments.
fn last_known_good(args: &[OsString]) -> Option<Vec<String>> {
    wire::last_known_good(&Options::try_parse_from(args).ok()?.settings().ok()?)
}

/// `--log-format`, before anything is parsed.
fn log_format(options: &[OsString]) -> log::Format {
    let option = options.iter().rposition(|option| option.to_string_lossy().starts_with("--log-format"));
    let value = option.and_then(|at| {
        let option = options.get(at)?.to_string_lossy().into_owned();
        option.strip_prefix("--log-format=").map(OsString::from).or_else(|| options.get(at + 1).cloned())
    });
    let value = value.or_else(|| std::env::var_os("KUBELET_SUPERVISOR_LOG_FORMAT"));
    if value.is_some_and(|value| value == "json") { log::Format::Json } else { log::Format::Text }
}

/// Not the monitor: there is none where the kubelet's command cannot be supervised.
pub(super) fn run(options: &Options) -> Result<u8, Failure> {
    options.settings()?;
    Err(Failure::usage(
        "run: the kubelet's command follows --, as in: kubelet-supervisor run -- /usr/bin/kubelet --config=FILE",
    ))
}

/// The worker.
pub(super) fn work(options: &Options) -> Result<u8, Failure> {
    let settings = match options.settings() {
        Ok(settings) => settings,
        Err(failure) => {
            eprintln!("kubelet-supervisor: {}", failure.message);
            return Ok(refuse());
        }
    };
    log::init(options.log_format);
    process::leave_signals_to_the_monitor().map_err(|error| error.to_string())?;
    Ok(block_on(wire::work(settings))?.map_err(|error| format!("{error:#}"))?)
}

/// Law 1 for options that a worker cannot go by: what systemd started is the node's kubelet, which the monitor runs. Where a person
/// waits, the monitor is to end. Gives the exit code that says so.
pub(super) fn refuse() -> u8 {
    if std::env::var_os("INVOCATION_ID").is_none() {
        return WRONG_OPTIONS;
    }
    eprintln!("kubelet-supervisor: these options are of no use; the kubelet runs unsupervised until they are mended");
    78 // EX_CONFIG of sysexits(3)
}

/// What a running supervisor goes by: its command line, and its environment where that says nothing.
pub(super) fn settings_of(pid: u32) -> Option<Settings> {
    parse_foreign(&strings_of(pid, "cmdline")?, &strings_of(pid, "environ")?).ok()?.settings().ok()
}

/// Options from the command line and the environment of another process; our own environment has no say.
fn parse_foreign(args: &[OsString], environment: &[OsString]) -> Result<Options, clap::Error> {
    let known = Options::command().bin_name("kubelet-supervisor run");
    let command = known.clone().mut_args(|arg| arg.env(None::<&str>));
    let is_ours = args.get(1).is_some_and(|verb| verb == "run" || verb == "worker");
    let args = args.get(1..).filter(|_| is_ours).ok_or_else(|| clap::Error::new(ErrorKind::InvalidSubcommand))?;
    let matches = command.clone().try_get_matches_from(args)?;
    let given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let from_environment = |arg: &clap::Arg| -> Option<OsString> {
        let variable = arg.get_env()?.as_bytes();
        let value = |it: &OsString| Some(it.as_bytes().strip_prefix(variable)?.strip_prefix(b"=")?.to_vec());
        let value = environment.iter().find_map(value)?;
        let mut option = OsString::from(format!("--{}=", arg.get_long()?));
        option.push(OsStr::from_bytes(&value));
        Some(option).filter(|_| !given(arg.get_id().as_str()))
    };
    let mut args = args.to_vec();
    args.splice(1..1, known.get_arguments().filter_map(from_environment).collect::<Vec<_>>()); // after `run`
    Options::from_arg_matches(&command.try_get_matches_from(args)?)
}

/// Tells now what `run` would say of these options at the next start of the node's kubelet.
pub(super) fn check_options(options: &[String]) -> Result<(), Failure> {
    if options.iter().any(|option| option == "--") {
        return Err(Failure::usage(
            "the options for `run` end before the kubelet's command, which the unit has: no second --",
        ));
    }
    settings_with(options, &[], &[]).map(drop)
}

/// What these options amount to beside a kubelet's arguments, in this environment.
pub(super) fn settings_with(
    options: &[String],
    kubelet_args: &[String],
    environment: &[OsString],
) -> Result<Settings, Failure> {
    let to_os_strings = |words: &[String]| words.iter().map(OsString::from).collect::<Vec<_>>();
    let head = ["kubelet-supervisor", "run"].map(OsString::from).into_iter().chain(to_os_strings(options));
    let args = head.chain(["--", "/proc/self/exe"].map(OsString::from)).chain(to_os_strings(kubelet_args));
    let options = parse_foreign(&args.collect::<Vec<_>>(), environment)
        .map_err(|error| Failure::usage(format!("the options for `run`: {error}")))?;
    let settings = options.settings();
    settings.map_err(|failure| Failure::usage(format!("the options for `run`: {}", failure.message)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_process_goes_by_is_its_own() {
        let strings = |text: &str| -> Vec<OsString> { text.split(' ').map(OsString::from).collect() };
        let line = strings("kubelet-supervisor run --merge=replace --spread 7m -- /proc/self/exe --v=2");
        let environment = strings(
            "PATH=/bin KUBELET_SUPERVISOR_MERGE=overlay KUBELET_SUPERVISOR_DYNAMIC_CONFIG_DIR=/srv/config \
             KUBELET_SUPERVISOR_METRICS_BIND_ADDRESS= KUBELET_SUPERVISOR_TRIAL_DURATION=3m",
        );
        let options = parse_foreign(&line, &environment).unwrap();
        assert_eq!(options.dynamic_config_dir.as_deref(), Some(std::path::Path::new("/srv/config")));
        assert_eq!(options.merge, Merge::Replace, "the command line goes first");
        assert_eq!(options.metrics_bind_address, "");
        assert_eq!((options.trial_duration.0.as_secs(), options.spread.0.as_secs()), (180, 420));
        let worker = strings("kubelet-supervisor worker --merge=replace --spread 7m -- /proc/self/exe --v=2");
        assert_eq!(parse_foreign(&worker, &environment).unwrap().spread.0.as_secs(), 420);
        assert!(parse_foreign(&strings("sleep 60"), &environment).is_err());
        assert!(parse_foreign(&line, &strings("KUBELET_SUPERVISOR_TRIAL_DURATION=soon")).is_err());
    }
}
