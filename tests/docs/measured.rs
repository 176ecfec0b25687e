//! The numbers of `docs/usage/measured.md` are of this code or of the release before, and README says no more than they do.

use std::process::Command;

use super::read;

const MEASURED: &str = "docs/usage/measured.md";

/// What `benches/native` wrote between its markers.
fn section(name: &str) -> String {
    let text = read(MEASURED);
    let begin = format!("<!-- begin {name} -->\n");
    let (_, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("{MEASURED}: no {begin}"));
    let (section, _) = rest.split_once(&format!("<!-- end {name} -->\n")).expect("it ends");
    section.to_owned()
}

/// What git says; `None` where it has nothing to say, or is not there.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().ok()?;
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

#[test]
fn the_numbers_are_no_older_than_a_release() {
    // A source archive has no history, and a shallow clone not enough of it.
    if git(&["rev-parse", "--is-shallow-repository"]).as_deref() != Some("false") {
        println!("SKIPPED: no history of these sources");
        return;
    }
    for name in ["native", "stand-in"] {
        let section = section(name);
        let commit = section.strip_prefix("Commit ").expect("its commit").split([' ', ',']).next().unwrap().to_owned();
        assert!(git(&["merge-base", "--is-ancestor", &commit, "HEAD"]).is_some(), "{name}: {commit} is no ancestor");
        let since = git(&["tag", "--merged", "HEAD", "--contains", &commit, "v*"]).unwrap();
        assert!(since.lines().count() <= 1, "{name}: measured at {commit}, and since then there were {since}");
    }
}

/// The cell of a row in a column of the first table.
fn cell(section: &str, column: &str, row: &str) -> String {
    let cells = |line: &str| line.trim_matches('|').split('|').map(|it| it.trim().to_owned()).collect::<Vec<_>>();
    let mut lines = section.lines().filter(|line| line.starts_with('|')).map(cells);
    let at = lines.next().unwrap().iter().position(|it| it == column).unwrap_or_else(|| panic!("no column {column}"));
    lines.find(|cells| cells[0] == row).unwrap_or_else(|| panic!("no row {row}"))[at].clone()
}

#[test]
fn the_readme_says_no_more_than_was_measured() {
    let sentence = "A change costs one restart of the kubelet, as short as a bare one. A rejected one costs none while what runs is proven.\n\
                    With a stand-in that has the times of a modern kubelet, a change is active and healthy within a second ([measured](docs/usage/measured.md)).";
    assert!(read("README.md").contains(sentence), "README.md: {sentence}");
    let median = |cell: &str| cell.split([' ', '(']).next().unwrap().parse::<f64>().unwrap();
    for name in ["native", "stand-in"] {
        let section = section(name);
        let cell = |row: &str| cell(&section, "supervised", row);
        let outage = cell("… times the bare restart's of the same round");
        assert!(median(&outage) <= 1.1, "{name}: the outage is {outage} of a bare restart's");
        for change in ["first change after a start", "second change"] {
            let starts = cell(&format!("{change}: kubelet starts"));
            assert!(starts.split(", ").all(|it| it.starts_with("1 ") || it == "1"), "{name}: {starts}");
            let took = cell(&format!("{change}: write → active and healthz 200"));
            assert!(name == "native" || median(&took) < 1.0, "{name}: {took}");
        }
        let rejected = cell("kubelet starts per rejected payload");
        assert!(rejected.split(", ").all(|it| it.starts_with("0 ") || it == "0"), "{name}: {rejected}");
    }
}
