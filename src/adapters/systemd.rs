//! systemd, if it started us: READY, STATUS, WATCHDOG, STOPPING (sd_notify(3)).

use std::time::Duration;

use sd_notify::NotifyState;

/// What was sent last, so that nothing is sent twice.
#[derive(Debug, Default)]
pub(crate) struct Systemd {
    ready: bool,
    leaving: bool,
    status: String,
}

impl Systemd {
    /// Passes on that the kubelet is ready, that we are leaving, and what is going on.
    pub(crate) fn update(&mut self, ready: bool, leaving: bool, status: String) {
        let mut messages = Vec::new();
        if ready && !self.ready {
            self.ready = true;
            messages.push(NotifyState::Ready);
        }
        if leaving && !self.leaving {
            self.leaving = true;
            messages.push(NotifyState::Stopping);
        }
        let changed = status != self.status;
        if changed {
            messages.push(NotifyState::Status(&status));
        }
        send(&messages);
        if changed {
            self.status = status;
        }
    }

    /// READY=1, for want of a state to send.
    pub(crate) fn notify_ready() {
        send(&[NotifyState::Ready]);
    }

    /// A status line, for want of a state to send.
    pub(crate) fn notify_status(text: &str) {
        send(&[NotifyState::Status(text)]);
    }

    /// The interval in which systemd wants to be pinged, if at all (`WatchdogSec=`).
    pub(crate) fn watchdog() -> Option<Duration> {
        sd_notify::watchdog_enabled().filter(|interval| !interval.is_zero())
    }

    pub(crate) fn ping_watchdog() {
        send(&[NotifyState::Watchdog]);
    }
}

fn send(messages: &[NotifyState<'_>]) {
    if !messages.is_empty()
        && let Err(error) = sd_notify::notify(messages)
    {
        tracing::debug!("systemd cannot be told: {error}");
    }
}
