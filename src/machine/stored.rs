//! What the store held at the start, and the records that this makes.

use serde::Deserialize;

use super::records::{Attempt, Phase, Records, VERSION, Version};
use kubelet_config::source::Source;

/// `state.json` as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordFile {
    /// There is none.
    Absent,
    /// Ours.
    Read(Box<Records>),
    /// Not a record; nothing is lost by replacing it. With the reason.
    Garbage(String),
    /// The disk did not give it, or another supervisor wrote it: it is not overwritten. With the reason.
    Unreadable(String),
}

/// What the store held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Our own record.
    pub state: RecordFile,
    /// `meta/assigned`.
    pub assigned: Result<Option<Source>, String>,
    /// `meta/last-known-good`.
    pub last_known_good: Result<Option<Source>, String>,
    /// Somebody else wrote these since our record was written.
    pub meta_changed: bool,
}

impl Stored {
    /// An empty store.
    #[must_use]
    pub fn empty() -> Self {
        Self { state: RecordFile::Absent, assigned: Ok(None), last_known_good: Ok(None), meta_changed: false }
    }

    /// What is on record, and why nothing may be written, if so.
    #[must_use]
    pub fn into_records(self) -> (Records, Option<String>) {
        let meta = |found: &Result<Option<Source>, String>| found.clone().ok().flatten();
        let (assigned, proven) = (meta(&self.assigned), meta(&self.last_known_good));
        match self.state {
            RecordFile::Read(records) if self.meta_changed => (records.with_meta(assigned, proven), None),
            RecordFile::Read(records) => (*records, None),
            RecordFile::Absent | RecordFile::Garbage(_) => (Records::default().with_meta(assigned, proven), None),
            // Which versions are bad is not known: what was proven is the best there is.
            RecordFile::Unreadable(why) => (Records::default().with_meta(proven.clone(), proven), Some(why)),
        }
    }
}

impl Records {
    /// What somebody else wrote to native's records counts; what is known of these versions is kept.
    fn with_meta(mut self, assigned: Option<Source>, last_known_good: Option<Source>) -> Self {
        let known = |source: Source| {
            let found = self.versions().rev().find(|version| version.source == source).cloned();
            found.unwrap_or_else(|| Version::named(source))
        };
        let (assigned, proven) = (assigned.map(known), last_known_good.map(known));
        let on_trial = assigned.clone().filter(|_| assigned != proven);
        let kept = self.phase.attempt().is_some_and(|attempt| on_trial.as_ref() == Some(&attempt.version));
        if !kept {
            self.phase = on_trial.map_or(Phase::Settled, |version| Phase::Trial(Attempt::new(version)));
        }
        (self.assigned, self.last_known_good) = (assigned, proven);
        self
    }

    /// Reads `state.json`.
    #[must_use]
    pub fn decode(text: &str) -> RecordFile {
        #[derive(Deserialize)]
        struct Format {
            version: u32,
        }
        let read = match serde_json::from_str::<Format>(text) {
            Ok(Format { version }) if version != VERSION => {
                let why =
                    format!("it has version {version}, this supervisor reads {VERSION}: install the one that wrote it");
                return RecordFile::Unreadable(why);
            }
            Ok(_) => serde_json::from_str(text).map(|records| RecordFile::Read(Box::new(records))),
            Err(error) => Err(error),
        };
        read.unwrap_or_else(|error| RecordFile::Garbage(error.to_string()))
    }
}
