//! The bill of materials of the packages, made as `packaging/build.sh` makes it, against what cargo links.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use super::read;

#[expect(dead_code, reason = "main is the program's")]
#[path = "../../examples/sbom.rs"]
mod program;

fn cargo(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO")).current_dir(env!("CARGO_MANIFEST_DIR")).args(args).output().unwrap();
    assert!(output.status.success(), "cargo {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// `NAME@VERSION` of what is linked into this program, and what builds that, by a walk that knows features.
fn tree(program: &str, host: &str) -> BTreeSet<String> {
    let of = format!("tree --locked --offline --edges normal,build --prefix none --target {host} -p {program}");
    program::linked_packages(&cargo(&of.split(' ').collect::<Vec<_>>()))
}

#[test]
fn the_bill_of_materials_is_what_is_linked() {
    let version = String::from_utf8(Command::new("rustc").arg("-vV").output().unwrap().stdout).unwrap();
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let metadata = ["metadata", "--locked", "--offline", "--format-version", "1", "--filter-platform", host];
    let metadata: Value = serde_json::from_str(&cargo(&metadata)).unwrap();
    let linked: BTreeSet<String> =
        tree("kubelet-supervisor", host).union(&tree("kubectl-plugin", host)).cloned().collect();
    let checksums = program::checksums(&read("Cargo.lock"));
    let bill = program::document(&metadata, &checksums, &linked, "2026-01-01T00:00:00Z");
    assert_eq!(
        (&bill["bomFormat"], &bill["specVersion"], &bill["version"]),
        (&"CycloneDX".into(), &"1.5".into(), &1.into())
    );
    assert!(bill["metadata"]["timestamp"].is_string() && bill["metadata"]["component"]["version"].is_string());

    let mut listed = BTreeMap::new();
    for component in bill["components"].as_array().unwrap() {
        let text = |name: &str| component[name].as_str().unwrap_or_else(|| panic!("no {name}: {component}")).to_owned();
        let name = format!("{}@{}", text("name"), text("version"));
        assert_eq!(
            (text("type"), text("purl"), text("bom-ref")),
            ("library".into(), format!("pkg:cargo/{name}"), format!("pkg:cargo/{name}"))
        );
        let hash = &component["hashes"][0];
        assert_eq!(hash["content"].as_str(), checksums.get(&name).map(String::as_str), "{name}");
        assert_eq!(hash["alg"] == "SHA-256", checksums.contains_key(&name), "{name}");
        assert!(listed.insert(name.clone(), component).is_none(), "{name} stands there twice");
    }
    let names: BTreeSet<String> = listed.keys().cloned().collect();
    assert_eq!(names.difference(&linked).collect::<Vec<_>>(), [""; 0], "listed, and not linked");
    assert_eq!(linked.difference(&names).collect::<Vec<_>>(), [""; 0], "linked, and not listed");
    let own = ["exposition@", "kubectl-plugin@", "kubelet-config@", "kubelet-supervisor@"];
    let without: Vec<&String> = names.iter().filter(|name| !checksums.contains_key(*name)).collect();
    assert!(
        without.len() == own.len() && without.iter().zip(own).all(|(name, own)| name.starts_with(own)),
        "{without:?}"
    );

    let is_listed = |reference: &Value| names.contains(reference.as_str().unwrap().strip_prefix("pkg:cargo/").unwrap());
    let dependencies = bill["dependencies"].as_array().unwrap();
    assert_eq!(dependencies.len(), names.len());
    for dependency in dependencies {
        let on = dependency["dependsOn"].as_array().unwrap();
        assert!(is_listed(&dependency["ref"]) && on.iter().all(is_listed), "{dependency}");
    }
}
