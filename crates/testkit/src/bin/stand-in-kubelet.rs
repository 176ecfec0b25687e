//! The stand-in kubelet as an executable of its own (`[[example]] name = "stand-in-kubelet"`).

fn main() {
    testkit::kubelet::run(std::env::args_os().collect())
}
