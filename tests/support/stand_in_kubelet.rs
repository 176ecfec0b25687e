//! The stand-in kubelet as an executable of its own (`[[example]] name = "stand-in-kubelet"`).

#[allow(dead_code, unused_imports)] // the tests' half of the module: installing, reading the journal
#[path = "kubelet/mod.rs"]
mod kubelet;

fn main() {
    kubelet::run(std::env::args_os().collect())
}
