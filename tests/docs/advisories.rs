//! The dependencies against the advisories that are known of them, without a network.

use std::collections::BTreeSet;

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
