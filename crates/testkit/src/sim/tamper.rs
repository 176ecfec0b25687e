//! Where a mutant can put its hands: between the machine and its inputs, its state and its ports.

use std::collections::BTreeSet;

use kubelet_config::source::Source;
use kubelet_supervisor::machine::model::Moment;
use kubelet_supervisor::machine::{Handover, Input, Records, State, Stored};

use super::disk::Syncing;

/// Calls of ports that a mutant can make twice or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Save,
    Record,
    Start,
    Stop,
    Kill,
    Probe,
    Judge,
    Watch,
    Publish,
    Collect,
    Query,
}

/// A way to be wrong. [`HONEST`] is none at all.
#[derive(Clone, Copy, Debug)]
pub struct Tamper {
    /// An input before the machine takes it; `None` keeps it from the machine.
    pub input: fn(&mut State, Input) -> Option<Input>,
    /// The state after an input was taken through to its last effect.
    pub after: fn(&mut State),
    /// The time that the machine is told.
    pub moment: fn(Moment) -> Moment,
    /// Records as they are found at boot.
    pub load: fn(&mut Stored),
    /// What a reload hands over.
    pub handover: fn(&mut Handover),
    /// Records on their way to the disk.
    pub record: fn(&mut Records),
    /// What is not to be collected.
    pub keep: fn(&mut BTreeSet<Source>),
    /// How often a call is made. One that is not made claims success.
    pub times: fn(Call) -> u32,
    /// How the disk syncs.
    pub syncing: Syncing,
}

/// Lets everything through.
pub const HONEST: Tamper = Tamper {
    input: |_, input| Some(input),
    after: |_| {},
    moment: |moment| moment,
    load: |_| {},
    handover: |_| {},
    record: |_| {},
    keep: |_| {},
    times: |_| 1,
    syncing: Syncing::Honest,
};
