//! The kubelet's healthz, seen from outside.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Result;
use crate::world::{http, wait_for};

const EVERY: Duration = Duration::from_millis(2);

pub fn is_healthy(port: u16) -> bool {
    http(port, "GET", "/healthz", "", "").is_ok_and(|(status, _)| status == 200)
}

/// Asks all the time, and keeps when the answer changed.
pub struct HealthzWatch {
    stop: Arc<AtomicBool>,
    changes: Arc<Mutex<Vec<(Instant, bool)>>>,
    thread: Option<JoinHandle<()>>,
}

/// A kubelet that was away and is back.
pub struct Back {
    pub at: Instant,
    /// The time without healthz 200, all together.
    pub outage: Duration,
}

impl HealthzWatch {
    pub fn begin(port: u16) -> Self {
        let (stop, changes) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (stopped, seen) = (stop.clone(), changes.clone());
        let thread = std::thread::spawn(move || {
            let mut last = None;
            while !stopped.load(Ordering::SeqCst) {
                let healthy = is_healthy(port);
                if last.replace(healthy) != Some(healthy) {
                    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                    seen.push((Instant::now(), healthy));
                }
                std::thread::sleep(EVERY);
            }
        });
        Self { stop, changes, thread: Some(thread) }
    }

    /// Waits for it to be asked for the first time.
    pub fn begun(self) -> Result<Self> {
        wait_for("healthz to be asked", Duration::from_secs(10), || !self.changes().is_empty())?;
        Ok(self)
    }

    fn changes(&self) -> Vec<(Instant, bool)> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether it was away since this watch began, and is not any more.
    pub fn back(&self) -> Option<Back> {
        let changes = self.changes();
        let (at, healthy) = *changes.last()?;
        if !healthy || changes.iter().all(|(_, healthy)| *healthy) {
            return None;
        }
        let pairs = changes.iter().zip(changes.iter().skip(1));
        let outage = pairs.filter(|((_, healthy), _)| !healthy).map(|((down, _), (up, _))| *up - *down).sum();
        Some(Back { at, outage })
    }
}

impl Drop for HealthzWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
