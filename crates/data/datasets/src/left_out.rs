//! What a scan of folders leaves out, counted and named, since an image that is missing without a
//! word is missed late. Commands say it at their start.

use std::fmt;
use std::path::{Path, PathBuf};

/// Names in folders that are no images and no folders of images: pipes, sockets, devices, links that lead to nothing or to a folder above
/// them, images in formats that are not read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    count: usize,
    /// The first few by their paths, each with what it is.
    first: Vec<(PathBuf, &'static str)>,
}

impl LeftOut {
    /// Number of names that are kept.
    const NAMED: usize = 3;

    /// Adds a path that is `kind`, such as a pipe.
    pub fn add(&mut self, path: &Path, kind: &'static str) {
        self.append(LeftOut { count: 1, first: vec![(path.to_owned(), kind)] });
    }

    /// Adds what another scan left out.
    pub fn append(&mut self, mut other: LeftOut) {
        self.count += other.count;
        self.first.append(&mut other.first);
        // A folder lists its entries in any order.
        self.first.sort_unstable();
        self.first.truncate(Self::NAMED);
    }

    /// Whether nothing was left out.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The number of paths that were left out.
    pub fn count(&self) -> usize {
        self.count
    }
}

/// `left out 1 entry: red/7.jpg (a pipe)`.
impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            1 => write!(f, "left out 1 entry")?,
            count => write!(f, "left out {count} entries")?,
        }
        for (number, (path, kind)) in self.first.iter().enumerate() {
            let separator = if number == 0 { ": " } else { ", " };
            write!(f, "{separator}{} ({kind})", path.display())?;
        }
        match self.count - self.first.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ones_are_named() {
        let check = |names: &[&str], expected: &str| {
            let mut left_out = LeftOut::default();
            names.iter().for_each(|name| left_out.add(Path::new(name), "a pipe"));
            assert_eq!((left_out.to_string(), left_out.count()), (expected.to_owned(), names.len()));
        };
        check(&["a"], "left out 1 entry: a (a pipe)");
        check(&["b", "a"], "left out 2 entries: a (a pipe), b (a pipe)");
        check(&["d", "a", "c", "b", "e"], "left out 5 entries: a (a pipe), b (a pipe), c (a pipe) and 2 more");
    }
}
