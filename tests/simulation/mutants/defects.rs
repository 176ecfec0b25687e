//! The defects of the core that were ever found, and what brings each of them back.
//!
//! Only the core, and only what the simulator's worlds can reach. A defect that a type or a total function keeps away has none of its
//! mutants: the row says by what. One that no world of the simulator can have is named with the test that shows it.

pub mod needs;
mod reviews;
mod worlds;

use super::Edit;

/// What once went wrong.
#[derive(Clone, Copy)]
pub struct Defect {
    /// As the list that it comes from names it.
    pub id: &'static str,
    pub found_by: FoundBy,
    /// What happened, in a sentence.
    pub what: &'static str,
    pub back: Back,
}

/// Who found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundBy {
    FirstReview,
    Review,
    Breaker,
    Reader,
    World,
    Ci,
}

impl FoundBy {
    pub const ALL: [Self; 6] = [Self::FirstReview, Self::Review, Self::Breaker, Self::Reader, Self::World, Self::Ci];

    /// For people.
    pub fn label(self) -> &'static str {
        match self {
            Self::FirstReview => "Found by the first review",
            Self::Review => "Found by the second review",
            Self::Breaker => "Found by tests that were written to break it",
            Self::Reader => "Found by readers, after the core was restructured",
            Self::World => "Found by worlds of the simulator",
            Self::Ci => "Found by CI",
        }
    }
}

/// What brings it back.
#[derive(Clone, Copy)]
pub enum Back {
    /// A mutant of its own.
    Edit(Edit),
    /// The mutant of a law, by its name.
    Mutant(&'static str),
    /// Nothing that is one edit: this keeps it away.
    Nothing(&'static str),
    /// No world of the simulator gets there; this test does.
    Elsewhere(&'static str),
}

/// All of them.
pub fn all() -> impl Iterator<Item = &'static Defect> {
    reviews::DEFECTS.iter().chain(worlds::DEFECTS)
}

const fn defect(id: &'static str, found_by: FoundBy, what: &'static str, back: Back) -> Defect {
    Defect { id, found_by, what, back }
}

/// A function below `src/`, an expression that is in it once, and what stands in its place.
const fn edit(file: &'static str, function: &'static str, original: &'static str, mutated: &'static str) -> Back {
    Back::Edit(Edit { file, function, original, mutated })
}
