//! Samples that cannot be read, and the limit up to which a loader skips them (`--on-bad-sample`).
//!
//! In training the next sample in the order of the epoch takes the place. That is a function of
//! order, position and files alone, so neither ranks, threads nor a resume change it. Evaluation
//! masks the place, like one past the end of the data. Lack of memory, or a fault of a server, is
//! no fault of a sample, and always ends the run.
//!
//! A batch names the samples that it skipped. Ranks exchange them after each validation and where a
//! run stops, and then decide alike whether there are too many ([`skip_limit`]). A rank that finds
//! too many alone ends the run at once.

use std::fmt;

use crate::DataError;

/// So many unreadable samples in a row end a training epoch.
pub(crate) const MAX_IN_A_ROW: usize = 100;

/// How many unreadable samples of a data set of `samples` are skipped: ten, or one percent. More are no exception but a fault of
/// the data set.
pub fn skip_limit(samples: usize) -> usize {
    (samples / 100).max(10)
}

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

/// The first of `samples`, and how many more there are.
pub(crate) fn name_some(samples: &[BadSample], count: usize) -> String {
    let names = samples.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match count - samples.len() {
        0 => names,
        more => format!("{names} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_samples_or_one_percent() {
        let check = |samples: usize, expected: usize| assert_eq!(skip_limit(samples), expected, "{samples}");
        check(0, 10);
        check(1099, 10);
        check(1100, 11);
        check(1_281_167, 12_811);
    }
}
