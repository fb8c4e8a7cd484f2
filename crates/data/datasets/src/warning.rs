//! What the user should know about data that can be used all the same, such as an incomplete copy.

use std::fmt;
use std::path::Path;

/// A fault that does not keep a run from starting, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataWarning {
    /// The fault: a sentence without a full stop.
    pub problem: String,
    /// What to do.
    pub remedy: &'static str,
}

impl DataWarning {
    /// The data may lack something, and `problem` says what.
    pub(crate) fn incomplete(problem: String) -> Self {
        DataWarning { problem, remedy: "compare the copy with its source, or get it again" }
    }

    /// The only part besides training is named for tests, and validates.
    pub(crate) fn test_validates(root: &Path, test: &str) -> Self {
        let problem = format!("{}: there is no validation part, so {test} is used for validation", root.display());
        DataWarning { problem, remedy: "add a validation part (val) to keep it for the test at the end" }
    }

    /// Columns of zeros and ones have a single 1 in each row.
    pub(crate) fn one_hot(table: &Path, columns: usize) -> Self {
        let problem =
            format!("{}: each row has a 1 in one of {columns} columns, which are taken for classes", table.display());
        DataWarning {
            problem,
            remedy: "say it by `task = classification`, or take them for labels by `task = multi-label`",
        }
    }

    /// The part for tests has no labels. `why` is how that shows.
    pub(crate) fn unlabelled_test(place: &Path, why: &str) -> Self {
        let problem = format!("{}: the test part is not used: {why}", place.display());
        DataWarning { problem, remedy: "label its images to evaluate it, or pass them to enmasse predict" }
    }
}

/// `ImageNet has 50,000 validation images, and this copy has 7; compare the copy with its source, or get it again`.
impl fmt::Display for DataWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.problem, self.remedy)
    }
}
