//! What the user should know about data that can be used all the same, such as an incomplete copy.

use std::fmt;

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
}

/// `ImageNet has 50,000 validation pictures, and this copy has 7; compare the copy with its source, or get it again`.
impl fmt::Display for DataWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.problem, self.remedy)
    }
}
