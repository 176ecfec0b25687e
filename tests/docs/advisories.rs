//! The dependencies against the advisories that are known of them, without a network.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use semver::{Version, VersionReq};

use super::read;

/// Name and version of each package of others.
fn locked() -> Vec<(String, Version)> {
    let text = read("Cargo.lock");
    let field = |package: &str, name: &str| {
        let lines = package.lines().find_map(|line| line.strip_prefix(&format!("{name} = \"")));
        lines.map(|value| value.trim_end_matches('"').to_owned())
    };
    let packages = text.split("[[package]]").skip(1).filter(|package| field(package, "source").is_some());
    packages.map(|it| (field(it, "name").unwrap(), field(it, "version").unwrap().parse().unwrap())).collect()
}

/// What is known to be wrong with these packages, and which of them nobody looked up.
fn findings(list: &str, locked: &[(String, Version)]) -> Vec<String> {
    let (advisories, looked_up) = list.split_once("# Looked up").unwrap();
    let looked_up: BTreeSet<&str> = looked_up.lines().skip(1).flat_map(str::split_whitespace).collect();
    let missing = locked.iter().filter(|(name, _)| !looked_up.contains(name.as_str()));
    let mut findings: Vec<String> = missing.map(|(name, _)| format!("{name}: not looked up")).collect();
    for line in advisories.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut parts = line.splitn(4, ' ');
        let (name, id, kind) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
        let free = parts.next().unwrap();
        let is_free = |version: &Version| {
            free != "none" && free.split(" | ").any(|range| VersionReq::parse(range).unwrap().matches(version))
        };
        let hit = locked.iter().filter(|(locked, version)| locked == name && !is_free(version));
        findings.extend(hit.map(|(_, version)| format!("{name} {version}: {id} ({kind}); not affected: {free}")));
    }
    findings
}

#[test]
fn advisories_known_of_the_dependencies_are_none_of_their_versions() {
    let found = findings(&read("advisories.txt"), &locked());
    assert!(found.is_empty(), "update them, or renew advisories.txt (docs/development/releasing.md): {found:#?}");
}

#[test]
fn advisories_are_found() {
    let list = "# x\na X-1 vulnerability >= 1.2.0 | < 1.0.0\nb X-2 unmaintained none\n\n# Looked up:\na b\n";
    let locked = |name: &str, version: &str| (name.to_owned(), version.parse().unwrap());
    assert!(findings(list, &[locked("a", "1.2.0"), locked("a", "0.9.9")]).is_empty());
    assert_eq!(
        findings(list, &[locked("a", "1.1.0")]),
        ["a 1.1.0: X-1 (vulnerability); not affected: >= 1.2.0 | < 1.0.0"]
    );
    assert_eq!(findings(list, &[locked("b", "9.0.0")]).len(), 1);
    assert_eq!(findings(list, &[locked("c", "1.0.0")]), ["c: not looked up"]);
}

/// The values of a field in an advisory's TOML: one text, or a list that may have several lines.
fn values(advisory: &str, field: &str) -> Vec<String> {
    let Some(at) = advisory.lines().position(|line| line.split('=').next().map(str::trim) == Some(field)) else {
        return Vec::new();
    };
    let mut text = String::new();
    for line in advisory.lines().skip(at) {
        text += line;
        if !text.contains('[') || text.trim_end().ends_with(']') {
            break;
        }
    }
    text.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// A line of the list; none if it was withdrawn.
fn line(advisory: &str) -> Option<String> {
    let one = |field: &str| values(advisory, field).into_iter().next();
    if one("withdrawn").is_some() {
        return None;
    }
    let free: Vec<String> = [values(advisory, "patched"), values(advisory, "unaffected")].concat();
    let free = if free.is_empty() { "none".to_owned() } else { free.join(" | ") };
    let kind = one("informational").unwrap_or_else(|| "vulnerability".to_owned());
    Some(format!("{} {} {kind} {free}", one("package")?, one("id")?))
}

/// Writes `advisories.txt` anew, from the clone of RustSec's advisory-db that `ADVISORY_DB` names. Its date is that of the clone.
#[test]
fn advisories_are_renewed() {
    let Ok(db) = std::env::var("ADVISORY_DB") else { return };
    let log =
        std::process::Command::new("git").args(["-C", &db, "log", "-1", "--format=%cs %h", "--abbrev=12"]).output();
    let log = String::from_utf8(log.unwrap().stdout).unwrap();
    let (date, commit) = log.trim().split_once(' ').expect("a commit");
    let names: BTreeSet<String> = locked().into_iter().map(|(name, _)| name).collect();
    let mut lines = BTreeMap::new();
    for name in &names {
        let Ok(dir) = std::fs::read_dir(Path::new(&db).join("crates").join(name)) else { continue };
        for entry in dir.map(Result::unwrap) {
            let text = std::fs::read_to_string(entry.path()).unwrap();
            let toml = text.split("```").nth(1).unwrap_or_default();
            lines.extend(line(toml).map(|line| (entry.file_name(), (name.clone(), line))));
        }
    }
    let mut lines: Vec<(String, String)> = lines.into_values().collect();
    lines.sort();
    let before = read("advisories.txt");
    let (head, looked_up) = before.split_once("# Looked up").unwrap();
    let explained: Vec<&str> = head.lines().filter(|line| line.starts_with('#')).skip(1).collect();
    let title = looked_up.lines().next().unwrap_or_default();
    let title_line = format!(
        "# Advisories of RustSec on the packages of Cargo.lock, as of {date} (commit {commit} of its advisory-db): package, advisory,"
    );
    let mut all: Vec<String> = vec![title_line];
    all.extend(explained.into_iter().map(str::to_owned).chain(lines.into_iter().map(|(_, line)| line)));
    all.extend([String::new(), format!("# Looked up{title}"), String::new()]);
    for name in &names {
        match all.last_mut() {
            Some(row) if row.is_empty() => row.push_str(name),
            Some(row) if row.len() + name.len() < 120 => row.extend([" ", name]),
            _ => all.push(name.clone()),
        }
    }
    let text = all.join("\n") + "\n";
    std::fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join("advisories.txt"), text).unwrap();
}
