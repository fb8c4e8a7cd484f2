//! Which processor cores threads run on.

use std::fmt;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A set of processor cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores(CpuSet);

impl Cores {
    /// The cores that the calling thread may run on: of the machine's, what a launcher or the user has left it. `None`
    /// where the kernel does not say.
    pub fn available() -> Option<Cores> {
        sched_getaffinity(None).ok().map(Cores)
    }

    /// Number of cores.
    pub fn count(&self) -> usize {
        self.0.count() as usize
    }

    /// `count` of these cores after the first `skipped`, in the order of their numbers, in which the cores of a
    /// processor's memory lie together. `None` where there are not so many.
    pub fn part(&self, skipped: usize, count: usize) -> Option<Cores> {
        let mut part = CpuSet::new();
        self.numbers().skip(skipped).take(count).for_each(|core| part.set(core));
        Some(Cores(part)).filter(|part| part.count() == count)
    }

    /// The core at `index`, alone.
    pub(crate) fn single(&self, index: usize) -> Option<Cores> {
        self.part(index, 1)
    }

    fn numbers(&self) -> impl Iterator<Item = usize> {
        (0..CpuSet::MAX_CPU).filter(|&core| self.0.is_set(core))
    }

    /// Keeps the calling thread on these cores. The kernel may refuse; then the thread runs where it did.
    pub(crate) fn pin(&self) {
        let _ = sched_setaffinity(None, &self.0);
    }
}

/// Their numbers, such as `0,1,5`.
impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.numbers().enumerate().try_for_each(|(place, core)| write!(f, "{}{core}", if place > 0 { "," } else { "" }))
    }
}

/// The calling thread on a core of its own for a while; dropped, the thread may run where it could before. Threads that
/// it starts meanwhile would stay on that core.
#[derive(Debug)]
pub(crate) struct Pinned(Cores);

impl Pinned {
    /// On `core`, if one is given.
    pub(crate) fn to(core: Option<Cores>) -> Option<Self> {
        let (core, before) = (core?, Cores::available()?);
        core.pin();
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
    fn a_thread_goes_back_where_it_was() {
        let before = Cores::available().unwrap();
        for index in 0..before.count() {
            let core = before.single(index).unwrap();
            let pinned = Pinned::to(Some(core)).unwrap();
            assert_eq!(Cores::available(), Some(core));
            // A thread that is started meanwhile stays there, which is why pinning ends with the work.
            assert_eq!(std::thread::spawn(Cores::available).join().unwrap(), Some(core));
            drop(pinned);
            assert_eq!(Cores::available(), Some(before));
        }
        assert!(Pinned::to(None).is_none());
    }
}
