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
    /// One that goes on in another's place.
    pub(crate) fn resumed(ready: bool) -> Self {
        if ready {
            Self::notify_ready(); // the reload is over, whatever the kubelet does
        }
        Self { ready, ..Self::default() }
    }

    /// True once READY=1 was sent.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready
    }

    /// A reload begins, or is off. systemd takes the former for a state of a service that was ready.
    pub(crate) fn reloading(&self, begins: bool) {
        match NotifyState::monotonic_usec_now() {
            _ if !self.ready => {}
            Ok(now) if begins => send(&[NotifyState::Reloading, now]),
            _ if begins => send(&[NotifyState::Reloading]),
            _ => send(&[NotifyState::Ready]),
        }
    }

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
