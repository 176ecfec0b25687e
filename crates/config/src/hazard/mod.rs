//! What a change of configuration means for a live node: which fields differ in effect, which of
//! them must not change without someone having taken care, and what the pods would feel.

mod acknowledge;
pub mod defaults;
mod diff;
mod effective;
pub mod impact;
pub(crate) mod message;
pub mod quantity;
mod resource_managers;
pub mod table;
#[cfg(test)]
mod tests;

pub use acknowledge::{ANNOTATION, Acknowledged};
pub(crate) use diff::possible_diff;
pub use diff::{Change, diff, is_secret, refused, refused_classes};
pub use effective::effective;
pub use impact::{
    Impact, accepts_any_restart, lost_to_any_restart, preview, refused_impact, told_impact, whole_impact,
};
pub(crate) use resource_managers::cpus;
pub use resource_managers::{fits_policy, key_of_found, policy_key};
pub use table::{Asks, Hazard, HazardClass, Unset};
