//! Configurations as people write them, and as they get them wrong.

use std::sync::LazyLock;

use serde::Deserialize;

/// What configurations are put together from.
#[derive(Deserialize)]
pub struct Texts {
    /// What was wrong once, or is rare among random ones.
    pub regressions: Vec<String>,
    /// Whole documents, with their kind or without.
    pub documents: Vec<String>,
    fields: Vec<Fields>,
    maps: Vec<MapField>,
    raw: Vec<String>,
    /// Command lines' flags, and what they are given.
    flags: Vec<Fields>,
    /// What a policy pins.
    pins: Vec<Fields>,
}

/// Fields that have the same values; the first one is good.
#[derive(Deserialize)]
struct Fields {
    names: Vec<String>,
    values: Vec<String>,
}

#[derive(Deserialize)]
struct MapField {
    name: String,
    entries: Vec<String>,
    values: Vec<String>,
}

pub static TEXTS: LazyLock<Texts> = LazyLock::new(|| serde_yaml::from_str(include_str!("texts.yaml")).unwrap());

const HEAD: [&str; 2] = ["kind: KubeletConfiguration\n", "apiVersion: kubelet.config.k8s.io/v1beta1\n"];

/// A text with its kind and version.
pub fn with_head(text: &str) -> String {
    match text.strip_prefix("---\n") {
        Some(text) => format!("---\n{}{text}", HEAD.concat()),
        None => format!("{}{text}", HEAD.concat()),
    }
}

/// The same as a file of the node, some of them followed by what no kubelet reads.
pub fn own_file(text: &str, number: usize) -> String {
    match number % 12 {
        0 => format!("{text}\n---\nmaxPods: 1\n"),
        1 => format!("{text}\n---\n\t{{[\n"),
        2 => format!("{text}\n...\n@@\n"),
        3 => format!("{text}\n---\n"),
        4 => text.replacen("kind:", "Kind:", 1),
        5 => text.replacen("apiVersion:", "APIVersion:", 1),
        6 => format!("{text}\n--- |\n x\n"),
        _ => text.to_owned(),
    }
}

/// A source of texts; a seed and a number make one.
pub struct Generator {
    state: u64,
}

impl Generator {
    pub fn new(seed: u64, number: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(number) }
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }

    fn one_in(&mut self, chance: usize) -> bool {
        self.below(chance) == 0
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// A whole document.
    pub fn text(&mut self) -> String {
        let mut blocks: Vec<String> = HEAD.map(str::to_owned).to_vec();
        if self.one_in(40) {
            blocks.remove(self.below(2));
        }
        for _ in 0..=self.below(4) {
            let block = self.block();
            if self.one_in(15) {
                blocks.push(block.clone()); // twice
            }
            blocks.push(block);
        }
        if self.one_in(4) {
            let at = self.below(blocks.len());
            blocks.rotate_left(at);
        }
        let text = blocks.concat();
        match self.below(40) {
            0 => format!("\u{feff}{text}"),
            1 => text.replace('\n', "\r\n"),
            2 => format!("---\n{text}"),
            3 => format!("%YAML 1.1\n---\n{text}"),
            4 => format!("{text}...\n"),
            5 => format!("{text}---\nmaxPods: 1\n"),
            6 => format!("---\n---\n{text}"),
            7 => format!("{text}\u{0}"),
            8 => format!("# a comment\n\n{text}\n\n"),
            9 => text.replace(": ", ":  "),
            10 => text.replace("  ", "\t"),
            11 => text.trim_end().to_owned(),
            12 => format!(" {}", text.replace('\n', "\n ").trim_end()),
            13 => format!("{text}]\n"),
            14 => serde_yaml::from_str::<serde_json::Value>(&text).map_or(text, |value| value.to_string()),
            _ => text,
        }
    }

    /// Flags of a unit, and a field with a value that a policy pins.
    pub fn flags(&mut self) -> (Vec<String>, (&'static str, &'static str)) {
        let texts: &'static Texts = &TEXTS;
        let count = 1 + self.below(3);
        let flags = (0..count).map(|_| {
            let Fields { names, values } = self.pick(&texts.flags);
            let (name, value) = (self.pick(names), if self.one_in(2) { self.pick(values) } else { &values[0] });
            format!("--{name}={value}")
        });
        let flags = flags.collect();
        let Fields { names, values } = self.pick(&texts.pins);
        let (field, value): (&String, &String) = (self.pick(names), self.pick(values));
        (flags, (field.as_str(), value.as_str()))
    }

    /// Some lines of it.
    fn block(&mut self) -> String {
        match self.below(10) {
            0..=5 => {
                let groups = TEXTS.fields.iter();
                let fields: Vec<_> =
                    groups.flat_map(|group| group.names.iter().map(|name| (name, &group.values))).collect();
                let (field, values) = *self.pick(&fields);
                // Most of the time no more than one thing of a text should be wrong.
                let value = if self.one_in(3) { self.pick(values) } else { &values[0] };
                let field = self.name(field);
                format!("{field}: {value}\n")
            }
            6 | 7 => {
                let MapField { name: field, entries: names, values } = self.pick(&TEXTS.maps);
                let entries: Vec<(String, &str)> = (0..self.below(4))
                    .map(|_| {
                        let (name, value) = (self.pick(names), self.pick(values));
                        (self.name(name), value.as_str())
                    })
                    .collect();
                let field = self.name(field);
                if self.one_in(2) {
                    let entries: Vec<String> = entries.iter().map(|(name, value)| format!("{name}: {value}")).collect();
                    return format!("{field}: {{{}}}\n", entries.join(", "));
                }
                let entries: Vec<String> = entries.iter().map(|(name, value)| format!("  {name}: {value}\n")).collect();
                format!("{field}:\n{}", entries.concat())
            }
            _ => self.pick(&TEXTS.raw).clone(),
        }
    }

    /// A name, rarely as people misspell it.
    fn name(&mut self, name: &str) -> String {
        match self.below(30) {
            0 => name.to_lowercase(),
            1 => name[..1].to_uppercase() + &name[1..],
            2 => format!("{name}s"),
            3 => format!("\"{name}\""),
            4 => format!("{name} "),
            _ => name.to_owned(),
        }
    }
}
