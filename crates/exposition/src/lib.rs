//! What the daemon and the plugin show, and to whom. To scrapers and probes: [`text`] is metrics in both formats, [`http`]
//! the server of `/metrics`, `/healthz` and `/readyz`. To people: what fits their terminal, [`terminal_columns`].

pub mod http;
pub mod slots;
pub mod text;

use std::io::IsTerminal;
use std::os::fd::AsFd;

/// Columns of the terminal; none if it is not one. COLUMNS is what the user wants, and else the terminal knows. A serial
/// line does not: 80.
#[must_use]
pub fn terminal_columns(stream: &(impl IsTerminal + AsFd)) -> Option<usize> {
    if !stream.is_terminal() {
        return None;
    }
    let desired = std::env::var("COLUMNS").ok().and_then(|it| it.parse().ok()).filter(|columns| *columns > 0);
    let actual = || terminal_size::terminal_size_of(stream).map(|(width, _)| usize::from(width.0));
    Some(desired.or_else(actual).unwrap_or(80))
}
