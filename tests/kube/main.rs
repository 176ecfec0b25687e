//! The adapter to the API server, against the tests' own API server.
#![cfg(test)]

mod credentials;
mod port;

use std::time::Duration;

use kubelet_supervisor::machine::Input;
use tokio::sync::mpsc::UnboundedReceiver;

const NODE: &str = "n1";
const SOON: Duration = Duration::from_secs(30);

/// The next input; every session begins by saying who we are.
async fn next(inputs: &mut UnboundedReceiver<Input>) -> Input {
    loop {
        match tokio::time::timeout(SOON, inputs.recv()).await.expect("an input in time").expect("an input") {
            Input::NodeName(name) => assert_eq!(name, NODE),
            Input::AssignedByLabels(_) | Input::PreflightRequested { .. } => {}
            input => return input,
        }
    }
}
