//! What `enable` writes, and what an operator has to know of it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::command::{Command, quote};
use super::service::{DROP_IN, Properties, Service, UnitFile, drop_in_path, span};
use kubelet_config::duration::GoDuration;

/// When systemd takes the unit for started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceType {
    /// At once.
    Simple,
    /// When the kubelet is ready.
    Notify,
}

impl FromStr for ServiceType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = [Self::Simple, Self::Notify].into_iter().find(|known| known.to_string() == text);
        found.ok_or_else(|| format!("{text:?} is not simple or notify"))
    }
}

impl fmt::Display for ServiceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Simple => "simple",
            Self::Notify => "notify",
        })
    }
}

/// What a drop-in is worked out from.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The unit's name.
    pub unit: &'a str,
    /// Its files in order, an earlier drop-in of ours among them.
    pub files: &'a [UnitFile],
    /// What systemd says of it.
    pub properties: &'a Properties,
    /// Path of the supervisor.
    pub supervisor: &'a str,
    /// Options for `run`; none: those of an earlier drop-in.
    pub options: Option<&'a [String]>,
    /// `Type=`; none: that of an earlier drop-in, else the unit's.
    pub service_type: Option<ServiceType>,
}

/// A drop-in, and what is to be said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Where it goes.
    pub path: String,
    /// Its content.
    pub text: String,
    /// The file that the kubelet's command runs.
    pub program: String,
    /// The options of `run` in it, in systemd's spelling.
    pub options: String,
    /// Warnings and hints, most important first.
    pub notes: Vec<String>,
}

/// A unit that says READY must do so within this long, or systemd kills and restarts it. A new
/// configuration has 2 minutes (`--start-timeout`), the way back 30 s for stopping and the same
/// again; systemd's own default of 90 s would cut in before the rollback.
const START_LIMIT: Duration = Duration::from_secs(300);

/// Works out the drop-in for a unit.
///
/// # Errors
/// Why the supervisor cannot be put there, and what to do.
pub fn plan(request: &Request<'_>) -> Result<Plan, String> {
    let path = drop_in_path(request.unit);
    let (ours, others): (Vec<&UnitFile>, Vec<&UnitFile>) = request.files.iter().partition(|file| file.path == path);
    let (ours, base) = (Service::read(ours), Service::read(others.iter().copied()));
    let command = command_in_force(request.unit, &base, &others)?;
    check_type(request.unit, base.last("Type"))?;
    let before = ours.list("ExecStart").last().and_then(|start| Command::read(&start.value).ok());
    let options = match request.options {
        Some(words) => {
            let expands = !command.prefix.contains(':');
            words.iter().map(|word| quote(word, expands)).collect::<Vec<_>>().join(" ")
        }
        None => before.and_then(|before| before.options).or_else(|| command.options.clone()).unwrap_or_default(),
    };
    let own_type = match base.last("Type") {
        Some("notify" | "notify-reload") => ServiceType::Notify,
        _ => ServiceType::Simple,
    };
    let earlier = ours.last("Type").and_then(|text| text.parse().ok());
    let chosen = request.service_type.or(earlier).unwrap_or(own_type);
    let text = text(request, &command, &options, &base, own_type, chosen);
    let mut notes = notes(request, &base, own_type, chosen);
    if !command.launchers.is_empty() {
        let launchers = command.launchers.trim_end();
        notes.insert(
            0,
            format!("{launchers} stays in front: the supervisor, its preflights and the kubelet all run under it"),
        );
    }
    Ok(Plan { path, text, program: command.program, options, notes })
}

/// The one command of a unit without our drop-in.
fn command_in_force(unit: &str, base: &Service<'_>, files: &[&UnitFile]) -> Result<Command, String> {
    let starts = base.list("ExecStart");
    let start = match starts.as_slice() {
        [] => {
            return Err(format!("{unit} has no ExecStart= (`systemctl cat {unit}`): is it the unit of the kubelet?"));
        }
        [start] => start,
        _ => {
            return Err(format!(
                "{unit} has {} ExecStart= lines without an empty one between: systemd refuses that too",
                starts.len()
            ));
        }
    };
    let is_later = |file: &&&UnitFile| {
        let (dir, name) = file.path.rsplit_once('/').unwrap_or_default();
        dir.strip_suffix(".d").is_some() && name > DROP_IN
    };
    if let Some(file) = files.iter().filter(is_later).find(|file| file.path == start.file) {
        return Err(format!(
            "{} sets ExecStart= after {DROP_IN} and would win: rename it to a name that sorts before, such as 50-…",
            file.path
        ));
    }
    Command::read(&start.value).map_err(|why| format!("the ExecStart= of {} cannot be used: {why}", start.file))
}

fn check_type(unit: &str, found: Option<&str>) -> Result<(), String> {
    match found {
        None | Some("simple" | "exec" | "idle" | "notify" | "notify-reload") => Ok(()),
        Some(other) => {
            Err(format!("{unit} has Type={other}, which a kubelet does not know: make it simple or notify first"))
        }
    }
}

fn text(
    request: &Request<'_>,
    command: &Command,
    options: &str,
    base: &Service<'_>,
    own_type: ServiceType,
    chosen: ServiceType,
) -> String {
    let Request { unit, supervisor, .. } = request;
    let short = unit.strip_suffix(".service").unwrap_or(unit);
    let between = if options.is_empty() { "" } else { " " };
    let command_text = format!(
        "# kubelet-supervisor as the ExecStart of {unit}.\n#\n\
             # Written by `kubelet-supervisor enable` from the unit's own command: run it again when the unit changes.\n\
             # `kubelet-supervisor disable` removes it. Both are in force after `systemctl restart {short}`.\n\
             [Service]\n\
             ExecStart=\n\
             ExecStart={}{}{supervisor} run {options}{between}-- {}",
        command.prefix, command.launchers, command.kubelet
    );
    let limit = start_limit(options);
    let lacks_access = matches!(base.last("NotifyAccess"), None | Some("none"));
    let kill_mode = if base.last("KillMode") == Some("process") { KILL_PROCESS } else { KILL_MIXED };
    let blocks = [
        Some(command_text),
        (chosen != own_type).then(|| format!("# As `enable --type` was told.\nType={chosen}")),
        (chosen == ServiceType::Notify && wants_longer(base, limit)).then(|| start_text(limit)),
        lacks_access.then(|| NOTIFY_ACCESS.to_owned()),
        Some(kill_mode.to_owned()),
        Some(RELOAD.to_owned()),
        base.last("OOMScoreAdjust").is_none().then(|| OOM_SCORE.to_owned()),
        base.last("OOMPolicy").is_none().then(|| OOM_POLICY.to_owned()),
    ];
    blocks.into_iter().flatten().collect::<Vec<_>>().join("\n\n") + "\n"
}

fn start_text(limit: Duration) -> String {
    let seconds = limit.as_secs();
    let limit = if seconds.is_multiple_of(60) { format!("{}min", seconds / 60) } else { format!("{seconds}s") };
    format!("# The supervisor says READY when the kubelet does, if need be after a rollback.\nTimeoutStartSec={limit}")
}

/// As long as two starts and a stop may take.
fn start_limit(options: &str) -> Duration {
    let words = options.replace('=', " ");
    let mut words = words.split_whitespace().skip_while(|word| *word != "--start-timeout").skip(1);
    let chosen = words.next().and_then(|text| text.trim_matches('"').parse::<GoDuration>().ok());
    chosen.map_or(START_LIMIT, |chosen| START_LIMIT.max(chosen.0.saturating_mul(2) + Duration::from_secs(60)))
}

const NOTIFY_ACCESS: &str = "# STATUS in words and the watchdog, whatever the Type.\nNotifyAccess=main";

const KILL_MIXED: &str = "\
# SIGTERM goes to the supervisor alone, which stops the kubelet; SIGKILL later takes whatever is
# left in the cgroup, so there is never a second kubelet.
KillMode=mixed";

const KILL_PROCESS: &str = "\
# KillMode=process stays: what the kubelet started outlives it. The kubelet itself never outlives
# the supervisor, which stops it, and with which the kernel kills it.";

const RELOAD: &str = "\
# `systemctl reload` has the installed version of the supervisor take over; the kubelet goes on.
ExecReload=
ExecReload=/bin/kill -HUP $MAINPID";

const OOM_SCORE: &str = "\
# As the kubelet sets for itself: the node loses neither of the two to the OOM killer.
OOMScoreAdjust=-999";

const OOM_POLICY: &str = "\
# What the OOM killer ends below the supervisor is started again by it; the unit goes on.
OOMPolicy=continue";

/// True if the unit's own time to start is too short for a rollback.
fn wants_longer(base: &Service<'_>, limit: Duration) -> bool {
    match base.last("TimeoutStartSec").or_else(|| base.last("TimeoutSec")).map(span) {
        None => true,
        // 0 and infinity: no limit.
        Some(own) => own.is_some_and(|own| !own.is_zero() && own < limit),
    }
}

/// What the operator should know.
fn notes(request: &Request<'_>, base: &Service<'_>, own_type: ServiceType, chosen: ServiceType) -> Vec<String> {
    let mut notes = Vec::new();
    let properties = request.properties;
    if matches!(base.last("Restart"), None | Some("no")) {
        notes.push(
            "Restart=no: should the supervisor die, the kubelet dies with it and nothing brings them back; \
             Restart=always in the unit does"
                .to_owned(),
        );
    } else {
        notes.extend(start_limit_note(properties));
    }
    let limit = base.last("WatchdogSec").filter(|limit| span(limit).is_none_or(|limit| !limit.is_zero()));
    if let Some(limit) = limit {
        notes.push(format!(
            "WatchdogSec={limit}: the supervisor passes a kubelet's pings on, so that one that hangs is restarted as \
             before, and pings in the place of one that never does"
        ));
    }
    if chosen == ServiceType::Notify && own_type == ServiceType::Simple {
        notes.push(
            "Type=notify: `systemctl start` and the boot wait for a ready kubelet. Not for nodes that are joined \
             by something that itself waits for the boot, such as the last stage of cloud-init on Debian and Ubuntu"
                .to_owned(),
        );
    }
    let before = base.list("ExecStartPre");
    let removes_state = |value: &str| {
        value.contains("rm ") && (value.contains("cpu_manager_state") || value.contains("memory_manager_state"))
    };
    if !before.is_empty() {
        let what = if before.iter().any(|setting| removes_state(&setting.value)) {
            "ExecStartPre= removes the kubelet's state files"
        } else {
            "there is an ExecStartPre="
        };
        notes.push(format!(
            "{what}: it runs when systemd starts the unit, and not when the supervisor restarts the kubelet for a \
             change. The supervisor keeps cpu_manager_state and memory_manager_state of different policies apart by \
             itself"
        ));
    }
    notes
}

/// systemd gives up on a unit that is restarted too often in too short a time.
fn start_limit_note(properties: &Properties) -> Option<String> {
    let [interval, delay] = ["StartLimitIntervalUSec", "RestartUSec"].map(|key| properties.get(key));
    let burst: u32 = properties.get("StartLimitBurst").parse().ok()?;
    let (within, between) = (span(interval).filter(|within| !within.is_zero())?, span(delay)?);
    (burst > 0 && between.saturating_mul(burst) < within).then(|| {
        format!(
            "the start limit can be hit: {burst} starts within {interval}, restarted after {delay} each; then systemd \
             leaves the node without a kubelet. StartLimitIntervalSec=0 in [Unit] lifts it"
        )
    })
}
