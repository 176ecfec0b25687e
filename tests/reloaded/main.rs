//! The scenarios of `trial.rs` once more, with a reload every seven seconds: nothing comes out differently.

#[path = "../trial/main.rs"]
mod trial;
