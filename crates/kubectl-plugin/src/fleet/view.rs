//! What people are told of a node: one word for its state, the time left, and a message where there is one.

use serde_json::{Value, json};

use super::YOUNG;
use super::node::{Carrier, ConfigManager, NodeRow, Stage};
use kubelet_config::status::{WAITS_WHILE, config_source};

/// An assignment that no supervisor took up within this time, seconds: the slowest way is an API server that lets
/// nodes ask but not watch, where they ask every one to two minutes.
const SILENT: u64 = 180;

/// How something is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Nothing to say of it.
    #[default]
    Plain,
    /// As it should be.
    Good,
    /// Not yet as it should be.
    Open,
    /// Not as it should be.
    Bad,
}

kubelet_config::named! {
    /// Who manages a node's configuration, and whether it reports.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum ManagerStatus by label {
        /// A supervisor, of what is asked for now; or it has time to.
        Supervisor = "supervisor",
        /// A supervisor did, and says nothing of what is asked for now.
        Silent = "silent",
        /// Native dynamic configuration.
        Native = "native",
        /// Nobody yet: the Node is new, or not Ready.
        NotYet = "not-yet",
        /// Nobody, though it is Ready and had time.
        Nobody = "none",
    }
}

/// A node at a moment: `now` in seconds since 1970, of the reader's clock. The nodes' clocks are taken to agree.
pub(crate) struct View<'a> {
    row: &'a NodeRow,
    now: i64,
}

impl<'a> View<'a> {
    pub(crate) fn new(row: &'a NodeRow, now: i64) -> Self {
        Self { row, now }
    }

    fn since(&self, time: &str) -> Option<u64> {
        seconds_since(time, self.now)
    }

    pub(crate) fn manager_status(&self) -> ManagerStatus {
        let had_time = self.since(&self.row.assignment_written_at).is_some_and(|age| age > SILENT);
        match self.row.manager {
            Some(ConfigManager::Supervisor) if self.row.stage() == Stage::Pending && (had_time || !self.row.ready) => {
                ManagerStatus::Silent
            }
            Some(ConfigManager::Supervisor) => ManagerStatus::Supervisor,
            Some(ConfigManager::Native) => ManagerStatus::Native,
            _ if !self.row.ready || self.since(&self.row.created).is_some_and(|age| age < YOUNG.as_secs()) => {
                ManagerStatus::NotYet
            }
            _ => ManagerStatus::Nobody,
        }
    }

    /// In one or two words, with what is left of it.
    pub(crate) fn state(&self) -> (Tone, String) {
        let stage = self.row.stage();
        match self.manager_status() {
            ManagerStatus::Silent => return (Tone::Bad, "silent".to_owned()),
            ManagerStatus::NotYet => return (Tone::Open, "no word yet".to_owned()),
            ManagerStatus::Nobody if self.row.desired.is_some() => return (Tone::Bad, "no supervisor".to_owned()),
            ManagerStatus::Nobody => return (Tone::Plain, "no supervisor".to_owned()),
            ManagerStatus::Supervisor | ManagerStatus::Native => {}
        }
        let tone = match stage {
            Stage::Local => Tone::Plain,
            Stage::Proven => Tone::Good,
            Stage::Failed => Tone::Bad,
            _ => Tone::Open,
        };
        if self.row.reason() == "TrialSuspended" && stage == Stage::OnTrial {
            return (tone, "suspended".to_owned());
        }
        let left = self.left().map(|left| format!(" {}", human(left))).unwrap_or_default();
        (tone, format!("{}{left}", stage.label()))
    }

    /// Seconds to the end of the trial, or of the time to confirm, if all stays well; or to its turn.
    pub(crate) fn left(&self) -> Option<u64> {
        let row = self.row;
        let end: jiff::Timestamp = match row.stage() {
            Stage::OnTrial => row.trial_ends.as_ref()?.parse().ok()?,
            Stage::AwaitsConfirmation => row.confirm_by.as_ref()?.parse().ok()?,
            // The condition's message is the one place that has it.
            Stage::Scheduled => {
                let words = row.condition.as_ref()?.message.split_whitespace();
                words.map(|word| word.trim_end_matches(':')).find_map(|word| word.parse().ok())?
            }
            _ => return None,
        };
        Some(u64::try_from(end.as_second().saturating_sub(self.now)).unwrap_or_default())
    }

    /// Seconds since the node said so.
    pub(crate) fn age(&self) -> Option<u64> {
        let condition = self.row.condition.as_ref()?;
        self.since(if condition.reported_at.is_empty() { &condition.since } else { &condition.reported_at })
    }

    /// What is to be known beyond the state: the kubelet's words for a failure, whom to ask, what to do.
    pub(crate) fn message(&self) -> String {
        let row = self.row;
        let message = row.condition.as_ref().map_or(row.error.as_str(), |condition| condition.message.as_str());
        let text = match (self.manager_status(), row.stage()) {
            (ManagerStatus::Silent, _) => {
                let age =
                    self.since(&row.assignment_written_at).map(|age| format!(", {} after it was assigned", human(age)));
                format!("its supervisor says nothing of it{}", age.unwrap_or_default())
            }
            (ManagerStatus::NotYet, _) => {
                let age = self.since(&row.created).map(|age| format!("the Node is {} old", human(age)));
                age.unwrap_or_default()
            }
            (ManagerStatus::Nobody, _) => "kubelet-supervisor enable, on the node".to_owned(),
            _ if row.invalid.is_some() => row.invalid.clone().unwrap_or_default(),
            (_, Stage::Failed | Stage::Held) => message.to_owned(),
            (_, Stage::Scheduled) if message.contains(" waits, ") || message.starts_with(WAITS_WHILE) => {
                message.to_owned()
            }
            (_, Stage::OnTrial) if self.row.reason() == "TrialSuspended" => message.to_owned(),
            (_, Stage::AwaitsConfirmation) => "rolled back unless confirmed".to_owned(),
            (ManagerStatus::Native, _) => "native dynamic configuration, without a supervisor".to_owned(),
            _ => String::new(),
        };
        match (row.ready, text.is_empty()) {
            (true, _) => text,
            (false, true) => "the Node is NotReady".to_owned(),
            (false, false) => format!("the Node is NotReady; {text}"),
        }
    }

    pub(crate) fn document(&self) -> Value {
        let row = self.row;
        let condition = row.condition.as_ref();
        json!({
            "node": row.name,
            "ready": row.ready,
            "kubeletVersion": row.kubelet,
            "manager": self.manager_status().label(),
            "carrier": row.carrier.map(Carrier::label),
            "wanted": row.desired,
            "state": row.stage().label(),
            "assigned": config_source(row.assigned.as_ref()),
            "active": config_source(row.active.as_ref()),
            "lastKnownGood": config_source(row.last_known_good.as_ref()),
            "trial": { "ends": row.trial_ends, "confirmBy": row.confirm_by, "secondsLeft": self.left() },
            "error": row.error,
            "reason": condition.map(|condition| &condition.reason),
            "message": condition.map(|condition| &condition.message),
            "note": self.message(),
            "said": condition.map(|condition| &condition.reported_at),
        })
    }
}

/// Seconds since an RFC 3339 time.
pub(crate) fn seconds_since(time: &str, now: i64) -> Option<u64> {
    let time: jiff::Timestamp = time.parse().ok()?;
    Some(u64::try_from(now.saturating_sub(time.as_second())).unwrap_or_default())
}

/// A time as kubectl shows ages: two units at the most, none that nobody needs (`HumanDuration`,
/// apimachinery/pkg/util/duration, v1.36).
pub(crate) fn human(seconds: u64) -> String {
    let two = |large: u64, unit: char, small: u64, under: char| {
        if small == 0 { format!("{large}{unit}") } else { format!("{large}{unit}{small}{under}") }
    };
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, 'm', seconds % 60, 's'),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, 'h', minutes % 60, 'm'),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, 'd', hours % 24, 'h'),
        _ => format!("{days}d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubelet_config::reported::ReportedCondition as Condition;
    use kubelet_config::source::{ConfigMapRef, Source};

    const NOW: i64 = 1_767_225_600; // 2026-01-01T00:00:00Z

    fn source(version: &str) -> Source {
        let reference = ConfigMapRef { namespace: "n".into(), name: "m".into(), kubelet_config_key: "k".into() };
        Source { reference, resource_version: version.into(), uid: "u".into() }
    }

    fn row(manager: ConfigManager) -> NodeRow {
        NodeRow { name: "n1".into(), ready: true, manager: Some(manager), ..NodeRow::default() }
    }

    fn assigned(reason: &str) -> NodeRow {
        NodeRow {
            carrier: Some(Carrier::Labels),
            desired: Some(source("1").reference),
            assigned: Some(source("1")),
            active: Some(source("1")),
            condition: Some(Condition {
                status: "Unknown".into(),
                reason: reason.into(),
                message: "words".into(),
                since: "2025-12-31T00:00:00Z".into(),
                reported_at: "2025-12-31T23:59:00Z".into(),
            }),
            ..row(ConfigManager::Supervisor)
        }
    }

    fn state(row: &NodeRow) -> String {
        View::new(row, NOW).state().1
    }

    #[test]
    fn what_is_left_is_counted_here() {
        let mut row = NodeRow { trial_ends: Some("2026-01-01T00:07:20Z".into()), ..assigned("OnTrial") };
        assert_eq!(state(&row), "on trial 7m20s");
        assert_eq!(View::new(&row, NOW + 1000).left(), Some(0), "late, or a clock that differs");
        assert_eq!(View::new(&row, NOW).age(), Some(60));
        row.trial_ends = None;
        assert_eq!(state(&row), "on trial", "its clock stands still");
        row.condition.as_mut().unwrap().reason = "TrialSuspended".into();
        assert_eq!((state(&row), View::new(&row, NOW).message()), ("suspended".into(), "words".into()));
        let row = NodeRow { confirm_by: Some("2026-01-01T00:28:00Z".into()), ..assigned("AwaitsConfirmation") };
        assert_eq!(state(&row), "to confirm 28m");
        assert_eq!(View::new(&row, NOW).message(), "rolled back unless confirmed");
        let mut row = assigned("Scheduled");
        row.condition.as_mut().unwrap().message = "Takes effect at 2026-01-01T00:04:30Z: /api/v1/x, UID: u".into();
        assert_eq!((state(&row), View::new(&row, NOW).message()), ("scheduled 4m30s".into(), String::new()));
        let held = "Takes effect at 2026-01-01T00:00:30Z at the latest: /api/v1/x, UID: u; it waits, 2 exec, attach or port-forward streams run";
        row.condition.as_mut().unwrap().message = held.into();
        assert_eq!((state(&row), View::new(&row, NOW).message()), ("scheduled 30s".into(), held.into()));
        row.condition.as_mut().unwrap().message = "Waits while the Node has DiskPressure: /api/v1/x, UID: u".into();
        let message = View::new(&row, NOW).message();
        assert_eq!(
            (state(&row).as_str(), message.as_str()),
            ("scheduled", "Waits while the Node has DiskPressure: /api/v1/x, UID: u")
        );
    }

    #[test]
    fn who_says_nothing_and_who_cannot() {
        let manager_status = |row: &NodeRow| View::new(row, NOW).manager_status();
        let old = NodeRow { created: "2025-01-01T00:00:00Z".into(), ..row(ConfigManager::Nobody) };
        assert_eq!(manager_status(&old), ManagerStatus::Nobody);
        assert_eq!(manager_status(&NodeRow { ready: false, ..old.clone() }), ManagerStatus::NotYet, "NotReady");
        let young = NodeRow { created: "2025-12-31T23:59:00Z".into(), ..old.clone() };
        assert_eq!(manager_status(&young), ManagerStatus::NotYet, "a fresh join");
        assert_eq!(View::new(&young, NOW).message(), "the Node is 60s old");
        assert_eq!(manager_status(&NodeRow { manager: Some(ConfigManager::Native), ..old }), ManagerStatus::Native);

        let pending = NodeRow { assigned: None, active: None, ..assigned("Local") };
        assert_eq!(
            (manager_status(&pending), state(&pending)),
            (ManagerStatus::Supervisor, "pending".into()),
            "nobody knows since when"
        );
        let fresh = NodeRow { assignment_written_at: "2025-12-31T23:59:00Z".into(), ..pending.clone() };
        assert_eq!(manager_status(&fresh), ManagerStatus::Supervisor, "it has time");
        let late = NodeRow { assignment_written_at: "2025-12-31T23:50:00Z".into(), ..pending.clone() };
        assert_eq!((manager_status(&late), state(&late)), (ManagerStatus::Silent, "silent".into()));
        assert!(View::new(&late, NOW).message().contains("10m after it was assigned"));
        let down = NodeRow { ready: false, ..fresh };
        assert_eq!(manager_status(&down), ManagerStatus::Silent);
        assert!(View::new(&down, NOW).message().starts_with("the Node is NotReady; its supervisor says nothing"));
    }

    #[test]
    fn failures_have_the_kubelets_message() {
        let row = NodeRow { error: "failed to load".into(), ..assigned("Rejected") };
        let view = View::new(&row, NOW);
        assert_eq!((view.state(), view.message()), ((Tone::Bad, "failed".into()), "words".into()));
        let native = NodeRow { condition: None, manager: Some(ConfigManager::Native), ..row.clone() };
        assert_eq!(View::new(&native, NOW).message(), "failed to load", "native has a string only");
        let proven = NodeRow { last_known_good: Some(source("1")), ready: false, ..assigned("LastKnownGood") };
        assert_eq!(View::new(&proven, NOW).message(), "the Node is NotReady");
        assert_eq!(View::new(&proven, NOW).state(), (Tone::Good, "proven".into()));
    }

    #[test]
    fn ages_as_kubectl_has_them() {
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (440, "7m20s"),
            (600, "10m"),
            (10_799, "179m"),
            (11_100, "3h5m"),
            (90_000, "25h"),
            (180_000, "2d2h"),
            (864_000, "10d"),
        ] {
            assert_eq!(human(seconds), text);
        }
    }
}
