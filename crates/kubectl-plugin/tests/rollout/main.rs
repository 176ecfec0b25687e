//! `kubectl kubelet-config rollout` over two hundred simulated nodes, in simulated time: the client is the real one,
//! the API server the tests' own, each node a supervisor (the real core and API server adapter) over a played kubelet.
//! What the client promises is held against the log of all changes, at each assignment.
#![cfg(test)]

mod bad_versions;
mod carriers;
mod drain;
mod end_to_end;
mod faults;
mod hostile_nodes;
mod kills;
mod output;
mod preflight;
mod promises;
mod records;
mod selection;
