//! A Go value as `%#v` prints it, as JSON.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// The configuration in the kubelet's log (`--v=5`, cmd/kubelet/app/server.go, v1.20.2).
pub fn read(log: &str) -> Option<Value> {
    let (_, rest) = log.split_once("] KubeletConfiguration: ")?;
    let mut reader = Reader { rest };
    Some(reader.value())
}

/// By dotted path, in lower case; durations are their nanoseconds, lists are whole.
pub fn leaves(dump: &Value) -> BTreeMap<String, Value> {
    fn walk(path: &str, value: &Value, found: &mut BTreeMap<String, Value>) {
        match value {
            Value::Object(fields) if fields.len() == 1 && fields.contains_key("Duration") => {
                found.insert(path.to_owned(), fields["Duration"].clone());
            }
            Value::Object(fields) => {
                for (name, value) in fields {
                    let name = if path.is_empty() && name == "ResolverConfig" { "resolvConf" } else { name };
                    let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
                    walk(&path.to_ascii_lowercase(), value, found);
                }
            }
            value => drop(found.insert(path.to_owned(), value.clone())),
        }
    }
    let mut found = BTreeMap::new();
    walk("", dump, &mut found);
    found
}

/// Whether they are two.
pub fn differs(one: &Value, other: &Value) -> bool {
    leaves(one) != leaves(other)
}

/// The fields that differ.
pub fn difference(one: &Value, other: &Value) -> String {
    let (one, other) = (leaves(one), leaves(other));
    let paths = one.keys().chain(other.keys()).filter(|path| one.get(*path) != other.get(*path));
    let paths: std::collections::BTreeSet<&String> = paths.collect();
    let shown = |path: &String| format!("{path}: {:?}, {:?}", one.get(path), other.get(path));
    paths.into_iter().map(shown).collect::<Vec<_>>().join("; ")
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn take(&mut self, text: &str) -> bool {
        self.rest.strip_prefix(text).map(|rest| self.rest = rest).is_some()
    }

    /// A literal, or a type and what is in it.
    fn value(&mut self) -> Value {
        if self.rest.starts_with('"') {
            return self.text();
        }
        let end = self.rest.find([',', '}', '{', '(']).unwrap_or(self.rest.len());
        // `interface {}` is a type as well, and `[]string`, `map[string]string`.
        let word = self.rest[..end].to_owned();
        self.rest = &self.rest[end..];
        if self.take("(nil)") {
            return Value::Null;
        }
        if self.rest.starts_with('(') {
            // A pointer: (*int32)(0xc0…), whose value is not shown.
            for _ in 0..2 {
                let end = self.rest.find(')').map_or(self.rest.len(), |end| end + 1);
                self.rest = &self.rest[end..];
            }
            return "(pointer)".into();
        }
        if !self.take("{") {
            return serde_json::from_str(&word).unwrap_or_else(|_| word.into());
        }
        let is_list = word.starts_with("[]");
        let (mut items, mut fields) = (Vec::new(), Map::new());
        while !self.take("}") {
            assert!(!self.rest.is_empty(), "the dump ends within {word}");
            if is_list {
                items.push(self.value());
            } else {
                let name = if self.rest.starts_with('"') {
                    self.text().as_str().unwrap_or_default().to_owned()
                } else {
                    let end = self.rest.find(':').unwrap();
                    let name = self.rest[..end].to_owned();
                    self.rest = &self.rest[end..];
                    name
                };
                assert!(self.take(":"), "{name}");
                fields.insert(name, self.value());
            }
            self.take(", ");
        }
        if is_list { items.into() } else { fields.into() }
    }

    /// A string in Go's quotes (strconv.Quote).
    fn text(&mut self) -> Value {
        let mut bytes = Vec::new();
        let mut chars = self.rest[1..].char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.rest = &self.rest[at + 2..];
                    return String::from_utf8_lossy(&bytes).into_owned().into();
                }
                '\\' => {
                    let (_, escape) = chars.next().unwrap();
                    let digits = match escape {
                        'x' => 2,
                        'u' => 4,
                        'U' => 8,
                        _ => 0,
                    };
                    let code: String = chars.by_ref().take(digits).map(|(_, c)| c).collect();
                    match (escape, u32::from_str_radix(&code, 16)) {
                        ('x', Ok(byte)) => bytes.push(u8::try_from(byte).unwrap()),
                        (_, Ok(code)) => bytes.extend(char::from_u32(code).unwrap().to_string().as_bytes()),
                        (plain, _) => bytes.push(match plain {
                            'a' => 7,
                            'b' => 8,
                            'f' => 12,
                            'n' => b'\n',
                            'r' => b'\r',
                            't' => b'\t',
                            'v' => 11,
                            other => u8::try_from(other).unwrap(),
                        }),
                    }
                }
                c => bytes.extend(c.to_string().as_bytes()),
            }
        }
        panic!("a text without an end: {}", self.rest)
    }
}
