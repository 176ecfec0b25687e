//! Policies read, configurations judged, and signatures that the real minisign made (0.11 of Debian 12, `fixtures/`).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::*;
use crate::digest::sha256;
use crate::flags::FlagOverrides;

const HEAD: &str = "apiVersion: kubelet-supervisor.io/v1alpha1\nkind: NodePolicy\n";

fn policy(fields: &str) -> NodePolicy {
    NodePolicy::parse(&format!("{HEAD}{fields}")).unwrap()
}

fn wrong(fields: &str) -> String {
    NodePolicy::parse(&format!("{HEAD}{fields}")).unwrap_err()
}

fn public_key(file: &str) -> &str {
    file.lines().nth(1).unwrap()
}

const OPS: &str = include_str!("fixtures/ops.pub");
const OTHER: &str = include_str!("fixtures/other.pub");

fn signatures(more: &str) -> Signatures {
    let keys = format!("  keys: [{{name: ops, key: {}}}]", public_key(OPS));
    policy(&format!("signatures:\n{keys}\n{more}")).signatures.unwrap()
}

#[test]
fn a_whole_policy() {
    let key = public_key(OPS);
    let all = policy(&format!(
        "allowedNamespaces: [kubelet-config]\ndeniedFields: [staticPodPath, authentication.anonymous]\n\
         pinnedFields: {{readOnlyPort: 0, evictionHard.memory.available: 100Mi}}\nacknowledgeable: [pods, crash-loop]\n\
         overridableFlags: [v, node-ip]\nunknownFields: refuse\n\
         signatures: {{required: false, pools: [a, b.c], keys: [{{name: ops, key: {key}}}]}}\n"
    ));
    assert_eq!(all.allowed_namespaces, Some(BTreeSet::from(["kubelet-config".to_owned()])));
    assert_eq!(all.pinned_fields.get("evictionHard.memory.available"), Some(&json!("100Mi")));
    assert_eq!(all.acknowledgeable, Some(BTreeSet::from([HazardClass::Pods, HazardClass::CrashLoop])));
    assert_eq!(all.unknown_fields, UnknownFields::Refuse);
    let signatures = all.signatures.as_ref().unwrap();
    assert!(!signatures.required);
    // As the real tool writes it into the file's comment.
    assert_eq!(
        format!("untrusted comment: minisign public key {}", signatures.keys[0].id),
        OPS.lines().next().unwrap()
    );
    assert_eq!(all.summary().len(), 7);
    assert_eq!(policy(""), NodePolicy::default());
}

#[test]
fn what_is_wrong_is_named_with_its_path() {
    let key = public_key(OPS);
    for (fields, path, why) in [
        ("allowedNamespace: [a]", "allowedNamespace", "no such field"),
        ("signatures: {keyz: []}", "signatures.keys", "must be there"),
        (
            &format!("signatures: {{requires: true, keys: [{{name: a, key: {key}}}]}}"),
            "signatures.requires",
            "no such field",
        ),
        (
            &format!("signatures: {{keys: [{{name: a, key: {key}, notBefore: 1}}]}}"),
            "signatures.keys[0].notBefore",
            "no such",
        ),
        (
            &format!("signatures: {{keys: [{{name: a, key: {key}, notAfter: 2027-06-30}}]}}"),
            "signatures.keys[0].notAfter",
            "RFC 3339",
        ),
        (
            &format!("signatures: {{keys: [{{name: a, key: {key}}}, {{name: b, key: {key}}}]}}"),
            "signatures.keys[1]",
            "before",
        ),
        ("signatures: {keys: [{name: a, key: RWQ}]}", "signatures.keys[0].key", "no public key"),
        ("signatures: {keys: []}", "signatures.keys", "nobody could sign"),
        (&format!("signatures: {{pools: [], keys: [{{name: a, key: {key}}}]}}"), "signatures.pools", "leave it out"),
        ("deniedFields: [maxPodz]", "deniedFields[0]", "did you mean maxPods"),
        ("deniedFields: [authentication.anonymus]", "deniedFields[0]", "did you mean"),
        ("deniedFields: [a..b]", "deniedFields[0]", "not the path"),
        ("deniedFields: staticPodPath", "deniedFields", "must be a list"),
        ("deniedFields: [maxPods, maxPods]", "deniedFields[1]", "before"),
        ("pinnedFields: {readonlyPort: 0}", "pinnedFields", "did you mean readOnlyPort"),
        ("pinnedFields: {readOnlyPort: null}", "pinnedFields.readOnlyPort", "no value"),
        ("acknowledgeable: [all]", "acknowledgeable[0]", "no class of hazards"),
        ("overridableFlags: [config]", "overridableFlags[0]", "no policy can allow"),
        ("overridableFlags: [--v]", "overridableFlags[0]", "without --"),
        ("unknownFields: perhaps", "unknownFields", "warn or refuse"),
        ("allowedNamespaces: [A]", "allowedNamespaces[0]", "cannot be a namespace"),
        ("allowedNamespaces: [7]", "allowedNamespaces[0]", "must be a text"),
        ("allowedNamespaces: [a]\nallowedNamespaces: [b]", "", "twice"),
    ] {
        let told = wrong(fields);
        assert!(told.starts_with(path) && told.contains(why), "{fields}: {told}");
    }
    for (text, why) in [
        ("kind: NodePolicy", "apiVersion: it must be there"),
        ("apiVersion: v1\nkind: NodePolicy", "apiVersion: \"v1\" must be kubelet-supervisor.io/v1alpha1"),
        ("apiVersion: kubelet-supervisor.io/v1alpha1\nkind: Pod", "kind: \"Pod\" must be NodePolicy"),
        ("", "empty"),
        ("[]", "not a mapping"),
    ] {
        let told = NodePolicy::parse(text).unwrap_err();
        assert!(told.contains(why), "{text}: {told}");
    }
}

#[expect(clippy::needless_pass_by_value, reason = "json! makes values")]
fn refusals(policy: &NodePolicy, local: Value, effective: Value, flags: &str) -> Vec<String> {
    let overrides = FlagOverrides::parse(flags).unwrap();
    let candidate = Candidate {
        namespace: Some("kubelet-config"),
        effective: &effective,
        local: &local,
        overrides: &overrides,
        minor: None,
    };
    [policy.refusals(&candidate), policy.denials(&candidate)].concat()
}

#[test]
fn a_denied_field_stays_as_the_node_has_it() {
    let denied =
        policy("deniedFields: [staticPodPath, authentication, evictionHard.memory.available, staticPodURLHeader]");
    let local =
        json!({"staticPodPath": "/etc/kubernetes/manifests", "authentication": {"x509": {"clientCAFile": "/ca"}}});
    let of = |effective: Value| refusals(&denied, local.clone(), effective, "");
    assert_eq!(of(local.clone()), [""; 0]);
    let mut spelt = local.clone();
    spelt["authentication"]["anonymous"] = json!({"enabled": false}); // the default
    spelt["authentication"]["webhook"] = json!({"cacheTTL": "120s"}); // 2m0s
    spelt["maxPods"] = json!(7);
    assert_eq!(of(spelt.clone()), [""; 0]);
    assert_eq!(
        of(json!({"authentication": {"x509": {"clientCAFile": "/ca"}}})),
        ["deniedFields has staticPodPath, and it changes staticPodPath: \"/etc/kubernetes/manifests\" → unset"],
        "leaving it out is a change"
    );
    spelt["authentication"]["anonymous"]["enabled"] = json!(true);
    assert_eq!(
        of(spelt),
        ["deniedFields has authentication, and it changes authentication.anonymous.enabled: false → true"]
    );
    let mut other = local.clone();
    other["evictionHard"] = json!({"memory.available": "1Gi"});
    assert!(of(other).iter().any(|told| told.contains("evictionHard.memory.available")));
    let mut secret = local.clone();
    secret["staticPodURLHeader"] = json!({"Authorization": ["hunter2"]});
    assert!(of(secret).iter().all(|told| told.contains("(hidden)") && !told.contains("hunter2")));
    let mut odd = local.clone();
    odd["authentication"] = json!("x");
    assert_eq!(of(odd).len(), 1, "what is no mapping changes all below it");
}

#[test]
fn what_is_not_known_is_not_admitted() {
    let (known, overrides) = (json!({}), FlagOverrides::default());
    let of = |effective: &Value, local: &Value| {
        let candidate = Candidate { namespace: Some("n"), effective, local, overrides: &overrides, minor: None };
        let count =
            |fields: &str| [policy(fields).refusals(&candidate), policy(fields).denials(&candidate)].concat().len();
        (count("deniedFields: [maxPods]"), count("pinnedFields: {maxPods: 110}"))
    };
    assert_eq!(of(&known, &known), (0, 0));
    assert_eq!(of(&known, &Value::Null), (1, 0));
    assert_eq!(of(&Value::Null, &known), (1, 1));
}

#[test]
fn a_pinned_field_has_its_value() {
    let pinned = policy(
        "pinnedFields: {readOnlyPort: 0, authentication.anonymous.enabled: false, evictionHard.memory.available: 1Gi, \
         nodeStatusUpdateFrequency: 60s}",
    );
    let good = json!({"evictionHard": {"memory.available": "1024Mi"}, "nodeStatusUpdateFrequency": "1m"});
    assert_eq!(refusals(&pinned, json!({}), good.clone(), ""), [""; 0], "equal to the kubelet, however spelt");
    for (field, value) in [
        ("readOnlyPort", json!(10255)),
        ("authentication", json!({"anonymous": {"enabled": true}})),
        ("evictionHard", json!({"memory.available": "100Mi"})),
        ("evictionHard", json!("x")),
        ("nodeStatusUpdateFrequency", json!("10s")),
    ] {
        let mut bad = good.clone();
        bad[field] = value;
        let told = refusals(&pinned, json!({}), bad, "");
        assert!(told.len() == 1 && told[0].contains(field), "{field}: {told:?}");
    }
}

#[test]
fn namespaces_and_flags() {
    let bounded = policy("allowedNamespaces: [other]\noverridableFlags: [v]");
    let told = refusals(&bounded, json!({}), json!({}), "--v=4\n--max-pods=5\n!--cgroup-driver");
    assert_eq!(
        told,
        [
            "namespace \"kubelet-config\" is not allowed (allowedNamespaces: other)",
            "--cgroup-driver may not be overridden (overridableFlags)",
            "--max-pods may not be overridden (overridableFlags)",
        ]
    );
    let (overrides, nothing) = (FlagOverrides::default(), json!({}));
    let candidate =
        Candidate { namespace: None, effective: &nothing, local: &nothing, overrides: &overrides, minor: None };
    assert_eq!(bounded.refusals(&candidate), [""; 0], "a file by hand is of no namespace");
    let by = |policy: &NodePolicy, labels: &[&str]| {
        let candidate = Candidate { namespace: Some("kubelet-config"), ..candidate };
        let labels = labels.iter().map(|name| (*name).to_owned()).collect();
        Admission::by(policy, &candidate, &labels, Ok(None)).refused_by_label
    };
    assert_eq!(by(&policy(""), &["kubelet-config"]), None);
    assert!(by(&policy(""), &["kube-system"]).unwrap().contains("kube-system"));
    assert_eq!(by(&policy("allowedNamespaces: [kubelet-config]"), &[]), None, "what is named is for all");
}

#[test]
fn what_may_be_acknowledged() {
    let bounded = policy("acknowledgeable: [pods]");
    for (annotation, counts) in [
        ("all", "pods"),
        ("reboot", ""),
        ("pods, reboot", "pods"),
        ("cgroupDriver", ""),
        ("maxPods", "maxPods"),
        ("x", ""),
    ] {
        assert_eq!(bounded.acknowledged(Some(annotation)).as_deref(), Some(counts), "{annotation}");
        assert_eq!(policy("").acknowledged(Some(annotation)).as_deref(), Some(annotation));
    }
    assert_eq!(bounded.acknowledged(None), None);
}

fn data(signature: &str) -> BTreeMap<String, String> {
    [
        ("kubelet", include_str!("fixtures/signed.yaml")),
        ("kubelet.flags", "--v=4\n"),
        ("kubelet.minisig", signature),
        ("other.minisig", "signatures cover each other's keys"),
    ]
    .map(|(key, text)| (key.to_owned(), text.to_owned()))
    .into()
}

const GOOD: &str = include_str!("fixtures/good.minisig");

fn verified(signatures: &Signatures, data: &BTreeMap<String, String>) -> Result<Option<Signed>, String> {
    signatures.verify(&Signable {
        key: "kubelet",
        data,
        merge: "overlay",
        acknowledge: None,
        courtesy: None,
        confirm_within: None,
    })
}

#[test]
fn a_signature_of_the_real_tool() {
    let signed = verified(&signatures(""), &data(GOOD)).unwrap().unwrap();
    assert_eq!((signed.key.as_str(), signed.pool.as_str(), signed.sequence), ("ops", "pool-a", 7));
    assert!(OPS.contains(&signed.key_id));
    assert_eq!(signed.out_of_date(Some(7), signed.expires - 1), None);
    assert!(signed.out_of_date(None, signed.expires).unwrap().contains("expired at 2030-06-30T00:00:00Z"));
    assert!(signed.out_of_date(Some(8), 0).unwrap().contains("sequence 7 of pool pool-a is lower than 8"));
    let crlf = GOOD.replace('\n', "\r\n");
    assert!(verified(&signatures(""), &data(&crlf)).is_ok(), "as the tool reads it");
}

#[test]
fn a_key_has_an_end() {
    let end = "2029-06-30T00:00:00Z";
    let at = signature::seconds(end).unwrap();
    let key = format!("signatures: {{keys: [{{name: ops, key: {}, notAfter: \"{end}\"}}]}}", public_key(OPS));
    let ending = policy(&key);
    let signed = verified(ending.signatures.as_ref().unwrap(), &data(GOOD)).unwrap().unwrap();
    assert_eq!((signed.key_not_after, signed.out_of_date(None, at - 1)), (Some(at), None));
    let told = signed.out_of_date(None, at).unwrap();
    assert!(told.contains("key ops ended at 2029-06-30T00:00:00Z"), "{told}");
    assert!(ending.summary().iter().any(|line| line.contains(", until 2029-06-30T00:00:00Z)")));
    let ends = |now: u64| ending.ending_keys(now, 60).collect::<Vec<_>>();
    assert_eq!(ends(at - 61), [""; 0]);
    assert_eq!(ends(at - 60), ["key ops ends at 2029-06-30T00:00:00Z"]);
    assert_eq!(ends(at), ["key ops ended at 2029-06-30T00:00:00Z"]);
    assert_eq!(signatures("").keys[0].ending(u64::MAX, 1), None, "one without an end");
    let text = serde_json::to_value(verified(&signatures(""), &data(GOOD)).unwrap()).unwrap();
    assert!(text["keyNotAfter"].is_null() && text["keyId"].is_string(), "what is on disk is as it was: {text}");
}

#[test]
fn what_was_not_signed_is_refused() {
    type Edit = fn(&mut BTreeMap<String, String>);
    let edits: [(&str, Edit); 12] = [
        ("no key kubelet.minisig", |data| drop(data.remove("kubelet.minisig"))),
        ("sign the very bytes", |data| drop(data.insert("kubelet".into(), "maxPods: 61\n".into()))),
        ("sign the very bytes", |data| {
            let text = data["kubelet"].trim_end().to_owned();
            data.insert("kubelet".into(), text);
        }),
        ("these 0 bytes", |data| drop(data.remove("kubelet"))),
        ("kubelet.flags is not what was signed", |data| drop(data.insert("kubelet.flags".into(), "--v=9\n".into()))),
        ("kubelet.flags was signed (files=), and is not there", |data| drop(data.remove("kubelet.flags"))),
        ("ca.crt was not signed", |data| drop(data.insert("ca.crt".into(), "x".into()))),
        ("sign the very bytes", |data| {
            let text = data["kubelet.minisig"].replace("sequence=7", "sequence=8");
            data.insert("kubelet.minisig".into(), text);
        }),
        ("no signature file", |data| drop(data.insert("kubelet.minisig".into(), "x".into()))),
        ("more than the limit", |data| drop(data.insert("kubelet.minisig".into(), "x".repeat(1 << 20)))),
        ("which the policy does not have", |data| {
            drop(data.insert("kubelet.minisig".into(), include_str!("fixtures/other-key.minisig").into()));
        }),
        ("without minisign's option -l", |data| {
            drop(data.insert("kubelet.minisig".into(), include_str!("fixtures/legacy.minisig").into()));
        }),
    ];
    for (why, edit) in edits {
        let mut data = data(GOOD);
        edit(&mut data);
        let told = verified(&signatures(""), &data).unwrap_err();
        assert!(told.contains(why), "{why}: {told}");
    }
    let told = verified(&signatures(""), &data(include_str!("fixtures/no-comment.minisig"))).unwrap_err();
    assert!(told.contains("none of its entries"), "{told}");
    let told = verified(&signatures("  pools: [pool-b]"), &data(GOOD)).unwrap_err();
    assert!(told.contains("for pool pool-a, and this node takes those for pool-b"), "{told}");
    let data = data(GOOD);
    let of = |merge, acknowledge, courtesy, confirm_within| {
        let what = Signable { key: "kubelet", data: &data, merge, acknowledge, courtesy, confirm_within };
        signatures("").verify(&what).unwrap_err()
    };
    assert!(of("replace", None, None, None).contains("signed with merge=overlay"));
    assert!(of("overlay", Some("all"), None, None).contains("acknowledge=\"\", and the annotation is \"all\""));
    assert!(of("overlay", None, Some("10m"), None).contains("courtesy=none, and the annotation is \"10m\""));
    assert!(of("overlay", None, None, Some("1s")).contains("confirm=none, and the annotation is \"1s\""));
}

/// The signed flags lie beside the signed key: under another one they would be nobody's.
#[test]
fn a_signature_is_of_one_key() {
    let mut moved = data(GOOD);
    for (from, to) in [("kubelet", "x"), ("kubelet.minisig", "x.minisig")] {
        let text = moved.remove(from).unwrap();
        moved.insert(to.to_owned(), text);
    }
    let of = |data: &BTreeMap<String, String>| {
        let what =
            Signable { key: "x", data, merge: "overlay", acknowledge: None, courtesy: None, confirm_within: None };
        signatures("").verify(&what).unwrap_err()
    };
    assert!(of(&moved).contains("signed with key=kubelet, and lies beside key x"), "{}", of(&moved));
    moved.remove("kubelet.flags");
    assert!(of(&moved).contains("signed with key=kubelet"));
    let mut more = data(GOOD);
    more.insert("x.flags".to_owned(), "--v=4\n".to_owned());
    let told = verified(&signatures(""), &more).unwrap_err();
    assert!(told.contains("key x.flags has the flags of another configuration"), "{told}");
    let comment = "kind=kubelet-config key=kubelet pool=a sequence=7 expires=2030-01-01T00:00:00Z merge=overlay \
                   acknowledge=none courtesy=none confirm=none files=";
    let flags = sha256(b"--v=4\n");
    let comment = Comment::parse(&format!("{comment}kubelet.flags:{flags},x.flags:{flags}")).unwrap();
    let what = Signable {
        key: "kubelet",
        data: &more,
        merge: "overlay",
        acknowledge: None,
        courtesy: None,
        confirm_within: None,
    };
    assert!(comment.check(&what).unwrap_err().contains("key x.flags"), "signed or not");
}

/// What was verified when a content was made counts while key and pool do, however old it is.
#[test]
fn what_was_verified_once_is_not_timed_anew() {
    let signed = verified(&signatures(""), &data(GOOD)).unwrap().unwrap();
    let of = |policy: &Signatures, signed: Option<&Signed>| policy.kept(signed);
    assert_eq!(of(&signatures(""), Some(&signed)), Ok(Some(signed.clone())));
    assert!(of(&signatures(""), None).unwrap_err().contains("no signature was verified on this content"));
    assert_eq!(of(&signatures("  required: false"), None), Ok(None));
    assert!(of(&signatures("  pools: [pool-b]"), Some(&signed)).unwrap_err().contains("for pool pool-a"));
    let other = policy(&format!("signatures: {{keys: [{{name: ops, key: {}}}]}}", public_key(OTHER)));
    assert!(of(&other.signatures.unwrap(), Some(&signed)).unwrap_err().contains("which the policy does not have"));
    let long_ago = Signed { expires: 1, key_not_after: Some(1), ..signed };
    assert!(of(&signatures(""), Some(&long_ago)).is_ok());
}

#[test]
fn who_need_not_sign_and_who_takes_over() {
    let mut unsigned = data(GOOD);
    unsigned.remove("kubelet.minisig");
    assert_eq!(verified(&signatures("  required: false"), &unsigned), Ok(None));
    let both = format!(
        "signatures: {{keys: [{{name: old, key: {}}}, {{name: new, key: {}}}]}}",
        public_key(OPS),
        public_key(OTHER)
    );
    let both = policy(&both).signatures.unwrap();
    assert_eq!(verified(&both, &data(GOOD)).unwrap().unwrap().key, "old");
    let mut by_new = data(include_str!("fixtures/other-key.minisig"));
    by_new.remove("kubelet.flags");
    assert_eq!(verified(&both, &by_new).unwrap().unwrap().key, "new");
}

#[test]
fn trusted_comments() {
    const COMMENT: &str = "kind=kubelet-config key=kubelet pool=a sequence=7 expires=2030-01-01T00:00:00Z merge=replace \
                           acknowledge=pods,maxPods courtesy=10m confirm=30m files=none";
    assert!(Comment::parse(COMMENT).is_ok());
    for (from, to, why) in [
        ("kind=kubelet-config", "kind=image", "must be kubelet-config"),
        ("pool=a ", "", "pool= is missing"),
        ("key=kubelet ", "", "key= is missing"),
        ("key=kubelet", "key=", "such as kubelet"),
        ("key=kubelet", "key=../x", "such as kubelet"),
        ("courtesy=10m ", "", "courtesy= is missing"),
        ("courtesy=10m", "courtesy=", "none, or a duration"),
        ("confirm=30m ", "", "confirm= is missing"),
        ("confirm=30m", "confirm=", "none, or a duration"),
        ("pool=a", "pool=a pool=a", "twice"),
        ("pool=a", "pool=A", "no name of a pool"),
        ("pool=a", "pool=a  ", "none of its entries"),
        ("pool=a", "pool=a\tx=y", "no name of a pool"),
        ("pool=a", "pool=a x=y", "none of its entries"),
        ("sequence=7", "sequence=07", "a number"),
        ("sequence=7", "sequence=-7", "a number"),
        ("sequence=7", "sequence=99999999999999999999", "a number"),
        ("2030-01-01T00:00:00Z", "2030-01-01", "RFC 3339"),
        ("merge=replace", "merge=x", "unknown merge mode"),
        ("files=none", "files=", "KEY:SHA256"),
        ("files=none", "files=a:12", "KEY:SHA256"),
        ("files=none", "files=../x:d8c8941cdf19ce79c561a86b607fd28ce19f41a2003eb01382821072d8220abd", "KEY:SHA256"),
    ] {
        let told = Comment::parse(&COMMENT.replace(from, to)).unwrap_err();
        assert!(told.contains(why), "{to}: {told}");
    }
    assert!(Comment::of_file(GOOD).is_ok() && Comment::of_file("x").is_err());
}

proptest::proptest! {
    #[test]
    fn nothing_panics(text in "\\PC*", comment in "(kind=|pool=|files=|=|,|:| |[a-z0-9])*") {
        let _ = NodePolicy::parse(&text);
        let _ = Comment::parse(&comment);
        let _ = Comment::of_file(&text);
        let _ = TrustedKey::new(String::new(), &text);
        let _ = verified(&signatures(""), &data(&text));
    }
}
