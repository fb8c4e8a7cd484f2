//! Lists: the kernel's lists of numbers, `0-3,8`, and the entries of a folder.

use std::fs::read_dir;
use std::path::Path;

/// The names of a folder's entries; none if it cannot be read.
pub fn entries(folder: impl AsRef<Path>) -> impl Iterator<Item = String> {
    read_dir(folder).into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok())
}

/// The numbers of a list, in order; `None` if it is malformed. An empty list has no numbers.
pub fn parse_list(text: &str) -> Option<Vec<usize>> {
    /// More cores than any machine has; a longer list is not a list of cores.
    const MAX: usize = 1 << 16;
    let mut numbers = Vec::new();
    for piece in text.trim().split(',').filter(|piece| !piece.is_empty()) {
        let (first, last) = piece.split_once('-').unwrap_or((piece, piece));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last < first || last - first >= MAX || numbers.len() + (last - first) >= MAX {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        let check =
            |text: &str, expected: Option<&[usize]>| assert_eq!(parse_list(text).as_deref(), expected, "{text}");
        check("0-1\n", Some(&[0, 1]));
        check("0,2-4,9", Some(&[0, 2, 3, 4, 9]));
        check("\n", Some(&[]));
        check("3", Some(&[3]));
        check("4-2", None);
        check("0-99999999999", None);
        check("0-70000", None);
        check("a", None);
        check("1-", None);
    }
}
