//! Bounded connections. Whoever comes gets a slot: where all are taken, the peer that has most of them loses its oldest one. So nobody
//! shuts others out with idle connections.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

/// So many connections at a time.
#[derive(Clone, Debug)]
pub struct Slots(Arc<Mutex<Taken>>);

#[derive(Debug)]
struct Taken {
    most: usize,
    last: u64,
    /// The oldest first.
    open: Vec<Open>,
}

#[derive(Debug)]
struct Open {
    number: u64,
    /// `None`: nobody's place is taken for this one, nor its own for others.
    peer: Option<IpAddr>,
    task: Option<AbortHandle>,
}

/// A slot that is taken, until this is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    number: u64,
    slots: Slots,
}

impl Slots {
    /// None is taken.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Mutex::new(Taken { most, last: 0, open: Vec::new() })))
    }

    /// How many are taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.lock().open.len()
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot for this peer; without a peer, only if one is free.
    pub(crate) fn take(&self, peer: Option<IpAddr>) -> Option<Slot> {
        let peer = peer.map(whose);
        let mut taken = self.lock();
        let mut out = None;
        if taken.open.len() >= taken.most {
            let crowding = peer.and_then(|_| taken.crowding())?;
            out = taken.open.remove(crowding).task;
        }
        taken.last += 1;
        let number = taken.last;
        taken.open.push(Open { number, peer, task: None });
        drop(taken); // a task that ends gives its slot back
        if let Some(task) = out {
            task.abort();
        }
        Some(Slot { number, slots: self.clone() })
    }

    /// What serves it, and is ended where its place is needed. It may be over already.
    pub(crate) fn served_by(&self, number: u64, task: AbortHandle) {
        if let Some(open) = self.lock().open.iter_mut().find(|open| open.number == number) {
            open.task = Some(task);
        } else {
            task.abort(); // its place was needed meanwhile
        }
    }
}

impl Taken {
    /// The oldest of the peer that has most.
    fn crowding(&self) -> Option<usize> {
        let count = |peer: Option<IpAddr>| self.open.iter().filter(|open| open.peer == peer).count();
        let theirs = self.open.iter().enumerate().filter(|(_, open)| open.peer.is_some());
        theirs.rev().max_by_key(|(_, open)| count(open.peer)).map(|(at, _)| at)
    }
}

impl Slot {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.lock().open.retain(|open| open.number != self.number);
    }
}

/// One peer is one host: all of loopback, and of IPv6 a network of 64 bits, whose addresses any host in it can have.
fn whose(address: IpAddr) -> IpAddr {
    let address = address.to_canonical();
    if address.is_loopback() {
        return Ipv4Addr::LOCALHOST.into();
    }
    match address {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(slots: &Slots, peer: &str) -> Option<Slot> {
        slots.take(Some(peer.parse().unwrap()))
    }

    fn peers(slots: &Slots) -> Vec<String> {
        slots.lock().open.iter().map(|open| open.peer.map(|peer| peer.to_string()).unwrap_or_default()).collect()
    }

    #[test]
    fn the_peer_with_most_makes_room() {
        let slots = Slots::new(4);
        let mut held: Vec<Option<Slot>> = Vec::new();
        for address in ["10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.2"] {
            held.push(take(&slots, address));
        }
        held.push(take(&slots, "10.0.0.3"));
        assert_eq!(peers(&slots), ["10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.3"]);
        held.push(take(&slots, "10.0.0.2"));
        assert_eq!(peers(&slots), ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.2"], "its own oldest");
        assert!(slots.take(None).is_none(), "who is nobody's peer takes nobody's place");
        drop(held);
        assert_eq!(slots.taken(), 0);
    }

    #[test]
    fn addresses_of_one_host_are_one_peer() {
        for (one, other, same) in [
            ("127.0.0.1", "127.9.9.9", true),
            ("127.0.0.1", "::1", true),
            ("::ffff:10.0.0.1", "10.0.0.1", true),
            ("2001:db8::1", "2001:db8::ffff:2", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
            ("10.0.0.1", "10.0.0.2", false),
        ] {
            assert_eq!(whose(one.parse().unwrap()) == whose(other.parse().unwrap()), same, "{one} {other}");
        }
    }

    #[test]
    fn places_of_nobody_are_kept() {
        let slots = Slots::new(1);
        let command = slots.take(None);
        assert!(command.is_some() && take(&slots, "10.0.0.1").is_none());
    }
}
