//! Which file names what of which other file. A re-export is looked through: who imports the name depends on the file
//! that defines it, the file that re-exports does not.

use std::collections::{BTreeMap, BTreeSet};

use crate::tree::Crate;

/// By module: the modules it names, each with the names.
pub type Graph = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

pub fn graph(source: &Crate) -> Graph {
    let reexports = source.files.iter().map(|(module, file)| (module.as_str(), reexports(module, &file.code, source)));
    let reexports: BTreeMap<&str, _> = reexports.collect();
    let mut graph = Graph::new();
    for (module, file) in &source.files {
        let named = graph.entry(module.clone()).or_default();
        for path in paths(module, &file.code, source) {
            let (owner, name) = defined_in(&path, source, &reexports);
            if owner != *module {
                named.entry(owner).or_default().insert(name);
            }
        }
    }
    graph
}

/// A circle, if there is one: modules that name each other, the first one again at the end.
pub fn circle(graph: &Graph) -> Option<Vec<String>> {
    fn walk<'a>(
        at: &'a str,
        graph: &'a Graph,
        way: &mut Vec<&'a str>,
        done: &mut BTreeSet<&'a str>,
    ) -> Option<Vec<String>> {
        if let Some(start) = way.iter().position(|module| *module == at) {
            return Some(way[start..].iter().chain([&at]).map(|module| (*module).to_owned()).collect());
        }
        if !done.insert(at) {
            return None;
        }
        way.push(at);
        let found = graph.get(at).into_iter().flat_map(BTreeMap::keys).find_map(|next| walk(next, graph, way, done));
        way.pop();
        found
    }
    let mut done = BTreeSet::new();
    graph.keys().find_map(|module| walk(module, graph, &mut Vec::new(), &mut done))
}

/// Absolute paths (without `crate`) of all that a file names, re-exports left out.
fn paths(module: &str, code: &str, source: &Crate) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = String::new();
    for statement in split_uses(code) {
        match statement {
            Statement::Use { public: false, tree } => {
                found.extend(leaves(&tree).iter().filter_map(|path| absolute(module, path, source)));
            }
            Statement::Use { .. } => {}
            Statement::Other(text) => rest.push_str(&text),
        }
    }
    for path in inline(&rest) {
        found.extend(absolute(module, &path, source));
    }
    found
}

/// What a file hands on: name to path.
fn reexports(module: &str, code: &str, source: &Crate) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    for statement in split_uses(code) {
        if let Statement::Use { public: true, tree } = statement {
            for path in leaves(&tree) {
                if let (Some(name), Some(path)) = (path.last().cloned(), absolute(module, &path, source)) {
                    found.insert(name, path);
                }
            }
        }
    }
    found
}

/// The module that defines what a path names, and the name.
fn defined_in(
    path: &[String],
    source: &Crate,
    reexports: &BTreeMap<&str, BTreeMap<String, Vec<String>>>,
) -> (String, String) {
    let mut path = path.to_vec();
    for _ in 0..10 {
        let depth =
            (0..=path.len()).rev().find(|depth| source.files.contains_key(&path[..*depth].join("::"))).unwrap_or(0);
        let owner = path[..depth].join("::");
        let Some(name) = path.get(depth) else { return (owner, "self".to_owned()) };
        match reexports.get(owner.as_str()).and_then(|names| names.get(name)) {
            Some(target) => path = target.iter().chain(&path[depth + 1..]).cloned().collect(),
            None => return (owner, name.clone()),
        }
    }
    panic!("re-exports that go round: {path:?}");
}

enum Statement {
    Use { public: bool, tree: String },
    Other(String),
}

fn split_uses(code: &str) -> Vec<Statement> {
    let mut found = Vec::new();
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        let trimmed = line.trim_start();
        let public = trimmed.starts_with("pub");
        let tree = match trimmed.split_once("use ") {
            Some((before, tree)) if before.is_empty() || before.starts_with("pub") && !before.contains("fn ") => tree,
            _ => {
                found.push(Statement::Other(format!("{line}\n")));
                continue;
            }
        };
        let mut tree = tree.to_owned();
        while !tree.contains(';') {
            tree.push_str(lines.next().unwrap_or(";").trim());
        }
        found.push(Statement::Use { public, tree: tree.replace(';', "") });
    }
    found
}

/// `a::{b, c::{self, d as e}}` as paths.
fn leaves(tree: &str) -> Vec<Vec<String>> {
    let tree = tree.trim();
    let Some((prefix, group)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        return vec![path.split("::").map(|part| part.trim().to_owned()).filter(|part| part != "*").collect()];
    };
    let group = group.trim_end().strip_suffix('}').unwrap_or(group);
    let prefix: Vec<String> =
        prefix.split("::").map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect();
    let (mut depth, mut start, mut found) = (0_usize, 0, Vec::new());
    for (at, c) in group.char_indices().chain([(group.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                let part = group.get(start..at).unwrap_or_default().trim();
                start = at + 1;
                if !part.is_empty() {
                    found.extend(leaves(part).into_iter().map(|tail| {
                        let tail = tail.into_iter().filter(|part| part != "self");
                        prefix.iter().cloned().chain(tail).collect()
                    }));
                }
            }
            _ => {}
        }
    }
    found
}

/// Paths in code that are written out, not imported.
fn inline(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    for word in code.split(|c: char| !is_part(c)).filter(|word| word.contains("::")) {
        let path: Vec<String> = word.trim_matches(':').split("::").map(str::to_owned).collect();
        if path.len() > 1 && path.iter().all(|part| !part.is_empty() && !part.contains(':')) {
            found.push(path);
        }
    }
    found
}

/// A path from the crate root, if it leads into this crate.
fn absolute(module: &str, path: &[String], source: &Crate) -> Option<Vec<String>> {
    let mut at: Vec<String> = module.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => {
            at.clear();
            rest = &path[1..];
        }
        "super" | "self" => {
            while let Some(part @ ("super" | "self")) = rest.first().map(String::as_str) {
                if part == "super" {
                    at.pop()?;
                }
                rest = &rest[1..];
            }
        }
        // A child module, by its bare name.
        child => {
            let below = at.iter().map(String::as_str).chain([child]).collect::<Vec<_>>().join("::");
            source.files.contains_key(&below).then_some(())?;
        }
    }
    Some(at.into_iter().chain(rest.iter().cloned()).collect())
}
