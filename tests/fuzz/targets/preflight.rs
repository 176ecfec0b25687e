//! The kubelet's words: what is told of them is one short line without control characters.

use kubelet_supervisor::adapters::preflight::classify;
use kubelet_supervisor::adapters::process::ProgramOutput;
use kubelet_supervisor::machine::model::{Exit, Verdict};

/// 400 characters, of four bytes at the most each.
const MESSAGE: usize = 1_700;

/// An exit code, and what the kubelet printed.
pub(crate) fn check(data: &[u8]) {
    let Some((code, output)) = data.split_first() else { return };
    let exit = match code {
        b'0' => Some(Exit::Code(0)),
        b'1' => Some(Exit::Code(1)),
        b's' => Some(Exit::Signal(9)),
        b't' => None,
        _ => Some(Exit::Code(255)),
    };
    let run = ProgramOutput { exit, output: output.to_vec() };
    let found = classify(&run);
    let judged = matches!(exit, Some(Exit::Code(1 | 255)));
    match &found {
        Err(message) | Ok(Verdict::Load(message) | Verdict::Validate(message)) => {
            assert!(judged, "{exit:?} refuses nothing: {message}");
            super::assert_message(message, MESSAGE);
        }
        Ok(Verdict::Inconclusive(message) | Verdict::NotItsFault(message)) => {
            super::assert_message(message, MESSAGE);
        }
        Ok(Verdict::Valid(remarks)) => {
            assert!(judged, "{exit:?} accepts nothing");
            assert!(remarks.len() <= 64, "{} remarks", remarks.len());
            for remark in remarks {
                super::assert_message(remark, 200);
            }
        }
    }
    // More lines of the kubelet's ordinary log change nothing.
    let more = [b"I1121 10:00:00.000000       1 server.go:1] one line more\n", output].concat();
    assert_eq!(classify(&ProgramOutput { exit, output: more }), found);
}
