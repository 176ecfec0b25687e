//! Messages about fields: bounded, so that they fit an event.

use crate::bounds::shortened;

/// A message must fit an event (1 KiB) together with what stands before it.
const MESSAGE_MAX: usize = 880;

/// Characters of a value, and of a field's name, that are shown.
const SHOWN: usize = 80;

pub(super) fn cut(text: &str) -> String {
    shortened(text, SHOWN + 1, 0)
}

pub(super) fn top(field: &str) -> &str {
    field.split('.').next().unwrap_or_default()
}

/// The items that fit, then how many do not, then the end.
pub(crate) fn bounded(items: impl ExactSizeIterator<Item = String>, end: &str) -> String {
    let count = items.len();
    let room = MESSAGE_MAX.saturating_sub(end.len() + " and 9999 more".len());
    let mut text = String::new();
    for (index, item) in items.enumerate() {
        let separator = if index == 0 { "" } else { "; " };
        if index > 0 && text.len() + separator.len() + item.len() > room {
            text = format!("{text} and {} more", count - index);
            break;
        }
        text = format!("{text}{separator}{item}");
    }
    if text.len() > room {
        let end = (0..room).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
        text = format!("{}…", text.get(..end).unwrap_or_default());
    }
    text + end
}
