//! The image of the controller of pools, as `packaging/image.sh` builds it: its layout, its bytes, and that its program runs where
//! there is nothing else. `tests/real` runs it as Pods.
//!
//!     cargo test --test image
#![cfg(test)]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use kubelet_config::digest::hex;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use testkit::built::{Image, file, image, program};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";

fn directory(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

static IMAGE: LazyLock<Image> = LazyLock::new(|| image(&directory("image")));

fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn unpack(archive: &Path, to: &str) -> PathBuf {
    let to = directory(to);
    assert!(run(Command::new("tar").arg("-C").arg(&to).arg("-xf").arg(archive)).status.success());
    to
}

fn document(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// What a descriptor names, whose digest and size are as it says.
fn blob(layout: &Path, descriptor: &Value) -> PathBuf {
    let digest = descriptor["digest"].as_str().unwrap();
    let path = layout.join("blobs/sha256").join(digest.strip_prefix("sha256:").unwrap());
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(format!("sha256:{}", hex(&Sha256::digest(&bytes))), digest);
    assert_eq!(descriptor["size"], bytes.len());
    path
}

/// The image for this machine: manifest and configuration.
fn of_this_machine(layout: &Path) -> (Value, Value) {
    let index = document(&layout.join("index.json"));
    let index = document(&blob(layout, &index["manifests"][0]));
    let wanted = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let is_it = |it: &&Value| it["platform"] == json!({"architecture": wanted, "os": "linux"});
    let manifest = index["manifests"].as_array().unwrap().iter().find(is_it).unwrap();
    let manifest = document(&blob(layout, manifest));
    let config = document(&blob(layout, &manifest["config"]));
    assert_eq!(config["architecture"], wanted);
    (manifest, config)
}

#[test]
fn it_is_an_oci_layout_whose_digests_are_right() {
    let layout = unpack(&IMAGE.archive, "layout");
    assert_eq!(document(&layout.join("oci-layout")), json!({"imageLayoutVersion": "1.0.0"}));
    let top = document(&layout.join("index.json"));
    assert_eq!((&top["schemaVersion"], &top["mediaType"]), (&json!(2), &json!(INDEX)));
    let [descriptor] = top["manifests"].as_array().unwrap().as_slice() else { panic!("{top:#}") };
    assert_eq!((&descriptor["digest"], &descriptor["mediaType"]), (&json!(IMAGE.digest), &json!(INDEX)));
    assert_eq!(descriptor["annotations"]["io.containerd.image.name"], IMAGE.name);
    let platforms = document(&blob(&layout, descriptor))["manifests"].as_array().unwrap().clone();
    for platform in &platforms {
        let manifest = document(&blob(&layout, platform));
        assert_eq!(manifest["schemaVersion"], 2);
        let config = document(&blob(&layout, &manifest["config"]));
        let layer = &manifest["layers"][0];
        blob(&layout, layer);
        assert_eq!(layer["mediaType"], "application/vnd.oci.image.layer.v1.tar");
        // Not compressed, and so both digests are one.
        assert_eq!(config["rootfs"], json!({"type": "layers", "diff_ids": [layer["digest"]]}));
    }
    // An index, and three of each platform: nothing that nobody names.
    assert_eq!(std::fs::read_dir(layout.join("blobs/sha256")).unwrap().count(), 1 + 3 * platforms.len());
}

#[test]
fn it_runs_as_nobody_and_says_what_it_is() {
    let layout = unpack(&IMAGE.archive, "described");
    let (_, config) = of_this_machine(&layout);
    assert_eq!(config["created"], "2023-11-14T22:13:20Z");
    let settings = &config["config"];
    assert_eq!((&settings["User"], &settings["Cmd"]), (&json!("65534:65534"), &Value::Null));
    assert_eq!(settings["Entrypoint"], json!(["/kubectl-kubelet_config"]));
    let label =
        |name: &str| settings["Labels"][format!("org.opencontainers.image.{name}")].as_str().unwrap_or_default();
    assert_eq!(
        (label("version"), label("licenses"), label("created")),
        ("0.0.1-test", "Apache-2.0", "2023-11-14T22:13:20Z")
    );
    assert!(label("title") == "kubectl-kubelet-config" && label("description").contains("controller"), "{settings:#}");
}

#[test]
fn the_same_bytes_come_out_again() {
    let again = image(&directory("again"));
    assert_eq!(again.digest, IMAGE.digest);
    assert!(std::fs::read(&again.archive).unwrap() == std::fs::read(&IMAGE.archive).unwrap(), "archives differ");
}

#[test]
fn its_program_needs_nothing_beside_it() {
    let layout = unpack(&IMAGE.archive, "layers");
    let root = unpack(&blob(&layout, &of_this_machine(&layout).0["layers"][0]), "root");
    let names: Vec<_> = std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["kubectl-kubelet_config"]);
    assert_eq!(root.join("kubectl-kubelet_config").metadata().unwrap().permissions().mode() & 0o7777, 0o755);
    let chroot = |args: &[&str]| {
        let mut command = if nix::unistd::geteuid().is_root() {
            let mut command = Command::new("chroot");
            command.arg("--userspec=65534:65534");
            command
        } else {
            let mut command = Command::new("unshare");
            command.args(["--map-root-user", "chroot"]);
            command
        };
        run(command
            .arg(&root)
            .arg("/kubectl-kubelet_config")
            .args(args)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"))
    };
    let version = chroot(&["--version"]);
    if !nix::unistd::geteuid().is_root() && !version.status.success() {
        assert!(std::env::var_os("CI").is_none(), "{version:?}");
        println!("SKIPPED: no user namespace to be root of: {version:?}");
        return;
    }
    assert_eq!(
        String::from_utf8_lossy(&version.stdout),
        format!("kubectl kubelet-config {}\n", env!("CARGO_PKG_VERSION"))
    );
    let help = chroot(&["controller", "--help"]);
    assert!(String::from_utf8_lossy(&help.stdout).contains("KubeletConfigPool"), "{help:?}");
    // In a cluster without its credentials it says which file is missing.
    let alone = chroot(&["controller"]);
    assert!(alone.status.code() == Some(1) && !alone.stderr.is_empty(), "{alone:?}");
}

#[test]
fn a_program_that_asks_for_a_c_library_is_refused() {
    let out = directory("refused").join("image.oci.tar");
    let mut command = Command::new(file("packaging/image.sh"));
    let said = run(command.arg("--binary").arg(program("kubelet-supervisor")).arg("--out").arg(&out));
    let words = String::from_utf8_lossy(&said.stderr);
    assert!(!said.status.success() && words.contains("is not static"), "{said:?}");
    assert!(!out.exists());
}
