//! `enable` and `disable`: the supervisor between systemd and the kubelet of this node, and out
//! again. Neither restarts anything.

use std::ffi::OsString;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::Args;

use super::common::{Failure, block_on};
use crate::adapters::systemctl::{self, Units};
use crate::os::ownership::{self, OwnershipError};
use crate::unit::{self, Properties, Request, ServiceType};
use kubelet_config::policy::DEFAULT_PATH;

/// Units of distributions that have no unit for the kubelet.
const NO_KUBELET: [&str; 10] = [
    "k3s.service",
    "k3s-agent.service",
    "rke2-server.service",
    "rke2-agent.service",
    "k0sworker.service",
    "k0scontroller.service",
    "microshift.service",
    "snap.microk8s.daemon-kubelite.service",
    "snap.k8s.kubelet.service",
    "snap.kubelet.daemon.service",
];

/// What of a unit `enable` may change and an operator wants to see.
const SHOWN: [&str; 5] = ["Type", "NotifyAccess", "TimeoutStartUSec", "KillMode", "OOMScoreAdjust"];

#[derive(Debug, Args)]
pub(super) struct UnitOption {
    /// The unit of the kubelet.
    #[arg(long, env = "KUBELET_SUPERVISOR_UNIT", default_value = "kubelet.service", value_name = "UNIT")]
    unit: String,
}

#[derive(Debug, Args)]
pub(super) struct Enable {
    #[command(flatten)]
    unit: UnitOption,
    /// When systemd takes the unit for started: at once, or when the kubelet is ready [default: as the unit has it]
    #[arg(long = "type", value_name = "simple|notify")]
    service_type: Option<ServiceType>,
    /// Install a policy, which says what the cluster may do to this node: baseline, strict, or a NodePolicy.
    #[arg(long, value_name = "baseline|strict|FILE")]
    policy: Option<String>,
    /// Print the drop-in, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Options for `run`, such as `-- --trial-duration 5m` [default: those of an earlier `enable`]
    #[arg(last = true, value_name = "OPTIONS OF run")]
    options: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct Disable {
    #[command(flatten)]
    unit: UnitOption,
}

impl Enable {
    pub(super) fn run(&self) -> Result<u8, Failure> {
        let unit = unit::unit_name(&self.unit.unit).map_err(|why| Failure::usage(format!("--unit: {why}")))?;
        super::run::check_options(&self.options)?;
        let policy = self.policy.as_deref().map(super::policy::chosen).transpose()?;
        if !self.dry_run {
            require_root("enable")?;
        }
        block_on(self.enable(&unit, policy.as_deref()))??;
        Ok(0)
    }

    async fn enable(&self, unit: &str, policy: Option<&str>) -> Result<(), String> {
        let units = Units::find()?;
        let mut before = units.show(unit).await?;
        if before.get("NeedDaemonReload") == "yes" {
            if self.dry_run {
                eprintln!("note: {unit} changed on disk since systemd read it: `systemctl daemon-reload` comes first");
            } else {
                units.reload().await?;
                before = units.show(unit).await?;
            }
        }
        if before.get("LoadState") == "not-found" {
            check_distribution(&units, unit).await?;
        }
        check_loaded(unit, &before)?;
        // Another name of it may have been given.
        let unit = Some(before.get("Id")).filter(|id| !id.is_empty()).unwrap_or(unit);
        let supervisor = own_program(self.dry_run)?;
        let plan = unit::plan(&Request {
            unit,
            files: &systemctl::files(&before)?,
            properties: &before,
            supervisor: &supervisor,
            options: Some(self.options.as_slice()).filter(|options| !options.is_empty()),
            service_type: self.service_type,
        })?;
        check_program(&plan.program)?;
        check_kept(&plan.options)?;
        check_store(&unit::split_command(&plan.options), &kubelet_args(&before), &environment(&before))?;
        let path = Path::new(&plan.path);
        let mut policy_is_new = false;
        match policy {
            Some(text) if self.dry_run => println!("# {DEFAULT_PATH}\n{text}"),
            // It is there before the first supervisor that it is for.
            Some(text) => policy_is_new = super::policy::install(text)?,
            None => {}
        }
        if self.dry_run {
            println!("# {}\n{}", plan.path, plan.text);
        } else {
            let old = systemctl::read(path)?;
            let is_new = old.as_ref() != Some(&plan.text);
            if is_new {
                systemctl::write(path, &plan.text)?;
            }
            // Nothing is said before: a terminal that is gone must not end it here.
            let after = match in_force(&units, unit, &supervisor).await {
                Ok(after) => after,
                Err(why) => {
                    let stays = if policy_is_new { format!("; {DEFAULT_PATH} stays") } else { String::new() };
                    return Err(undo(&units, path, old.as_deref(), &why).await + &stays);
                }
            };
            println!(
                "{}",
                if is_new { format!("wrote {}", plan.path) } else { format!("{} is up to date", plan.path) }
            );
            show(&before, &after);
        }
        if self.options.is_empty() && !plan.options.is_empty() {
            println!("kept the options of `run` it had: {} (`disable` forgets them)", plan.options);
        }
        for note in &plan.notes {
            println!("note: {note}");
        }
        if !self.dry_run {
            in_force_after(unit);
        }
        Ok(())
    }
}

impl Disable {
    pub(super) fn run(&self) -> Result<u8, Failure> {
        let unit = unit::unit_name(&self.unit.unit).map_err(|why| Failure::usage(format!("--unit: {why}")))?;
        require_root("disable")?;
        block_on(disable(&unit))??;
        Ok(0)
    }
}

async fn disable(unit: &str) -> Result<(), String> {
    let units = Units::find()?;
    let known = units.show(unit).await?;
    let unit = Some(known.get("Id")).filter(|id| !id.is_empty()).unwrap_or(unit);
    let path = unit::drop_in_path(unit);
    let was_there = systemctl::read(Path::new(&path))?.is_some();
    if was_there {
        systemctl::remove(Path::new(&path))?;
    } else if known.get("NeedDaemonReload") != "yes" {
        println!("{path} is not there: nothing to disable");
        return Ok(());
    }
    // Also where an earlier `disable` got no further than this. Nothing is said before: a terminal that is gone must not end it here.
    units.reload().await?;
    let after = units.show(unit).await?;
    println!(
        "{}",
        if was_there { format!("removed {path}") } else { format!("{path} is gone: systemd read its units again") }
    );
    show(&known, &after);
    if after.starts("/kubelet-supervisor") {
        println!("note: another file of the unit has the supervisor too: systemctl cat {unit}");
    } else if after.get("ActiveState") == "active" {
        println!("the supervisor that runs now goes on until then, and the kubelet with it");
    }
    in_force_after(unit);
    Ok(())
}

fn in_force_after(unit: &str) {
    let short = unit.strip_suffix(".service").unwrap_or(unit);
    println!("nothing was restarted; in force after: systemctl restart {short} (pods keep running)");
}

fn show(before: &Properties, after: &Properties) {
    if let Some((_, command)) = after.exec_start() {
        println!("ExecStart={command}");
    }
    for key in SHOWN {
        let (old, new) = (before.get(key), after.get(key));
        if old != new {
            println!("{key}={new} (was {old})");
        }
    }
}

fn require_root(verb: &str) -> Result<(), Failure> {
    if nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    Err(format!("{verb} changes a unit of this node: run it as root, such as with sudo").into())
}

/// Where there is no such unit: one whose program runs the kubelet may be why.
async fn check_distribution(units: &Units, unit: &str) -> Result<(), String> {
    for other in NO_KUBELET {
        if units.show(other).await?.get("LoadState") == "loaded"
            && let Some(instead) = unit::distribution(other)
        {
            return Err(format!("there is no {unit}, but {other}: {instead}"));
        }
    }
    Ok(())
}

fn check_loaded(unit: &str, found: &Properties) -> Result<(), String> {
    match found.get("LoadState") {
        "loaded" => Ok(()),
        "masked" => Err(format!("{unit} is masked: systemctl unmask {unit}, if this node is to have a kubelet")),
        "not-found" => Err(format!(
            "there is no {unit}: install the kubelet first, or name the unit that runs it with --unit (systemctl list-units)"
        )),
        other => {
            let why = found.get("LoadError");
            Err(format!("systemd cannot load {unit} ({other}{why}): systemctl status {unit} says why"))
        }
    }
}

/// This program's path as it was called, with its links: the one that is turned at the next upgrade.
fn as_called(file: &Path) -> PathBuf {
    let Some(called) = std::env::args_os().next().map(PathBuf::from) else { return file.to_owned() };
    let candidates: Vec<PathBuf> = if called.is_absolute() {
        vec![called]
    } else if called.components().count() == 1 {
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).map(|dir| dir.join(&called)).collect()
    } else {
        Vec::new()
    };
    let same = |path: &PathBuf| path.is_absolute() && path.canonicalize().is_ok_and(|path| path == file);
    // Where /bin is a link to /usr/bin, the packages' own name for it is the one without.
    let found = candidates.into_iter().filter(same).reduce(|first, next| if next == file { next } else { first });
    found.unwrap_or_else(|| file.to_owned())
}

/// The options in the unit, as far as they stand there word for word: those of an earlier version may be unknown to this
/// one.
fn check_kept(options: &str) -> Result<(), String> {
    if options.contains(['$', '%', '\\']) {
        return Ok(());
    }
    super::run::check_options(&unit::split_command(options)).map_err(|failure| {
        format!("{}; these stand in the unit, name others: kubelet-supervisor enable -- OPTIONS", failure.message)
    })
}

/// The kubelet's arguments as far as they are known: those that it runs with, whose variables are expanded, then the unit's.
fn kubelet_args(unit: &Properties) -> Vec<String> {
    let running = of_running(unit, "cmdline").map(|word| word.to_string_lossy().into_owned()).collect();
    let (_, command) = unit.exec_start().unwrap_or_default();
    let behind_supervisor = |words: Vec<String>| {
        let begin = words.iter().position(|word| word == "--").map_or(0, |at| at + 1);
        words.into_iter().skip(begin + 1)
    };
    behind_supervisor(running).chain(behind_supervisor(unit::split_command(command))).collect()
}

/// The environment that systemd gives, the later assignment first: the unit's files, the unit, and what the kubelet runs
/// with. That of the shell which `enable` was called from has no say.
fn environment(unit: &Properties) -> Vec<OsString> {
    let mut set = unit::split_command(unit.get("Environment"));
    for file in unit.get("EnvironmentFiles").lines() {
        let path = file.rsplit_once(" (ignore_errors=").map_or(file, |(path, _)| path);
        let text = systemctl::read(Path::new(path)).ok().flatten().unwrap_or_default();
        let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';']));
        set.extend(lines.map(|line| unit::split_command(line).join(" ")));
    }
    set.into_iter().rev().map(OsString::from).chain(of_running(unit, "environ")).collect()
}

/// The strings in a file of the process that runs, if one does.
fn of_running(unit: &Properties, file: &str) -> impl Iterator<Item = OsString> {
    let found = unit.get("MainPID").parse().ok().and_then(|pid| super::common::strings_of(pid, file));
    found.unwrap_or_default().into_iter()
}

/// A store that others than root can change is neither read nor written: a node that has one would be back on its local
/// configuration at the next restart.
fn check_store(options: &[String], kubelet_args: &[String], environment: &[OsString]) -> Result<(), String> {
    // Options that systemd alone can expand say nothing of the store here.
    let settings = super::run::settings_with(options, kubelet_args, environment);
    let settings = settings.or_else(|_| super::run::settings_with(&[], kubelet_args, environment));
    let Ok(settings) = settings else { return Ok(()) };
    match ownership::check(&settings.dir) {
        Err(error @ OwnershipError::Changeable { .. }) => Err(format!(
            "the store {} would not be used, and the kubelet run with its local configuration: {error}",
            settings.dir.display()
        )),
        _ => Ok(()),
    }
}

/// The executable that is to be in the unit: this one.
fn own_program(dry_run: bool) -> Result<String, String> {
    let file = std::env::current_exe().map_err(|error| format!("cannot find the path of this program: {error}"))?;
    let path = as_called(&file);
    let shown = path.to_str().map(str::to_owned).ok_or_else(|| format!("{} is not UTF-8", path.display()))?;
    if dry_run {
        return Ok(shown);
    }
    let hint = "install it first (install -m 755 kubelet-supervisor /usr/bin/), then run that one";
    if let Some(place) = ["/tmp/", "/var/tmp/", "/run/", "/dev/shm/"].into_iter().find(|place| shown.starts_with(place))
    {
        return Err(format!("{shown} is in {place}, which the next boot empties: {hint}"));
    }
    // Who may write to a directory on the way can put another file there.
    ownership::check(&path)
        .map_err(|error| format!("root's kubelet would be run by {shown}, but {error}; or {hint}"))?;
    if !shown.starts_with("/usr/") && !shown.starts_with("/opt/") {
        println!("note: the kubelet depends on {shown} from now on; it must stay there");
    }
    Ok(shown)
}

/// The kubelet must be a program, whose arguments are what the unit says.
fn check_program(program: &str) -> Result<(), String> {
    let path = PathBuf::from(program);
    let mut head = [0; 2];
    match std::fs::File::open(&path).and_then(|mut file| file.read_exact(&mut head)) {
        Ok(()) if head == *b"#!" => Err(format!(
            "{program} is a script, and the supervisor has to be given the kubelet itself with its own arguments: put \
             them into ExecStart= (`systemctl edit`), and what the script computes into a file that EnvironmentFile= \
             names, written by an ExecStartPre="
        )),
        Ok(()) => Ok(()),
        Err(error) => {
            // A name without a path, a specifier: systemd knows.
            if path.is_absolute() && !program.contains('%') {
                println!("note: {program}: {error}");
            }
            Ok(())
        }
    }
}

/// Has systemd read the unit again, and checks that it runs the supervisor.
async fn in_force(units: &Units, unit: &str, supervisor: &str) -> Result<Properties, String> {
    units.reload().await?;
    let after = units.show(unit).await?;
    check_loaded(unit, &after)?;
    if after.starts(supervisor) {
        return Ok(after);
    }
    let found = after.exec_start().map_or("nothing", |(program, _)| program);
    Err(format!("systemd would run {found}, not {supervisor}: systemctl cat {unit}"))
}

/// Puts back what was there.
async fn undo(units: &Units, path: &Path, old: Option<&str>, why: &str) -> String {
    let undone = match old {
        Some(old) => systemctl::write(path, old),
        None => systemctl::remove(path),
    };
    match undone.and(units.reload().await) {
        Ok(()) => format!("{why}; the unit is as it was before"),
        Err(error) => format!("{why}; and that could not be undone: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_store_that_others_can_change_is_refused_with_the_line_to_run() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().canonicalize().unwrap().join("data");
        std::fs::create_dir(&data).unwrap();
        let option = |name: &str| vec![name.to_owned(), data.join("store").display().to_string()];
        let (own, others) = (option("--dynamic-config-dir"), option("--trial-dir"));
        for (options, args) in [(own.clone(), vec![]), (vec![], own.clone()), (others, own)] {
            std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o775)).unwrap();
            let why = check_store(&options, &args, &[]).unwrap_err();
            assert!(why.ends_with(&format!("chmod go-w {}", data.display())), "{why}");
            std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o755)).unwrap();
            assert_eq!(check_store(&options, &args, &[]), Ok(()));
        }
        // As systemd sets it, in a file of the unit before the unit itself; a process that runs comes last.
        let file = dir.path().join("environment");
        let variable = "KUBELET_SUPERVISOR_DYNAMIC_CONFIG_DIR";
        std::fs::write(&file, format!("# ours\n{variable}=\"{}\"\n", data.join("store").display())).unwrap();
        std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o775)).unwrap();
        let shown = |files: &str| {
            let text = format!("MainPID=0\nEnvironment=A=b {variable}=/nonexistent/x\n{files}");
            environment(&Properties::parse(&text))
        };
        let files = format!(
            "EnvironmentFiles={} (ignore_errors=no)\nEnvironmentFiles=/none (ignore_errors=yes)\n",
            file.display()
        );
        assert!(check_store(&[], &[], &shown(&files)).unwrap_err().contains("chmod go-w"));
        assert_eq!(check_store(&[], &[], &shown("")), Ok(()));
        let running = environment(&Properties::parse(&format!("MainPID={}", std::process::id())));
        assert!(running.iter().any(|it| it.to_string_lossy().starts_with("PATH=")), "{running:?}");
        let unit = "MainPID=0\nExecStart={ path=/x ; argv[]=/x run --spread 1m -- /usr/bin/kubelet --v=2 ; ignore_errors=no ; }";
        assert_eq!(kubelet_args(&Properties::parse(unit)), ["--v=2"]);
    }
}
