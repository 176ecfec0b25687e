//! `reload`: the installed binary goes on in the running supervisor's place. And the hidden verb by
//! which it is asked beforehand whether it can.

use kubelet_config::status;
use std::ffi::OsString;
use std::io::Read as _;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::Value;

use super::common::Failure;
use super::control::{StoreDir, Unreachable};
use super::run;
use crate::adapters::reexec;
use crate::daemon::settings;
use crate::machine::command::Command;
use kubelet_config::duration::GoDuration;

/// Between two queries of the status.
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    store: StoreDir,
    /// How long to wait until the new binary has taken over, which it does once the kubelet runs and no change is under way.
    // systemd ends an ExecReload after 90 s: what is to be said comes before.
    #[arg(long, default_value = "80s", value_parser = settings::positive, value_name = "DURATION")]
    timeout: GoDuration,
}

/// What `status` says of the supervisor itself.
struct ReloadStatus {
    version: String,
    reloads: u64,
    reloading: bool,
    error: Option<String>,
}

pub(super) fn run(options: Options) -> Result<u8, Failure> {
    let store = options.store.or_of_main_process();
    let failed = |why: &str| Failure::new(1, format!("not reloaded: {why}"));
    let before = match query_status(&store) {
        Ok(before) => before,
        Err(unreachable) => {
            return Err(failed(&format!(
                "no supervisor answers ({}): start the kubelet's unit, or give --dynamic-config-dir if it is elsewhere",
                unreachable.unless_refused()?
            )));
        }
    };
    let body = serde_json::to_string(&Command::Reload).map_err(|error| failed(&error.to_string()))?;
    match store.ask("POST", "/command", &body) {
        // The answer may be cut short by what was asked for.
        Ok((200, _)) | Err(Unreachable::NoAnswer(_)) => {}
        Ok((_, why)) => return Err(failed(why.trim_end())),
        Err(other) => return Err(failed(other.why())),
    }
    let begun = Instant::now();
    let mut last = String::new();
    while begun.elapsed() < options.timeout.0 {
        match query_status(&store) {
            Ok(now) if now.reloads > before.reloads => {
                println!("reloaded: {} -> {}", before.version, now.version);
                return Ok(0);
            }
            Ok(now) if now.reloads < before.reloads => return Err(failed("the supervisor was restarted meanwhile")),
            Ok(ReloadStatus { error: Some(why), .. }) => return Err(failed(&why)),
            Ok(now) => {
                let waits = "the kubelet does not run undisturbed yet; the reload follows as soon as it does";
                let what = if now.reloading { waits } else { "the supervisor does not say why" };
                what.clone_into(&mut last);
            }
            Err(unreachable) => unreachable.why().clone_into(&mut last),
        }
        std::thread::sleep(PAUSE);
    }
    Err(failed(&format!("not within {}: {last}", options.timeout)))
}

fn query_status(store: &StoreDir) -> Result<ReloadStatus, Unreachable> {
    let (_, body) = store.ask("GET", "/status", "")?;
    let document: Value = serde_json::from_str(&body)
        .map_err(|error| Unreachable::NoAnswer(format!("its answer is unreadable: {error}")))?;
    let Some(own) = document.get("supervisor") else {
        return Err(Unreachable::NoAnswer(
            "the running supervisor is too old to be reloaded: `systemctl restart kubelet`".to_owned(),
        ));
    };
    let text = |name: &str| own.get(name).and_then(Value::as_str).map(str::to_owned);
    Ok(ReloadStatus {
        version: text("version").unwrap_or_default(),
        reloads: own.get("reloads").and_then(Value::as_u64).unwrap_or_default(),
        reloading: own.get("reloading").and_then(Value::as_bool).unwrap_or_default(),
        error: text("reloadError"),
    })
}

#[derive(Debug, Args)]
pub(super) struct CanTakeOver {
    /// The running supervisor's own arguments.
    #[arg(last = true)]
    args: Vec<OsString>,
}

impl CanTakeOver {
    /// Reads what would be handed over from standard input, and the command line as `run` would.
    pub(super) fn run(self) -> Result<u8, Failure> {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(|error| Failure::new(1, error.to_string()))?;
        reexec::can_take_over(&text).map_err(|why| Failure::new(1, why))?;
        let args = [OsString::from("kubelet-supervisor")].into_iter().chain(self.args);
        let options = run::parse(args).map_err(|error| Failure::usage(error.to_string()))?;
        options.settings()?;
        println!("can take over: {}", status::VERSION);
        Ok(0)
    }
}
