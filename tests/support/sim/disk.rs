//! A disk in memory that forgets what was not synced.
//!
//! Written bytes are volatile until their file is synced; names that were made, moved or removed
//! are volatile until their directory is. A crash keeps or loses each of them on its own, which is
//! harsher than a journaling file system, and tears what was half written.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path};
use std::rc::Rc;

use kubelet_supervisor::adapters::fsx::Disk;

use super::Rng;

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

/// Kinds of operations, as far as faults tell them apart.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Sync,
    Change,
    Remove,
}

#[derive(Clone, Debug)]
enum Node {
    /// The first `solid` bytes are as they were synced: only what follows them can be torn.
    File {
        bytes: Vec<u8>,
        synced: Option<Vec<u8>>,
        solid: usize,
    },
    Dir {
        names: BTreeMap<String, usize>,
        durable: BTreeMap<String, usize>,
        pending: Vec<NameOp>,
    },
}

/// A change of a directory that was not synced yet.
#[derive(Clone, Debug)]
enum NameOp {
    Link(String, usize),
    Unlink(String),
    Rename(String, String, usize),
}

impl NameOp {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match self {
            Self::Link(name, id) => {
                names.insert(name.clone(), *id);
            }
            Self::Unlink(name) => {
                names.remove(name);
            }
            Self::Rename(from, to, id) => {
                names.remove(from);
                names.insert(to.clone(), *id);
            }
        }
    }
}

#[derive(Debug)]
struct Inner {
    nodes: Vec<Node>,
    operations: u64,
    plans: Vec<Plan>,
    off: bool,
    read_faults: u64,
}

/// The disk; clones are the same disk.
#[derive(Clone, Debug)]
pub struct SimDisk(Rc<RefCell<Inner>>);

const ROOT: usize = 0;

fn dir() -> Node {
    Node::Dir { names: BTreeMap::new(), durable: BTreeMap::new(), pending: Vec::new() }
}

fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

fn parts(path: &Path) -> Vec<String> {
    let normal = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_str().unwrap().to_owned()),
        _ => None,
    });
    normal.collect()
}

impl Inner {
    fn find(&self, parts: &[String]) -> Option<usize> {
        parts.iter().try_fold(ROOT, |at, name| match &self.nodes[at] {
            Node::Dir { names, .. } => names.get(name).copied(),
            Node::File { .. } => None,
        })
    }

    /// The directory a path is in, and its last name.
    fn parent(&self, path: &Path) -> io::Result<(usize, String)> {
        let mut parts = parts(path);
        let name = parts.pop().ok_or_else(missing)?;
        Ok((self.find(&parts).ok_or_else(missing)?, name))
    }

    fn change(&mut self, dir: usize, op: NameOp) {
        let Node::Dir { names, pending, .. } = &mut self.nodes[dir] else { panic!("not a directory") };
        op.apply(names);
        pending.push(op);
    }

    fn add(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    fn remove_tree(&mut self, dir: usize, name: &str) {
        let Node::Dir { names, .. } = &self.nodes[dir] else { return };
        let Some(&id) = names.get(name) else { return };
        if let Node::Dir { names, .. } = &self.nodes[id] {
            for inner in names.keys().cloned().collect::<Vec<_>>() {
                self.remove_tree(id, &inner);
            }
        }
        self.change(dir, NameOp::Unlink(name.to_owned()));
    }

    /// Counts an operation, and fails it if it is its turn.
    fn operate(&mut self, kind: Kind) -> io::Result<()> {
        let number = self.operations;
        self.operations += 1;
        if self.off {
            return Err(io::Error::other("power is off"));
        }
        let due = |plan: &&Plan| if plan.once { plan.at == number } else { plan.at <= number };
        let errno = match self.plans.iter().find(due).map(|plan| plan.fault) {
            None => return Ok(()),
            Some(Fault::PowerOff) => {
                self.off = true;
                return Err(io::Error::other("power is off"));
            }
            Some(Fault::Full) if kind == Kind::Change => 28,
            Some(Fault::ReadOnly) if matches!(kind, Kind::Change | Kind::Remove) => 30,
            Some(Fault::Io) => 5,
            Some(_) => return Ok(()),
        };
        self.read_faults += u64::from(kind == Kind::Read);
        Err(io::Error::from_raw_os_error(errno))
    }
}

impl Default for SimDisk {
    fn default() -> Self {
        let disk = Self::of(vec![dir()]);
        // The node has its directories; only what is below them is ours to make durable.
        disk.make_dir(Path::new("/var/lib/kubelet"), 0o755).unwrap();
        disk.write_back();
        disk.0.borrow_mut().operations = 0;
        disk
    }
}

impl SimDisk {
    fn of(nodes: Vec<Node>) -> Self {
        Self(Rc::new(RefCell::new(Inner { nodes, operations: 0, plans: Vec::new(), off: false, read_faults: 0 })))
    }

    /// Operations so far.
    pub fn operations(&self) -> u64 {
        self.0.borrow().operations
    }

    /// Reads that were made to fail so far.
    pub fn read_faults(&self) -> u64 {
        self.0.borrow().read_faults
    }

    pub fn plan(&self, plan: Plan) {
        self.0.borrow_mut().plans.push(plan);
    }

    /// No more faults.
    pub fn heal(&self) {
        self.0.borrow_mut().plans.clear();
    }

    pub fn is_off(&self) -> bool {
        self.0.borrow().off
    }

    /// The power comes back: what was not synced is kept, lost or torn, by chance.
    pub fn crash(&self, rng: &mut Rng) {
        self.survive(&mut |chance| rng.below(chance));
    }

    /// What surely outlives a power cut: a copy that lost everything unsynced.
    pub fn worst(&self) -> Self {
        let copy = self.copy();
        copy.survive(&mut |_| 0);
        copy
    }

    /// An independent copy of what programs see now.
    pub fn copy(&self) -> Self {
        Self::of(self.0.borrow().nodes.clone())
    }

    /// The page cache was written back, as the kernel does sooner or later.
    pub fn write_back(&self) {
        self.survive(&mut |chance| chance - 1);
    }

    /// `choose(n)` gives a number below n: 0 loses an operation, the last keeps it.
    fn survive(&self, choose: &mut dyn FnMut(u64) -> u64) {
        let mut inner = self.0.borrow_mut();
        for node in &mut inner.nodes {
            match node {
                Node::Dir { names, durable, pending } => {
                    for op in pending.drain(..) {
                        if choose(2) == 1 {
                            op.apply(durable);
                        }
                    }
                    names.clone_from(durable);
                }
                Node::File { bytes, synced, solid } => {
                    if synced.as_ref() != Some(bytes) {
                        match choose(4) {
                            0 => *bytes = synced.clone().unwrap_or_default(),
                            // Torn: a part of the bytes, or blocks that never reached the disk.
                            1 => {
                                let loose = bytes.len() - *solid;
                                bytes.truncate(*solid + usize::try_from(choose(loose as u64 + 1)).unwrap());
                            }
                            2 => bytes[*solid..].fill(0),
                            _ => {}
                        }
                        *synced = Some(bytes.clone());
                    }
                    *solid = bytes.len();
                }
            }
        }
        inner.off = false;
        inner.plans.clear();
    }

    /// Flips a byte of a file, as a bad disk does. False if there is nothing to flip.
    pub fn rot(&self, path: &Path) -> bool {
        let mut inner = self.0.borrow_mut();
        let Some(id) = inner.find(&parts(path)) else { return false };
        let Node::File { bytes, synced, .. } = &mut inner.nodes[id] else { return false };
        let Some(byte) = bytes.first_mut() else { return false };
        *byte ^= 0x80;
        *synced = Some(bytes.clone());
        true
    }

    /// Writes a file anew, or at its end.
    fn put(&self, path: &Path, bytes: &[u8], append: bool) -> io::Result<()> {
        let mut inner = self.0.borrow_mut();
        let allowed = inner.operate(Kind::Change);
        let (dir, name) = inner.parent(path)?;
        // A write that fails half way leaves a file behind, too short.
        let read_only = allowed.as_ref().is_err_and(|error| error.raw_os_error() == Some(30));
        if read_only || inner.off {
            return allowed;
        }
        let bytes = if allowed.is_ok() { bytes } else { &bytes[..bytes.len() / 2] };
        match inner.find(&parts(path)) {
            Some(id) => match &mut inner.nodes[id] {
                Node::File { bytes: held, .. } if append => held.extend_from_slice(bytes),
                Node::File { bytes: held, solid, .. } => (*held, *solid) = (bytes.to_vec(), 0),
                Node::Dir { .. } => return Err(io::ErrorKind::IsADirectory.into()),
            },
            None => {
                let id = inner.add(Node::File { bytes: bytes.to_vec(), synced: None, solid: 0 });
                inner.change(dir, NameOp::Link(name, id));
            }
        }
        allowed
    }

    /// Writes durably, without counting or faults: for the kubelet, whose writes are not ours.
    pub fn poke(&self, path: &Path, bytes: &[u8]) {
        let aside = (self.operations(), std::mem::take(&mut self.0.borrow_mut().plans));
        self.write(path, bytes, 0o600).unwrap();
        self.sync(path).unwrap();
        self.sync(path.parent().unwrap()).unwrap();
        let mut inner = self.0.borrow_mut();
        (inner.operations, inner.plans) = aside;
    }

    /// Reads without counting: for the checks, and for the kubelet, whose reads are not ours.
    pub fn peek(&self, path: &Path) -> Option<String> {
        let inner = self.0.borrow();
        match &inner.nodes[inner.find(&parts(path))?] {
            Node::File { bytes, .. } => Some(String::from_utf8_lossy(bytes).into_owned()),
            Node::Dir { .. } => None,
        }
    }
}

impl Disk for SimDisk {
    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        let mut inner = self.0.borrow_mut();
        inner.operate(Kind::Read)?;
        let id = inner.find(&parts(path)).ok_or_else(missing)?;
        match &inner.nodes[id] {
            Node::File { bytes, .. } if bytes.len() as u64 > limit => Err(io::ErrorKind::FileTooLarge.into()),
            Node::File { bytes, .. } => Ok(bytes.clone()),
            Node::Dir { .. } => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    fn write(&self, path: &Path, bytes: &[u8], _mode: u32) -> io::Result<()> {
        self.put(path, bytes, false)
    }

    fn append(&self, path: &Path, bytes: &[u8], _mode: u32) -> io::Result<()> {
        self.put(path, bytes, true)
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        let mut inner = self.0.borrow_mut();
        inner.operate(Kind::Sync)?;
        let id = inner.find(&parts(path)).ok_or_else(missing)?;
        match &mut inner.nodes[id] {
            Node::File { bytes, synced, solid } => {
                // What was appended is all there is to copy.
                let held = synced.get_or_insert_default();
                held.truncate(*solid);
                held.extend_from_slice(&bytes[*solid..]);
                *solid = bytes.len();
            }
            Node::Dir { names, durable, pending } => {
                durable.clone_from(names);
                pending.clear();
            }
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut inner = self.0.borrow_mut();
        inner.operate(Kind::Change)?;
        let (dir, old) = inner.parent(from)?;
        let (other, new) = inner.parent(to)?;
        assert_eq!(dir, other, "renames across directories are not atomic for us");
        let id = inner.find(&parts(from)).ok_or_else(missing)?;
        if let Some(there) = inner.find(&parts(to))
            && matches!(&inner.nodes[there], Node::Dir { names, .. } if !names.is_empty())
        {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        inner.change(dir, NameOp::Rename(old, new, id));
        Ok(())
    }

    fn make_dir(&self, path: &Path, _mode: u32) -> io::Result<()> {
        let mut inner = self.0.borrow_mut();
        // mkdir says EEXIST before it says ENOSPC or EROFS.
        let there = inner.find(&parts(path)).is_some();
        inner.operate(if there { Kind::Sync } else { Kind::Change })?;
        let mut at = ROOT;
        for name in parts(path) {
            let Node::Dir { names, .. } = &inner.nodes[at] else { return Err(io::ErrorKind::NotADirectory.into()) };
            at = if let Some(&id) = names.get(&name) {
                id
            } else {
                let id = inner.add(dir());
                inner.change(at, NameOp::Link(name, id));
                id
            };
        }
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut inner = self.0.borrow_mut();
        inner.operate(Kind::Read)?;
        let Some(id) = inner.find(&parts(path)) else { return Ok(Vec::new()) };
        match &inner.nodes[id] {
            Node::Dir { names, .. } => Ok(names.keys().cloned().collect()),
            Node::File { .. } => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut inner = self.0.borrow_mut();
        inner.operate(Kind::Remove)?;
        if let Ok((dir, name)) = inner.parent(path) {
            inner.remove_tree(dir, &name);
        }
        Ok(())
    }
}
