//! What is on a node's disk: it outlives every fault, and every later version reads it.
#![cfg(test)]

mod crash;
mod disk;
mod on_disk;
mod worker;
