//! The lock in a rollout's record: one client drives it.

use serde_json::Value;
use tokio::time::Instant;

use super::client::RolloutClient;
use super::records::{Replaced, StoredRecord, stored};
use crate::Failure;
use crate::api::watch::older;
use crate::context::identity;
use crate::fleet::rollout::{Holder, Phase, Record};
use crate::output::plain;

/// The right to drive a rollout.
pub(crate) struct Lock {
    api: RolloutClient,
    id: String,
    pub(crate) stored: StoredRecord,
    renewed: Instant,
    renewed_wall: jiff::Timestamp,
    unwritten: Option<Unwritten>,
}

/// The API server does not take the record while nodes get back what they had. That is done all the same, by a record that
/// this client alone knows: what is given back twice by two clients is given back once, as each patch holds for the Node that
/// was read. It ends where somebody else writes that they drive it, or give it up.
struct Unwritten {
    /// Who drove it by the record that is there, and where it was.
    there: (Option<Holder>, Phase),
}

/// What became of an attempt to get it.
pub(crate) enum LockAttempt {
    Acquired(Lock),
    /// This client has it, and lives.
    Held(String),
}

impl Lock {
    /// Of a record that was just written with this holder.
    pub(crate) fn of_new(api: &RolloutClient, id: String, stored: StoredRecord) -> Self {
        Self {
            api: api.clone(),
            id,
            stored,
            renewed: Instant::now(),
            renewed_wall: jiff::Timestamp::now(),
            unwritten: None,
        }
    }

    /// Takes it from a client that is dead, which takes as long as to be sure of that.
    pub(crate) async fn acquire(api: &RolloutClient, name: &str, tell: impl Fn(&str)) -> Result<LockAttempt, Failure> {
        Self::acquire_with(api, name, |_| Ok(()), tell).await
    }

    /// The same with this change of the record.
    pub(crate) async fn acquire_with(
        api: &RolloutClient,
        name: &str,
        change: impl Fn(&mut Record) -> Result<(), Failure>,
        tell: impl Fn(&str),
    ) -> Result<LockAttempt, Failure> {
        let id = identity();
        let mut seen: Option<(Holder, Instant)> = None;
        loop {
            let mut stored = api.known(name).await?;
            match (&stored.record.holder, &seen) {
                (Some(now), Some((then, _))) if now != then => return Ok(LockAttempt::Held(now.id.clone())),
                (Some(_), Some((_, since))) if since.elapsed() < api.lock_timing.lease_duration => {}
                (Some(now), None) => {
                    let seconds = api.lock_timing.lease_duration.as_secs();
                    tell(&format!("waiting for up to {seconds} s to see whether {} still drives it", now.id));
                    seen = Some((now.clone(), Instant::now()));
                }
                (None | Some(_), _) => {
                    let there = (stored.record.holder.clone(), stored.record.phase);
                    change(&mut stored.record)?;
                    stored.record.holder = Some(Holder { id: id.clone(), renewals: 0 });
                    let (renewed, renewed_wall) = (Instant::now(), jiff::Timestamp::now());
                    let (stored, unwritten) = match api.replace(&stored).await? {
                        Some(Replaced::Stored(stored)) => (stored, None),
                        Some(Replaced::Refused(stored, why)) => {
                            let unwritten = Unwritten::new(&stored, there, why)?;
                            (stored, Some(unwritten))
                        }
                        None => continue, // somebody was quicker, or changed it
                    };
                    let api = api.clone();
                    return Ok(LockAttempt::Acquired(Self { api, id, stored, renewed, renewed_wall, unwritten }));
                }
            }
            tokio::time::sleep(api.lock_timing.retry_period).await;
        }
    }

    /// When the next renewal is due.
    pub(crate) fn due(&self) -> Instant {
        self.renewed + self.api.lock_timing.renew_interval
    }

    /// Nobody can have taken it. A machine that slept knows that by its wall clock alone.
    pub(crate) fn is_fresh(&self) -> bool {
        let wall = jiff::Timestamp::now().as_millisecond().abs_diff(self.renewed_wall.as_millisecond());
        let stale = self.api.lock_timing.renew_deadline;
        self.renewed.elapsed() < stale && u128::from(wall) < stale.as_millis()
    }

    /// Says that this client lives.
    pub(crate) async fn renew(&mut self) -> Result<(), Failure> {
        let record = self.stored.record.clone();
        self.save(record).await
    }

    /// Writes the record. If somebody else changed it meanwhile (paused, say) that change is taken
    /// up instead, and the caller has to decide anew.
    ///
    /// # Errors
    /// The lock is somebody else's by now.
    pub(crate) async fn save(&mut self, mut record: Record) -> Result<(), Failure> {
        let renewals = self.stored.record.holder.as_ref().map_or(0, |holder| holder.renewals) + 1;
        record.holder = Some(Holder { id: self.id.clone(), renewals });
        let (renewed, renewed_wall) = (Instant::now(), jiff::Timestamp::now());
        let desired = StoredRecord { record, ..self.stored.clone() };
        match self.api.replace(&desired).await? {
            Some(Replaced::Stored(stored)) => (self.stored, self.unwritten) = (stored, None),
            Some(Replaced::Refused(desired, why)) => {
                if self.unwritten.is_none() {
                    let there = (self.stored.record.holder.clone(), self.stored.record.phase);
                    self.unwritten = Some(Unwritten::new(&desired, there, why)?);
                }
                self.stored = desired;
                let now = self.api.known(&self.stored.name).await?;
                self.adopt(now)?;
            }
            None => {
                let now = self.api.known(&self.stored.name).await?;
                return self.adopt(now);
            }
        }
        (self.renewed, self.renewed_wall) = (renewed, renewed_wall);
        Ok(())
    }

    /// Takes up what the cluster says.
    pub(crate) fn adopt(&mut self, now: StoredRecord) -> Result<(), Failure> {
        match (&now.record.holder, &self.unwritten) {
            (holder, Some(unwritten)) if unwritten.goes_on(holder.as_ref(), now.record.phase) => {
                self.stored.version = now.version;
                Ok(())
            }
            (Some(holder), _) if holder.id == self.id => {
                (self.stored, self.unwritten) = (now, None);
                Ok(())
            }
            (other, _) => {
                let other = other.as_ref().map_or("nobody", |holder| &holder.id);
                Err(Failure::new(format!("rollout {} is driven by {other} now; this client does no more", now.name)))
            }
        }
    }

    /// What a watch says of the record. What is older than what is known is not news.
    pub(crate) fn on_event(&mut self, map: &Value) -> Result<(), Failure> {
        let now = stored(map)?;
        if now.version == self.stored.version || older(&now.version, &self.stored.version) {
            Ok(())
        } else {
            self.adopt(now)
        }
    }

    /// Lets others drive.
    pub(crate) async fn release(mut self) {
        let api = self.api.clone();
        for _ in 0..3 {
            self.stored.record.holder = None;
            match api.replace(&self.stored).await {
                Ok(None) => {}
                _ => return,
            }
            match api.record(&self.stored.name).await {
                Ok(Some(now)) if now.record.holder.as_ref().is_some_and(|holder| holder.id == self.id) => {
                    self.stored = now;
                }
                _ => return,
            }
        }
    }
}

impl Unwritten {
    /// Says so once. `record` was not taken, for the reason `why`.
    ///
    /// # Errors
    /// That reason, if nodes do not get back what they had: what cannot be remembered is not begun.
    fn new(record: &StoredRecord, there: (Option<Holder>, Phase), why: Failure) -> Result<Self, Failure> {
        let StoredRecord { name, record, .. } = record;
        if record.is_forward() {
            return Err(why);
        }
        eprintln!(
            "warning: {}; nodes get back what they had all the same, and the record of rollout {name} stays as it is. Once it \
             can be written, `kubectl kubelet-config rollout undo {name}` writes down that they are back",
            plain(&why.message)
        );
        Ok(Self { there })
    }

    /// What the record says by now keeps nobody from going on.
    fn goes_on(&self, holder: Option<&Holder>, phase: Phase) -> bool {
        holder == self.there.0.as_ref() && (phase == self.there.1 || phase != Phase::Aborted)
    }
}
