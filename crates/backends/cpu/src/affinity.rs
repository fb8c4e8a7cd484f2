//! Which processor cores threads run on.
//!
//! If the ranks of a machine together have as many threads as the process may use cores, each
//! rank's threads are pinned to cores of their own. The thread that submits steps is pinned only
//! while a step runs. Otherwise the kernel places all threads. Loader threads are not pinned.

use std::fmt;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A set of processor cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores(CpuSet);

impl Cores {
    /// The machine's cores that the calling thread may run on, as restricted by the launcher or the user. `None` if the
    /// kernel does not tell.
    pub fn available() -> Option<Cores> {
        sched_getaffinity(None).ok().map(Cores)
    }

    /// Number of cores.
    pub fn count(&self) -> usize {
        self.0.count() as usize
    }

    /// `count` of these cores after the first `skipped`, in the order of their numbers, in which cores with the same
    /// local memory are adjacent. `None` if there are fewer.
    pub fn part(&self, skipped: usize, count: usize) -> Option<Cores> {
        let mut part = CpuSet::new();
        self.numbers().skip(skipped).take(count).for_each(|core| part.set(core));
        Some(Cores(part)).filter(|part| part.count() == count)
    }

    /// Those with these numbers. `None` if there is none.
    pub fn among(&self, numbers: &[usize]) -> Option<Cores> {
        let mut chosen = CpuSet::new();
        self.numbers().filter(|core| numbers.contains(core)).for_each(|core| chosen.set(core));
        Some(Cores(chosen)).filter(|chosen| chosen.count() > 0)
    }

    /// Their numbers, ascending.
    pub fn numbers(&self) -> impl Iterator<Item = usize> {
        (0..CpuSet::MAX_CPU).filter(|&core| self.0.is_set(core))
    }

    /// Keeps the calling thread on these cores. If the kernel refuses, the thread runs where it did before.
    pub(crate) fn pin(&self) {
        let _ = sched_setaffinity(None, &self.0);
    }
}

/// The numbers of the cores, such as `0,1,5`.
impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.numbers().enumerate().try_for_each(|(place, core)| write!(f, "{}{core}", if place > 0 { "," } else { "" }))
    }
}

/// Keeps the calling thread on some cores until dropped; then the thread may run on its previous cores again. Threads
/// that it starts in the meantime stay on those cores.
#[derive(Debug)]
pub struct Pinned(Cores);

impl Pinned {
    /// Pins the thread to `cores`, if some are given.
    pub fn to(cores: Option<Cores>) -> Option<Self> {
        let cores = cores?;
        let before = Cores::available()?;
        cores.pin();
        Some(Pinned(before))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.0.pin();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(numbers: &[usize]) -> Cores {
        let mut set = CpuSet::new();
        numbers.iter().for_each(|&core| set.set(core));
        Cores(set)
    }

    #[test]
    fn parts_in_the_order_of_cores() {
        let check = |skipped, count, expected: Option<&[usize]>| {
            assert_eq!(cores(&[0, 3, 4, 70, 1023]).part(skipped, count), expected.map(cores), "{skipped} {count}");
        };
        check(0, 2, Some(&[0, 3]));
        check(2, 2, Some(&[4, 70]));
        check(4, 1, Some(&[1023]));
        check(0, 5, Some(&[0, 3, 4, 70, 1023]));
        check(5, 0, Some(&[]));
        check(4, 2, None);
        check(9, 1, None);
    }

    #[test]
    fn cores_by_number() {
        let check = |numbers: &[usize], expected: Option<&[usize]>| {
            assert_eq!(cores(&[0, 3, 70]).among(numbers), expected.map(cores), "{numbers:?}");
        };
        check(&[70, 71, 3], Some(&[3, 70]));
        check(&[1, 2], None);
        check(&[], None);
    }

    #[test]
    fn a_thread_gets_its_previous_cores_back() {
        let before = Cores::available().unwrap();
        for index in 0..before.count() {
            let core = before.part(index, 1).unwrap();
            let pinned = Pinned::to(Some(core)).unwrap();
            assert_eq!(Cores::available(), Some(core));
            // A thread that is started in the meantime stays there, which is why pinning ends with the work.
            assert_eq!(std::thread::spawn(Cores::available).join().unwrap(), Some(core));
            drop(pinned);
            assert_eq!(Cores::available(), Some(before));
        }
        assert!(Pinned::to(None).is_none());
    }
}
