//! The record, and native's records that follow it.
//!
//! What native's records will hold lies beside them, durable under a temporary name, before our own record is replaced;
//! then they are renamed. So a crash between the two is told from somebody else's edit: what is there is not what our
//! record says, but what lies beside it is.

use std::io;
use std::path::{Path, PathBuf};

use super::meta;
use super::{FsStore, READS, RECORD_LIMIT};
use crate::adapters::fsx::{self, Disk};
use crate::machine::records::{RecordFile, Records, Stored};
use crate::ports::StoreError;
use kubelet_config::source::Source;

/// Native's records.
const META: [&str; 2] = ["assigned", "last-known-good"];

/// What a file holds.
pub(super) enum Content {
    Text(String),
    Absent,
    /// Not a text; nothing is lost by replacing it.
    Garbage(String),
    /// The disk did not give it; it may be whole.
    Unreadable(String),
}

/// The versions that native's records are about.
fn sources(records: &Records) -> [Option<&Source>; 2] {
    [&records.assigned, &records.last_known_good].map(|version| version.as_ref().map(|version| &version.source))
}

fn texts(records: &Records) -> [String; 3] {
    let [assigned, last_known_good] = sources(records).map(meta::encode);
    [records.encode(), assigned, last_known_good]
}

impl<D: Disk> FsStore<D> {
    fn state_path(&self) -> PathBuf {
        self.own("state.json")
    }

    fn meta_path(&self, name: &str) -> PathBuf {
        self.root.join("store/meta").join(name)
    }

    /// A file's text; `None` if there is none.
    pub(super) fn read_text(&self, path: &Path) -> Result<Option<String>, String> {
        match self.content(path) {
            Content::Text(text) => Ok(Some(text)),
            Content::Absent => Ok(None),
            Content::Garbage(why) | Content::Unreadable(why) => Err(why),
        }
    }

    pub(super) fn content(&self, path: &Path) -> Content {
        let mut content = Content::Absent;
        for _ in 0..READS {
            content = match self.disk.read(path, RECORD_LIMIT) {
                Ok(bytes) => String::from_utf8(bytes)
                    .map_or_else(|_| Content::Garbage("it is not UTF-8".to_owned()), Content::Text),
                // A file in the place of a directory holds no record either.
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                    Content::Absent
                }
                Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Content::Garbage(error.to_string()),
                // Ours may come back, where a mount is missing.
                Err(error) if error.kind() == io::ErrorKind::IsADirectory && path != self.state_path() => {
                    Content::Garbage(error.to_string())
                }
                Err(error) => Content::Unreadable(error.to_string()),
            };
            if !matches!(content, Content::Unreadable(_)) {
                break;
            }
        }
        content
    }

    /// A file's text, if it holds one.
    fn readable(&self, path: &Path) -> Result<Option<String>, StoreError> {
        match self.content(path) {
            Content::Text(text) => Ok(Some(text)),
            Content::Absent | Content::Garbage(_) => Ok(None),
            Content::Unreadable(why) => Err(StoreError::disk(path, why)),
        }
    }

    /// Reads the records. Of native's, what counts is given: ours where nobody else wrote them.
    pub fn load(&mut self) -> Stored {
        let (state, state_text) = match self.content(&self.state_path()) {
            Content::Text(text) => (Records::decode(&text), Some(text)),
            Content::Absent => (RecordFile::Absent, None),
            Content::Garbage(why) => (RecordFile::Garbage(why), None),
            Content::Unreadable(why) => (RecordFile::Unreadable(why), None),
        };
        let [assigned, last_known_good] = META.map(|name| self.read_text(&self.meta_path(name)));
        self.written = [state_text, known(&assigned), known(&last_known_good)];
        let there = [&assigned, &last_known_good].map(|text| matches!(text, Ok(Some(_))));
        let mut stored =
            Stored { state, assigned: meta(assigned), last_known_good: meta(last_known_good), meta_changed: false };
        if let RecordFile::Read(records) = &stored.state {
            let [assigned, last_known_good] = sources(records);
            let changed = [
                there[0] && self.is_edit(META[0], &stored.assigned, assigned),
                there[1] && self.is_edit(META[1], &stored.last_known_good, last_known_good),
            ];
            stored.meta_changed = changed.contains(&true);
            if !changed[0] {
                stored.assigned = Ok(assigned.cloned());
            }
            if !changed[1] {
                stored.last_known_good = Ok(last_known_good.cloned());
            }
        }
        stored
    }

    /// True if somebody else wrote this. What cannot be read says nothing; nor does what is not there, as native's way to
    /// say local is an empty file.
    fn is_edit(&self, name: &str, found: &Result<Option<Source>, String>, ours: Option<&Source>) -> bool {
        found.as_ref().is_ok_and(|found| found.as_ref() != ours) && !self.is_beside(name, ours)
    }

    /// True if this lies beside one of native's records: it was to be renamed.
    fn is_beside(&self, name: &str, ours: Option<&Source>) -> bool {
        let text = self.read_text(&fsx::temporary_beside(&self.meta_path(name)));
        matches!(text, Ok(Some(text)) if meta::decode(&text).is_ok_and(|beside| beside.as_ref() == ours))
    }

    /// Before something else is written beside native's records: what a crash or a failure left there is renamed, and what
    /// was renamed is made durable.
    fn finish(&self) -> Result<(), StoreError> {
        let Some(text) = self.readable(&self.state_path())? else { return Ok(()) };
        let RecordFile::Read(records) = Records::decode(&text) else { return Ok(()) };
        let mut names = Vec::new();
        for (name, ours) in META.into_iter().zip(sources(&records)) {
            let found = self.readable(&self.meta_path(name))?.map(|text| meta::decode(&text));
            let stale = found.is_some_and(|found| found.is_ok_and(|found| found.as_ref() != ours));
            if stale && self.is_beside(name, ours) {
                names.push(name);
            }
        }
        if names.is_empty() {
            return self.sync(&self.meta_path(""));
        }
        self.sync(&self.own(""))?; // the record itself
        self.rename_meta(names.into_iter())
    }

    fn rename_meta<'a>(&self, names: impl Iterator<Item = &'a str>) -> Result<(), StoreError> {
        let mut renamed = false;
        for path in names.map(|name| self.meta_path(name)) {
            let step = self.disk.rename(&fsx::temporary_beside(&path), &path);
            step.map_err(|error| StoreError::disk(&path, error))?;
            renamed = true;
        }
        if renamed { self.sync(&self.meta_path("")) } else { Ok(()) }
    }

    /// Writes the record anew if it is not as we wrote it: what was wrong, and what came of that. Native's are somebody
    /// else's to change.
    pub fn mend_record(&mut self) -> Option<(String, Result<(), StoreError>)> {
        let [Some(text), ..] = self.written.clone() else { return None };
        let path = self.state_path();
        let what = match self.content(&path) {
            Content::Text(found) if found == text => return None,
            Content::Text(_) => "it was edited".to_owned(),
            Content::Absent => "it is gone".to_owned(),
            Content::Garbage(why) => why,
            Content::Unreadable(_) => return None, // it may be whole
        };
        self.durable.clear();
        let mended = self.base_dirs().and_then(|()| self.replace(&path, text.as_bytes()));
        Some((format!("{}: {what}", path.display()), mended))
    }

    /// Replaces the record durably, and native's records as well as that can be: ours decides, and theirs are written
    /// again with the next one.
    ///
    /// # Errors
    /// Why our record was not replaced durably; each file may hold the old text or the new one.
    pub fn record(&mut self, records: &Records) -> Result<(), StoreError> {
        let result = self.write_records(texts(records));
        self.checked(result)
    }

    fn write_records(&mut self, texts: [String; 3]) -> Result<(), StoreError> {
        // After a failure a file may hold either text: all are written again next time.
        let [known_state, known_meta @ ..] = std::mem::take(&mut self.written);
        let [state, meta @ ..] = &texts;
        let is_new = known_state.as_ref() != Some(state);
        let meta = META.into_iter().zip(meta).zip(known_meta);
        let differing: Vec<(&str, &String)> =
            meta.filter(|((_, text), known)| known.as_ref() != Some(*text)).map(|(meta, _)| meta).collect();
        if is_new || !differing.is_empty() {
            self.base_dirs()?;
            let unfinished = self.meta_path(META[0]);
            if !self.durable.contains(&unfinished) {
                self.finish()?;
                self.durable.insert(unfinished);
            }
            self.write_beside(&differing)?;
        }
        if is_new {
            self.replace(&self.state_path(), state.as_bytes())?;
        }
        let renamed = self.rename_meta(differing.iter().map(|(name, _)| *name));
        let [state, assigned, last_known_good] = texts;
        if let Err(why) = renamed {
            tracing::warn!("native's records stay behind ours, and are written again with the next: {why}");
            self.durable.remove(&self.meta_path(META[0]));
            self.written = [Some(state), None, None];
        } else {
            self.written = [Some(state), Some(assigned), Some(last_known_good)];
        }
        Ok(())
    }

    fn write_beside(&self, meta: &[(&str, &String)]) -> Result<(), StoreError> {
        for (name, text) in meta {
            let path = fsx::temporary_beside(&self.meta_path(name));
            let written = self.disk.write(&path, text.as_bytes(), 0o600);
            written.map_err(|error| StoreError::disk(&path, error))?;
            self.sync(&path)?;
        }
        if meta.is_empty() { Ok(()) } else { self.sync(&self.meta_path("")) }
    }
}

fn known(read: &Result<Option<String>, String>) -> Option<String> {
    read.clone().ok().flatten()
}

fn meta(read: Result<Option<String>, String>) -> Result<Option<Source>, String> {
    read?.map_or(Ok(None), |text| meta::decode(&text))
}
