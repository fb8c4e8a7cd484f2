//! Samples that cannot be read, and the limit up to which a loader skips them.

use std::fmt;

use crate::DataError;

/// So many unreadable samples in a row end a training epoch.
pub(crate) const MOST_IN_A_ROW: usize = 100;

/// A sample that a loader skipped because it cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BadSample {
    /// The data set's name for it: a path if there is one.
    pub name: String,
    /// Why it cannot be read.
    pub problem: String,
}

impl BadSample {
    /// A sample with the data set's name for it, and the fault that `error` states.
    pub fn new(name: String, error: &DataError) -> Self {
        BadSample { name, problem: error.problem() }
    }
}

/// `red/7.jpg (the file is empty)`.
impl fmt::Display for BadSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.problem)
    }
}
