//! The source tree as text: files by module path, code without comments and tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The source of one crate.
pub struct Crate {
    pub name: &'static str,
    /// By module path below the crate, such as `machine::trial`; the crate root is empty.
    pub files: BTreeMap<String, File>,
}

pub struct File {
    /// Below the crate's `src`.
    pub name: String,
    pub lines: usize,
    /// Without comments and unit tests.
    pub code: String,
}

/// All crates that are shipped, and the one that tests share.
pub fn crates() -> Vec<Crate> {
    [
        ("kubelet-supervisor", "src"),
        ("kubelet-config", "crates/config/src"),
        ("exposition", "crates/exposition/src"),
        ("kubectl-plugin", "crates/kubectl-plugin/src"),
    ]
    .into_iter()
    .chain([("testkit", "crates/testkit/src")])
    .map(|(name, dir)| Crate { name, files: files(&Path::new(env!("CARGO_MANIFEST_DIR")).join(dir)) })
    .collect()
}

fn files(root: &Path) -> BTreeMap<String, File> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(root, &mut found);
    assert!(found.len() > 2, "the walk missed the source of {}", root.display());
    let mut files = BTreeMap::new();
    for path in found {
        let name = path.strip_prefix(root).unwrap().display().to_string();
        let text = fs::read_to_string(&path).unwrap();
        let test_module = name.ends_with("/tests.rs") || name.ends_with("_tests.rs");
        if !name.starts_with("bin/") && !test_module {
            let file = File { lines: text.lines().count(), code: code(&text), name };
            let earlier = files.insert(module(&file.name), file);
            assert!(earlier.is_none(), "two files of one module");
        }
    }
    files
}

/// `machine/trial.rs` is `machine::trial`, `machine/mod.rs` is `machine`.
fn module(name: &str) -> String {
    let path = name.trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    if path == "lib" { String::new() } else { path.replace('/', "::") }
}

fn code(text: &str) -> String {
    let shipped = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines = shipped.lines().map(|line| line.split_once("// ").map_or(line, |(before, _)| before));
    lines.filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}
