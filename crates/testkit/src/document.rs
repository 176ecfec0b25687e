//! Tables that a program writes into a document, between `<!-- begin NAME -->` and `<!-- end NAME -->`.

use std::path::Path;
use std::{fs, io};

/// Renews what is between the markers of this name.
pub fn write_between(document: &Path, name: &str, text: &str) -> io::Result<()> {
    let missing = |marker: &str| io::Error::other(format!("{}: there is no {marker:?}", document.display()));
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->\n"));
    let whole = fs::read_to_string(document)?;
    let (before, rest) = whole.split_once(&begin).ok_or_else(|| missing(&begin))?;
    let (_, after) = rest.split_once(&end).ok_or_else(|| missing(&end))?;
    fs::write(document, format!("{before}{begin}{text}{end}{after}"))
}
