//! The node's units: what systemd has of them, and our drop-ins in between.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::fsx::{self, Disk as _, RealDisk};
use super::process::{self, Confinement};
use crate::machine::model::Exit;
use crate::unit::{DROP_IN, Properties, UnitFile};

/// A machine under load reads its units again in some seconds.
const LIMIT: Duration = Duration::from_secs(60);

/// Far more than any unit; a node's units are some kilobytes.
const FILE_LIMIT: u64 = 1 << 20;

/// What is asked for.
const PROPERTIES: &str = "Id,LoadState,LoadError,NeedDaemonReload,FragmentPath,DropInPaths,ExecStart,Type,NotifyAccess,\
    KillMode,TimeoutStartUSec,OOMScoreAdjust,RestartUSec,StartLimitIntervalUSec,StartLimitBurst,ActiveState,MainPID,\
    Environment,EnvironmentFiles";

/// systemd's manager, by way of `systemctl`.
#[derive(Debug)]
pub(crate) struct Units {
    systemctl: PathBuf,
}

impl Units {
    /// Finds `systemctl`.
    pub(crate) fn find() -> Result<Self, String> {
        match process::systemctl() {
            Some(systemctl) if process::is_booted_with_systemd() => Ok(Self { systemctl }),
            Some(_) => Err("systemd does not run here (there is no /run/systemd/system): for an image, print the drop-in on a node that runs \
                 (kubelet-supervisor enable --dry-run), and put it in there".to_owned()),
            None => Err("there is no systemctl here: this is about nodes that systemd runs".to_owned()),
        }
    }

    async fn run(&self, args: &[&str]) -> Result<String, String> {
        let arguments: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        let what = || format!("systemctl {}", args.join(" "));
        let run = process::run_to_end(&self.systemctl, &arguments, LIMIT, Confinement::Helper)
            .await
            .map_err(|error| format!("{}: {error}", what()))?;
        let output = String::from_utf8_lossy(&run.output).trim().to_owned();
        match run.exit {
            Some(Exit::Code(0)) => Ok(output),
            Some(exit) => Err(format!("{}: {exit}: {output}", what())),
            None => Err(format!("{}: not done after {} s", what(), LIMIT.as_secs())),
        }
    }

    /// What systemd says of a unit, also of one that it does not find.
    pub(crate) async fn show(&self, unit: &str) -> Result<Properties, String> {
        Ok(Properties::parse(&self.run(&["show", unit, "-p", PROPERTIES]).await?))
    }

    /// Has systemd read all units again. It starts and stops nothing.
    pub(crate) async fn reload(&self) -> Result<(), String> {
        self.run(&["daemon-reload"]).await.map(|_| ())
    }
}

/// The files of a unit, all of them or an error: a unit that is known by half is worse than none.
pub(crate) fn files(properties: &Properties) -> Result<Vec<UnitFile>, String> {
    let read = |path: String| match read(Path::new(&path))? {
        Some(text) => Ok(UnitFile { path, text }),
        None => Err(format!("{path} is gone; run systemctl daemon-reload")),
    };
    properties.paths().into_iter().map(read).collect()
}

/// A file of a unit; `None` if it is not there.
pub(crate) fn read(path: &Path) -> Result<Option<String>, String> {
    match RealDisk::default().read(path, FILE_LIMIT) {
        Ok(bytes) => String::from_utf8(bytes).map(Some).map_err(|_| format!("{} is not UTF-8", path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// Writes a drop-in: after a crash the old one is there, or the new one.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), String> {
    let dir = path.parent().unwrap_or(path);
    // Not *.conf: systemd would take what a crash leaves of it for a drop-in.
    let temporary = dir.join(format!(".{DROP_IN}.tmp"));
    let disk = RealDisk::default();
    let made = disk.make_dir(dir, 0o755);
    let written = made.and_then(|()| fsx::replace(&disk, path, &temporary, text.as_bytes(), 0o644));
    written.map_err(|error| format!("{}: {error}", path.display()))
}

/// Removes a drop-in, and its directory if nothing else is in there.
pub(crate) fn remove(path: &Path) -> Result<(), String> {
    let dir = path.parent().unwrap_or(path);
    let disk = RealDisk::default();
    let steps = || -> std::io::Result<()> {
        disk.remove(path)?;
        if disk.list(dir)?.is_empty() {
            disk.remove(dir)?;
        } else {
            disk.sync(dir)?;
        }
        Ok(())
    };
    steps().map_err(|error| format!("{}: {error}", path.display()))
}
