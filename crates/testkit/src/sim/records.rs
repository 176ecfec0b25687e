//! What is on the disk, as far as it says something of versions.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use kubelet_config::source::Source;
use kubelet_supervisor::adapters::fsx::Disk as _;
use kubelet_supervisor::machine::records::{RecordFile, Records, Version};

use super::disk::SimDisk;
use super::world::{Content, Outside, ROOT};

/// The directory of a checkpoint.
pub fn checkpoint(source: &Source) -> PathBuf {
    Path::new(ROOT).join("store/checkpoints").join(&source.uid).join(&source.resource_version)
}

/// Records that were read before, by their texts: reading them is the dearest part of checking.
#[derive(Clone, Debug, Default)]
pub struct Reader(RefCell<Vec<Text>>);

type Text = (Vec<u8>, Option<Rc<Records>>);

/// The content's directory, if this is what a kubelet is given of one.
pub fn content_dir(path: &str) -> &Path {
    Path::new(path).parent().unwrap_or(Path::new(path))
}

/// What the last part of a content's directory says it is.
pub fn digest_of(path: &str) -> &str {
    content_dir(path).file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

impl Outside {
    /// The record on this view of the disk; `None` if there is none, or none that can be read.
    pub fn records(&self, disk: &SimDisk) -> Option<Rc<Records>> {
        let text = disk.read(&Path::new(ROOT).join("supervisor/state.json"), u64::MAX).ok()?;
        let mut known = self.account.reader.0.borrow_mut();
        if let Some((_, records)) = known.iter().find(|(of, _)| *of == text) {
            return records.clone();
        }
        let records = match Records::decode(&String::from_utf8_lossy(&text)) {
            RecordFile::Read(records) => Some(Rc::new(*records)),
            _ => None,
        };
        if known.len() >= 4 {
            known.remove(0);
        }
        known.push((text, records.clone()));
        records
    }

    /// What a version on record holds.
    pub fn content_of_record(&self, version: &Version) -> Option<Content> {
        let by_digest = version.digest.as_ref().and_then(|digest| self.account.rendered.get(digest));
        by_digest.copied().or_else(|| self.content_of_version(&version.source))
    }

    /// True if this was rendered of a version at some time.
    pub fn is_content_of(&self, source: &Source, content: Content) -> bool {
        let rendered = self.account.versions.get(source).is_some_and(|all| all.contains(&content));
        rendered || self.content_of(Some(source)) == Some(content)
    }

    /// The file that a kubelet was given can still be read, and is what it was.
    pub fn is_whole(&self, file: &(String, String)) -> bool {
        let (path, text) = file;
        self.disk.peek(Path::new(path)).as_ref() == Some(text) && !self.disk.is_rotten(content_dir(path))
    }

    /// The same, if the power went now.
    pub fn is_durable(&self, file: &(String, String)) -> bool {
        let (path, text) = file;
        self.disk.durable().read(Path::new(path), u64::MAX).is_ok_and(|bytes| bytes == text.as_bytes())
    }
}
