//! Files and directories of the simulated disk, in their visible and their durable state.

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use super::{Fault, Plan};

/// Kinds of operations, as far as faults tell them apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Sync,
    Change,
    Remove,
}

pub(super) type Names = BTreeMap<Rc<str>, usize>;

#[derive(Clone, Debug)]
pub(super) enum Node {
    /// The first `solid` bytes are as they were synced: only what follows them can be torn.
    File {
        bytes: Rc<[u8]>,
        synced: Option<Rc<[u8]>>,
        solid: usize,
    },
    Dir {
        names: Names,
        durable: Names,
        pending: Vec<NameOp>,
    },
}

/// A change of a directory that was not synced yet.
#[derive(Clone, Debug)]
pub(super) enum NameOp {
    Link(Rc<str>, usize),
    Unlink(Rc<str>),
    Rename(Rc<str>, Rc<str>, usize),
}

impl NameOp {
    pub(super) fn apply(&self, names: &mut Names) {
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

    pub(super) fn id(&mut self) -> Option<&mut usize> {
        match self {
            Self::Link(_, id) | Self::Rename(_, _, id) => Some(id),
            Self::Unlink(_) => None,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Inner {
    pub(super) nodes: Vec<Node>,
    /// So many nodes are worth a look for garbage.
    pub(super) crowded: usize,
    pub(super) operations: u64,
    pub(super) changes: u64,
    pub(super) failures: u64,
    pub(super) read_faults: u64,
    pub(super) plans: Vec<Plan>,
    /// Files in which a bit was flipped.
    pub(super) rotten: Vec<PathBuf>,
    pub(super) off: bool,
}

/// What a handle of the disk shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// All operations, counted, with their faults.
    Live,
    /// What programs see, without counting. Nothing is to be changed through it.
    Seen,
    /// What a power cut would surely leave. Nothing is to be changed through it.
    Durable,
}

pub(super) const ROOT: usize = 0;

pub(super) fn dir() -> Node {
    Node::Dir { names: Names::new(), durable: Names::new(), pending: Vec::new() }
}

pub(super) fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

/// A number below the bound: 0 loses an operation, the last keeps it.
pub(super) type Choose<'a> = &'a mut dyn FnMut(u64) -> u64;

pub(super) fn parts(path: &Path) -> impl Iterator<Item = &str> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => name.to_str(),
        _ => None,
    })
}

impl Inner {
    pub(super) fn names(&self, id: usize, view: View) -> Option<&Names> {
        match &self.nodes[id] {
            Node::Dir { durable, .. } if view == View::Durable => Some(durable),
            Node::Dir { names, .. } => Some(names),
            Node::File { .. } => None,
        }
    }

    pub(super) fn find_in(&self, path: &Path, view: View) -> Option<usize> {
        parts(path).try_fold(ROOT, |at, name| self.names(at, view)?.get(name).copied())
    }

    pub(super) fn find(&self, path: &Path) -> Option<usize> {
        self.find_in(path, View::Live)
    }

    pub(super) fn bytes(&self, id: usize, view: View) -> io::Result<&[u8]> {
        match &self.nodes[id] {
            Node::File { synced, .. } if view == View::Durable => Ok(synced.as_deref().unwrap_or_default()),
            Node::File { bytes, .. } => Ok(bytes),
            Node::Dir { .. } => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    /// The directory a path is in, and its last name.
    pub(super) fn parent(&self, path: &Path) -> io::Result<(usize, Rc<str>)> {
        let name = parts(path).last().ok_or_else(missing)?;
        let dir = path.parent().and_then(|dir| self.find(dir)).ok_or_else(missing)?;
        Ok((dir, name.into()))
    }

    pub(super) fn change(&mut self, dir: usize, op: NameOp) {
        self.changes += 1;
        let Node::Dir { names, pending, .. } = &mut self.nodes[dir] else { panic!("not a directory") };
        op.apply(names);
        pending.push(op);
    }

    pub(super) fn add(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Forgets nodes that no name leads to any more.
    pub(super) fn sweep(&mut self) {
        if self.nodes.len() < self.crowded {
            return;
        }
        let mut order = vec![ROOT];
        let mut moved = BTreeMap::from([(ROOT, ROOT)]);
        let mut at = 0;
        while let Some(id) = order.get(at).copied() {
            at += 1;
            if let Node::Dir { names, durable, pending } = &mut self.nodes[id] {
                let pending = pending.iter_mut().filter_map(NameOp::id);
                for child in names.values_mut().chain(durable.values_mut()).chain(pending) {
                    *child = *moved.entry(*child).or_insert_with_key(|child| {
                        order.push(*child);
                        order.len() - 1
                    });
                }
            }
        }
        let mut old: Vec<Option<Node>> = self.nodes.drain(..).map(Some).collect();
        self.nodes.extend(order.iter().filter_map(|id| old[*id].take()));
        self.crowded = 2 * self.nodes.len() + 64;
    }

    pub(super) fn remove_tree(&mut self, dir: usize, name: &Rc<str>) {
        let Some(&id) = self.names(dir, View::Live).and_then(|names| names.get(name)) else { return };
        if let Some(names) = self.names(id, View::Live) {
            for inner in names.keys().cloned().collect::<Vec<_>>() {
                self.remove_tree(id, &inner);
            }
        }
        self.change(dir, NameOp::Unlink(name.clone()));
    }

    pub(super) fn sync_node(&mut self, id: usize) {
        self.changes += 1;
        match &mut self.nodes[id] {
            Node::File { bytes, synced, solid } => {
                *synced = Some(bytes.clone());
                *solid = bytes.len();
            }
            Node::Dir { names, durable, pending } => {
                for op in pending.drain(..) {
                    op.apply(durable);
                }
                debug_assert_eq!(names, durable, "what was pending is all there is");
            }
        }
    }

    /// Counts an operation, and fails it if it is its turn.
    pub(super) fn operate(&mut self, kind: Kind) -> io::Result<()> {
        let number = self.operations;
        self.operations += 1;
        let allowed = self.allow(kind, number);
        self.failures += u64::from(allowed.is_err());
        allowed
    }

    pub(super) fn allow(&mut self, kind: Kind, number: u64) -> io::Result<()> {
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

    pub(super) fn survive(&mut self, choose: Choose<'_>) {
        for node in &mut self.nodes {
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
                                let thousandths = usize::try_from(choose(1001)).unwrap();
                                let kept = *solid + (bytes.len() - *solid) * thousandths / 1000;
                                *bytes = bytes[..kept].into();
                            }
                            2 => {
                                let zeros = vec![0; bytes.len() - *solid];
                                *bytes = [&bytes[..*solid], &zeros].concat().into();
                            }
                            _ => {}
                        }
                        *synced = Some(bytes.clone());
                    }
                    *solid = bytes.len();
                }
            }
        }
        self.changes += 1;
        self.off = false;
        self.plans.clear();
        self.sweep();
    }
}
