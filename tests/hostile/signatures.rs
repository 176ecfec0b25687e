//! Signatures, against who may write ConfigMaps, who speaks for the API server, and the store: with `signatures` required nothing
//! starts that nobody signed. The real minisign signs.

use std::process::Command;

use serde_json::json;
use testkit::api_server::{Fault, FaultKind, Verb};
use testkit::rig::{NAMESPACE, NODE, Rig, VALIDATE, Version, configuration, is};

use crate::replays::{forged, is_told, lie};

struct Signer(tempfile::TempDir);

impl Signer {
    /// None, and said so, where there is no minisign.
    fn new() -> Option<Signer> {
        let signer = Signer(tempfile::tempdir().unwrap());
        signer.minisign(&["-G", "-W", "-p", "pub", "-s", "key"]).then_some(signer)
    }

    fn at(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn minisign(&self, args: &[&str]) -> bool {
        match Command::new("minisign").current_dir(self.0.path()).args(args).output() {
            Ok(output) => {
                assert!(output.status.success(), "minisign {args:?}: {}", String::from_utf8_lossy(&output.stderr));
                true
            }
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "signatures cannot be tested, and this is CI: {error}");
                eprintln!("SKIPPED: minisign: {error} (apt-get install minisign)");
                false
            }
        }
    }

    /// What a policy has of this signer.
    fn policy(&self) -> String {
        let key = std::fs::read_to_string(self.at("pub")).unwrap().lines().nth(1).unwrap().to_owned();
        format!("signatures: {{keys: [{{name: ops, key: {key}}}]}}\n")
    }

    /// Signs as `kubelet`, with these entries in the place of the usual ones.
    fn sign(&self, text: &str, entries: &[(&str, &str)]) -> String {
        let usual = [
            ("kind", "kubelet-config"),
            ("key", "kubelet"),
            ("pool", "pool-a"),
            ("sequence", "7"),
            ("expires", "2099-01-01T00:00:00Z"),
            ("merge", "replace"),
            ("acknowledge", "none"),
            ("courtesy", "none"),
            ("confirm", "none"),
            ("files", "none"),
        ];
        let value = |name: &str, usual: &str| {
            let given = entries.iter().find(|(given, _)| *given == name);
            given.map_or(usual.to_owned(), |(_, value)| (*value).to_owned())
        };
        let comment = usual.map(|(name, usual)| format!("{name}={}", value(name, usual))).join(" ");
        std::fs::write(self.at("payload"), text).unwrap();
        self.minisign(&["-S", "-s", "key", "-m", "payload", "-x", "signature", "-t", &comment]);
        std::fs::read_to_string(self.at("signature")).unwrap()
    }
}

fn write_policy(rig: &Rig, fields: &str) {
    let (temporary, path) = (rig.at("etc/.policy.tmp"), rig.at("etc/policy.yaml"));
    let text = format!("apiVersion: kubelet-supervisor.io/v1alpha1\nkind: NodePolicy\n{fields}");
    std::fs::write(&temporary, text).unwrap();
    std::fs::rename(temporary, path).unwrap();
}

fn rig(policy: &str) -> Rig {
    let mut rig = Rig::new();
    std::fs::create_dir(rig.at("etc")).unwrap();
    write_policy(&rig, policy);
    let path = rig.at("etc/policy.yaml").display().to_string();
    rig.option("--policy", &path);
    rig.up();
    rig
}

fn put(rig: &Rig, data: &[(&str, &str)]) -> Version {
    rig.server.put_annotated_config_map(NAMESPACE, "a", data, None)
}

fn prove_signed(rig: &Rig, text: &str, signature: &str) -> Version {
    let version = put(rig, &[("kubelet", text), ("kubelet.minisig", signature)]);
    rig.assign("a");
    rig.wait_config("it is proven", |config| is(config, "lastKnownGood", &version));
    version
}

fn checkpoint(rig: &Rig, version: &Version) -> std::path::PathBuf {
    rig.at("dynamic/store/checkpoints").join(&version.0).join(&version.1)
}

fn seal(rig: &Rig, version: &Version) -> std::path::PathBuf {
    rig.at("dynamic/supervisor/seals").join(&version.0).join(format!("{}.json", version.1))
}

/// The node's own configuration runs.
fn local_runs(rig: &Rig, what: &str) {
    rig.wait_status(what, |status| status["active"].is_null() && status["kubelet"]["ready"] == true);
    assert_eq!(rig.last_config()["maxPods"], 110, "{what}");
}

/// Signed payloads of before, under the name of what is last known good.
#[test]
fn an_older_signed_payload_does_not_come_back_under_a_known_version() {
    let Some(signer) = Signer::new() else { return };
    let mut rig = rig(&signer.policy());
    let text = configuration("maxPods: 42");
    let good = prove_signed(&rig, &text, &signer.sign(&text, &[]));
    let old = configuration("maxPods: 41");
    let mut starts = rig.starts();
    for (what, entries) in [
        ("a lower sequence", [("sequence", "6"), ("pool", "pool-a")]),
        ("expired", [("expires", "2020-01-01T00:00:00Z"), ("sequence", "9")]),
    ] {
        let signature = signer.sign(&old, &entries);
        let forged = forged(&rig, "a", &good, &[("kubelet", &old), ("kubelet.minisig", &signature)]);
        lie(&rig, &forged);
        is_told(&rig, &good, starts, what);
        rig.restart();
        starts += 1;
        is_told(&rig, &good, starts, what);
    }
}

/// Proven without a signature, before there was a policy that asks for one.
#[test]
fn what_nobody_signed_never_starts_once_signatures_are_required() {
    let Some(signer) = Signer::new() else { return };
    let mut rig = rig("");
    let unsigned = rig.prove("a", &configuration("maxPods: 42"));
    write_policy(&rig, &signer.policy());
    rig.wait_status("it is told of", |status| status["policy"]["state"] == "violated");
    let starts = rig.starts();
    assert_eq!(rig.last_config()["maxPods"], 42, "what runs goes on");
    rig.restart();
    local_runs(&rig, "after a restart");
    assert!(rig.starts() > starts);
    // Nothing of its checkpoint can be read: that admits nothing.
    rig.stop();
    std::fs::remove_dir_all(checkpoint(&rig, &unsigned)).unwrap();
    std::fs::remove_file(seal(&rig, &unsigned)).unwrap();
    rig.up();
    local_runs(&rig, "without a checkpoint");
    rig.stop();
    write_policy(&rig, "");
    rig.up();
    rig.wait_active(&unsigned);
}

/// Signed bytes under a name say nothing of the content that starts under it.
#[test]
fn a_signed_checkpoint_of_that_name_does_not_start_other_content() {
    let Some(signer) = Signer::new() else { return };
    let mut rig = rig("");
    let unsigned = rig.prove("a", &configuration("maxPods: 42"));
    let other = configuration("maxPods: 41");
    let signature = signer.sign(&other, &[]);
    rig.stop();
    // As a supervisor without this rule left it, which took other bytes under a known version.
    let dir = checkpoint(&rig, &unsigned);
    std::fs::write(dir.join("kubelet"), &other).unwrap();
    std::fs::write(dir.join("kubelet.minisig"), &signature).unwrap();
    let sums = [("kubelet", &other), ("kubelet.minisig", &signature)]
        .map(|(key, text)| (key, kubelet_config::digest::sha256(text.as_bytes())));
    let [(one, first), (two, second)] = sums;
    let sums = json!({"sha256": {one: first, two: second}, "merge": null, "acknowledge": null, "confirmWithin": null});
    std::fs::write(seal(&rig, &unsigned), sums.to_string()).unwrap();
    write_policy(&rig, &signer.policy());
    // Nobody tells otherwise.
    rig.server.faults().push(Fault::new(Verb::Any, "configmaps", FaultKind::Status(503)));
    rig.up();
    local_runs(&rig, "the content was not signed");
}

/// The other way round: what was signed starts, whatever became of its checkpoint, its signature's end, and the clock.
#[test]
fn what_was_signed_starts_without_its_checkpoint_and_after_its_end() {
    let Some(signer) = Signer::new() else { return };
    let mut rig = rig(&signer.policy());
    let text = configuration("maxPods: 42");
    let good = prove_signed(&rig, &text, &signer.sign(&text, &[]));
    rig.stop();
    std::fs::remove_dir_all(checkpoint(&rig, &good)).unwrap();
    std::fs::remove_file(seal(&rig, &good)).unwrap();
    rig.server.faults().push(Fault::new(Verb::Any, "configmaps", FaultKind::Status(503)));
    // Its key has ended since.
    write_policy(&rig, &signer.policy().replace("}]}", ", notAfter: \"2020-01-01T00:00:00Z\"}]}"));
    rig.up();
    rig.wait_status("it runs", |status| is(status, "active", &good) && status["signedBy"]["key"] == "ops");
    assert_eq!(rig.last_config()["maxPods"], 42);
    // Its key is taken out of use.
    let other = Signer::new().unwrap();
    rig.stop();
    write_policy(&rig, &other.policy());
    rig.up();
    local_runs(&rig, "its key is none any more");
}

/// The same bytes under another key would run without the flags that were signed with them.
#[test]
fn signed_bytes_are_of_one_key_with_its_flags_and_its_annotations() {
    let Some(signer) = Signer::new() else { return };
    let rig = rig(&signer.policy());
    let (text, flags) = (configuration("maxPods: 42"), "--v=4\n");
    let files = format!("kubelet.flags:{}", kubelet_config::digest::sha256(flags.as_bytes()));
    let signature = signer.sign(&text, &[("files", &files)]);
    let whole = [("kubelet", text.as_str()), ("kubelet.flags", flags), ("kubelet.minisig", signature.as_str())];
    let good = put(&rig, &whole);
    rig.assign("a");
    rig.wait_config("it is proven", |config| is(config, "lastKnownGood", &good));
    let starts = rig.starts();
    let refused = |key: &str, data: &[(&str, &str)], annotation: Option<(&str, &str)>, why: &str| {
        let version = rig.server.put_annotated_config_map(NAMESPACE, "b", data, annotation);
        rig.server.assign(NODE, NAMESPACE, "b", key);
        rig.wait_error(&version, VALIDATE);
        let told = rig.wait_event("KubeletConfigRejected", &version);
        assert!(told.contains(why), "{why}: {told}");
    };
    let moved = [("x", text.as_str()), ("x.minisig", signature.as_str()), ("kubelet.flags", flags)];
    refused("x", &moved, None, "signed with key=kubelet, and lies beside key x");
    refused("x", &[moved[0], moved[1]], None, "signed with key=kubelet, and lies beside key x");
    let both = [moved[0], moved[1], whole[0], whole[1], whole[2]];
    refused("x", &both, None, "signed with key=kubelet");
    let more = format!("{files},x.flags:{}", kubelet_config::digest::sha256(b"--v=9\n"));
    let signed_more = signer.sign(&text, &[("files", &more)]);
    let foreign = [whole[0], whole[1], ("kubelet.minisig", signed_more.as_str()), ("x.flags", "--v=9\n")];
    refused("kubelet", &foreign, None, "key x.flags has the flags of another configuration");
    let courtesy = Some(("kubelet-supervisor.io/courtesy", "1h"));
    refused("kubelet", &whole, courtesy, "signed with courtesy=none, and the annotation is \"1h\"");
    let bound = signer.sign(&text, &[("files", &files), ("courtesy", "1h")]);
    let bound = [whole[0], whole[1], ("kubelet.minisig", bound.as_str())];
    let version = rig.server.put_annotated_config_map(NAMESPACE, "b", &bound, courtesy);
    rig.wait_config("what was signed with it", |config| is(config, "active", &version) && config["error"].is_null());
    let confirm = Some(("kubelet-supervisor.io/confirm-within", "1s"));
    refused("kubelet", &bound, confirm, "signed with confirm=none, and the annotation is \"1s\"");
    assert_eq!(rig.starts(), starts, "equal content");
}
