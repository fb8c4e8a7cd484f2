//! Versions of NVIDIA's libraries.

use std::fmt;

/// A version of a library: major, minor, patch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Version(pub(crate) [usize; 3]);

impl Version {
    /// From a library's number: 90800 is 9.8.0. Numbers below `five_digits` have one digit for the minor version: 8907 is 8.9.7.
    pub(crate) fn new(number: usize, five_digits: usize) -> Self {
        let [major, minors] = if number < five_digits { [1000, 10] } else { [10_000, 100] };
        Version([number / major, number / 100 % minors, number % 100])
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.map(|part| part.to_string()).join("."))
    }
}
