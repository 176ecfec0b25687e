//! The scenarios of `trial.rs` once more with `--restart-by exit`: each kubelet has a supervisor of its own, and
//! nothing comes out differently.

#[path = "../trial/main.rs"]
mod trial;
