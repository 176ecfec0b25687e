//! The archive and the manifest for krew.

use std::process::Command;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

const PLUGIN: &str = env!("CARGO_BIN_EXE_kubectl-kubelet_config");

#[test]
fn the_manifest_names_the_archive_that_was_packed() {
    let out = tempfile::tempdir().unwrap();
    let build = testkit::built::file("packaging/build.sh");
    let url = "https://example.org/v1";
    let output = Command::new(build)
        .args(["krew", "--version", "1.2.0-rc.1", "--binary", PLUGIN, "--plugin", PLUGIN, "--url", url, "--out"])
        .arg(out.path())
        .env("SOURCE_DATE_EPOCH", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(out.path().join("kubelet-config.yaml")).unwrap();
    assert!(!text.contains('@'), "{text}");
    let manifest: Value = serde_yaml::from_str(&text).unwrap();
    assert_eq!((&manifest["kind"], &manifest["metadata"]["name"]), (&"Plugin".into(), &"kubelet-config".into()));
    assert_eq!(manifest["spec"]["version"], "v1.2.0-rc.1");
    let platforms = manifest["spec"]["platforms"].as_array().unwrap();
    assert_eq!(platforms.len(), 1);
    let archive = platforms[0]["uri"].as_str().unwrap().strip_prefix(&format!("{url}/")).unwrap();
    let packed = std::fs::read(out.path().join(archive)).unwrap();
    let sum = Sha256::digest(&packed).iter().fold(String::new(), |sum, byte| sum + &format!("{byte:02x}"));
    assert_eq!(platforms[0]["sha256"], sum.as_str());
    let beside = std::fs::read_to_string(out.path().join(format!("{archive}.sha256"))).unwrap();
    assert_eq!(beside, format!("{sum}  {archive}\n"), "as sha256sum -c reads it");

    // What is in it is what the manifest takes out of it, and the plugin runs.
    let unpacked = out.path().join("unpacked");
    std::fs::create_dir(&unpacked).unwrap();
    let tar = Command::new("tar").arg("-xzf").arg(out.path().join(archive)).arg("-C").arg(&unpacked).status().unwrap();
    assert!(tar.success());
    for file in platforms[0]["files"].as_array().unwrap() {
        assert!(unpacked.join(file["from"].as_str().unwrap()).is_file(), "{file}");
    }
    let plugin = unpacked.join(platforms[0]["bin"].as_str().unwrap());
    assert!(Command::new(plugin).arg("--version").status().unwrap().success());
}
