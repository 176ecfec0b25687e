//! What a kubelet says last is there once its end is told, whoever reads it where.

use testkit::kubelet::Style;
use testkit::rig::{Rig, configuration};

/// v1.20 follows its reason with the stacks of all goroutines; later ones write one line.
#[test]
fn the_last_lines_are_there_with_the_exit() {
    for style in [Style::V1_20, Style::V1_36] {
        let rig = Rig::with(style, "10m").running();
        let version = rig.offer("a", &configuration("standIn: {exitBeforeReady: 3, flood: 100}"));
        let message = rig.wait_event("KubeletConfigRolledBack", &version);
        let said = ["failed to run Kubelet:", "the stand-in was told to exit before READY"];
        assert!(said.iter().all(|words| message.contains(words)), "{message}");
    }
}
