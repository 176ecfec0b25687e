//! What one supervisor hands over to the next: what is understood is handed on as it was, and the machine goes on from it.

use kubelet_supervisor::adapters::reexec;
use kubelet_supervisor::machine::Handover;

/// The whole document, or the machine's part of it.
pub(crate) fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let found = reexec::read(text).map(|(_, handover)| handover).or_else(|_| Handover::decode(text));
    let Ok(handover) = found else { return };
    let state = handover.state().unwrap_or_else(|why| panic!("it was read before: {why}"));
    if let Some(first) = state.hand_over() {
        let again = Handover::decode(first.encode()).and_then(|handover| handover.state());
        let again = again.unwrap_or_else(|why| panic!("{why}: {}", first.encode()));
        assert_eq!(again.hand_over().as_ref(), Some(&first), "handed on once more");
    }
    crate::machine::resume(handover);
}
