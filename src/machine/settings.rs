//! Options of `run` that the machine goes by.

use std::time::Duration;

use super::limits;
use kubelet_config::duration::GoDuration;
use kubelet_config::schema::UnknownFields;
use kubelet_config::source::ConfigMapRef;

/// Parses how long a change may wait for streams.
///
/// # Errors
/// It is no duration, or longer than [`limits::COURTESY_MAX`].
pub fn parse_courtesy(text: &str) -> Result<GoDuration, String> {
    match text.parse::<GoDuration>()? {
        duration if duration.0 > limits::COURTESY_MAX => {
            Err(format!("{duration} is more than {}", GoDuration(limits::COURTESY_MAX)))
        }
        duration => Ok(duration),
    }
}

/// Options of `run` that the machine goes by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Continuous health that earns the title last known good.
    pub trial_duration: Duration,
    /// A kubelet not healthy by then has failed its trial.
    pub start_timeout: Duration,
    /// A node that is cut off since a change for this long is put back.
    pub isolation: Duration,
    /// Supervisor starts without proof that fail a trial.
    pub boots: u32,
    /// Everything must be confirmed within this time, unless its ConfigMap says otherwise.
    pub confirm_within: Option<Duration>,
    /// The kubelet has an API server: a node that it does not see is in no contact.
    pub api_server: bool,
    /// Nobody assigns anything: there is no API server, the local files are not followed, and nothing is recorded.
    pub standalone: bool,
    /// What runs on a Node without an assignment.
    pub default_source: Option<ConfigMapRef>,
    /// What the local files say is taken up while the kubelet runs.
    pub follow_local: bool,
    /// Edits in place and versions of the default source begin within this time, each node at its own.
    pub spread: Duration,
    /// The same for an explicit assignment.
    pub spread_assignment: Duration,
    /// How long a change waits for streams, unless its ConfigMap says otherwise; zero: not at all.
    pub courtesy: Duration,
    /// What becomes of payloads with fields that the kubelet would ignore.
    pub unknown_fields: UnknownFields,
    /// A kubelet that nobody judges is restarted when it was dead for so long; zero: never.
    pub hung_after: Duration,
    /// systemd's watchdog, where it has one for us.
    pub watchdog: Option<Duration>,
    /// Tells one boot of the machine from another.
    pub boot_id: u128,
}

impl Settings {
    /// What the kubelet is told as `WATCHDOG_USEC`.
    pub(super) fn watchdog_interval(&self) -> Duration {
        self.watchdog.unwrap_or(limits::WATCHDOG_INTERVAL)
    }

    /// The boot id as it is written down.
    pub(super) fn boot_id(&self) -> String {
        format!("{:032x}", self.boot_id)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            trial_duration: limits::TRIAL_DURATION,
            start_timeout: limits::START_TIMEOUT,
            isolation: limits::ISOLATION,
            boots: limits::TRIAL_BOOTS,
            confirm_within: None,
            api_server: true,
            standalone: false,
            default_source: None,
            follow_local: false,
            spread: Duration::ZERO,
            spread_assignment: Duration::ZERO,
            courtesy: Duration::ZERO,
            unknown_fields: UnknownFields::Warn,
            hung_after: Duration::ZERO,
            watchdog: None,
            boot_id: 0,
        }
    }
}
