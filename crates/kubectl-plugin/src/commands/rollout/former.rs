//! What is left of rollouts of earlier versions.

use serde_json::Value;

use crate::Failure;
use crate::api::client::{ApiError, Client};
use crate::api::list::{Pager, Selector};
use crate::fleet::former_rollouts::{FormerRollout, LABEL};

/// Those that are not over, in the namespace of `-n`. Who may not list ConfigMaps has none to look after.
///
/// # Errors
/// The API server's.
pub(crate) async fn open(client: &Client) -> Result<Vec<FormerRollout>, ApiError> {
    let path = format!("/api/v1/namespaces/{}/configmaps", client.namespace);
    let selector = Selector::labels(LABEL);
    let read = |map: &Value| Ok::<_, ApiError>(FormerRollout::from_record(map));
    match Pager::new(client, &path, "list ConfigMaps", &selector).all(read).await {
        Err(error) if error.code() == 403 => Ok(Vec::new()),
        result => result.map(|(open, _)| open),
    }
}

/// Refuses to carry anything out as long as there is one: its nodes are not known, and may be those of a pool.
pub(crate) async fn refuse(client: &Client) -> Result<(), Failure> {
    match open(client).await?.first() {
        None => Ok(()),
        Some(open) => {
            let namespace = &client.namespace;
            Err(Failure::new(format!("{}\n{}", open.problem(namespace), open.mend(namespace).join("\n"))))
        }
    }
}
