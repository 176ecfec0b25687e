//! Writes a software bill of materials (CycloneDX 1.5, JSON) of what is in both binaries. For `packaging/build.sh`:
//! `cargo metadata --format-version 1 … | cargo run --example sbom -- Cargo.lock LINKED`, with what `cargo tree` prints in LINKED.

#![allow(clippy::indexing_slicing, reason = "a JSON value that is not there is null, and in tests nobody minds")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;

use serde_json::{Value, json};

const BINARIES: [&str; 2] = ["kubelet-supervisor", "kubectl-plugin"];

fn main() -> anyhow::Result<()> {
    let mut metadata = String::new();
    std::io::stdin().read_to_string(&mut metadata)?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [lock, linked] = &args[..] else { anyhow::bail!("sbom Cargo.lock LINKED") };
    let (lock, linked) = (std::fs::read_to_string(lock)?, linked_packages(&std::fs::read_to_string(linked)?));
    let seconds = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.parse().ok()).unwrap_or_default();
    let time = jiff::Timestamp::from_second(seconds)?;
    println!("{:#}", document(&serde_json::from_str(&metadata)?, &checksums(&lock), &linked, &time.to_string()));
    Ok(())
}

/// `NAME@VERSION` and its SHA-256.
pub(crate) fn checksums(lock: &str) -> BTreeMap<String, String> {
    let packages = lock.split("[[package]]").filter_map(|package| {
        let field = |name: &str| {
            let value = package.lines().find_map(|line| line.strip_prefix(&format!("{name} = \"")));
            value.map(|value| value.trim_end_matches('"').to_owned())
        };
        Some((format!("{}@{}", field("name")?, field("version")?), field("checksum")?))
    });
    packages.collect()
}

/// `NAME@VERSION` of each line `NAME vVERSION …`. `cargo metadata` alone has what features of tests ask for as well.
pub(crate) fn linked_packages(tree: &str) -> BTreeSet<String> {
    let package = |line: &str| {
        let (name, rest) = line.split_once(" v")?;
        Some(format!("{name}@{}", rest.split(' ').next()?))
    };
    tree.lines().filter_map(package).collect()
}

pub(crate) fn document(
    metadata: &Value,
    checksums: &BTreeMap<String, String>,
    linked: &BTreeSet<String>,
    time: &str,
) -> Value {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages: BTreeMap<String, Value> =
        list(&metadata["packages"]).into_iter().map(|package| (text(&package["id"]), package)).collect();
    // What is linked in or builds it; what tests alone need is left out.
    let needs = |node: &Value| -> Vec<String> {
        let kinds = |dep: &Value| list(&dep["dep_kinds"]).iter().any(|kind| kind["kind"] != "dev");
        list(&node["deps"]).iter().filter(|dep| kinds(dep)).map(|dep| text(&dep["pkg"])).collect()
    };
    let nodes: BTreeMap<String, Vec<String>> =
        list(&metadata["resolve"]["nodes"]).iter().map(|node| (text(&node["id"]), needs(node))).collect();
    let is_binary = |(_, package): &(&String, &Value)| BINARIES.iter().any(|name| package["name"] == *name);
    let name = |id: &String| packages.get(id).map(|it| format!("{}@{}", text(&it["name"]), text(&it["version"])));
    let found: BTreeSet<String> =
        packages.keys().filter(|id| name(id).is_some_and(|it| linked.contains(&it))).cloned().collect();
    let purl = |id: &String| name(id).map(|name| format!("pkg:cargo/{name}"));
    let component = |id: &String| {
        let package = packages.get(id)?;
        let mut component = json!({
            "type": "library", "bom-ref": purl(id)?, "purl": purl(id)?,
            "name": package["name"], "version": package["version"],
        });
        if package["license"].is_string() {
            component["licenses"] = json!([{"expression": text(&package["license"]).replace('/', " OR ")}]);
        }
        if let Some(sum) = name(id).and_then(|name| checksums.get(&name)) {
            component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
        }
        Some(component)
    };
    let dependency = |id: &String| {
        let of: BTreeSet<String> = nodes.get(id)?.iter().filter(|it| found.contains(*it)).filter_map(purl).collect();
        Some(json!({"ref": purl(id)?, "dependsOn": of}))
    };
    let version = packages.iter().find(is_binary).map(|(_, package)| package["version"].clone());
    json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"timestamp": time, "component": {"type": "application", "bom-ref": "kubelet-supervisor",
            "name": "kubelet-supervisor", "version": version}},
        "components": found.iter().filter_map(component).collect::<Vec<_>>(),
        "dependencies": found.iter().filter_map(dependency).collect::<Vec<_>>(),
    })
}
