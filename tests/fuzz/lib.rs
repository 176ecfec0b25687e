//! Fuzz targets: whatever is parsed that somebody else wrote. Each asserts more than that nothing panics, and is a plain
//! function of the bytes, so that its corpus is also a test (`cargo test -p fuzz`). `run.sh` has libFuzzer look for more.
#![allow(clippy::panic, reason = "that is how a target says what does not hold")]

mod machine;
mod targets;

/// A target: it panics if what must hold of the input does not.
pub type Target = fn(&[u8]);

/// All targets, by the names of their directories in `corpus/`.
pub const TARGETS: [(&str, Target); 8] = [
    ("kubeconfig", targets::kubeconfig::check),
    ("notify", targets::notify::check),
    ("policy", targets::policy::check),
    ("preflight", targets::preflight::check),
    ("records", targets::records::check),
    ("render", targets::render::check),
    ("signature", targets::signature::check),
    ("unit", targets::unit::check),
];

/// The target of this name.
#[must_use]
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().find(|(other, _)| *other == name).map(|(_, target)| *target)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// The seeds, and what once found something.
    #[test]
    fn the_corpus_holds() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
        for (name, target) in super::TARGETS {
            let mut inputs = 0;
            for entry in std::fs::read_dir(corpus.join(name)).unwrap() {
                let path = entry.unwrap().path();
                println!("{}", path.display()); // shown if it fails
                target(&std::fs::read(&path).unwrap());
                inputs += 1;
            }
            assert!(inputs > 0, "{name} has no seeds");
        }
    }
}
