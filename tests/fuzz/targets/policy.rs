//! A node's policy: spelt otherwise it is the same, and a configuration that changes nothing is admitted.

use kubelet_config::flags::FlagOverrides;
use kubelet_config::policy::{Candidate, NodePolicy};
use kubelet_config::yaml;
use serde_json::json;

pub(crate) fn check(data: &[u8]) {
    let Some([text, payload]) = super::texts(data) else { return };
    let policy = match NodePolicy::parse(text) {
        Ok(policy) => policy,
        Err(why) => return super::assert_message(&why, 10 * data.len() + 4096),
    };
    let value = yaml::parse(text).map(|document| document.value).unwrap_or_default();
    assert_eq!(NodePolicy::parse(&value.to_string()).as_ref(), Ok(&policy), "the policy as JSON");
    for line in policy.summary() {
        super::assert_message(&line, text.len() + 1024);
    }
    let local = yaml::parse(payload).map_or_else(|_| json!({}), |document| document.value);
    let overrides = FlagOverrides::default();
    let judge = |effective, namespace| {
        let candidate = Candidate { namespace, effective, local: &local, overrides: &overrides, minor: Some(30) };
        [policy.refusals(&candidate), policy.denials(&candidate)].concat()
    };
    let of_none = judge(&local, None).len();
    assert!(of_none <= policy.pinned_fields.len(), "what changes nothing is refused: {:?}", judge(&local, None));
    let elsewhere = judge(&local, Some("")).len();
    assert_eq!(elsewhere > of_none, policy.allowed_namespaces.is_some(), "a namespace that is nowhere allowed");
    // Each pinned field is enforced: a configuration without any is refused unless that is what the pin says.
    for refusal in judge(&json!({}), None) {
        super::assert_message(&refusal, text.len() + payload.len() + 1024);
    }
}
