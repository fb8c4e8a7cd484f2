//! How many runs of pieces all readers together may fetch ahead and hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs that are fetched ahead at a time, or wait for their reader, over all readers: 128 MiB. If each takes 100 ms, they are more than 1 GB/s.
pub(crate) const RUNS: usize = 16;

/// The runs that are fetched ahead. Clones count together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Permits(Arc<AtomicUsize>);

/// The right to fetch a run ahead and to hold it, until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit(Permits);

impl Permits {
    /// One more, if there may be.
    pub fn take(&self) -> Option<Permit> {
        let more = |taken: usize| (taken < RUNS).then_some(taken + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Permit(self.clone()))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounded_number_of_runs() {
        let permits = Permits::default();
        let mut taken: Vec<Permit> = std::iter::from_fn(|| permits.clone().take()).collect();
        assert_eq!(taken.len(), RUNS);
        taken.pop();
        assert!(permits.take().is_some() && permits.take().is_some());
    }
}
