//! The node around the kubelet: its container runtime, its disks, its way down.

use tokio::sync::mpsc::UnboundedSender;

use crate::core::evidence::Environment;
use crate::core::machine::Input;
use crate::ports;

/// The adapter.
#[derive(Debug)]
pub struct NodeHost {
    /// The daemon's queue.
    pub inputs: UnboundedSender<Input>,
}

impl ports::Host for NodeHost {
    fn look(&mut self, _runtime: Option<&str>) {
        let _ = self.inputs.send(Input::EnvironmentSeen(Environment::default()));
    }
}
