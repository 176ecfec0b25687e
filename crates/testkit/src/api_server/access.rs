//! Who may do what: access reviews, and NodeRestriction as far as labels go.

use hyper::HeaderMap;
use serde_json::{Value, json};

use super::state::{State, status};

/// The answer to a review, if the path is one's.
pub fn review(state: &State, path: &str, body: &Value) -> Option<(u16, Value)> {
    match path {
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        | "/apis/authorization.k8s.io/v1/subjectaccessreviews" => {
            let allowed = state.judge.as_ref().is_none_or(|judge| judge(&body["spec"]));
            let mut answer = body.clone();
            answer["status"] = json!({"allowed": allowed});
            Some((201, answer))
        }
        "/apis/authentication.k8s.io/v1/selfsubjectreviews" => {
            let mut answer = body.clone();
            answer["status"] = json!({"userInfo": {"username": "jane"}});
            Some((201, answer))
        }
        _ => None,
    }
}

/// What NodeRestriction says to a node that writes labels it must keep off, if it is on.
pub fn restricted(state: &State, headers: &HeaderMap, path: &str, body: &Value) -> Option<(u16, Value)> {
    let user = headers.get("impersonate-user")?.to_str().ok()?;
    user.strip_prefix("system:node:")?;
    let labels = body["metadata"]["labels"].as_object()?;
    let label = labels.keys().find(|label| label.contains("node-restriction.kubernetes.io/"))?;
    let node = path.rsplit('/').next().unwrap_or_default();
    let message = format!("nodes \"{node}\" is forbidden: is not allowed to modify labels: {label}");
    (!state.unguarded).then(|| (403, status(403, &message)))
}
