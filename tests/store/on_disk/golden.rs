//! Reads the files, and compares what they say with what is written today.

use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};

use kubelet_supervisor::machine::history::HistoryEntry;
use kubelet_supervisor::machine::records::{RecordFile, Records};
use serde_json::{Value, json};

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/on-disk").join(name)
}

pub fn text(name: &str) -> String {
    fs::read_to_string(fixture(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

pub fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// All that the file says is in what is written today; that may say more.
pub fn assert_within(file: &Value, written: &Value, at: &str) {
    match (file, written) {
        (Value::Object(file), Value::Object(written)) => {
            for (name, value) in file {
                let now = written.get(name).unwrap_or_else(|| panic!("{at}: nothing is called {name:?} any more"));
                assert_within(value, now, &format!("{at}/{name}"));
            }
        }
        (Value::Array(file), Value::Array(written)) if file.len() == written.len() => {
            let pairs = file.iter().zip(written).enumerate();
            pairs.for_each(|(index, (file, written))| assert_within(file, written, &format!("{at}/{index}")));
        }
        _ => assert_eq!(file, written, "{at}"),
    }
}

/// The same from a later version: one more field in every record. Maps and the tags of variants are no records.
pub fn grown(value: &Value) -> Value {
    const MAPS: [&str; 3] = ["sha256", "earned", "lived"];
    const TAGS: [&str; 4] = ["trial", "awaitingConfirmation", "controlTest", "retryLater"];
    match value {
        Value::Object(fields) => {
            let is_tag = fields.keys().all(|name| TAGS.contains(&name.as_str()) || name == "signal");
            let inner = |(name, value): (&String, &Value)| {
                (name.clone(), if MAPS.contains(&name.as_str()) { value.clone() } else { grown(value) })
            };
            let added = (!is_tag).then(|| ("addedLater".to_owned(), json!({"any": ["thing"]})));
            fields.iter().map(inner).chain(added).collect()
        }
        Value::Array(items) => items.iter().map(grown).collect(),
        other => other.clone(),
    }
}

/// Decodes; unknown fields change nothing, and what is written today says the same under the same names.
pub fn read<T: Debug, E: Debug>(text: &str, decode: fn(&str) -> Result<T, E>, encode: fn(&T) -> String) -> T {
    let decoded = decode(text).expect(text);
    assert_within(&value(text), &value(&encode(&decoded)), "");
    let later = decode(&grown(&value(text)).to_string()).expect(text);
    assert_eq!(format!("{later:#?}"), format!("{decoded:#?}"));
    decoded
}

/// What `state.json` says. Unknown fields change nothing.
pub fn state_file(name: &str) -> RecordFile {
    let text = text(name);
    let decoded = Records::decode(&text);
    assert_eq!(Records::decode(&grown(&value(&text)).to_string()), decoded, "{name}");
    decoded
}

pub fn entries(name: &str) -> Vec<HistoryEntry> {
    let encode = |entry: &HistoryEntry| serde_json::to_string(entry).unwrap();
    text(name).lines().map(|line| read(line, |line| serde_json::from_str(line), encode)).collect()
}

pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() { copy(&entry.path(), &to) } else { assert!(fs::copy(entry.path(), to).is_ok()) }
    }
}
