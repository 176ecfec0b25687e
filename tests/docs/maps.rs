//! Documents that say where things are: `docs/development`, `CONTRIBUTING.md`, `docs/GLOSSARY.md`. What they name exists, and
//! every promise and every suite is on the map of `docs/development/testing.md`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{code, read, table};

const TESTING: &str = "docs/development/testing.md";
const CLAIMS: &str = "docs/development/claims.md";
const CONTRIBUTING: &str = "CONTRIBUTING.md";
/// Where suites are.
const SUITES: [&str; 3] = ["tests", "crates/kubectl-plugin/tests", "crates/testkit/tests"];
/// Top-level directories that paths in documents begin with.
const TOP: [&str; 9] = [".ci", "benches", "crates", "docs", "examples", "packaging", "src", "systemd", "tests"];

/// All files of the project below its top-level directories, by their paths from its root.
fn files() -> BTreeSet<String> {
    fn walk(root: &Path, dir: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(root, &path, found);
            } else {
                found.insert(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = BTreeSet::new();
    for dir in TOP {
        walk(root, &root.join(dir), &mut found);
    }
    found
}

fn exists(path: &str) -> bool {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path).exists()
}

/// The file of a test's name such as `suite::module::function`, and what is left of the name: nothing, or the function.
fn resolve(name: &str) -> Option<(String, Option<String>)> {
    let parts: Vec<&str> = name.split("::").collect();
    for length in (1..=parts.len()).rev() {
        let path = parts[..length].join("/");
        let candidates = SUITES.iter().flat_map(|dir| [format!("{dir}/{path}/main.rs"), format!("{dir}/{path}.rs")]);
        if let Some(file) = candidates.into_iter().find(|file| exists(file)) {
            return match &parts[length..] {
                [] => Some((file, None)),
                [function] => Some((file, Some((*function).to_owned()))),
                _ => None,
            };
        }
    }
    None
}

/// Every name of a test in these cells exists. Gives the files.
fn resolved(cells: impl IntoIterator<Item = String>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for name in cells {
        let (file, function) = resolve(&name).unwrap_or_else(|| panic!("no suite or file {name}"));
        if let Some(function) = function {
            assert!(read(&file).contains(&format!("fn {function}(")), "no {function} in {file}");
        }
        found.insert(file);
    }
    found
}

#[test]
fn every_promise_has_its_tests_and_they_exist() {
    let readme = read("README.md");
    let promises = readme.split("## What it promises").nth(1).unwrap().split("\n## ").next().unwrap();
    let mut expected: Vec<char> =
        promises.lines().filter(|line| line.contains(". **")).filter_map(|line| line.chars().next()).collect();
    assert!(expected.len() >= 6, "{expected:?}");
    if !expected.contains(&'7') {
        expected.push('7'); // the design's seventh law
    }
    let rows = table(TESTING, "promise");
    let shown: Vec<char> = rows.iter().filter_map(|row| row[0].chars().next()).collect();
    assert_eq!(shown, expected);
    for row in rows {
        assert!(!resolved(code(&row[1])).is_empty(), "{}: no test", row[0]);
    }
}

#[test]
fn every_threat_has_a_test() {
    let rows = table("docs/security.md", "threat");
    assert!(rows.len() >= 15, "{rows:?}");
    for row in rows {
        let (paths, tests): (Vec<_>, Vec<_>) = code(&row[2]).into_iter().partition(|name| name.contains('/'));
        assert!(paths.iter().all(|path| exists(path)), "{paths:?}");
        assert!(!resolved(tests).is_empty(), "nothing shows {:?}", row[0]);
    }
}

#[test]
fn every_claim_stands_on_its_page_and_is_shown_by_something() {
    let plain = |text: &str| text.replace("**", "").split_whitespace().collect::<Vec<_>>().join(" ");
    for row in table(CLAIMS, "page") {
        let page = code(&row[0]).remove(0);
        assert!(plain(&read(&page)).contains(&plain(&row[1])), "{CLAIMS}: {page} does not say {:?}", row[1]);
        let (paths, tests): (Vec<_>, Vec<_>) = code(&row[2]).into_iter().partition(|name| name.contains('/'));
        assert!(paths.iter().all(|path| exists(path)), "{CLAIMS}: {paths:?}");
        assert!(!resolved(tests).is_empty() || !paths.is_empty(), "{CLAIMS}: nothing shows {:?}", row[1]);
    }
}

#[test]
fn every_suite_and_every_file_of_it_is_on_the_map() {
    let suites: BTreeSet<String> = table(TESTING, "rung").iter().flat_map(|row| code(&row[1])).collect();
    let listed = table(TESTING, "suite").into_iter().flat_map(|row| {
        let names: Vec<String> = code(&row[1]).into_iter().filter(|name| name.contains("::")).collect();
        assert!(!names.is_empty(), "{TESTING}: {row:?}");
        names
    });
    let listed = resolved(listed);
    for file in files() {
        let Some(dir) = SUITES.into_iter().find(|dir| file.starts_with(&format!("{dir}/"))) else { continue };
        let rest: Vec<&str> = file.split('/').skip(dir.split('/').count()).collect();
        match *rest {
            ["run.sh" | "fixtures", ..] => {}
            [name] if Path::new(name).extension().is_some_and(|it| it == "rs") => {
                assert!(suites.contains(&file), "{TESTING}: {file} is not among the suites");
            }
            [_, "main.rs" | "run.sh"] => assert!(suites.contains(&file), "{TESTING}: {file} is not among the suites"),
            _ if Path::new(&file).extension().is_some_and(|it| it == "rs") => {
                assert!(listed.contains(&file), "{TESTING}: {file} is not among the files");
            }
            _ => {}
        }
    }
    for path in suites {
        assert!(exists(&path), "{TESTING}: {path}");
    }
}

#[test]
fn every_file_that_a_document_names_exists() {
    let files = files();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut documents: Vec<PathBuf> =
        ["README.md", CONTRIBUTING, "SECURITY.md", "docs/GLOSSARY.md"].map(|page| root.join(page)).to_vec();
    let development = std::fs::read_dir(root.join("docs/development")).unwrap();
    documents.extend(development.map(|entry| entry.unwrap().path()));
    let mut wrong = Vec::new();
    for document in documents {
        for name in code(&std::fs::read_to_string(&document).unwrap()) {
            let is_path = name.chars().all(|c| c.is_alphanumeric() || "/._-".contains(c));
            let from_root = TOP.iter().any(|dir| name.starts_with(&format!("{dir}/")));
            // Without its directory, where the text is about that directory.
            let is_source = Path::new(&name).extension().is_some_and(|it| it == "rs" || it == "sh");
            let known =
                if from_root { exists(&name) } else { files.iter().any(|file| file.ends_with(&format!("/{name}"))) };
            if is_path && (from_root || is_source) && !known {
                wrong.push(format!("{}: {name}", document.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "no such files:\n{}", wrong.join("\n"));
}

/// Identifiers in a step of a recipe: `Counter`, `PATH_FIELDS`, `Metrics::observe`, `own.register("…")`.
fn identifiers(step: &str) -> Vec<String> {
    let mut found = Vec::new();
    for name in code(step) {
        let name = name.trim_end_matches("::…)").split(['(', '<']).next().unwrap().to_owned();
        let is_identifier = name.split("::").all(|part| part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'));
        // Environment variables are cargo's or the shell's.
        if is_identifier && name.starts_with(|c: char| c.is_ascii_uppercase()) && !name.starts_with("KUBELET_") {
            found.extend(name.split("::").filter(|part| !part.is_empty()).map(str::to_owned));
        }
    }
    found
}

/// The text of a file, or of all files of a directory.
fn text_of(path: &str, files: &BTreeSet<String>) -> String {
    if let Some(dir) = path.strip_suffix('/') {
        return files.iter().filter(|file| file.starts_with(dir)).map(|file| read(file)).collect();
    }
    read(path)
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|other| other == word)
}

#[test]
fn every_name_in_a_recipe_is_in_a_file_that_it_names() {
    let files = files();
    let text = read(CONTRIBUTING);
    let recipes = text.split("\n# Recipes").nth(1).expect("recipes");
    let mut checked = 0;
    for recipe in recipes.split("\n## ").skip(1) {
        let title = recipe.lines().next().unwrap();
        // A step goes on until the next number or an empty line; what stands in between two recipes is a step too.
        let mut steps: Vec<String> = Vec::new();
        for line in recipe.lines().skip(1) {
            let begins = line.is_empty() || line.starts_with(|c: char| c.is_ascii_digit());
            match steps.last_mut() {
                Some(step) if !begins => *step = format!("{step}\n{line}"),
                _ => steps.push(line.to_owned()),
            }
        }
        // "Same file" is one of an earlier step.
        let (mut paths, mut sources) = (Vec::new(), String::new());
        for step in steps {
            let is_path = |name: &String| TOP.iter().any(|dir| name.starts_with(&format!("{dir}/")));
            for path in code(&step).into_iter().filter(is_path).filter(|path| exists(path)) {
                sources += &text_of(&path, &files);
                paths.push(path);
            }
            for name in identifiers(&step) {
                assert!(has_word(&sources, &name), "{title}: no {name} in {paths:?}, of the step {step:?}");
                checked += 1;
            }
        }
    }
    assert!(checked >= 20, "{checked}");
}
