//! The monitor's transition: rules by example, and promises in random worlds, with workers that say anything at all.
#![cfg(test)]

mod promises;
mod rules;
mod world;
