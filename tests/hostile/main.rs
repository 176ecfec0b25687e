//! Hostile tests: those who are not root on the node try to stop, mislead or take over what runs there. The built binary, the
//! tests' own API server and the stand-in kubelet; strangers are processes of uid 65534, so most of it needs root.
#![cfg(test)]

mod authors;
mod confinement;
mod directories;
mod disclosure;
mod liars;
mod notify;
mod payloads;
mod ports;
mod replays;
mod signatures;
mod strangers;
mod tenants;
