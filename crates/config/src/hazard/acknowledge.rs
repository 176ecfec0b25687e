//! The annotation with which an operator says: I know, and I have taken care.

use std::collections::BTreeSet;

use super::message::{cut, top};
use super::table::{self, HazardClass};

/// The annotation that accepts hazards.
pub const ANNOTATION: &str = "kubelet-supervisor.io/acknowledge";

/// A list of field names and hazard classes, apart by commas or white space; or `all`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acknowledged<'a> {
    entries: Vec<&'a str>,
    on_node: bool,
}

impl<'a> Acknowledged<'a> {
    /// Reads the annotation.
    #[must_use]
    pub fn parse(text: Option<&'a str>) -> Self {
        let separator = |c: char| c == ',' || c.is_whitespace();
        let entries = text.unwrap_or_default().split(separator).filter(|word| !word.is_empty());
        Self { entries: entries.collect(), on_node: false }
    }

    /// For files of the node: an operator accepts their hazards there, as they have no annotations.
    #[must_use]
    pub fn on_node(self, on_node: bool) -> Self {
        Self { on_node, ..self }
    }

    /// True if a hazard of this class in this field is accepted.
    #[must_use]
    pub fn covers(&self, field: &str, class: HazardClass) -> bool {
        self.entries.iter().any(|word| {
            *word == field
                || *word == top(field)
                || word.eq_ignore_ascii_case("all")
                || word.eq_ignore_ascii_case(class.label())
        })
    }

    /// Fields, classes and `all`, as they stand there.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &'a str> {
        self.entries.iter().copied()
    }

    /// The same annotation, as far as it accepts hazards of these classes.
    #[must_use]
    pub fn limited_to(&self, classes: &BTreeSet<HazardClass>) -> String {
        let mut kept = Vec::new();
        for word in self.entries() {
            if word.eq_ignore_ascii_case("all") {
                kept.extend(classes.iter().map(|class| class.label()));
                continue;
            }
            let named = class_named(word);
            let of_field = || table::find(top(word)).map_or(HazardClass::Unknown, |hazard| hazard.class);
            if classes.contains(&named.unwrap_or_else(of_field)) {
                kept.push(word);
            }
        }
        kept.join(", ")
    }

    /// What an operator does to accept these: on the node a verb for each class; else what to write into the annotation, in
    /// place of what stands there, and what of it was not understood.
    pub(super) fn advice(
        &self,
        fields: &BTreeSet<&str>,
        classes: &BTreeSet<&str>,
        known: &dyn Fn(&str) -> bool,
    ) -> String {
        if self.on_node {
            let verbs: Vec<String> =
                classes.iter().map(|class| format!("kubelet-supervisor acknowledge {class}")).collect();
            return format!("run {} on the node", verbs.join(" and "));
        }
        let is_class = |word: &str| word.eq_ignore_ascii_case("all") || class_named(word).is_some();
        let (kept, odd): (Vec<&str>, Vec<&str>) = self
            .entries
            .iter()
            .partition(|word| is_class(word) || table::find(top(word)).is_some() || known(top(word)));
        let list = |words: &BTreeSet<&str>| {
            let missing = words.iter().copied().filter(|word| !kept.contains(word));
            kept.iter().copied().chain(missing).collect::<Vec<_>>().join(", ")
        };
        // A long list of fields is of no use to anyone.
        let value = [list(fields), list(classes)].into_iter().find(|list| list.len() <= 160);
        let value = value.unwrap_or_else(|| "all".to_owned());
        let mut text = format!("annotate the ConfigMap with {ANNOTATION}: \"{value}\"");
        if let Some(first) = odd.first() {
            text = format!("{text} (it says {:?}, which is no field and no class of hazards)", cut(first));
        }
        text
    }
}

fn class_named(word: &str) -> Option<HazardClass> {
    HazardClass::ALL.into_iter().find(|class| word.eq_ignore_ascii_case(class.label()))
}
