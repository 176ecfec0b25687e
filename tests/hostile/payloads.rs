//! Payloads that mean something else than they seem to.

use testkit::rig::{LOAD, NAMESPACE, Rig, Version, configuration, is};

/// A payload that names a file by this path, and its key `ca.crt`.
fn put(rig: &Rig, path: &str, content: &str) -> Version {
    let text = configuration(&format!("resolvConf: {path:?}"));
    rig.server.put_annotated_config_map(NAMESPACE, "a", &[("kubelet", &text), ("ca.crt", content)], None)
}

/// What the kubelet finds at the path that it was given.
fn named(rig: &Rig) -> String {
    let config = rig.last_config();
    let path = config["resolvConf"].as_str().unwrap();
    std::fs::read_to_string(path).unwrap()
}

/// However the path is spelt: another file is another configuration, with a restart and a trial of its own.
#[test]
fn another_file_is_never_adopted() {
    let mut rig = Rig::new().running();
    for (number, path) in ["ca.crt", "./ca.crt", ".//x/../ca.crt", "ca.crt/"].into_iter().enumerate() {
        for owner in ["ours", "theirs"] {
            let starts = rig.starts();
            let version = put(&rig, path, &format!("{owner} {number}"));
            rig.assign("a");
            rig.wait_active(&version);
            rig.wait_starts(starts + 1);
            rig.wait_last_ready();
            assert_eq!(rig.starts(), starts + 1, "{path}: {owner} was adopted");
            assert_eq!(named(&rig), format!("{owner} {number}"), "{path}");
        }
    }
    rig.stop();
}

/// What the digest cannot cover is refused, and what runs goes on.
#[test]
fn a_path_that_leads_out_or_nowhere_is_refused() {
    let mut rig = Rig::new().running();
    let good = put(&rig, "ca.crt", "ours");
    rig.assign("a");
    rig.wait_config("it is proven", |config| is(config, "lastKnownGood", &good));
    let starts = rig.starts();
    for path in ["../ca.crt", "x/../../ca.crt", "../../../../../../etc/passwd", "Ca.crt", ".", "no-such-key"] {
        let version = put(&rig, path, "theirs");
        rig.wait_error(&version, LOAD);
        let detail = rig.status()["errorDetail"].as_str().unwrap().to_owned();
        let told = format!("resolvConf: {path:?} is relative and ");
        assert!(detail.contains(&told), "{detail}");
        assert_eq!((rig.starts(), named(&rig).as_str()), (starts, "ours"), "{path}");
    }
    rig.stop();
}
