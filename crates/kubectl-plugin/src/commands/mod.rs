//! One command a file; what they decide is in [`crate::fleet`].

pub(crate) mod assign;
pub(crate) mod capture;
pub(crate) mod completion;
pub(crate) mod configuration;
pub(crate) mod controller;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod history;
pub(crate) mod pool_configuration;
pub(crate) mod preflight;
pub(crate) mod push;
pub(crate) mod render;
pub(crate) mod reset;
pub(crate) mod retry;
pub(crate) mod rollback;
pub(crate) mod rollout;
pub(crate) mod status;
pub(crate) mod targets;
pub(crate) mod wait;
