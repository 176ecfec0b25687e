//! The state machine, without a daemon around it.
#![cfg(test)]

mod behaviour;
mod counted;
mod defects;
mod drift;
mod good_moment;
mod hung;
mod local_files;
mod policy;
mod preflight;
mod publication;
mod random_inputs;
mod spread;
mod standby;
mod trial;
