//! Output of a kubelet of which it is not known yet whether it will be the node's: a standby that is ended leaves no line in
//! the journal.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Kept at the most, as of any preflight.
const LIMIT: usize = 1 << 20;

#[derive(Clone, Debug, Default)]
pub(crate) struct HeldOutput(Arc<Mutex<Held>>);

#[derive(Debug, Default)]
struct Held {
    text: Vec<u8>,
    released: bool,
}

impl HeldOutput {
    /// What came so far.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.held().text).into_owned()
    }

    /// From now on it is passed on. What was held goes before what comes next, or with the end: nobody waits for a slow
    /// stderr here.
    pub(crate) fn release(&self) {
        self.held().released = true;
    }

    /// Keeps the bytes, or passes them on after what was kept.
    pub(super) fn take(&mut self, bytes: &[u8], mut pass_on: impl FnMut(&[u8])) {
        let mut held = self.held();
        if held.released {
            let kept = std::mem::take(&mut held.text);
            drop(held);
            pass_on(&kept);
            pass_on(bytes);
        } else {
            let room = LIMIT.saturating_sub(held.text.len()).min(bytes.len());
            held.text.extend_from_slice(bytes.get(..room).unwrap_or_default());
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_held_comes_first_once_it_is_released_and_once() {
        let (mut output, mut passed) = (HeldOutput::default(), Vec::new());
        output.take(b"one\n", |_| panic!("nothing is passed on yet"));
        assert_eq!(output.text(), "one\n");
        output.release();
        output.take(b"two\n", |bytes| passed.extend_from_slice(bytes));
        output.take(b"three\n", |bytes| passed.extend_from_slice(bytes));
        assert_eq!(passed, b"one\ntwo\nthree\n");
    }

    #[test]
    fn no_more_is_held_than_a_preflights_output() {
        let mut output = HeldOutput::default();
        for _ in 0..3 {
            output.take(&vec![b'x'; LIMIT / 2 + 1], |_| {});
        }
        assert_eq!(output.text().len(), LIMIT);
    }
}
