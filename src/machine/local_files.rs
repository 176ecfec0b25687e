//! The local files (`--config`, `--config-dir`) while a kubelet runs: what they say now is compared with what it was
//! started with. With `--follow-local` they are taken up, like any change; else it is told.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::model::Moment;
use super::question::Asked;
use super::records::Version;

mod step;

/// What is known of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct LocalFiles {
    /// They were written, by whomever: with `--follow-local` they are taken up when they are compared.
    #[serde(skip)]
    touched: bool,
    /// They are compared then.
    #[serde(skip)]
    due: Option<Moment>,
    #[serde(skip)]
    asked: Option<Asked>,
    /// Active at the latest comparison; another version is compared anew.
    #[serde(skip)]
    compared_version: Option<Version>,
    /// It is told once.
    difference: Option<LocalFilesDifference>,
}

/// How what the local files say differs from what runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LocalFilesDifference {
    /// Fields that the kubelet would go by with other values.
    Fields(Vec<String>),
    /// They cannot be used as they are, and why.
    Unusable(String),
}

/// So many fields are named.
const NAMED: usize = 10;

impl fmt::Display for LocalFilesDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unusable(why) => write!(f, "the local files cannot be used: {why}"),
            Self::Fields(fields) => {
                let named = fields.get(..NAMED).unwrap_or(fields);
                write!(f, "the local files differ from what the kubelet runs: {}", named.join(", "))?;
                match fields.len() - named.len() {
                    0 => Ok(()),
                    more => write!(f, " and {more} more"),
                }
            }
        }
    }
}

impl LocalFiles {
    fn compare_by(&mut self, due: Moment) {
        self.due = Some(self.due.map_or(due, |before| before.min(due)));
    }

    pub(super) fn deadlines(&self, due: &mut Vec<Moment>) {
        due.extend(self.due);
        due.extend(self.asked.map(|asked| asked.until));
    }
}
