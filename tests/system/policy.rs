//! The node's policy, in the file that root writes: read, watched, obeyed; and payloads that the real minisign signed.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use testkit::rig::{NAMESPACE, Rig, VALIDATE, configuration, is, supervisor};

const HEAD: &str = "apiVersion: kubelet-supervisor.io/v1alpha1\nkind: NodePolicy\n";

/// One with a policy file, which the supervisor is told of.
fn rig(trial: &str, fields: &str) -> Rig {
    let mut rig = Rig::with(testkit::kubelet::Style::V1_20, trial);
    std::fs::create_dir(rig.at("etc")).unwrap();
    write(&rig, fields);
    let path = rig.at("etc/policy.yaml").display().to_string();
    rig.option("--policy", &path);
    rig
}

/// Writes it as an editor does.
fn write(rig: &Rig, fields: &str) {
    let (temporary, path) = (rig.at("etc/.policy.tmp"), rig.at("etc/policy.yaml"));
    std::fs::write(&temporary, format!("{HEAD}{fields}")).unwrap();
    std::fs::rename(temporary, path).unwrap();
}

fn state(rig: &Rig, state: &str) {
    rig.wait_status(&format!("its policy is {state}"), |status| status["policy"]["state"] == state);
    assert_eq!(rig.metric(&format!("kubelet_supervisor_policy{{state=\"{state}\"}}")), Some(1.0));
}

#[test]
fn what_it_denies_is_refused_until_it_admits_it() {
    let rig = rig("1s", "deniedFields: [staticPodPath]\nunknownFields: refuse\n").running();
    state(&rig, "in-force");
    let version = rig.offer("a", &configuration("staticPodPath: /tmp/pods"));
    rig.wait_error(&version, VALIDATE);
    let why = rig.wait_event("KubeletConfigRejected", &version);
    let told = "the node's policy: deniedFields has staticPodPath, and it changes staticPodPath: unset → \"/tmp/pods\"";
    assert!(why.contains(told), "{why}");
    assert_eq!(rig.status()["errorDetail"], told);
    assert_eq!((rig.starts(), rig.metric("kubelet_supervisor_policy_refused_total")), (1, Some(1.0)));
    assert_eq!(
        rig.metric("kubelet_supervisor_preflight_total{result=\"valid\"}"),
        Some(0.0),
        "the kubelet was not asked"
    );

    let misspelt = rig.put("a", &configuration("maxpods: 5"));
    rig.wait_error(&misspelt, testkit::rig::LOAD);
    assert!(rig.wait_event("KubeletConfigRejected", &misspelt).contains("refused by the node's policy"));

    let again = rig.put("a", &configuration("staticPodPath: /tmp/pods"));
    rig.wait_error(&again, VALIDATE);
    write(&rig, "");
    rig.wait_active(&again);
    rig.wait_starts(2);
    assert_eq!(rig.last_config()["staticPodPath"], "/tmp/pods");
}

#[test]
fn what_runs_and_is_forbidden_goes_on_until_the_next_start() {
    let rig = rig("1s", "").running();
    let version = rig.prove("a", &configuration("maxPods: 42"));
    let starts = rig.starts();
    write(&rig, "pinnedFields: {maxPods: 110}\n");
    state(&rig, "violated");
    rig.wait_told("KubeletConfigForbidden", &version, "pinnedFields: maxPods must be 110");
    assert_eq!(rig.starts(), starts);
    // Fields bind changes: what is proven starts.
    crate::kill_kubelet(&rig);
    rig.wait_starts(starts + 1);
    rig.wait_active(&version);
    write(&rig, "allowedNamespaces: [elsewhere]\n");
    rig.wait_status("its namespace is forbidden", |status| {
        status["policy"]["forbids"].as_str().is_some_and(|why| why.contains("is not allowed"))
    });
    crate::kill_kubelet(&rig);
    rig.wait_config("the node's own configuration runs", |config| {
        config["active"].is_null() && is(config, "assigned", &version)
    });
    write(&rig, "");
    rig.wait_active(&version);
}

#[test]
fn one_that_others_may_write_admits_nothing_new() {
    let mut rig = rig("10m", "");
    let path = rig.at("etc/policy.yaml");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    rig.up();
    state(&rig, "unreadable");
    let version = rig.offer("a", &configuration("maxPods: 42"));
    let status = rig.wait_status("it is said", |status| {
        status["errorDetail"].as_str().is_some_and(|why| why.contains("policy.yaml"))
    });
    assert!(status["policy"]["error"].as_str().is_some_and(|why| why.contains("chmod")), "{status:#}");
    assert_eq!(rig.starts(), 1);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    rig.wait_active(&version);
    std::fs::write(&path, format!("{HEAD}deniedField: []\n")).unwrap();
    state(&rig, "unreadable");
    assert!(
        rig.status()["policy"]["error"].as_str().is_some_and(|why| why.contains("deniedField: there is no such field"))
    );
    assert_eq!(rig.status()["active"]["configMap"]["name"], "a");
}

/// Nobody is kept from a first configuration by the mode of a directory in which there is nothing.
#[test]
fn a_directory_that_others_may_write_without_a_policy_in_it_is_no_policy() {
    for mode in [Some(0o775), None] {
        let mut rig = Rig::new();
        let etc = rig.at("etc");
        if let Some(mode) = mode {
            std::fs::create_dir(&etc).unwrap();
            std::fs::set_permissions(&etc, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        rig.option("--policy", etc.join("policy.yaml").to_str().unwrap());
        rig.up();
        state(&rig, "absent");
        let told = rig.status()["policy"]["error"].as_str().unwrap().to_owned();
        assert_eq!(told.contains("chmod go-w"), mode.is_some(), "{told}");
        let version = rig.offer("a", &configuration("maxPods: 42"));
        rig.wait_active(&version);
        if mode.is_none() {
            continue;
        }
        rig.wait_log("the node has no policy, and none could be used");
        // One that is there is root's alone, or none that counts.
        write(&rig, "");
        state(&rig, "unreadable");
        std::fs::set_permissions(&etc, std::fs::Permissions::from_mode(0o755)).unwrap();
        state(&rig, "in-force");
    }
}

#[test]
fn a_policy_is_checked_by_hand() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.yaml");
    let check = |text: &str| {
        std::fs::write(&path, text).unwrap();
        testkit::rig::exit_and_output(&supervisor().args(["policy", "check"]).arg(&path).output().unwrap())
    };
    let (code, told, _) = check(&format!("{HEAD}allowedNamespaces: [a, b]\n"));
    assert!(code == 0 && told.contains("can be used") && told.contains("allowedNamespaces: a, b"), "{told}");
    let (code, _, told) = check(&format!("{HEAD}deniedFields: [maxPodz]\n"));
    assert!(code == 1 && told.contains("policy.yaml: deniedFields[0]: maxPodz: did you mean maxPods?"), "{told}");
}

#[test]
fn files_by_hand_are_held_against_it() {
    let rig = rig("1s", "deniedFields: [staticPodPath]\nunknownFields: refuse\nallowedNamespaces: [a]\n");
    let path = rig.at("etc/policy.yaml").display().to_string();
    let payload = rig.at("payload.yaml");
    let ask = |verb: &str, text: &str, more: &[&str]| {
        std::fs::write(&payload, configuration(text)).unwrap();
        let mut command = supervisor();
        command.arg(verb).arg(&payload).args(["--policy", &path]).args(more);
        command.arg("--").arg(&rig.program).args(&rig.args);
        testkit::rig::exit_and_output(&command.output().unwrap())
    };
    let told = "the node's policy: deniedFields has staticPodPath, and it changes staticPodPath: unset → \"/tmp/pods\"";
    let (code, out, err) = ask("check", "staticPodPath: /tmp/pods", &[]);
    assert_eq!((code, out), (1, format!("rejected: {told}\n")), "{err}");
    assert!(err.contains(&format!("note: the node's policy {path} was asked, but for its allowedNamespaces")), "{err}");
    let (code, out, err) = ask("render", "staticPodPath: /tmp/pods", &[]);
    assert!(code == 1 && out.is_empty() && err.contains(told), "{out}{err}");
    let (code, out, _) = ask("check", "maxpods: 5", &[]);
    assert!(code == 1 && out.contains("refused by the node's policy"), "{out}");
    let (code, out, err) = ask("check", "maxPods: 5", &[]);
    assert!(code == 0 && out == "valid\n" && err.contains("was asked"), "{out}{err}");
    let (code, _, err) = ask("render", "maxPods: 5", &["--effective"]);
    assert!(code == 0 && err.contains("was asked"), "{err}");

    std::fs::write(rig.at("etc/policy.yaml"), format!("{HEAD}deniedField: []\n")).unwrap();
    let (code, out, _) = ask("check", "maxPods: 5", &[]);
    assert!(code == 2 && out.starts_with("could not tell: the node's policy admits nothing new while"), "{out}");
    let (code, out, err) = ask("render", "maxPods: 5", &[]);
    assert!(code == 1 && out.is_empty() && err.contains("admits nothing new"), "{out}{err}");

    std::fs::remove_file(rig.at("etc/policy.yaml")).unwrap();
    let (code, out, err) = ask("check", "staticPodPath: /tmp/pods", &[]);
    assert!(code == 0 && out == "valid\n" && !err.contains("policy"), "{out}{err}");
    // The running supervisor's own, where its command line is taken too.
    write(&rig, "pinnedFields: {maxPods: 110}\n");
    let mut rig = rig;
    rig.up();
    let dir = format!("--dynamic-config-dir={}", rig.at("dynamic").display());
    let output = supervisor().arg("render").arg(&payload).arg(&dir).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    std::fs::write(&payload, configuration("maxPods: 5")).unwrap();
    let (code, out, err) =
        testkit::rig::exit_and_output(&supervisor().arg("render").arg(&payload).arg(&dir).output().unwrap());
    assert!(code == 1 && out.is_empty() && err.contains("pinnedFields: maxPods must be 110"), "{out}{err}");
}

#[test]
fn a_signature_is_checked_by_hand() {
    const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/config/src/policy/fixtures");
    let key = std::fs::read_to_string(format!("{FIXTURES}/ops.pub")).unwrap().lines().nth(1).unwrap().to_owned();
    let rig = rig("1s", &format!("signatures: {{keys: [{{name: ops, key: {key}}}]}}\n"));
    std::fs::write(rig.at("flags"), "--v=4\n").unwrap();
    let path = rig.at("etc/policy.yaml").display().to_string();
    let check = |signature: Option<&str>| {
        let mut command = supervisor();
        command.args(["check", "--merge=overlay", "--policy", &path]).arg("--flags").arg(rig.at("flags"));
        command
            .args(signature.iter().flat_map(|name| ["--signature".to_owned(), format!("{FIXTURES}/{name}.minisig")]));
        command.arg(format!("{FIXTURES}/signed.yaml")).arg("--").arg(&rig.program).args(&rig.args);
        testkit::rig::exit_and_output(&command.output().unwrap())
    };
    let (code, out, err) = check(None);
    assert!(code == 0 && err.contains("note: the signature was not checked"), "{out}{err}");
    let (code, out, err) = check(Some("good"));
    assert!(code == 0 && err.contains("note: the signature was checked"), "{out}{err}");
    let (code, out, _) = check(Some("other-key"));
    assert!(
        code == 1 && out.starts_with("rejected: the node's policy: signature: kubelet.minisig: signed with key"),
        "{out}"
    );
    write(&rig, &format!("signatures: {{keys: [{{name: ops, key: {key}, notAfter: \"2020-01-01T00:00:00Z\"}}]}}\n"));
    let (code, out, _) = check(Some("good"));
    assert!(code == 1 && out.contains("key ops ended at 2020-01-01T00:00:00Z"), "{out}");
    let (code, out, _) =
        testkit::rig::exit_and_output(&supervisor().args(["policy", "check", &path]).output().unwrap());
    assert!(code == 0 && out.contains("warning: key ops ended at 2020-01-01T00:00:00Z"), "{out}");
}

/// The real tool, where it is.
fn minisign(dir: &Path, args: &[&str]) -> bool {
    match Command::new("minisign").current_dir(dir).args(args).output() {
        Ok(output) => {
            assert!(output.status.success(), "minisign {args:?}: {}", String::from_utf8_lossy(&output.stderr));
            true
        }
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "signatures cannot be tested, and this is CI: minisign: {error}");
            eprintln!("SKIPPED: minisign: {error} (apt-get install minisign)");
            false
        }
    }
}

#[test]
fn only_what_the_real_minisign_signed_is_taken_up() {
    let keys = tempfile::tempdir().unwrap();
    let dir = keys.path();
    if !minisign(dir, &["-G", "-W", "-p", "pub", "-s", "key"]) {
        return;
    }
    let key = std::fs::read_to_string(dir.join("pub")).unwrap().lines().nth(1).unwrap().to_owned();
    let mut rig = rig("1s", &format!("signatures: {{pools: [pool-a], keys: [{{name: ops, key: {key}}}]}}\n")).running();
    let sign = |text: &str, sequence: u32, more: &str| {
        std::fs::write(dir.join("payload"), text).unwrap();
        let comment = format!(
            "kind=kubelet-config pool=pool-a sequence={sequence} expires=2099-01-01T00:00:00Z merge=replace {more}"
        );
        minisign(dir, &["-S", "-s", "key", "-m", "payload", "-x", "signature", "-t", &comment]);
        std::fs::read_to_string(dir.join("signature")).unwrap()
    };
    let put = |rig: &Rig, data: &[(&str, &str)]| rig.server.put_annotated_config_map(NAMESPACE, "a", data, None);
    let (good, bad) = (configuration("maxPods: 42"), configuration("maxPods: 43"));
    let plain = "key=kubelet acknowledge=none courtesy=none confirm=none files=none";

    let unsigned = put(&rig, &[("kubelet", &good)]);
    rig.assign("a");
    rig.wait_error(&unsigned, VALIDATE);
    assert!(rig.wait_event("KubeletConfigRejected", &unsigned).contains("there is no key kubelet.minisig"));

    let signature = sign(&good, 7, plain);
    let signed = put(&rig, &[("kubelet", &good), ("kubelet.minisig", &signature)]);
    rig.wait_config("proven", |config| is(config, "lastKnownGood", &signed));
    let by = rig.status()["signedBy"].clone();
    assert_eq!(
        (by["key"].as_str(), by["pool"].as_str(), by["sequence"].as_u64()),
        (Some("ops"), Some("pool-a"), Some(7))
    );
    let starts = rig.starts();

    let flags = "--v=4\n";
    for (why, data) in [
        ("sign the very bytes", vec![("kubelet", bad.as_str()), ("kubelet.minisig", signature.as_str())]),
        (
            "key kubelet.flags was not signed",
            vec![("kubelet", good.as_str()), ("kubelet.minisig", signature.as_str()), ("kubelet.flags", flags)],
        ),
        (
            "sequence 6 of pool pool-a is lower than 7",
            vec![("kubelet", bad.as_str()), ("kubelet.minisig", &sign(&bad, 6, plain))],
        ),
    ] {
        let version = put(&rig, &data);
        rig.wait_error(&version, VALIDATE);
        let told = rig.wait_event("KubeletConfigRejected", &version);
        assert!(told.contains(why), "{why}: {told}");
    }
    assert_eq!(rig.starts(), starts);

    // Over a restart as well: what was proven is verified, and the sequence is on the disk.
    rig.restart();
    let older = put(&rig, &[("kubelet", &bad), ("kubelet.minisig", &sign(&bad, 5, plain))]);
    rig.wait_error(&older, VALIDATE);
    assert_eq!(rig.status()["active"]["configMap"]["uid"], signed.0.as_str());
    let newer = put(&rig, &[("kubelet", &bad), ("kubelet.minisig", &sign(&bad, 8, plain))]);
    rig.wait_active(&newer);
}
