//! A look at every sample of a data set, on the threads of a pool: for commands that examine all of it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use enmasse_image::ImageRegion;

use crate::error::describe_sample;
use crate::pool::{Job, ThreadBuffers};
use crate::{DataError, Dataset, DecodePool};

/// Samples of a job for each thread. Two jobs are under way, so this bounds the results that wait to be taken.
const AHEAD: usize = 8;

/// The longest piece in which time without a result is counted, so that time in which the process is stopped does not count.
const SLICE: Duration = Duration::from_secs(1);

impl DecodePool {
    /// Calls `look` for every sample of `dataset` on the threads of the pool, with a view whose memory is reused. `take` gets
    /// the results on the calling thread, in the order of the samples. Only a few exist at a time.
    ///
    /// # Errors
    /// The first error of `take`, `look` panics, or no result comes for the longest time that a batch waits for an
    /// image. The other samples are left out then.
    pub fn scan<T: Send + 'static, E: From<DataError>>(
        &self,
        dataset: &Arc<dyn Dataset>,
        look: impl Fn(usize, &mut ImageRegion) -> T + Send + Sync + 'static,
        mut take: impl FnMut(usize, T) -> Result<(), E>,
    ) -> Result<(), E> {
        let (send, results) = channel();
        let look = Arc::new(look);
        let cancel = Cancel::default();
        let samples = dataset.len();
        let job = AHEAD * self.threads();
        let submit = |first: usize| {
            let (look, send) = (look.clone(), send.clone());
            let run = Arc::new(move |task: usize, scratch: &mut ThreadBuffers| {
                let index = first + task;
                let result = catch_unwind(AssertUnwindSafe(|| look(index, &mut scratch.view)));
                // Nobody waits any more after an earlier error.
                let _ = send.send((index, result));
            });
            self.submit(Job { tasks: job.min(samples.saturating_sub(first)), cancelled: cancel.0.clone(), run });
        };
        submit(0);
        let mut early = BTreeMap::new();
        for index in 0..samples {
            if index % job == 0 {
                submit(index + job);
            }
            let result = loop {
                if let Some(result) = early.remove(&index) {
                    break result;
                }
                match receive(&results, self.longest_wait()) {
                    Some((index, result)) => early.insert(index, result),
                    None => return Err(DataError::stalled(dataset.as_ref(), index, self.longest_wait()).into()),
                };
            };
            let result =
                result.map_err(|panic| DataError::panicked(describe_sample(dataset.as_ref(), index), &*panic))?;
            take(index, result)?;
        }
        Ok(())
    }
}

/// Leaves out the rest of the work when it is dropped.
#[derive(Default)]
struct Cancel(Arc<AtomicBool>);

impl Drop for Cancel {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The next result; `None` if there is none for `timeout`.
fn receive<T>(results: &Receiver<T>, timeout: Duration) -> Option<T> {
    let mut waited = Duration::ZERO;
    while waited < timeout {
        let slice = SLICE.min(timeout - waited);
        match results.recv_timeout(slice) {
            Ok(result) => return Some(result),
            Err(RecvTimeoutError::Timeout) => waited += slice,
            // The pool has ended.
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use enmasse_image::{Image, RegionRequest};

    struct Numbers(usize);

    impl Dataset for Numbers {
        fn len(&self) -> usize {
            self.0
        }

        fn label(&self, index: usize) -> usize {
            index
        }

        fn read(&self, index: usize) -> Result<Image, DataError> {
            Ok(Image::new(1, 1, vec![index as u8; 3])?)
        }
    }

    /// The samples that were taken, and the error at which that ended.
    fn taken(samples: usize, threads: usize, panics_at: usize, ends_at: usize) -> (Vec<usize>, Option<String>) {
        let pool = DecodePool::new(threads).unwrap().timeout(Duration::from_secs(60));
        let dataset: Arc<dyn Dataset> = Arc::new(Numbers(samples));
        let read = dataset.clone();
        let mut found = Vec::new();
        let look = move |index: usize, view: &mut ImageRegion| {
            assert!(index != panics_at, "a fault");
            read.read_part(index, &RegionRequest::whole, view).map(|()| view.image().pixels()[2])
        };
        let result = pool.scan(&dataset, look, |index, shade| {
            assert_eq!(usize::from(shade?), index);
            found.push(index);
            if index == ends_at { Err(DataError::Setting("enough".to_owned())) } else { Ok(()) }
        });
        (found, result.err().map(|error| error.to_string()))
    }

    #[test]
    fn every_sample_once_and_in_order() {
        for samples in [0, 1, 7, 8, 9, 16, 17, 100] {
            for threads in [1, 3] {
                let expected = ((0..samples).collect(), None);
                assert_eq!(taken(samples, threads, usize::MAX, usize::MAX), expected, "{samples} {threads}");
            }
        }
        let check = |panics_at: usize, ends_at: usize, expected: (usize, &str)| {
            let (found, error) = taken(100, 2, panics_at, ends_at);
            assert_eq!((found.len(), error.as_deref()), (expected.0, Some(expected.1)));
        };
        check(50, usize::MAX, (50, "sample 50: reading or transforming it panicked: a fault"));
        check(usize::MAX, 50, (51, "enough"));
    }
}
