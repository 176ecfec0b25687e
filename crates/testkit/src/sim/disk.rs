//! A disk in memory that forgets what was not synced.
//!
//! Written bytes are volatile until their file is synced; names that were made, moved or removed
//! are volatile until their directory is. A crash keeps or loses each of them on its own, which is
//! harsher than a journaling file system, and tears what was half written.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use kubelet_supervisor::adapters::fsx::Disk;
use tree::{Inner, Kind, NameOp, Node, ROOT, View, dir, missing, parts};

use super::Rng;

mod tree;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// ENOSPC, for what needs room.
    Full,
    /// EIO, for anything.
    Io,
    /// EROFS, for what changes something.
    ReadOnly,
    /// Nothing works any more until [`SimDisk::crash`].
    PowerOff,
}

/// A fault and the operations it spoils.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub fault: Fault,
    /// The first operation, counted from 0.
    pub at: u64,
    /// That one only, or everything from there on.
    pub once: bool,
}

/// The disk; clones are the same disk.
#[derive(Clone, Debug)]
pub struct SimDisk {
    inner: Rc<RefCell<Inner>>,
    view: View,
}

impl Default for SimDisk {
    fn default() -> Self {
        let disk = Self {
            inner: Rc::new(RefCell::new(Inner { nodes: vec![dir()], crowded: 64, ..Inner::default() })),
            view: View::Live,
        };
        // The node has its directories; only what is below them is ours to make durable.
        disk.make_dir(Path::new("/var/lib/kubelet"), 0o755).unwrap();
        disk.write_back();
        disk.inner.borrow_mut().operations = 0;
        disk
    }
}

impl SimDisk {
    /// Operations so far.
    pub fn operations(&self) -> u64 {
        self.inner.borrow().operations
    }

    /// Moves whenever something may have changed, seen or durable.
    pub fn changes(&self) -> u64 {
        self.inner.borrow().changes
    }

    /// Operations that were made to fail so far.
    pub fn failures(&self) -> u64 {
        self.inner.borrow().failures
    }

    /// Reads that were made to fail so far.
    pub fn read_faults(&self) -> u64 {
        self.inner.borrow().read_faults
    }

    pub fn plan(&self, plan: Plan) {
        self.inner.borrow_mut().plans.push(plan);
    }

    /// No more faults.
    pub fn heal(&self) {
        self.inner.borrow_mut().plans.clear();
    }

    /// True while writes fail for want of room.
    pub fn is_full(&self) -> bool {
        self.has_lasting(|fault| fault == Fault::Full)
    }

    /// True while writes fail, and go on failing.
    pub fn refuses_writes(&self) -> bool {
        self.has_lasting(|_| true)
    }

    fn has_lasting(&self, is_it: impl Fn(Fault) -> bool) -> bool {
        let inner = self.inner.borrow();
        inner.plans.iter().any(|plan| is_it(plan.fault) && !plan.once && plan.at <= inner.operations)
    }

    pub fn is_off(&self) -> bool {
        self.inner.borrow().off
    }

    /// The power comes back: what was not synced is kept, lost or torn, by chance.
    pub fn crash(&self, rng: &mut Rng) {
        self.inner.borrow_mut().survive(&mut |chance| rng.below(chance));
    }

    /// The page cache was written back, as the kernel does sooner or later.
    pub fn write_back(&self) {
        self.inner.borrow_mut().survive(&mut |chance| chance - 1);
    }

    /// What programs see, for reading without counting.
    pub fn seen(&self) -> Self {
        Self { inner: self.inner.clone(), view: View::Seen }
    }

    /// What surely outlives a power cut, for reading without counting.
    pub fn durable(&self) -> Self {
        Self { inner: self.inner.clone(), view: View::Durable }
    }

    /// Flips a byte of a file, as a bad disk does. False if there is nothing to flip.
    pub fn rot(&self, path: &Path) -> bool {
        let mut inner = self.inner.borrow_mut();
        let Some(id) = inner.find(path) else { return false };
        let Node::File { bytes, synced, .. } = &mut inner.nodes[id] else { return false };
        let mut rotten = bytes.to_vec();
        let Some(byte) = rotten.first_mut() else { return false };
        *byte |= 0x80; // and a second time heals nothing
        *bytes = rotten.into();
        *synced = Some(bytes.clone());
        inner.changes += 1;
        inner.rotten.push(path.to_owned());
        true
    }

    /// Something below this directory was flipped.
    pub fn is_rotten(&self, dir: &Path) -> bool {
        self.inner.borrow().rotten.iter().any(|path| path.starts_with(dir))
    }

    /// Forgets what has been written anew by now.
    pub fn note_mended(&self) {
        let rotten = std::mem::take(&mut self.inner.borrow_mut().rotten);
        let is_flipped = |path: &PathBuf| {
            let inner = self.inner.borrow();
            inner
                .find(path)
                .and_then(|id| inner.bytes(id, View::Live).ok())
                .is_some_and(|bytes| bytes.first() >= Some(&0x80))
        };
        let rotten = rotten.into_iter().filter(is_flipped).collect();
        self.inner.borrow_mut().rotten = rotten;
    }

    /// What is in this directory was written anew.
    pub fn mend(&self, dir: &Path) {
        self.inner.borrow_mut().rotten.retain(|path| !path.starts_with(dir));
    }

    /// Reads without counting: for the kubelet, whose reads are not ours.
    pub fn peek(&self, path: &Path) -> Option<String> {
        let inner = self.inner.borrow();
        let bytes = inner.bytes(inner.find(path)?, View::Live).ok()?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    }

    /// Counts an operation of the live disk.
    fn operate(&self, kind: Kind) -> io::Result<std::cell::RefMut<'_, Inner>> {
        let mut inner = self.inner.borrow_mut();
        if self.view == View::Live {
            inner.sweep();
            inner.operate(kind)?;
        } else {
            assert!(kind == Kind::Read, "a view is for reading");
        }
        Ok(inner)
    }

    /// Removes a file of more lines than this, without counting: an administrator did it. Bytes
    /// would depend on the wall clock.
    pub fn tidy(&self, path: &Path, lines: usize) {
        let mut inner = self.inner.borrow_mut();
        let Some(id) = inner.find(path) else { return };
        if matches!(&inner.nodes[id], Node::File { bytes, .. } if bytes.split(|it| *it == b'\n').count() > lines + 1)
            && let Ok((dir, name)) = inner.parent(path)
        {
            inner.remove_tree(dir, &name);
        }
    }

    /// Another disk, as this one is now.
    pub fn copy(&self) -> Self {
        let nodes = self.inner.borrow().nodes.clone();
        Self { inner: Rc::new(RefCell::new(Inner { nodes, crowded: 64, ..Inner::default() })), view: View::Live }
    }

    /// Writes durably, without counting or faults: for the kubelet, whose writes are not ours.
    pub fn poke(&self, path: &Path, bytes: &[u8]) {
        let aside = (self.operations(), std::mem::take(&mut self.inner.borrow_mut().plans));
        self.write(path, bytes, 0o600).unwrap();
        self.sync(path).unwrap();
        self.sync(path.parent().unwrap()).unwrap();
        let mut inner = self.inner.borrow_mut();
        (inner.operations, inner.plans) = aside;
    }

    /// Writes a file anew, or at its end.
    fn put(&self, path: &Path, bytes: &[u8], append: bool) -> io::Result<()> {
        let allowed = self.operate(Kind::Change).map(drop);
        let mut inner = self.inner.borrow_mut();
        let (dir, name) = inner.parent(path)?;
        // A write that fails half way leaves a file behind, too short.
        let read_only = allowed.as_ref().is_err_and(|error| error.raw_os_error() == Some(30));
        if read_only || inner.off {
            return allowed;
        }
        let bytes = if allowed.is_ok() { bytes } else { &bytes[..bytes.len() / 2] };
        inner.changes += 1;
        match inner.find(path) {
            Some(id) => match &mut inner.nodes[id] {
                Node::File { bytes: held, .. } if append => *held = [&**held, bytes].concat().into(),
                Node::File { bytes: held, solid, .. } => (*held, *solid) = (bytes.into(), 0),
                Node::Dir { .. } => return Err(io::ErrorKind::IsADirectory.into()),
            },
            None => {
                let id = inner.add(Node::File { bytes: bytes.into(), synced: None, solid: 0 });
                inner.change(dir, NameOp::Link(name, id));
            }
        }
        allowed
    }
}

impl Disk for SimDisk {
    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        let inner = self.operate(Kind::Read)?;
        let id = inner.find_in(path, self.view).ok_or_else(missing)?;
        let bytes = inner.bytes(id, self.view)?;
        if bytes.len() as u64 > limit { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes.to_vec()) }
    }

    fn write(&self, path: &Path, bytes: &[u8], _mode: u32) -> io::Result<()> {
        self.put(path, bytes, false)
    }

    fn append(&self, path: &Path, bytes: &[u8], _mode: u32) -> io::Result<()> {
        self.put(path, bytes, true)
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        let mut inner = self.operate(Kind::Sync)?;
        let id = inner.find(path).ok_or_else(missing)?;
        inner.sync_node(id);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut inner = self.operate(Kind::Change)?;
        let (dir, old) = inner.parent(from)?;
        let (other, new) = inner.parent(to)?;
        assert_eq!(dir, other, "renames across directories are not atomic for us");
        let id = inner.find(from).ok_or_else(missing)?;
        if let Some(there) = inner.find(to)
            && inner.names(there, View::Live).is_some_and(|names| !names.is_empty())
        {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        inner.change(dir, NameOp::Rename(old, new, id));
        Ok(())
    }

    fn make_dir(&self, path: &Path, _mode: u32) -> io::Result<()> {
        // mkdir says EEXIST before it says ENOSPC or EROFS.
        let there = self.inner.borrow().find(path).is_some();
        let mut inner = self.operate(if there { Kind::Sync } else { Kind::Change })?;
        let mut at = ROOT;
        for name in parts(path) {
            let names = inner.names(at, View::Live).ok_or(io::ErrorKind::NotADirectory)?;
            at = if let Some(&id) = names.get(name) {
                id
            } else {
                let id = inner.add(dir());
                inner.change(at, NameOp::Link(name.into(), id));
                id
            };
        }
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let inner = self.operate(Kind::Read)?;
        let Some(id) = inner.find_in(path, self.view) else { return Ok(Vec::new()) };
        let names = inner.names(id, self.view).ok_or(io::ErrorKind::NotADirectory)?;
        Ok(names.keys().map(ToString::to_string).collect())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut inner = self.operate(Kind::Remove)?;
        if let Ok((dir, name)) = inner.parent(path) {
            inner.remove_tree(dir, &name);
        }
        Ok(())
    }
}
