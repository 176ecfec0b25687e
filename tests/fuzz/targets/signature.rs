//! Signature files and trusted comments: nothing but what was signed is verified, and the order of a comment's entries is
//! nobody's concern.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use kubelet_config::policy::{Comment, NodePolicy, Signable, Signatures};

const KEY: &str = include_str!("../../../crates/config/src/policy/fixtures/ops.pub");
const GOOD: &str = include_str!("../../../crates/config/src/policy/fixtures/good.minisig");
const SIGNED: &str = include_str!("../../../crates/config/src/policy/fixtures/signed.yaml");

/// A signature file or a trusted comment, and what is to be signed (nothing: what was signed).
pub(crate) fn check(data: &[u8]) {
    let Some([text, payload]) = super::texts(data) else { return };
    match Comment::parse(text) {
        Ok(comment) => {
            let reversed = text.rsplit(' ').collect::<Vec<_>>().join(" ");
            assert_eq!(Comment::parse(&reversed).as_ref(), Ok(&comment), "the entries the other way round");
        }
        Err(why) => super::assert_message(&why, 4096),
    }
    if let Err(why) = Comment::of_file(text) {
        super::assert_message(&why, 4096);
    }
    let payload = if payload.is_empty() { SIGNED } else { payload };
    let data = [("kubelet", payload), ("kubelet.minisig", text)].map(|(key, text)| (key.to_owned(), text.to_owned()));
    let data = BTreeMap::from(data);
    for merge in ["replace", "overlay"] {
        let what =
            Signable { key: "kubelet", data: &data, merge, acknowledge: None, courtesy: None, confirm_within: None };
        match signatures().verify(&what) {
            Ok(signed) => {
                assert!(signed.is_some(), "it is required");
                assert_eq!(payload, SIGNED);
                let lines = |text: &'static str| text.lines().skip(1).collect::<Vec<_>>();
                let found: Vec<&str> = text.lines().skip(1).take(3).collect();
                // Blanks around base64 say nothing.
                let same = found.iter().zip(lines(GOOD)).all(|(found, good)| found.trim() == good.trim());
                assert!(same && found.len() == 3, "a forged signature: {text:?}");
            }
            Err(why) => super::assert_message(&why, 4096),
        }
    }
}

fn signatures() -> &'static Signatures {
    static SIGNATURES: OnceLock<Signatures> = OnceLock::new();
    SIGNATURES.get_or_init(|| {
        let key = KEY.lines().nth(1).unwrap_or_default();
        let policy = format!(
            "apiVersion: kubelet-supervisor.io/v1alpha1\nkind: NodePolicy\nsignatures: {{keys: [{{name: ops, key: {key}}}]}}"
        );
        NodePolicy::parse(&policy).ok().and_then(|policy| policy.signatures).unwrap_or_else(|| panic!("{policy}"))
    })
}
