//! The place of a group in its job: the whole job, or a group split from another.
//!
//! The groups of a job are numbered without communication, since all ranks of a group split it in the same order.
//! Groups split from the whole job are 1, 2, 3; groups split from group 2 are 2.1, 2.2, and so on. A path fits into one
//! word of a header.

use std::fmt;

/// Bits per level.
const LEVEL: u32 = 16;

/// See the module's documentation. The default is the whole job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupPath(pub u64);

impl GroupPath {
    /// The group split from this one as number `index`, from 0. `None` beyond four levels, or beyond 65535 groups split
    /// from one.
    pub(crate) fn child(self, index: u64) -> Option<Self> {
        let number = index.checked_add(1).filter(|&number| number < 1 << LEVEL)?;
        let level = self.levels().count() as u32;
        let shift = u64::BITS.checked_sub((level + 1) * LEVEL)?;
        Some(GroupPath(self.0 | number << shift))
    }

    pub(crate) fn is_whole_job(self) -> bool {
        self == GroupPath::default()
    }

    /// The description of an operation, with its group.
    pub(crate) fn name_operation(self, operation: String) -> String {
        if self.is_whole_job() { operation } else { format!("{operation} in group {self}") }
    }

    fn levels(self) -> impl Iterator<Item = u64> {
        let level = move |place: u32| self.0 >> (u64::BITS - (place + 1) * LEVEL) & ((1 << LEVEL) - 1);
        (0..u64::BITS / LEVEL).map(level).take_while(|&number| number != 0)
    }
}

/// `2.1`; empty for the whole job.
impl fmt::Display for GroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, number) in self.levels().enumerate() {
            if place > 0 {
                f.write_str(".")?;
            }
            write!(f, "{number}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_bounds() {
        let check = |indices: &[u64], expected: Option<&str>| {
            let path = indices.iter().try_fold(GroupPath::default(), |path, &index| path.child(index));
            assert_eq!(path.map(|path| path.to_string()).as_deref(), expected, "{indices:?}");
        };
        check(&[], Some(""));
        check(&[0], Some("1"));
        check(&[1, 0, 65534, 6], Some("2.1.65535.7"));
        check(&[65535], None);
        check(&[u64::MAX], None);
        check(&[0, 0, 0, 0, 0], None);
    }
}
